"""Sparse regression, two-layer networks and decision trees: their laws and reference predictors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.theory import Lasso, bayes_predictor, kernel_predictor, monte_carlo_loss
from tests.helpers.cases import standardised

KEY = jax.random.key(6)


def draws(law, count=4000):
    return np.asarray(jax.jit(jax.vmap(law.sample))(jax.random.split(KEY, count)))


@pytest.mark.parametrize("outputs", [1, 2])
def test_moments_of_sparse_tasks_are_those_of_draws(outputs):
    basis = icl.Task([1.0] * 3, 2, rotation=KEY).basis
    law = icl.Sparse(2, variance=0.7, outputs=outputs).bind(basis)
    found = draws(law)
    assert np.all(np.sum(np.abs(found @ np.asarray(basis)) > 1e-12, axis=2) == 2)
    u = np.concatenate([np.ones((len(found), 1)), found.reshape(len(found), -1)], axis=1)
    second = np.einsum("nab,ncd->nabcd", found, found)
    assert np.abs(standardised(second, law.second_moment())).max() < 4.5
    fourth = np.einsum("na,nb,nc,nd->nabcd", u, u, u, u)
    exact = np.asarray(law.fourth_moment())
    off = np.abs(fourth.mean(0) - exact) / (fourth.std(0) / len(u) ** 0.5 + 1e-9)
    assert off.max() < 5.5


def test_sparse_tasks_go_through_every_level():
    """The population, from its closed second and fourth moments, is where samples tend to."""
    task = icl.Task([0.5, 0.3, 0.2], 6, tasks=icl.Sparse(1, variance=3.0), label_noise=0.2)
    model = icl.Merged.initialiser(task, heads=2, scale=1.5)(KEY)
    loss = jax.jit(lambda key: icl.Sequences.sample(task, 500, key)(model))
    estimates = np.array([loss(jax.random.key(s)) for s in range(40)])
    assert abs(standardised(estimates, icl.Population(task)(model))) < 4
    normal = task.replace(tasks=icl.Normal())  # the same second moment: the same population
    np.testing.assert_allclose(
        icl.Population(task)(model), icl.Population(normal)(model), rtol=1e-12
    )


def test_the_posterior_of_sparse_tasks_is_that_of_all_supports():
    """Against a sum over supports written out, and better than ridge and lasso."""
    task = icl.Task([1.0] * 6, 5, tasks=icl.Sparse(2), label_noise=0.1)
    predictor, prompt = bayes_predictor(task), task.sample(KEY)
    x, y = np.asarray(prompt.inputs[:5]), np.asarray(prompt.labels[:5, 0])
    weights, guesses = [], []
    for support in itertools.combinations(range(6), 2):
        part = x[:, list(support)]
        covariance = part @ part.T + 0.01 * np.eye(5)
        weights.append(
            -0.5 * y @ np.linalg.solve(covariance, y) - 0.5 * np.linalg.slogdet(covariance)[1]
        )
        mean = part.T @ np.linalg.solve(covariance, y)
        guesses.append(np.asarray(prompt.query)[list(support)] @ mean)
    share = np.exp(np.array(weights) - max(weights))
    wanted = share @ guesses / share.sum()
    np.testing.assert_allclose(predictor(prompt)[0], wanted, rtol=1e-9)
    kinds = {"bayes": predictor, "lasso": Lasso(0.05), "ridge": icl.theory.Ridge(0.01)}
    losses = {name: monte_carlo_loss(one, task, 1500, KEY) for name, one in kinds.items()}
    assert losses["bayes"].mean + 3 * losses["bayes"].error < losses["lasso"].mean
    assert losses["lasso"].mean < losses["ridge"].mean
    short = prompt.prefix(3)
    cut = icl.Prompt(prompt.inputs[:4], prompt.labels[:4], prompt.targets[:4])
    np.testing.assert_allclose(predictor(short), predictor(cut), rtol=1e-9)


def test_the_lasso_is_at_its_minimum():
    task = icl.Task([1.0] * 6, 8, tasks=icl.Sparse(2), label_noise=0.3)
    prompt, lasso = task.sample(KEY), Lasso(0.1, steps=3000)
    w = np.asarray(lasso.weights(prompt))[:, 0]
    x, y = np.asarray(prompt.inputs[:8]), np.asarray(prompt.labels[:8, 0])
    slope = x.T @ (y - x @ w) / 8
    np.testing.assert_allclose(slope[w != 0], 0.1 * np.sign(w[w != 0]), atol=1e-8)
    assert np.all(np.abs(slope[w == 0]) <= 0.1)
    assert 0 < np.sum(w == 0) < 6


FUNCTIONS = {
    "networks": lambda **o: icl.TwoLayerNetworks(3, 24, hidden=3, **o),
    "trees": lambda **o: icl.DecisionTrees(3, 24, depth=2, **o),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_covariance_of_functions_is_that_of_draws(name):
    task = FUNCTIONS[name]()
    x = jax.random.normal(KEY, (5, 3)).at[4].set(jnp.array([1.0, -1.0, 2.0]))
    keys = jax.random.split(KEY, 8000)
    values = np.asarray(jax.jit(jax.vmap(lambda k: task.values(x, k)))(keys))
    assert np.abs(standardised(values, np.zeros(5))).max() < 4.5
    products = np.einsum("na,nb->nab", values, values)
    assert np.abs(standardised(products, task.covariance(x, x))).max() < 4.5


def test_a_tree_asks_for_signs_alone():
    task = icl.DecisionTrees(2, 3, depth=1)
    x = jnp.array([[0.1, 0.2], [3.0, 0.4], [-1.0, 5.0], [-0.1, -2.0]])
    for seed in range(6):
        values = np.asarray(task.values(x, jax.random.key(seed)))
        assert values[0] == values[1]
        assert len(np.unique(values)) == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_predictor_linear_in_the_labels_is_better(name):
    """Kernel regression has the loss that its posterior says, and another kernel a larger one."""
    task = FUNCTIONS[name](label_noise=0.3)
    predictor = kernel_predictor(task)

    def risk(prompt):
        """k(x, x) - k K⁻¹ kᵀ, the mean squared error given the inputs."""
        inputs, query = prompt.inputs[:-1], prompt.query[None]
        gram = task.covariance(inputs, inputs) + 0.09 * jnp.eye(24)
        read = task.covariance(query, inputs)[0]
        return task.covariance(query, query)[0, 0] - read @ jnp.linalg.solve(gram, read)

    prompts = icl.PromptSet(task, KEY, 3000, exact=False).prompts()
    differences = jax.jit(jax.vmap(lambda p: (p.target[0] - predictor(p)[0]) ** 2 - risk(p)))(
        prompts
    )
    assert abs(standardised(np.asarray(differences), 0.0)) < 4
    plain = monte_carlo_loss(icl.theory.Ridge(0.09), task, 3000, KEY)
    best = monte_carlo_loss(predictor, task, 3000, KEY)
    assert best.mean + 3 * best.error < plain.mean
    prompt = task.sample(KEY)
    cut = icl.Prompt(prompt.inputs[:8], prompt.labels[:8], prompt.targets[:8])
    np.testing.assert_allclose(predictor(prompt.prefix(7)), predictor(cut), rtol=1e-8)


def test_losses_take_functions_by_the_contract_of_tasks():
    task = icl.DecisionTrees(3, 5, lengths=(2, 5))
    model = icl.Transformer.initialiser(task, layers=1, width=8, causal=True)(KEY)
    loss = icl.Fresh(task, icl.Sequences.sample(task, 8, KEY), 4)
    run = icl.simulate(loss, model, icl.Descent(0.01, icl.Adam()), saveat=[0, 3])
    assert np.isfinite(run.loss).all()
    with pytest.raises(ValueError, match="for the linear regression of a Task"):
        icl.Population(task)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: icl.Task([1.0, 1.0], 3, tasks=icl.Sparse(3)), "2 entries cannot have 3"),
        (lambda: icl.Sparse(0), "not zero"),
        (lambda: icl.Sparse(1, variance=-1.0), "variance"),
        (lambda: icl.TwoLayerNetworks(3, 4, hidden=0), "hidden units"),
        (lambda: icl.DecisionTrees(3, 4, depth=40), "2\\^40 leaves"),
        (lambda: icl.DecisionTrees(3, 4, lengths=(5,)), "between 1 and 4"),
        (lambda: icl.DecisionTrees(3, 4, label_noise=-1.0), "label noise"),
        (lambda: bayes_predictor(icl.Task([1.0] * 40, 4, tasks=icl.Sparse(8))), "use theory.Lasso"),
        (lambda: Lasso(-1.0), "penalty"),
    ],
)
def test_bad_laws_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
