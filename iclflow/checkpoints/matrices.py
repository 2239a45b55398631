"""Measures of plain weight matrices, where the names tell of no attention heads."""

import contextlib
import fnmatch
import json
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.checkpoints.files import Arrays, as_numpy
from iclflow.checkpoints.measures import MEASURES, Plan, spectral_measures
from iclflow.checkpoints.threads import one_thread

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
            if "step_distance" in self.plan.measures:
                before = self.previous.get(name)
                self.previous[name] = bases
                # compiled with the rest, at the first step
                distances = _moved(bases if before is None else before, bases)
                found["step_distance"] = [np.nan] * len(stack) if before is None else distances
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


@jax.jit
def _moved(before: jax.Array, now: jax.Array) -> jax.Array:
    rest = now - jnp.einsum("hkn,hln,hlm->hkm", now, before, before)
    return jnp.sqrt(jnp.sum(rest**2, axis=(1, 2)) / now.shape[1])


@eqx.filter_jit
def _measure_matrices(stack: jax.Array, plan: Plan) -> tuple[dict[str, Any], jax.Array]:
    _, values, vt = jnp.linalg.svd(stack, full_matrices=False)
    found = jax.vmap(lambda v: spectral_measures(v, plan))(values)
    # the whole space would be at distance 0 from itself whatever the weights do
    return found, vt[:, : max(1, min(plan.rank, stack.shape[2] - 1))]
