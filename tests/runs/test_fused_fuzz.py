"""The fused loop against `vmap` on random programs, and the CUDA text through CUDA's compiler."""

import shutil
import subprocess

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import iclflow as icl
from iclflow.dynamics.descent import Adam
from iclflow.models import draw_models
from iclflow.runs.fused import cpp, cuda, engine
from iclflow.runs.fused.program import write
from iclflow.runs.fused.rules import evaluate
from iclflow.runs.fused.values import Constant, Text, names
from tests.helpers.fused_fuzz import fuzz

COMPILER = pytest.mark.skipif(cpp.compiler() is None, reason="there is no C++ compiler")
GPU = pytest.mark.skipif(engine.available() != engine.CUDA, reason="needs a GPU and CuPy")


# JAX computes what is constant in a program while it traces it, by NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in cast:RuntimeWarning")


def holds(count, seed, name, options=("-O1",)):
    ran, reasons, wrong = fuzz(count, seed, name, options)
    assert [(number, leaf) for number, leaf, *_ in wrong] == []
    assert ran >= 0.95 * count, reasons


@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((3,), [(1, 2, 0)]),
        ((3,), [(-1, 2, 1)]),
        ((4, 3), [(0, -1, 2), (2, 1, 0)]),
        ((0,), [(1, 1, 0)]),
        ((5,), [(-2, -2, 0)]),
    ],
)
def test_padding_is_that_of_jax(shape, widths):
    """Around the entries, between them, and with negative widths."""
    x = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    traced = jax.make_jaxpr(lambda x: lax.pad(x, jnp.asarray(0.5, x.dtype), widths))(x)
    [found] = evaluate(traced.jaxpr, traced.consts, [names("x", shape, x.dtype)], Text(False))
    numbers = {f"x_{j}": value for j, value in enumerate(x.ravel())}
    read = np.vectorize(
        lambda v: 0.5 if isinstance(v, Constant) else numbers[v.name], otypes=[float]
    )
    np.testing.assert_array_equal(read(found), lax.pad(x, 0.5, widths))


@COMPILER
def test_random_programs_are_those_of_vmap():
    """With little optimisation, so that the compiler takes little time."""
    holds(100, 0, engine.CPP)
    holds(1, 336, engine.CPP)  # one divided by a shared negative zero


@COMPILER
@pytest.mark.slow
def test_very_many_random_programs_are_those_of_vmap():
    holds(4900, 100, engine.CPP)
    holds(300, 0, engine.CPP, ())


@GPU
@pytest.mark.slow
def test_random_programs_on_a_gpu_are_those_of_vmap():
    holds(1000, 0, engine.CUDA)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler: nvcc")
@pytest.mark.parametrize("optimiser", [None, pytest.param(Adam(), id="Adam in double precision")])
def test_the_cuda_text_compiles(tmp_path, optimiser):
    task = icl.Task([0.6, 0.3], 15)
    loss, dynamics = icl.Population(task), icl.Descent(0.05, optimiser)
    models = draw_models(icl.Separate.initialiser(task, heads=2, scale=0.3), range(3))
    state = eqx.filter_vmap(lambda m: dynamics.init(loss, m, jax.random.key(0)))(models)
    parts = (loss, dynamics, eqx.tree_at(lambda s: s.step, state, state.step[0]))
    record = {"loss": lambda model, loss: loss(model)}
    fused = engine.Fused.of(*parts, (False, False))
    program = fused.program(parts, record)
    assert np.dtype(program.dtype) == np.float64
    text = cuda.source(program, write(program, fused.zeros(parts, record)))
    (tmp_path / "loop.cu").write_text(text)
    call = ["nvcc", "-ptx", *cuda.OPTIONS, "loop.cu", "-o", "loop.ptx"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "train" in (tmp_path / "loop.ptx").read_text()
