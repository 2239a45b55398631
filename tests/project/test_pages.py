"""What the pages name exists: links, files, functions, options; the site needs no network."""

import argparse
import importlib
import importlib.util
import re
import tomllib
import types
from pathlib import Path

import pytest

import iclflow as icl
from iclflow import cli

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LOOSE = [path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"]
PAGES = [*LOOSE, *DOCS, *sorted((ROOT / ".github").rglob("*.md"))]
EXAMPLES = [path.stem for path in (ROOT / "examples").glob("*.py")]
MADE = {  # when the site is built
    ROOT / "docs" / "explore.html",
    *(ROOT / "docs" / "gallery" / f"{name}.md" for name in ("index", *EXAMPLES)),
}


def identified(path):
    return path.relative_to(ROOT).as_posix()


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page):
    """The anchors of a page's headings: named ones, and those made of their words."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.M):
        words, _, name = heading.partition("{ #")
        if name:
            found.add(name.split()[0].rstrip("}"))
        plain = re.sub(r"[^\w\s-]", "", words.strip().lower())
        found.add(re.sub(r"[\s]+", "-", plain))
    return found


def links(page):
    """The relative links of a page: (file, anchor)."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


@pytest.mark.parametrize("page", PAGES, ids=identified)
def test_links_lead_to_files_and_headings(page):
    """MkDocs checks this too, but neither README nor what lies beside it."""
    broken = []
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        made = target in MADE
        if not (made or target.exists()):
            broken.append(file)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{file}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=identified)
def test_names_of_the_library_exist(page):
    for name in set(re.findall(r"`icl\.([\w.]+)", prose(page))):
        thing = icl
        for part in name.split("."):
            thing = getattr(thing, part)


def test_the_api_has_every_public_name_once():
    """A page of the API asks for one object per heading; none of them is private or twice there."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    asked = re.findall(r"^::: (\S+)$", "\n".join(p.read_text("utf-8") for p in pages), flags=re.M)
    homes = [path.rpartition(".") for path in asked]
    things = [getattr(importlib.import_module(home), name) for home, _, name in homes]
    # Of a module and a function of one name, the page would show the module.
    assert [path for path in asked if (ROOT / f"{path.replace('.', '/')}.py").exists()] == []
    assert not any(part.startswith("_") for path in asked for part in path.split("."))
    assert len(things) == len({id(thing) for thing in things})
    public = {name: getattr(icl, name) for name in icl.__all__}
    missing = [
        name
        for name, thing in public.items()
        if not isinstance(thing, types.ModuleType) and not any(thing is one for one in things)
    ]
    assert missing == []


def options():
    """Every option of every command."""
    found = {"--help", "--version"}
    for command in cli.COMMANDS:
        parsers = [cli.build_parser(command)]
        for parser in parsers:
            for action in parser._actions:
                found.update(action.option_strings)
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
    return found


@pytest.fixture(scope="module")
def known():
    return options()


@pytest.mark.parametrize("page", PAGES, ids=identified)
def test_options_exist(page, known):
    """Options in code of the text, alone or in a command; a beginning of one will do, as in use."""
    spoken = [code for code in re.findall(r"`([^`\n]+)`", prose(page)) if not foreign(code)]
    named = {option for code in spoken for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
    assert [n for n in sorted(named) if not any(o.startswith(n) for o in known)] == []


def foreign(code):
    """Whether a command is of another program, or of a script, which tests of their own run."""
    program = code.split()[0].rpartition("/")[2]
    return program in {"pip", "pytest", "python", "mkdocs", "tsc"} or "XLA_FLAGS" in code


@pytest.mark.parametrize("page", PAGES, ids=identified)
def test_files_that_are_named_exist(page):
    folders = "|".join(p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith("."))
    named = re.findall(rf"`((?:{folders})/[\w./-]+\.(?:py|md|toml|json|npz|txt))\b", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))) <= targets, page


def test_every_extra_that_is_named_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [*PAGES, *(ROOT / "iclflow").rglob("*.py")]
    named = {
        extra
        for path in sources
        for group in re.findall(r"(?:iclflow|\.)\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert {"hub", "sweep"} <= named <= set(project["optional-dependencies"])


def offline():
    spec = importlib.util.spec_from_file_location("offline", ROOT / "docs" / "offline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://a.org/x.js"></script>', ["https://a.org/x.js"]),
        ('<link rel="stylesheet" href="//a.org/x.css">', ["//a.org/x.css"]),
        ('<link rel="preconnect" href="https://a.org">', ["https://a.org"]),
        ('<style>@import url("https://a.org/x.css");</style>', ["https://a.org/x.css"]),
        ('<p style="background: url(https://a.org/x.png)">', ["https://a.org/x.png"]),
        ('<a href="https://a.org">a link</a><link rel="canonical" href="https://a.org">', []),
        ('<img src="assets/x.png"><script>// see https://a.org</script>', []),
    ],
)
def test_what_a_page_loads_is_found(text, found, tmp_path):
    """The build of the site runs the same check over every page and style sheet."""
    module = offline()
    assert module.loaded(text, ".html") == found
    (tmp_path / "page.html").write_text(text)
    if found:
        with pytest.raises(ValueError, match=r"page\.html loads"):
            module.check(tmp_path)
    else:
        module.check(tmp_path)


def test_what_a_style_sheet_loads_is_found():
    assert offline().loaded("a{background:url('//a.org/x.png')}", ".css") == ["//a.org/x.png"]
