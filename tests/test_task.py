import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.tasks.distributions import Gaussian, Rademacher, Sphere, StudentT
from iclflow.tasks.prompt import Normaliser
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.spectra import named_spectrum
from iclflow.tasks.task import Task
from tests.cases import KEY, TASKS


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
        ({"context": 0}, "at least one"),
        ({"context": -3}, "at least one"),
        ({"label_noise": -1.0}, "label noise"),
        ({"fixed_fraction": 1.5}, "between 0 and 1"),
        ({"lengths": (0, 4)}, "context lengths"),
        ({"lengths": (99,)}, "context lengths"),
        ({"pool": np.zeros((0, 2))}, "task pool"),
        ({"task_covariance": [[1.0, 0.0], [0.0, -1.0]]}, "task covariance"),
        ({"task_covariance": np.eye(3)}, "2 x 2"),
        ({"rotation": jnp.eye(3)}, "2 x 2"),
        ({"pool": np.ones((3, 2)), "task_mean": [1.0, 1.0]}, "one of"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Task(**{"spectrum": [0.6, 0.4], "context": 5, **options})


def test_covariance_must_be_a_covariance():
    with pytest.raises(ValueError, match="semidefinite"):
        Task.from_covariance([[1.0, 2.0], [2.0, 1.0]], 5)
    with pytest.raises(ValueError, match="symmetric"):
        Task.from_covariance([[1.0, 0.5], [0.0, 1.0]], 5)
    matrix = np.array([[1.0, 0.3], [0.3, 0.5]])
    np.testing.assert_allclose(Task.from_covariance(matrix, 5).covariance, matrix, atol=1e-14)


def test_spectrum_is_sorted_with_its_eigenvectors():
    rotation = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0])
    task = Task([0.2, 0.5, 0.3], 4, rotation=rotation)
    expected = rotation @ jnp.diag(jnp.asarray([0.2, 0.5, 0.3])) @ rotation.T
    np.testing.assert_allclose(task.covariance, expected, atol=1e-14)
    np.testing.assert_allclose(task.spectrum, [0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    "law", [Gaussian(), Sphere(), Rademacher(), StudentT(9.0)], ids=lambda x: type(x).__name__
)
def test_input_moments(law):
    """Covariance and quartic moment of each law against Monte Carlo."""
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
    draw = TASKS["mixture"]().draw(KEY, fixed=True)
    prompt = TASKS["mixture"]().prompt(draw)
    np.testing.assert_array_equal(draw.task, TASKS["mixture"]().fixed_task)
    np.testing.assert_allclose(prompt.labels, prompt.inputs @ draw.task.T, atol=1e-14)
    np.testing.assert_allclose(prompt.target, draw.task @ prompt.query, atol=1e-14)


def test_mixture_has_exact_proportions():
    task = Task([0.5, 0.5], 3, fixed_fraction=0.3)
    prompts = PromptSet.sample(task, 50, KEY)
    tasks = jax.vmap(lambda i: prompts._draw(i).task)(jnp.arange(50))
    assert int(jnp.all(tasks == task.fixed_task[None], axis=(1, 2)).sum()) == 15


def test_matching_gives_exact_sample_moments():
    task = Task([0.5, 0.3, 0.2], 6, rotation=KEY, task_covariance=[1.0, 2.0, 0.5])
    prompts = PromptSet.sample(task, 200, KEY, matched=True)
    draws = jax.vmap(prompts._draw)(jnp.arange(200))
    w = draws.task[:, 0]
    np.testing.assert_allclose(draws.inputs.mean(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(w.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(w.T @ w / 200, task.tasks.covariance, atol=1e-12)


def test_matching_needs_enough_normal_tasks():
    with pytest.raises(ValueError, match="more sequences"):
        PromptSet.sample(Task([0.5, 0.5], 3), 2, KEY, matched=True)
    with pytest.raises(ValueError, match="pool"):
        PromptSet.sample(TASKS["pool"](), 50, KEY, matched=True)


@pytest.mark.parametrize("name", ["pool", "mean", "mixture", "outputs"])
def test_fourth_moment_of_tasks(name):
    """E[u⊗u⊗u⊗u] against Monte Carlo, and its second-order part against `second_moment`."""
    task = TASKS[name]()
    exact = task.tasks.fourth_moment()
    w = jax.vmap(task.tasks.sample)(jax.random.split(KEY, 200_000)).reshape(200_000, -1)
    u = jnp.concatenate([jnp.ones((len(w), 1)), w], axis=1)
    uu = jnp.einsum("ni,nj->nij", u, u).reshape(len(u), -1)
    sample = (uu.T @ uu / len(u)).reshape(exact.shape)
    spread = jnp.sqrt(((uu**2).T @ (uu**2) / len(u)).reshape(exact.shape) / len(u))
    assert jnp.max(jnp.abs(sample - exact) / (spread + 1e-9)) < 5
    second = exact[1:, 1:, 0, 0].reshape(task.tasks.second_moment().shape)
    np.testing.assert_allclose(second, task.tasks.second_moment(), atol=1e-12)


def test_replace_checks_again():
    task = Task([0.5, 0.5], 8)
    assert task.replace(context=4).lengths == (4,)
    assert task.replace(normaliser=Normaliser.NONE).normaliser is Normaliser.NONE
    with pytest.raises(ValueError, match="no field"):
        task.replace(contxt=3)
    with pytest.raises(ValueError, match="at least one"):
        task.replace(context=0)


def test_prefix_hides_what_comes_after():
    prompt = TASKS["lengths"]().sample(KEY)
    short = prompt.prefix(4)
    np.testing.assert_array_equal(short.tokens[5:], 0)
    np.testing.assert_array_equal(short.tokens[4, 3:], 0)
    np.testing.assert_array_equal(short.query, prompt.inputs[4])
    assert int(short.divisor) == 5
