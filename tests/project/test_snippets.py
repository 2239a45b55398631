"""Every Python and shell snippet of README, documentation and docstrings runs as printed.

The blocks of a page run in order, in one namespace and one folder. `python` is run; a `print` whose
comment begins with a number must print that number. `bash` is a command a line; `console` has
commands after `$`, each with what it prints or without: what is shown must be what is printed,
numbers to the digits shown, with `…` on a line for lines left out. `text` is never run. A block
after the line `<!-- slow -->`, or on a page that takes long, is run by `make test-all` only, one
after `<!-- needs torch -->` where that is installed, and else compiled. Commands inside a line of
text are parsed.
"""

import ast
import contextlib
import doctest
import importlib.util
import io
import json
import re
import runpy
import shlex
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow import cli
from iclflow.results.tensors import write_tensors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "bash", "console", "text"}
PROGRAMS = {  # commands of other programs, and why they are not run here
    "make": "builds an environment and runs these tests",
    "pip": "needs a network",
}
NOT_RUN = {  # beginnings of commands that are only parsed, and why
    "diagnose --hf": "needs a network",
    "reproduce all": "minutes; tests/cli/test_cli_reproduce.py runs each kind of figure",
    "reproduce lt-fig7": "hours on a CPU without --quick; tests/experiments/test_grokking.py",
    "reproduce nonlinear": "hours on a CPU",
    "reproduce field": "minutes; tests/experiments/test_field.py",
    "reproduce lt-fig5": "minutes; tests/experiments/test_in_context_emergence.py",
}


class Block(NamedTuple):
    language: str
    text: str
    slow: bool
    needs: tuple[str, ...] = ()


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page; `ValueError` for a language that no rule knows."""
    fence = r"^(?:<!-- (slow|needs [\w ]+) -->\n)?^```([^\n]*)\n(.*?)^```$"
    found = re.findall(fence, page, flags=re.M | re.S)
    if len(found) * 2 != len(re.findall(r"^ *```", page, flags=re.M)):
        raise ValueError("a block is indented or not closed")
    if unknown := {language for _, language, _ in found} - LANGUAGES:
        raise ValueError(f"no rule for blocks of {sorted(unknown)}; there are {sorted(LANGUAGES)}")
    return [
        Block(language, text, said == "slow", tuple(said.split()[1:]))
        for said, language, text in found
    ]


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """The shell commands of a block, one a line, and the output that is shown below each."""
    lines = re.sub(r"\s*\\\n\s*", " ", block.text).splitlines()
    if block.language == "bash":
        return [(line, []) for line in lines if line.strip() and not line.startswith("#")]
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


def same_line(shown: str, printed: str) -> bool:
    """Equal but for spaces, times in seconds, and one unit in the last digit of a long number."""
    shown, printed = (
        re.sub(r"\b\d+(\.\d+)? s\b", "# s", " ".join(line.split())) for line in (shown, printed)
    )
    ours, theirs = NUMBER.split(shown), NUMBER.split(printed)
    return ours[::2] == theirs[::2] and all(map(same_number, ours[1::2], theirs[1::2]))


def same_number(shown: str, printed: str) -> bool:
    mantissa, _, power = shown.partition("e")
    digits = len(mantissa.partition(".")[2])
    rounded = "." in mantissa or len(mantissa.lstrip("-")) > 3  # else a count
    unit = 10.0 ** (int(power or 0) - digits) if rounded else 0.0
    return abs(float(shown) - float(printed)) <= 1.001 * unit


def check_output(shown: list[str], printed: str) -> None:
    """What is shown is what was printed; `…` stands for any lines."""
    lines = [line for line in printed.splitlines() if line.strip()]
    shown, skipping = [line for line in shown if line.strip()], False
    for said in shown:
        if said.strip() == "…":
            skipping = True
            continue
        while skipping and lines and not same_line(said, lines[0]):
            lines.pop(0)
        assert lines, f"not printed: {said}"
        assert same_line(said, lines[0]), f"shown: {said}\nprinted: {lines[0]}"
        lines.pop(0)
        skipping = False
    assert skipping or not lines, f"printed, but not shown: {lines[0]}"


def inline_commands(page: str) -> list[str]:
    """Whole commands in running text and tables: `iclflow simulate --heads 5`."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    found = re.findall(r"`((?:[A-Z_]+=\S+ )?iclflow [^`]+)`", text)
    return [line for line in found if not re.search(r"[\[…]|\b[A-Z]{4,}\b(?!=)", line)]


def arguments(command: str) -> list[str] | None:
    """What `iclflow` is given, or None if the command is another program's."""
    words = shlex.split(command, comments=True)
    while "=" in words[0]:  # settings of the environment
        words = words[1:]
    if words[0] in PROGRAMS or (words[0] == "python" and (ROOT / words[1]).is_file()):
        return None
    if words[0] != "iclflow":
        raise ValueError(f"no rule for the program {words[0]!r}")
    return words[1:]


def parse(command: str) -> None:
    """Every option there is; `ValueError` for one that is not."""
    given = arguments(command) or ["--version"]
    if len(given) == 1:
        assert given[0] in ("--help", "--version", *cli.COMMANDS), command
        return
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            cli.build_parser(given[0]).parse_args(given)
    except SystemExit as stop:
        if stop.code:
            raise ValueError(f"not a command there is: {command}") from stop


def run_command(command: str, shown: Sequence[str] = ()) -> None:
    parse(command)
    given = arguments(command)
    if given is None or " ".join(given).startswith(tuple(NOT_RUN)):
        assert not shown, f"not run, so its output cannot be checked: {command}"
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = cli.main(given)
        except SystemExit as stop:  # --version
            code = stop.code
    assert not code, command
    if shown:
        check_output(list(shown), printed.getvalue())


def run_python(text: str, names: dict) -> None:
    """Run a block; what it prints must be the numbers that its comments say."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "<snippet>", "exec"), names)
    expected = re.findall(r"^print\(.*\)\s+# (-?[\d.]*\d)", text, flags=re.M)
    for said, line in zip(expected, printed.getvalue().splitlines(), strict=bool(expected)):
        digits = len(said.partition(".")[2])
        assert abs(float(line) - float(said)) <= 0.5 * 10**-digits, f"{line}, not {said}"


def run_blocks(found: list[Block]) -> None:
    names = {"__name__": "__main__"}
    for block in found:
        if any(importlib.util.find_spec(library) is None for library in block.needs):
            compile(block.text, "<snippet>", "exec")
        elif block.language == "python":
            with warnings.catch_warnings():
                if block.needs:  # those of other libraries
                    warnings.simplefilter("ignore")
                run_python(block.text, names)
        elif block.language != "text":
            for command, shown in commands(block):
                run_command(command, shown)


def given_files(folder: Path) -> None:
    """Other people's files that the pages read: a loss curve and checkpoints."""
    step = np.unique(np.geomspace(1, 12000, 400).astype(int))
    loss = 1 - 0.36 / (1 + np.exp(-(step - 1900) / 20)) - 0.26 / (1 + np.exp(-(step - 3050) / 20))
    rows = "\n".join(f"{s},{value}" for s, value in zip(step, loss, strict=True))
    (folder / "loss.csv").write_text(f"step,loss\n{rows}\n")
    model = icl.transformers.AttentionOnlyInitialiser(8, 8, layers=1, width=8, heads=2)
    for number in range(3):
        place = folder / "run" / f"step{number}"
        place.mkdir(parents=True)
        drawn = icl.transformers.AttentionOnly.tensors(model(jax.random.key(number)))
        write_tensors(place / "model.safetensors", drawn, {})
    shutil.copytree(folder / "run", folder / "output")
    for number in range(3):
        saved = folder / "output" / f"step{number}"
        place = saved.rename(folder / "output" / f"checkpoint-{number}")
        history = [{"step": 1 + i, "loss": 1 / (1 + i)} for i in range(12)]
        state = json.dumps({"global_step": number, "log_history": history})
        (place / "trainer_state.json").write_text(state)


def identified(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


WITH_BLOCKS = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"))]


HEAVY = {
    f"docs/{name}.md"
    for name in ("choosing", "diagnostics", "explorer", "field", "grokking", "linear-transformer",
                 "monitor", "optimisers")
}  # fmt: skip
QUICK = [
    pytest.param(page, marks=[pytest.mark.slow] if identified(page) in HEAVY else [])
    for page in WITH_BLOCKS
]


@pytest.mark.parametrize("page", QUICK, ids=identified)
def test_quick_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given_files(tmp_path)
    run_blocks([block for block in blocks(page.read_text(encoding="utf-8")) if not block.slow])


SLOW = [page for page in WITH_BLOCKS if "<!-- slow -->" in page.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=identified)
def test_all_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given_files(tmp_path)
    run_blocks(blocks(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=identified)
def test_commands_in_the_text_have_the_options_there_are(page):
    for command in inline_commands(page.read_text(encoding="utf-8")):
        parse(command)


NAMED = {
    name for page in PAGES for name in re.findall(r"python (\S+\.py)", page.read_text("utf-8"))
}


@pytest.mark.parametrize("program", sorted(NAMED - {"train.py"}))  # train.py: the published code
def test_programs_that_the_text_names_load(program, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    runpy.run_path(str(ROOT / program), run_name="loaded")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_examples_of_the_help_have_the_options_there_are(command):
    module = importlib.import_module(f"iclflow.cli.{command}")
    plain = re.sub(r"\$\w+", "1", re.sub(r"^ +", "", module.EXAMPLES, flags=re.M))  # loops of bash
    text = Block("bash", plain, slow=False)
    found = [line for line, _ in commands(text) if line.startswith("iclflow ")]
    assert found
    for line in found:
        parse(line)


@pytest.mark.slow
def test_commands_of_the_readme_table_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = inline_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) > 5
    for command in found:
        run_command(command)


def examples() -> list[doctest.DocTest]:
    found = []
    for path in sorted((ROOT / "iclflow").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if ">>>" not in source and "```" not in source:  # every process reads all files
            continue
        for node in ast.walk(ast.parse(source)):
            kinds = ast.Module | ast.ClassDef | ast.FunctionDef
            text = (ast.get_docstring(node) if isinstance(node, kinds) else None) or ""
            name = f"{identified(path)}:{getattr(node, 'name', '')}"
            assert "```" not in text, f"{name}: write examples with >>>"
            if ">>>" in text:
                found.append(doctest.DocTestParser().get_doctest(text, {}, name, str(path), 0))
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_examples_in_docstrings_run(example):
    out = io.StringIO()
    result = doctest.DocTestRunner().run(example, out=out.write)
    assert result.attempted > 0
    assert result.failed == 0, out.getvalue()


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nno_such_name\n```\n", NameError),
        ("```python\nprint(1 / 3)  # 0.34\n```\n", AssertionError),
        ("```bash\niclflow theory --no-such-option 1\n```\n", ValueError),
        ("```console\n$ rm file\n```\n", ValueError),
        ("```console\n$ iclflow --version\niclflow 0.0.0\n```\n", AssertionError),
        ("```ruby\n1\n```\n", ValueError),
        ("```python\n1\n", ValueError),
    ],
)
def test_a_wrong_snippet_is_found(page, complaint):
    with pytest.raises(complaint):
        run_blocks(blocks(page))


def test_snippets_are_read_as_written():
    page = "```console\n$ iclflow theory \\\n    --context 8\nlevel 1\n```\nand `iclflow theory`."
    assert commands(blocks(page)[0]) == [("iclflow theory --context 8", ["level 1"])]
    assert inline_commands(page) == ["iclflow theory"]
    assert [block.slow for block in blocks("<!-- slow -->\n```text\n```\n")] == [True]
    needy = blocks("<!-- needs no_such_library -->\n```python\nimport no_such_library\n```\n")
    assert needy[0].needs == ("no_such_library",)
    run_blocks(needy)  # compiled, not run
    with pytest.raises(SyntaxError):
        run_blocks([needy[0]._replace(text="import\n")])


def test_output_is_compared_to_the_digits_shown():
    printed = "a    1.2346 in 3.1 s\n\nb 14029\nc PCR-1\n"
    check_output(["a 1.2345 in 9 s", "b 14028", "c PCR-1"], printed)
    check_output(["…", "c PCR-1"], printed)
    check_output(["a 1.2346 in 3 s", "…"], printed)
    for wrong in (["a 1.26 in 3 s", "…"], ["…", "c PCR-2"], ["b 14029", "…"], ["a 1.2346 in 3 s"]):
        with pytest.raises(AssertionError):
            check_output(wrong, printed)
