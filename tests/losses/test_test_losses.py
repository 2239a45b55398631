"""Tests on another task: what they record, that it is exact, and what cannot be tested."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.study.fields import from_names
from iclflow.study.study import Settings, Study
from iclflow.sweeps.design import Design
from iclflow.sweeps.design import run as run_design

TASK = icl.Task([0.5, 0.3], 15)
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.15)
LOSS = icl.Population(TASK)
DESCENT = icl.Descent(0.3)
TURNED = icl.Task([0.3, 0.5], 15)
TESTS = icl.Tests({"same": TASK, "turned": TURNED}, context=[5, 15, 60])


@pytest.fixture(scope="module")
def run():
    return icl.simulate(LOSS, INIT(jax.random.key(0)), DESCENT, saveat=[0, 600], test=TESTS)


def test_the_test_on_the_training_task_is_the_training_loss(run):
    np.testing.assert_allclose(run["test_loss"][:, 0, 1], run.loss, rtol=1e-14)
    found = run.to_dataset()["test_loss"]
    assert found.dims == ("time", "test", "test_context")
    assert found.sel(test="turned")["test_context"].values.tolist() == [5, 15, 60]
    one = icl.simulate(LOSS, INIT(jax.random.key(0)), DESCENT, saveat=[0, 600], test=TURNED)
    assert one["test_loss"].shape == (2,)
    np.testing.assert_allclose(one["test_loss"], run["test_loss"][:, 1, 1], rtol=1e-14)
    assert "test_loss" in repr(one)
    assert "test_loss" in one._repr_html_()


def test_a_sweep_tests_every_run_and_keeps_its_labels(run, tmp_path):
    runs = icl.sweep(
        TASK, INIT, DESCENT, saveat=[0, 600], seeds=2, axes={"heads": [2, 3]}, test=TESTS,
        store=tmp_path / "store",
    )  # fmt: skip
    found = runs["test_loss"].sel(heads=3, seed=0)
    np.testing.assert_allclose(found, run["test_loss"], rtol=1e-12)
    again = icl.load(icl.save(runs, tmp_path / "runs.nc"))
    assert again["test_loss"].dims == ("heads", "seed", "time", "test", "test_context")
    assert again["test"].values.tolist() == ["same", "turned"]
    with pytest.raises(ValueError, match="holds another run"):
        icl.sweep(TASK, INIT, DESCENT, saveat=[0, 600], seeds=2, axes={"heads": [2, 3]},
                  test=TURNED, store=tmp_path / "store")  # fmt: skip


def literal_errors(model, case, rng, prompts=40_000):
    """Squared errors of linear attention on prompts drawn by NumPy: its mean is the test loss."""
    spectrum, context, noise, members = case
    size = len(spectrum)
    x = rng.normal(size=(prompts, context + 1, size)) * np.sqrt(spectrum)
    w = rng.normal(size=(prompts, size))
    if members is not None:
        w = members[rng.integers(len(members), size=prompts)]
    y = np.einsum("pnd,pd->pn", x, w)
    labels = y[:, :-1] + noise * rng.normal(size=(prompts, context))
    beta = np.einsum("pn,pnd->pd", labels, x[:, :-1]) / context
    values, keys, queries = (np.asarray(a) for a in (model.values, model.keys, model.queries))
    matrix = np.einsum("h,hrd,hrc->dc", values[:, 0, 0], keys, queries)
    return (y[:, -1] - np.einsum("pd,dc,pc->p", beta, matrix, x[:, -1])) ** 2


def test_test_losses_agree_with_monte_carlo(run):
    """Covariance, length, noise and a pool of tasks: within four standard errors of each mean."""
    members = np.random.default_rng(5).normal(size=(3, 2))
    tests = {
        "covariance": TURNED,
        "length": TASK.replace(context=40),
        "noise": TASK.replace(label_noise=0.7),
        "pool": TASK.replace(tasks=icl.Pool(members)),
    }
    there = icl.simulate(LOSS, run.model, DESCENT, saveat=[0], test=tests)["test_loss"][0]
    cases = [
        ([0.3, 0.5], 15, 0.0, None),
        ([0.5, 0.3], 40, 0.0, None),
        ([0.5, 0.3], 15, 0.7, None),
        ([0.5, 0.3], 15, 0.0, members),
    ]
    rng = np.random.default_rng(0)
    for value, case in zip(there, cases, strict=True):
        errors = literal_errors(run.model, case, rng)
        standard = errors.std() / np.sqrt(len(errors))
        assert abs(errors.mean() - float(value)) < 4 * standard
        # The test can fail: the training loss is another number, by more than that.
        assert abs(errors.mean() - float(run.loss[-1])) > 4 * standard


def test_trained_zero_blocks_are_tested_by_their_own_population():
    init = icl.Merged.initialiser(TASK, heads=2, scale=0.3, blocks=icl.Blocks.FULL)
    loss = icl.Moments.sample(TASK, 200, jax.random.key(1))
    run = icl.simulate(loss, init(jax.random.key(0)), DESCENT, saveat=[0, 50], test=TASK)
    exact = icl.population_moments(TASK)(run.model)
    np.testing.assert_allclose(run["test_loss"][-1], exact, rtol=1e-12)


def test_a_model_without_a_closed_form_is_tested_on_sampled_prompts():
    model = icl.Softmax.initialiser(TASK, heads=2, scale=0.3)(jax.random.key(0))
    loss = icl.Sequences.sample(TASK, 16, jax.random.key(1))
    with pytest.raises(ValueError, match=r"no population in closed form.*number of sequences"):
        icl.simulate(loss, model, DESCENT, saveat=[0], test=TASK)
    run = icl.simulate(loss, model, DESCENT, saveat=[0], test=icl.Tests(TASK, sequences=32))
    np.testing.assert_allclose(
        run["test_loss"][0], icl.Sequences.sample(TASK, 32, jax.random.key(3))(model), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: icl.Tests({}), "test has no names"),
        (lambda: icl.Tests([TASK]), "a test is a task or a loss, got list"),
        (lambda: icl.Tests({"a": 3}), "got int for 'a'"),
        (lambda: icl.Tests(LOSS, context=[3, 4]), "fields of a Task, got Population"),
        (lambda: icl.Tests(TASK, length=[3, 4]), "a Task has no field"),
        (lambda: icl.Tests(TASK, context=[3, 3]), "are both called 3"),
        (lambda: icl.Tests(TASK, context=5), "needs a list of values"),
    ],
)
def test_what_is_no_test_is_refused_in_one_line(make, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_test_of_other_sizes_is_refused_before_training():
    other = icl.Task([0.5, 0.3, 0.2], 15)
    with pytest.raises(ValueError, match="D = 2 inputs"):
        icl.simulate(LOSS, INIT(jax.random.key(0)), DESCENT, until=10**9, test=other)
    with pytest.raises(ValueError, match="cannot be tested on Population"):
        icl.sweep(TASK, INIT, DESCENT, until=10**9, test={"wide": icl.Population(other)})


def test_losses_that_differ_in_numbers_of_numpy_are_tested_apart():
    """A loss of one's own may keep NumPy's numbers, of which a text shows eight digits."""

    class Mine(icl.AbstractLoss):
        scale: np.ndarray

        def __call__(self, model):
            return jnp.sum(jnp.asarray(self.scale)) * jnp.sum(model.keys**2)

        def admits(self, model):
            return None

    one = np.ones(2000)
    tests = icl.Tests({"one": Mine(one), "other": Mine(np.where(np.arange(2000) == 999, 7, one))})
    model = icl.Separate.initialiser(TASK, heads=2, scale=0.3)(jax.random.key(0))
    found = tests.recorder(model)(model, icl.Population(TASK)).values
    np.testing.assert_allclose(found[1] / found[0], 2006 / 2000, rtol=1e-12)


def test_tests_of_several_structures_keep_their_order():
    moments = icl.Moments.sample(TASK, 50, jax.random.key(2))
    tests = {"a": TURNED, "b": moments, "c": TASK}
    model = INIT(jax.random.key(0))
    found = icl.simulate(LOSS, model, DESCENT, saveat=[0], test=tests)["test_loss"][0]
    literal = [icl.Population(TURNED)(model), moments(model), LOSS(model)]
    np.testing.assert_allclose(found, jnp.stack(literal), rtol=1e-13)


SETTINGS = {"spectrum": (0.5, 0.3), "context": 15, "heads": 3, "scale": 0.15, "steps": 600,
            "rate": 0.3, "save": "0,600"}  # fmt: skip


def test_settings_state_tests_and_changes_in_plain_values(run, tmp_path):
    """By the texts of the shell and by the tables of TOML; the numbers are those of Python."""
    (tmp_path / "run.toml").write_text(
        "spectrum = [0.5, 0.3]\ncontext = 15\nheads = 3\nscale = 0.15\nsteps = 600\nrate = 0.3\n"
        'save = "0,600"\ntest_context = [5, 15, 60]\n[test.same]\n[test.turned]\n'
        "spectrum = [0.3, 0.5]\n[change.300]\nnoise = 0.5\n"
    )
    tests = ("same: ", "turned: spectrum=0.3,0.5")
    given = Settings(**SETTINGS, test=tests, test_context=(5, 15, 60), change=("300: noise=0.5",))
    read = Settings.read(tmp_path / "run.toml")
    assert dataclasses.replace(read, test=tests) == given
    assert read.variants("test").keys() == given.variants("test").keys()
    study = Study.of(dataclasses.replace(given, change=None))
    runs = study.run()
    np.testing.assert_allclose(runs["test_loss"][0], run["test_loss"], rtol=1e-12)
    summary = study.summary(runs)
    np.testing.assert_allclose(summary["test_loss"][0], run["test_loss"][-1], rtol=1e-12)
    assert (summary["test"], summary["test_context"]) == (["same", "turned"], [5, 15, 60])
    changed = Study.of(read)
    runs = changed.run()
    loss = icl.Curriculum({0: TASK, 300: TASK.replace(label_noise=0.5)})
    alone = icl.simulate(loss, INIT(jax.random.key(0)), DESCENT, saveat=[0, 600])
    assert runs["step"].values.tolist() == [0, 300, 600]
    np.testing.assert_allclose(runs["loss"][0], alone.loss, rtol=1e-12)
    assert changed.prediction(runs) is None
    assert changed.levels().size == 0
    assert Settings.of_run(runs.attrs) == read


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"test": ("a: heads=2",)}, "unknown field of test 'heads'"),
        ({"test": ("a: noise",)}, "test needs NAME: FIELD=VALUE"),
        ({"test": ("a: noise=x",)}, "noise needs a number"),
        ({"test": ("a: noise=1", "a: noise=2")}, "states a twice"),
        ({"test": {"a": 3}}, "a table for each of its names"),
        ({"test": 3}, "needs NAME: FIELD=VALUE"),
        ({"test": ("a: noise=1",), "vary": "all"}, "a test is of one task"),
        ({"change": ("x: noise=1",)}, "change needs STEP"),
        ({"change": ("-4: noise=1",)}, "change needs STEP"),
        ({"change": ("9:",)}, "change needs STEP"),
        ({"change": ("9",)}, "change needs STEP"),
        ({"change": ("300: noise=1", "3e2: noise=2")}, "states 300 twice"),
        ({"change": ("300: noise=1", "5000: noise=2")}, "the change at 5000 comes after the end"),
        ({"change": ("9: noise=1",), "steps": None}, "needs an end"),
        ({"test_context": (0,)}, "at least 1"),
    ],
)
def test_bad_tests_and_changes_of_settings_are_refused_in_one_line(given, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        Settings(**from_names({**SETTINGS, **given}, "this file"))
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_design_tests_its_cells(run, tmp_path):
    words = {**SETTINGS, "spectrum": [0.5, 0.3], "scale": [0.15, 0.3], "seeds": 2}
    tests = {"test": {"turned": {"spectrum": [0.3, 0.5]}}, "test_context": [5, 60]}
    found = run_design(Design.of(**words, **tests), tmp_path / "s.zarr").load()
    assert found["test"].values.tolist() == ["turned"]
    assert found["test_context"].values.tolist() == [5, 60]
    chosen = found["test_loss"].sel(scale=0.15, seed=0, test="turned")
    np.testing.assert_allclose(chosen.values[-1], run["test_loss"][-1, 1, [0, 2]], rtol=1e-10)
