"""The page's kernel in Node against the library's numbers, and its types."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from iclflow.explorer.page import SELF_TEST, WEB
from iclflow.explorer.reference import RUNS

CHECK = Path(__file__).parent / "check.mjs"
NODE, TSC = shutil.which("node"), shutil.which("tsc")
LONGEST = 300  # lines of a module

needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")


def findings(web: Path, *names: str) -> dict[str, list[dict]]:
    command = [str(NODE), "--no-warnings", str(CHECK), str(web), *names]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {row["name"]: row["found"] for row in map(json.loads, shown.splitlines())}


def failures(found: dict[str, list[dict]]) -> list[str]:
    return [
        f"{name}: {one['what']} {one['error']}"
        for name, rows in found.items()
        for one in rows
        if one["error"] is None or not one["error"] <= one["tolerance"]
    ]


@needs_node
def test_the_kernel_equals_the_library():
    found = findings(WEB)
    assert list(found) == list(RUNS)
    assert failures(found) == []
    kinds = {one["what"] for rows in found.values() for one in rows}
    assert {"loss", "loss, plain JavaScript", "final weights", "drop times by flow"} <= kinds
    assert sum(map(len, found.values())) > 100


@pytest.mark.long
@needs_node
@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("kernel/task.js", "(1 + 1 / context)", "(1 + 2 / context)", "plateau levels"),
        ("kernel/start.js", "Math.sqrt(heads * rank * size)", "Math.sqrt(heads * size)", "weights"),
        ("kernel/random.js", "0x1bd11bda", "0x1bd11bdb", "weights of the seed"),
        ("kernel/softmax.js", "- reads[h]", "- 0.99 * reads[h]", "softmax: loss"),
        ("kernel/transformer.js", "tp * tq) / context", "tp * tq) / 2", "transformer: loss"),
        ("kernel/mixture.js", "(double(a, a2, b, b2)", "(0 * double(a, a2, b, b2)", "weight: loss"),
        ("kernel/mixture.js", "fixed[i] * query(a, b, c, i)", "fixed[i] * 0", "weight: loss"),
        ("kernel/blocks.js", "out[key] = sum", "out[key] = 0.99 * sum", "separate: loss"),
        ("theory/first_drop.js", "along ** 2 / 4", "along ** 2", "drop times by first"),
        ("theory/by_flow.js", "const LEAD = 50", "const LEAD = 1.1", "drop times by flow"),
        ("theory/merged.js", "(start[h] + along) / 2", "start[h]", "drop times by merged"),
    ],
)
def test_a_formula_changed_on_one_side_is_found(file, old, new, what, tmp_path):
    shutil.copytree(WEB, tmp_path / "web")
    path = tmp_path / "web" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    names = ("noise", "merged", "linear transformer", "softmax", "in weight", "in weight, separate")
    found = findings(tmp_path / "web", *names)
    assert any(what in line for line in failures(found))


@pytest.mark.skipif(TSC is None, reason="TypeScript is not installed")
def test_types_are_strict():
    done = subprocess.run([str(TSC), "-p", str(WEB)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_imports_point_downwards():
    layers = ["kernel", "theory", "views", "page"]
    for path in WEB.rglob("*.js"):
        level = layers.index(path.parent.name)
        for name in re.findall(r'^import .*? from "(.+?)";', path.read_text("utf-8"), flags=re.M):
            assert layers.index((path.parent / name).resolve().parent.name) <= level, (path, name)


def test_no_module_is_longer_than_300_lines():
    modules = [*WEB.rglob("*.js"), *WEB.rglob("*.css"), *WEB.rglob("*.html")]
    assert len(modules) > 30
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in modules}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_the_runs_behind_test_this_page_are_among_them():
    assert set(SELF_TEST) <= set(RUNS)
