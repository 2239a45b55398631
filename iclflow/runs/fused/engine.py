"""Which engine advances a batch: a fused loop where it pays, `vmap` everywhere else."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from iclflow.runs.fused import cpp_loop, cpu, cuda
from iclflow.runs.fused.program import TERMS, Program, trace
from iclflow.runs.fused.tables import Room
from iclflow.runs.transfer import to_host

VMAP, CPP, CUDA = "vmap", "C++", "CUDA"
# Numbers a lane holds: beyond, registers and compilers give up.
WIDEST = 256
OFFSETS = 2**31  # a kernel counts its numbers in 32 bits
LONGEST = 128  # features of moments: D = 5; the program grows with them, and its compiler's time
ROOM = 200 * 2**10  # bytes that a block of threads may share
NEEDED = {
    "cpu": "a fused loop needs a C++ compiler: c++, g++, clang++, or what CXX names",
    "gpu": "a fused loop on a GPU needs CuPy: pip install cupy-cuda13x",
}


class Advanced(NamedTuple):
    """A batch at its last mark: all that is left of a run's `Trajectory` here."""

    state: Any
    record: dict[str, Any]  # [run, mark, ...]


class Fused:
    """A fused loop for batches of one kind: (loss, dynamics, state).

    - `own`: of each array among the parts, whether every run has its own.
    """

    def __init__(self, own: Any) -> None:
        """For parts whose arrays are so shared."""
        self.own, self.engine = own, available()

    @classmethod
    def of(cls, loss: Any, dynamics: Any, state: Any, own: tuple[bool, bool]) -> "Fused":
        """For runs that have a loss or a dynamics of their `own`, or share it."""
        parts = zip((loss, dynamics, state), (*own, True), strict=True)
        loss, dynamics, state = (
            jax.tree.map(lambda _, mine=mine: mine, eqx.filter(part, eqx.is_array))
            for part, mine in parts
        )
        for name in dynamics.shared:
            state = eqx.tree_at(lambda s, n=name: getattr(s, n), state, False)
        return cls((loss, dynamics, state))

    def program(self, parts: tuple[Any, Any, Any], record: dict[str, Callable]) -> Program:
        """What one run does."""
        return trace(parts, self.own, record)

    def zeros(self, parts: tuple[Any, Any, Any], record: dict[str, Callable]) -> tuple[bytes, ...]:
        """Of each array that all runs share, which numbers are zero: they need no arithmetic."""
        leaves = jax.tree.leaves(eqx.filter(parts, eqx.is_array))
        kinds = zip(leaves, self.program(parts, record).leaves, strict=True)
        known = [a if f.used and not f.own and f.real and not f.table else None for a, f in kinds]
        return tuple(b"" if a is None else (a == 0).tobytes() for a in jax.device_get(known))

    def advance(
        self, parts: tuple[Any, Any, Any], marks: np.ndarray, record: dict[str, Callable]
    ) -> Advanced:
        """All runs to the last mark, with what they record at the marks."""
        program, running = self.program(parts, record), parts[2].running
        zeros = self.zeros(parts, record)
        if self.engine == CUDA:
            flat = flattened(parts, self.own, record)
            after, seen, made = cuda.advance(program, flat, zeros, marks, running)
        else:
            leaves = jax.tree.leaves(eqx.filter(parts, eqx.is_array))
            flat = {i: _flat(np.asarray(leaves[i]), program.leaves[i]) for i in program.read}
            alive = np.asarray(running)
            after, seen, made = cpu.advance(program, flat, zeros, marks, alive)
            after, made = jax.device_put((after, made))
        return Advanced(_ended(parts, program, after, made, marks[-1]), _recorded(program, seen))


def available() -> str:
    """The engine of large batches on this machine."""
    if jax.default_backend() == "gpu":
        return CUDA if cuda.installed() else VMAP
    return VMAP if cpp_loop.compiler() is None else CPP


def why_not(
    fused: Fused,
    parts: tuple[Any, Any, Any],
    record: dict[str, Callable],
    runs: int,
    marks: np.ndarray,
) -> str | None:
    """None where a fused loop can advance these runs, else the reason for `vmap`.

    Whether the loop is worth its compiler is another question, which `runs.cost` answers.
    """
    (loss, dynamics, _), engine = parts, fused.engine
    if not hasattr(dynamics, "attempt") or loss.stochastic:
        return "only descent on a loss without noise is fused"
    if engine == VMAP:
        return NEEDED["gpu" if jax.default_backend() == "gpu" else "cpu"]
    program = fused.program(parts, record)
    reason = program.reason()
    if reason is not None:
        return f"a fused loop cannot do this: {reason}"
    if engine == CPP and cpp_loop.trouble() is not None:
        return f"the C++ compiler does not work: {cpp_loop.trouble()}"
    if any(max(program.leaves[i].shape) > LONGEST for i in program.tables):
        return f"moments of more than {LONGEST} features are too large for a fused loop"
    if engine == CUDA and Room(program).bytes > ROOM:
        return "the moments are too large for the memory that the threads of a GPU share"
    terms = sum(f.size for f in program.leaves if f.used and not f.own and not f.table)
    if max(program.width / WIDEST, terms / TERMS) > 1:
        return f"{program.width} numbers a run and {terms} shared are too many for a fused loop"
    if len(marks) * program.seen_count * runs >= OFFSETS:
        return "a fused loop records fewer than 2^31 numbers; record less, or at fewer steps"
    return None


def _flat(array: Any, leaf: Any) -> Any:
    """[numbers, run], or [numbers] where it is shared."""
    return array.reshape(array.shape[0], -1).T if leaf.own else array.reshape(-1)


@eqx.filter_jit
def flattened(parts: Any, own: Any, record: dict[str, Callable]) -> dict[int, Array]:
    """The leaves that a loop reads, flat."""
    program = trace(parts, own, record)
    leaves = jax.tree.leaves(eqx.filter(parts, eqx.is_array))
    return {i: _flat(leaves[i], program.leaves[i]) for i in program.read}


@eqx.filter_jit
def _ended(parts: Any, program: Program, after: list[Array], made: Array, last: Any) -> Any:
    """The state at the last mark: the numbers `after` it, and the steps made by each run."""
    arrays, static = eqx.partition(parts, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    for index, values in zip(program.carried, after, strict=True):
        leaf = program.leaves[index]
        leaves[index] = values.T.reshape(-1, *leaf.shape).astype(leaf.dtype)
    clock = leaves[program.clock]
    leaves[program.clock] = jnp.maximum(clock, jnp.asarray(last, clock.dtype))
    state = eqx.combine(jax.tree.unflatten(tree, leaves), static)[2]
    made = made.astype(state.run.failed.dtype)
    fails = parts[2].running & (made < leaves[program.clock])
    ended = eqx.filter_vmap(lambda r, *how: r.stop(*how))(state.run, fails, made)
    return eqx.tree_at(lambda s: s.run, state, ended)


def _recorded(program: Program, seen: Any) -> Any:
    """Numbers [run, T, numbers] as the tree that is recorded, [run, mark, ...]."""
    seen = to_host(seen)
    shapes, tree = jax.tree.flatten(program.recorded)
    ends = np.cumsum([shape.size for shape in shapes])
    parts = zip(shapes, np.split(seen, ends, axis=2)[:-1], strict=True)
    return jax.tree.unflatten(tree, [part.reshape(*seen.shape[:2], *s.shape) for s, part in parts])
