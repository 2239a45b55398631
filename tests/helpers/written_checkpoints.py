"""Small checkpoints in the real formats and under the real names, for the tests to write."""

import json
import struct
import zipfile
from pathlib import Path

import numpy as np

WIDTH, HEADS, SIZE, LAYERS = 12, 4, 3, 2


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], bf16: bool = False) -> None:
    """The format by its own description: header length, JSON header, raw little-endian data."""
    kinds = {"float64": "F64", "float32": "F32", "float16": "F16"}
    header, blob = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        if bf16:
            data = (tensor.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
            kind = "BF16"
        else:
            data, kind = np.ascontiguousarray(tensor).tobytes(), kinds[str(tensor.dtype)]
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(blob), len(blob) + len(data)],
        }
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + blob)


def draw(rng, *shape):
    return rng.normal(size=shape) / np.sqrt(WIDTH)


def gpt2(rng):
    tensors = {}
    for n in range(LAYERS):
        stem = f"transformer.h.{n}.attn."
        tensors |= {
            stem + "c_attn.weight": draw(rng, WIDTH, 3 * WIDTH),
            stem + "c_attn.bias": draw(rng, 3 * WIDTH),
            stem + "c_proj.weight": draw(rng, WIDTH, WIDTH),
            stem + "bias": np.tril(np.ones((5, 5)))[None, None],
        }
    return tensors, {"n_head": HEADS}


def neox(rng):
    tensors = {}
    for n in range(LAYERS):
        stem = f"gpt_neox.layers.{n}.attention."
        tensors |= {
            stem + "query_key_value.weight": draw(rng, 3 * WIDTH, WIDTH),
            stem + "query_key_value.bias": draw(rng, 3 * WIDTH),
            stem + "dense.weight": draw(rng, WIDTH, WIDTH),
        }
    return tensors, {"num_attention_heads": HEADS, "rotary_pct": 0.25}


def llama(rng):
    tensors = {}
    for n in range(LAYERS):
        stem = f"model.layers.{n}.self_attn."
        tensors |= {
            stem + "q_proj.weight": draw(rng, HEADS * SIZE, WIDTH),
            stem + "k_proj.weight": draw(rng, 2 * SIZE, WIDTH),
            stem + "v_proj.weight": draw(rng, 2 * SIZE, WIDTH),
            stem + "o_proj.weight": draw(rng, WIDTH, HEADS * SIZE),
        }
    return tensors, {"num_attention_heads": HEADS, "num_key_value_heads": 2}


def lens(rng):
    tensors = {}
    for n in range(LAYERS):
        stem = f"blocks.{n}.attn."
        tensors |= {stem + f"W_{c}": draw(rng, HEADS, WIDTH, SIZE) for c in "QKV"}
        tensors[stem + "W_O"] = draw(rng, HEADS, SIZE, WIDTH)
        tensors[stem + "b_Q"] = draw(rng, HEADS, SIZE)
    return tensors, {}


FAMILIES = {"GPT-2": gpt2, "GPT-NeoX": neox, "Llama": llama, "TransformerLens": lens}


def save(folder: Path, tensors, config, **options):
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, **options)
    if config:
        (folder / "config.json").write_text(json.dumps(config))


def shard(folder: Path, tensors, config):
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[:3],
        "model-00002-of-00002.safetensors": names[3:],
    }
    for file, inside in parts.items():
        write_safetensors(folder / file, {name: tensors[name] for name in inside})
    index = {"weight_map": {name: file for file, inside in parts.items() for name in inside}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))


STORAGES = {"float64": "DoubleStorage", "float32": "FloatStorage", "bool": "BoolStorage"}


def text(word: str) -> bytes:
    """Instructions of a pickle that leave a text."""
    return b"X" + struct.pack("<I", len(word.encode())) + word.encode()


def number(value: int) -> bytes:
    """Instructions of a pickle that leave a whole number."""
    return b"J" + struct.pack("<i", value)


def row(values) -> bytes:
    """Instructions of a pickle that leave a tuple of whole numbers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def torch_tensor(key, storage, count, shape, strides, offset=0) -> bytes:
    """Instructions of a pickle that describe a tensor as `torch.save` does."""
    place = b"(" + text("storage") + b"ctorch\n" + storage.encode() + b"\n" + text(key)
    place += text("cpu") + number(count) + b"tQ"
    view = place + number(offset) + row(shape) + row(strides) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + view + b"tR"


def torch_dict(**entries: bytes) -> bytes:
    """A whole pickle that leaves a dictionary of what the instructions make."""
    return b"\x80\x02}(" + b"".join(text(k) + v for k, v in entries.items()) + b"u."


def write_archive(path: Path, program: bytes, order=b"little", pack=zipfile.ZIP_STORED, **members):
    """A zip archive as `torch.save` lays it out; the storages by the names of their members."""
    with zipfile.ZipFile(path, "w", pack) as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/byteorder", order)
        for key, content in members.items():
            archive.writestr(f"archive/data/{key}", content)


def write_torch(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The format of `torch.save` by its own description, without PyTorch."""
    described, members = {}, {}
    for number_, (name, tensor) in enumerate(tensors.items()):
        steps = [n // tensor.itemsize for n in np.ascontiguousarray(tensor).strides]
        storage = STORAGES[str(tensor.dtype)]
        described[name] = torch_tensor(f"m{number_}", storage, tensor.size, tensor.shape, steps)
        members[f"m{number_}"] = tensor.tobytes()
    write_archive(path, torch_dict(**described), **members)
