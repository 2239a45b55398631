import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate, Softmax
from tests.helpers.cases import (
    KEY,
    MODELS,
    NETWORKS,
    TASKS,
    filled,
    literal_attention,
    softmax,
    stacked,
)


@pytest.mark.parametrize("task_name", ["plain", "noise", "lengths", "outputs", "heavy"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("blocks", Blocks)
def test_query_row_is_the_whole_layer(task_name, name, blocks):
    """The bottom-right entry of the full attention map (5)(6)(7), without the blocks (M)(S)."""
    task = TASKS[task_name]()
    model = filled(MODELS[name](task, blocks, 0.5)(KEY))
    prompt = task.sample(KEY)
    for shown in (prompt, prompt.prefix(4)):
        np.testing.assert_allclose(model(shown), literal_attention(model, shown), atol=1e-13)


@pytest.mark.parametrize("inner", [Merged, Separate])
def test_softmax_is_the_whole_layer(inner):
    task = TASKS["noise"]()
    model = Softmax(filled(inner.initialiser(task, heads=3, scale=1.0, blocks=Blocks.FULL)(KEY)))
    prompt = task.sample(KEY)
    for shown in (prompt, prompt.prefix(4)):
        np.testing.assert_allclose(model(shown), literal_attention(model, shown), atol=1e-13)


def test_softmax_without_the_query_among_its_keys():
    """Weights over the labelled pairs alone, written out; prefixes too."""
    task = TASKS["noise"]()
    attention = filled(Merged.initialiser(task, heads=2, scale=1.0)(KEY))
    model = Softmax(attention, query_key=False)
    prompt = task.sample(KEY)
    for count in (9, 4):
        x, y = np.asarray(prompt.inputs[:count]), np.asarray(prompt.labels[:count, 0])
        query = np.asarray(prompt.inputs[count])
        scores = np.exp(np.einsum("nd,hdc,c->hn", x, attention.merged, query))
        expected = np.sum(attention.values[:, 0, 0] * (scores @ y) / scores.sum(axis=1))
        shown = prompt if count == 9 else prompt.prefix(count)
        np.testing.assert_allclose(model(shown)[0], expected, rtol=1e-12)
    made = Softmax.initialiser(task, heads=2, scale=1.0, query_key=False)(KEY)
    assert made.query_key is False


@pytest.mark.parametrize("task_name", ["plain", "outputs", "lengths"])
def test_networks_are_attention(task_name):
    """MLP = merged (11)(12) and convolutions = separate (Section 4.1), prompt by prompt."""
    task = TASKS[task_name]()
    prompts = stacked(task.sample, 20)
    merged = Merged.initialiser(task, heads=3, scale=1.0)(KEY)
    separate = Separate.initialiser(task, heads=3, rank=2, scale=1.0)(KEY)
    for attention, network in (
        (merged, MLP.from_attention(merged)),
        (separate, ConvNet.from_attention(separate)),
    ):
        np.testing.assert_allclose(
            jax.vmap(network)(prompts), jax.vmap(attention)(prompts), atol=1e-14
        )
        assert jax.tree.all(jax.tree.map(jnp.array_equal, network.as_attention(), attention))


@pytest.mark.parametrize("name", [*MODELS, *NETWORKS])
def test_weights_on_features(name):
    """The effective weights reproduce the prediction from S and x_q."""
    task = TASKS["outputs"]()
    if name in MODELS:
        model = filled(MODELS[name](task, Blocks.FULL, 0.5)(KEY))
    else:
        model = NETWORKS[name](task, 0.5)(KEY)
    prompt = task.sample(KEY)
    weights = model.effective_weights()
    value = jnp.einsum("oabc,ab,c->o", weights, prompt.second_moment, prompt.query)
    np.testing.assert_allclose(value, model(prompt), atol=1e-14)
    size = task.size
    reduced = weights[:, size:, :size, :]
    if name in NETWORKS:
        np.testing.assert_allclose(model.reduced_weights(), reduced, atol=1e-15)


def test_rank_r_is_tied_rank_one_heads():
    """Rank R with H heads equals R·H rank-one heads (18) that share values (Section 2.4)."""
    task = TASKS["plain"]()
    model = Separate.initialiser(task, heads=2, rank=3, scale=1.0)(KEY)
    tied = Separate(
        jnp.repeat(model.values, 3, axis=0),
        model.keys.reshape(6, 1, -1),
        model.queries.reshape(6, 1, -1),
    )
    prompt = task.sample(KEY)
    np.testing.assert_allclose(model(prompt), tied(prompt), atol=1e-15)


@pytest.mark.parametrize("name", MODELS)
def test_init_scale_is_the_norm_of_every_layer(name):
    """(34)-(37): the expected squared norm of each layer is w²."""
    init = MODELS[name](TASKS["outputs"](), Blocks.FULL, 0.3)
    models = stacked(init, 4000)
    for field in ("values", "merged", "keys", "queries"):
        if hasattr(models, field):
            squared = jnp.sum(getattr(models, field) ** 2, axis=(1, 2, 3))
            error = squared.std() / 4000**0.5
            assert abs(squared.mean() - 0.09) < 5 * error
    assert jnp.all(models.value_inputs == 0)
    assert jnp.all(models.key_labels == 0)


@pytest.mark.parametrize("sizes", [{"heads": 0}, {"heads": -1}, {"heads": 2, "rank": 0}])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        Separate.initialiser(TASKS["plain"](), **{"rank": 1, **sizes}, scale=0.1)


def test_softmax_ignores_the_normaliser():
    task = TASKS["heavy"]()
    model = softmax(task)(KEY)
    prompt = task.sample(KEY)
    np.testing.assert_allclose(model(prompt), literal_attention(model, prompt), atol=1e-14)
