import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from iclflow.diagnosis.identify import LEAST_SQUARES, best_match, candidates, identify, shifted
from iclflow.losses import Population
from iclflow.models import Blocks, Merged, Separate, Softmax, SoftmaxInitialiser
from iclflow.runs.record import recorded_models
from iclflow.tasks.laws import Mixture, Normal, Pool
from iclflow.tasks.task import Task
from iclflow.theory import (
    InWeight,
    LinearPredictor,
    Modes,
    Ridge,
    bayes_predictor,
    least_squares,
    nearest_fixed_point,
    principal_component_regression,
    zero_predictor,
)

SMALL = 100  # prompts, where only exact distances matter
TASK = Task([0.5, 0.3, 0.1], 8, rotation=jax.random.key(5))


def stacked(*models):
    """Models of one kind as one model with a leading axis of times."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)


def name_of(predictor, task, **options):
    found = identify(stacked(predictor), task, sequences=SMALL, **options)
    return str(found["algorithm"].values[0]), float(found["margin"][0])


@pytest.fixture(scope="module")
def separate():
    """Two random models of size one."""
    init = Separate.initialiser(TASK, heads=4, scale=2.0)
    return [init(jax.random.key(i)) for i in range(2)]


def test_distance_to_least_squares_is_the_excess_loss(separate):
    """Pythagoras in the population: L(f) = L(f*) + E(f - f*)² for the best f* of the class."""
    found = identify(stacked(*separate), TASK, among={"best": least_squares(TASK)}, sequences=SMALL)
    loss = Population(TASK)
    excess = [float(loss(m) - loss(least_squares(TASK))) for m in separate]
    power = float(loss.power)
    np.testing.assert_allclose(found["distance"][:, 0] ** 2, np.array(excess) / power, rtol=1e-10)
    assert found["exact"].values.all()


def test_distance_to_components_is_that_of_the_fixed_points(separate):
    nearest = nearest_fixed_point(separate[0], TASK)
    chosen = LinearPredictor(nearest.point.weight[None, None])
    found = identify(stacked(separate[0]), TASK, among={"it": chosen}, sequences=SMALL)
    expected = float(nearest.distance) / float(Population(TASK).power) ** 0.5
    np.testing.assert_allclose(found["distance"].values[0, 0], expected, rtol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("blocks", list(Blocks))
def test_distance_to_in_weight_against_sampled_prompts(blocks):
    """The closed form with trained zero blocks and a mixture, against the models themselves."""
    task = Task(
        [0.6, 0.3], 4, rotation=jax.random.key(1), tasks=Mixture(fraction=0.6), label_noise=0.3
    )
    init = Merged.initialiser(task, heads=3, scale=1.0, blocks=blocks)
    keys = iter(jax.random.split(jax.random.key(2), 9))
    model = jax.tree.map(
        lambda a: a + 0.5 * jax.random.normal(next(keys), a.shape), init(next(keys))
    )
    fixed = InWeight.of(task)
    found = identify(stacked(model), task, among={"w*": fixed}, sequences=SMALL)
    assert found["exact"].values.all()

    def square(key):
        prompt = task.sample(key)
        return (model(prompt)[0] - fixed(prompt)[0]) ** 2

    squares = np.asarray(jax.jit(jax.vmap(square))(jax.random.split(jax.random.key(3), 100_000)))
    squares = squares / float(Population(task).power)
    error = squares.std() / len(squares) ** 0.5
    assert abs(float(found["distance"][0, 0]) ** 2 - squares.mean()) < 4 * error
    assert error < 0.1 * squares.mean()  # sharp enough to notice a missing term


def test_linear_algorithms_recognise_themselves():
    for m in range(3):
        name = "zero" if m == 0 else f"PCR-{m}"
        assert name_of(principal_component_regression(TASK, m), TASK)[0] == name
    assert name_of(least_squares(TASK), TASK)[0] == LEAST_SQUARES
    assert name_of(least_squares(TASK), TASK)[1] > 1 - 1e-6


def test_least_squares_is_one_candidate_and_ordinary_another():
    names = list(candidates(TASK, sequences=SMALL))
    assert "PCR-3" not in names
    assert names.count(LEAST_SQUARES) == 1
    # without noise and with more pairs than dimensions the posterior mean is least squares
    assert "ordinary least squares (= Bayes)" in names
    assert "Bayes (= ridge)" in candidates(TASK.replace(label_noise=0.5), sequences=SMALL)


def test_components_of_equal_eigenvalues_may_be_any():
    task = Task([0.4, 0.4, 0.1], 8)
    angle = 0.7
    direction = jnp.array([np.cos(angle), np.sin(angle), 0.0])
    modes = Modes.of(task)
    weight = float(modes.m[0]) * jnp.outer(direction, direction)
    found = identify(stacked(LinearPredictor(weight[None, None])), task, sequences=SMALL)
    assert found["algorithm"].values[0] == "PCR-1"
    assert found["distance"].sel(candidate="PCR-1").values[0] < 1e-7


@pytest.mark.slow
def test_components_that_a_task_covariance_reorders_are_named():
    """λ = (1, .5), task variances (1, 3): λ²s puts component 1 first, the size λs component 2."""
    task = Task([1.0, 0.5], 31, tasks=Normal(covariance=[1.0, 3.0]))
    modes = Modes.of(task)
    first, second = (
        LinearPredictor(modes.weight([s])[None, None])
        for s in np.argsort(-np.asarray(modes.eigenvalue)).tolist()
    )
    assert name_of(first, task)[0] == "PCR-1"
    name, margin = name_of(second, task)
    assert name == "regression on component 2"
    assert margin > 1 - 1e-6
    assert name_of(least_squares(task), task)[0] == LEAST_SQUARES
    # with variances (1, 8, 27) the order of the drops is 3, 2, 1
    steep = Task([1.0, 0.5, 0.3], 31, tasks=Normal(covariance=[1.0, 8.0, 27.0]))
    names = list(candidates(steep, sequences=SMALL))
    assert names[:4] == [
        "zero", "regression on component 3", "regression on components 3, 2", LEAST_SQUARES
    ]  # fmt: skip
    assert {"PCR-1", "PCR-2"} <= set(names)
    weight = Modes.of(steep).weight([0])
    assert float(weight[2, 2]) == pytest.approx(float(jnp.abs(weight).max()))


def test_a_margin_without_a_rival_says_so():
    best = least_squares(TASK)
    assert np.isnan(name_of(zero_predictor(TASK), TASK, among={"only": best})[1])
    twins = {"one": best, "other": least_squares(TASK)}
    name, margin = name_of(zero_predictor(TASK), TASK, among=twins)
    assert name == "one (= other)"
    assert np.isnan(margin)
    rivals = {"one": best, "none": zero_predictor(TASK)}
    assert name_of(zero_predictor(TASK), TASK, among=rivals) == ("none", 1.0)


def test_the_nearest_ridge_is_read_beside_the_contest():
    task = TASK.replace(label_noise=0.7)
    scale = task.context * float(task.spectrum.mean())
    given = scale * 10**-0.5
    found = identify(jax.vmap(Ridge)(jnp.array([given, 0.7**2])), task, sequences=500)
    assert abs(np.log(found["ridge"].values[0] / given)) < 0.3  # half a step of its grid
    assert found["ridge_distance"].values[0] < 0.05
    # σ² is the posterior mean for w ~ N(0, I), so best ridge and Bayes are one candidate
    assert found["algorithm"].values[1] == "Bayes (= ridge)"
    assert found["ridge"].values[1] == pytest.approx(0.7**2)


def test_bayes_of_a_pool():
    task = Task([0.6, 0.3], 4, tasks=Pool([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]), label_noise=0.5)
    assert name_of(bayes_predictor(task), task)[0] == "dMMSE (= Bayes)"


def test_softmax_is_compared_on_prompts():
    init = Separate.initialiser(TASK, heads=2, scale=1e-3)
    found = identify(stacked(Softmax(init(jax.random.key(0)))), TASK, sequences=SMALL)
    assert not found["exact"].values.any()
    assert found["algorithm"].values[0] == "zero"


def test_shifted_prompts_tell_algorithms_apart():
    """Least squares (16) is tied to its N and Λ; it stays itself on any prompt."""
    far = shifted(TASK, context=100, spectrum=[0.1, 0.3, 0.5], scale=2.0)
    assert far.context == 100
    assert far.lengths == (100,)
    np.testing.assert_allclose(far.spectrum, [0.4, 1.2, 2.0])
    np.testing.assert_array_equal(far.basis, TASK.basis)
    best = stacked(least_squares(TASK))
    near, moved = (identify(best, TASK, on=on, sequences=500) for on in (TASK, far))
    assert moved["algorithm"].values[0] == LEAST_SQUARES
    assert float(moved["distance"].sel(candidate=LEAST_SQUARES)[0]) < 1e-10
    name = "ordinary least squares (= Bayes)"
    # x twice as large: linear attention grows with x³, regression with x
    gaps = [float(d["distance"].sel(candidate=name)[0]) for d in (near, moved)]
    assert gaps[1] > 2 * gaps[0]
    with pytest.raises(ValueError, match="needs 3 eigenvalues"):
        shifted(TASK, spectrum=[1.0, 2.0])


def test_margin():
    best, margin = best_match(np.array([[0.0, 0.5, 1.0], [0.4, 0.3, 1.0], [0.0, 0.0, 1.0]]))
    np.testing.assert_array_equal(best, [0, 1, 0])
    np.testing.assert_allclose(margin, [1.0, 0.25, 0.0])


def test_one_output_only():
    task = Task([0.5, 0.3], 4, tasks=Normal(outputs=2))
    with pytest.raises(ValueError, match="one output, this task has 2"):
        identify(stacked(zero_predictor(task)), task)


def test_recorded_models_come_back():
    init = Separate.initialiser(TASK, heads=2, scale=1.0)
    models = stacked(*(init(jax.random.key(i)) for i in range(3)))
    run = xr.Dataset(
        {
            "values": (("time", "head"), np.asarray(models.values[:, :, 0, 0])),
            "keys": (("time", "head", "pair", "row"), np.asarray(models.keys)),
            "queries": (("time", "head", "pair", "column"), np.asarray(models.queries)),
            "result": ((), 0),
        }
    )
    again = recorded_models(run, init)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again, models))
    soft = recorded_models(run, SoftmaxInitialiser(init))
    assert isinstance(soft, Softmax)
    with pytest.raises(ValueError, match="--record loss,weights"):
        recorded_models(run[["result"]], init)
