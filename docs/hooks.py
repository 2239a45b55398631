"""What the documentation site has besides its pages, and that it loads nothing from a network."""

import html
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

from iclflow.explorer.page import page as explorer

sys.path.insert(0, str(Path(__file__).parent))
import equations
import offline

PICTURE = "assets/staircase.png"


def on_files(files: Files, config) -> Files:
    """Add the explorer page."""
    card = f'content="{address(PICTURE, config)}"'
    page = explorer().replace(f'content="{PICTURE}"', card, 1)
    files.append(File.generated(config, "explore.html", content=page))
    return files


def address(path: str, config) -> str:
    """The whole address of a file of the site, where `site_url` says where the site is."""
    return f"{config.site_url.rstrip('/')}/{path}" if config.site_url else path


def on_post_page(output: str, page, config) -> str:
    """What a message shows of a link to the page: its title, what the site is, and the picture."""
    picture = PICTURE if config.site_url else "../" * page.url.count("/") + PICTURE
    card = {
        "og:type": "article",
        "og:title": f"{page.title} - {config.site_name}",
        "og:description": config.site_description,
        "og:image": address(picture, config),
    }
    tags = "".join(
        f'<meta property="{name}" content="{html.escape(str(value))}">\n'
        for name, value in card.items()
    )
    large = '<meta name="twitter:card" content="summary_large_image">\n'
    return output.replace("</head>", f"{tags}{large}</head>", 1)


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Write the tables of equations, from the docstrings as they are now."""
    return equations.write(markdown) if page.file.src_path == "equations.md" else markdown


def on_post_build(config) -> None:
    """Fail where a page would fetch something from elsewhere."""
    offline.check(Path(config.site_dir))
