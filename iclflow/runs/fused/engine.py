"""Which engine advances a batch: a fused loop where it pays, `vmap` everywhere else.

This is the one file of the room that knows what a loss, a dynamics and its state are.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from iclflow.dynamics import Flow, FlowState
from iclflow.dynamics.base import RESULTS
from iclflow.dynamics.flow import NextStep, slope
from iclflow.runs.device import Advanced, cores, to_host
from iclflow.runs.fused import cpp, cuda, flow_cpp, flow_cuda, rock4
from iclflow.runs.fused.program import TERMS, Program, trace, write
from iclflow.runs.fused.values import CannotFuse

VMAP, CPP, CUDA = "vmap", "C++", "CUDA"
ROSENBROCK = ", Rosenbrock"
# From this tolerance on, the eight stages of a stabilised step pay. Where accuracy bounds the step,
# at smaller ones, a higher order does.
LOOSE = 3e-8
WIDEST = 256  # numbers of a run: beyond, registers and compilers give up
OFFSETS = 2**31  # a kernel counts its numbers and its steps in 32 bits
SMALLEST = 1e-30  # initial weights of a flow: its errors are compared in single precision
DENSE = 64  # weights of a flow: beyond, a factorisation per step and run is too much
MANY = 2**30  # runs, of which the compiling of a loop is no part of the cost
# An implicit solver takes some CROSSING tolerance^(-1/5) steps from small weights to the end,
# however long that is (D = 4, H = 5: 215 at 1e-6).
CROSSING = 13.5
COMPILING = 2e11  # operations that two cores do while the implicit loop is compiled
LONGEST = 128  # features of moments (D = 5): the text and its compiler's time grow with them
NEEDED = {
    "cpu": "a fused loop needs a C++ compiler: c++, g++, clang++, or what CXX names",
    "gpu": "a fused loop on a GPU needs CuPy: pip install cupy-cuda13x",
}


class Fused:
    """A fused loop for batches of one kind: (loss, dynamics, state).

    - `own`: of each array among the parts, whether every run has its own.
    """

    def __init__(self, own: Any) -> None:
        """For parts whose arrays are shared in this way."""
        self.own, self.engine = own, available()
        self.record: dict[str, Callable] = {}
        self.runs = MANY  # that share the compiled loop
        self.last: Any = None  # loss, dynamics and record, their program and its zeros
        self.note = ""  # what `engine` says besides

    @classmethod
    def of(cls, loss: Any, dynamics: Any, state: Any, own: tuple[bool, bool]) -> "Fused":
        """For runs that have a loss or a dynamics of their `own`, or share it."""
        parts = zip((loss, dynamics, state), (*own, True), strict=True)
        loss, dynamics, state = (
            jax.tree.map(lambda _, mine=mine: mine, eqx.filter(part, eqx.is_array))
            for part, mine in parts
        )
        if isinstance(dynamics, Flow):
            return FusedFlow((loss, state.model), dynamics)
        for name in dynamics.shared:
            state = eqx.tree_at(lambda s, n=name: getattr(s, n), state, False)
        return cls((loss, dynamics, state))

    def traced(self, parts: tuple[Any, Any, Any]) -> Any:
        """What the program is a function of."""
        return parts

    def program(self, parts: tuple[Any, Any, Any], record: dict[str, Callable]) -> Program:
        """What one run does."""
        return self.known(parts, record)[0]

    def zeros(
        self, parts: tuple[Any, Any, Any], record: dict[str, Callable]
    ) -> tuple[bytes, ...] | None:
        """Of each array that all runs share, which numbers are zero: they need no arithmetic.

        A negative zero is not among them: 1 / -0 is not 1 / 0. None if one of the shared numbers is
        not finite, because then a zero may not be dropped.
        """
        return self.known(parts, record)[1]

    def known(self, parts: tuple[Any, Any, Any], record: dict[str, Callable]) -> tuple[Any, Any]:
        """The program and its zeros, which are asked for several times before a loop runs."""
        loss, dynamics, _ = parts
        if (
            self.last is None
            or self.last[0] is not loss
            or self.last[1] is not dynamics
            or self.last[2] != record
        ):
            program = _program(self.traced(parts), self.own, record)
            zeros = _zeros(program, jax.tree.leaves(eqx.filter(self.traced(parts), eqx.is_array)))
            self.last = (loss, dynamics, dict(record), program, zeros)
        return self.last[3:]

    def prepare(self, parts: tuple[Any, Any, Any], record: dict[str, Callable]) -> str | None:
        """Compile the loop. None, or the reason why it cannot be compiled."""
        self.record = record
        try:
            self._compile(self.program(parts, record), self.zeros(parts, record), parts)
        except Exception as error:
            return reason_of(error)
        return None

    def _compile(self, program: Program, zeros: Any, parts: tuple[Any, Any, Any]) -> None:
        if self.engine == CUDA:
            [device] = parts[2].running.devices()
            cuda.compiled(program, zeros, device.local_hardware_id)
        else:
            cpp.compiled(program, zeros)

    def advance(
        self, parts: tuple[Any, Any, Any], marks: np.ndarray, record: dict[str, Callable]
    ) -> Advanced:
        """All runs to the last mark, with what they record at the marks; `CannotFuse` if not."""
        try:
            return self._advance(parts, marks, record)
        except Exception as error:
            raise CannotFuse(reason_of(error)) from error

    def _advance(
        self, parts: tuple[Any, Any, Any], marks: np.ndarray, record: dict[str, Callable]
    ) -> Advanced:
        looks = marks if record else marks[:0]  # one program serves pieces that record nothing
        record, last = record or self.record, int(marks[-1])
        program, running = self.program(parts, record), parts[2].running
        loop: Callable[..., Any]
        flat: dict[int, Any]
        if self.engine == CUDA:
            flat = flattened(parts, self.own, record)
            loop = functools.partial(cuda.advance, running=running)
        else:
            leaves = jax.tree.leaves(eqx.filter(parts, eqx.is_array))
            flat = {i: _flat(np.asarray(leaves[i]), program.leaves[i]) for i in program.read}
            loop = functools.partial(cpp.advance, running=np.asarray(running), cores=cores())
        zeros = self.zeros(parts, record)
        after, seen, made, odd = loop(program, flat, zeros, looks, last)
        if odd.any():  # zero times infinity is NaN: the same once more, without dropping zeros
            after, seen, made, _ = loop(program, flat, None, looks, last)
        after, made = jax.device_put((after, made))
        state = _ended(parts, program, after, made, marks[-1])
        return Advanced(state, _recorded(program, seen) if len(looks) else {})


class FusedFlow(Fused):
    """A fused flow for batches of one kind. Its program has the slope of the weights for a step.

    - `implicit`: whether the solver is `Rosenbrock`. Otherwise steps are explicit, and only a run
      that stability holds up for too long goes on by implicit ones.
    - `free`: whether no solver is given. Then steps at loose tolerances are stabilised.
    """

    def __init__(self, own: Any, flow: Flow) -> None:
        """For parts whose arrays are shared in this way."""
        super().__init__(own)
        self.implicit, self.free = flow.implicit, flow.solver is None
        self.note = ROSENBROCK if self.implicit else ""

    def loose(self, tolerance: Any) -> np.ndarray:
        """Which runs make stabilised steps."""
        return np.asarray(np.logical_and(self.free, np.asarray(tolerance) >= LOOSE))

    def pairs(self, tolerance: Any) -> list[str]:
        """What makes the steps of runs of these tolerances at first."""
        if self.implicit:
            return [flow_cpp.RODAS5P]
        loose = self.loose(tolerance)
        return [flow_cpp.ROCK4] * bool(loose.any()) + [flow_cpp.TSIT5] * bool(not loose.all())

    def traced(self, parts: tuple[Any, Any, Any]) -> Any:
        """Loss and weights: a slope depends on neither tolerance nor time."""
        loss, _, state = parts
        return loss, state.model

    def _compile(self, program: Program, zeros: Any, parts: tuple[Any, Any, Any]) -> None:
        _, dynamics, state = parts
        for pair in self.pairs(dynamics.tolerance):
            if self.engine == CUDA:
                [device] = state.running.devices()
                flow_cuda.compiled(program, zeros, device.local_hardware_id, pair)
            else:
                flow_cpp.compiled(program, zeros, pair=pair)

    def patience(self, program: Program, zeros: Any, tolerance: np.ndarray) -> np.ndarray:
        """The explicit steps in a row that stability may bound before a run makes implicit ones.

        They cost as much as all implicit steps of a run, and its share of compiling them: so a run
        never takes more than twice the time that the better choice would have taken.
        """
        width = sum(program.leaves[i].size for i in program.carried)
        if not_dense(program, self.engine) is not None:
            return np.full(tolerance.shape, np.inf)
        slope = sum(getattr(line, "operations", 0) for line in write(program, zeros).step)
        each = np.where(self.loose(tolerance), 8 * slope + 2 * 30 * width, 6 * slope + 66 * width)
        implicit = 8 * (slope + 4 * width**2 + 18 * width) + width**3 / 3 + 4 * width**2
        steps = CROSSING * tolerance**-0.2 * implicit / each
        return steps + COMPILING / (each * self.runs)

    def _advance(
        self, parts: tuple[Any, Any, Any], marks: np.ndarray, record: dict[str, Callable]
    ) -> Advanced:
        _, dynamics, state = parts
        times, place = np.unique(marks, return_inverse=True)  # a piece repeats its last mark
        targets = np.append(times if record else times[:0], times[-1])
        program = self.program(parts, record or self.record)
        leaves = jax.tree.leaves(eqx.filter(self.traced(parts), eqx.is_array))
        ground = dynamics.ground(state)
        tolerance = jnp.broadcast_to(jnp.asarray(dynamics.tolerance, ground.dtype), ground.shape)
        if _too_small(ground):
            raise CannotFuse(f"it follows no flow from weights below {SMALLEST:g}")
        step = state.step
        crawled = jnp.full_like(step.crawled, jnp.inf) if self.implicit else step.crawled
        course = flow_cpp.Course(state.mark, step.time, step.size, step.last, crawled)
        ahead = jax.tree.leaves(state.step.weights)
        zeros, how = self.zeros(parts, record or self.record), (targets, dynamics.max_steps)
        start: Any = ({i: leaves[i] for i in program.read}, ahead, course)
        running = state.running
        loose = self.loose(dynamics.tolerance)
        tolerances = (jnp.where(loose, rock4.strict(tolerance), tolerance), ground)
        loop: Any = functools.partial(flow_cuda.advance, loose=loose)
        if self.engine == CPP:
            start, tolerances, running = jax.tree.map(np.asarray, (start, tolerances, running))
            patience = self.patience(program, zeros, tolerances[0])
            known: dict[str, Any] = {"cores": cores(), "loose": loose, "patience": patience}
            loop = functools.partial(flow_cpp.advance, **known)
        found = loop(program, *start, zeros, *how, tolerances, running)
        if (odd := found.odd).any():  # 0·∞ is NaN: those runs again, without dropping zeros
            again = loop(program, *start, None, *how, tolerances, running & odd)
            chosen = lambda a, b: jnp.where(odd.reshape(-1, *[1] * (a.ndim - 1)), b, a)  # noqa: E731
            found = jax.tree.map(chosen, found, again)
        if not self.implicit:
            self.note = "".join(f", {pair}" for pair in self.pairs(dynamics.tolerance))
            if self.engine == CPP and np.isinf(np.asarray(found.course.crawled)).any():
                self.note += f"{ROSENBROCK} where stiff"
        whole = found.seen if len(times) == len(marks) else found.seen[:, place]
        seen = _recorded(program, whole) if record else {}
        return Advanced(_flowed(state, found._replace(seen=None)), seen)


@jax.jit
def _too_small(ground: Any) -> Any:
    return jnp.any((ground > jnp.finfo(ground.dtype).tiny) & (ground < SMALLEST))


@eqx.filter_jit
def _flowed(state: FlowState, found: flow_cpp.Flowed) -> FlowState:
    """The state of a flow at its last mark."""
    arrays, static = eqx.partition(state.model, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    model, ahead = (
        jax.tree.unflatten(
            tree, [a.reshape(like.shape) for a, like in zip(some, leaves, strict=True)]
        )
        for some in (found.weights, found.ahead)
    )
    reached, *rest = (a.astype(state.mark.dtype) for a in found.course)

    def ended(how: Any, before: Any) -> Any:
        result = RESULTS.where(how == flow_cpp.STEP_LIMIT, RESULTS.step_limit, RESULTS.diverged)
        result = RESULTS.where(how == flow_cpp.FINISHED, RESULTS.finished, result)
        return RESULTS.where(before == RESULTS.finished, result, before)

    result = eqx.filter_vmap(ended)(found.ends, state.result)
    model = eqx.combine(model, static)
    time, size, last, crawled = rest
    step = NextStep(
        ahead, time, size, last, crawled, end=jnp.zeros_like(reached), kept=state.step.kept
    )
    return FlowState(model, reached, state.scale, result, step)


def reason_of(error: Exception) -> str:
    """Why there is no fused loop, in one line."""
    if isinstance(error, CannotFuse):
        return f"a fused loop cannot do this: {error}"
    said = (str(error).strip().splitlines() or [""])[0]
    return f"the fused loop failed: {type(error).__name__}: {said}"


def available() -> str:
    """The engine of large batches on this machine."""
    if jax.default_backend() == "gpu":
        return CUDA if cuda.installed() else VMAP
    return VMAP if cpp.compiler() is None else CPP


def why_not(
    fused: Fused,
    parts: tuple[Any, Any, Any],
    record: dict[str, Callable],
    runs: int,
    marks: np.ndarray,
) -> str | None:
    """None where a fused loop can advance these runs, else the reason for `vmap`.

    Whether the loop is worth its compiler is another question, which `runs.cost` answers. Nothing
    is compiled here; `Fused.prepare` does it, and has reasons of its own.
    """
    (loss, dynamics, _), engine = parts, fused.engine
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(parts)):
        return "a gradient or another transformation of JAX goes through these runs"
    if reason := unfit(loss, dynamics):
        return reason
    if engine == VMAP:
        return NEEDED["gpu" if jax.default_backend() == "gpu" else "cpu"]
    if dynamics.whole and marks[-1] >= OFFSETS:
        return "a fused loop makes fewer than 2^31 steps"
    try:
        program = fused.program(parts, record)
        if any(max(program.leaves[i].shape) > LONGEST for i in program.matrices):
            return f"moments of more than {LONGEST} features are too large for a fused loop"
        if engine == CUDA and cuda.SharedMemory(program).bytes > cuda.LARGEST:
            return "the moments are too large for the memory that the threads of a GPU share"
        terms = sum(f.size for f in program.leaves if f.used and not f.own and not f.matrix)
        if max(program.width / WIDEST, terms / TERMS) > 1:
            return (
                f"{program.width} numbers per run and {terms} shared are too many for a fused loop"
            )
        if len(marks) * program.seen_count * runs >= OFFSETS:
            return "a fused loop records fewer than 2^31 numbers; record less, or at fewer steps"
        if (
            isinstance(fused, FusedFlow)
            and fused.implicit
            and (reason := not_dense(program, engine))
        ):
            return reason
        write(program, fused.zeros(parts, record))
    except Exception as error:
        return reason_of(error)
    return None


def not_dense(program: Program, engine: str) -> str | None:
    """Why the steps of a flow cannot be implicit here; None if they can."""
    width = sum(program.leaves[i].size for i in program.carried)
    if engine != CPP:
        return "Rosenbrock is fused on a CPU alone"
    if width > DENSE:
        return f"{width} weights are too many for a fused Rosenbrock, which takes {DENSE}"
    return "a fused Rosenbrock takes no large shared moments" if program.matrices else None


def unfit(loss: Any, dynamics: Any) -> str | None:
    """Why runs of a kind are never fused, whatever their number; None if they may be."""
    if loss.stochastic:
        return "a loss with noise is not fused"
    if isinstance(dynamics, Flow):
        if loss.drifts:
            return "a flow of a loss that drifts is not fused"
        fits = dynamics.explicit or dynamics.implicit
        return None if fits else "of the solvers of a flow, only Tsit5 and Rosenbrock are fused"
    return None if hasattr(dynamics, "attempt") else "only descent and flows are fused"


def _program(parts: Any, own: Any, record: dict[str, Callable]) -> Program:
    """The program of (loss, dynamics, state), traced once for all parts of one structure."""
    arrays, static = eqx.partition(parts, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    mine = tuple(jax.tree.leaves(own))
    shapes = [a.shape[1:] if m else a.shape for a, m in zip(leaves, mine, strict=True)]
    one = tuple(jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, leaves, strict=True))
    first = len(leaves) - len(jax.tree.leaves(arrays[-1]))
    rest, shape = jax.tree.flatten(static)
    known = (tree, one, mine, first, shape, tuple(rest), tuple(record.items()))
    try:
        return _traced(*known)
    except TypeError:  # something that cannot be a key
        return _traced.__wrapped__(*known)


@functools.lru_cache(maxsize=64)
def _traced(
    tree: Any, one: Any, mine: Any, first: int, shape: Any, rest: Any, record: Any
) -> Program:
    static = jax.tree.unflatten(shape, rest)
    flows = len(static) == 2  # loss and weights, and no dynamics

    def whole(flat: tuple[Any, ...]) -> Any:
        return eqx.combine(jax.tree.unflatten(tree, flat), static)

    def step(*flat: Any) -> list[Any]:
        loss, dynamics, state = whole(flat)
        return jax.tree.leaves(eqx.filter(dynamics.attempt(loss, state), eqx.is_array))

    def rise(*flat: Any) -> list[Any]:
        loss, model = whole(flat)
        after = eqx.combine(slope(loss, model), model)
        return [jnp.asarray(True), *jax.tree.leaves(eqx.filter(after, eqx.is_array))]

    def look(*flat: Any) -> Any:
        loss, *_, last = whole(flat)
        model, now = (last, loss) if flows else (last.model, loss.at(last.mark))
        found = {name: function(model, now) for name, function in record}
        # The record of a run that failed is NaN, so that whole numbers are recorded as reals.
        return jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(a, float)), found)

    return trace(rise if flows else step, look, one, mine, first, flows)


def _zeros(program: Program, leaves: list[Any]) -> tuple[bytes, ...] | None:
    known = [
        a if f.used and not f.own and f.real else None
        for a, f in zip(leaves, program.leaves, strict=True)
    ]
    found = jax.device_get(known)
    if not all(a is None or np.isfinite(a).all() for a in found):
        return None
    return tuple(
        b"" if a is None or f.matrix else ((a == 0) & ~np.signbit(a)).tobytes()
        for a, f in zip(found, program.leaves, strict=True)
    )


def _flat(array: Any, leaf: Any) -> Any:
    """[numbers, run], or [numbers] where it is shared."""
    return array.reshape(array.shape[0], leaf.size).T if leaf.own else array.reshape(-1)


@eqx.filter_jit
def flattened(parts: Any, own: Any, record: dict[str, Callable]) -> dict[int, Array]:
    """The leaves that a loop reads, flat."""
    program = _program(parts, own, record)
    leaves = jax.tree.leaves(eqx.filter(parts, eqx.is_array))
    return {i: _flat(leaves[i], program.leaves[i]) for i in program.read}


@eqx.filter_jit
def _ended(parts: Any, program: Program, after: list[Array], made: Array, last: Any) -> Any:
    """The state at the last mark: the numbers `after` it, and the steps made by each run."""
    arrays, static = eqx.partition(parts, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    for index, values in zip(program.carried, after, strict=True):
        leaf = program.leaves[index]
        leaves[index] = values.T.reshape(values.shape[1], *leaf.shape).astype(leaf.dtype)
    clock = leaves[program.counter]
    leaves[program.counter] = jnp.maximum(clock, jnp.asarray(last, clock.dtype))
    state = eqx.combine(jax.tree.unflatten(tree, leaves), static)[2]
    made = made.astype(state.run.failed.dtype)
    fails = parts[2].running & (made < leaves[program.counter])
    ended = eqx.filter_vmap(lambda r, *how: r.stop(*how))(state.run, fails, made)
    return eqx.tree_at(lambda s: s.run, state, ended)


def _recorded(program: Program, seen: Any) -> Any:
    """Numbers [run, T, numbers] as the tree that is recorded, [run, mark, ...]."""
    seen = to_host(seen)
    shapes, tree = jax.tree.flatten(program.recorded)
    ends = np.cumsum([shape.size for shape in shapes])
    parts = zip(shapes, np.split(seen, ends, axis=2)[:-1], strict=True)
    return jax.tree.unflatten(
        tree,
        [part.reshape(*seen.shape[:2], *s.shape).astype(s.dtype, copy=False) for s, part in parts],
    )
