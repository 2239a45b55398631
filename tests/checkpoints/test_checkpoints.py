"""Checkpoints in the real formats: tensors, families of names, circuits, refusals."""

import shlex
import subprocess
import sys
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from iclflow.checkpoints import CheckpointError, find_layout, open_checkpoint
from iclflow.checkpoints.convert import main as convert_main
from iclflow.checkpoints.torch_files import tensors_of
from tests.helpers.written_checkpoints import (
    FAMILIES,
    HEADS,
    LAYERS,
    SIZE,
    WIDTH,
    lens,
    llama,
    save,
    shard,
    write_safetensors,
)


def forward(family, tensors, layer, x):
    """q, k, v of every head for rows x, [n, H, size], and the output map, as the model does."""
    n = x.shape[0]
    if family == "GPT-2":
        stem = f"transformer.h.{layer}.attn."
        q, k, v = np.split(x @ tensors[stem + "c_attn.weight"], 3, axis=1)
        return *(t.reshape(n, HEADS, SIZE) for t in (q, k, v)), (
            lambda z: z.reshape(n, -1) @ tensors[stem + "c_proj.weight"]
        )
    if family == "GPT-NeoX":
        stem = f"gpt_neox.layers.{layer}.attention."
        fused = (x @ tensors[stem + "query_key_value.weight"].T).reshape(n, HEADS, 3 * SIZE)
        return *np.split(fused, 3, axis=2), (
            lambda z: z.reshape(n, -1) @ tensors[stem + "dense.weight"].T
        )
    if family == "Llama":
        stem = f"model.layers.{layer}.self_attn."
        q = (x @ tensors[stem + "q_proj.weight"].T).reshape(n, HEADS, SIZE)
        k, v = (
            np.repeat((x @ tensors[stem + f"{c}_proj.weight"].T).reshape(n, 2, SIZE), 2, axis=1)
            for c in "kv"
        )
        return q, k, v, (lambda z: z.reshape(n, -1) @ tensors[stem + "o_proj.weight"].T)
    stem = f"blocks.{layer}.attn."
    q, k, v = (np.einsum("nd,hds->nhs", x, tensors[stem + f"W_{c}"]) for c in "QKV")
    return q, k, v, (lambda z: np.einsum("nhs,hsd->nd", z, tensors[stem + "W_O"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_circuits_are_what_the_model_computes(tmp_path, family):
    rng = np.random.default_rng(0)
    tensors, config = FAMILIES[family](rng)
    save(tmp_path, tensors, config)
    source = open_checkpoint(tmp_path)
    layout = find_layout(source)
    assert (layout.family, layout.layers, layout.heads) == (family, (0, 1), HEADS)
    x = rng.normal(size=(5, WIDTH))
    for layer in layout.layers:
        q, k, v, out = forward(family, tensors, layer, x)
        heads = layout.heads_of(source, layer)
        for h in range(HEADS):
            qk = np.asarray(heads.qk.left[h] @ heads.qk.right[h])
            np.testing.assert_allclose(x @ qk @ x.T, q[:, h] @ k[:, h].T, atol=1e-12)
            alone = np.zeros((5, HEADS, SIZE))
            alone[:, h] = v[:, h]
            ov = np.asarray(heads.ov.left[h] @ heads.ov.right[h])
            np.testing.assert_allclose(x @ ov, out(alone), atol=1e-12)


def test_notes_name_biases_rotary_and_groups(tmp_path):
    notes = {}
    for family, make in FAMILIES.items():
        save(tmp_path / family, *make(np.random.default_rng(0)))
        source = open_checkpoint(tmp_path / family)
        notes[family] = find_layout(source).notes(source)
    assert notes["GPT-2"]["biases"] == "present, not included: c_attn.bias"
    assert notes["TransformerLens"]["biases"] == "present, not included: b_Q"
    assert notes["Llama"]["biases"] == "none"
    assert notes["Llama"]["grouped query"] == "4 query heads share 2 key-value heads"
    assert "rotary" in notes["GPT-NeoX"]["positions"]
    assert notes["GPT-2"]["positions"].startswith("not rotary")


def test_lens_grouped_keys_under_an_underscore(tmp_path):
    tensors, _ = lens(np.random.default_rng(0))
    for n in range(LAYERS):
        for c in "KV":
            tensors[f"blocks.{n}.attn._W_{c}"] = tensors.pop(f"blocks.{n}.attn.W_{c}")[:2]
    save(tmp_path, tensors, {})
    source = open_checkpoint(tmp_path)
    layout = find_layout(source)
    assert layout.factors_of(source, 0).key.shape[0] == 2
    heads = layout.heads_of(source, 0)
    np.testing.assert_array_equal(heads.qk.right[2], heads.qk.right[3])
    np.testing.assert_allclose(heads.qk.right[3].T, tensors["blocks.0.attn._W_K"][1])


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_stored_types_are_read_exactly(tmp_path, dtype):
    array = np.random.default_rng(0).normal(size=(3, 5)).astype(dtype)
    write_safetensors(tmp_path / "a.safetensors", {"w": array})
    read = open_checkpoint(tmp_path / "a.safetensors").read("w")
    assert read.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_array_equal(read, array)


def test_bfloat16(tmp_path):
    array = np.array([[1.0, -2.5, 3.1415926, 1e-30]])
    write_safetensors(tmp_path / "a.safetensors", {"w": array}, bf16=True)
    expected = np.asarray(jnp.asarray(array, jnp.float32).astype(jnp.bfloat16).astype(jnp.float32))
    read = open_checkpoint(tmp_path / "a.safetensors").read("w")
    np.testing.assert_allclose(read, expected, rtol=2**-7)
    assert read[0, 0] == 1.0
    assert read[0, 1] == -2.5


def test_only_the_tensor_asked_for_is_read(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"t{i}": rng.normal(size=(512, 512)).astype(np.float32) for i in range(4)}
    write_safetensors(tmp_path / "a.safetensors", tensors)
    tracemalloc.start()
    source = open_checkpoint(tmp_path / "a.safetensors")
    opened = tracemalloc.get_traced_memory()[1]
    read = source.read("t2")
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(read, tensors["t2"])
    assert opened < read.nbytes / 2
    assert read.nbytes <= largest < 2 * read.nbytes


def test_a_type_that_is_no_weight_is_refused_when_it_is_read(tmp_path):
    save_file({"mask": np.ones(3, bool), "w": np.ones(2)}, tmp_path / "a.safetensors")
    source = open_checkpoint(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(source.read("w"), np.ones(2))
    with pytest.raises(CheckpointError, match="tensor mask has type BOOL, needed one of F64, F32"):
        source.read("mask")


def test_numpy_archive_and_folder_equal_safetensors(tmp_path):
    tensors, _ = lens(np.random.default_rng(0))
    save(tmp_path / "a", tensors, {})
    np.savez(tmp_path / "b.npz", **tensors)
    (tmp_path / "c").mkdir()
    for name, tensor in tensors.items():
        np.save(tmp_path / "c" / f"{name}.npy", tensor)
    first = open_checkpoint(tmp_path / "a")
    for other in (open_checkpoint(tmp_path / "b.npz"), open_checkpoint(tmp_path / "c")):
        assert set(other.names()) == set(first.names())
        for name in first.names():
            assert other.shape(name) == first.shape(name)
            np.testing.assert_array_equal(other.read(name), first.read(name))


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_with_the_command(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02not to be loaded")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match=r"refused; convert it.*python -m iclflow") as e:
            open_checkpoint(path)
        assert "\n" not in str(e.value)
        assert name in str(e.value)


def test_an_object_array_in_npz_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match=r"a\.npz: array w holds Python objects"):
        open_checkpoint(tmp_path / "a.npz").read("w")


def test_truncated_files_are_named(tmp_path):
    save(tmp_path, *llama(np.random.default_rng(0)))
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in (-8, 40):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated or not a") as e:
            open_checkpoint(tmp_path)
        assert "\n" not in str(e.value)
    np.savez(tmp_path / "b.npz", w=np.ones((50, 50)))
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"b\.npz: truncated"):
        open_checkpoint(tmp_path / "b.npz")


def test_missing_tensors_shards_and_head_counts(tmp_path):
    tensors, config = llama(np.random.default_rng(0))
    shard(tmp_path / "a", tensors, config)
    (tmp_path / "a" / "model-00002-of-00002.safetensors").unlink()
    source = open_checkpoint(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"00002.safetensors: missing; .*o_proj"):
        find_layout(source).heads_of(source, 0)
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    save(tmp_path / "b", tensors, config)
    source = open_checkpoint(tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor .*1.self_attn.v_proj"):
        find_layout(source).heads_of(source, 1)
    tensors_of_lens, _ = lens(np.random.default_rng(0))
    del tensors_of_lens["blocks.0.attn.W_Q"]
    save(tmp_path / "d", tensors_of_lens, {})
    broken = open_checkpoint(tmp_path / "d")
    with pytest.raises(CheckpointError, match=r"tensor blocks\.0\.attn\.W_Q is missing"):
        find_layout(broken)
    (tmp_path / "b" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="number of heads is not in the weights"):
        find_layout(open_checkpoint(tmp_path / "b"))
    assert find_layout(open_checkpoint(tmp_path / "b"), heads=4).heads == 4
    with pytest.raises(CheckpointError, match="do not divide into 5"):
        find_layout(source, heads=5).heads_of(source, 0)
    save(tmp_path / "c", {"layer.weight": np.ones((2, 2))}, {})
    with pytest.raises(CheckpointError, match=r"the names begin with: layer\.weight"):
        find_layout(open_checkpoint(tmp_path / "c"))
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(tmp_path / "nowhere")


WRAPPED = {
    "plain.bin": lambda tensors: tensors,
    "nano gpt's.pt": lambda tensors: {"model": tensors, "iter_num": 3, "model_args": {"n_head": 2}},
    "epoch=1-step=20.ckpt": lambda tensors: {"state_dict": tensors, "epoch": 1, "loops": {}},
    "deep.pth": lambda tensors: {"model": {"state_dict": tensors}},
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_printed_command_converts_a_pickle(tmp_path, name):
    torch = pytest.importorskip("torch", reason="torch is not needed by the package")
    weight = torch.arange(6.0).reshape(2, 3)
    tensors = {"h.weight": weight, "tied": weight, "turned": weight.T}
    (tmp_path / "a folder").mkdir()
    path = tmp_path / "a folder" / name
    torch.save(WRAPPED[name](tensors), path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="so it is refused") as refused:
        open_checkpoint(path)
    command = str(refused.value).partition("where PyTorch is: ")[2]
    assert command.startswith("python -m iclflow.checkpoints.convert ")
    words = shlex.split(command)[1:]
    if "'" in name:  # the oddest one as a program, which takes seconds to start
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
    else:
        assert convert_main(words[2:]) == 0
    source = open_checkpoint(path.with_suffix(".safetensors"))
    for tensor, wanted in tensors.items():
        np.testing.assert_array_equal(source.read(tensor), wanted.numpy())


def test_conversion_takes_the_tensors_out_of_what_wraps_them(capsys, tmp_path):
    class Tensor:
        def detach(self):
            return self

    one = Tensor()
    for make in WRAPPED.values():
        assert tensors_of(make({"w": one, "step": 3}), "x") == {"w": one}
    with pytest.raises(ValueError, match=r"no tensors under names.*\['a'\]"):
        tensors_of({"a": 1}, "x")
    assert convert_main([]) == 2
    (tmp_path / "a.safetensors").write_bytes(b"")
    pytest.importorskip("torch", reason="torch is not needed by the package")
    assert convert_main([str(tmp_path / "a.bin")]) == 2
    assert "a.safetensors exists" in capsys.readouterr().err
