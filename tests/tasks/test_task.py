import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.tasks.base import Normaliser
from iclflow.tasks.laws import (
    Commuting,
    Gaussian,
    Mixture,
    Normal,
    Pool,
    Rademacher,
    Sphere,
    StudentT,
    named_spectrum,
)
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.task import ContextLabels, Task
from tests.helpers.cases import KEY, TASKS


def test_named_spectra():
    np.testing.assert_allclose(named_spectrum("linear", 4), [0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(named_spectrum("white", 5, trace=2.0), [0.4] * 5)
    power = named_spectrum("power:1", 8)
    np.testing.assert_allclose(power / power[0], 1 / np.arange(1, 9))
    assert power.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", ["whit", "power:x", ""])
def test_unknown_spectrum_says_what_there_is(name):
    with pytest.raises(ValueError, match="spectrum"):
        named_spectrum(name, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spectrum": []}, "non-empty"),
        ({"spectrum": [[1.0]]}, "non-empty"),
        ({"spectrum": [0.5, -0.1]}, "at least 0"),
        ({"spectrum": [0.5, float("nan")]}, "finite"),
        ({"context": 0}, "at least 1"),
        ({"context": -3}, "at least 1"),
        ({"label_noise": -1.0}, "label noise"),
        ({"lengths": (0, 4)}, "context length"),
        ({"lengths": (99,)}, "context length"),
        ({"tasks": Pool(np.zeros((4, 3)))}, r"\[M, 2\] like the inputs, got \(4, 1, 3\)"),
        ({"tasks": Normal(covariance=[[1.0, 0.0], [0.0, -1.0]])}, "task covariance"),
        ({"tasks": Normal(covariance=-1.0)}, "task covariance"),
        ({"tasks": Normal(covariance=np.eye(3))}, "2 x 2"),
        ({"tasks": Normal(mean=[1.0, 2.0, 3.0])}, "2 numbers, got 3"),
        ({"tasks": Commuting([1.0, 2.0, 3.0])}, "2 variances"),
        ({"tasks": Mixture(fixed=[1.0, 2.0, 3.0], fraction=0.5)}, "the fixed task must be"),
        ({"rotation": jnp.eye(3)}, "2 x 2"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Task(**{"spectrum": [0.6, 0.4], "context": 5, **options})


def test_impossible_laws_are_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        Mixture(fraction=1.5)
    with pytest.raises(ValueError, match="M > 0, got \\(0, 2\\)"):
        Pool(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="row for each of the 2 outputs, got \\(3, 2\\)"):
        Normal(np.zeros((3, 2)), outputs=2)
    with pytest.raises(ValueError, match="no eigenvectors yet; give it to a Task"):
        Commuting().pool(3, KEY)
    with pytest.raises(ValueError, match="only a mixture has a fixed task, got Normal"):
        TASKS["plain"]().in_weight()


def test_laws_say_in_short_what_they_say_in_full():
    """A number, numbers along the eigenvectors and a matrix state the same law."""
    task = Task([0.6, 0.4], 5, rotation=KEY, tasks=Normal(covariance=2.0))
    for law in (Normal(covariance=[2.0, 2.0]), Normal(0.0, 2.0 * np.eye(2)), task.tasks):
        other = task.replace(tasks=law)
        np.testing.assert_allclose(other.tasks.covariance, 2.0 * np.eye(2), atol=1e-14)
        np.testing.assert_allclose(other.sample(KEY).labels, task.sample(KEY).labels, atol=1e-13)
    along = task.replace(tasks=Normal(covariance=[3.0, 1.0])).tasks.covariance
    np.testing.assert_allclose(task.basis.T @ along @ task.basis, np.diag([3.0, 1.0]), atol=1e-14)
    assert task.replace(tasks=Normal(outputs=3)).outputs == 3
    fixed = Mixture(fraction=0.2).bind(task.basis).fixed
    np.testing.assert_array_equal(fixed[0], task.basis.sum(axis=1))


def test_covariance_must_be_a_covariance():
    with pytest.raises(ValueError, match="semidefinite"):
        Task.from_covariance([[1.0, 2.0], [2.0, 1.0]], 5)
    with pytest.raises(ValueError, match="symmetric"):
        Task.from_covariance([[1.0, 0.5], [0.0, 1.0]], 5)
    matrix = np.array([[1.0, 0.3], [0.3, 0.5]])
    np.testing.assert_allclose(Task.from_covariance(matrix, 5).covariance, matrix, atol=1e-14)


@pytest.mark.parametrize(
    "law", [Gaussian(), Sphere(), Rademacher(), StudentT(9.0)], ids=lambda x: type(x).__name__
)
def test_input_moments(law):
    """Covariance (2) and quartic moment (20) of each law against Monte Carlo."""
    size, count = 3, 400_000
    z = law.from_normals(jax.random.normal(KEY, (count, size)), jax.random.key(1))
    a = jnp.asarray([[1.0, 0.2, 0.0], [0.2, 0.5, -0.3], [0.0, -0.3, 2.0]])
    form = jnp.einsum("ni,ij,nj->n", z, a, z)
    samples = form[:, None, None] * z[:, :, None] * z[:, None, :]
    error = samples.std(axis=0) / count**0.5
    assert jnp.abs(samples.mean(axis=0) - law.quartic(a)).max() < 5 * error.max()
    np.testing.assert_allclose(z.T @ z / count, np.eye(size), atol=0.02)


def test_heavy_tails_have_limits():
    with pytest.raises(ValueError, match="more than 2"):
        StudentT(2.0)
    with pytest.raises(ValueError, match="no fourth moment"):
        StudentT(3.0).quartic(jnp.eye(2))


def test_labels_are_the_task():
    """(4): y = W x, of the pairs and of the query."""
    task = TASKS["mixture"]().in_weight()
    draw = task.draw(KEY)
    prompt = task.prompt(draw)
    np.testing.assert_array_equal(draw.task, task.tasks.fixed)
    np.testing.assert_allclose(prompt.labels, prompt.inputs @ draw.task.T, atol=1e-14)
    np.testing.assert_allclose(prompt.target, draw.task @ prompt.query, atol=1e-14)


def test_a_prompt_and_its_statistics():
    """X (1), β (8) = Λ̂w (30), and X Xᵀ/N in blocks (29) with Λ̂ (28), in NumPy."""
    task = TASKS["plain"]()
    draw = task.draw(KEY)
    prompt = task.prompt(draw)
    x, w = np.asarray(prompt.inputs), np.asarray(draw.task[0])
    pairs, query, n = x[:-1], x[-1], task.context
    np.testing.assert_allclose(prompt.tokens, np.c_[x, np.append(pairs @ w, 0.0)], atol=1e-15)
    covariance = pairs.T @ pairs / n
    beta = covariance @ w
    np.testing.assert_allclose(prompt.correlation[0], beta, atol=1e-15)
    first = covariance + np.outer(query, query) / n
    blocks = np.block([[first, beta[:, None]], [beta[None], w @ covariance @ w]])
    np.testing.assert_allclose(prompt.second_moment, blocks, atol=1e-15)


def test_mixture_has_exact_proportions():
    task = Task([0.5, 0.5], 3, tasks=Mixture(fraction=0.3))
    prompts = PromptSet.sample(task, 50, KEY)
    tasks = jax.vmap(lambda i: prompts._draw(i).task)(jnp.arange(50))
    fixed = jnp.all(tasks == task.tasks.fixed[None], axis=(1, 2))
    np.testing.assert_array_equal(fixed, np.arange(50) < 15)


def test_independent_prompts_are_those_of_their_keys():
    """Without exact proportions prompt i is `task.sample` of its own key."""
    task = TASKS["mixture"]()
    prompts = PromptSet(task, KEY, 40, exact=False).prompts()
    for i in (0, 17, 39):
        alone = task.sample(jax.random.fold_in(KEY, i))
        np.testing.assert_allclose(prompts.labels[i], alone.labels, atol=1e-14)


def test_test_tasks_of_a_mixture():
    task = TASKS["mixture"]()
    assert task.tasks.mixed()
    assert not task.in_context().tasks.mixed()
    np.testing.assert_allclose(task.in_weight().tasks.mean, task.tasks.fixed, atol=1e-15)
    noise = task.in_weight(ContextLabels.NOISE)
    assert noise.context_labels is ContextLabels.NOISE
    assert noise.in_context().context_labels is ContextLabels.TASK


def test_matching_gives_exact_sample_moments():
    task = Task([0.5, 0.3, 0.2], 6, rotation=KEY, tasks=Normal(covariance=[1.0, 2.0, 0.5]))
    prompts = PromptSet.sample(task, 200, KEY, matched=True)
    draws = jax.vmap(prompts._draw)(jnp.arange(200))
    w = draws.task[:, 0]
    np.testing.assert_allclose(draws.inputs.mean(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(w.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(w.T @ w / 200, task.tasks.covariance, atol=1e-12)


def test_matching_needs_enough_normal_tasks():
    with pytest.raises(ValueError, match="more sequences"):
        PromptSet.sample(Task([0.5, 0.5], 3), 2, KEY, matched=True)
    with pytest.raises(ValueError, match="a Pool of them"):
        PromptSet.sample(TASKS["pool"](), 50, KEY, matched=True)


@pytest.mark.parametrize("name", ["pool", "mean", "mixture", "outputs"])
def test_fourth_moment_of_tasks(name):
    """E[u⊗u⊗u⊗u] (3) against Monte Carlo, and its second-order part against `second_moment`."""
    task = TASKS[name]()
    exact = np.asarray(eqx.filter_jit(task.tasks.fourth_moment)())
    draw = jax.jit(jax.vmap(task.tasks.sample))
    w = np.asarray(draw(jax.random.split(KEY, 200_000))).reshape(200_000, -1)
    u = np.concatenate([np.ones((len(w), 1)), w], axis=1)
    uu = np.einsum("ni,nj->nij", u, u).reshape(len(u), -1)
    sample = (uu.T @ uu / len(u)).reshape(exact.shape)
    spread = np.sqrt(((uu**2).T @ (uu**2) / len(u)).reshape(exact.shape) / len(u))
    assert np.max(np.abs(sample - exact) / (spread + 1e-9)) < 5
    second = exact[1:, 1:, 0, 0].reshape(task.tasks.second_moment().shape)
    np.testing.assert_allclose(second, task.tasks.second_moment(), atol=1e-12)


def test_replace_checks_again():
    task = Task([0.5, 0.5], 8)
    assert task.replace(context=4).lengths == (4,)
    assert task.replace(normaliser=Normaliser.NONE).normaliser is Normaliser.NONE
    with pytest.raises(ValueError, match="no field"):
        task.replace(contxt=3)
    with pytest.raises(ValueError, match="at least 1"):
        task.replace(context=0)


def test_prefix_hides_what_comes_after():
    prompt = TASKS["lengths"]().sample(KEY)
    short = prompt.prefix(4)
    np.testing.assert_array_equal(short.tokens[5:], 0)
    np.testing.assert_array_equal(short.tokens[4, 3:], 0)
    np.testing.assert_array_equal(short.query, prompt.inputs[4])
    assert int(short.divisor) == 5
