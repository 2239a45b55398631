"""The families of names that are known, and the search for them in a checkpoint."""

import itertools
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.checkpoints.layouts import storage
from iclflow.checkpoints.layouts.base import Family, Layout, NoAttentionError, full_name
from iclflow.results.reading import require_count

ADDED = "not rotary: added to the input, or none"
ANYWHERE = r"(?:\D*(\d+).*\.|.*\.)?"  # the layer is the first number in the name, if there is one


def _apart(name: str, stem: str, parts: tuple[str, ...], positions: str) -> Family:
    return Family(name, stem, parts, partial(storage.apart, names=parts), positions)


def _fused(name: str, stem: str, reader: Any, parts: tuple[str, str], positions: str) -> Family:
    return Family(name, stem, parts, partial(reader, fused=parts[0], out=parts[1]), positions)


def _wide(source: AbstractSource, stem: str) -> bool:
    """Whether `c_attn` is [d, 3d], as GPT-2's own `Conv1D` has it."""
    rows, columns = source.shape(full_name(source, stem + "c_attn"))
    return columns == 3 * rows


def _by_group(source: AbstractSource, stem: str) -> bool:
    """GPTBigCode: keys that all heads share, or queries, keys and values head by head."""
    rows, columns = source.shape(full_name(source, stem + "c_attn"))
    return rows != 3 * columns or source.config.get("model_type") == "gpt_bigcode"


def _kernels(source: AbstractSource, stem: str) -> bool:
    return len(source.shape(full_name(source, stem + "query"))) == 3


def _first_axis(source: AbstractSource, stem: str) -> int:
    return source.shape(full_name(source, stem + "W_Q"))[0]


def _middle_axis(source: AbstractSource, stem: str) -> int:
    return source.shape(full_name(source, stem + "query"))[1]


QKV = ("q_proj", "k_proj", "v_proj")
GPT2_STEM, GPT2_PARTS = r"(?:.*\.)?h\.(\d+)\.attn\.", ("c_attn", "c_proj")
BIG_CODE = partial(storage.by_group, fused="c_attn", out="c_proj")
FAMILIES = (
    Family("GPT-2", GPT2_STEM, GPT2_PARTS, storage.gpt2, ADDED, fits=_wide),
    Family("GPTBigCode", GPT2_STEM, GPT2_PARTS, BIG_CODE, ADDED, fits=_by_group),
    Family("GPT-2 transposed", GPT2_STEM, GPT2_PARTS, storage.linear_gpt2, ADDED),
    _fused("GPT-NeoX", r"(?:.*\.)?layers\.(\d+)\.attention\.", storage.by_group,
           ("query_key_value", "dense"), "rotary"),
    _fused("BLOOM or Falcon", r"(?:.*\.)?h\.(\d+)\.self_attention\.", storage.by_group,
           ("query_key_value", "dense"), "ALiBi, or rotary: QK is at relative distance 0"),
    _apart("Llama", r"(?:.*\.)?layers\.(\d+)\.(?:self|cross)_attn\.", (*QKV, "o_proj"), "rotary"),
    _apart("OPT", r"(?:.*\.)?layers\.(\d+)\.(?:self|encoder)_attn\.", (*QKV, "out_proj"), ADDED),
    _apart("Phi", r"(?:.*\.)?layers\.(\d+)\.self_attn\.", (*QKV, "dense"), "rotary"),
    _fused("Phi-3", r"(?:.*\.)?layers\.(\d+)\.self_attn\.", storage.blocks,
           ("qkv_proj", "o_proj"), "rotary"),
    Family("DeepSeek", r"(?:.*\.)?layers\.(\d+)\.self_attn\.",
           ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj"), storage.latent, "rotary"),
    _apart("GPT-J", r"(?:.*\.)?h\.(\d+)\.attn\.", (*QKV, "out_proj"), "rotary"),
    _apart("GPT-Neo", r"(?:.*\.)?h\.(\d+)\.attn\.attention\.", (*QKV, "out_proj"), ADDED),
    _fused("MPT", r"(?:.*\.)?blocks\.(\d+)\.attn\.", storage.blocks,
           ("Wqkv", "out_proj"), "ALiBi, unless the model switches it off"),
    _apart("BERT", r"(?:.*\.)?layer\.(\d+)\.(?:cross)?attention\.",
           ("self.query", "self.key", "self.value", "output.dense"), ADDED),
    _apart("DistilBERT", r"(?:.*\.)?layer\.(\d+)\.attention\.",
           ("q_lin", "k_lin", "v_lin", "out_lin"), ADDED),
    _apart("ViT", r"(?:.*\.)?layers\.(\d+)\.attention\.", (*QKV, "o_proj"), ADDED),
    _apart("T5", r"(?:.*\.)?block\.(\d+)\.layer\.\d+\.(?:Self|EncDec)Attention\.",
           ("q", "k", "v", "o"), "a learned bias of relative positions, not included"),
    Family("TransformerLens", r"(?:.*\.)?blocks\.(\d+)\.attn\.", ("W_Q", "W_O"), storage.per_head,
           ADDED, count=_first_axis),
    Family("TransformerLens bridge", r"(?:.*\.)?blocks\.(\d+)\.attn\.", ("q", "k", "v", "o"),
           storage.bridge, "not stored; where rotary, QK is at relative distance 0"),
    Family("Flax", ANYWHERE, ("query", "key", "value", "out"), storage.kernels,
           "not stored; where rotary, QK is at relative distance 0",
           count=_middle_axis, fits=_kernels),
    _fused("PyTorch", ANYWHERE, storage.blocks, ("in_proj_weight", "out_proj"), ADDED),
    _apart("Equinox", ANYWHERE, ("query_proj", "key_proj", "value_proj", "output_proj"),
           "not stored; where rotary, QK is at relative distance 0"),
)  # fmt: skip


def find_layout(
    source: AbstractSource, *, heads: int | None = None, stack: str | None = None
) -> Layout:
    """The attention of a checkpoint, from its names; the head count from its settings or `heads`.

    - `heads`: their number, where neither the weights nor a config.json say.
    - `stack`: part of the names of one stack of layers, such as `encoder`, where there are several.
    """
    found = _stacks(source)
    chosen = {where: at for where, at in found.items() if stack is None or stack in where}
    known = ", ".join(where.rstrip(".") for where in found)
    if not found:
        names = source.names()
        where = source.where(names[0]) if names else "checkpoint"
        families = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        if any(".lora_" in name for name in names):
            raise NoAttentionError(
                f"{where}: a LoRA adapter, which holds changes of the weights and not the weights; "
                f"merge it into its base model (peft: merge_and_unload) and save that"
            )
        raise NoAttentionError(
            f"{where}: no attention under the names of {families}; the names begin with: "
            f"{', '.join(names[:3]) or 'no tensors'}"
        )
    if len(chosen) != 1:
        which = f"{stack!r} names {len(chosen)} of them" if stack else "choose one: stack='encoder'"
        raise CheckpointError(
            f"{source.where(source.names()[0])}: {len(found)} stacks of attention layers, {known}; "
            f"{which} (--stack on the command line)"
        )
    [(where, (family, layers))] = chosen.items()
    stem = where.replace("*", str(layers[0]))
    count = family.count(source, stem) if family.count else heads or head_count(source, where)
    if not count:
        raise CheckpointError(
            f"{source.where(full_name(source, stem + family.parts[0]))}: {family.name} names, but "
            f"the number of heads is not in the weights; put the model's config.json beside them "
            f"or give the number of heads"
        )
    return Layout(family, where, layers, int(count), layer_count(source, where))


def _stacks(source: AbstractSource) -> dict[str, tuple[Family, tuple[int, ...]]]:
    """The start of the names, with * for the layer's number -> its family and layers."""
    bases = {re.sub(r"\.(weight|kernel)$", "", name) for name in source.names()}
    found: dict[str, tuple[Family, tuple[int, ...]]] = {}
    for family in FAMILIES:
        layers: dict[str, dict[int, str]] = {}
        # A layer is there if any part is: reading it names the one that is missing.
        for base, part in itertools.product(sorted(bases), family.parts):
            stem = base.removesuffix(part)
            if stem == base or not (match := re.fullmatch(family.stem, stem)):
                continue
            start, end = match.span(1)
            where = stem if start < 0 else f"{stem[:start]}*{stem[end:]}"
            layers.setdefault(where, {})[int(match[1] or 0)] = stem
        for where, stems in layers.items():
            whole = [s for s in stems.values() if all(s + part in bases for part in family.parts)]
            fits = family.fits is None or (whole and family.fits(source, whole[0]))
            if where not in found and whole and fits:
                found[where] = family, tuple(sorted(stems))
    return found


def settings_of(source: AbstractSource, where: str) -> tuple[Mapping[str, Any], str]:
    """The settings of the part of a model that a stack belongs to, and the part's name or ""."""
    config: Mapping[str, Any] = source.config
    named = ""
    parts = [part for part in ("encoder", "decoder", "text", "vision") if part in where]
    for part in sorted(parts, key=where.index):  # decoder.layers.0.encoder_attn is the decoder's
        for nested in (part, f"{part}_config"):
            if isinstance(config.get(nested), Mapping):
                config = config[nested]
        named = named or part
    return config, named


def _number(source: AbstractSource, where: str, keys: tuple[str, ...]) -> int | None:
    """A size in a model's settings under one of several keys; that of the part comes first.

    A key without a value (null, 0) counts as not there.
    """
    config, part = settings_of(source, where)
    for key in (*(f"{part}_{key}" for key in keys if part), *keys):
        if config.get(key) not in (None, 0):
            try:
                return require_count(config[key], key, "config.json")
            except ValueError as error:
                raise CheckpointError(str(error)) from None
    return None


def head_count(source: AbstractSource, where: str) -> int | None:
    """The number of heads in a model's settings; those of a part of it come first."""
    keys = ("attention_heads", "num_attention_heads", "n_head", "num_heads", "n_heads")
    return _number(source, where, keys)


def layer_count(source: AbstractSource, where: str) -> int | None:
    """The number of layers in a model's settings; those of a part of it come first."""
    keys = ("layers", "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    return _number(source, where, keys)
