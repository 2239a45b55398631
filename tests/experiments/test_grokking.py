"""Modular addition: the transformer against NumPy, the loss, the split, the progress measures."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.experiments.grokking import claims as grokking_claims
from iclflow.experiments.grokking import data as grokking
from iclflow.experiments.runs import at
from iclflow.models import draw_models
from iclflow.transformers.modular import (
    ModularArithmetic,
    ModularInitialiser,
    cross_entropies,
    split_pairs,
)

P, WIDTH, HEADS, HIDDEN = 11, 6, 2, 10
ENTROPY = jax.jit(jax.value_and_grad(lambda logits, y: jnp.sum(cross_entropies(logits, y))))
TINY = grokking.Preset(P, WIDTH, HEADS, HIDDEN, (("subtraction", 0.5),), 1e-3, 20, (0, 1))


@pytest.fixture(scope="module")
def model():
    """Gaussian in double precision, biases too."""
    shapes = eqx.filter_eval_shape(
        ModularInitialiser(P, WIDTH, HEADS, HIDDEN, "float64"), jax.random.key(3)
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: jnp.asarray(0.5 * rng.normal(size=a.shape)), shapes)


@pytest.fixture(scope="module")
def losses():
    return split_pairs(P, 0.5, jax.random.key(1))


def forward(model, tokens):
    """Logits at the last token, one loop at a time."""
    w = {field.name: np.asarray(getattr(model, field.name)) for field in dataclasses.fields(model)}
    x = np.array([w["embedding"][t] + w["positions"][i] for i, t in enumerate(tokens)])
    new = x.copy()
    for h in range(w["query"].shape[0]):
        for i in range(3):
            q = x[i] @ w["query"][h]
            scores = [q @ (x[j] @ w["key"][h]) / np.sqrt(q.size) for j in range(i + 1)]
            weights = np.exp(scores) / np.sum(np.exp(scores))
            for j in range(i + 1):
                new[i] += weights[j] * (x[j] @ w["value"][h] @ w["output"][h])
    last = new[2]
    active = np.maximum(last @ w["hidden"] + w["hidden_bias"], 0)
    return (last + active @ w["readout"] + w["readout_bias"]) @ w["unembedding"]


def by_definition(model, loss):
    """The loss through the model as it is defined, one example at a time."""
    equals = jnp.full_like(loss.first, loss.modulus)
    logits = jax.vmap(model)(jnp.stack([loss.first, loss.second, equals], axis=1))
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), loss.answers[:, None], axis=1))


def test_both_forms_are_the_literal_forward(model, losses):
    pairs = np.stack([losses[0].first, losses[0].second], axis=1)
    wanted = np.array([forward(model, (a, b, P)) for a, b in pairs])
    batched = jax.jit(lambda m: m.logits(losses[0].first, losses[0].second))(model)
    np.testing.assert_allclose(batched, wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        jax.jit(model.__call__)(jnp.array([*pairs[0], P])), wanted[0], rtol=0, atol=1e-12
    )


def test_gradient(model, losses):
    loss = losses[0]
    value, gradient = jax.jit(jax.value_and_grad(lambda m: loss(m)))(model)
    literal, wanted = jax.jit(jax.value_and_grad(lambda m: by_definition(m, loss)))(model)
    np.testing.assert_allclose(value, literal, rtol=1e-13)
    for name, found, needed in zip(
        [field.name for field in dataclasses.fields(model)],
        jax.tree.leaves(gradient),
        jax.tree.leaves(wanted),
        strict=True,
    ):
        assert np.abs(needed).max() > 1e-4, name  # nothing is left out
        np.testing.assert_allclose(found, needed, rtol=0, atol=1e-13, err_msg=name)
    # and autodiff against differences, along a random direction
    rng = np.random.default_rng(1)
    way = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), model)
    moved = eqx.filter_jit(lambda h: loss(jax.tree.map(lambda a, b: a + h * b, model, way)))
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: float(np.sum(g * d)), gradient, way)))
    step = 1e-5
    assert (float(moved(step)) - float(moved(-step))) / (2 * step) == pytest.approx(slope, rel=1e-7)


def test_split_is_disjoint_whole_and_from_its_key():
    train, test = split_pairs(113, 0.3, jax.random.key(0))
    assert (train.first.size, test.first.size) == (3830, 113**2 - 3830)
    numbers = [np.asarray(part.first) * 113 + np.asarray(part.second) for part in (train, test)]
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(113**2))
    again, other = (split_pairs(113, 0.3, jax.random.key(k))[0] for k in (0, 1))
    np.testing.assert_array_equal(train.first, again.first)
    assert not np.array_equal(train.first, other.first)
    # about as many sums of each kind: the split knows nothing of the answer
    counts = np.bincount(np.asarray(train.answers), minlength=113)
    assert np.sum((counts - 3830 / 113) ** 2 / (3830 / 113) / 0.7) < 112 + 5 * np.sqrt(2 * 112)


@pytest.mark.parametrize(
    ("operation", "of"),
    [("addition", lambda a, b: a + b), ("subtraction", lambda a, b: a - b),
     ("multiplication", lambda a, b: a * b)],
)  # fmt: skip
def test_answers_are_those_of_the_operation(operation, of):
    train, test = split_pairs(7, 0.4, jax.random.key(0), operation)
    for part in (train, test):
        pairs = zip(part.first.tolist(), part.second.tolist(), part.answers.tolist(), strict=True)
        assert all(of(a, b) % 7 == answer for a, b, answer in pairs)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("margin", [-30.0, 0.0, 3.0, 25.0, 60.0])
def test_cross_entropy_keeps_relative_precision(precision, margin):
    answer, size = 2, 11
    logits = np.where(np.arange(size) == answer, margin, 0.0)[None].astype(precision)
    value, gradient = ENTROPY(logits, np.array([answer]))
    rest = (size - 1) * np.exp(-margin)  # odds of the other answers
    tolerance = 20 * float(np.finfo(precision).eps)
    assert float(value) == pytest.approx(np.log1p(rest), rel=tolerance)
    assert float(gradient[0, answer]) == pytest.approx(-rest / (1 + rest), rel=tolerance)
    assert abs(float(np.sum(gradient))) <= tolerance * rest / (1 + rest)


def test_accuracy_and_admission(model, losses):
    train, test = losses
    right = [np.argmax(forward(model, (a, b, P))) == (a + b) % P for a, b in zip(
        np.asarray(test.first), np.asarray(test.second), strict=True)]  # fmt: skip
    assert float(eqx.filter_jit(test.accuracy)(model)) == pytest.approx(np.mean(right))
    assert train.admits(model) is None
    other = ModularArithmetic(train.first, train.second, train.answers, P + 1)
    with pytest.raises(ValueError, match="the model answers modulo 11, the pairs are modulo 12"):
        other.require(model)
    with pytest.raises(ValueError, match=r"fraction between 0 and 1, got 113 and 1\.2"):
        split_pairs(113, 1.2, jax.random.key(0))
    with pytest.raises(ValueError, match=r"the operation is one of addition, .* got 'division'"):
        split_pairs(7, 0.3, jax.random.key(0), "division")
    with pytest.raises(ValueError, match="multiple of the heads, got 10 and 4"):
        ModularInitialiser(width=10)


def test_tensors_have_all_weights_and_names_diagnose_reads(model):
    named = model.tensors()
    assert sum(tensor.size for tensor in named.values()) == sum(
        leaf.size for leaf in jax.tree.leaves(model)
    )
    assert named["blocks.0.attn.W_O"].shape == (HEADS, WIDTH // HEADS, WIDTH)
    np.testing.assert_allclose(
        model.circuits()["OV"].left[1] @ model.circuits()["OV"].right[1],
        named["blocks.0.attn.W_V"][1] @ named["blocks.0.attn.W_O"][1],
    )
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)])
    assert float(jax.jit(lambda m: m.weight_norm())(model)) == pytest.approx(
        np.linalg.norm(flat), rel=1e-14
    )


def test_small_preset_starts_where_it_did():
    """Losses and norms at step 0, as recorded with JAX 0.10.2: the seeds, the split, the scales."""
    small = grokking.SMALL
    ((task, fraction),) = small.tasks
    split = jax.random.key(grokking.SPLIT_KEYS[task])
    losses = split_pairs(small.modulus, fraction, split, task)
    init = ModularInitialiser(small.modulus, small.width, small.heads, small.hidden)
    found = eqx.filter_jit(lambda m: [losses[0](m), losses[1](m), m.weight_norm()])
    recorded = (
        (4.0200601, 4.0177026, 23.435898),
        (4.0348845, 4.0452552, 23.589651),
        (3.9935777, 4.0066123, 23.589451),
    )
    models = draw_models(init, small.seeds)
    for seed, wanted in enumerate(recorded):
        np.testing.assert_allclose(found(at(models, seed)), wanted, rtol=1e-5)


@pytest.mark.slow
def test_training_reproduces_and_resumes(tmp_path):
    ((task, fraction),) = TINY.tasks
    first = grokking.run_preset(TINY, task, fraction, folder=tmp_path)
    again = grokking.run_preset(TINY, task, fraction, folder=tmp_path)
    fresh = grokking.run_preset(TINY, task, fraction)
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name], err_msg=name)
        if name != "bases":  # singular vectors have either sign
            np.testing.assert_allclose(values, fresh[name], rtol=1e-4, atol=1e-4, err_msg=name)
    assert np.all(first["train_loss"][:, -1] < first["train_loss"][:, 0])
    assert sorted(path.name for path in tmp_path.rglob("seed-*")) == ["seed-0", "seed-1"]


@pytest.mark.slow
def test_small_preset_groks():
    data = grokking.compute(quick=True)
    one = data.sel(task="addition")
    assert list(data["seed"].values) == list(grokking.SMALL.seeds)
    assert np.all(one["train_accuracy"][:, -1] == 1)
    assert np.all(one["test_accuracy"][:, -1] > 0.95)
    at = [int(np.flatnonzero(row == 1)[0]) for row in one["train_accuracy"].values]
    when_memorised = one["test_accuracy"].values[np.arange(data.sizes["seed"]), at]
    assert np.all(when_memorised < 0.5)
    assert np.all(data["grokked"] >= 5 * data["memorised"])
    verdicts = {claim.id: claim.holds for claim in grokking_claims.claims(data)}
    assert verdicts["lt-grok-generalises"]
    assert verdicts["lt-grok-delay"]
