import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.cli import COMMANDS, EXIT, build_parser, main
from iclflow.plots import losses
from iclflow.results.netcdf import load
from tests.helpers.commands import call, refused
from tests.helpers.written_checkpoints import gpt2, save

DATA = Path(__file__).parents[1] / "data"
FAST = ["--spectrum", "0.5,0.3", "--context", "5", "--heads", "2", "--init", "0.5", "--steps", "50"]


def simulate(capsys, *arguments):
    code, out, err = call(capsys, "simulate", *FAST, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_help_lists_the_commands(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert "examples:" in out


@pytest.mark.parametrize("command", ["simulate", "theory"])
def test_help_has_examples(capsys, command):
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert "examples:" in out


def test_help_imports_no_jax():
    """`iclflow --help` stays quick because nothing heavy is imported."""
    program = "import sys, iclflow.cli as c; c.main(['--help']); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_run_from_end_to_end(tmp_path, capsys):
    out, plot = tmp_path / "run.nc", tmp_path / "run.png"
    found = simulate(
        capsys, "--sequences", 200, "--seeds", 2, "--rate", 0.05, "--out", out, "--plot", plot,
        "--record", "loss,values,weights,population_loss",
    )  # fmt: skip
    runs = load(out)
    assert found["level"] == "moments"
    assert found["result"] == ["finished", "finished"]
    np.testing.assert_allclose(found["final_loss"], runs["loss"][:, -1])
    np.testing.assert_allclose(found["population_loss"], runs["population_loss"][:, -1])
    assert found["plateau_losses"][0] == pytest.approx(0.8)
    assert len(found["rate_times_sharpness"]) == 2
    assert runs["keys"].dims == ("seed", "time", "head", "pair", "row")
    assert plot.read_bytes()[:4] == b"\x89PNG"
    again = simulate(
        capsys, "--sequences", 200, "--seeds", 2, "--rate", 0.05, "--out", out,
        "--record", "loss,values,weights,population_loss",
    )  # fmt: skip
    assert again["final_loss"] == found["final_loss"]


def test_another_run_does_not_overwrite(tmp_path, capsys):
    out = tmp_path / "run.nc"
    simulate(capsys, "--out", out)
    before = out.read_bytes()
    line = refused(capsys, "simulate", *FAST, "--seed", 3, "--out", out)
    assert "something else" in line
    assert out.read_bytes() == before
    code, said, err = call(capsys, "simulate", *FAST, "--out", out)
    assert code == 0
    assert "has this run already" in err
    assert "wrote" not in said


@pytest.mark.parametrize("model", ["merged", "separate", "mlp", "conv"])
def test_population_of_every_linear_model(capsys, model):
    found = simulate(capsys, "--model", model)
    assert found["level"] == "population"
    assert found["final_loss"][0] < found["initial_loss"][0]


@pytest.mark.parametrize(
    "model", ["softmax-merged", pytest.param("softmax-separate", marks=pytest.mark.slow)]
)
def test_softmax(capsys, model):
    found = simulate(capsys, "--model", model, "--sequences", 50, "--match")
    assert found["level"] == "sequences"
    assert found["plateau_losses"] == []


@pytest.mark.long
def test_levels_agree_from_the_shell(capsys):
    auto = simulate(capsys, "--sequences", 60, "--rate", 0.05)
    for level in ("sequences", "features", "moments"):
        found = simulate(capsys, "--loss", level, "--sequences", 60, "--rate", 0.05)
        assert found["level"] == level
        np.testing.assert_allclose(found["final_loss"], auto["final_loss"], atol=1e-12)


@pytest.mark.slow
def test_flow_batches_and_optimisers(capsys, tmp_path):
    code, out, err = call(
        capsys, "simulate", *FAST[:-2], "--dynamics", "flow", "--time", 20, "--json"
    )
    assert code == 0, err
    flow = json.loads(out)
    assert flow["rate"] is None
    assert flow["time"] == 20
    batch = simulate(capsys, "--sequences", 60, "--batch", 10, "--rate", 0.05)
    assert batch["level"] == "features"
    fresh = simulate(capsys, "--batch", 10, "--fresh", "--rate", 0.05)
    assert fresh["level"] == "population"
    adam = simulate(capsys, "--optimiser", "adam", "--out", tmp_path / "adam.nc")
    assert adam["time"] is None
    runs = load(tmp_path / "adam.nc")
    assert float(runs["loss"].max()) == adam["initial_loss"][0]  # not at the rate of descent
    assert "time" not in runs.coords


def test_in_weight_tests_are_recorded(capsys):
    found = simulate(capsys, "--model", "merged", "--fixed-fraction", 0.5)
    assert found["level"] == "population"
    assert len(found["in_context_loss"]) == len(found["in_weight_loss"]) == 1
    noise = simulate(
        capsys, "--model", "merged", "--fixed-fraction", 0.5, "--in-weight-test", "noise"
    )
    assert noise["in_weight_loss"] != found["in_weight_loss"]


@pytest.mark.parametrize("vary", ["weights", "data", "all"])
def test_vary(capsys, vary):
    found = simulate(capsys, "--sequences", 40, "--seeds", 2, "--vary", vary, "--rate", 0.05)
    assert found["blocks"] == "full"
    assert found["initial_loss"][0] != found["initial_loss"][1]


def test_a_diverging_rate_is_a_result(capsys, tmp_path):
    out = tmp_path / "run.nc"
    code, text, err = call(capsys, "simulate", *FAST, "--rate", 100, "--out", out, "--json")
    found = json.loads(text)
    assert code == 2
    assert err.count("\n") == 1
    assert "diverged at step" in err
    assert found["result"] == ["diverged"]
    assert 0 < found["stopped"][0] < 50
    assert found["engine"].startswith("vmap (too few runs")
    assert out.exists()
    assert call(capsys, "simulate", *FAST, "--rate", 100, "--out", out, "--json")[::2] == (2, err)


def test_settings_file(capsys, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        "spectrum = [0.5, 0.3]\ncontext = 5\nheads = 2\ninit = 0.5\nsteps = 50\nseeds = 2\n"
    )
    code, out, _ = call(capsys, "simulate", "--from", file, "--seeds", 1, "--json")
    assert code == 0
    assert json.loads(out)["final_loss"] == simulate(capsys)["final_loss"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contxt = 5", "did you mean 'context'"),
        ("context = 'five'", "context needs a whole number, got 'five'"),
        ("spectrum = ", "not a readable settings file"),
        ("spectrum = []", "empty list"),
    ],
)
def test_bad_settings_files(capsys, tmp_path, text, message):
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert message in refused(capsys, "simulate", "--from", file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context", "0"], "at least 1"),
        (["--context", "-3"], "at least 1"),
        (["--heads", "two"], "whole number"),
        (["--spectrum", ""], "empty list"),
        (["--spectrum", "0.5,x"], "needs a number"),
        (["--spectrum", "0.5,-0.1"], "at least 0"),
        (["--spectrum", "nan,0.1"], "finite"),
        (["--spectrum", "linaer", "--dim", "4"], "did you mean 'linear'"),
        (["--spectrum", "linear"], "needs a dimension"),
        (["--spectrum", "0.5,0.3", "--dim", "3"], "2 eigenvalues were given; a spectrum with"),
        (["--model", "seperate"], "did you mean 'separate'"),
        (["--model", "softmax-merged"], "give a number of sequences"),
        (["--sequences", "0"], "at least 1"),
        (["--sequences", "50", "--loss", "population"], "no number of sequences"),
        (["--loss", "moments"], "needs a number of sequences"),
        (["--dynamics", "flow"], "end time"),
        (["--rate", "-1"], "above 0"),
        (["--rate", "inf"], "finite"),
        (["--noise", "-1"], "noise"),
        (["--fixed-fraction", "2"], "between 0 and 1"),
        (["--record", "loss,valeus"], "did you mean 'values'"),
        (["--save", "sometimes"], "save must be"),
        (["--lengths", "1-x"], "FIRST-LAST"),
        (["--lengths", "1-99"], "context lengths"),
        (["--normaliser", "pears"], "did you mean 'pairs'"),
        (["--inputs", "gausian"], "did you mean 'gaussian'"),
        (["--inputs", "student:1"], "more than 2"),
        (["--task-covariance", "1,-1"], "at least 0"),
        (["--task-covariance", "1,2,3"], "needs 2 variances"),
        (["--fresh"], "batch size"),
        (["--pool", "0"], "at least 1"),
        (["--from", "missing.toml"], "not a readable settings file"),
        (["--out", "no/such/folder/run.nc"], "does not exist"),
        (["--plot", "no/such/folder/run.png"], "does not exist"),
        (["--stpes", "3"], "unrecognized"),
        (
            ["--spectrum", "white", "--dim", "120", "--sequences", "50", "--loss", "moments"],
            "GiB",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert message in refused(capsys, "simulate", *FAST, *arguments)


def test_unknown_command_suggests_the_nearest(capsys):
    assert "did you mean 'simulate'" in refused(capsys, "simulte")
    assert main([]) == 2


def test_no_traceback_from_the_shell():
    """The installed entry point itself: one line on stderr, exit 2."""
    run = subprocess.run(
        [sys.executable, "-m", "iclflow", "simulate", "--context", "0"],
        capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("iclflow: ")


def test_theory_needs_only_spectrum_and_context(capsys):
    code, out, _ = call(
        capsys, "theory", "--spectrum", "0.4,0.3,0.2,0.1", "--context", 31, "--json"
    )
    assert code == 0
    found = json.loads(out)
    np.testing.assert_allclose(
        found["plateau_losses"], [1, 0.640580, 0.377372, 0.209805, 0.135995], atol=5e-7
    )
    assert found["fixed_points"] == 16
    assert found["least_squares_loss"] == pytest.approx(found["plateau_losses"][-1])
    assert found["bayes_loss"] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(found["drop_sizes"], -np.diff(found["plateau_losses"]))
    a = [x**2 * (1 + (1 + 1 / x) / 31) for x in found["eigenvalues"]]
    np.testing.assert_allclose(found["a"], a)
    assert "drop_times" not in found


@pytest.mark.slow
def test_theory_predicts_what_simulate_shows(capsys, tmp_path):
    """Same options, same weights: the simulated loss crosses mid-level at the predicted times."""
    options = ["--spectrum", "0.5,0.3", "--context", 9, "--heads", 3, "--init", 0.003]
    plot = tmp_path / "stairs.png"
    code, out, _ = call(capsys, "theory", *options, "--plot", plot, "--json")
    assert code == 0
    found = json.loads(out)
    assert plot.exists()
    assert len(found["drop_times"]) == len(found["condition"]) == len(found["paper_durations"]) == 2
    end = 1.3 * found["drop_times"][-1]
    run = tmp_path / "run.nc"
    code, _, err = call(
        capsys, "simulate", *options, "--dynamics", "flow", "--time", end,
        "--save", "linear:4000", "--out", run, "--json",
    )  # fmt: skip
    assert code == 0, err
    runs = load(run)
    loss, time = runs["loss"].values[0], runs["time"].values
    levels = found["plateau_losses"]
    for i, predicted in enumerate(found["drop_times"]):
        middle = (levels[i] + levels[i + 1]) / 2
        crossed = np.interp(-middle, -loss, time)
        assert crossed == pytest.approx(predicted, rel=5e-3)


def test_theory_of_merged_attention(capsys):
    code, out, _ = call(
        capsys, "theory", "--spectrum", "0.5,0.3", "--context", 9, "--model", "merged",
        "--init", 1e-3, "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert len(found["drop_times"]) == 1
    assert found["paper_durations"][0] < found["drop_times"][0]


def test_theory_tables(capsys):
    given = ("theory", "--spectrum", "0.5,0.3", "--context", 9, "--init", 0.01)
    code, out, _ = call(capsys, *given)
    assert code == 0
    for words in ("plateaus visited", "Bayes-optimal", "drops predicted", "least squares", "t/τ"):
        assert words in out
    for words in ("Monte Carlo", "┃ order", "┃ index", "┃ gain", "┃ condition", "┃ step", "e-31"):
        assert words not in out
    code, out, _ = call(capsys, *given, "--verbose")
    assert code == 0
    for words in ("┃ order", "┃ index", "┃ gain", "┃ condition", "Order 3:", "Index:"):
        assert words in out


def test_theory_counts_in_steps_where_the_rate_is_known(capsys):
    given = ("theory", "--spectrum", "0.5,0.3", "--context", 9)
    code, out, _ = call(capsys, *given, "--scale", 0.1, "--rate", 0.05, "--json")
    assert code == 0
    found = json.loads(out)
    expected = np.ceil(np.array(found["drop_times"]) / (2 * 0.05))
    assert found["drop_steps"] == expected.astype(int).tolist()
    code, out, _ = call(capsys, *given, "--scale", 0.1, "--rate", 0.05)
    assert code == 0
    for step in found["drop_steps"]:
        assert f" {step} " in out
    assert "--scale" in refused(capsys, *given, "--rate", 0.05)
    transformer = (*given, "--model", "linear-transformer", "--scale", 0.1, "--rate", 0.05)
    code, out, _ = call(capsys, *transformer, "--json")
    assert code == 0
    half = json.loads(out)["exact_half_times"]
    assert json.loads(out)["drop_steps"] == np.ceil(np.array(half) / 0.1).astype(int).tolist()
    assert "leave one of them out" in refused(capsys, *transformer, "--epoch-rate", 2)


def test_theory_refuses_softmax(capsys):
    line = refused(
        capsys, "theory", "--spectrum", "0.5,0.3", "--model", "softmax-merged", "--init", "0.1"
    )
    assert "linear attention" in line
    code, out, _ = call(
        capsys, "theory", "--spectrum", "0.5,0.3", "--fixed-fraction", "0.5", "--json"
    )
    assert code == 0
    assert "with a fixed task" in json.loads(out)["notes"][0]


# --- what would be lost, or do nothing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--momentum", "0.5"], "momentum does nothing with optimiser gd"),
        (["--model", "merged", "--rank", "2"], "rank does nothing with model merged"),
        (["--match"], "match does nothing without sequences"),
        (
            ["--dynamics", "flow", "--time", "3", "--sequences", "9", "--batch", "5"],
            "batch does nothing with dynamics flow",
        ),
        (["--tolerance", "1e-3"], "tolerance does nothing with dynamics descent"),
        (["--batch", "5"], "give a number of sequences"),
        (["--vary", "data"], "all runs would be equal"),
        (["--save", "100"], "saveat asks for 100, but the run ends at 50"),
        (["--spectrum", "4 3 2 1"], "separate numbers by commas"),
        (["--time", "3"], "steps and time both"),
        (["--seed", "18446744073709551616"], "at most 4.29497e+09"),
        (["--heads", "1000000000000"], "GiB are free"),
        (["--pool", "1000000000000"], "GiB are free"),
        (["--save", "log:1000000000000"], "GiB are free"),
        (["--sequences", "1000000000000"], "take hours"),
        (["--lengths", "1-1000000000000"], "1 to 1000000 values"),
        (["--out", "run.csv"], "the ending must be .nc"),
        (["--out", "x.nc", "--plot", "x.nc"], "the ending must be .png"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_work(
    capsys, monkeypatch, tmp_path, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "simulate", *FAST, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [MemoryError("3 GiB"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating 7 bytes")],
)
def test_memory_that_runs_out_all_the_same_is_one_line(capsys, monkeypatch, error):
    def raising(*args, **options):
        raise error

    monkeypatch.setattr("iclflow.study.study.Study.of", raising)
    assert "not enough memory: " in refused(capsys, "simulate", *FAST)


def test_a_list_that_lacks_the_loss_records_it_too(capsys):
    assert simulate(capsys, "--record", "values")["final_loss"][0] < 1


def test_the_printed_commands_work_one_after_the_other(capsys, monkeypatch, tmp_path):
    """`simulate --out run.nc`, `diagnose run.nc`, `--from run.nc`: weights are kept while small."""
    monkeypatch.chdir(tmp_path)
    simulate(capsys, "--out", "run.nc")
    assert "keys" in load("run.nc")
    assert call(capsys, "diagnose", "run.nc", "--samples", 50)[0] == 0
    assert "says nothing about a run" in refused(capsys, "diagnose", "run.nc", "--rate", 1)
    code, out, _ = call(capsys, "simulate", "--from", "run.nc", "--seeds", 2, "--json")
    assert code == 0
    assert json.loads(out)["seeds"] == [0, 1]


@pytest.mark.parametrize("sequences", [None, 200])
def test_the_library_runs_the_same_experiment(capsys, sequences):
    """The defaults of the command line are those of the library, digit by digit."""
    task = icl.Task([0.5, 0.3], context=5)
    loss, blocks = icl.Population(task), icl.Blocks.FROZEN
    if sequences is not None:
        loss, blocks = icl.Moments.sample(task, sequences, key=jax.random.key(1)), icl.Blocks.FULL
    init = icl.Separate.initialiser(task, heads=2, scale=0.5, blocks=blocks)
    runs = icl.sweep(loss, init, icl.Descent(rate=0.1), until=50, seeds=2)
    given = [] if sequences is None else ["--sequences", sequences]
    found = simulate(capsys, "--rate", "0.1", "--seeds", "2", *given)
    np.testing.assert_allclose(found["final_loss"], runs["loss"].values[:, -1], rtol=1e-12)


@pytest.mark.slow
def test_a_run_without_steps_ends_past_its_predicted_drops(capsys, monkeypatch, tmp_path):
    titles, draw = [], losses.loss_figure
    monkeypatch.setattr(losses, "loss_figure", lambda *a, **k: titles.append(k) or draw(*a, **k))
    options = ["--spectrum", "0.5,0.3", "--context", "9", "--heads", "3", "--scale", "0.05"]
    options += ["--out", tmp_path / "run.nc", "--plot", tmp_path / "run.png"]
    code, out, err = call(capsys, "simulate", *options, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert 1.2 < found["time"] / found["predicted_drop_times"][0][-1] < 1.7
    assert found["final_loss"][0] == pytest.approx(found["plateau_losses"][-1], abs=1e-3)
    assert found["drop_time_error"] <= found["worst_drop_time_error"] < 0.05
    assert f"{found['worst_drop_time_error']:.1%} (worst)" in titles[0]["title"]
    time = load(tmp_path / "run.nc")["time"].values
    for drop in found["predicted_drop_times"][0]:  # late ones are no ramps between two points
        assert np.sum(np.abs(time / drop - 1) < 0.1) > 20


def test_pictures_that_are_not_ours_stay(capsys, tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(b"holiday")
    line = refused(capsys, "theory", "--spectrum", "0.5,0.3", "--plot", picture)
    assert "did not draw it" in line
    assert picture.read_bytes() == b"holiday"
    for _ in range(2):  # ours may be drawn again
        arguments = ["--spectrum", "0.5,0.3", "--context", 3, "--plot", picture, "--force"]
        assert call(capsys, "theory", *arguments)[0] == 0
        arguments.remove("--force")


LONG = ["simulate", *FAST[:-1], "4000000", "--rate", "1e-4", "--save", "linear:2000", "--record"]
LONG += ["loss", "--json"]


def stopped_by(number, folder):
    """The output of a long run that is sent a signal when it has kept some of its progress."""
    often = (
        "import sys, iclflow.runs.batch as s; s.SAVE_EVERY = 0; from iclflow.cli import program; "
    )
    program = [sys.executable, "-c", often + "program()", *LONG, "--out", "run.nc"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.Popen(
        program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    while run.poll() is None and not list(folder.glob("run.nc.unfinished/batch-*")):
        time.sleep(0.05)
    run.send_signal(number)
    out, err = run.communicate()
    return run.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_kept_and_goes_on(capsys, monkeypatch, tmp_path, number):
    code, _, err = stopped_by(number, tmp_path)
    assert code == EXIT[number], err
    assert "the same command goes on" in err
    part = load(tmp_path / "run.nc")["loss"].values[0]
    assert np.isfinite(part[0])
    assert np.isnan(part[-1])
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *LONG, "--out", "run.nc")
    assert code == 0, err
    assert not (tmp_path / "run.nc.unfinished").exists()
    whole = load(tmp_path / "run.nc")["loss"].values[0]
    done = np.isfinite(part)
    np.testing.assert_allclose(whole[done], part[done], rtol=1e-12)
    before = (tmp_path / "run.nc").read_bytes()
    code, again, err = call(capsys, *LONG, "--out", "run.nc")
    assert "has this run already" in err
    assert json.loads(again)["final_loss"] == json.loads(out)["final_loss"]
    assert (tmp_path / "run.nc").read_bytes() == before


def test_the_fields_name_what_the_library_has():
    """Choices are written out in the fields so that help is quick; here they meet the library."""
    from iclflow.losses.select import LEVELS
    from iclflow.models.registry import MODELS
    from iclflow.runs.cells import SEEDS, Vary
    from iclflow.study import fields
    from iclflow.tasks.base import Normaliser
    from iclflow.tasks.task import ContextLabels

    options = {name: about for name, (_, about) in fields.FIELDS.items()}
    assert set(options["model"].choices) == set(MODELS)
    assert options["loss"].choices == ("auto", *LEVELS)
    assert set(options["vary"].choices) == {v.value for v in Vary}
    assert set(options["normaliser"].choices) == {n.value for n in Normaliser}
    assert set(options["in_weight_test"].choices) == {c.value for c in ContextLabels}
    assert fields.SEEDS == SEEDS
    for name in ("heads", "rank", "blocks", "layers", "tied"):
        takes = {model for model, kind in MODELS.items() if name in kind.options}
        assert set(options[name].needs[1:]) == takes


def printed(command):
    """The examples in the help of a command, one a line."""
    module = importlib.import_module(f"iclflow.cli.{command}")
    text = module.EXAMPLES.replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith("iclflow ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_are_understood(command):
    lines = [line for line in printed(command) if "$" not in line]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        build_parser(words[0]).parse_args(words)


@pytest.mark.slow
def test_examples_of_the_help_work_as_printed(capsys, monkeypatch, tmp_path):
    """Those that need no network, no checkpoints and no minutes, in one folder."""
    monkeypatch.chdir(tmp_path)
    curve = ["step,loss", *(f"{i},{1 if i < 300 else 0.64}" for i in range(600))]
    (tmp_path / "loss.csv").write_text("\n".join(curve))
    (tmp_path / "runs").mkdir()
    shutil.copy(DATA / "events.out.tfevents.scalars", tmp_path / "runs" / "events.out.tfevents.1")
    for step in (1, 2):
        save(tmp_path / f"trainer_output/checkpoint-{step}", *gpt2(np.random.default_rng(step)))
    for command in ("diagnose", "animate", "theory", "simulate"):
        for folder in ("run.nc", "run.nc.unfinished"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
            (tmp_path / folder).unlink(missing_ok=True)
        for line in printed(command):
            if "checkpoints" in line or "--hf" in line:
                continue
            code, _, err = call(capsys, *shlex.split(line, comments=True)[1:])
            assert code == 0, (line, err)
