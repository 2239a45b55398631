import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.dynamics import Descent
from iclflow.losses import (
    Features,
    FullFeatures,
    Minibatch,
    Moments,
    Population,
    ReducedFeatures,
    Sequences,
    population_moments,
)
from iclflow.losses.moments import quadratic_form
from iclflow.models import MLP, Blocks, ConvNet
from iclflow.runs.simulate import simulate
from iclflow.tasks.base import Normaliser
from iclflow.tasks.task import Task
from tests.helpers.cases import KEY, MODELS, NETWORKS, TASKS, filled, softmax, standardised
from tests.helpers.tiers import some

LEVELS = (Sequences, Features, Moments)
# Some tasks with one of the models; CI has every task, and `make test-all` both models.
SOME = ("plain", "lengths", "heavy")
PAIRS = [
    pytest.param(task, name, marks=rest if (i + j) % 2 == 0 else pytest.mark.slow)
    for i, task in enumerate(TASKS)
    for rest in [() if task in SOME else pytest.mark.long]
    for j, name in enumerate(MODELS)
]


@pytest.mark.parametrize(("task_name", "name"), PAIRS)
def test_levels_agree_over_whole_trajectories(task_name, name):
    """Sequences = Features = Moments along descent, all blocks trained, η·sharpness < 1."""
    task = TASKS[task_name]()
    model = MODELS[name](task, Blocks.FULL, 0.7)(KEY)
    descent = Descent(0.02 if task.normaliser is not Normaliser.NONE else 0.0005)
    runs = [
        simulate(level.sample(task, 60, KEY), model, descent, until=300, record=["loss", "values"])
        for level in LEVELS
    ]
    assert runs[0].loss[-1] < runs[0].loss[0]
    for run in runs[1:]:
        np.testing.assert_allclose(run.loss, runs[0].loss, rtol=0, atol=1e-12)
        np.testing.assert_allclose(run["values"], runs[0]["values"], rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_square():
    """(9), over prompts one by one, without ½."""
    task = TASKS["outputs"]()
    loss = Sequences.sample(task, 20, KEY)
    model = filled(MODELS["separate"](task, Blocks.FULL, 0.7)(KEY))
    each = [jax.tree.map(lambda a, i=i: a[i], loss.prompts) for i in range(20)]
    squares = [np.sum((np.asarray(p.target) - np.asarray(model(p))) ** 2) for p in each]
    assert float(loss(model)) == pytest.approx(np.mean(squares), rel=1e-13)


def test_networks_train_like_attention():
    """MLP = merged and convolutions = separate along descent, from matching weights."""
    task = TASKS["lengths"]()
    loss = Moments.sample(task, 60, KEY, features=ReducedFeatures())
    sequences = Sequences.sample(task, 60, KEY)
    descent = Descent(0.05)
    for name, network in (("merged", MLP), ("separate", ConvNet)):
        model = MODELS[name](task, Blocks.FROZEN, 0.7)(KEY)
        attention = simulate(loss, model, descent, until=300)
        equivalent = network.from_attention(model)
        for level in (loss, sequences):
            run = simulate(level, equivalent, descent, until=300)
            np.testing.assert_allclose(run.loss, attention.loss, rtol=0, atol=1e-12)


@pytest.mark.parametrize("task_name", some(TASKS, *SOME))
def test_population_is_the_mean_over_samples(task_name):
    """B (31)(42), G (41), E|y|² in closed form against independent samples, in standard errors."""
    task = TASKS[task_name]()
    exact = Population(task)
    samples = [
        Moments.sample(task, 4000, jax.random.key(i), features=ReducedFeatures()) for i in range(16)
    ]
    outputs, size = task.outputs, task.size
    kron = np.einsum("jk,cd->jckd", exact.second, exact.covariance)
    count = outputs * size * size
    for values, moment in (
        ([s.power for s in samples], exact.power),
        ([s.cross for s in samples], exact.cross.reshape(outputs, count)),
        ([s.second for s in samples], kron.reshape(count, count)),
    ):
        z = standardised(values, moment)
        assert np.sqrt(np.mean(z**2)) < 2.2
        assert np.max(np.abs(z)) < 8


ALL_BLOCKS = ("plain", "mixture", "mean", "lengths", "outputs", "labels")


@pytest.mark.parametrize("task_name", some(ALL_BLOCKS, "mixture", "outputs"))
def test_population_of_all_blocks(task_name):
    """The full moments (87) against samples, and equal to the reduced ones where they meet."""
    task = TASKS[task_name]()
    exact = population_moments(task)
    samples = [Moments.sample(task, 4000, jax.random.key(i)) for i in range(16)]
    for field in ("power", "cross", "second"):
        z = standardised([getattr(s, field) for s in samples], getattr(exact, field))
        assert np.sqrt(np.mean(z**2)) < 2.2
        assert np.max(np.abs(z)) < 9
    model = MODELS["separate"](task, Blocks.FROZEN, 1.0)(KEY)
    assert exact(model) == pytest.approx(float(Population(task)(model)), abs=1e-13)


def test_zero_blocks_stay_zero_in_the_population():
    """(39)(40): with an even law of the tasks the blocks have no gradient; else they do."""
    for task_name, still in (("plain", True), ("noise", True), ("mixture", False)):
        task = TASKS[task_name]()
        assert task.symmetric() is still
        loss = population_moments(task)
        for name in MODELS:
            model = MODELS[name](task, Blocks.FULL, 1.0)(KEY)
            gradient = jax.jit(jax.grad(loss.__call__))(model)
            size = max(jnp.abs(gradient.value_inputs).max(), jnp.abs(gradient.key_labels).max())
            assert bool(size < 1e-15) is still


@pytest.mark.slow
def test_sampling_error_falls_as_root_p():
    """Empirical → population: the slope of the difference is -1/2."""
    task = Task([0.4, 0.3, 0.2, 0.1], 31)
    exact = Population(task)
    model = filled(MODELS["merged"](task, Blocks.FROZEN, 1.0)(KEY))
    counts = np.array([100, 400, 1600, 6400])
    error = []
    for count in counts:
        losses = [
            Moments.sample(task, int(count), jax.random.key(i), features=ReducedFeatures())
            for i in range(40)
        ]
        gaps = jnp.stack([loss(model) for loss in losses]) - exact(model)
        error.append(float(jnp.sqrt(jnp.mean(gaps**2))))
    slope = np.polyfit(np.log(counts), np.log(error), 1)[0]
    assert -0.6 < slope < -0.4


def test_antithetic_pairs_freeze_the_blocks():
    """The zero blocks stay zero on finite data when every prompt has its mirror image."""
    task = TASKS["noise"]()
    prompts = Sequences.sample(task, 40, KEY).prompts
    flipped = eqx.tree_at(
        lambda p: (p.labels, p.targets), prompts, (-prompts.labels, -prompts.targets)
    )
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), prompts, flipped)
    loss = Sequences.of(both, lengths=task.lengths)
    model = MODELS["merged"](task, Blocks.FULL, 1.0)(KEY)
    gradient = jax.jit(jax.grad(lambda m: loss(m)))(model)
    assert jnp.abs(gradient.value_inputs).max() < 1e-14
    assert jnp.abs(gradient.key_labels).max() < 1e-14


def test_moments_do_not_depend_on_the_chunk(monkeypatch):
    task = TASKS["mixture"]()
    whole = Moments.sample(task, 100, KEY)
    monkeypatch.setattr("iclflow.losses.moments.CHUNK_BYTES", 7 * 30 * 8)
    seen = []
    parts = Moments.sample(task, 100, KEY, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(parts.second, whole.second, atol=1e-14)
    assert seen[-1] == (100, 100)
    assert len(seen) > 5


def test_moments_of_features_are_the_moments(monkeypatch):
    """In one block of rows, and in several, of which the lower half is mirrored."""
    task = TASKS["lengths"]()
    moments = Moments.sample(task, 50, KEY)
    features = Features.sample(task, 50, KEY)
    phi = np.einsum("pnk,pnc->pnkc", features.statistic, features.query).reshape(150, -1)
    np.testing.assert_allclose(moments.second, phi.T @ phi / 150, atol=1e-14)
    np.testing.assert_allclose(
        moments.cross[0], features.target.reshape(-1) @ phi / 150, atol=1e-14
    )
    assert float(moments.power) == pytest.approx(float(jnp.mean(features.target**2)), abs=1e-14)
    monkeypatch.setattr("iclflow.losses.moments.BLOCK", 7)
    blocked = Moments.sample(task, 50, KEY)
    np.testing.assert_allclose(blocked.second, phi.T @ phi / 150, atol=1e-14)
    np.testing.assert_array_equal(blocked.second, blocked.second.T)


def test_quadratic_form_has_first_and_second_derivatives():
    matrix = jax.random.normal(KEY, (5, 5))
    matrix = matrix @ matrix.T
    weights = jax.random.normal(jax.random.key(1), (2, 5))

    def plain(w):
        return jnp.einsum("of,fg,og->", w, matrix, w)

    def fast(w):
        return quadratic_form(matrix, w)

    for derivative in (jax.grad, jax.hessian):
        found, expected = (jax.jit(derivative(form))(weights) for form in (fast, plain))
        np.testing.assert_allclose(found, expected, atol=1e-13)
    by_matrix = jax.grad(quadratic_form)(matrix, weights)
    np.testing.assert_allclose(by_matrix, weights.T @ weights, atol=1e-13)


def test_each_loss_says_what_it_admits():
    task = TASKS["plain"]()
    soft = softmax(task)(KEY)
    full = MODELS["merged"](task, Blocks.FULL, 1.0)(KEY)
    frozen = MODELS["merged"](task, Blocks.FROZEN, 1.0)(KEY)
    network = NETWORKS["mlp"](task, 1.0)(KEY)
    reduced = Moments.sample(task, 20, KEY, features=ReducedFeatures())
    whole = Moments.sample(task, 20, KEY, features=FullFeatures())
    for loss, admitted in (
        (Sequences.sample(task, 20, KEY), (soft, full, frozen, network)),
        (whole, (full, frozen, network)),
        (reduced, (frozen, network)),
        (Population(task), (frozen, network)),
    ):
        for model in (soft, full, frozen, network):
            if model in admitted:
                assert loss.admits(model) is None
                assert jnp.isfinite(loss(model))
            else:
                assert len(loss.admits(model)) > 20
                with pytest.raises(ValueError, match="cannot take"):
                    loss(model)


def test_what_does_not_fit_says_what_would_be_needed():
    task = Task(jnp.ones(100) / 100, 10)
    with pytest.raises(ValueError, match=r"moments of .* need .* GiB.*Features or Sequences"):
        Moments.sample(task, 10, KEY)
    with pytest.raises(ValueError, match=r"features of .* need .* GiB.*Moments"):
        Features.sample(task, 2 * 10**9, KEY)
    with pytest.raises(ValueError, match=r"sequences of 11 tokens need"):
        Sequences.sample(task, 2 * 10**9, KEY)


def test_population_needs_gaussian_inputs_for_all_blocks():
    with pytest.raises(ValueError, match="Gaussian"):
        population_moments(TASKS["heavy"]())


def test_a_batch_has_no_sequence_twice_and_all_equally_often():
    """Counts of 2,000 draws of 3 in 12 sequences: within five standard deviations of 500."""
    task = TASKS["plain"]()
    whole = Features.sample(task, 12, KEY)
    tagged = eqx.tree_at(lambda f: f.target, whole, jnp.arange(12.0)[:, None, None])
    draw = jax.vmap(lambda key: Minibatch(tagged, 3).draw(key).target.ravel())
    drawn = np.asarray(draw(jax.random.split(KEY, 2000)))
    assert all(len(set(row)) == 3 for row in drawn)
    counts = np.bincount(drawn.astype(int).ravel(), minlength=12)
    assert np.abs(counts - 500).max() < 5 * (500 * 0.75) ** 0.5
