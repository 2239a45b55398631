"""What runs cost: the operations of a step, the speed of each engine here, seconds and bytes.

Everything that has to know beforehand how long training takes asks this one file: the choice of the
engine, the pieces that a run is cut into, the blocks of a sweep on disk, dry runs, memory checks.

An engine needs, for R runs of S steps,

    compiling + S (overhead + R · operations · operation)  seconds,

where `operations` are counted in the traced program of one step of one run. The other numbers are
`Speed`. They are measured once on a machine by a short probe, and kept in the user's cache folder.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import iclflow
from iclflow.dynamics import Descent
from iclflow.losses import Population
from iclflow.models import AbstractModel, Separate
from iclflow.models.base import once_a_kind
from iclflow.results.files import cache_folder, keep, processor, recall
from iclflow.runs.device import cores, one_clock, vmapped
from iclflow.runs.fused.cpp import LANES
from iclflow.runs.fused.engine import CPP, CUDA, VMAP, Fused, available
from iclflow.tasks.task import Task

COPIES = 8  # of the weights in memory: gradients, the optimiser's state, what a step needs
FLOW_STEPS = 700.0  # steps of a solver, roughly, however long the time that it crosses
FLOW_GRADIENTS = 7  # gradients in one of them
WORTH_A_PROBE = 5.0  # seconds of work; for less the built-in speeds are good enough
# Bytes of the runs that a core advances together under `vmap`, so that they stay in its caches.
# Flows in shares four times as large take 1.7 times as long, and in shares of ten times 5 times as
# long (`python benchmarks/runs.py --shares`).
SHARE = 2**21
OVERHEAD = {"cpu": 1e-6, "gpu": 1e-4}  # seconds of a step under `vmap`, however few the runs

FILE = "speeds.json"  # in the user's cache folder
KEPT_DAYS = 30  # after which a machine is measured again: it may have been busy
MACHINES = 16  # of which the file keeps the speeds: a home folder may be shared by a cluster


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast one engine is on this machine.

    - `operation`: seconds per operation and run, where many runs advance together.
    - `compiling`: seconds that its compiler takes for a step of `PROBE_OPERATIONS`; they grow in
      proportion to the operations.
    """

    operation: float
    compiling: float


PROBE_OPERATIONS = 1000.0
# Orders of magnitude for work that is too short to be worth a probe: of two cores, and of a GPU.
BUILT_IN = {
    "cpu": {VMAP: Speed(8e-11, 1.0), CPP: Speed(1.6e-11, 0.4)},
    "gpu": {VMAP: Speed(5e-13, 1.0), CUDA: Speed(5e-14, 1.0)},
}


def run_bytes(model: AbstractModel, recorded: int, scratch: int) -> int:
    """Memory that one run needs inside a batch.

    - `model`: the shapes of its weights.
    - `recorded`: bytes of what it records.
    - `scratch`: bytes that the loss needs beside its own arrays (`loss.scratch()`).
    """
    return recorded + 8 * COPIES * numbers(model) + scratch


def share(model: AbstractModel, scratch: int) -> int:
    """How many runs a core advances together under `vmap`: those that its caches hold.

    - `model`, `scratch`: as in `run_bytes`. What is recorded is written once, and read by nobody.
    """
    return max(1, SHARE // run_bytes(model, 0, scratch))


def numbers(tree: Any) -> int:
    """How many numbers the arrays of a tree hold."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape"))


def steps_of(marks: np.ndarray) -> float:
    """The steps of a run that ends at the last of the marks: whole ones, or those of a solver."""
    last = float(marks[-1])
    return last if np.issubdtype(marks.dtype, np.integer) else min(last, FLOW_STEPS)


def operations(loss: Any, dynamics: Any, model: Any) -> float:
    """The operations of one step of one run, counted in its traced program. Nothing is computed.

    A step of a flow is counted by its gradients.

    - `loss`, `dynamics`, `model`: those of one run; of the model the shapes alone matter.
    """
    return _operations(loss, dynamics, model)


@once_a_kind
def _operations(loss: Any, dynamics: Any, model: Any) -> float:
    parts = (loss, dynamics, model)
    kinds = (jax.ShapeDtypeStruct, jax.Array, np.ndarray)
    arrays, static = eqx.partition(parts, lambda leaf: isinstance(leaf, kinds))

    def step(given: Any) -> list[Any]:
        loss, dynamics, model = eqx.combine(given, static)
        if hasattr(dynamics, "attempt"):
            state = dynamics.init(loss, model, jax.random.key(0))
            return jax.tree.leaves(eqx.filter(dynamics.attempt(loss, state), eqx.is_array))
        weights, fixed = eqx.partition(model, eqx.is_inexact_array)
        slope = jax.grad(lambda w: loss(eqx.combine(w, fixed)))(weights)
        return jax.tree.leaves(slope)

    counted = _counted(jax.make_jaxpr(step)(arrays).jaxpr)
    return counted if hasattr(dynamics, "attempt") else FLOW_GRADIENTS * counted


def _counted(jaxpr: Any) -> float:
    """One operation per number that an equation makes; two per term of a matrix product."""
    total = 0.0
    for equation in jaxpr.eqns:
        values = list(equation.params.values())
        values += [v for value in values if isinstance(value, tuple | list) for v in value]
        inner = [getattr(v, "jaxpr", v) for v in values]
        inner = [v for v in inner if hasattr(v, "eqns")]
        made = sum(math.prod(getattr(v.aval, "shape", ())) for v in equation.outvars)
        if equation.primitive.name == "cond":
            total += max(map(_counted, inner))
        elif inner:
            total += equation.params.get("length", 1) * sum(map(_counted, inner))
        elif equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * made * math.prod(shape[axis] for axis in contracted)
        else:
            total += made
    return total


def seconds(engine: str, operations: float, runs: int, steps: float) -> float:
    """How long an engine takes for `runs` of `steps` each, compiling apart.

    - `operations`: of one step of one run.
    """
    if engine == CPP:  # whole blocks of runs side by side
        runs = LANES * math.ceil(runs / LANES)
    work = steps * runs * operations
    overhead = OVERHEAD[backend()] * steps if engine == VMAP else 0.0
    return overhead + work * speed(engine, work).operation


def compiling(engine: str, operations: float, work: float = 0.0) -> float:
    """The seconds that the compiler of an engine takes.

    - `engine`: vmap, C++ or CUDA.
    - `operations`: of one step of one run.
    - `work`: as in `speed`.
    """
    return speed(engine, work).compiling * max(operations / PROBE_OPERATIONS, 0.5)


def worth_compiling(engine: str, operations: float, runs: int, steps: float) -> bool:
    """Whether a fused loop and its compiler are done before `vmap` is.

    The compiling of `vmap` is not counted, since JAX may have kept that program from an earlier
    call; so a short sweep stays with it.

    - `runs`: of all batches that share the loop, since it is compiled once for all of them.
    """
    work = steps * runs * operations
    gain = seconds(VMAP, operations, runs, steps) - seconds(engine, operations, runs, steps)
    return gain > compiling(engine, operations, work)


def speed(engine: str, work: float = 0.0) -> Speed:
    """The speed of an engine on this machine.

    - `work`: operations that depend on the answer. Those of a few seconds are not worth a probe,
      and have the built-in speeds.
    """
    known = BUILT_IN[backend()]
    if engine not in known:  # an engine that nobody timed is taken for the fastest
        engine = min(known, key=lambda name: known[name].operation)
    if work * known[VMAP].operation < WORTH_A_PROBE:
        return known[engine]
    return measured().get(engine, known[engine])


def backend() -> str:
    """Which table of speeds this process has: those of a CPU or those of a GPU."""
    return "cpu" if jax.default_backend() == "cpu" else "gpu"


@functools.cache
def measured() -> dict[str, Speed]:
    """The speeds of this machine's engines: those in the user's cache folder, else of a probe.

    A damaged file costs one more probe. Where the cache is switched off (`ICLFLOW_CACHE=off`)
    nothing is measured, and the built-in speeds are used.
    """
    if cache_folder() is None:
        return {}
    here, now, kept = machine(), int(time.time()), recall(FILE)
    found = _read(kept.get(here), now)
    if found is None:
        found = probe()
        kept[here] = [now, {engine: dataclasses.astuple(s) for engine, s in found.items()}]
        keep(FILE, dict(list(kept.items())[-MACHINES:]))
    return found


def machine() -> str:
    """A name for what the speeds depend on: processor, cores, accelerator, and versions."""
    about = [processor(), cores(), jax.devices()[0].device_kind, jax.__version__]
    about += [iclflow.__version__, available(), os.environ.get("XLA_FLAGS", "")]
    about += [jax.config.read("jax_enable_x64")]
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _read(entry: Any, now: int) -> dict[str, Speed] | None:
    """The speeds that were kept, if they are speeds, and not too old."""
    try:
        when, table = entry
        found = {engine: Speed(*map(float, row)) for engine, row in table.items()}
        fresh = abs(now - float(when)) < 86400 * KEPT_DAYS
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    sane = all(0 < s.operation < 1 and 0 <= s.compiling < 1e4 for s in found.values())
    return found if fresh and sane and VMAP in found else None


def probe() -> dict[str, Speed]:
    """Time every engine of this machine on a small task: some seconds, mostly of compilers."""
    large = backend() == "gpu"
    task = Task(np.array([0.4, 0.3, 0.2, 0.1]), 31)
    loss, dynamics = Population(task), Descent(0.01)
    init = Separate.initialiser(task, heads=5, scale=0.05)
    count = operations(loss, dynamics, init(jax.random.key(0)))
    runs = 2**16 if large else 1024

    def start(number: Any) -> Any:
        key = jax.random.key(number)
        return dynamics.init(loss, init(key), key)

    state = one_clock(dynamics, eqx.filter_jit(eqx.filter_vmap(start))(jnp.arange(runs)))
    parts = (loss, dynamics, state)
    record: dict[str, Callable] = {"loss": lambda model, loss: loss(model)}
    found = {VMAP: _timed(lambda m: vmapped(parts, (None, None), m, record), count, runs, 200)}
    engine = available()
    if engine != VMAP:
        fused = Fused.of(*parts, (False, False))
        # A compiler may fail in whatever way; the batches will find out, and say why.
        with contextlib.suppress(Exception):
            found[engine] = _timed(lambda m: fused.advance(parts, m, record), count, runs, 4000)
    return found


def _timed(advance: Callable[[np.ndarray], Any], count: float, runs: int, steps: int) -> Speed:
    """The speed of an engine, from its first call, which compiles, and the best of three more.

    - `advance`: takes save points and trains to the last of them.
    - `count`: operations of one step of one run.
    - `runs`, `steps`: what one call trains.
    """
    marks, spent = np.asarray([steps]), []
    for _ in range(4):
        began = time.perf_counter()
        jax.block_until_ready(advance(marks))
        spent.append(time.perf_counter() - began)
    best = min(spent[1:])
    scale = PROBE_OPERATIONS / count
    return Speed(best / (steps * runs * count), max(0.0, spent[0] - best) * scale)
