"""A run is a run: what `sweep` and `simulate` made is read as what a command wrote."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import iclflow as icl
from iclflow.results.netcdf import save
from iclflow.study.origin import Origin
from iclflow.study.study import Settings, Study
from tests.helpers.commands import call

TASK = icl.Task(
    [0.5, 0.2], context=15, rotation=jax.random.key(3), inputs=icl.Sphere(), label_noise=0.1,
    tasks=icl.Normal(mean=[0.0, 0.1], covariance=[1.0, 2.0]), normaliser=icl.Normaliser.TOKENS,
)  # fmt: skip
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.3)
HOW = {"until": 1500, "seeds": 2, "record": ["loss", "weights"]}


@pytest.fixture(scope="module")
def runs():
    """Runs of `sweep` on a task with eigenvectors, a law and a noise of its own."""
    return icl.sweep(TASK, INIT, icl.Descent(0.3), **HOW)


def same(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return type(one) is type(other) and all(np.array_equal(a, b) for a, b in leaves)


@pytest.mark.parametrize(
    "source",
    [
        TASK,
        icl.Population(icl.Task([0.5, 0.2], context=15)),
        icl.Task([0.5, 0.2], 15, tasks=icl.Pool(np.eye(2)), lengths=[3, 15]),
        icl.Task([0.5, 0.2], 15, inputs=icl.StudentT(7.0)),
    ],
)
def test_what_a_sweep_was_of_comes_back_number_by_number(source):
    kinds = (icl.Separate, icl.Merged, icl.MLP, icl.ConvNet)
    inits = [kind.initialiser(source, heads=2, scale=0.1) for kind in kinds]
    inits += [icl.Merged.initialiser(source, heads=1, scale=0.2)]
    for init in inits[:1] if source is not TASK else inits:
        found = Origin.of(icl.sweep(source, init, icl.Descent(0.25), saveat=[0, 1]))
        assert same(found.source, source)
        assert same(found.init, init)
        assert same(found.dynamics, icl.Descent(0.25))


def test_a_point_of_a_sweep_has_the_values_of_its_axes():
    axes = {"scale": [0.1, 0.2], "label_noise": [0.0, 0.5]}
    runs = icl.sweep(TASK, INIT, icl.Descent(0.1), saveat=[0, 1], axes=axes)
    found = Origin.of(runs.sel(scale=0.2, label_noise=0.5))
    assert same(found.init, icl.Separate.initialiser(TASK, heads=3, scale=0.2))
    assert float(found.source.label_noise) == 0.5


def test_a_run_of_sweep_is_diagnosed_as_that_of_a_command():
    plain = {"spectrum": (0.5, 0.2), "context": 15, "heads": 3, "scale": 0.3, "rate": 0.3}
    study = Study.of(Settings(**plain, steps=1500, save="linear:60", record=("loss", "weights")))
    written = study.run()
    made = icl.sweep(
        study.task, study.init, icl.Descent(0.3), saveat=study.saveat, record=["loss", "weights"]
    )
    one, other = (icl.diagnose(runs, sequences=50) for runs in (written, made))
    assert one.equals(other.drop_vars("seed", errors="ignore")) or one.equals(other)
    along, beside = (icl.measure_along(runs) for runs in (written, made))
    for name in along:
        np.testing.assert_allclose(along[name], beside[name], rtol=1e-9, atol=1e-12)


def test_all_seeds_one_seed_and_a_trajectory_are_diagnosed(runs):
    found = icl.diagnose(runs, sequences=50)
    assert found.sizes["seed"] == 2
    assert "alignment" in found
    single = icl.diagnose(runs, seed=1, sequences=50)
    np.testing.assert_allclose(single.loss, runs.loss.sel(seed=1))
    loss = icl.Moments.sample(TASK, 200, jax.random.key(0))
    run = icl.simulate(
        loss, INIT(jax.random.key(0)), icl.Descent(0.2), until=300, record=["loss", "weights"]
    )
    stages = icl.diagnose(run, source=loss)
    assert "distance" not in stages
    assert len(stages.level_theory) == 3
    measured = icl.measure_along(run, source=loss, init=INIT)
    assert np.isfinite(measured.fixed_point_distance).all()
    assert "fixed_point_modes" not in measured
    with pytest.raises(ValueError, match="which loss they were trained on; give it"):
        icl.measure_along(run.to_dataset())


def test_one_run_knows_where_it_comes_from(tmp_path, monkeypatch, capsys):
    """Its file is diagnosed and shown as that of a sweep, with no further word."""
    task, start = icl.Task([0.6, 0.3], context=15), INIT(jax.random.key(0))
    saveat = [0, 10, 30, 100, 200, 300]
    run = icl.simulate(task, start, icl.Descent(0.2), saveat=saveat, record=["loss", "weights"])
    origin = Origin.of(run.to_dataset())
    np.testing.assert_array_equal(origin.source.spectrum, task.spectrum)
    assert (type(origin.init), origin.init.heads) == (type(INIT), INIT.heads)
    norms = [float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(start)]
    assert float(origin.init.scale) == pytest.approx(np.sqrt(np.mean(norms)), rel=1e-12)
    assert origin.dynamics == icl.Descent(0.2)
    icl.explore(run, out=tmp_path / "page.html", browser=False)
    monkeypatch.chdir(tmp_path)
    icl.save(run, "one.nc")
    code, out, err = call(capsys, "diagnose", "one.nc", "--samples", 50, "--json")
    assert (code, err) == (0, ""), err
    assert json.loads(out)["runs"][0]["stages"][0]["algorithm"] == "zero"
    again = icl.simulate(task, start, icl.Descent(0.2), until=400, state=run.state)
    assert Origin.of(again.to_dataset()).init.heads == INIT.heads


def test_what_jax_makes_of_runs_has_no_origin():
    """Stacking runs copies no loss, and a traced run has none that could be described."""
    loss = icl.Moments.sample(TASK, 50, jax.random.key(0))
    starts = [INIT(jax.random.key(s)) for s in range(2)]
    runs = [icl.simulate(loss, one, icl.Descent(0.2), until=4, saveat=[0, 4]) for one in starts]
    assert runs[0].lineage.source is loss
    for tree in (jax.tree.map(lambda *a: jnp.stack(a), *runs), jax.tree.map(lambda a: a, runs[0])):
        assert tree.lineage.source is None
    stack = jax.tree.map(lambda *a: jnp.stack(a), *starts)
    many = eqx.filter_vmap(lambda m: icl.simulate(loss, m, icl.Descent(0.2), until=4))(stack)
    assert many.lineage.settings is None


@pytest.mark.parametrize(
    "init",
    [
        icl.Merged.initialiser(TASK, heads=3, scale=0.1, blocks=icl.Blocks.FULL),
        icl.Softmax.initialiser(TASK, heads=2, scale=0.1),
        icl.MLP.initialiser(TASK, heads=2, scale=0.1),
        icl.ConvNet.initialiser(TASK, heads=2, scale=0.1),
        icl.Layers.initialiser(TASK, layers=3, heads=2, scale=0.1),
        icl.Layers.initialiser(TASK, layers=3, heads=2, scale=0.1, tied=True),
    ],
    ids=["merged", "softmax", "mlp", "convnet", "layers", "tied"],
)
def test_a_model_names_what_draws_its_like(init):
    model = init(jax.random.key(0))
    found = model.as_initialiser()
    shapes = [jax.tree.map(jnp.shape, one) for one in (model, found(jax.random.key(1)))]
    assert type(found) is type(init)
    assert eqx.tree_equal(*shapes)


def test_a_saved_sweep_is_read_by_the_commands(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(runs, "own.nc")
    code, out, err = call(capsys, "diagnose", "own.nc", "--samples", 50, "--seed", 0, "--json")
    assert (code, err) == (0, ""), err
    stages = json.loads(out)["runs"][0]["stages"]
    assert stages[0]["algorithm"] == "zero"
    save(runs[["loss", "result"]], "losses.nc")
    code, out, err = call(capsys, "diagnose", "losses.nc", "--seed", 0)
    assert code == 0, err
    assert 'record=["loss", "weights"] in sweep' in err
    sampled = icl.sweep(
        icl.Moments.sample(TASK, 200, jax.random.key(0)), INIT, icl.Descent(0.3), **HOW
    )
    save(sampled, "sampled.nc")
    code, out, err = call(capsys, "diagnose", "sampled.nc", "--plot", "sampled.png")
    assert code == 0, err
    code, out, err = call(capsys, "diagnose", "sampled.nc", "--test-context", 40)
    assert code == 2
    assert "needs the task, which these runs do not say" in err


def test_a_run_whose_rate_begins_and_ends_at_zero_is_diagnosed():
    """Two points at one time: the weights rest where the clock of a schedule does."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.3, 50, 400)
    init = icl.Merged.initialiser(TASK, heads=2, scale=0.1)
    how = {"until": 500, "seeds": 2, "record": ["loss", "weights"]}
    runs = icl.sweep(TASK, init, icl.Descent(schedule), **how)
    assert (np.diff(runs["time"]) == 0).sum() > 2
    found = icl.diagnose(runs)
    assert (np.diff(found["time"]) > 0).all()
    assert found.algorithm.values[0, -1] == "least squares (= PCR-D)"


@pytest.mark.long
def test_a_film_is_made_of_any_run(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    film = icl.animate(runs, "film.gif", seed=0, seconds=0.3, fps=10)
    assert film.path.stat().st_size > 1000
    assert film.basis == "eigenvectors of the inputs"
    save(runs, "own.nc")
    code, _out, err = call(
        capsys, "animate", "own.nc", "--seed", 1, "--seconds", 0.2, "--fps", 10, "--out", "b.gif"
    )
    assert code == 0, err
