"""Malformed and extreme input to every command: one line, exit code 2, nothing lost.

The inputs are drawn from fixed seeds. What a command accepts it may also run: these are tiny.
"""

import json
import struct
import zipfile

import numpy as np
import pytest

from iclflow.cli import main
from iclflow.study.fields import FIELDS
from tests.helpers.commands import problem
from tests.helpers.written_checkpoints import FAMILIES, save, write_safetensors

TINY = ["--spectrum", "0.5,0.3", "--context", "4", "--heads", "2"]
RUN = [*TINY, "--scale", "0.5", "--steps", "20", "--save", "linear:5", "--json"]
HUGE = ["99999999999999999999999", "1000000000000", "1e300"]
WRONG = ["-1", "0", "nan", "inf", "-inf", "x", "", " ", "1,2", "4 3 2 1", "1e", "0x10", "½", "\t"]
TEXTS = [*WRONG, "'", '"', "../..", "/dev/null", "%s", "${HOME}", "a" * 10_000, "9" * 5000, "💥"]


def check(capsys, inputs):
    """Every input of a list; all that went wrong together."""
    found = [(" ".join(map(str, a))[-150:], problem(capsys, a)) for a in inputs]
    wrong = [f"{line}: {why}" for line, why in found if why is not None]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(autouse=True)
def _precious(tmp_path, monkeypatch):
    """A folder with a file that no command may touch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.png").write_text("precious")
    (tmp_path / "mine.nc").write_text("precious")
    yield
    assert (tmp_path / "mine.png").read_text() == "precious"
    assert (tmp_path / "mine.nc").read_text() == "precious"


def flags(name):
    return f"--{name.replace('_', '-')}"


def settings_inputs(command, base, rng, count):
    """Options of an experiment with values that they cannot have."""
    numbers = [n for n, (kind, about) in FIELDS.items() if kind is not bool]
    if command == "theory":
        numbers = [n for n in numbers if FIELDS[n][1].group in ("task", "model")]
    for _ in range(count):
        name = numbers[rng.integers(len(numbers))]
        pool = TEXTS if rng.random() < 0.7 else HUGE
        yield [command, *base, flags(name), pool[rng.integers(len(pool))]]


def test_some_drawn_options(capsys):
    """A share of what the slow tests draw: options of two commands."""
    rng = np.random.default_rng(99)
    check(capsys, settings_inputs("simulate", RUN, rng, 5))
    check(capsys, settings_inputs("theory", [*TINY, "--json"], rng, 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_options_of_simulate(capsys, seed):
    check(capsys, settings_inputs("simulate", RUN, np.random.default_rng(seed), 30))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_options_of_theory(capsys, seed):
    check(capsys, settings_inputs("theory", [*TINY, "--json"], np.random.default_rng(seed), 25))


PUBLISHED = {
    "head_num": HUGE, "rank": HUGE, "in_dim": HUGE, "seq_len": HUGE, "trainset_size": HUGE,
    "testset_size": HUGE, "epoch": HUGE, "seed": HUGE, "init": ["1e200", "1e308"],
    "lr": ["1e308"], "icl": ["c", "2"], "model": ["attn", "mlp"], "out_dim": ["2"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_flags_of_train(capsys, seed):
    rng, names = np.random.default_rng(seed), list(PUBLISHED)
    base = ["train", "--trainset_size", "20", "--epoch", "5", "--seq_len", "5", "--json"]
    inputs = []
    for _ in range(30):
        name = names[rng.integers(len(names))]
        pool = [*WRONG, "9" * 5000, *PUBLISHED[name]] + 3 * PUBLISHED[name]
        inputs.append([*base, f"--{name}", pool[rng.integers(len(pool))]])
    check(capsys, inputs)


VALUES = [
    "-1", "0", "1e999", "nan", "true", "'x'", "''", "[]", "[[1]]", "[1, 'a']", "{}", "2024-01-01",
    "99999999999999999999999", "[" * 2000 + "]" * 2000, '"' + "a" * 5000 + '"', "1_0", "inf",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_settings_files(capsys, tmp_path, seed):
    rng, names, inputs = np.random.default_rng(seed), list(FIELDS), []
    for i in range(25):
        lines = [f"{names[rng.integers(len(names))]} = {VALUES[rng.integers(len(VALUES))]}"]
        lines += ["steps = 5", "heads = 2", "spectrum = [0.5, 0.3]"][: rng.integers(4)]
        data = "\n".join(lines).encode()
        if i % 5 == 0:
            data = bytes(rng.integers(0, 256, 200, dtype=np.uint8))
        path = tmp_path / f"{i}.toml"
        path.write_bytes(data)
        inputs.append(["simulate" if i % 2 else "theory", "--from", path, "--json"])
        inputs[-1] += ["--scale", "0.5", "--heads", "2"] if i % 2 == 0 else ["--steps", "5"]
    check(capsys, inputs)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.nc"
    assert main(["simulate", *RUN, "--out", str(path)]) == 0
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_runs_with_flipped_bytes(capsys, tmp_path, run_file, seed):
    rng, whole, inputs = np.random.default_rng(seed), run_file.read_bytes(), []
    capsys.readouterr()
    for i in range(15):
        data = bytearray(whole[: rng.integers(len(whole))] if i % 5 == 0 else whole)
        for _ in range(1 + 20 * (i % 3)):
            if data:
                data[rng.integers(min(len(data), 4096 if i % 2 else 10**9))] ^= int(
                    rng.integers(1, 256)
                )
        path = tmp_path / f"{i}.nc"
        path.write_bytes(data)
        how = [
            ["diagnose", path, "--samples", "20", "--json"],
            ["animate", path, "--out", tmp_path / f"{i}.gif", "--seconds", "0.2", "--json"],
            ["simulate", *TINY, "--scale", "0.5", "--from", path, "--json"],
        ]
        inputs.append(how[i % 3])
    check(capsys, inputs)


def changed(run, path, **changes):
    """A run written with some of it replaced; an attribute is named with a trailing underscore."""
    attributes = {k[:-1]: v for k, v in changes.items() if k.endswith("_")}
    data = {k: v for k, v in changes.items() if not k.endswith("_")}
    run = run.assign_attrs(attributes)
    for name, value in data.items():
        run = run.drop_vars(name, errors="ignore")
        if value is not None:
            run[name] = value
    run.to_netcdf(path, engine="h5netcdf")
    return path


@pytest.mark.slow
def test_runs_that_make_no_sense(capsys, tmp_path, run_file):
    import xarray as xr

    from iclflow.results.netcdf import load

    run = load(run_file)
    capsys.readouterr()
    said = json.loads(run.attrs["settings"])

    def settings(**changes):
        return {"settings_": json.dumps({**said, **changes})}

    time = run.sizes["time"]
    cases = [
        {"loss": None}, {"loss": (("seed", "time"), np.full((1, time), "text"))},
        {"loss": (("seed", "time"), np.full((1, time), np.nan))}, {"loss": ((), 1.0)},
        {"loss": (("seed", "time"), np.full((1, time), -1.0))}, {"keys": None},
        {"keys": (("seed", "time"), np.ones((1, time)))}, {"values": ((), 0.0)},
        {"seed": ("seed", ["a"])}, {"seed": ("seed", [-5])}, {"step": None}, {"result": None},
        {"time": None}, {"time": ("time", np.full(time, np.nan))},
        {"settings_": "{"}, {"settings_": "[" * 100_000}, {"settings_": "{}"}, {"settings_": 3},
        {"settings_": json.dumps([1])}, settings(kind="Other"), settings(kind=None),
        settings(heads=10**12), settings(heads=-1), settings(heads="x"), settings(context=10**18),
        settings(spectrum="linear", dim=10**9), settings(spectrum=[]), settings(model="x"),
        settings(spectrum=[[1]]), settings(seed=-1), settings(seeds=10**12), settings(new=1),
        settings(sequences=10**15), settings(save="log:1000000000000"), settings(rank=7),
        settings(lengths=[10**9]), settings(pool=10**12), settings(noise="nan"),
    ]  # fmt: skip
    inputs = []
    for i, case in enumerate(cases):
        path = changed(run, tmp_path / f"{i}.nc", **case)
        inputs.append(["diagnose", path, "--samples", "20", "--json"])
        if i % 3 == 0:
            film = tmp_path / f"{i}.gif"
            inputs.append(["animate", path, "--out", film, "--seconds", "0.2", "--json"])
    for i, part in enumerate((run.isel(seed=slice(0)), run.isel(time=slice(0)), xr.Dataset())):
        path = changed(part, tmp_path / f"empty{i}.nc")
        inputs += [["diagnose", path], ["animate", path, "--out", tmp_path / "e.gif"]]
    many = xr.Dataset({f"v{i}": ((), 1.0) for i in range(1000)})
    inputs.append(["diagnose", changed(many, tmp_path / "many.nc")])
    check(capsys, inputs)


CURVES = [
    "", "step,loss", "step,loss\n", "step,loss\n1,2\n", "loss\n1\n2\n3\n", "step,loss\n1\n2\n3\n",
    "step,loss\n0,nan\n1,nan\n2,nan\n3,nan\n", "step,loss\n0,inf\n1,inf\n2,inf\n3,inf\n",
    "step,loss\n0,1\n0,1\n0,1\n", "step,loss\n3,1\n2,1\n1,1\n", "step,loss\n-3,1\n-2,1\n-1,1\n",
    "step,loss\n0,1e308\n1,-1e308\n2,1e308\n", "step,loss\n0,1\n1,1\n2,1\n3,1\n",
    "step,loss\n0,1\n1e308,1\n", "step,loss\n0,1,\n1,1,\n2,1,,,,\n", "step,loss\n0;1\n1;1\n2;1\n",
    "step,loss\n0,1\n1," + "9" * 200_000 + "\n2,1\n", "step,loss\n" + "x" * 200_000,
    'step,loss\n"0,1\n1,1\n2,1\n', "step,loss\n0,1\n1,\0\n2,1\n", "step,loss\n" + "0,1\n" * 5,
    "step,loss\n" + "\n".join(f"{i},1" for i in range(50)),
    "step,loss\n" + "\n".join(f"{i},{-i}" for i in range(50)),
    "step,loss\n0,1e-320\n1,1e-321\n2,1e-322\n3,0\n",
]  # fmt: skip


@pytest.mark.slow
def test_loss_curves(capsys, tmp_path):
    inputs = []
    theory = ["--spectrum", "0.5,0.3", "--context", "4", "--rate", "0.1", "--scale", "0.1"]
    for i, text in enumerate(CURVES):
        path = tmp_path / f"{i}.csv"
        path.write_text(text)
        inputs += [["diagnose", path, "--json"], ["diagnose", path, *theory, "--starts", "2"]]
    path = tmp_path / "bytes.csv"
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)))
    fine = tmp_path / "12.csv"
    inputs += [["diagnose", path], ["diagnose", "/dev/zero"], ["diagnose", fine, "--hf", "a/b"]]
    for option in (["--starts", "1000000000"], ["--floor", "nan"], ["--floor", "1e308"]):
        inputs.append(["diagnose", fine, *theory, *option])
    for option in (
        ["--samples", "5"],
        ["--keep-going"],
        ["--test-scale", "2"],
        ["--subspace", "3"],
    ):
        inputs.append(["diagnose", fine, *option])
    check(capsys, inputs)


@pytest.mark.slow
def test_recordings(capsys, tmp_path):
    from tests.helpers import published_literal as literal

    rng, inputs = np.random.default_rng(0), []
    arrays = literal.record(epoch=5)
    whole = literal.save(tmp_path / "whole.npz", arrays).read_bytes()
    for i in range(20):
        data = bytearray(whole[: rng.integers(len(whole))] if i % 4 == 0 else whole)
        for _ in range(1 + i % 3):
            if data:
                data[rng.integers(len(data))] ^= 255
        (tmp_path / f"{i}.npz").write_bytes(data)
        inputs.append(["compare", tmp_path / f"{i}.npz", "--json"])
    said = json.loads(str(arrays["args_json"]))
    for i, text in enumerate((
        "[" * 100_000, "{}", "3", json.dumps({**said, "head_num": 10**12}),
        json.dumps({**said, "epoch": 10**15}), json.dumps({**said, "seq_len": -1}),
        json.dumps({**said, "lr": 1e300}), json.dumps({**said, "lr": float("nan")}),
    )):  # fmt: skip
        path = literal.save(tmp_path / f"said{i}.npz", {**arrays, "args_json": np.array(text)})
        inputs.append(["compare", path])
    for name, value in (("X", np.inf), ("loss", np.nan), ("init_kq", np.nan), ("init_kq", 1e200)):
        odd = {**arrays, name: np.full_like(arrays[name], value)}
        inputs.append(["compare", literal.save(tmp_path / f"{name}{value}.npz", odd)])
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
        about = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
        file.writestr("X.npy", header + about.ljust(117) + b"\n" + bytes(10**7))
    inputs += [["compare", tmp_path / "bomb.npz"], ["compare", "/dev/zero"], ["compare", tmp_path]]
    check(capsys, inputs)


@pytest.mark.slow
def test_checkpoints(capsys, tmp_path):
    rng, inputs = np.random.default_rng(0), []
    for i in range(40):
        family = list(FAMILIES)[i % len(FAMILIES)]
        tensors, config = FAMILIES[family](rng)
        folder = tmp_path / f"s{i}" / "step1"
        if i % 4 == 0:  # one tensor of another shape, or not a number
            name = list(tensors)[rng.integers(len(tensors))]
            tensors[name] = tensors[name][:1] if i % 8 else tensors[name] * np.nan
        save(folder, tensors, config)
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        if i % 4 == 1:
            data[rng.integers(min(600, len(data)))] ^= int(rng.integers(1, 256))
        elif i % 4 == 2:
            data = data[: rng.integers(len(data))]
        file.write_bytes(data)
        if i % 4 == 3:
            odd = ["{", "[" * 100_000, "3", '{"n_head": 0}', '{"num_attention_heads": "x"}']
            odd += ['{"n_head": 1000000000000}', '{"num_attention_heads": -4}', "null", "", "{}"]
            (folder / "config.json").write_text(odd[(i // 4) % len(odd)])
        inputs.append(["diagnose", folder.parent, "--json"])
    headers = [
        (2**63).to_bytes(8, "little"), (10**8).to_bytes(8, "little") + b"{",
        len(deep := b"[" * 50_000).to_bytes(8, "little") + deep, b"", b"\0" * 8,
    ]  # fmt: skip
    for i, data in enumerate(headers):
        path = tmp_path / f"h{i}.safetensors"
        path.write_bytes(data)
        inputs.append(["diagnose", path])
    write_safetensors(tmp_path / "fine.safetensors", {"a": np.zeros((2, 2))})
    inputs += [["diagnose", tmp_path / "fine.safetensors"], ["diagnose", "/dev/null"]]
    check(capsys, inputs)


@pytest.mark.slow
def test_outputs_and_commands(capsys, tmp_path, run_file):
    fine = ["simulate", *RUN]
    inputs = [
        [*fine, "--out", "mine.nc"], [*fine, "--plot", "mine.png"], [*fine, "--out", "run.csv"],
        [*fine, "--out", "x.png", "--plot", "x.png"], [*fine, "--out", "."],
        [*fine, "--out", "a" * 300 + ".nc"], [*fine, "--plot", "x"], [*fine, "--out", "/x/y.nc"],
        [*fine, "--from", "/dev/zero"], [*fine, "--from", "/dev/null"], [*fine, "--from", "."],
        [*fine, "--from", "mine.nc"], [*fine, "--from", "none"], [*fine, "--plot", "\0.png"],
        ["theory", *TINY, "--plot", "mine.png"], ["theory", *TINY, "--query-init", "1"],
        ["theory", *TINY, "--model", "softmax-merged", "--json"],
        ["theory", *TINY, "--fixed-fraction", "0.5", "--json"],
        ["theory", "--context", "100000", "--json"], ["theory", "--epoch-rate", "0"],
        ["diagnose", run_file, "--rate", "1"], ["diagnose", run_file, "--plot", "mine.png"],
        ["diagnose", run_file, "--out", "mine.nc"], ["diagnose", run_file, "--seed", "9"],
        ["diagnose", run_file, "--samples", "100000000000"], ["diagnose"], ["animate"],
        ["diagnose", run_file, "--test-spectrum", "1,2,3"],
        ["diagnose", run_file, "--test-context", "1000000000000000000"],
        ["animate", run_file, "--out", "mine.png"], ["animate", run_file, "--out", "x.txt"],
        ["animate", run_file, "--fps", "1000000000"], ["animate", run_file, "--seconds", "1e300"],
        ["animate", run_file, "--seed", "9"], ["animate", "mine.nc"], ["animate", "/dev/zero"],
        ["reproduce", "fig99"], ["reproduce", "fig3", "--out", "mine.nc"],
        ["reproduce", "--jobs", "0"], ["reproduce", "--jobs", "1000000000"], ["reproduce", ""],
        ["compare"], ["compare", "mine.nc"], ["nothing"], ["--nothing"], ["simulate", "extra"],
        ["simulate", "--"], ["simulate", "--steps"], ["theory", "--s"],
        ["train", "--out", "mine.nc"],
    ]  # fmt: skip
    check(capsys, inputs)
