"""Checkpoints written in the real formats, read back one layer at a time, measured over steps."""

import json
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.diagnostics.checkpoints import (
    CheckpointError,
    files,
    find_layout,
    find_series,
    hub_series,
    mark_stages,
    measure_series,
    open_checkpoint,
)

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


def save(folder: Path, tensors, config, **options):
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, **options)
    if config:
        (folder / "config.json").write_text(json.dumps(config))


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
    assert notes["GPT-2"]["biases"] == "present, not included: query, key, value"
    assert notes["TransformerLens"]["biases"] == "present, not included: query"
    assert notes["Llama"]["biases"] == "none"
    assert notes["Llama"]["grouped query"] == "4 query heads share 2 key-value heads"
    assert "rotary" in notes["GPT-NeoX"]["positions"]
    assert notes["GPT-2"]["positions"] == "not rotary"


def test_lens_grouped_keys_under_an_underscore(tmp_path):
    tensors, _ = lens(np.random.default_rng(0))
    for n in range(LAYERS):
        for c in "KV":
            tensors[f"blocks.{n}.attn._W_{c}"] = tensors.pop(f"blocks.{n}.attn.W_{c}")[:2]
    save(tmp_path, tensors, {})
    source = open_checkpoint(tmp_path)
    layout = find_layout(source)
    assert layout.groups == 2
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
    tensors = {f"t{i}": rng.normal(size=(64, 64)).astype(np.float32) for i in range(4)}
    write_safetensors(tmp_path / "a.safetensors", tensors)
    read = open_checkpoint(tmp_path / "a.safetensors").read("t2")
    assert isinstance(read, np.memmap)  # mapped: pages come in when they are touched
    np.testing.assert_array_equal(read, tensors["t2"])


def test_one_layer_is_open_at_a_time(tmp_path, monkeypatch):
    save(tmp_path / "step1", *llama(np.random.default_rng(0)))
    save(tmp_path / "step2", *llama(np.random.default_rng(1)))
    reads = []
    original = files.SafetensorsFile.read
    monkeypatch.setattr(
        files.SafetensorsFile,
        "read",
        lambda self, name: (reads.append((self.path.parent.name, name)), original(self, name))[1],
    )
    measure_series(find_series(tmp_path))
    layers = [name.split(".")[2] for folder, name in reads if folder == "step1"]
    assert layers == ["0"] * 4 + ["1"] * 4  # each tensor once, layer after layer


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


def test_shards_equal_one_file(tmp_path):
    tensors, config = neox(np.random.default_rng(0))
    save(tmp_path / "whole" / "step7", tensors, config)
    shard(tmp_path / "parts" / "step7", tensors, config)
    one, two = (
        measure_series(find_series(tmp_path / k), measures=["norm"]) for k in ("whole", "parts")
    )
    np.testing.assert_array_equal(one["norm"], two["norm"])


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_with_the_command(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02not to be loaded")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match=r"refused; convert it once with: python -c") as e:
            open_checkpoint(path)
        assert "\n" not in str(e.value)
        assert name in str(e.value)


def test_an_object_array_in_npz_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match=r"a\.npz: tensor w.*allow_pickle"):
        open_checkpoint(tmp_path / "a.npz").read("w")


def test_truncated_files_name_the_file_and_the_tensor(tmp_path):
    save(tmp_path, *llama(np.random.default_rng(0)))
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    source = open_checkpoint(tmp_path)
    layout = find_layout(source)
    layout.heads_of(source, 0)  # complete in the file
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: truncated: tensor model.layers.1"
    ):
        layout.heads_of(source, 1)
    path.write_bytes(whole[:40])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the header needs"):
        open_checkpoint(tmp_path)
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
    (tmp_path / "b" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="number of heads is not in the weights"):
        find_layout(open_checkpoint(tmp_path / "b"))
    assert find_layout(open_checkpoint(tmp_path / "b"), heads=4, groups=2).groups == 2
    with pytest.raises(CheckpointError, match="do not divide into 5"):
        find_layout(source, heads=5).heads_of(source, 0)
    save(tmp_path / "c", {"layer.weight": np.ones((2, 2))}, {})
    with pytest.raises(CheckpointError, match=r"the names begin with: layer\.weight"):
        find_layout(open_checkpoint(tmp_path / "c"))
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(tmp_path / "nowhere")


# --- series -----------------------------------------------------------------------------------


def test_series_from_folders_files_patterns_and_lists(tmp_path):
    tensors, _ = lens(np.random.default_rng(0))
    for step in (512, 8, 64):
        save(tmp_path / "folders" / f"step{step}", tensors, {})
        (tmp_path / "files").mkdir(exist_ok=True)
        np.savez(tmp_path / "files" / f"run2_step{step}_x3.npz", **tensors)
    for paths in (
        [tmp_path / "folders"],
        [tmp_path / "files"],
        [tmp_path / "folders" / "step*" / "model.safetensors"],
        [tmp_path / "files" / "run2_step{step}_x3.npz"],
        [tmp_path / "folders" / f"step{s}" for s in (64, 8, 512)],
    ):
        assert [c.step for c in find_series(*paths)] == [8, 64, 512]
    assert [c.step for c in find_series(tmp_path / "folders" / "step64")] == [64]
    with pytest.raises(CheckpointError, match="more than once"):
        find_series(tmp_path / "folders" / "step8", tmp_path / "files" / "run2_step8_x3.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoints with a step"):
        find_series(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="nothing matches"):
        find_series(tmp_path / "files" / "nothing_{step}.npz")


def growing(step, steps=10):
    """Weights whose OV circuits grow from rank one to rank `SIZE`, with known singular values."""
    rng = np.random.default_rng(0)
    tensors, _ = lens(rng)
    frames = [np.linalg.qr(rng.normal(size=(WIDTH, SIZE)))[0] for _ in range(2)]
    values = np.array([1.0, min(1.0, 2 * step / steps), max(0.0, 2 * step / steps - 1)])
    for n in range(LAYERS):
        for h in range(HEADS):
            tensors[f"blocks.{n}.attn.W_V"][h] = frames[0] * values
            tensors[f"blocks.{n}.attn.W_O"][h] = frames[1].T * (h + 1)
    return tensors, values


@pytest.fixture
def growing_series(tmp_path):
    for step in range(11):
        save(tmp_path / f"step{step}", growing(step)[0], {})
    return tmp_path


def test_measures_over_steps_have_the_constructed_values(growing_series):
    names = ["norm", "effective_rank", "stable_rank", "subspace_distance", "projector_distance"]
    names += ["largest_angle", "step_distance", "top_singular_value"]
    names += ["marginalised_effective_rank", "tracked_effective_rank"]
    data = measure_series(
        find_series(growing_series),
        measures=names,
        rank=2,
        extra={"trace": lambda matrix: matrix.trace()},
    )
    assert dict(data.sizes) == {"step": 11, "circuit": 2, "layer": 2, "head": 4}
    assert all(data[name].attrs["long_name"] for name in data)
    assert data.attrs["reference_step"] == 10
    assert json.loads(data.attrs["problems"]) == []
    ov = data.sel(circuit="OV", layer=1, head=2)
    values = np.stack([growing(step)[1] for step in range(11)])
    np.testing.assert_allclose(ov["norm"], 3 * np.linalg.norm(values, axis=1), rtol=1e-12)
    np.testing.assert_allclose(ov["top_singular_value"], 3.0, rtol=1e-12)
    np.testing.assert_allclose(ov["stable_rank"], np.sum(values**2, axis=1), rtol=1e-12)
    share = values / values.sum(axis=1, keepdims=True)
    entropy = -np.sum(np.where(share > 0, share * np.log(np.where(share > 0, share, 1)), 0), axis=1)
    np.testing.assert_allclose(ov["effective_rank"], np.exp(entropy), rtol=1e-10)
    assert ov["marginalised_effective_rank"][-1] == pytest.approx(2.0)
    # QK never moves: no distance at all, but the truncated one leaves out the third direction
    qk = data.sel(circuit="QK")
    np.testing.assert_allclose(qk["projector_distance"], 0, atol=1e-6)
    np.testing.assert_allclose(qk["step_distance"][1:], 0, atol=1e-6)
    assert np.isnan(qk["step_distance"][0]).all()
    tensors = growing(0)[0]
    product = tensors["blocks.0.attn.W_Q"][1] @ tensors["blocks.0.attn.W_K"][1].T
    _, s, _ = np.linalg.svd(product)
    np.testing.assert_allclose(
        qk["subspace_distance"].sel(layer=0, head=1), s[2] / np.linalg.norm(s), rtol=1e-8
    )
    np.testing.assert_allclose(qk["trace"].sel(layer=0, head=1), np.trace(product), rtol=1e-10)


def test_the_dataset_can_be_written_and_marks_are_added(growing_series, tmp_path):
    data = measure_series(find_series(growing_series))
    steps = np.geomspace(1, 1000, 200)
    marked = mark_stages(data, steps=steps, losses=1 / (1 + (steps / 30) ** 6))
    from_loss = marked["mark"].values[marked["mark_source"].values == "loss"]
    np.testing.assert_allclose(from_loss, [30], rtol=0.02)
    marked.to_netcdf(tmp_path / "measures.nc")


def test_keep_going_leaves_out_what_cannot_be_read(growing_series):
    middle = growing_series / "step4" / "model.safetensors"
    middle.write_bytes(middle.read_bytes()[:-200])
    last = growing_series / "step10" / "model.safetensors"
    last.write_bytes(b"")
    wide = lens(np.random.default_rng(0))[0]
    wide = {k: np.concatenate([v, v], axis=-1 if k[-1] in "QKV" else 1) for k, v in wide.items()}
    wide = {k: v for k, v in wide.items() if "b_Q" not in k}
    save(growing_series / "step6", wide, {})
    with pytest.raises(CheckpointError, match="step10"):
        measure_series(find_series(growing_series))
    data = measure_series(find_series(growing_series), keep_going=True)
    assert list(data["step"].values) == [0, 1, 2, 3, 5, 7, 8, 9]
    assert data.attrs["reference_step"] == 9
    problems = json.loads(data.attrs["problems"])
    assert len(problems) == 3
    assert "step10/model.safetensors" in problems[0]
    assert "step4/model.safetensors: truncated: tensor blocks.1.attn" in problems[1]
    assert "step6/model.safetensors" in problems[2]
    assert "blocks.0.attn" in problems[2]
    np.testing.assert_array_equal(np.isnan(data["norm"]), False)


def test_a_different_architecture_in_the_series_is_named(growing_series):
    save(growing_series / "step5", *llama(np.random.default_rng(0)))
    with pytest.raises(CheckpointError, match=r"step5: Llama names"):
        measure_series(find_series(growing_series))


def test_unknown_measures_are_refused(growing_series):
    with pytest.raises(ValueError, match="unknown measures"):
        measure_series(find_series(growing_series), measures=["sharpness"])


# --- the hub ----------------------------------------------------------------------------------


class FakeHub(types.ModuleType):
    """The two functions of huggingface_hub that are used, serving folders from disk."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        self.root, self.alive, self.most, self.fetched = root, set(), 0, []

    def list_repo_files(self, repo_id, *, revision=None, repo_type=None, token=None):
        if not (self.root / revision).exists():
            raise RuntimeError(f"404 Client Error. Revision {revision} not found\nmore lines")
        return sorted(p.name for p in (self.root / revision).iterdir())

    def hf_hub_download(self, repo_id, filename, *, revision=None, local_dir=None, token=None):
        target = Path(local_dir) / filename
        target.write_bytes((self.root / revision / filename).read_bytes())
        self.fetched.append((repo_id, revision, filename))
        self.alive = {p for p in self.alive | {Path(local_dir)} if p.exists()}
        self.most = max(self.most, len(self.alive))
        return str(target)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    fake = FakeHub(tmp_path / "remote")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    for step in (0, 1, 512, 1000):
        tensors, config = neox(np.random.default_rng(step))
        write = shard if step == 512 else save
        write(fake.root / f"step{step}", tensors, config)
        (fake.root / f"step{step}" / "pytorch_model.bin").write_bytes(b"never")
    return fake


def test_revisions_stream_with_two_on_disk_at_most(hub, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    names = [f"step{s}" for s in (512, 0, 1000, 1)]
    series = hub_series("EleutherAI/pythia-70m", names, folder=scratch)
    data = measure_series(series)
    assert list(data["step"].values) == [0, 1, 512, 1000]
    assert hub.most == 2
    assert list(scratch.iterdir()) == []  # all deleted
    assert not any(name.endswith(".bin") for _, _, name in hub.fetched)
    local = measure_series(find_series(*(hub.root / name for name in names)))
    np.testing.assert_array_equal(data["norm"], local["norm"])


def test_revisions_that_fail(hub, tmp_path):
    with pytest.raises(CheckpointError, match=r"repo@step7: 404 Client Error[^\n]*$"):
        measure_series(hub_series("repo", ["step7"]))
    (hub.root / "step1" / "model.safetensors").unlink()
    series = hub_series("repo", ["step0", "step1"])
    with pytest.raises(CheckpointError, match=r"repo@step1: no safetensors file, only pickles"):
        measure_series(series)
    assert measure_series(series, keep_going=True).sizes["step"] == 1


def test_without_the_hub_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"install iclflow\[hub\]"):
        hub_series("repo", ["step0"])
