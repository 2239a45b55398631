"""Measures over series of checkpoints, on disk and streamed from a hub."""

import dataclasses
import functools
import http.server
import importlib
import inspect
import json
import re
import shutil
import sys
import threading
import types
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from iclflow.checkpoints import (
    CheckpointError,
    files,
    find_series,
    hub_series,
    mark_stages,
    measure_series,
    torch_files,
)
from iclflow.checkpoints import hub as remote
from iclflow.checkpoints.files import TorchFile
from iclflow.checkpoints.hub import INDEX
from tests.helpers.attention_only import RECORDED, TOKENS
from tests.helpers.commands import call
from tests.helpers.written_checkpoints import (
    HEADS,
    LAYERS,
    SIZE,
    WIDTH,
    lens,
    llama,
    neox,
    save,
    shard,
    write_torch,
)


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
    monkeypatch.setattr("iclflow.checkpoints.series.check_series", lambda *_: [])
    measure_series(find_series(tmp_path))
    layers = [name.split(".")[2] for folder, name in reads if folder == "step1"]
    assert layers == ["0"] * 4 + ["1"] * 4  # each tensor once, layer after layer


def test_shards_equal_one_file(tmp_path):
    tensors, config = neox(np.random.default_rng(0))
    save(tmp_path / "whole" / "step7", tensors, config)
    shard(tmp_path / "parts" / "step7", tensors, config)
    one, two = (
        measure_series(find_series(tmp_path / k), measures=["norm"]) for k in ("whole", "parts")
    )
    np.testing.assert_array_equal(one["norm"], two["norm"])


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
    names += ["largest_angle", "step_distance", "subspace_speed", "top_singular_value"]
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
    assert np.isnan(ov["subspace_speed"][0])
    moved = ov["step_distance"].values[1:]
    assert moved.max() > 0.1
    steps = np.arange(1, 11)  # step 0 stands at half of step 1
    np.testing.assert_allclose(
        ov["subspace_speed"][1:], moved / np.log(steps / np.r_[0.5, steps[:-1]]), rtol=1e-12
    )
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
    assert "step4/model.safetensors: truncated or not" in problems[1]
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


# --- integrity --------------------------------------------------------------------------------


def moving(folder, steps, served=None):
    """Weights that move along a line with some noise; `served` has steps with others' weights."""
    tensors, _ = lens(np.random.default_rng(0))
    for step in steps:
        at = (served or {}).get(step, step)
        rng = np.random.default_rng(100 + at)
        moved = {k: v + 0.1 * at + 0.01 * rng.normal(size=v.shape) for k, v in tensors.items()}
        save(folder / f"step{step}", moved, {})
    return find_series(folder)


def doubts(series):
    return json.loads(measure_series(series, measures=["norm"]).attrs["integrity"])


def test_a_series_in_order_raises_no_doubt(tmp_path, growing_series):
    assert doubts(moving(tmp_path / "a", range(8))) == []
    assert doubts(moving(tmp_path / "b", [0, 1, 2, 4, 8, 16, 32])) == []


def test_steps_that_serve_the_weights_of_others_are_named(tmp_path):
    found = doubts(moving(tmp_path / "a", range(12), served={2: 11}))
    assert found[0] == "steps 2, 11 have the same weights in every bit"
    assert found[1].startswith("step 2 is out of line: at least 3 times as far from steps 1 and 3")
    assert len(found) == 2
    near_the_end = doubts(moving(tmp_path / "b", range(8), served={0: 6}))
    assert any(line.startswith("step 0 is out of line: nearer to step 7") for line in near_the_end)
    at_the_end = doubts(moving(tmp_path / "c", range(8), served={7: 0}))
    assert any(line.startswith("step 7 is out of line") for line in at_the_end)
    (tmp_path / "a" / "step3" / "model.safetensors").write_bytes(b"")
    kept = measure_series(find_series(tmp_path / "a"), measures=["norm"], keep_going=True)
    assert "steps 2, 11" in kept.attrs["integrity"]


# --- folders as others write them ---------------------------------------------------------------


def test_the_folder_of_a_trainer_is_a_series(tmp_path):
    """`checkpoint-*`, the last weights beside them, the folder of a log, a number in the name."""
    folder = tmp_path / "gpt2"
    tensors, config = llama(np.random.default_rng(0))
    for step in (100, 200, 50):
        save(folder / f"checkpoint-{step}", tensors, config)
    save(folder, tensors, config)
    (folder / "runs" / "Nov15_12-00-00").mkdir(parents=True)
    (folder / "logs2").mkdir()
    assert [c.step for c in find_series(folder)] == [50, 100, 200]
    (folder / "trainer_state.json").write_text('{"global_step": 230}')
    found = find_series(folder)
    assert [c.step for c in found] == [50, 100, 200, 230]
    assert found[-1].label == str(folder)
    (folder / "trainer_state.json").write_text('{"global_step": 200}')
    assert [c.step for c in find_series(folder)] == [50, 100, 200]
    save(tmp_path / "llama-3", tensors, config)
    assert [c.step for c in find_series(tmp_path / "llama-3")] == [0]  # the 3 is no step
    assert [c.step for c in find_series(folder / "checkpoint-50")] == [50]


# --- the hub ----------------------------------------------------------------------------------


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, and parts of them where `ranges` is set.

    - `shift`: how many bytes further on the parts begin than what was asked for, and say so.
    - `answers`: what is sent instead of anything else.
    """

    ranges, sent, asked_by, shift, answers = True, 0, "", 0, None

    def do_GET(self):
        type(self).asked_by = self.headers.get("Authorization", "")
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if path.name == "moved":  # a file that lies elsewhere
            self.send_response(302)
            self.send_header("Location", self.path.replace("moved", "model.safetensors"))
            self.end_headers()
            return
        if not self.ranges or found is None or not path.is_file():
            super().do_GET()
            return
        if self.answers is not None:
            self.wfile.write(self.answers)
            return
        whole, first = path.read_bytes(), int(found[1]) + self.shift
        part = whole[first : int(found[2]) + 1 + self.shift]
        type(self).sent += len(part)
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        last = first + len(part) - 1
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


class FakeHub(types.ModuleType):
    """The functions of huggingface_hub that are used, serving folders from disk."""

    def __init__(self, root: Path, address: str) -> None:
        super().__init__("huggingface_hub")
        self.root, self.address = root, address
        self.alive, self.most, self.fetched, self.listed = set(), 0, [], 0
        self.__path__ = []

    @staticmethod
    def build_hf_headers(*, token=None):
        return {"Authorization": f"Bearer {token}"}

    def list_repo_files(self, repo_id, *, revision=None, repo_type=None, token=None):
        if not (self.root / revision).exists():
            raise RuntimeError(f"404 Client Error. Revision {revision} not found\nmore lines")
        self.listed += 1
        found = (p for p in (self.root / revision).rglob("*") if p.is_file())
        return sorted(p.relative_to(self.root / revision).as_posix() for p in found)

    def hf_hub_url(self, repo_id, filename, *, revision=None):
        return f"{self.address}/{revision}/{filename}"

    def hf_hub_download(self, repo_id, filename, *, revision=None, local_dir=None, token=None):
        target = Path(local_dir) / filename
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((self.root / revision / filename).read_bytes())
        self.fetched.append((repo_id, revision, filename))
        self.alive = {p for p in self.alive | {Path(local_dir)} if p.exists()}
        self.most = max(self.most, len(self.alive))
        return str(target)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "remote").mkdir()
    handler = type("Handler", (Server,), {})
    made = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=tmp_path / "remote")
    )
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    handler.address = f"http://127.0.0.1:{made.server_address[1]}"
    yield handler
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def hub(tmp_path, monkeypatch, server):
    fake = FakeHub(tmp_path / "remote", server.address)
    for name in ("huggingface_hub", "huggingface_hub.utils"):
        monkeypatch.setitem(sys.modules, name, fake)
    for step in (0, 1, 512, 1000):
        tensors, config = neox(np.random.default_rng(step))
        tensors["embed"] = np.zeros((1000, 40))  # large, and never asked for
        write = shard if step == 512 else save
        write(fake.root / f"step{step}", tensors, config)
        (fake.root / f"step{step}" / "pytorch_model.bin").write_bytes(b"never")
    return fake


def test_only_the_tensors_asked_for_are_transferred(hub, server):
    names = [f"step{s}" for s in (512, 0, 1000, 1)]
    data = measure_series(hub_series("EleutherAI/pythia-70m", names, token="secret"))
    local = measure_series(find_series(*(hub.root / name for name in names)))
    np.testing.assert_array_equal(data["norm"], local["norm"])
    assert {name for _, _, name in hub.fetched} == {"config.json", INDEX}
    assert server.asked_by == "Bearer secret"
    whole = sum(f.stat().st_size for f in hub.root.rglob("*.safetensors"))
    assert 0 < server.sent < whole / 2


def test_a_token_is_not_taken_to_another_host(hub, server):
    there = hub.root / "step0"
    secret = {"Authorization": "Bearer secret"}
    parts = remote.RemoteBytes(f"{server.address}/step0/moved", secret, "moved")
    moved = remote.RemoteFile(parts, {})
    assert "embed" in moved.names()
    assert server.asked_by == "Bearer secret"
    elsewhere = server.address.replace("127.0.0.1", "localhost")
    redirect = remote._Redirects().redirect_request
    request = urllib.request.Request(server.address, headers={"Authorization": "Bearer secret"})
    assert redirect(request, None, 302, "", {}, elsewhere).headers == {}
    same = redirect(request, None, 302, "", {}, f"{server.address}/other")
    assert same.headers == {"Authorization": "Bearer secret"}
    secure = urllib.request.Request("https://hub/x", headers={"Authorization": "Bearer secret"})
    assert redirect(secure, None, 302, "", {}, "http://hub/x").headers == {}  # in the clear
    (there / "short.safetensors").write_bytes(b"123")
    short = remote.RemoteBytes(f"{server.address}/step0/short.safetensors", {}, "short")
    with pytest.raises(CheckpointError, match="short: truncated or not a safetensors file"):
        remote.RemoteFile(short, {})
    gone = remote.RemoteBytes(f"{server.address}/step0/gone", {}, "gone")
    with pytest.raises(CheckpointError, match="gone: HTTP Error 404"):
        remote.RemoteFile(gone, {})


def test_revisions_stream_with_two_on_disk_at_most(hub, tmp_path, server):
    server.ranges = False
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


def header(**tensors):
    """The bytes of a safetensors file whose header says this, with 16 bytes of tensors."""
    text = json.dumps({n: dict(zip(KEYS, about, strict=True)) for n, about in tensors.items()})
    return len(text).to_bytes(8, "little") + text.encode() + bytes(16)


KEYS = ("dtype", "shape", "data_offsets")
DAMAGED = {
    "a negative place": (header(a=("F32", [4], [-16, 0])), "whole numbers"),
    "a place that ends before it begins": (header(a=("F32", [4], [16, 0])), "at bytes 16 to 0"),
    "a place beyond the file": (header(a=("F32", [4], [16, 32])), "at bytes 16 to 32 of 16"),
    "an endless place": (header(a=("F32", [2**60], [0, 2**62])), "of 16"),
    "another shape": (header(a=("F32", [5], [0, 16])), r"has 16 bytes, its shape is \[5\]"),
    "a truth value": (header(a=("F32", [True, 4], [0, 16])), "whole numbers"),
    "a fraction": (header(a=("F32", [4.0], [0, 16])), "whole numbers"),
    "a shape of text": (header(a=("F32", "4", [0, 16])), "'shape' must be a list"),
    "three places": (header(a=("F32", [4], [0, 8, 16])), "whole numbers"),
    "a type that is none": (header(a=(3, [4], [0, 16])), "'dtype' must be text"),
    "no object": ((2).to_bytes(8, "little") + b"[]", "not a safetensors file"),
    "no JSON": ((2).to_bytes(8, "little") + b"{]", "not JSON"),
    "a header beyond the file": (
        (9999).to_bytes(8, "little") + b"{}",
        "a header of 9,999 bytes in a file of 10",
    ),
    "a header of 100 TB": ((10**14).to_bytes(8, "little") + b"{}", "a header of 100,000"),
    "bytes that are no text": ((2).to_bytes(8, "little") + b"\xff\xfe", "utf-8"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_header_on_the_hub_is_refused_before_a_tensor_is_asked_for(hub, server, case):
    content, complaint = DAMAGED[case]
    (hub.root / "step0" / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=complaint) as error:
        measure_series(hub_series("repo", ["step0"]))
    assert "repo@step0" in str(error.value)
    assert "\n" not in str(error.value)
    assert server.sent <= len(content)


def test_another_part_than_was_asked_for_is_not_taken_for_it(hub, server):
    """The server's parts begin a byte later, as it says; the whole files are downloaded then."""
    server.shift = 1
    data = measure_series(hub_series("repo", ["step0", "step1"]))
    local = measure_series(find_series(*(hub.root / f"step{n}" for n in (0, 1))))
    np.testing.assert_array_equal(data["norm"], local["norm"])
    assert ("repo", "step0", "model.safetensors") in hub.fetched


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 206 x\r\n" + b"A" * 70_000, b"", b"HTTP/1.1 9\r\n"]
)
def test_a_server_that_does_not_speak_http_is_one_line(hub, server, answer):
    server.answers = answer
    with pytest.raises(CheckpointError, match=r"^repo@step0 model.safetensors: .+") as error:
        measure_series(hub_series("repo", ["step0"]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../b", ""])
def test_an_index_on_the_hub_stays_in_its_repository(hub, name):
    (hub.root / "step512" / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=r"leaves the folder|needed the name of a file"):
        measure_series(hub_series("repo", ["step512"]))
    assert {file for _, _, file in hub.fetched} <= {"config.json", INDEX}


# --- the hub: files of torch.save -----------------------------------------------------------------


@pytest.fixture
def attention_only(hub):
    """A repository with all checkpoints in one revision, as the public attention-only models."""
    shutil.copytree(RECORDED, hub.root / "main")
    return "checkpoints/*.pth"


def test_files_of_one_revision_are_a_series(capsys, hub, server, attention_only):
    series = hub_series("someone/model", files=[attention_only])
    assert [checkpoint.step for checkpoint in series] == list(TOKENS)
    found, local = measure_series(series), measure_series(find_series(RECORDED))
    for name in local.data_vars:
        np.testing.assert_array_equal(found[name], local[name])
    assert {name for _, _, name in hub.fetched} == {"config.json"}
    command = ("diagnose", "--hf", "someone/model", "--files", attention_only, "--json")
    code, out, err = call(capsys, *command)
    assert (code, err) == (0, "")
    assert json.loads(out)["steps"] == list(TOKENS)
    server.ranges = False  # whole files, in their folder
    again = measure_series(hub_series("someone/model", files=["checkpoints/tokens_0000*"]))
    np.testing.assert_array_equal(again["norm"], local["norm"])
    assert hub.most == 2


def test_only_the_bytes_of_a_tensor_are_transferred(hub, server):
    """Of a file of 4 MB: its two ends, and then each tensor with at most its header."""
    tensors = lens(np.random.default_rng(0))[0]
    tensors = {"before": np.zeros((500, 500)), **tensors, "after": np.zeros((500, 500))}
    path = hub.root / "step0" / "pytorch_model.bin"
    (hub.root / "step0" / "model.safetensors").unlink()
    write_torch(path, tensors)
    url = f"{server.address}/step0/pytorch_model.bin"
    server.sent = 0
    source = TorchFile(remote.RemoteBytes(url, {}, "remote"), {})
    assert server.sent == 2 * torch_files.END
    for name in sorted(tensors)[2:]:
        before = server.sent
        np.testing.assert_array_equal(source.read(name), tensors[name])
        assert 0 <= server.sent - before - tensors[name].nbytes <= 30 + 20 + torch_files.PADDING
    rows = tensors["after"][400:402]  # a part of a storage that begins far from its header
    source.archive.tensors["rows"] = dataclasses.replace(
        source.archive.tensors["after"], shape=(2, 500), offset=400 * 500
    )
    before = server.sent
    np.testing.assert_array_equal(source.read("rows"), rows)
    assert server.sent - before <= rows.nbytes + 30 + 20 + torch_files.PADDING
    server.sent = 0
    data = measure_series(hub_series("repo", ["step0"]), measures=["norm"])  # read, and checked
    assert data.sizes["layer"] == LAYERS
    assert server.sent < 4 * torch_files.END + 20_000


def test_a_tensor_is_transferred_once_while_its_checkpoint_is_open(hub, server):
    [checkpoint] = hub_series("repo", ["step0"])
    with checkpoint.open() as source:
        name = source.names()[0]
        first, sent = source.read(name), server.sent
        np.testing.assert_array_equal(source.read(name), first)
        assert server.sent == sent


def test_files_that_are_no_series_are_named(hub, attention_only):
    with pytest.raises(
        CheckpointError, match=r"no file matches \*\.pt; there are 4 files of weight"
    ):
        hub_series("someone/model", files=["*.pt"])
    with pytest.raises(CheckpointError, match=r"config\.json: no step in the name"):
        hub_series("someone/model", files=["config*"])
    with pytest.raises(CheckpointError, match="files of one revision at a time, got main, step0"):
        hub_series("someone/model", ["main", "step0"], files=["*"])
    shutil.copy(hub.root / "main" / "types.pth", hub.root / "main" / "step0.pth")
    with pytest.raises(CheckpointError, match=r"step 0 appears more than once: someone/model@main"):
        hub_series("someone/model", files=[attention_only, "step0.pth"])
    with pytest.raises(
        CheckpointError, match=r"single file of torch.save \(step0.pth, types.pth\)"
    ):
        measure_series(hub_series("someone/model", ["main"]))


def test_revisions_that_fail(hub, tmp_path):
    with pytest.raises(CheckpointError, match=r"repo@step7: 404 Client Error[^\n]*$"):
        measure_series(hub_series("repo", ["step7"]))
    (hub.root / "step1" / "model.safetensors").unlink()
    series = hub_series("repo", ["step0", "step1"])
    with pytest.raises(CheckpointError, match=r"repo@step1 pytorch_model.bin: no zip archive.*E$"):
        measure_series(series)  # a few bytes that are no weights
    assert measure_series(series, keep_going=True).sizes["step"] == 1


def test_the_calls_are_those_of_the_real_package(hub, monkeypatch):
    """What is asked of the hub, bound to the signatures of the installed huggingface_hub."""
    for name in ("huggingface_hub", "huggingface_hub.utils"):
        monkeypatch.delitem(sys.modules, name)
    real = pytest.importorskip("huggingface_hub", reason="an extra: iclflow[hub]")
    utils = importlib.import_module("huggingface_hub.utils")
    asked = []

    def checked(name):
        def call(*names, **options):
            home = utils if name == "build_hf_headers" else real
            inspect.signature(getattr(home, name)).bind(*names, **options)
            asked.append(name)
            return getattr(hub, name)(*names, **options)

        return call

    used = ("list_repo_files", "hf_hub_download", "hf_hub_url", "build_hf_headers")
    checking = types.SimpleNamespace(**{name: checked(name) for name in used})
    monkeypatch.setattr("iclflow.checkpoints.hub._hub", lambda part="": checking)
    data = measure_series(hub_series("repo", ["step1", "step512"]), measures=["norm"])
    assert list(data["step"].values) == [1, 512]
    assert set(asked) == set(used)


def test_without_the_hub_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"pip install 'iclflow\[hub\]'$"):
        hub_series("repo", ["step0"])


@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_a_faulty_tensor_is_named_with_its_file(tmp_path, fault):
    """A fused tensor that is missing, an output matrix of the wrong shape: both are named."""
    for step in (1, 2, 3):
        tensors, config = neox(np.random.default_rng(step))
        name = next(n for n in tensors if "1.attention.query_key_value.weight" in n)
        if fault == "shape":
            name = name.replace("query_key_value", "dense")
        if step == 2 and fault == "missing":
            del tensors[name]
        elif step == 2:
            tensors[name] = tensors[name][:, :-1]
        save(tmp_path / f"step{step}", tensors, config)
    series = find_series(tmp_path)
    with pytest.raises(CheckpointError, match=rf"step2.*model.safetensors: tensor {name}"):
        measure_series(series, measures=("effective_rank",))
    kept = measure_series(series, measures=("effective_rank",), keep_going=True)
    assert list(kept["step"].values) == [1, 3]
    assert name in kept.attrs["problems"]
