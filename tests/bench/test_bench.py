"""`iclflow bench`: counts, fits and yardstick are right; nothing here depends on the clock."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow import bench as timing
from iclflow import cli
from iclflow.bench import (
    LITERAL,
    PARTS,
    POPULATION,
    RATE,
    SOFTMAX,
    CostLine,
    Job,
    count,
    lines,
    literal_loss,
    literal_weights,
    loops,
    measure,
    read,
    step_operations,
    table,
    train,
)
from iclflow.dynamics import Descent
from iclflow.losses import Sequences
from iclflow.plots.bench import history_figure
from iclflow.runs.fused.engine import VMAP, available
from iclflow.runs.simulate import simulate
from tests.helpers.cases import filled

SMALL = {"D": 3, "H": 2, "P": 6, "N": 5}
ROOT = Path(__file__).parents[2]
FUSED = available() != VMAP


def one(job: Job):
    """Loss and weights of one run of a job."""
    return job.loss(), jax.tree.map(lambda a: a[0], job.models())


@pytest.mark.parametrize("model", ["merged", "separate", SOFTMAX, "softmax-separate"])
def test_the_literal_loss_is_that_of_the_sequences(model):
    loss, weights = one(Job(LITERAL, model, **SMALL))
    weights = filled(weights)
    assert isinstance(loss, Sequences)
    literal = literal_loss(literal_weights(weights), loss.prompts, model.startswith("softmax"))
    np.testing.assert_allclose(literal, loss(weights), rtol=1e-12)


@pytest.mark.parametrize("model", ["merged", SOFTMAX])
def test_the_literal_training_is_gradient_descent(model):
    loss, weights = one(Job(LITERAL, model, **SMALL))
    steps, softmax = 3, model == SOFTMAX
    literal = train(literal_weights(weights), loss.prompts, RATE, steps, softmax)
    ours = simulate(loss, weights, Descent(RATE), saveat=[0, steps]).model
    expected = literal_weights(ours)
    # Only the last rows of W^V and the first columns of W^{KQ} matter, the rest has no gradient.
    np.testing.assert_allclose(literal.value, expected.value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(literal.key_query, expected.key_query, rtol=1e-12, atol=1e-14)


def counted(function, *arguments):
    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_operations_of_known_programs():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    assert counted(jnp.matmul, a, b) == 2 * 3 * 4 * 5
    assert counted(jax.jit(lambda a: jnp.sum(a * a)), a) == 12 + 11
    assert counted(lambda a: (a @ b, jnp.argmax(a) + 1)[1], a) == 0  # what nothing needs
    assert counted(lambda x: jax.lax.fori_loop(0, 7, lambda _, x: x * 0.5 + 1, x), 1.0) == 14


@pytest.mark.parametrize(
    ("level", "model"),
    [
        (POPULATION, "separate"),
        ("moments", "merged"),
        ("features", "merged"),
        ("sequences", SOFTMAX),
    ],
)
def test_operations_are_those_that_xla_counts(level, model):
    loss, weights = one(Job(level, model, **SMALL))
    of = lambda w: loss(w)  # noqa: E731
    known = jax.jit(jax.value_and_grad(of)).lower(weights).cost_analysis()
    known = known["flops"] + known.get("transcendentals", 0)
    updates = 2 * sum(a.size for a in jax.tree.leaves(weights))
    # XLA counts a power as two, and the maximum of a softmax in another way.
    assert step_operations(of, weights) - updates == pytest.approx(known, rel=0.05)


@pytest.mark.parametrize("size", [2, 3])
def test_a_head_of_merged_attention_costs_what_its_formulas_say(size):
    """v U into M: 2 D²; its gradients ⟨G, U⟩ and v G: 3 D² - 1; the update: 2 (D² + 1)."""
    jobs = [Job(POPULATION, "merged", D=size, H=heads, runs=2) for heads in (2, 3)]
    fewer, more = (loops(job) for job in jobs)
    assert set(fewer) == ({"vmap", "fused"} if FUSED else {"vmap"})
    for engine in fewer:
        assert more[engine].operations - fewer[engine].operations == 7 * size**2 + 1


@pytest.mark.slow
@pytest.mark.skipif(not FUSED, reason="no C++ compiler")
def test_both_engines_do_the_same_job():
    found = {
        name: loop.run(20) for name, loop in loops(Job(POPULATION, "merged", 2, 2, runs=3)).items()
    }
    losses = {name: np.asarray(run.record["loss"]) for name, run in found.items()}
    assert losses["fused"].shape == (3, 1)
    np.testing.assert_allclose(losses["fused"], losses["vmap"], rtol=1e-12)


def test_exponents_and_their_errors():
    sizes = np.array([2.0, 4.0, 8.0, 16.0])
    law = timing.exponent(sizes.tolist(), (3 * sizes**1.5).tolist())
    assert law == pytest.approx((1.5, 0.0), abs=1e-12)
    costs = sizes**2 * np.exp([0.1, -0.2, 0.05, 0.1])
    fit, covariance = np.polyfit(np.log(sizes), np.log(costs), 1, cov="unscaled")
    residual = np.log(costs) - np.polyval(fit, np.log(sizes))
    error = np.sqrt(covariance[0, 0] * (residual @ residual) / 2)
    found = timing.exponent(sizes.tolist(), costs.tolist())
    assert found == pytest.approx((fit[0], error), rel=1e-9)


def test_a_step_is_timed_in_a_loop_that_is_long_enough(monkeypatch):
    now, calls = [0.0], []

    def run(steps):
        calls.append(steps)
        now[0] += 0.001 * steps + (1.0 if len(calls) == 1 else 0.0)  # the first compiles

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.step_seconds(run, 0.3) == pytest.approx(0.001)
    assert 0.3 <= 0.001 * calls[-1] < 1.0


def test_every_level_model_and_size_is_measured():
    for backend in ("cpu", "gpu"):
        jobs = table(backend, False) + [j for line in lines(backend, False) for j in line.jobs()]
        assert {job.model for job in jobs} == {"merged", "separate", SOFTMAX}
        assert {POPULATION, "moments", "features", "sequences", LITERAL} == {j.level for j in jobs}
        for quick in (False, True):
            along = {line.size for line in lines(backend, quick)}
            assert along == {"D", "H", "R", "P", "N", "runs"}
            assert min(len(line.values) for line in lines(backend, quick)) >= 3


@pytest.fixture(scope="module")
def measured():
    """A real measurement of almost nothing."""
    small = {"D": 2, "H": 2, "P": 4, "N": 3}
    jobs = [Job("sequences", "merged", runs=2, **small), Job(LITERAL, "merged", **small)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iclflow.bench.table", lambda *_: jobs)
        patch.setattr("iclflow.bench.lines", lambda *_: [CostLine(jobs[1], "P", (4, 5, 6))])
        patch.setattr("iclflow.bench.why_not", lambda *_: "one engine will do here")
        patch.setattr("iclflow.bench.LEAST", {True: 1e-9})
        patch.setattr("iclflow.bench.SWEEP", {"cpu": 2})
        patch.setattr("iclflow.bench.SWEEP_STEPS", 4)
        starts = {"import jax": ("-c", "pass"), "import iclflow": ("-c", "pass")}
        patch.setattr("iclflow.bench.STARTS", starts)
        patch.setattr("iclflow.bench.PEAK_SIZE", {"cpu": 8})
        seen = []
        found = measure(quick=True, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 9) for n in range(1, 10)]
    return found


def test_a_measurement_has_all_its_parts(measured):
    assert set(measured) == PARTS
    ours, literal = measured["rows"]
    assert ours["over_literal"] == ours["steps_per_second"] / literal["steps_per_second"]
    assert (ours["over_vmap"], literal["over_vmap"], literal["over_literal"]) == (1.0, None, 1.0)
    for row in measured["rows"]:
        assert row["of_peak"] == pytest.approx(
            row["operations"] * row["steps_per_second"] / measured["peak"]
        )
    [line] = measured["exponents"]
    assert line["exponent_of_operations"] == pytest.approx(1.0, abs=0.05)
    assert measured["machine"]["precision"] == "double"
    assert measured["sweep"]["engine"].startswith("vmap")


@pytest.fixture
def said(measured, monkeypatch, tmp_path, capsys):
    """Run a command of the shell without measuring; its exit code, output and errors."""
    precision = []

    def quick(*_):
        precision.append(timing.facts()["precision"])
        return measured

    monkeypatch.setattr("iclflow.bench.measure", quick)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        try:
            code = cli.main(["bench", *arguments])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err, precision

    return run


def test_the_shell_shows_writes_and_draws(said, measured, tmp_path):
    code, out, err, _ = said("--quick", "--out", "a.json", "--plot", "a.png")
    assert (code, err) == (0, "")
    assert "sequences merged" in out
    assert "wrote a.png" in out
    assert read(tmp_path / "a.json") == json.loads(json.dumps(measured))
    other = read(tmp_path / "a.json")
    other["machine"]["device"] = "another"
    (tmp_path / "b.json").write_text(json.dumps(other))
    assert said("--from", "a.json", "b.json", "--plot", "both.svg")[0] == 0
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "another" in drawn
    assert "literal merged P=4" in drawn


def test_a_history_is_of_one_machine_and_in_order(said, measured, tmp_path):
    for number, name in enumerate(("late.json", "early.json", "other.json")):
        found = json.loads(json.dumps(measured))
        found["date"] = f"{2027 - number}-03-01T00:00:00+00:00"
        found["machine"]["load_before"] = 100.0 * number
        found["machine"]["cores"] += number // 2
        (tmp_path / name).write_text(json.dumps(found))
    code, out, err, _ = said("--from", "late.json", "early.json", "--history", "years.svg")
    assert (code, err) == (0, "")
    assert out.endswith("wrote years.svg\n")
    early, late = (read(tmp_path / name) for name in ("early.json", "late.json"))
    speeds, ratios = history_figure([late, early]).axes
    [line, _, _, literal, *_] = speeds.lines
    for row, drawn in zip(measured["rows"], (line, literal), strict=True):
        assert list(drawn.get_ydata()) == [row["steps_per_second"]] * 2
        assert [f"{date:%Y}" for date in drawn.get_xdata()] == ["2026", "2027"]
    assert [point.get_markerfacecolor() == "white" for point in speeds.lines[1:3]] == [True, False]
    assert list(ratios.lines[0].get_ydata()) == [measured["rows"][0]["over_literal"]] * 2
    complaint = said("--from", "early.json", "other.json", "--history", "bad.png")
    assert complaint[0] == 2
    assert "a history is of one machine" in complaint[2]
    assert "several measurements" in said("--from", "late.json", "--history", "one.png")[2]


def test_json_is_all_that_stdout_has(said, measured):
    code, out, _, precision = said("--json", "--single")
    assert code == 0
    assert json.loads(out)["rows"][0]["level"] == measured["rows"][0]["level"]
    assert precision == ["single"]
    assert jax.config.jax_enable_x64  # as it was


def test_mistakes_are_one_line_and_lose_nothing(said, tmp_path):
    (tmp_path / "old.json").write_text("precious")
    for arguments, complaint in [
        (["--out", "old.json"], "exists"),
        (["--out", "a.txt"], "the ending must be .json"),
        (["--from", "old.json"], "not JSON"),
        (["--from", "none.json"], "none.json"),
        (["--from", "old.json", "--quick"], "--quick is for a new measurement"),
        (["--out", "no/folder.json"], "does not exist"),
    ]:
        code, out, err, precision = said(*arguments)
        assert (code, out, precision) == (2, "", [])
        assert complaint in err
        assert err.count("\n") == 1
    (tmp_path / "list.json").write_text("[1]")
    assert "holds no measurement" in said("--from", "list.json")[2]
    assert (tmp_path / "old.json").read_text() == "precious"
    assert said("--out", "old.json", "--force")[0] == 0


def test_an_interrupt_ends_it_cleanly(said, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("iclflow.bench.measure", interrupted)
    code, out, err, _ = said("--out", "a.json")
    assert (code, out) == (130, "")
    assert err == "iclflow: interrupted\n"
    assert not (tmp_path / "a.json").exists()


def test_the_picture_of_the_documentation_is_of_the_measurements_beside_it():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    commands = re.findall(r"`iclflow (bench --from docs/[^`]+)`", page)
    drawn, history = (cli.build_parser("bench").parse_args(line.split()) for line in commands)
    files = sorted((ROOT / "docs").glob("assets/bench/*.json"))
    assert (ROOT / history.history).is_file()
    assert sorted(ROOT.glob(str(history.files[0]))) == files
    latest, gpu = (ROOT / path for path in drawn.files)
    assert latest == files[-1]
    assert read(gpu)["machine"]["backend"] == "gpu"
    assert (ROOT / drawn.plot).is_file()
    for path in files:
        found = read(path)
        assert not found["quick"]
        assert path.name.startswith(re.sub("T(..):(..).*", r"-\1\2", found["date"]))
        assert {row["level"] for row in found["rows"]} >= {POPULATION, "moments", LITERAL}
