"""Prompts of a file in the page: read, solved and trained as the library does."""

import json
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.explorer.page import WEB, bundle
from tests.helpers.browser import CHROMIUM, Page

SCRIPT = Path(__file__).parent / "given.mjs"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")
MARKS = (0, 10, 100, 1000, 3000)


def drawn(count: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Prompts whose inputs are neither Gaussian nor along the axes."""
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    x = rng.uniform(-1.7, 1.7, size=(count, 10, 3)) * [1.0, 0.7, 0.5] @ turn
    return x, np.tanh(np.einsum("pnd,pd->pn", x, rng.normal(size=(count, 3))))


def in_page(path: Path, **settings) -> dict:
    given = {"heads": 4, "scale": 0.1, "rate": 0.2, "marks": MARKS, **settings}
    command = [str(NODE), "--no-warnings", str(SCRIPT), str(WEB), str(path), path.name]
    shown = subprocess.run(
        [*command, json.dumps(given)], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(shown)


def as_table(x: np.ndarray, y: np.ndarray) -> str:
    rows = ["prompt,x1,x2,x3,y"]
    for number, (points, labels) in enumerate(zip(x, y, strict=True)):
        for point, label in zip(points, labels, strict=True):
            rows.append(",".join(map(repr, [number, *map(float, point), float(label)])))
    return "\n".join(rows)


@pytest.mark.parametrize("kind", ["stored.npz", "deflated.npz", "table.csv"])
def test_prompts_are_read_from_every_kind_of_file(tmp_path, kind):
    x, y = drawn()
    path = tmp_path / kind
    if kind == "table.csv":
        path.write_text(as_table(x, y))
    else:
        save = np.savez if kind == "stored.npz" else np.savez_compressed
        save(path, x=x, y=y[..., None])
    found = in_page(path)
    power = float(np.mean(y[:, -1] ** 2))
    assert found["levels"][0] == pytest.approx(power, rel=1e-12)
    assert len(found["levels"]) == 4


def test_levels_drops_and_runs_are_the_library_s(tmp_path):
    x, y = drawn()
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    found = in_page(tmp_path / "mine.npz")
    loss = icl.Moments.of(icl.Prompts(x, y), features=icl.ReducedFeatures())
    start = icl.Separate.initialiser(loss, heads=4, scale=0.1)(jax.random.key(0))
    theory = icl.predict(loss, start, probes=0)
    np.testing.assert_allclose(found["levels"], theory.levels, rtol=1e-7)
    times = [drop["time"] for drop in found["drops"]]
    np.testing.assert_allclose(times, theory.times, rtol=5e-3)
    assert [drop["head"] for drop in found["drops"]] == theory.heads.tolist()
    run = icl.simulate(loss, start, icl.Descent(0.2), until=MARKS[-1], saveat=list(MARKS))
    np.testing.assert_allclose(found["losses"], run.loss, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", b"hello", "needs the columns"),
        ("a.csv", b"0,1,2\n0,1,2\n1,1,2\n", "same number of lines"),
        ("a.csv", b"0,1,2\n0,1,\n1,1,2\n1,3,4\n", "not finite"),
        ("a.csv", b"0,1,2\n0,1,3\n", "at least 2 prompts"),
        ("a.npz", b"PK\x03\x04 and nothing else", "is cut"),
    ],
)
def test_other_files_are_refused_in_words(tmp_path, name, content, complaint):
    path = tmp_path / name
    path.write_bytes(content)
    assert complaint in in_page(path)["error"]


def test_arrays_that_do_not_fit_are_refused_in_words(tmp_path):
    x, y = drawn(4)
    for arrays, complaint in (
        ({"x": x}, "needs x"),
        ({"x": x, "y": y[:, 1:]}, r"x must be"),
        ({"x": np.ones((4, 5, 9)), "y": np.ones((4, 5))}, "has room for 8"),
        ({"x": x.astype(complex), "y": y}, "must hold numbers"),
        ({"x": np.asfortranarray(x), "y": y}, "C order"),
    ):
        path = tmp_path / "a.npz"
        np.savez(path, **arrays)
        assert complaint in in_page(path)["error"]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_chosen_file_is_solved_and_trained_and_nothing_leaves_the_page(tmp_path):
    x, y = drawn()
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    (tmp_path / "page.html").write_text(bundle(), encoding="utf-8")
    said = "document.getElementById('own-note').textContent"
    with Page(tmp_path / "profile") as page:
        page.open((tmp_path / "page.html").as_uri() + "#scale=0.1&heads=4")
        page.until("explorer.trainer.front?.done")
        root = page.ask("DOM.getDocument")["root"]["nodeId"]
        chooser = page.ask("DOM.querySelector", nodeId=root, selector="#own-file")["nodeId"]

        def choose(name: str) -> None:
            page.ask("DOM.setFileInputFiles", nodeId=chooser, files=[str(tmp_path / name)])

        choose("bad.csv")
        page.until(f"{said}.includes('cannot be used')", said=said)
        assert page.evaluate("explorer.settings().given") == 0
        choose("mine.npz")
        own = "explorer.trainer.setup?.settings.given === 1 && explorer.trainer.front?.done"
        page.until(f"{own} && explorer.trainer.front.setup === explorer.trainer.setup", said=said)
        front = page.evaluate(
            "(({seen, drops}) => [seen, drops.map(d => d.time)])(explorer.trainer.front)"
        )
        np.testing.assert_allclose(front[0], front[1], rtol=0.1)
        assert "150 prompts of 9 pairs" in page.evaluate(said)
        page.evaluate("explorer.change({noise: 0.5})")  # a task again
        assert page.evaluate("explorer.settings().given") == 0

        def drag(kind: str, name: str) -> bool:
            files = {"items": [], "files": [str(tmp_path / name)], "dragOperationsMask": 1}
            page.ask("Input.dispatchDragEvent", type=kind, x=300, y=500, data=files)
            return page.evaluate("document.getElementById('own').classList.contains('over')")

        (tmp_path / "table.csv").write_text(as_table(x[:40], y[:40]))
        drag("dragEnter", "table.csv")
        assert drag("dragOver", "table.csv")  # anywhere, and the place shows it
        assert not drag("drop", "table.csv")
        page.until(f"{said}.includes('40 prompts of 9 pairs')", said=said)
        page.until(f"{own} && explorer.trainer.front.setup === explorer.trainer.setup", said=said)
        assert page.evaluate("location.protocol") == "file:"  # it was not opened instead
        drag("dragEnter", "bad.csv")
        drag("drop", "bad.csv")
        page.until(f"{said}.includes('bad.csv cannot be used')", said=said)
        assert page.evaluate("explorer.settings().given") == 1  # what was there stays
        assert page.errors == []
        assert all(url.startswith(("file:", "blob:")) for url in page.requests)
