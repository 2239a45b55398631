"""Files of `torch.save`, read without PyTorch: every tensor, nothing executed, one line each."""

import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iclflow.checkpoints import (
    CheckpointError,
    find_layout,
    find_series,
    measure_series,
    open_checkpoint,
)
from iclflow.checkpoints.files import TorchFile
from iclflow.checkpoints.torch_files import LocalBytes
from tests.helpers.attention_only import HEADS, LAYERS, RECORDED, TOKENS, other_types, state_dict
from tests.helpers.commands import call
from tests.helpers.written_checkpoints import (
    lens,
    llama,
    number,
    text,
    torch_dict,
    torch_tensor,
    write_archive,
    write_torch,
)

LAST = RECORDED / "checkpoints" / f"tokens_{TOKENS[-1]:012d}.pth"


@pytest.mark.parametrize("tokens", TOKENS)
def test_every_tensor_is_what_torch_saved(tokens):
    source = open_checkpoint(RECORDED / "checkpoints" / f"tokens_{tokens:012d}.pth")
    wanted = state_dict(tokens)
    assert source.names() == list(wanted)
    for name, values in wanted.items():
        assert source.shape(name) == values.shape
        if values.dtype != bool:
            found = source.read(name)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, values)
    mask = "blocks.0.attn.mask"
    with pytest.raises(CheckpointError, match=rf"\.pth: tensor {mask} has type bool, needed one"):
        source.read(mask)


def test_half_precisions_views_and_wrapped_tensors_are_read():
    source = open_checkpoint(RECORDED / "types.pth")
    wanted = other_types()
    assert set(source.names()) == {*wanted, "steps", "repeated"}
    for name, values in wanted.items():
        found = source.read(name)
        assert found.dtype == (np.float64 if name == "double" else np.float32)
        np.testing.assert_array_equal(found, values)
    with pytest.raises(CheckpointError, match="tensor steps has type int64"):
        source.read("steps")
    with pytest.raises(CheckpointError, match="tensor repeated repeats stored numbers"):
        source.read("repeated")


def test_the_folder_of_a_public_model_is_measured_like_its_arrays(capsys, tmp_path):
    shutil.copytree(RECORDED, tmp_path / "model")
    shutil.copy(LAST, tmp_path / "model" / "model_final.pth")
    for folder in (tmp_path / "model", tmp_path / "model" / "checkpoints"):
        series = find_series(folder)
        assert [checkpoint.step for checkpoint in series] == list(TOKENS)
        with series[0].open() as source:
            layout = find_layout(source)
            assert (layout.family, layout.heads) == ("TransformerLens", HEADS)
            assert source.config["n_layers"] == LAYERS
    for tokens in TOKENS:
        np.savez(tmp_path / f"step{tokens}.npz", **state_dict(tokens))
    found, wanted = (measure_series(find_series(f)) for f in (tmp_path / "model", tmp_path))
    for name in found.data_vars:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)
    code, out, err = call(capsys, "diagnose", tmp_path / "model")
    assert (code, err) == (0, "")
    assert "TransformerLens" in out


def test_a_folder_of_one_model_as_its_trainer_leaves_it(tmp_path):
    tensors, config = llama(np.random.default_rng(0))
    write_torch(tmp_path / "pytorch_model.bin", tensors)
    (tmp_path / "optimizer.pt").write_bytes(b"other things")
    (tmp_path / "rng_state_0.pth").write_bytes(b"other things")
    (tmp_path / "config.json").write_text(str(config).replace("'", '"'))
    [checkpoint] = find_series(tmp_path)
    with checkpoint.open() as source:
        assert find_layout(source).heads == 4
        for name, values in tensors.items():
            np.testing.assert_array_equal(source.read(name), values)
    write_torch(tmp_path / "other.pt", tensors)
    with pytest.raises(CheckpointError, match=r"2 PyTorch files \(other.pt, pytorch_model.bin\)"):
        open_checkpoint(tmp_path)


def test_shards_of_torch_files_equal_one_file(tmp_path):
    tensors, _ = lens(np.random.default_rng(0))
    names = list(tensors)
    files = {n: f"pytorch_model-0000{1 + (n in names[3:])}-of-00002.bin" for n in names}
    for file in set(files.values()):
        write_torch(tmp_path / file, {n: tensors[n] for n in names if files[n] == file})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(str({"weight_map": files}).replace("'", '"'))
    for path in (tmp_path, index):
        source = open_checkpoint(path)
        for name, values in tensors.items():
            np.testing.assert_array_equal(source.read(name), values)


def test_a_nan_beside_a_mask_is_named(tmp_path):
    tensors = lens(np.random.default_rng(0))[0] | {"blocks.0.attn.mask": np.ones((4, 4), bool)}
    tensors["blocks.0.attn.W_V"][0, 0, 0] = np.nan
    write_torch(tmp_path / "step1.pth", tensors)
    data = measure_series(find_series(tmp_path), measures=["norm"])
    assert "step 1, tensor blocks.0.attn.W_V: 1 of" in data.attrs["not_finite"]


# --- what a pickle may not do ---------------------------------------------------------------------


class Harm:
    """Writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_calls_something_is_refused_and_not_run(capsys, tmp_path, protocol):
    mark, path = tmp_path / "run", tmp_path / "step1.pth"
    program = pickle.dumps({"w": Harm(mark)}, protocol=protocol)
    write_archive(path, program)
    code, _, err = call(capsys, "diagnose", path)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{path}: its pickle cannot be read as weights alone" in err
    assert not mark.exists()
    pickle.loads(program)  # it would have been
    assert mark.exists()


def glob(name: str) -> bytes:
    return f"c{name}\n".replace(".", "\n").encode()


FOUR = torch_tensor("a", "FloatStorage", 4, (2, 2), (2, 1))
PROGRAMS = {
    "a function": (torch_dict(w=glob("posix.system") + b"(" + text("true") + b"tR"), "names posix"),
    "a name without a call": (torch_dict(w=glob("builtins.eval")), "it names builtins.eval"),
    "a class of its own": (torch_dict(w=b"ccollections\nOrderedDict\n)\x81"), "NEWOBJ"),
    "a call of a type": (torch_dict(w=b"ctorch\nFloatStorage\n)R"), "calls torch.FloatStorage"),
    "a call of a text": (torch_dict(w=text("os") + b")R"), "it calls os"),
    "an old instance": (torch_dict(w=b"(iposix\nsystem\n"), "the instruction INST"),
    "attributes of a name": (
        torch_dict(w=b"ccollections\nOrderedDict\n}" + text("a") + text("b") + b"sb"), "changes a"
    ),
    "attributes of a tensor": (torch_dict(w=FOUR + b"}b"), "it changes a StoredTensor"),
    "a number from a registry": (torch_dict(w=b"\x82\x01"), "the instruction EXT1"),
    "another reference": (torch_dict(w=text("moved") + b"Q"), "refers to something that is no st"),
    "a storage of text": (torch_dict(w=FOUR.replace(number(4), text("4"), 1)), "type, name and si"),
    "an unknown type": (torch_dict(w=FOUR.replace(b"FloatS", b"QInt8S")), "torch.QInt8Storage"),
    "a key that is a tuple": (b"\x80\x02}((NNtNu.", "a tuple as a key"),
    "a negative size": (
        torch_dict(w=torch_tensor("a", "FloatStorage", 4, (-2, 2), (2, 1))), r"shape \(-2, 2\)"
    ),
    "a fraction of a size": (torch_dict(w=FOUR.replace(number(2), b"G" + bytes(8), 1)), "a tensor"),
    "two shapes": (
        torch_dict(w=torch_tensor("a", "FloatStorage", 4, (2, 2), (1,))), "with strides"
    ),
    "no storage": (
        torch_dict(w=b"ctorch._utils\n_rebuild_tensor_v2\n(NNNNtR"), "a tensor without a storage"
    ),
    "too few arguments": (torch_dict(w=b"ctorch._utils\n_rebuild_tensor_v2\n)R"), "damaged"),
    "an empty stack": (b"\x80\x02R.", "damaged"),
    "nothing below a mark": (b"\x80\x02t.", "damaged"),
    "a memo that is not there": (b"\x80\x02h\x07.", "damaged"),
    "two results": (b"\x80\x02}}.", "damaged|values to unpack"),
    "no end": (b"\x80\x02}", "exhausted"),
    "no instructions": (b"\xff\xfe", "at position 0"),
    "no tensors": (torch_dict(w=number(3)), r"no tensors under names.*\['w'\]"),
    "no dictionary": (b"\x80\x02].", "no tensors under names.*list"),
}  # fmt: skip


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_pickle_that_is_not_of_weights_is_one_line(tmp_path, case):
    program, complaint = PROGRAMS[case]
    path = tmp_path / "step1.pth"
    write_archive(path, program, a=bytes(16))
    with pytest.raises(CheckpointError, match=complaint) as error:
        open_checkpoint(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


# --- what an archive may be -----------------------------------------------------------------------

PLACES = {
    "a tensor beyond its storage": (FOUR, bytes(8), "ends beyond|has 8 bytes for 4 numbers"),
    "an offset beyond it": (
        torch_tensor("a", "FloatStorage", 4, (2, 2), (2, 1), offset=1), bytes(16), "ends beyond"
    ),
    "steps beyond it": (
        torch_tensor("a", "FloatStorage", 4, (2, 2), (3, 1)), bytes(16), "ends beyond its 4"
    ),
    "a tensor of more numbers than stored": (
        torch_tensor("a", "FloatStorage", 4, (2**30, 2**30), (0, 0)), bytes(16), "repeats stored"
    ),
    "a storage of another size": (FOUR, bytes(20), "has 20 bytes for 4 numbers of type float32"),
    "no storage": (
        torch_tensor("b", "FloatStorage", 4, (4,), (1,)), bytes(16), "archive/data/b, which is not"
    ),
    "no weights": (torch_tensor("a", "LongStorage", 2, (2,), (1,)), bytes(16), "has type int64"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_a_tensor_without_its_numbers_is_named(tmp_path, case):
    described, stored, complaint = PLACES[case]
    path = tmp_path / "step1.pth"
    write_archive(path, torch_dict(w=described), a=stored)
    with pytest.raises(CheckpointError, match=rf"step1\.pth: tensor w .*({complaint})"):
        open_checkpoint(path).read("w")


def test_numbers_that_lie_otherwise_are_refused(tmp_path):
    path = tmp_path / "step1.pth"
    write_archive(path, torch_dict(w=FOUR), order=b"big", a=bytes(16))
    with pytest.raises(CheckpointError, match=r"step1\.pth: its numbers are big-endian"):
        open_checkpoint(path)
    write_archive(path, torch_dict(w=FOUR), pack=zipfile.ZIP_DEFLATED, a=bytes(16))
    with pytest.raises(CheckpointError, match=r"archive/byteorder is compressed or encrypted"):
        open_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.txt", "1 2 3")
    with pytest.raises(CheckpointError, match=r"a zip archive with 0 members data\.pkl"):
        open_checkpoint(path)


def test_what_is_no_archive_is_refused_with_the_command(tmp_path):
    path = tmp_path / "a b.pth"
    old = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files before PyTorch 1.6 begin
    for content in (old, b"", b"x", pickle.dumps({"w": 1})):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"no zip archive.*convert '.*a b\.pth'$"):
            open_checkpoint(path)
    whole = LAST.read_bytes()
    for length in (30, 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"a b\.pth: truncated or damaged") as error:
            open_checkpoint(path)
        assert "\n" not in str(error.value)


def test_damage_anywhere_is_one_line_or_another_number(tmp_path):
    """A byte changed: a line about the file, or tensors of the shapes that it says."""
    rng = np.random.default_rng(0)
    whole, path = LAST.read_bytes(), tmp_path / "step1.pth"
    for _ in range(200):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=rng.integers(1, 4)):
            data[place] = rng.integers(256)
        path.write_bytes(data)
        lines = []
        try:
            source = TorchFile(LocalBytes(path), {})
            for name in source.names():
                if not name.endswith("mask"):
                    assert source.read(name).shape == source.shape(name)
        except CheckpointError as error:
            lines = str(error).split("\n")
        assert len(lines) <= 1
        assert all(str(path) in line for line in lines)
