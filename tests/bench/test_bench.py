"""Measurements of speed: counts, fits and yardstick are right; nothing depends on the clock."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import machine
from benchmarks.machine import (
    LITERAL,
    PARTS,
    CostLine,
    count,
    fused_operations,
    history_figure,
    lines,
    literal_loss,
    literal_weights,
    operations,
    read,
    step_operations,
    train,
)
from iclflow import bench, cli
from iclflow.bench import POPULATION, RATE, RECORD, SOFTMAX, Job, loops, table
from iclflow.dynamics import Descent
from iclflow.losses import Sequences
from iclflow.runs.fused import program
from iclflow.runs.fused.engine import VMAP, Fused, available
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
    loss, weights = one(Job("sequences", model, **SMALL))
    weights = filled(weights)
    assert isinstance(loss, Sequences)
    literal = literal_loss(literal_weights(weights), loss.prompts, model.startswith("softmax"))
    np.testing.assert_allclose(literal, loss(weights), rtol=1e-12)


@pytest.mark.parametrize("model", ["merged", SOFTMAX])
def test_the_literal_training_is_gradient_descent(model):
    loss, weights = one(Job("sequences", model, **SMALL))
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
    for engine in ("vmap", "fused") if FUSED else ("vmap",):
        fewer, more = (operations(job, engine) for job in jobs)
        assert more - fewer == 7 * size**2 + 1


def test_products_with_a_shared_matrix_are_counted(monkeypatch):
    """Two operations per entry of the matrix, beside those of the features and the gradient."""
    monkeypatch.setattr(program, "TERMS", 100)  # small moments count as large
    parts = bench.prepared(Job("moments", "separate", D=2, H=1, R=2, P=50, N=15, runs=2))
    fused = Fused.of(*parts, (False, False))
    assert fused.program(parts, RECORD).matrices
    assert 2 * 144 < fused_operations(fused, parts, RECORD) < 2 * 144 + 1000


@pytest.mark.slow
@pytest.mark.skipif(not FUSED, reason="no C++ compiler")
def test_both_engines_do_the_same_job():
    found = {name: run(20) for name, run in loops(Job(POPULATION, "merged", 2, 2, runs=3)).items()}
    losses = {name: np.asarray(run.record["loss"]) for name, run in found.items()}
    assert losses["fused"].shape == (3, 1)
    np.testing.assert_allclose(losses["fused"], losses["vmap"], rtol=1e-12)


def test_exponents_and_their_errors():
    sizes = np.array([2.0, 4.0, 8.0, 16.0])
    law = machine.exponent(sizes.tolist(), (3 * sizes**1.5).tolist())
    assert law == pytest.approx((1.5, 0.0), abs=1e-12)
    costs = sizes**2 * np.exp([0.1, -0.2, 0.05, 0.1])
    fit, covariance = np.polyfit(np.log(sizes), np.log(costs), 1, cov="unscaled")
    residual = np.log(costs) - np.polyval(fit, np.log(sizes))
    error = np.sqrt(covariance[0, 0] * (residual @ residual) / 2)
    found = machine.exponent(sizes.tolist(), costs.tolist())
    assert found == pytest.approx((fit[0], error), rel=1e-9)


def test_a_step_is_timed_in_a_loop_that_is_long_enough(monkeypatch):
    now, calls = [0.0], []

    def run(steps):
        calls.append(steps)
        now[0] += 0.001 * steps + (1.0 if len(calls) == 1 else 0.0)  # the first compiles

    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    assert bench.step_seconds(run, 0.3) == pytest.approx(0.001)
    assert 0.3 <= 0.001 * calls[-1] < 1.0


def test_every_level_model_and_size_is_measured():
    for backend in ("cpu", "gpu"):
        jobs = table(backend, False)
        assert {job.model for job in jobs} == {"merged", "separate", SOFTMAX}
        assert {POPULATION, "moments", "features", "sequences"} == {job.level for job in jobs}
        for quick in (False, True):
            along = {line.size for line in lines(backend, quick)}
            assert along == {"D", "H", "R", "P", "N", "runs"}
            assert min(len(line.values) for line in lines(backend, quick)) >= 3


@pytest.fixture(scope="module")
def small():
    """`iclflow bench` measures almost nothing."""
    sizes = {"D": 2, "H": 2, "P": 4, "N": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "table", lambda *_: [Job("sequences", "merged", runs=2, **sizes)])
        patch.setattr(bench, "why_not", lambda *_: "one engine will do here")
        patch.setattr(bench, "LEAST", {True: 1e-9})
        patch.setattr(bench, "SWEEP", {"cpu": 2})
        patch.setattr(bench, "SWEEP_STEPS", 4)
        seen = []
        found = bench.measure(quick=True, progress=lambda done, total: seen.append((done, total)))
        assert seen == [(1, 2), (2, 2)]
        yield found


@pytest.fixture(scope="module")
def measured(small):
    """The whole measurement of almost nothing."""
    del small  # its patches hold while this is made
    line = CostLine(Job(LITERAL, "merged", D=2, H=2, P=4, N=3), "P", (4, 5, 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "lines", lambda *_: [line])
        starts = {"import jax": ("-c", "pass"), "import iclflow": ("-c", "pass")}
        patch.setattr(machine, "STARTS", starts)
        patch.setattr(machine, "PEAK_SIZE", {"cpu": 8})
        yield machine.measure(quick=True)


def test_the_command_measures_speeds(small):
    assert set(small) == PARTS - {"peak", "start", "exponents"}
    [row] = small["rows"]
    assert (row["engine"], row["over_vmap"]) == (VMAP, 1.0)
    assert small["machine"]["precision"] == "double"
    assert small["sweep"]["engine"].startswith("vmap")


def test_a_measurement_has_all_its_parts(measured):
    assert set(measured) == PARTS
    ours, literal, softmax = measured["rows"]
    assert ours["over_literal"] == ours["steps_per_second"] / literal["steps_per_second"]
    assert (literal["over_literal"], softmax["over_literal"]) == (1.0, 1.0)
    for row in measured["rows"]:
        assert row["of_peak"] == pytest.approx(
            row["operations"] * row["steps_per_second"] / measured["peak"]
        )
    [line] = measured["exponents"]
    assert line["exponent_of_operations"] == pytest.approx(1.0, abs=0.05)


def test_measurements_are_kept_shown_and_drawn(measured, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "measure", lambda *_: measured)
    machine.main(["--quick", "--out", "a.json", "--plot", "a.png"])
    assert "sequences merged P=4" in capsys.readouterr().out
    assert (tmp_path / "a.png").is_file()
    assert read("a.json") == json.loads(json.dumps(measured))
    other = read("a.json")
    other["machine"]["device"] = "another"
    (tmp_path / "b.json").write_text(json.dumps(other))
    machine.main(["--from", "a.json", "b.json", "--plot", "both.svg"])
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "another" in drawn
    assert "literal merged P=200" in drawn
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(SystemExit, match="holds no measurement"):
        machine.main(["--from", "list.json"])


def test_a_history_is_of_one_machine_and_in_order(measured):
    late, early, other = found = [json.loads(json.dumps(measured)) for _ in range(3)]
    for number, one in enumerate(found):
        one["date"] = f"{2027 - number}-03-01T00:00:00+00:00"
        one["machine"]["load_before"] = 100.0 * number
        one["machine"]["cores"] += number // 2
    speeds, ratios = history_figure([late, early]).axes
    [line, _, _, literal, *_] = speeds.lines
    for row, drawn in zip(measured["rows"][:2], (line, literal), strict=True):
        assert list(drawn.get_ydata()) == [row["steps_per_second"]] * 2
        assert [f"{date:%Y}" for date in drawn.get_xdata()] == ["2026", "2027"]
    assert [point.get_markerfacecolor() == "white" for point in speeds.lines[1:3]] == [True, False]
    assert list(ratios.lines[0].get_ydata()) == [measured["rows"][0]["over_literal"]] * 2
    with pytest.raises(ValueError, match="a history is of one machine"):
        history_figure([early, other])


@pytest.fixture
def said(small, monkeypatch, tmp_path, capsys):
    """Run a command of the shell without measuring; its exit code, output and errors."""
    precision = []

    def quick(*_):
        precision.append(bench.facts()["precision"])
        return small

    monkeypatch.setattr(bench, "measure", quick)
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


def test_the_shell_shows_and_writes(said, small, tmp_path):
    code, out, err, _ = said("--quick", "--out", "a.json")
    assert (code, err) == (0, "")
    assert "sequences merged" in out
    assert "wrote a.json" in out
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(json.dumps(small))


def test_json_is_all_that_stdout_has(said, small):
    code, out, _, precision = said("--json", "--single")
    assert code == 0
    assert json.loads(out)["rows"][0]["level"] == small["rows"][0]["level"]
    assert precision == ["single"]
    assert jax.config.jax_enable_x64  # as it was


def test_mistakes_are_one_line_and_lose_nothing(said, tmp_path):
    (tmp_path / "old.json").write_text("precious")
    for arguments, complaint in [
        (["--out", "old.json"], "exists"),
        (["--out", "a.txt"], "the ending must be .json"),
        (["--out", "no/folder.json"], "does not exist"),
    ]:
        code, out, err, precision = said(*arguments)
        assert (code, out, precision) == (2, "", [])
        assert complaint in err
        assert err.count("\n") == 1
    assert (tmp_path / "old.json").read_text() == "precious"
    assert said("--out", "old.json", "--force")[0] == 0


def test_an_interrupt_ends_it_cleanly(said, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure", interrupted)
    code, out, err, _ = said("--out", "a.json")
    assert (code, out) == (130, "")
    assert err == "iclflow: interrupted\n"
    assert not (tmp_path / "a.json").exists()


def test_the_picture_of_the_documentation_is_of_the_measurements_beside_it():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    commands = re.findall(r"`python benchmarks/machine.py (--from docs/[^`]+)`", page)
    drawn, history = (machine.options().parse_args(line.split()) for line in commands)
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
