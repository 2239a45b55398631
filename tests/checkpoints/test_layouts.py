"""Circuits of every family against what the libraries' own attention computes."""

import equinox as eqx
import jax
import numpy as np
import pytest

from iclflow.checkpoints import Arrays, CheckpointError, NoAttentionError, find_layout
from iclflow.checkpoints.monitor import named_arrays
from tests.helpers.tiny_models import MODELS, OTHERS, record_any, recorded

RECORDED = recorded()
FAMILIES = {
    "gpt2": "GPT-2",
    "gpt_neox": "GPT-NeoX",
    "bloom": "BLOOM or Falcon",
    "phi3": "Phi-3",
    "deepseek_v3": "DeepSeek",
    "bigcode_one_key": "GPTBigCode",
    "bigcode_all_keys": "GPTBigCode",
    "t5_across": "T5",
    "t5gemma_encoder": "Llama",
    "lens_of_gpt2": "TransformerLens bridge",
    "flax": "Flax",
    "torch": "PyTorch",
}


def attend(found, source, layout):
    """Attention and output of the layer, from QK and OV of its heads."""
    heads = layout.heads_of(source, layout.layers[0])
    scores = found.scale * np.einsum(
        "nd,hdr,hrk,mk->hnm", found.x, heads.qk.left, heads.qk.right, found.memory
    )
    if found.causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:])) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    written = np.einsum(
        "hnm,md,hdr,hrk->nk", weights, found.memory, heads.ov.left, heads.ov.right, optimize=True
    )
    return weights, written


def check(found):
    source = Arrays(found.tensors, found.config)
    layout = find_layout(source, stack=found.stack or None)
    weights, written = attend(found, source, layout)
    # the libraries compute in single precision
    np.testing.assert_allclose(weights, found.pattern, atol=3e-6)
    np.testing.assert_allclose(written, found.written, atol=3e-5)
    assert np.ptp(found.pattern[:, -1]) > 0.05  # attention that is not uniform


@pytest.mark.parametrize("name", RECORDED)
def test_circuits_give_the_recorded_attention(name):
    check(RECORDED[name])


@pytest.mark.filterwarnings("ignore")  # those of the libraries
@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_circuits_give_the_attention_of_the_library(name, monkeypatch):
    library = {"lens": "transformer_lens", "lens_of_gpt2": "transformer_lens", "flax": "flax"}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for needed in ("torch", library.get(name, "transformers")):
        pytest.importorskip(needed, reason=f"{needed} is not needed by the package")
    found = record_any(name)
    check(found)
    # the recording is of these models
    np.testing.assert_allclose(found.pattern, RECORDED[name].pattern, atol=1e-5)


def test_every_recording_is_of_a_model_there_is():
    assert set(RECORDED) == {*MODELS, *OTHERS}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_family_is_named(name):
    found = RECORDED[name]
    source = Arrays(found.tensors, found.config)
    assert find_layout(source, stack=found.stack or None).family == FAMILIES[name]


def test_a_model_of_several_stacks_asks_which():
    found = RECORDED["t5gemma_encoder"]
    source = Arrays(found.tensors, found.config)
    with pytest.raises(CheckpointError, match=r"3 stacks of attention layers, model\.decoder") as e:
        find_layout(source, heads=4)
    assert "model.encoder.layers.*.self_attn" in str(e.value)
    assert find_layout(source, stack="encoder").stack == "model.encoder.layers.*.self_attn."
    with pytest.raises(CheckpointError, match="'decoder' names 2 of them"):
        find_layout(source, stack="decoder")
    bart = RECORDED["bart_encoder"]
    source = Arrays(bart.tensors, bart.config)
    heads = [find_layout(source, stack=s).heads for s in ("encoder.layers", "encoder_attn")]
    assert heads == [2, 4]


def test_an_equinox_module_is_read_with_its_number_of_heads():
    module = eqx.nn.MultiheadAttention(2, 6, key=jax.random.key(0))
    source = Arrays(named_arrays(module))
    with pytest.raises(CheckpointError, match="Equinox names, but the number of heads"):
        find_layout(source)
    layout = find_layout(source, heads=2)
    x = np.asarray(jax.random.normal(jax.random.key(1), (5, 6)))
    heads = layout.heads_of(source, 0)
    scores = np.einsum("nd,hdr,hrk,mk->hnm", x, heads.qk.left, heads.qk.right, x) / np.sqrt(3)
    weights = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    written = np.einsum("hnm,md,hdr,hrk->nk", weights, x, heads.ov.left, heads.ov.right)
    np.testing.assert_allclose(written, module(x, x, x), atol=1e-12)


def test_weights_of_nano_gpt_are_blocks_of_linear_layers():
    """The recorded GPT-2 with its matrices transposed, as `nn.Linear` stores them."""
    found = RECORDED["gpt2"]
    turned = {n: v.T if v.ndim == 2 else v for n, v in found.tensors.items()}
    check(found._replace(tensors=turned))
    kernels = {n.replace(".weight", ".kernel"): v for n, v in turned.items()}
    check(found._replace(tensors=kernels))  # as Flax models of transformers store them


def test_dense_kernels_are_stored_the_other_way_round():
    found = RECORDED["llama"]
    kernels = {n.replace(".weight", ".kernel"): v.T for n, v in found.tensors.items()}
    check(found._replace(tensors=kernels))


def test_own_factors_are_passed_under_four_names():
    rng = np.random.default_rng(0)
    mine = {f"blocks.0.attn.W_{c}": rng.normal(size=(2, 6, 3)) for c in "QKV"}
    mine["blocks.0.attn.W_O"] = rng.normal(size=(2, 3, 6))
    source = Arrays(mine)
    layout = find_layout(source)
    product = np.asarray(layout.heads_of(source, 0).ov.left[1]) @ mine["blocks.0.attn.W_O"][1]
    wanted = mine["blocks.0.attn.W_V"][1] @ mine["blocks.0.attn.W_O"][1]
    np.testing.assert_allclose(product, wanted, atol=1e-12)


def test_notes_tell_what_a_file_holds():
    def notes(name, **changed):
        found = RECORDED[name]
        source = Arrays({**found.tensors, **changed}, found.config)
        return find_layout(source, stack=found.stack or None).notes(source)

    lens = {f"blocks.0.attn.W_{c}": np.ones((2, 6, 3)) for c in "QKV"}
    lens |= {"blocks.0.attn.W_O": np.ones((2, 3, 6)), "blocks.0.attn.b_Q": np.zeros((2, 3))}
    source = Arrays(lens | {"blocks.0.attn.rotary_sin": np.ones((8, 3))})
    found = find_layout(source).notes(source)
    assert found["biases"] == "stored, all zero"
    assert found["positions"].startswith("rotary")
    assert found["layer norm"].startswith("no gains stored: folded")
    gains = {"blocks.0.ln1.w": np.full(6, 2.0), "blocks.0.attn.b_Q": np.ones((2, 3))}
    found = find_layout(Arrays(lens)).notes(Arrays(lens | gains))
    assert found["layer norm"] == "gains not folded in"
    assert found["biases"] == "present, not included: b_Q"
    assert found["positions"].startswith("not rotary")
    assert notes("lens")["layer norm"].startswith("all gains are 1")
    assert notes("falcon_groups")["grouped query"] == "4 query heads share 2 key-value heads"
    assert "relative positions" in notes("t5_encoder")["positions"]


def test_a_bridge_that_cannot_be_told_apart_is_refused():
    found = RECORDED["lens_of_gpt2"]
    square = found.tensors | {"blocks.0.mlp.in.weight": np.ones((8, 8))}
    source = Arrays(square, found.config)
    with pytest.raises(CheckpointError, match="is square, so it cannot be told"):
        find_layout(source).heads_of(source, 0)


def test_what_is_no_attention_is_said_so():
    with pytest.raises(NoAttentionError, match=r"the names begin with: conv\.weight"):
        find_layout(Arrays({"conv.weight": np.ones((3, 3))}))
