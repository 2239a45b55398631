"""The gallery: every example runs, and gives the number that its page shows."""

import importlib.util
import re
import runpy
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _docs_on_the_path():
    sys.path.insert(0, str(ROOT / "docs"))
    yield
    sys.path.remove(str(ROOT / "docs"))


def load_gallery():
    spec = importlib.util.spec_from_file_location("gallery_pages", ROOT / "docs" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


gallery = load_gallery()
QUICK = {"label_noise", "your_own_model", "your_own_prompts"}
SOME = [
    pytest.param(one, id=one.name, marks=[] if one.name in QUICK else [pytest.mark.slow])
    for one in gallery.EXAMPLES
]


def answer(output: str) -> tuple[float, float]:
    """The number that begins the line before the last, and the worth of its last digit."""
    found = re.match(r"-?(\d+)(\.\d+)? ", output.splitlines()[-2])
    assert found is not None, output
    return float(found[0]), 10.0 ** -len((found[2] or ".")[1:])


def test_an_example_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match="pip install scikit-learn"):
        runpy.run_path(str(ROOT / "examples" / "real_digits.py"), run_name="__main__")


@pytest.mark.long
@pytest.mark.parametrize("example", SOME)
def test_an_example_gives_the_number_of_its_page(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        for name in ("torch", "sklearn"):  # which are in no extra
            if re.search(rf"^ *(import|from) {name}\b", example.path.read_text(), flags=re.M):
                pytest.importorskip(name, reason=f"{name} is not installed")
                warnings.simplefilter("ignore")  # those of other libraries
        runpy.run_path(str(example.path), run_name="__main__")
    plt.close("all")
    output = capsys.readouterr().out
    assert "run time" in output.splitlines()[-1]
    now, unit = answer(output)
    assert now == pytest.approx(answer(example.kept()["output"])[0], abs=1.01 * unit)
    assert (tmp_path / f"{example.name}.png").stat().st_size > 5_000


def test_every_example_is_in_the_gallery_and_kept_as_it_is():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(gallery.ORDER)
    stale = [one.name for one in gallery.EXAMPLES if one.kept()["key"] != one.key]
    assert stale == [], "run: make gallery"
    kept = {path.name for path in (ROOT / "docs" / "gallery").iterdir()}
    assert kept == {f"{name}.{kind}" for name in gallery.ORDER for kind in ("json", "png")}


@pytest.mark.parametrize("example", gallery.EXAMPLES, ids=lambda one: one.name)
def test_a_page_is_the_question_the_code_and_the_output(example):
    page = example.page()
    assert page.startswith(f"# {example.question} {{#gallery-{example.name}}}\n")
    assert example.question.endswith("?")
    shown = re.findall(r"^```python\n(.*?)\n```$", page, flags=re.M | re.S)
    text = example.path.read_text(encoding="utf-8").partition('\n"""\n')[2]
    prose = r"^# %%.*\n(?:(?<=\[markdown\]\n)(?:#.*\n)+)?"
    code = re.sub(prose, "", text, flags=re.M)
    assert "\n".join(shown).split() == code.split()
    assert example.kept()["output"].splitlines()[-2] in page
    assert f"({example.name}.png)" in page


def test_names_know_the_examples_that_use_them():
    users = gallery.users()
    by_name = {name: [one.name for one in some] for name, some in users.items()}
    assert "staircase" in by_name["iclflow.tasks.task.Task"]
    assert by_name["iclflow.checkpoints.monitor.Monitor"] == ["monitor_in_torch"]
    assert by_name["iclflow.models.softmax.Softmax"] == ["softmax_and_linear"]
    assert not any("torch" in name.split(".")[0] for name in by_name)


def test_api_pages_list_the_examples():
    griffe = pytest.importorskip("griffe", reason="the extra docs is not installed")
    path = f"{ROOT / 'docs' / 'used_in.py'}:UsedIn"
    some = griffe.load_extensions(path)
    module = griffe.load("iclflow.checkpoints.monitor", search_paths=[ROOT], extensions=some)
    said = module["Monitor"].docstring.value
    assert said.startswith("Called at every step")
    assert "[gallery-monitor_in_torch]" in said
    assert "gallery-" not in module["Monitor.__init__"].docstring.value
