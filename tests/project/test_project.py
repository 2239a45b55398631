"""What the repository promises about itself."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import iclflow

ROOT = Path(__file__).parents[2]

# Spelt in parts, so that this file does not contain what it looks for.
INDEX_HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "download." + "pytorch.org",
    "deb." + "debian.org",
    "conda." + "anaconda.org",
]
INDEX_OPTIONS = ["index" + "-url", "trusted" + "-host", "find" + "-links", "/sim" + "ple/"]
WORKPLACE = ["/wo" + "rk/", "../sha" + "red", "/ro" + "ot/", "/ho" + "me/", ".lib" + "rary"]


def tracked_files() -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: which files belong to the project is unknown")
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def offences(words: list[str]) -> list[str]:
    pattern = re.compile("|".join(re.escape(word) for word in words))
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # a font or a recording
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {match[0]}"
            for number, line in enumerate(lines, 1)
            if (match := pattern.search(line))
        ]
    return found


def test_names_no_package_index():
    assert offences(INDEX_HOSTS + INDEX_OPTIONS) == []


def test_names_no_path_of_one_machine():
    assert offences(WORKPLACE) == []


def test_the_search_finds_what_it_looks_for(tmp_path, monkeypatch):
    guilty = tmp_path / "notes.md"
    guilty.write_text("fine\nsee " + INDEX_HOSTS[0] + "\n")
    monkeypatch.setattr("tests.project.test_project.ROOT", tmp_path)
    monkeypatch.setattr("tests.project.test_project.tracked_files", lambda: [guilty])
    assert offences(INDEX_HOSTS) == [f"notes.md:2: {INDEX_HOSTS[0]}"]


def test_dir_shows_the_public_names_and_nothing_else():
    assert dir(iclflow) == sorted(["__version__", *iclflow.__all__])
    assert not {"Any", "Path", "ast", "importlib"} & set(vars(iclflow))


def test_the_docs_are_built_so_that_warnings_count():
    """`--quiet` hides the warnings that `--strict` counts."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    builds = re.findall(r"mkdocs build.*", recipe)
    assert len(builds) == 3
    assert all("--strict" in build and "--quiet" not in build for build in builds)


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.M) == [iclflow.__version__]


def test_every_contract_is_public():
    # not what a user extends
    inside = {"AbstractLeg", "AbstractRun", "AbstractCells", "AbstractBytes"}
    for path in sorted((ROOT / "iclflow").rglob("*.py")):
        room = path.relative_to(ROOT / "iclflow").parts[0]
        for name in re.findall(r"^class (Abstract\w+)", path.read_text("utf-8"), flags=re.M):
            assert (
                {name} <= inside or hasattr(iclflow, name) or name in dir(getattr(iclflow, room))
            ), name


def test_the_package_is_typed():
    assert (ROOT / "iclflow" / "py.typed").is_file()
    stub = (ROOT / "iclflow" / "__init__.pyi").read_text(encoding="utf-8")
    lines = [line for line in stub.splitlines() if line.startswith("from ")]
    assert all(re.fullmatch(r"from [\w.]+ import (\w+) as \1", line) for line in lines)
    assert len(lines) == len(set(iclflow.__all__)) > 50


def test_the_picture_of_the_rooms_has_every_room():
    picture = (ROOT / "docs" / "assets" / "rooms.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'class="name"[^>]*>([^<]+)<', picture)
    rooms = [room for name in drawn for room in re.split(r"\s*·\s*", name)]
    package = ROOT / "iclflow"
    units = {path.relative_to(package).with_suffix("").parts[0] for path in package.rglob("*.py")}
    assert sorted(rooms) == sorted(units - {"__init__", "__main__"})


def test_no_backslash_shows_in_a_table():
    """Markdown's tables keep it inside code."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    shown = [
        re.findall(r"`[^`\n]*\\\|[^`\n]*`", page.read_text(encoding="utf-8")) for page in pages
    ]
    assert shown == [[] for _ in pages]


def test_readme_commands_are_make_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    commands = re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text("utf-8"), flags=re.M)
    assert set(commands) >= {"reproduce", "test"}
    assert set(commands) <= targets


def test_make_test_installs_every_extra():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installed = re.search(r"^EXTRAS := (.+)$", makefile, flags=re.M)
    assert installed is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(installed[1].split(",")) == set(project["optional-dependencies"])


def test_constraints_are_exact_pins_of_every_dependency():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==[0-9][A-Za-z0-9.+]*", line) for line in lines]
    assert [line for line, pin in zip(lines, pins, strict=True) if pin is None] == []
    pinned = {_normal(pin[1]) for pin in pins if pin is not None}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {_normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for group in needed for line in group}
    assert names - pinned == set()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
