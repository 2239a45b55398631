# ruff: noqa: C408 (settings are written as they are in the libraries)
"""Tiny random models of other people's libraries: their attention weights, and what they compute.

`python tests/helpers/tiny_models.py` (with torch, transformers, transformer_lens, flax) writes
tests/data/attention.npz, which the tests read where these are not installed.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RECORDED = Path(__file__).parents[1] / "data" / "attention.npz"
V, N = 13, 5  # words, tokens


class Recording(NamedTuple):
    """Weights of one layer; its inputs; attention [H, n, m] and what the heads write, [n, d]."""

    config: dict[str, Any]
    tensors: dict[str, np.ndarray]
    x: np.ndarray
    memory: np.ndarray  # where keys and values are read: x, but in cross-attention
    pattern: np.ndarray
    written: np.ndarray
    scale: float
    causal: bool
    stack: str = ""


SMALL = dict(vocab_size=V, hidden_size=8, num_hidden_layers=1, intermediate_size=12)
LLAMA = SMALL | dict(num_attention_heads=4, num_key_value_heads=2)
GPT = dict(vocab_size=V, n_embd=8, n_layer=1, n_head=2, n_positions=8)
FALCON = dict(vocab_size=V, hidden_size=8, num_hidden_layers=1)
LATENT = SMALL | dict(
    num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=5, qk_nope_head_dim=4,
    qk_rope_head_dim=2, v_head_dim=3, moe_intermediate_size=8, n_routed_experts=2,
    first_k_dense_replace=1, n_group=1, topk_group=1, num_experts_per_tok=1,
)  # fmt: skip
BART = dict(
    vocab_size=V, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=4, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=8,
)  # fmt: skip
T5 = dict(vocab_size=V, d_model=8, d_kv=3, num_layers=1, num_heads=2, d_ff=8)
GEMMA = LLAMA | dict(head_dim=4)

# name -> class, settings, attention module, its query, key and output projections
MODELS: dict[str, tuple[str, dict, str, str, str, str]] = {
    "gpt2": ("GPT2", GPT, "transformer.h.0.attn", "c_attn", "c_attn", "c_proj"),
    "gpt_neox": ("GPTNeoX", SMALL | dict(num_attention_heads=2), "gpt_neox.layers.0.attention",
                 "query_key_value", "query_key_value", "dense"),
    "llama": ("Llama", LLAMA, "model.layers.0.self_attn", "q_proj", "k_proj", "o_proj"),
    "opt": ("OPT", SMALL | dict(num_attention_heads=2, ffn_dim=8, word_embed_proj_dim=8),
            "model.decoder.layers.0.self_attn", "q_proj", "k_proj", "out_proj"),
    "phi": ("Phi", LLAMA | dict(hidden_size=16), "model.layers.0.self_attn", "q_proj", "k_proj",
            "dense"),
    "phi3": ("Phi3", LLAMA | dict(pad_token_id=0, eos_token_id=1), "model.layers.0.self_attn",
             "qkv_proj", "qkv_proj", "o_proj"),
    "gptj": ("GPTJ", GPT | dict(rotary_dim=2), "transformer.h.0.attn", "q_proj", "k_proj",
             "out_proj"),
    "gpt_neo": ("GPTNeo", dict(vocab_size=V, hidden_size=8, num_layers=1, num_heads=2,
                               attention_types=[[["global"], 1]], intermediate_size=8),
                "transformer.h.0.attn.attention", "q_proj", "k_proj", "out_proj"),
    "bloom": ("Bloom", dict(vocab_size=V, hidden_size=8, n_layer=1, n_head=2),
              "transformer.h.0.self_attention", "query_key_value", "query_key_value", "dense"),
    "falcon_one_key": ("Falcon", FALCON | dict(num_attention_heads=4),
                       "transformer.h.0.self_attention", "query_key_value", "query_key_value",
                       "dense"),
    "falcon_groups": ("Falcon", FALCON | dict(num_attention_heads=4, num_kv_heads=2,
                                              new_decoder_architecture=True),
                      "transformer.h.0.self_attention", "query_key_value", "query_key_value",
                      "dense"),
    "falcon_all_keys": ("Falcon", FALCON | dict(num_attention_heads=2, multi_query=False),
                        "transformer.h.0.self_attention", "query_key_value", "query_key_value",
                        "dense"),
    "mpt": ("Mpt", dict(vocab_size=V, d_model=8, n_layers=1, n_heads=2, max_seq_len=8),
            "transformer.blocks.0.attn", "Wqkv", "Wqkv", "out_proj"),
    "bigcode_one_key": ("GPTBigCode", GPT | dict(n_head=4), "transformer.h.0.attn", "c_attn",
                        "c_attn", "c_proj"),
    "bigcode_all_keys": ("GPTBigCode", GPT | dict(multi_query=False), "transformer.h.0.attn",
                         "c_attn", "c_attn", "c_proj"),
    "deepseek_v3": ("DeepseekV3", LATENT | dict(q_lora_rank=6), "model.layers.0.self_attn",
                    "q_a_proj", "kv_a_proj_with_mqa", "o_proj"),
    "deepseek_whole_query": ("DeepseekV3", LATENT | dict(q_lora_rank=None),
                             "model.layers.0.self_attn", "q_proj", "kv_a_proj_with_mqa",
                             "o_proj"),
    "bert": ("Bert", SMALL | dict(num_attention_heads=2, max_position_embeddings=8,
                                  is_decoder=False),
             "encoder.layer.0.attention.self", "query", "key", "-output.dense"),
    "distilbert": ("DistilBert", dict(vocab_size=V, dim=8, n_layers=1, n_heads=2, hidden_dim=8,
                                      max_position_embeddings=8),
                   "transformer.layer.0.attention", "q_lin", "k_lin", "out_lin"),
    "t5_encoder": ("T5", T5, "encoder.block.0.layer.0.SelfAttention", "q", "k", "o"),
    "t5_decoder": ("T5", T5, "decoder.block.0.layer.0.SelfAttention", "q", "k", "o"),
    "t5_across": ("T5", T5, "decoder.block.0.layer.1.EncDecAttention", "q", "k", "o"),
    "bart_encoder": ("Bart", BART, "model.encoder.layers.0.self_attn", "q_proj", "k_proj",
                     "out_proj"),
    "bart_across": ("Bart", BART, "model.decoder.layers.0.encoder_attn", "q_proj", "k_proj",
                    "out_proj"),
    "t5gemma_encoder": ("T5Gemma", dict(vocab_size=V, encoder=GEMMA, decoder=GEMMA),
                        "model.encoder.layers.0.self_attn", "q_proj", "k_proj", "o_proj"),
}  # fmt: skip
KINDS = {"Bert": "Model", "DistilBert": "Model", "T5": "ForConditionalGeneration",
         "Bart": "ForConditionalGeneration", "T5Gemma": "ForConditionalGeneration"}  # fmt: skip
BOTH = ("T5", "Bart", "T5Gemma")  # an encoder and a decoder
SEES_ALL = ("bert", "distilbert", "t5_encoder", "t5_across", "bart_encoder", "bart_across",
            "t5gemma_encoder")  # fmt: skip
BIASES = ("alibi", "position_bias")
UNSCALED = ("gpt_neo", "t5_encoder", "t5_decoder", "t5_across")


def build(kind: str, settings: dict) -> Any:
    """A model with random weights and no biases, in double precision."""
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    config._attn_implementation = "eager"
    if kind in BOTH:
        for part in ("encoder", "decoder"):
            if hasattr(getattr(config, part, None), "_attn_implementation"):
                getattr(config, part)._attn_implementation = "eager"
                getattr(config, part).attn_logit_softcapping = None
    name = f"{kind}{KINDS.get(kind, 'ForCausalLM')}"
    if kind == "GPT2":
        name = "GPT2LMHeadModel"
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval().double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias") or "relative_attention_bias" in path:
                parameter.zero_()
            elif parameter.ndim > 1:
                parameter.normal_(std=0.6)
            else:
                parameter.uniform_(0.5, 1.5)
    for module in model.modules():
        # what the circuits leave out: the division by the size of the latent
        for inner in ("q_a_layernorm", "kv_a_layernorm"):
            if (norm := getattr(module, inner, None)) is not None:
                norm.forward = lambda latent, norm=norm: latent * norm.weight
    return model


def record(name: str) -> Recording:
    """Run a model of transformers once, and keep what one attention layer read and wrote."""
    import torch

    kind, settings, where, query, key, out = MODELS[name]
    model = build(kind, settings)
    seen: dict[str, Any] = {}
    attention = model.get_submodule(where)
    outside = model.get_submodule(where.rpartition(".")[0])
    written = outside if out.startswith("-") else attention

    def keep(label: str, pick: Any) -> Any:
        return lambda module, given, result: seen.__setitem__(label, pick(given, result))

    attention.get_submodule(query).register_forward_hook(keep("x", lambda g, r: g[0][0]))
    attention.get_submodule(key).register_forward_hook(keep("memory", lambda g, r: g[0][0]))
    written.get_submodule(out.lstrip("-")).register_forward_hook(keep("written", lambda g, r: r[0]))

    def attended(given: Any, result: Any) -> Any:
        square = [r for r in result if getattr(r, "ndim", 0) == 4 and r.shape[-2:] == (N, N)]
        return square[-1][0]  # after a bias of positions

    def unplaced(module: Any, given: Any, named: dict[str, Any]) -> Any:
        """Without the biases of positions, which the circuits leave out too."""
        biases = {k: 0 * v for k, v in named.items() if k in BIASES and v is not None}
        return given, named | biases

    attention.register_forward_hook(keep("pattern", attended))
    attention.register_forward_pre_hook(unplaced, with_kwargs=True)
    words, run = torch.arange(N)[None] % V + 2, model
    more: dict[str, Any] = {"output_attentions": True}
    if kind in BOTH:
        more["decoder_input_ids"] = words.flip(1)
    elif name not in ("opt", "bert", "distilbert", "bloom", "mpt"):
        more["position_ids"] = torch.zeros_like(words)  # rotary positions at distance 0
    if name == "t5gemma_encoder":  # the encoder alone takes positions
        run, more = model.model.encoder, {"position_ids": torch.zeros_like(words)}
    with torch.no_grad():
        run(words, **more)
    parts = ("attn", "ttention")
    tensors = {
        path: value.float().numpy()
        for path, value in model.state_dict().items()
        if any(part in path for part in parts) and value.ndim <= 2 and "orm.bias" not in path
    }
    scale = 1.0 if name in UNSCALED else _head_size(attention) ** -0.5
    arrays = {k: v.float().numpy() for k, v in seen.items()}
    return Recording(
        config=model.config.to_dict(), tensors=tensors, scale=scale, causal=name not in SEES_ALL,
        stack=_stack(where) if kind in BOTH else "", **arrays,
    )  # fmt: skip


def _stack(where: str) -> str:
    before, _, after = where.partition("0")
    return f"{before}*{after}"


def _head_size(attention: Any) -> float:
    if hasattr(attention, "scaling"):
        return attention.scaling**-2
    for name in ("head_dim", "head_size", "attention_head_size"):
        if hasattr(attention, name):
            return getattr(attention, name)
    return attention.dim // attention.n_heads


def lens() -> Recording:
    """TransformerLens 4, made by itself (not from a model of transformers)."""
    import torch
    from transformer_lens import TransformerBridge, TransformerBridgeConfig

    torch.manual_seed(0)
    sizes = dict(n_layers=1, d_model=8, n_ctx=8, d_head=4, n_heads=2, d_vocab=V, d_mlp=12)
    model = TransformerBridge.boot_native(TransformerBridgeConfig(act_fn="gelu", **sizes))
    return _bridge(model, sizes)


def lens_of_gpt2() -> Recording:
    """TransformerLens 4 around GPT-2, whose output matrix stays transposed."""
    import tempfile

    from tokenizers import Tokenizer, models
    from transformer_lens import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    special = {f"{name}_token": "b" for name in ("bos", "eos", "pad", "unk")}
    model = build("GPT2", GPT | dict(bos_token_id=1, eos_token_id=1)).float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model)
    return _bridge(bridge, {"n_heads": 2})


def _bridge(model: Any, sizes: dict[str, int]) -> Recording:
    import torch

    with torch.no_grad():
        for path, value in model.state_dict().items():
            if path.endswith("bias"):
                value.zero_()
        _, cache = model.run_with_cache(torch.arange(N)[None] % V)
    kept = {
        path: value.numpy()
        for path, value in model.state_dict().items()
        if "blocks.0." in path and value.dtype == torch.float32
    }
    x = cache["blocks.0.ln1.hook_normalized"][0] * model.blocks[0].ln1.weight
    pattern, written = cache["blocks.0.attn.hook_pattern"][0], cache["blocks.0.hook_attn_out"][0]
    arrays = [a.detach().numpy() for a in (x, x, pattern, written)]
    return Recording({"n_heads": sizes["n_heads"]}, kept, *arrays, 0.5, True)


def torch_attention() -> Recording:
    """`torch.nn.TransformerEncoderLayer`."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, bias=False), 1
    )
    attention, x = layer.layers[0].self_attn, torch.randn(N, 1, 8)
    with torch.no_grad():
        written, pattern = attention(x, x, x, average_attn_weights=False)
    tensors = {name: value.numpy() for name, value in layer.state_dict().items()}
    x, pattern, written = x[:, 0].numpy(), pattern[0].numpy(), written[:, 0].numpy()
    return Recording({"num_heads": 2}, tensors, x, x, pattern, written, 0.5, False)


def flax_attention() -> Recording:
    """`flax.nnx.MultiHeadAttention`."""
    import jax
    from flax import nnx
    from flax.nnx.nn.attention import dot_product_attention_weights

    from iclflow.checkpoints.monitor import named_arrays

    found: list[np.ndarray] = []

    def attend(query: Any, key: Any, value: Any, **rest: Any) -> Any:
        found.append(np.asarray(dot_product_attention_weights(query, key)))
        return nnx.dot_product_attention(query, key, value)

    class Block(nnx.Module):
        def __init__(self) -> None:
            self.attn = nnx.MultiHeadAttention(
                2, 6, qkv_features=8, decode=False, use_bias=False, attention_fn=attend,
                rngs=nnx.Rngs(0),
            )  # fmt: skip

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.blocks = nnx.List([Block()])

    model, x = Model(), jax.random.normal(jax.random.key(1), (N, 6), np.float32)
    written = np.asarray(model.blocks[0].attn(x))
    tensors = {name: np.asarray(value) for name, value in named_arrays(model).items()}
    return Recording({}, tensors, np.asarray(x), np.asarray(x), found[0], written, 0.5, False)


OTHERS = {
    "lens": lens,
    "lens_of_gpt2": lens_of_gpt2,
    "torch": torch_attention,
    "flax": flax_attention,
}


def record_any(name: str) -> Recording:
    """By the library the name belongs to."""
    return OTHERS[name]() if name in OTHERS else record(name)


ARRAYS = ("x", "memory", "pattern", "written")
WORDS = ("config", "scale", "causal", "stack")


def recorded() -> dict[str, Recording]:
    """What is in the file: all numbers in one array, and words that say which is which."""
    with np.load(RECORDED) as file:
        values, about = file["values"], json.loads(str(file["about"]))
    found, start = {}, 0
    for name, (words, shapes) in about.items():
        arrays = {}
        for key, shape in shapes.items():
            arrays[key] = values[start : start + int(np.prod(shape))].reshape(shape)
            start += arrays[key].size
        own = {key: arrays.pop(key) for key in ARRAYS}
        found[name] = Recording(tensors=arrays, **words, **own)
    return found


def main() -> None:
    """Write the file."""
    about: dict[str, Any] = {}
    values: list[np.ndarray] = []
    for name in (*MODELS, *OTHERS):
        found = record_any(name)
        arrays = found.tensors | {key: getattr(found, key) for key in ARRAYS}
        words = {key: getattr(found, key) for key in WORDS}
        about[name] = words, {key: array.shape for key, array in arrays.items()}
        values += [np.ravel(array).astype(np.float32) for array in arrays.values()]
    np.savez_compressed(RECORDED, about=np.array(json.dumps(about)), values=np.concatenate(values))


if __name__ == "__main__":
    main()
