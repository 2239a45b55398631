"""Transformers on prompts: the layers written out in NumPy, both layouts, and training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import erf, softmax

import iclflow as icl

KEY = jax.random.key(4)
TASK = icl.Task([0.6, 0.3], 5, label_noise=0.2)


def model_of(task=TASK, **options):
    options = {"precision": "float64", **options}
    model = icl.Transformer.initialiser(task, layers=2, heads=2, width=8, **options)(KEY)
    keys = jax.random.split(jax.random.fold_in(KEY, 1), 20)
    weights = model.weights().items()
    moved = {
        n: a + 0.1 * jax.random.normal(k, a.shape) for (n, a), k in zip(weights, keys, strict=False)
    }
    return model.with_weights(moved)


def literal(model, tokens, visible):
    """The reading of every token, in loops; gelu is that of tanh, as JAX has it by default."""
    norm = lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5) if model.norm else x  # noqa: E731
    w = {name: np.asarray(array) for name, array in model.weights().items()}
    x = tokens @ w["embedding"]
    if "positions" in w:
        x = x + w["positions"][: len(x)]
    layers, heads, _, size = w["query"].shape
    for layer in range(layers):
        seen, change = np.stack([norm(row) for row in x]), np.zeros_like(x)
        for head in range(heads):
            q, k, v = (seen @ w[n][layer, head] for n in ("query", "key", "value"))
            for i in range(len(x)):
                p = softmax(np.where(visible[i], q[i] @ k.T / np.sqrt(size), -np.inf))
                change[i] += (p @ v) @ w["output"][layer, head]
        x = x + change
        if "up" in w:
            inner = np.stack([norm(row) for row in x]) @ w["up"][layer] + w["up_bias"][layer]
            gelu = inner / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
            assert np.abs(gelu - inner / 2 * (1 + erf(inner / np.sqrt(2)))).max() < 1e-3
            x = x + gelu @ w["down"][layer] + w["down_bias"][layer]
    return np.stack([norm(row) for row in x]) @ w["reading"]


@pytest.mark.parametrize("options", [{}, {"mlp": 2}, {"norm": False, "mlp": 1}])
def test_pairs_are_the_layers_written_out(options):
    model, prompt = model_of(**options), TASK.sample(KEY)
    tokens = np.asarray(prompt.tokens)
    wanted = literal(model, tokens, np.ones((6, 6), bool))[-1]
    np.testing.assert_allclose(model(prompt), wanted, rtol=1e-10)
    short = literal(model, np.asarray(prompt.prefix(3).tokens)[:4], np.ones((4, 4), bool))[-1]
    np.testing.assert_allclose(model(prompt.prefix(3)), short, rtol=1e-10)
    order = jnp.array([3, 1, 4, 0, 2, 5])
    turned = jax.tree.map(lambda a: a[order], prompt)
    np.testing.assert_allclose(model(turned), model(prompt), rtol=1e-10)


def test_a_stream_reads_what_came_before():
    model, prompt = model_of(mlp=2, causal=True), TASK.sample(KEY)
    x, y = np.asarray(prompt.inputs), np.asarray(prompt.labels)
    tokens = np.zeros((11, 3))
    tokens[::2, :2], tokens[1::2, 2:] = x, y[:-1]
    wanted = literal(model, tokens, np.tril(np.ones((11, 11), bool)))[::2]
    found = model.along(prompt)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    np.testing.assert_allclose(model(prompt), found[-1], rtol=1e-12)
    np.testing.assert_allclose(model(prompt.prefix(2)), found[2], rtol=1e-12)
    changed = eqx.tree_at(lambda p: p.labels, prompt, prompt.labels.at[3].add(1.0))
    moved = np.abs(np.asarray(model.along(changed) - found))[:, 0]
    np.testing.assert_array_equal(moved > 1e-9, [False] * 4 + [True] * 2)


def test_one_pass_is_the_loss_of_all_lengths():
    task = TASK.replace(lengths=(1, 3, 5))
    model = model_of(task, causal=True)
    loss = icl.Sequences.sample(task, 4, KEY)
    each = [icl.Sequences.of(loss.prompts, lengths=(n,))(model) for n in (1, 3, 5)]
    np.testing.assert_allclose(loss(model), np.mean(each), rtol=1e-12)
    softmax_model = icl.Softmax.initialiser(task, heads=2, scale=0.5)(KEY)
    prompt = task.sample(KEY)
    np.testing.assert_allclose(
        softmax_model.along(prompt)[3], softmax_model(prompt.prefix(3)), rtol=1e-12
    )


def test_it_trains_in_single_precision_over_seeds():
    task = TASK.replace(lengths=(1, 3, 5))
    init = icl.Transformer.initialiser(task, layers=1, heads=2, width=8, causal=True)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(init(KEY))} == {"float32"}
    whole = icl.Sequences.sample(task, 64, KEY)
    rate = optax.linear_schedule(0.0, 0.01, 20)
    loss = icl.Fresh(task, whole, 32)
    runs = icl.sweep(
        loss, init, icl.Descent(rate, icl.Adam()), until=150, seeds=2, record=["loss", "weights"]
    )
    assert runs["query"].dtype == np.float32
    top = icl.sharpness(whole, init(KEY))  # in double precision elsewhere
    assert np.isfinite(top)
    assert np.all(runs["loss"][:, -1] < 0.9 * runs["loss"][:, 0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 3, "width": 8}, "multiple of the heads, got 8 and 3"),
        ({"layers": 0}, "layers"),
        ({"mlp": -1}, "mlp"),
        ({"precision": "half"}, "float32 or float64"),
    ],
)
def test_bad_sizes_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        icl.Transformer.initialiser(TASK, **options)


def test_positions_say_how_long_a_context_may_be():
    with pytest.raises(ValueError, match="needs the context"):
        icl.Transformer.initialiser(2, causal=True)
    model = icl.Transformer.initialiser(TASK, causal=True, width=8)(KEY)
    with pytest.raises(ValueError, match="6 pairs are 13 tokens, more than the 11 positions"):
        model(TASK.replace(context=6).sample(KEY))
    with pytest.raises(ValueError, match="causal=True"):
        model_of().along(TASK.sample(KEY))
