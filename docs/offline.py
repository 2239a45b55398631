"""What a built page loads from a network: nothing, or the build fails."""

import re
from html.parser import HTMLParser
from pathlib import Path

LOADED = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
}
SOURCES = ("src", "srcset", "poster", "data")
REMOTE = re.compile(r"^\s*(?:https?:)?//", flags=re.I)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)", flags=re.I)


class Loads(HTMLParser):
    """Collects the addresses elsewhere that a browser fetches on its own; a link is not fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        asked = [given[name] for name in SOURCES if name in given]
        if tag == "use" or (tag == "link" and LOADED & set(given.get("rel", "").lower().split())):
            asked.append(given.get("href", ""))
        self.found += [address for address in asked if REMOTE.match(address)]
        self.found += IN_STYLE.findall(given.get("style", ""))
        if "mermaid" in given.get("class", "").split():
            self.found.append("the library that draws mermaid diagrams")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found += IN_STYLE.findall(data)


def loaded(text: str, suffix: str) -> list[str]:
    """Addresses elsewhere that an HTML page or a style sheet makes a browser fetch."""
    if suffix == ".css":
        return IN_STYLE.findall(text)
    reader = Loads()
    reader.feed(text)
    return reader.found


def check(site: Path) -> None:
    """`ValueError` with the pages of a built site that load something from elsewhere."""
    pages = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css")]
    guilty = [
        f"{path.relative_to(site)} loads {address}"
        for path in pages
        for address in loaded(path.read_text(encoding="utf-8"), path.suffix)
    ]
    if guilty:
        raise ValueError("the site must load nothing from a network: " + "; ".join(guilty))
