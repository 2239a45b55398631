"""Products with a table inside a fused loop, the order of its statements, and the CUDA kernel."""

import ctypes
import re
import shutil
import subprocess

import equinox as eqx
import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.models import Blocks, draw_models
from iclflow.runs import cost
from iclflow.runs.device import vmapped
from iclflow.runs.fused import cpp, cuda, engine, program
from iclflow.runs.fused.program import write
from iclflow.runs.fused.schedule import scheduled
from iclflow.runs.fused.values import Statement

TASK = icl.Task([0.6, 0.3], 15)
MOMENTS = icl.Moments.sample(TASK, 50, key=jax.random.key(1))  # 12 features: a table of 144
FULL = icl.Separate.initialiser(TASK, heads=1, rank=2, scale=0.3, blocks=Blocks.FULL)
RECORD = {"loss": lambda model, loss: loss(model)}
MARKS = np.asarray([0, 4, 9])


@pytest.fixture
def tables(monkeypatch):
    """Small moments count as large."""
    monkeypatch.setattr(program, "TERMS", 100)


def start(loss, init, dynamics, seeds):
    models = draw_models(init, range(seeds))
    state = eqx.filter_vmap(lambda m: dynamics.init(loss, m, jax.random.key(0)))(models)
    return loss, dynamics, eqx.tree_at(lambda s: s.step, state, state.step[0])


def lines_of(text):
    """Statements from `name=expression`, with what they read."""
    found = []
    for line in text.split():
        name, expression = line.split("=")
        reads = tuple(dict.fromkeys(re.findall(r"\b[tw]\w+", expression)))
        found.append(Statement(name, "float64", expression, reads))
    return found


def test_the_schedule_computes_the_same():
    """Statements may move, but not before what they read; stores that exchange values are last."""
    lines = lines_of("t0=w0_0*w0_1 t1=w0_1*w0_1 t2=t0+t1 t3=w0_0*t1 t4=t2*t3 t5=t4-w0_2 t6=t5*t5")
    stores = {"w0_0": "t6", "w0_1": "t4", "w0_2": "t3", "w0_3": "w0_4", "w0_4": "w0_3"}
    places = {name: f"room[{name[-1]}]" for name in stores}
    kinds = dict.fromkeys(places, "float64")
    lines += [Statement(places[name], "", value, (value,)) for name, value in stores.items()]
    found = []
    first = [Statement(name, "float64", place) for name, place in places.items()]
    versions = [scheduled(lines, places, kinds), scheduled(lines[::-1], places, kinds)]
    for version in ([*first, *lines], *versions):
        room = [1.25, -0.5, 3.0, 7.0, 8.0]
        exec("\n".join(f"{s.name} = {s.expression}" for s in version), {"room": room})
        found.append(room)
    assert found[0] == found[1] == found[2]
    assert found[0][3:] == [8.0, 7.0]


def test_few_values_are_live():
    """Long sums begun one after the other, not all at once as arrays would."""
    sums = [f"t{j}" for j in range(50)]
    lines = [line for j in range(50) for line in lines_of(f"t{j}=w0_{j}*w0_{j + 1}")]
    lines += [line for j in range(50) for line in lines_of(f"t{50 + j}=t{j}+w0_{j}")]
    lines += [Statement(f"out[{j}]", "", f"t{50 + j}", (f"t{50 + j}",)) for j in range(50)]
    names = [s.name for s in scheduled(lines, {}, {})]
    waiting = [names.index(f"out[{j}]") - names.index(name) for j, name in enumerate(sums)]
    assert max(waiting) == 2


COMPILER = pytest.mark.skipif(cpp.compiler() is None, reason="there is no C++ compiler")


@COMPILER
def test_moments_in_the_loop_of_the_cpu(monkeypatch, tables):
    """A product with the shared matrix between two loops over the lanes; lanes that diverge."""
    dynamics = icl.Descent(0.1)
    arguments = (MOMENTS, FULL, dynamics)
    options = {"saveat": MARKS, "seeds": 5, "axes": {"rate": [0.05, 80.0]}}
    plain = icl.sweep(*arguments, **options)
    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    fused = icl.sweep(*arguments, **options)
    assert fused.attrs["engine"] == f"fused ({engine.CPP})"
    assert (fused["result"].values[1] != 0).any()
    for name in plain.variables:
        np.testing.assert_allclose(fused[name], plain[name], rtol=1e-10, atol=1e-12)


def test_what_is_no_product_is_left_to_vmap(monkeypatch, tables):
    class Odd(icl.Moments):
        def __call__(self, model):
            return super().__call__(model) + (self.second * self.second).sum()

    monkeypatch.setattr(cost, "worth_compiling", lambda *_: True)
    monkeypatch.setattr(engine, "available", lambda: engine.CPP)
    odd = Odd(MOMENTS.power, MOMENTS.cross, MOMENTS.second, MOMENTS.map)
    assert "large shared matrix" in icl.sweep(odd, FULL, icl.Descent(0.1), until=2).attrs["engine"]


def test_moments_too_large_for_a_gpu_are_left_to_vmap(monkeypatch):
    """105 features in double precision: 309 kB, of which a block of threads has 200."""
    monkeypatch.setattr(engine, "available", lambda: engine.CUDA)
    task = icl.Task([0.3, 0.25, 0.2, 0.15, 0.1], 7)
    init = icl.Separate.initialiser(task, heads=2, scale=0.3, blocks=Blocks.FULL)
    parts = start(icl.Moments.sample(task, 20, key=jax.random.key(0)), init, icl.Descent(0.1), 2)
    fused = engine.Fused.of(*parts, (False, False))
    assert "threads" in str(engine.why_not(fused, parts, RECORD, 10**6, np.asarray([10**6])))


# A CUDA kernel as a C++ program: a thread of the system for each of a block's.
HOST = """
#include <barrier>
#include <cmath>
#include <cstring>
using std::sqrt, std::pow;
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __constant__
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(n)
struct Place { int x; };
static thread_local Place threadIdx, blockIdx;
static std::barrier together(128);
static void __syncthreads() { together.arrive_and_wait(); }
static double __longlong_as_double(long long n) { double x; std::memcpy(&x, &n, 8); return x; }
alignas(16) static double room[1 << 16];
"""
CALL = """
extern "C" void all(int blocks, {parameters}) {{
    std::vector<std::thread> threads;
    for (int n = 0; n < 128; n++)
        threads.emplace_back([=] {{
            for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {{
                threadIdx.x = n;
                train({arguments});
                __syncthreads();
            }}
        }});
    for (auto& thread : threads) thread.join();
}}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: g++")
@pytest.mark.parametrize("loss", [icl.Population(TASK), MOMENTS], ids=["numbers", "table"])
def test_the_cuda_kernel_on_the_host(tmp_path, tables, loss):
    """Its text, on threads of this machine: more runs than a block has, of which some fail."""
    init = FULL if loss is MOMENTS else icl.Separate.initialiser(TASK, heads=2, scale=0.3)
    _, dynamics, state = start(loss, init, icl.Descent(0.05), 131)
    state = eqx.tree_at(lambda s: s.run.bound, state, state.run.bound.at[::7].set(1e-3))
    parts = (loss, dynamics, state)
    fused = engine.Fused.of(*parts, (False, False))
    traced, zeros = fused.program(parts, RECORD), fused.zeros(parts, RECORD)
    assert bool(traced.matrices) == (loss is MOMENTS)
    written = write(traced, zeros)
    code = cuda.source(traced, written).replace("extern __shared__ __align__(16) real room[];", "")
    flat = {i: np.array(a) for i, a in engine.flattened(parts, fused.own, RECORD).items()}
    names = {
        i: name
        for i, name in written.arrays.items()
        if f"* __restrict__ {name}," in code or f"* __restrict__ {name})" in code
    }
    after = {i: np.empty_like(flat[i]) for i in traced.carried}
    runs, count = 131, len(MARKS)
    record, made = np.empty((count, 1, runs)), np.empty(runs, np.int64)
    odd = np.zeros(runs, np.uint8)
    alive = np.ones(runs, np.uint8)
    given = [MARKS.astype(np.int64), alive, made, odd, record]
    given += [flat[i] for i in names] + [after[i] for i in traced.carried]
    parameters = ["long long begin", "long long end", "int count", "long long runs"]
    parameters += [f"void* p{n}" for n in range(len(given))]
    kinds = ["const long long*", "const unsigned char*", "long long*", "unsigned char*", "double*"]
    kinds += ["const double*"] * len(names) + ["double*"] * len(after)
    passed = ["begin", "end", "count", "runs", *(f"({k}) p{n}" for n, k in enumerate(kinds))]
    constants = {i: name for i, name in written.arrays.items() if i not in names}
    copy = 'extern "C" void set_{0}(void* x) {{ std::memcpy({0}, x, sizeof {0}); }}\n'
    code += "".join(copy.format(name) for name in constants.values())
    code += CALL.format(parameters=", ".join(parameters), arguments=", ".join(passed))
    (tmp_path / "kernel.cpp").write_text(HOST + code)
    options = ["-std=c++20", "-shared", "-fPIC", "-pthread", "-o"]
    subprocess.run(["g++", *options, "kernel.so", "kernel.cpp"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    for i, name in constants.items():
        getattr(library, f"set_{name}")(flat[i].ctypes.data_as(ctypes.c_void_p))
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in given]
    steps = (ctypes.c_longlong(0), ctypes.c_longlong(9))
    library["all"](2, *steps, count, ctypes.c_longlong(runs), *pointers)
    assert not odd.any()
    plain = vmapped(parts, (None, None), MARKS, RECORD)
    np.testing.assert_allclose(record[:, 0].T, plain.record["loss"], rtol=1e-12)
    assert (made[::7] == 0).all()
    assert (np.delete(made, np.s_[::7]) == 9).all()
    for i, array in zip(traced.carried, jax.tree.leaves(plain.state.model), strict=True):
        np.testing.assert_allclose(after[i].T.reshape(array.shape), array, rtol=1e-12, atol=1e-15)


@pytest.mark.skipif(engine.available() != engine.CUDA, reason="needs a GPU and CuPy")
@pytest.mark.parametrize("loss", [icl.Population(TASK), MOMENTS], ids=["numbers", "table"])
def test_the_cuda_kernel_on_a_gpu(tables, loss):
    init = FULL if loss is MOMENTS else icl.Separate.initialiser(TASK, heads=2, scale=0.3)
    _, dynamics, state = start(loss, init, icl.Descent(0.05), 131)
    state = eqx.tree_at(lambda s: s.run.bound, state, state.run.bound.at[::7].set(1e-3))
    parts = (loss, dynamics, state)
    fused = engine.Fused.of(*parts, (False, False)).advance(parts, MARKS, RECORD)
    plain = vmapped(parts, (None, None), MARKS, RECORD)
    np.testing.assert_allclose(fused.record["loss"], plain.record["loss"], rtol=1e-12)
    for name in ("result", "stopped", "model"):
        pair = [jax.tree.leaves(getattr(s, name)) for s in (fused.state, plain.state)]
        for ours, theirs in zip(*pair, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
