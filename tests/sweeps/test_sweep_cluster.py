"""Sweeps on a real cluster of separate processes, some of which are killed."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from iclflow.runs.store import load
from iclflow.sweeps.design import Design, run

pytest.importorskip("zarr", reason="the extra sweep is not installed")
distributed = pytest.importorskip("distributed", reason="the extra sweep is not installed")

WORDS = {"spectrum": [1.0, 0.5], "context": 8, "heads": 1, "rate": 0.1, "steps": 4000}
WORDS |= {"save": "linear:20", "scale": [0.3, 0.4, 0.5, 0.6], "seeds": 48}
BLOCK = 8
LONG = 900  # seconds after which a process hangs, on however busy a machine
CLIENT = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from iclflow.runs.cluster import remote_client
from iclflow.sweeps.design import Design, run
words, out, block, address = eval(sys.argv[1])
if address is None:
    run(Design.of(**words), out, block=block)
else:
    with remote_client(address) as client:
        run(Design.of(**words), out, block=block, client=client)
"""


@contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a scheduler with two workers, each with a nanny that starts it again."""
    place = tmp_path_factory.mktemp("cluster")
    # Workers that start again find their compiled programs.
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(place / "programs")}
    env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    env |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
    quiet = {"cwd": place, "env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    file = place / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    options = ["--scheduler-file", str(file), "--no-dashboard", "--host", "127.0.0.1"]
    options += ["--port", "0"]  # any that is free
    nannies = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file)]
    nannies += ["--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
    with (
        ended(subprocess.Popen([*dask, *options], **quiet)),
        ended(subprocess.Popen([*nannies, "--local-directory", str(place)], **quiet)),
        distributed.Client(scheduler_file=str(file), timeout=60, set_as_default=False) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed sweep, in one process."""
    return run(Design.of(**WORDS), tmp_path_factory.mktemp("whole") / "s.zarr", block=BLOCK).load()


def start(out, address):
    told = repr((WORDS, str(out), BLOCK, address))
    return subprocess.Popen([sys.executable, "-c", CLIENT, told], env=os.environ)


def done(out):
    try:
        return int((load(out, check=False)["content"] != 0).sum())
    except (ValueError, OSError, KeyError):  # not there yet
        return 0


def disturb(out, cluster, victims, seed):
    """Kill a worker, the client or a process that computes itself, at random moments.

    Returns the victims that are left where all is computed before.
    """
    rng = random.Random(seed)
    address = cluster.scheduler.address
    for number, victim in enumerate(victims):
        before = done(out)
        with ended(start(out, None if victim == "alone" else address)) as process:
            deadline = time.monotonic() + LONG
            while done(out) <= before and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.3)  # to look takes a core from those who compute
            time.sleep(rng.uniform(0, 0.5))
            if victim == "worker":
                pids = cluster.run(os.getpid)
                os.kill(rng.choice(sorted(pids.values())), signal.SIGKILL)
                time.sleep(rng.uniform(0, 0.5))
        if done(out) == len(WORDS["scale"]) * WORDS["seeds"]:
            return victims[number + 1 :]
    return []


def harm(out, seed):
    """Delete a chunk of the store, or put two in each other's place."""
    rng = random.Random(seed)
    names = [
        n for n in ("loss", "final_loss", "drop_times", "content", "clock") if (out / n).is_dir()
    ]
    files = sorted(f for f in (out / rng.choice(names) / "c").rglob("*") if f.is_file())
    if len(files) < 2 or rng.random() < 0.5:
        for file in files[:1]:
            file.unlink()
        return
    first, second = rng.sample(files, 2)
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])


def assert_undisturbed(out, whole):
    found = run(Design.of(**WORDS), out, block=BLOCK).load()
    for name, variable in whole.variables.items():
        np.testing.assert_array_equal(found[name].values, variable.values, err_msg=str(name))
    assert (found["failure"] == 0).all()


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits(cluster, whole, tmp_path):
    out = tmp_path / "s.zarr"
    run(Design.of(**WORDS), out, block=BLOCK, client=cluster)
    assert done(out) == whole["content"].size
    assert_undisturbed(out, whole)


@pytest.mark.long
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*computed anew")  # the store was harmed on purpose
def test_killed_many_times_every_cell_is_there_once(kills, cluster, whole, tmp_path):
    victims = [("worker", "client", "alone")[i % 3] for i in range(kills)]
    number = 0
    while victims:
        out = tmp_path / f"s{number}.zarr"
        victims = disturb(out, cluster, victims, seed=number)
        harm(out, number)
        assert_undisturbed(out, whole)
        number += 1


def test_a_block_that_no_worker_can_do_is_recorded(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "as_completed", Completed)
    one = Design.of(**{**WORDS, "scale": 0.3, "seeds": 2})
    found = run(one, tmp_path / "s.zarr", client=Client(Future("error"))).load()
    assert found.attrs["reasons"] == ["the worker failed: too large"]
    assert (found["failure"] == 1).all()


class Future:
    """A block on a cluster that comes to an end without an answer."""

    def __init__(self, status):
        self.key, self.status = "k", status

    def exception(self):
        return MemoryError("too\nlarge")


class Client:
    loop = None

    def __init__(self, answer):
        self.answer = answer

    def nthreads(self):
        return {"a": 1}

    def submit(self, *args, **options):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Completed(list):
    add = list.append

    def __init__(self, loop):
        super().__init__()


@pytest.mark.parametrize("status", ["cancelled", "lost", OSError("Timed out trying to connect")])
def test_a_scheduler_that_dies_fails_no_cell(status, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "as_completed", Completed)
    one = Design.of(**{**WORDS, "scale": 0.3, "seeds": 2})
    client = Client(status if isinstance(status, Exception) else Future(status))
    with pytest.raises(ConnectionError, match="the same command goes on") as caught:
        run(one, tmp_path / "s.zarr", client=client)
    assert "\n" not in str(caught.value)
    found = load(tmp_path / "s.zarr")
    assert (found["failure"] == 0).all()
    assert (found["content"] == 0).all()


@pytest.mark.long
def test_workers_here_speak_tls(tmp_path):
    pytest.importorskip("cryptography", reason="the extra sweep is not installed")
    from iclflow.runs.cluster import local_client

    with socket.socket() as taken:  # another cluster of this machine has the port of Dask's pages
        with suppress(OSError):  # or has it really
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        with local_client(1) as client:
            assert client.scheduler.address.startswith("tls://")
            assert all(address.startswith("tls://") for address in client.nthreads())
            one = Design.of(**{**WORDS, "scale": 0.3, "seeds": 2, "steps": 40})
            assert (run(one, tmp_path / "s.zarr", client=client)["result"] == 0).all()


def test_a_scheduler_file_that_is_not_there_is_one_line(tmp_path):
    from iclflow.runs.cluster import remote_client

    with pytest.raises(ValueError, match="no scheduler file"), remote_client("none.json"):
        pass


@pytest.mark.slow
def test_a_cluster_is_found_by_its_scheduler_file(cluster, tmp_path):
    import json

    from iclflow.runs.cluster import remote_client

    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(cluster.scheduler_info() | {"address": cluster.scheduler.address}))
    with remote_client(str(file)) as client:
        assert client.scheduler.address == cluster.scheduler.address


def test_no_scheduler_at_an_address_is_one_line(tmp_path, monkeypatch, capsys):
    from iclflow import cli
    from iclflow.runs import cluster as clusters

    monkeypatch.setattr(clusters, "CONNECT", 0.5)
    (tmp_path / "design.toml").write_text("[sweep]\nsteps = 5\n")
    given = ["sweep", str(tmp_path / "design.toml"), "--out", str(tmp_path / "s.zarr")]
    with pytest.raises(SystemExit, match="2"):
        cli.main([*given, "--scheduler", "tcp://127.0.0.1:1"])
    assert "no Dask scheduler answers" in capsys.readouterr().err
