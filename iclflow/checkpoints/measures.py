"""Measures of every head of a checkpoint, gathered in a table that becomes a labelled Dataset.

Where the names of the tensors tell of no attention heads, plain matrices are measured instead
(`MatrixTable`).
"""

import contextlib
import dataclasses
import fnmatch
import functools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.checkpoints.files import AbstractSource, Arrays, CheckpointError, as_numpy
from iclflow.checkpoints.layouts import Layout
from iclflow.linalg import FactoredMatrix
from iclflow.measures import spectrum, subspace


def one_thread() -> AbstractContextManager[Any]:
    """LAPACK, which JAX takes from SciPy, on one thread inside the block."""
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401, so that its library is among those found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


CIRCUITS = ("QK", "OV")
MEASURES = {  # name -> what it is; dimensionless but for the first two
    "norm": r"Frobenius norm $\|M\|_F$",
    "top_singular_value": r"largest singular value $\sigma_1$",
    "effective_rank": "effective rank (15)",
    "marginalised_effective_rank": "effective rank without the largest singular values",
    "tracked_effective_rank": "effective rank without the modes that converged first",
    "stable_rank": r"stable rank $\|M\|_F^2/\|M\|_2^2$",
    "subspace_distance": r"subspace distance (16) to the reference, top $k$",
    "projector_distance": r"$\|P_k-P_k^{ref}\|_F/\sqrt{2k}$",
    "largest_angle": "largest principal angle to the reference",
    "step_distance": r"$\|P_k-P_k^{previous}\|_F/\sqrt{2k}$",
    "subspace_speed": r"subspace speed, top $k$, per unit of ln(step)",
}
UNITS = {"largest_angle": "rad"}
NEED_REFERENCE = (
    "subspace_distance",
    "projector_distance",
    "largest_angle",
    "tracked_effective_rank",
)
DEFAULT_MEASURES = (
    "norm",
    "effective_rank",
    "stable_rank",
    "subspace_distance",
    "projector_distance",
    "step_distance",
    "subspace_speed",
)
MOVES = ("step_distance", "subspace_speed")  # against the checkpoint before


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure: names from `MEASURES`, the size of subspaces, further functions."""

    measures: tuple[str, ...] = DEFAULT_MEASURES
    rank: int = 8  # k, at most the head size
    drop: int = 1  # components left out by the two marginalised ranks
    extra: tuple[tuple[str, Callable[[FactoredMatrix], Array]], ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown:
            raise ValueError(f"unknown measures {unknown}; known are {list(MEASURES)}")

    @property
    def compares(self) -> bool:
        """Whether any measure needs a reference."""
        return any(name in NEED_REFERENCE for name in self.measures)

    @property
    def moves(self) -> tuple[str, ...]:
        """The measures that need the checkpoint before."""
        return tuple(name for name in self.measures if name in MOVES)


@eqx.filter_jit
def measure_heads(
    heads: FactoredMatrix, plan: Plan
) -> tuple[dict[str, Float[Array, " H"]], Float[Array, "H k n"]]:
    """Measures of each head by itself, and its top-k right singular vectors."""
    return jax.vmap(lambda matrix: _measure(matrix, plan))(heads)


def _measure(matrix: FactoredMatrix, plan: Plan) -> tuple[dict[str, Array], Array]:
    values, basis = matrix.right_svd(min(plan.rank, *matrix.left.shape, matrix.right.shape[1]))
    found = spectral_measures(values, plan)
    found |= {name: function(matrix) for name, function in plan.extra}
    return found, basis


def spectral_measures(values: Float[Array, " k"], plan: Plan) -> dict[str, Float[Array, ""]]:
    """Those measures of the plan that need only singular values."""
    known = {
        "norm": jnp.linalg.norm,
        "top_singular_value": jnp.max,
        "effective_rank": spectrum.effective_rank,
        "marginalised_effective_rank": lambda v: spectrum.marginalised_effective_rank(v, plan.drop),
        "stable_rank": spectrum.stable_rank,
    }
    return {name: known[name](values) for name in plan.measures if name in known}


@eqx.filter_jit
def leading_bases(heads: FactoredMatrix, plan: Plan) -> Float[Array, "H k n"]:
    """The top-k right singular vectors of each head."""
    return jax.vmap(lambda matrix: _measure(matrix, plan)[1])(heads)


@eqx.filter_jit
def compare_heads(
    bases: Float[Array, "H k n"],
    goals: Float[Array, "H k n"],
    reference: FactoredMatrix,
    plan: Plan,
) -> dict[str, Float[Array, " H"]]:
    """Measures of each head, given by its top-k basis, against its reference."""

    def one(basis: Array, goal: Array, other: FactoredMatrix) -> dict[str, Array]:
        known = {
            "subspace_distance": lambda: subspace.unexplained(other, basis),
            "projector_distance": lambda: subspace.projector_distance(basis, goal),
            "largest_angle": lambda: subspace.principal_angles(basis, goal)[0],
        }
        return {name: known[name]() for name in plan.measures if name in known}

    return jax.vmap(one)(bases, goals, reference)


@jax.jit
def track_heads(heads: FactoredMatrix, reference: FactoredMatrix) -> Float[Array, "H r"]:
    """Strengths in each head of the singular modes of its reference."""

    def one(matrix: FactoredMatrix, other: FactoredMatrix) -> Array:
        u, _, vt = other.svd()
        return spectrum.mode_strengths(matrix, u, vt.T)

    return jax.vmap(one)(heads, reference)


@jax.jit
def _step_distances(
    previous: Float[Array, "H k n"], bases: Float[Array, "H k n"]
) -> Float[Array, " H"]:
    return jax.vmap(subspace.projector_distance)(previous, bases)


def moves_since(
    before: Float[Array, "H k n"] | None,
    bases: Float[Array, "H k n"],
    steps: tuple[int, int],
    plan: Plan,
) -> dict[str, Float[np.ndarray, " H"]]:
    """Those measures of the plan that need the bases of the step before; NaN where there is none.

    - `steps`: the step before, and this one.
    """
    # compiled with the rest, at the first step
    distances = np.asarray(_step_distances(bases if before is None else before, bases), float)
    if before is None:
        return {name: np.full_like(distances, np.nan) for name in plan.moves}
    [interval] = subspace.log_intervals(np.asarray(steps, float))
    found = {"step_distance": distances, "subspace_speed": distances / interval}
    return {name: found[name] for name in plan.moves}


class Table:
    """Values by measure, [step, circuit, layer, head], filled row by row, then labelled."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.plan, self.layout = plan, layout
        self.steps: list[int] = []
        self.rows: list[dict[str, np.ndarray]] = []
        self.strengths: list[np.ndarray] = []
        self.previous: dict[tuple[str, int], Array] = {}
        self.goals: dict[tuple[str, int], Array] = {}
        self.not_finite: list[str] = []  # tensors with NaN, which no mean over heads may hide

    def add(
        self, step: int, source: AbstractSource, reference: AbstractSource | None = None
    ) -> None:
        """Measure one checkpoint, a layer at a time."""
        with one_thread():
            self._add(step, source, reference)

    def _add(self, step: int, source: AbstractSource, reference: AbstractSource | None) -> None:
        shape = (len(CIRCUITS), len(self.layout.layers), self.layout.heads)
        row: dict[str, np.ndarray] = {}
        strengths: dict[tuple[int, int], np.ndarray] = {}
        bases_now: dict[tuple[str, int], Array] = {}
        for j, layer in enumerate(self.layout.layers):
            circuits = self.layout.heads_of(source, layer).circuits()
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(circuits)):
                names = self.layout.not_finite(source, layer)
                self.not_finite += [f"step {step}, {name}" for name in names]
            goals = (
                self.layout.heads_of(reference, layer).circuits()
                if reference is not None and self.plan.compares
                else {}
            )
            for i, circuit in enumerate(CIRCUITS):
                found, bases = measure_heads(circuits[circuit], self.plan)
                if goals:
                    self._same_shape(step, source, layer, circuits[circuit], goals[circuit])
                    found |= self._compare(bases, goals[circuit], circuit, layer)
                    if "tracked_effective_rank" in self.plan.measures:
                        strengths[i, j] = np.asarray(track_heads(circuits[circuit], goals[circuit]))
                if self.plan.moves:
                    before = self.previous.get((circuit, layer))
                    since = (self.steps[-1] if self.steps else 0, step)
                    found |= moves_since(before, bases, since, self.plan)
                    bases_now[circuit, layer] = bases
                for name, values in found.items():
                    row.setdefault(name, np.full(shape, np.nan))[i, j] = np.asarray(values)
        self.previous.update(bases_now)
        self.steps.append(step)
        self.rows.append(row)
        if strengths:
            self.strengths.append(
                np.stack(
                    [np.stack([strengths[i, j] for j in range(shape[1])]) for i in range(shape[0])]
                )
            )

    def _compare(
        self, bases: Array, reference: FactoredMatrix, circuit: str, layer: int
    ) -> dict[str, Array]:
        """Distances to the reference, whose bases (small) are kept from one step to the next."""
        if (circuit, layer) not in self.goals:
            self.goals[circuit, layer] = leading_bases(reference, self.plan)
        return compare_heads(bases, self.goals[circuit, layer], reference, self.plan)

    def _same_shape(
        self,
        step: int,
        source: AbstractSource,
        layer: int,
        heads: FactoredMatrix,
        goal: FactoredMatrix,
    ) -> None:
        if (heads.left.shape, heads.right.shape) != (goal.left.shape, goal.right.shape):
            stem = self.layout.stem(layer)
            name = next(n for n in source.names() if n.startswith(stem))
            raise CheckpointError(
                f"{source.where(name)}: step {step}, tensors {stem}*: heads of shape "
                f"{heads.left.shape[1:]}, the reference has {goal.left.shape[1:]}"
            )

    def to_dataset(self) -> xr.Dataset:
        """The measures with their labels; a step without a value holds NaN."""
        names = [*self.plan.measures, *(name for name, _ in self.plan.extra)]
        shape = (len(CIRCUITS), len(self.layout.layers), self.layout.heads)
        dims = ("step", "circuit", "layer", "head")
        values = {}
        for name in names:
            rows = [row.get(name, np.full(shape, np.nan)) for row in self.rows]
            if name == "tracked_effective_rank" and self.strengths:
                rows = list(self._tracked())
            units = UNITS.get(name, "1")
            long_name = MEASURES.get(name, name)
            stacked = np.stack(rows) if rows else np.zeros((0, *shape))
            values[name] = (dims, stacked, {"long_name": long_name, "units": units})
        return xr.Dataset(
            values,
            coords={
                "step": ("step", np.array(self.steps, int), {"long_name": "step", "units": "1"}),
                "circuit": list(CIRCUITS),
                "layer": list(self.layout.layers),
                "head": np.arange(self.layout.heads),
            },
            attrs={
                "family": self.layout.family,
                "subspace_size": self.plan.rank,
                "components_dropped": self.plan.drop,
                "not_finite": json.dumps(self.not_finite),
            },
        )

    def _tracked(self) -> np.ndarray:
        """[T, circuit, layer, head] from the strengths of the reference's modes."""
        strengths = np.stack(self.strengths)  # [T, circuit, layer, head, mode]
        flat = strengths.reshape(strengths.shape[0], -1, strengths.shape[-1])
        ranks = jax.vmap(
            lambda modes: spectrum.tracked_effective_rank(modes, self.plan.drop),
            in_axes=1,
            out_axes=1,
        )(jnp.asarray(flat))
        return np.asarray(ranks).reshape(strengths.shape[:-1])


SMALL = 512  # sides up to which a matrix is decomposed on one thread


class MatrixTable:
    """Measures of plain matrices, [step, matrix]; stacks [H, m, n] count as H matrices."""

    def __init__(self, plan: Plan, patterns: Sequence[str], largest: int, reason: str) -> None:
        self.plan, self.patterns, self.largest = plan, patterns, largest
        self.reason = reason  # why the heads are not measured instead
        self.steps: list[int] = []
        self.rows: list[dict[str, np.ndarray]] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.labels: list[str] = []
        self.skipped: list[str] = []
        self.previous: dict[str, Any] = {}
        self.not_finite: list[str] = []  # matrices with NaN, which no mean may hide

    def add(self, step: int, source: Arrays) -> None:
        """Measure the matrices of one step."""
        row: dict[str, list[float]] = {name: [] for name in self.plan.measures}
        labels = []
        shapes = {name: source.shape(name) for name in source.names()}
        if self.steps and shapes != self.shapes:
            changed = sorted(set(shapes.items()) ^ set(self.shapes.items()))
            raise ValueError(
                f"the weights changed their names or shapes at step {step} ({changed[0][0]}); use "
                f"a new Monitor"
            )
        self.shapes = shapes
        for name, shape in shapes.items():
            small = len(shape) not in (2, 3) or min(shape[-2:]) < 2 or 0 in shape
            if small or not self._wanted(name):
                continue
            if min(shape[-2:]) > self.largest:
                self.skipped = sorted({*self.skipped, name})
                continue
            values = as_numpy(source.arrays[name])
            if wrong := int(np.sum(~np.isfinite(values))):
                line = f"tensor {name}: {wrong} of {values.size} values are not finite"
                self.not_finite.append(f"step {step}, {line}")
            stack = jnp.asarray(values).reshape(-1, *shape[-2:])
            labels += [name] if len(shape) == 2 else [f"{name}[{i}]" for i in range(shape[0])]
            with one_thread() if min(shape[-2:]) <= SMALL else contextlib.nullcontext():
                found, bases = jax.block_until_ready(_measure_matrices(stack, self.plan))
            if self.plan.moves:
                before = self.previous.get(name)
                self.previous[name] = bases
                since = (self.steps[-1] if self.steps else 0, step)
                found |= moves_since(before, bases, since, self.plan)
            for measure, values in found.items():
                row[measure] += [float(v) for v in values]
        if not labels:
            shown = ", ".join(f"{n} {s}" for n, s in list(shapes.items())[:4])
            raise ValueError(
                f"no matrix to measure among {shown}; needed are arrays of 2 or 3 axes, sides from "
                f"2 to {self.largest}, under names like {', '.join(self.patterns)}"
            )
        self.labels = labels
        self.steps.append(step)
        self.rows.append({name: np.array(values) for name, values in row.items()})

    def _wanted(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def to_dataset(self) -> xr.Dataset:
        """The measures with their labels."""
        values = {
            name: (
                ("step", "matrix"),
                np.stack([row[name] for row in self.rows]),
                {"long_name": MEASURES[name], "units": "1"},
            )
            for name in self.plan.measures
        }
        coords = {"step": np.array(self.steps, int), "matrix": np.array(self.labels, str)}
        return xr.Dataset(
            values,
            coords=coords,
            attrs={
                "family": f"none ({self.reason})",
                "too_large": json.dumps(self.skipped),
                "not_finite": json.dumps(self.not_finite),
            },
        )


@eqx.filter_jit
def _measure_matrices(stack: jax.Array, plan: Plan) -> tuple[dict[str, Any], jax.Array]:
    _, values, vt = jnp.linalg.svd(stack, full_matrices=False)
    found = jax.vmap(lambda v: spectral_measures(v, plan))(values)
    # the whole space would be at distance 0 from itself whatever the weights do
    return found, vt[:, : max(1, min(plan.rank, stack.shape[2] - 1))]
