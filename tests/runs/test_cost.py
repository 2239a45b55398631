"""The cost model: operations counted, speeds measured and kept, and one choice of engine."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow import cli
from iclflow.dynamics import Adam
from iclflow.runs import batch, cost
from iclflow.runs.fused import engine
from iclflow.runs.fused.engine import CPP, VMAP
from iclflow.runs.sweep import estimate
from iclflow.sweeps.design import Design, run

COMPILER = pytest.mark.skipif(engine.available() != CPP, reason="there is no C++ compiler")
TASK = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
WORDS = {"rate": 0.2, "scale": 0.07, "save": "linear:5", "record": []}


def test_operations_are_those_of_the_traced_step():
    """A product of [2, 3] and [3, 4] has 24 terms of two operations; a scan repeats its own."""

    def step(a, b):
        _, sums = jax.lax.scan(lambda x, _: (x + 1.0, x), 0.0, None, length=7)
        return a @ b, sums

    traced = jax.make_jaxpr(step)(jnp.ones((2, 3)), jnp.ones((3, 4)))
    assert cost._counted(traced.jaxpr) == 2 * 24 + 7


def test_operations_grow_with_the_model_and_the_optimiser():
    loss = icl.Population(TASK)

    def count(heads, dynamics):
        init = icl.Separate.initialiser(TASK, heads=heads, scale=0.1)
        return cost.operations(loss, dynamics, init(jax.random.key(0)))

    small, large = (count(heads, icl.Descent(0.1)) for heads in (5, 10))
    assert 1.5 < large / small < 2.5
    assert count(5, icl.Descent(0.1, Adam())) > small + 5 * 45  # each weight has two moments
    assert count(5, icl.Flow()) > small  # several gradients in a step


@pytest.mark.parametrize(
    ("seconds", "stored", "count"),
    [(0.02, True, 1), (0.02, False, 1), (2.0, True, batch.PIECES), (20.0, False, batch.PIECES),
     (20.0, True, batch.MANY_PIECES), (100.0, False, batch.MANY_PIECES)],
)  # fmt: skip
def test_a_run_shorter_than_the_saving_interval_is_not_cut_for_its_store(seconds, stored, count):
    assert batch.pieces(seconds, stored) == count


def test_a_short_run_with_a_store_is_one_piece(tmp_path, monkeypatch):
    calls, one = [], batch._piece
    monkeypatch.setattr(batch, "_piece", lambda *a: calls.append(a) or one(*a))
    init = icl.Separate.initialiser(TASK, heads=5, scale=0.07)
    icl.sweep(TASK, init, icl.Descent(0.2), until=40_001, store=tmp_path / "run")
    assert len(calls) == 1


@COMPILER
@pytest.mark.parametrize(
    ("steps", "seeds", "kind"), [(10_000, 4096, CPP), (100, 64, VMAP), (200, 1_000_000, CPP)]
)
def test_the_command_and_the_function_choose_the_same_engine(steps, seeds, kind, monkeypatch):
    """Both are stopped when they have chosen."""
    chosen, choose = [], batch.choose

    class Chosen(Exception):  # noqa: N818
        pass

    def stop(*given):
        chosen.append(choose(*given))
        raise Chosen

    monkeypatch.setattr(batch, "choose", stop)
    init = icl.Separate.initialiser(TASK, heads=5, scale=0.07)
    saveat = np.unique(np.linspace(0, steps, 5).astype(int))
    with pytest.raises(Chosen):
        icl.sweep(TASK, init, icl.Descent(0.2), saveat=saveat, seeds=seeds)
    expected = estimate(Design.of(**WORDS, steps=steps, seeds=seeds))
    assert expected.engines == (chosen[0].kind,) == (kind,)


@COMPILER
def test_small_blocks_take_the_engine_of_the_whole_sweep(tmp_path, monkeypatch):
    """A block alone would be too few runs to be worth compiling."""
    monkeypatch.setitem(cost.BUILT_IN["cpu"], CPP, cost.Speed(1e-12, 2e-5))
    design = Design.of(**WORDS, steps=30, seeds=192)
    found = run(design, tmp_path / "s.zarr", block=48)
    assert found.attrs["engine"] == "fused (C++)"
    init = icl.Separate.initialiser(TASK, heads=5, scale=0.07)
    whole = icl.sweep(TASK, init, icl.Descent(0.2), until=30, saveat=[30], seeds=192)
    assert whole.attrs["engine"] == "fused (C++)"
    np.testing.assert_array_equal(found["final_loss"], whole["loss"].isel(time=-1))


def test_a_dry_run_says_seconds_where_seconds_are_right(tmp_path, monkeypatch, capsys):
    """4,096 runs of 10,000 steps were once announced as 101 s, and a million as 6.6 h."""
    monkeypatch.setattr(engine, "available", lambda: CPP)
    monkeypatch.setattr(engine.Fused, "prepare", lambda *_: None)
    (tmp_path / "d.toml").write_text("[sweep]\nsteps = 10_000\nrate = 0.2\nseeds = 4096\n")
    assert cli.main(["sweep", str(tmp_path / "d.toml"), "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seconds"] < 15
    assert said["blocks"] == 1
    expected = estimate(Design.of(**WORDS, steps=200, seeds=1_000_000))
    assert expected.seconds < 120


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache folder of its own, and the number of probes."""
    monkeypatch.setenv("ICLFLOW_CACHE", str(tmp_path))
    probes = []

    def probe():
        probes.append(1)
        return {VMAP: cost.Speed(1e-10, 1.0), CPP: cost.Speed(2e-11, len(probes))}

    monkeypatch.setattr(cost, "probe", probe)
    monkeypatch.setattr(cost, "measured", cost.measured.__wrapped__)
    return tmp_path / cost.FILE, probes


def test_speeds_are_measured_once_and_kept(kept):
    file, probes = kept
    first = cost.measured()
    assert cost.measured() == first
    assert len(probes) == 1
    assert file.stat().st_size < 1000


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"%s": 3}', '{"%s": [1e400, {}]}', '{"%s": [0, {"vmap": []}]}',
             '{"%s": [0, {"vmap": [-1, 0]}]}', '{"%s": [99999999999999, {"vmap": [1e-9, 1]}]}'],
)  # fmt: skip
def test_a_damaged_or_old_file_is_measured_anew(kept, text):
    file, probes = kept
    file.write_text(text.replace("%s", cost.machine()))
    assert cost.measured()[CPP].compiling == 1
    assert cost.measured()[CPP].compiling == 1
    assert len(probes) == 1


def test_the_file_of_speeds_is_bounded(kept):
    file, _ = kept
    many = {f"machine {i}": [0, {"vmap": [1e-9, 1]}] for i in range(100)}
    file.write_text(json.dumps(many))
    cost.measured()
    assert len(json.loads(file.read_text())) == cost.MACHINES
    assert cost.machine() in json.loads(file.read_text())


def test_without_a_cache_nothing_is_measured(kept, monkeypatch):
    monkeypatch.setenv("ICLFLOW_CACHE", "off")
    assert cost.speed(VMAP, 1e30) == cost.BUILT_IN[cost.backend()][VMAP]
    assert not kept[1]


def test_short_work_is_not_worth_a_probe(kept):
    cost.seconds(VMAP, 1000.0, 10, 1000)
    assert not kept[1]
    cost.seconds(VMAP, 1000.0, 10**6, 10**6)
    assert len(kept[1]) == 1


@pytest.mark.long
def test_the_probe_times_every_engine():
    found = cost.probe()
    assert set(found) == {VMAP, engine.available()}
    assert all(0 < speed.operation < 1e-6 for speed in found.values())
