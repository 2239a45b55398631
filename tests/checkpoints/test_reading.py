"""Files that others wrote: links, FIFOs, bombs, wrong types, control characters; one line each."""

import json
import os
import re
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iclflow.checkpoints import (
    CheckpointError,
    find_layout,
    find_series,
    open_checkpoint,
    read_curve,
)
from iclflow.checkpoints import measure_series as measured
from iclflow.diagnosis import diagnose_curve
from iclflow.results import archives, files
from iclflow.results.messages import printable
from iclflow.results.netcdf import load
from iclflow.runs.folder import RunFolder
from iclflow.study.study import read_toml
from tests.helpers.commands import call, problem
from tests.helpers.written_checkpoints import lens, llama, save, write_safetensors, write_torch

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def odd(tmp_path):
    """Paths that are no regular files, by name."""
    (tmp_path / "endless").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return {name: tmp_path / name for name in ("endless", "fifo", "folder", "loop")}


READERS = {
    "bytes": files.read_bytes, "text": files.read_text, "json": files.read_json,
    "object": files.read_object, "npz": archives.Archive, "npy": archives.map_array,
    "netcdf": load, "toml": read_toml,
}  # fmt: skip


@pytest.mark.parametrize("name", ["endless", "fifo", "folder", "loop"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(odd, name, reader):
    with pytest.raises(ValueError, match=re.escape(str(odd[name]))) as caught:
        READERS[reader](odd[name])
    assert "\n" not in str(caught.value)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}')
    assert files.read_object(file, most=8) == {"a": 1}
    with pytest.raises(ValueError, match="has 8 bytes, needed at most 7"):
        files.read_object(file, most=7)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        files.read_text(file)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, int), (2.5, int), ([2], int), (True, int), ("x", float), (1, str), ({}, list)],
)
def test_an_entry_of_another_type_is_named(value, kind):
    with pytest.raises(ValueError, match=r"config\.json: 'key' must be"):
        files.field({"key": value}, "key", kind, "config.json")
    with pytest.raises(ValueError, match=r"config\.json: 'key' is missing"):
        files.field({}, "key", kind, "config.json")


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "..\\x", "", 3, None, "\\x"])
def test_an_index_names_files_in_its_own_folder(tmp_path, name):
    with pytest.raises(ValueError, match="index"):
        files.inside(tmp_path, name, "index")
    assert files.inside(tmp_path, "a/b", "index") == tmp_path / "a" / "b"


def test_members_that_unpack_to_far_more_than_they_have_are_refused(tmp_path):
    path, large = tmp_path / "bomb.npz", 2**27
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        about = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({large},), }}".encode()
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + about.ljust(117) + b"\n"
        with archive.open("a.npy", "w") as member:
            member.write(header)
            for _ in range(large // 2**20):
                member.write(bytes(2**20))
    with pytest.raises(CheckpointError, match=r"array a unpacks .* bytes to 134,217,728"):
        open_checkpoint(path)
    np.savez(tmp_path / "fine.npz", a=np.arange(4.0))
    archive = archives.Archive(tmp_path / "fine.npz")
    np.testing.assert_array_equal(archive.read("a"), np.arange(4.0))
    with pytest.raises(ValueError, match="array a has 32 bytes, needed at most 31"):
        archive.read("a", most=31)


def test_control_characters_never_reach_the_terminal(capsys, tmp_path):
    assert printable("a\x1b[31m\x9b\x07é\u202e") == "a\\x1b[31m\\x9b\\x07é\\u202e"
    log = tmp_path / "log.csv"
    log.write_text("step,\x1b[2Jone,\x1b[2Jtwo\n1,2,3\n")
    write_safetensors(tmp_path / "m.safetensors", {"\x1b[2Jw\u009b": np.zeros((2, 2))})
    tensors, config = llama(np.random.default_rng(0))
    strange = {k.replace("model.", "\x1b]0;title\x07."): v for k, v in tensors.items()}
    strange |= {k.replace("title", "other"): v for k, v in strange.items()}
    save(tmp_path / "two" / "step1", strange, config)
    for path in (log, tmp_path / "m.safetensors", tmp_path / "two"):
        code, out, err = call(capsys, "diagnose", path)
        assert code == 2
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out + err)
        assert "\\x1b" in err


# --- checkpoints --------------------------------------------------------------------------------


BROKEN = {
    "an index without weight_map": ("model.safetensors.index.json", "{}", "'weight_map' is missi"),
    "an index that is a list": ("model.safetensors.index.json", "[]", "needed a JSON object"),
    "an index that leaves the folder": (
        "model.safetensors.index.json", '{"weight_map": {"a": "../../x.safetensors"}}', "leaves the"
    ),
    "an index of numbers": ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "got 1"),
    "a list of heads": ("config.json", '{"n_head": [2]}', "'n_head' must be a whole number"),
    "half a head": ("config.json", '{"n_head": 2.5}', "'n_head' must be a whole number"),
    "a step that is null": ("trainer_state.json", '{"global_step": null}', "'global_step' must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_files_beside_the_weights_are_typed(capsys, tmp_path, case):
    name, text, complaint = BROKEN[case]
    save(tmp_path, *llama(np.random.default_rng(0)))
    (tmp_path / name).write_text(text)
    code, _, err = call(capsys, "diagnose", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert complaint in err


def test_tensors_without_values_are_named(tmp_path):
    tensors, config = llama(np.random.default_rng(0))
    name = "model.layers.1.self_attn.o_proj.weight"
    save(tmp_path / "step1", {**tensors, name: np.zeros((0, 12))}, config)
    with pytest.raises(CheckpointError, match=rf"tensor {name} has shape \(0, 12\); it holds no"):
        measured(find_series(tmp_path))


def test_one_nan_in_a_tensor_is_said_and_not_averaged_away(capsys, tmp_path):
    tensors, config = llama(np.random.default_rng(0))
    save(tmp_path / "step1", tensors, config)
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][0, 0] = np.nan
    save(tmp_path / "step2", tensors, config)
    code, out, err = call(capsys, "diagnose", tmp_path, "--measures", "norm")
    assert code == 0
    assert f"warning: step 2, tensor {name}: 1 of 72 values are not finite" in err
    assert re.search(r"norm at the end, mean over heads: QK \d+\.\d+, OV nan", out)


FOREIGN = {
    "adapter_config.json": "a LoRA adapter", "__0_0.distcp": "dcp_to_torch",
    "_CHECKPOINT_METADATA": "a checkpoint of Orbax", "pytorch_model.bin": "convert it to safetens",
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_formats_that_are_not_read_are_named_with_the_way_out(capsys, tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    code, _, err = call(capsys, "diagnose", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert FOREIGN[name] in err


def test_the_names_of_an_adapter_are_known(tmp_path):
    stem = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    write_safetensors(tmp_path / "a.safetensors", {stem + "A.weight": np.zeros((2, 4))})
    with pytest.raises(CheckpointError, match="a LoRA adapter"):
        find_layout(open_checkpoint(tmp_path / "a.safetensors"))


def notes_of(tensors, config, tmp_path):
    save(tmp_path, tensors, config)
    source = open_checkpoint(tmp_path)
    return find_layout(source).notes(source)


def test_a_part_of_a_checkpoint_and_layers_without_attention_say_so(tmp_path):
    tensors, config = llama(np.random.default_rng(0))
    plain = notes_of(tensors, config | {"num_hidden_layers": 2}, tmp_path / "whole")
    assert "layers not in the file" not in plain
    assert "layers left out" not in plain
    part = notes_of(tensors, config | {"num_hidden_layers": 5}, tmp_path / "part")
    assert part["layers not in the file"].startswith("3 of the 5 that the settings name, from 2")
    other = {"model.layers.2.self_attn.qkv_proj.weight": np.ones((4, 4))}  # MiniMax's linear layers
    left = notes_of(tensors | other, config, tmp_path / "left")
    assert left["layers left out"].startswith("2: they have no attention under the names of Llama")


def tiny(kind, **options):
    """A model of transformers with random weights, as its library names them."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip(f"this transformers has no {kind}")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=11, **options)
    return getattr(transformers, f"{kind}Model")(config), config


@pytest.mark.long
def test_settings_and_notes_of_real_models(tmp_path):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
             "intermediate_size": 8, "num_hidden_layers": 2}  # fmt: skip
    said = {}
    for kind, options in (
        ("XGLM", {"d_model": 8, "attention_heads": 2, "num_layers": 2, "ffn_dim": 8}),
        ("BitNet", sizes), ("DiffLlama", sizes),
    ):  # fmt: skip
        model, config = tiny(kind, **options)
        arrays = {k: v.detach().numpy() for k, v in model.state_dict().items() if v.ndim}
        save(tmp_path / kind, {k: np.array(v, np.float32) for k, v in arrays.items()},
             json.loads(config.to_json_string()))  # fmt: skip
        source = open_checkpoint(tmp_path / kind)
        layout = find_layout(source)
        assert (layout.heads, layout.layers) == (2, (0, 1))
        said[kind] = layout.notes(source)
    assert "inner norm" in said["BitNet"]
    assert "differential attention" in said["DiffLlama"]
    assert not {"inner norm", "differential attention"} & set(said["XGLM"])


def test_a_damaged_plan_of_a_run_is_one_line(tmp_path):
    for text in ("{}", "[]", '{"content_key": 3}', "{", ""):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / "plan.json"))):
            RunFolder(tmp_path, lambda: {"a": 1})


# --- curves that fail -----------------------------------------------------------------------------


def curve(capsys, tmp_path, losses):
    file = tmp_path / "loss.csv"
    rows = (f"{step},{loss}" for step, loss in enumerate(losses))
    file.write_text("step,loss\n" + "\n".join(rows))
    theory = ["--spectrum", "0.5,0.3", "--context", "9", "--rate", "0.1", "--scale", "0.1"]
    return [call(capsys, "diagnose", file, *theory, "--starts", "4", *more)[1]
            for more in ([], ["--json"])]  # fmt: skip


def test_a_training_that_ended_in_nan_gets_no_forecast(capsys, tmp_path):
    text, said = curve(capsys, tmp_path, [0.8] * 60 + [np.nan] * 5)
    assert "the loss is not finite from step 60 on: the training failed" in text
    assert "next drop" not in text
    found = json.loads(said)
    assert (found["failed_at"], found["next_drop"], found["not_finite"]) == (60, None, 5)
    text, said = curve(capsys, tmp_path, [0.8] * 30 + [np.nan] * 5 + [0.8] * 30)
    assert "5 losses are not finite and were left out" in text
    assert json.loads(said)["failed_at"] is None


def test_a_loss_that_rises_is_no_plateau(capsys, tmp_path):
    rng = np.random.default_rng(0)
    for noise in (0.0, 0.05):
        losses = 0.8 + np.linspace(0, 1.5, 200) + noise * rng.normal(size=200)
        text, said = curve(capsys, tmp_path, losses)
        assert "rising to" in text
        assert "the loss rises at the end: no drop is predicted" in text
        found = json.loads(said)
        assert found["rising"] is True
        assert found["next_drop"] is None
        assert found["stages"][-1]["rises_to"] > 1.9


def test_level_stages_with_noise_are_not_called_rising():
    steps = np.arange(400.0)
    wrong = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        losses = np.where(steps < 100, 1.0, 0.5) + 0.1 * rng.normal(size=400)
        wrong += int(np.isfinite(diagnose_curve(steps, losses)["rises_to"]).sum())
    assert wrong == 0


# --- damaged files ----------------------------------------------------------------------------


def mutated(data, rng):
    """Bytes with one kind of harm, drawn."""
    kind, data = rng.integers(5), bytearray(data)
    place = int(rng.integers(len(data)))
    if kind == 0:
        return bytes(data[:place])
    if kind == 1:
        return bytes(rng.integers(0, 256, rng.integers(1, 400), dtype=np.uint8))
    if kind == 2:
        return bytes(data[:place] + data[place:][: int(rng.integers(1, 40))] + data[place:])
    for _ in range(1 if kind == 3 else 20):
        data[int(rng.integers(min(len(data), 2000)))] = int(rng.integers(256))
    return bytes(data)


WRONG = ("null", "3", "[]", "{}", '"x"', "true", "1e999", "-1", "[[[]]]", '{"a": {"a": []}}')


def harmed_json(text, rng):
    """JSON with one value replaced by another type."""
    places = [m.span(1) for m in re.finditer(r':\s*("[^"]*"|-?[\d.e+]+|\[\]|null|true)', text)]
    start, end = places[rng.integers(len(places))]
    return text[:start] + WRONG[rng.integers(len(WRONG))] + text[end:]


def kinds_of_files(folder):
    """One good file of every kind that is read, with the arguments that read it."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    steps = range(12)
    tensors, config = llama(rng)
    save(folder / "run" / "step1", tensors, config | {"num_hidden_layers": 2})
    np.savez(folder / "step1.npz", **lens(rng)[0])
    write_torch(folder / "step1.pth", lens(rng)[0])
    (folder / "t").mkdir()
    save(folder / "t", tensors, config)
    history = [{"step": s, "loss": 1 / (1 + s)} for s in steps]
    state = {"global_step": 12, "log_history": history}
    (folder / "t" / "trainer_state.json").write_text(json.dumps(state))
    names = dict.fromkeys(tensors, "model.safetensors")
    (folder / "t" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "a.csv").write_text("step,loss\n" + "\n".join(f"{s},{1 / (1 + s)}" for s in steps))
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, history)))
    (folder / "a.json").write_text(json.dumps(history))
    lines = (f"iter {s}: loss {1 / (1 + s)}, time 3ms" for s in steps)
    (folder / "a.log").write_text("\n".join(lines))
    shutil.copyfile(DATA / "events.out.tfevents.scalars", folder / "events.out.tfevents.1")
    diagnose = {
        "run/step1/model.safetensors": "run", "run/step1/config.json": "run",
        "step1.npz": "step1.npz", "step1.pth": "step1.pth", "t/model.safetensors.index.json": "t",
        "t/trainer_state.json": "t", "t/config.json": "t", "a.csv": "a.csv", "a.jsonl": "a.jsonl",
        "a.json": "a.json", "a.log": "a.log", "events.out.tfevents.1": "events.out.tfevents.1",
    }  # fmt: skip
    return {name: ["diagnose", str(folder / path), "--json"] for name, path in diagnose.items()}


def damage(capsys, folder, seed, count):
    """What went wrong with drawn harm to every kind of file: nothing, or one line each."""

    rng, wrong = np.random.default_rng(seed), []
    commands = kinds_of_files(folder)
    for name, command in commands.items():
        assert call(capsys, *command)[0] == 0, f"{name} is no good file"
    for number in range(count):
        name = list(commands)[number % len(commands)]
        file = folder / name
        whole = file.read_bytes()
        kind = rng.integers(8)
        if kind == 0:
            file.unlink()
            file.symlink_to("/dev/zero")
        elif kind == 1:
            file.unlink()
            os.mkfifo(file)
        elif kind == 2:
            file.unlink()
            file.mkdir()
        elif kind < 5 and name.endswith(".json"):
            file.write_text(harmed_json(whole.decode(), rng))
        else:
            file.write_bytes(mutated(whole, rng))
        found = problem(capsys, commands[name], quiet=False)
        if found is not None:
            wrong.append(f"{seed}, {number}, {name}: {found}")
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        file.write_bytes(whole)
    assert not wrong, "\n".join(wrong)


def test_damaged_files_of_every_kind_get_one_line(capsys, tmp_path):
    damage(capsys, tmp_path / "files", seed=0, count=72)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_many_damaged_files_of_every_kind_get_one_line(capsys, tmp_path, seed):
    damage(capsys, tmp_path / "files", seed=seed, count=220)


def test_a_loss_beside_a_broken_log_is_still_measured(capsys, tmp_path):
    save(tmp_path, *llama(np.random.default_rng(0)))
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "run-1.wandb").write_bytes(b":W&B")
    code, _, err = call(capsys, "diagnose", tmp_path)
    assert code == 0
    assert "without a loss" in err
    assert "the offline format of W&B" in err
    with pytest.raises(ValueError, match="the offline format of W&B"):
        read_curve(tmp_path / "wandb")
