"""The explorer page from Python: what goes into it, what is refused, and that it is one file."""

import base64
import gzip
import json
import re
import struct
import typing
import zlib

import jax
import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from iclflow import cli
from iclflow.experiments.base import Live
from iclflow.explorer import curves
from iclflow.explorer.address import BOUNDS, address, options
from iclflow.explorer.curves import shown
from iclflow.explorer.page import POLICY, WEB, bundle, glue
from iclflow.explorer.payload import payload
from iclflow.explorer.reference import RUNS, reference
from iclflow.report.figures import FIGURES
from iclflow.study.fields import FIELDS, kinds_of
from iclflow.study.study import Settings, Study

TOGETHER = 120_000  # bytes of the page without runs, gzipped


@pytest.fixture(scope="module")
def runs() -> xr.Dataset:
    options = {"scale": 0.07, "rate": 0.2, "steps": 2000, "seeds": 2, "save": "log:60"}
    return Study.of(Settings(**options, record=("loss", "weights"))).run()


def test_the_page_is_one_small_file_without_network():
    page = bundle()
    assert len(gzip.compress(page.encode(), 9)) < TOGETHER
    assert page.count(f'content="{POLICY}"') == 1
    assert "connect-src" not in POLICY
    assert "unsafe-eval" not in POLICY.replace("'wasm-unsafe-eval'", "")
    assert re.findall(r"<(?:link|script|img)[^>]* (?:src|href)=\"(?!data:)", page) == []
    assert "@import" not in page
    assert "import(" not in page


def test_an_import_that_cannot_be_glued_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.js").write_text('import * as b from "./b.js";\n')
    monkeypatch.setattr("iclflow.explorer.page.WEB", tmp_path)
    with pytest.raises(ValueError, match=r"a\.js has an import"):
        glue("a.js")


def test_the_options_of_the_page_are_those_of_simulate():
    """Models, defaults, bounds: after a change run `python -m iclflow.explorer.address`."""
    assert (WEB / "page" / "options.js").read_text(encoding="utf-8") == options()
    assert set(BOUNDS) <= set(FIELDS)
    for name, (low, high) in BOUNDS.items():
        kind, about = FIELDS[name]
        for value in (low, high):  # 0 may mean on the page what is left out in the shell
            assert (value == 0) or about.check(name, kind, _as(kind, value)), name


def _as(kind, value):
    value = int(value) if int in kinds_of(kind) else value
    return [value] if any(typing.get_origin(one) is tuple for one in kinds_of(kind)) else value


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "linear transformer" else [pytest.mark.slow]) for n in RUNS],
)
def test_the_reference_is_what_the_library_computes(name):
    stored = json.loads((WEB / "reference.json").read_text(encoding="utf-8"))
    assert list(stored["runs"]) == list(RUNS)
    _same(stored["runs"][name], reference(RUNS[name]))


def _same(stored, found):
    found = json.loads(json.dumps(found, default=lambda a: a.tolist()))
    assert stored["settings"] == found["settings"]
    for name in ("start", "loss", "end"):
        flat = [np.concatenate([np.ravel(p) for p in one[name]]) for one in (stored, found)]
        np.testing.assert_allclose(*flat, rtol=0, atol=1e-11)
    # A flow chooses its steps, at a tolerance of 1e-6: another processor rounds to other ones.
    followed = {"flow", "layers"} & set(found.get("times", {}))
    for name, atol in (("tests", 1e-12), ("levels", 1e-8 if "layers" in followed else 1e-12)):
        np.testing.assert_allclose(stored.get(name, []), found.get(name, []), rtol=0, atol=atol)
    for by, times in found.get("times", {}).items():
        np.testing.assert_allclose(stored["times"][by], times, rtol=1e-5 if followed else 1e-9)


def test_an_address_states_what_differs_from_the_defaults():
    assert address({"scale": 0.07, "heads": 4, "seeds": 6}) == "heads=4&scale=0.07&seeds=6"
    assert address({"spectrum": "power:1", "dim": 2}).startswith("spectrum=0.666")
    assert address({"rotate": True, "model": "merged"}) == "model=merged&rotate=true"
    assert address({"fixed_fraction": 0.6, "eigen_seed": 4}) == "fixed_fraction=0.6&eigen_seed=4"
    assert address({"layers": 2, "heads": 3}) == "layers=2&heads=3"
    assert address({}) == "seeds=1"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"inputs": "sphere"}, "the page has no inputs"),
        ({"model": "mlp"}, "the page has no model 'mlp'"),
        ({"heads": 40}, "heads of the page is 1 to 16, got 40"),
        ({"spectrum": [0.1, 0.4]}, "largest first"),
        ({"spectrum": [0.1] * 9}, "up to 8 components, got 9"),
        ({"blocks": "full"}, "no zero blocks"),
        ({"optimiser": "adam"}, "the page has no optimiser"),
        ({"fixed_fraction": 0.5, "sequences": 100}, "every block in the population"),
        ({"fixed_fraction": 0.5, "blocks": "frozen"}, "every block in the population"),
        ({"fixed_fraction": 0.5, "model": "softmax-merged"}, "separate and merged"),
        ({"pool": 4}, "the page has no pool"),
        ({"layers": 3}, "layers of the page is 1 to 2, got 3"),
        ({"layers": 2, "tied": True}, "the page has no tied"),
        ({"layers": 2, "model": "merged"}, "the page has no model"),
        ({"layers": 2, "rank": 2}, "heads of rank one"),
        ({"layers": 2, "spectrum": [0.1] * 5}, "up to 4 components with two layers, got 5"),
    ],
)
def test_what_the_page_has_not_is_refused(given, reason):
    with pytest.raises(ValueError, match=reason):
        address(given)


def test_recorded_runs_travel_inside(runs, tmp_path):
    path = icl.explore(runs, out=tmp_path / "page.html", browser=False)
    text = re.search(r'class="recorded">([^<]+)<', path.read_text(encoding="utf-8"))
    bytes_ = zlib.decompress(base64.b64decode(text[1]))
    length = struct.unpack("<I", bytes_[:4])[0]
    about = json.loads(bytes_[4 : 4 + length])
    assert about["settings"]["scale"] == 0.07
    assert about["saves"] == runs.sizes["time"]
    numbers = np.frombuffer(bytes_, "<f8", about["saves"] * 3, 4 + length)
    np.testing.assert_array_equal(numbers.reshape(3, -1)[1:], runs["loss"].values)
    assert about["rate"] == pytest.approx(0.2, rel=1e-14)


RECORD = ["loss", "weights"]
TASK = icl.Task([0.6, 0.3], 15)
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.1)


def swept(source=TASK, init=INIT, dynamics=None, **options):
    dynamics = icl.Descent(0.2) if dynamics is None else dynamics
    return icl.sweep(source, init, dynamics, until=40, seeds=2, record=RECORD, **options)


def test_runs_of_sweep_are_shown_as_those_of_the_command(tmp_path, capsys):
    """The same bytes, whichever way the experiment was stated; also from a file of `save`."""
    options = {"spectrum": (0.6, 0.3), "context": 15, "heads": 3, "scale": 0.1, "noise": 0.2}
    options |= {"task_covariance": (2.0, 1.0), "rate": 0.2, "steps": 40, "seeds": 2}
    command = Study.of(Settings(**options, record=tuple(RECORD))).run()
    law = icl.Normal(covariance=[2.0, 1.0])
    task = icl.Task([0.6, 0.3], 15, tasks=law, label_noise=0.2)
    mine = swept(task, saveat=command["step"].values.tolist())
    assert payload(mine, "x") == payload(command, "x")
    icl.save(mine, tmp_path / "own.nc")
    page = ["--out", str(tmp_path / "own.html"), "--no-browser"]
    assert cli.main(["explore", str(tmp_path / "own.nc"), *page]) == 0
    capsys.readouterr()
    # Other axes are another experiment in the same components.
    turned = TASK.replace(basis=np.array([[0.8, -0.6], [0.6, 0.8]]))
    assert json.loads(_about(payload(swept(turned), "x")))["settings"]["spectrum"] == [0.6, 0.3]


def _about(found):
    return found[4 : 4 + struct.unpack("<I", found[:4])[0]]


def test_a_sweep_over_own_prompts_is_shown_with_their_own_theory(mine):
    prompts = icl.Prompts(*mine)
    loss = icl.Moments.of(prompts, features=icl.ReducedFeatures())
    runs = swept(loss)
    given = json.loads(_about(payload(runs, source=prompts)))["given"]
    np.testing.assert_allclose(given["levels"], icl.theory.plateau_losses(loss), rtol=1e-12)
    start = INIT(jax.random.key(1))
    found = icl.predict(loss, start, probes=0).curve(runs["time"].values).loss
    np.testing.assert_allclose(given["theory"][1][-1], found[-1], rtol=1e-12)
    with pytest.raises(ValueError, match="do not say which task they were trained on; give it"):
        payload(runs)
    assert json.loads(_about(payload(runs, source=TASK)))["settings"]["context"] == 15


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: swept(dynamics=icl.Descent(0.01, icl.Adam())), "Adam and momentum keep no t/τ"),
        (
            lambda: swept(dynamics=icl.Descent(lambda step: 0.2 / (1 + step))),
            "one rate, and these runs have a schedule",
        ),
        (lambda: swept(icl.Curriculum({0: TASK, 20: TASK})), "do not say which task"),
        (lambda: swept(axes={"scale": [0.1, 0.2]}), r"vary scale; .* runs.isel\(scale=0\)"),
        (lambda: swept(TASK.replace(tasks=icl.Pool([[1.0, 0.0]]))), "got Pool with 1 outputs"),
        (
            lambda: swept(TASK.replace(tasks=icl.Normal(covariance=[[2.0, 1.0], [1.0, 2.0]]))),
            "has other eigenvectors",
        ),
        (lambda: swept(TASK.replace(inputs=icl.Sphere())), "Gaussian inputs"),
        (
            lambda: swept(init=icl.MLP.initialiser(TASK, heads=2, scale=0.1)),
            "attention of the library, got NetworkInitialiser",
        ),
        (lambda: swept().drop_vars("loss"), "no loss; record"),
    ],
)
def test_sweeps_that_the_page_cannot_show_are_one_line(make, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        payload(make())
    assert "\n" not in str(caught.value)


def test_runs_of_a_sweep_say_what_they_lack(runs):
    with pytest.raises(ValueError, match="do not say which task"):
        payload(runs.assign_attrs(settings="{}"), "x")
    with pytest.raises(ValueError, match="stopped early"):
        payload(runs.assign(loss=runs["loss"] * np.nan), "x")
    with pytest.raises(ValueError, match="weights"):
        payload(runs.drop_vars("keys"), "x")


def test_curves_of_a_report_follow_their_dimensions():
    time = np.linspace(0.0, 9.0, 10)
    loss = np.exp(-np.array([1.0, 2.0])[:, None] * time)
    data = xr.Dataset(
        {
            "clock": (("rank", "point"), np.stack([time, 2 * time])),
            "loss": (("rank", "scale", "point"), np.stack([loss, loss / 2])),
            "levels": ("level", [1.0, 0.0]),
            "end": ("scale", [4.0, 100.0]),
            "predicted": (("few", "mark"), [[1.0, 0.5]]),
            "marks": (("few", "mark"), [[0.0, 6.0]]),
            "weights": (("rank", "scale", "point", "head"), np.ones((2, 2, 10, 3)) * -1.0),
        },
        {"rank": [1, 2], "scale": [0.1, 0.2], "few": [0.2]},
    )
    names = {"levels": "levels", "time": "clock", "panels": "rank", "title": "R = "}
    live = Live("loss", "predicted", theory_time="marks", lines="weights", **names)
    found = list(curves.panels(data, **vars(live)))
    assert [panel["title"] for panel in found] == ["R = 1", "R = 2"]
    assert [run["name"] for run in found[0]["all"]] == ["0.1", "0.2"]
    assert found[1]["all"][0]["time"][-1] == 18.0
    assert found[1]["all"][0]["loss"][0] == 0.5
    assert "theory" not in found[0]["all"][0]  # only scale 0.2 has one, until its last mark
    theory = found[0]["all"][1]["theory"]
    assert theory[3] == 0.75
    assert theory[-1] is None
    assert found[0]["all"][0]["lines"] == [[1.0] * 10] * 3  # sizes of value weights
    whole = Live("loss", "loss", until="end", **names)
    cut = next(curves.panels(data, **vars(whole)))["all"][0]["theory"]
    assert [x is None for x in cut] == [False] * 5 + [True] * 5
    with pytest.raises(KeyError, match="levls"):
        list(curves.panels(data, **vars(Live("loss", levels="levls", time="clock", panels="rank"))))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, f in FIGURES.items() if f.live and not f.group])
def test_every_live_figure_finds_its_runs(name):
    data = FIGURES[name].source.compute(quick=True)
    for live in FIGURES[name].live:
        for panel in curves.panels(data, **vars(live)):
            assert all(len(run["loss"]) == len(run["time"]) > 5 for run in panel["all"])
            ends = panel["all"][0]["loss"]
            assert ends[-1] < ends[0]


def test_saves_are_kept_where_the_loss_moves():
    time = np.arange(10_001.0)
    loss = np.where(time < 9000, 1.0, 0.0) + 0 * time
    kept = shown(time, loss[None])
    assert {0, 1, 9000, 10_000} <= set(kept)
    assert len(kept) < 400


def test_the_command_writes_a_page_and_opens_it(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    out = tmp_path / "page.html"
    assert cli.main(["explore", "--heads", "4", "--scale", "0.02", "--out", str(out)]) == 0
    assert opened == [out.as_uri()]
    assert 'id="opens">heads=4&scale=0.02<' in out.read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert cli.main(["explore", "--out", str(out), "--no-browser"]) == 0  # ours is replaced
    assert len(opened) == 1
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    assert cli.main(["explore"]) == 0
    assert opened[1] == (tmp_path / "explorer.html").as_uri()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["missing.nc"], "missing.nc"),
        (["run.nc", "--heads", "4"], "run.nc has its own settings; leave --heads out"),
        (["--out", "page.txt"], "the ending must be .html or .htm"),
        (["--out", "theirs.html"], "theirs.html exists and iclflow did not draw it"),
        (["--inputs", "sphere"], "the page has no inputs"),
    ],
)
def test_a_mistake_is_one_line(arguments, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.html").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", "--no-browser", *arguments])
    line = capsys.readouterr().err
    assert (stop.value.code, line.count("\n")) == (2, 1)
    assert reason in line
    assert (tmp_path / "theirs.html").read_text() == "mine"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file of prompts with a teacher that is not linear, in axes of their own."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    x = rng.normal(size=(300, 9, 2)) * [1.0, 0.6] @ turn
    y = np.tanh(np.einsum("pnd,pd->pn", x, rng.normal(size=(300, 2))))
    np.savez("mine.npz", x=x, y=y)
    np.savez("wide.npz", x=np.ones((4, 3, 9)), y=np.ones((4, 3)))
    np.savez("two.npz", x=x, y=np.stack([y, y], axis=-1))
    return x, y


OWN = ["--heads", "3", "--scale", "0.1", "--rate", "0.2", "--steps", "300", "--seeds", "2"]


def test_own_prompts_are_trained_and_shown_with_their_own_theory(mine, capsys):
    """The page has the numbers of `simulate` on these prompts, turned into their components."""
    assert (
        cli.main(["explore", "--prompts", "mine.npz", *OWN, "--no-browser", "--out", "a.html"]) == 0
    )
    capsys.readouterr()
    with open("a.html", encoding="utf-8") as file:
        text = re.search(r'class="recorded">([^<]+)<', file.read())
    assert text is not None
    found = zlib.decompress(base64.b64decode(text[1]))
    length = struct.unpack("<I", found[:4])[0]
    about = json.loads(found[4 : 4 + length])
    options = {"heads": 3, "scale": 0.1, "rate": 0.2, "steps": 300, "seeds": 2}
    study = Study.of(Settings(prompts="mine.npz", record=("loss", "weights"), **options))
    runs = study.run()
    numbers = np.frombuffer(found, "<f8", about["saves"] * 3, 4 + length).reshape(3, -1)
    kept = np.isin(runs["time"].values, numbers[0])
    np.testing.assert_array_equal(numbers[1:], runs["loss"].values[:, kept])
    given = about["given"]
    assert (about["title"], given["count"], len(given["theory"])) == ("mine.npz", 300, 2)
    np.testing.assert_allclose(given["levels"], icl.theory.plateau_losses(study.loss), rtol=1e-12)
    # Least squares has the same loss in both frames, and inputs are uncorrelated in theirs.
    x, y = mine
    second = np.einsum("pnd,pnc->dc", x, x)
    values = np.linalg.eigvalsh(second)[::-1]
    np.testing.assert_allclose(about["settings"]["spectrum"], values / values.sum(), rtol=1e-9)
    beta = np.einsum("pn,pnd->pd", y[:, :-1], x[:, :-1]) / 8
    vectors = np.linalg.eigh(second)[1][:, ::-1]
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), range(2)])
    best = np.reshape(given["best"], (2, 2))
    predicted = np.einsum("pd,dc,pc->p", beta @ vectors, best, x[:, -1] @ vectors)
    assert np.mean((predicted - y[:, -1]) ** 2) == pytest.approx(given["levels"][-1], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--prompts", "wide.npz"], "up to 8 components, got 9"),
        (["--prompts", "two.npz"], "one output, got 2"),
        (["--prompts", "none.npz"], "none.npz"),
        (["--prompts", "mine.npz", "--spectrum", "0.4,0.1"], "spectrum does nothing with prompts"),
        (["--prompts", "mine.npz", "--optimiser", "adam"], "the page has no optimiser"),
        (["--prompts", "mine.npz", "--heads", "40"], "heads of the page is 1 to 16"),
    ],
)
def test_prompts_that_the_page_cannot_show_are_one_line(arguments, reason, mine, capsys):
    del mine
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", "--no-browser", "--out", "b.html", *arguments])
    line = capsys.readouterr().err
    assert (stop.value.code, line.count("\n")) == (2, 1)
    assert reason in line
