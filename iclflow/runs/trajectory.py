"""One training run as an object: its numbers, where it came from, and itself with labels."""

import dataclasses
import html
from typing import Any, Self

import jax
import numpy as np
import xarray as xr
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from iclflow.dynamics import AbstractDynamics
from iclflow.dynamics.base import RESULTS, Labelled, Stretch
from iclflow.linalg import is_concrete
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.display import html_table
from iclflow.results.provenance import stamp
from iclflow.runs.record import (
    COUNTED,
    attributes,
    clock_and_ends,
    coordinates_of,
    outcome,
    variables,
)
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_kind


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Lineage:
    """What a run was trained on, started from and trained by.

    JAX sees nothing in it: arrays of the loss are not copied when runs are stacked, and what
    `jit`, `vmap` or `jax.tree.map` make of a run has an empty lineage.

    - `source`, `model`, `dynamics`: the arguments of `simulate`; None where they are not known.
    """

    source: AbstractLoss | AbstractTask | None = None
    model: AbstractModel | None = None
    dynamics: AbstractDynamics | None = None

    def tree_flatten(self) -> tuple[tuple[()], None]:
        return (), None

    @classmethod
    def tree_unflatten(cls, _about: None, _parts: tuple[()]) -> Self:
        return cls()

    @property
    def settings(self) -> dict[str, Any] | None:
        """In the words of a sweep, which readers of runs turn back into objects."""
        if self.source is None or self.model is None:
            return None
        init = self.model.as_initialiser()
        return {"source": self.source, "init": init, "dynamics": self.dynamics}


class Trajectory(Stretch):
    """One training run.

    Saved points after the run stopped hold NaN; everything before is kept. For gradient descent
    at rate η, `time` is t/τ = 2 η · step, the one clock of every plot (Section 4 of the theory).
    Under a schedule it is 2 Σ ηₛ. Rules such as Adam keep no such clock: `timed` is False, and
    `time` is the number of steps.

    - `time`, `step`, `timed`: the clock of the saved points, and whether it is t/τ.
    - `record`: what was recorded, by name.
    - `result`: how the run ended, at the step (of a flow: the time) `stopped`.
    - `state`: resumes the run; see `simulate(..., state=)`.
    - `lineage`: where the run comes from, of which `to_dataset` makes attributes.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> loss = icl.Population(task)
    >>> run = icl.simulate(loss, model, icl.Descent(0.1), until=4, saveat=[0, 4])
    >>> run.step.tolist(), run.loss.shape
    ([0, 4], (2,))
    """

    lineage: Lineage = Lineage()

    @classmethod
    def of(
        cls,
        found: Stretch,
        source: AbstractLoss | AbstractTask,
        model: AbstractModel,
        dynamics: AbstractDynamics,
    ) -> Self:
        """What `simulate` returns; a traced run, as under `jit` and `vmap`, has no lineage."""
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found))
        lineage = Lineage() if traced else Lineage(source, model, dynamics)
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        return cls(**fields, lineage=lineage)

    def __getitem__(self, name: str) -> PyTree[Array]:
        if name not in self.record:
            raise KeyError(f"{name!r} was not recorded; recorded: {', '.join(self.record)}")
        found = self.record[name]
        return found.values if isinstance(found, Labelled) else found

    def __repr__(self) -> str:
        if not is_concrete(self.step) or self.step.ndim != 1 or not self.step.size:
            return super().__repr__()  # traced, or many runs at once
        losses = np.asarray(self.record["loss"]) if "loss" in self.record else np.zeros(0)
        known = losses[np.isfinite(losses)] if losses.ndim == 1 else np.zeros(0)
        fell = f", loss {known[0]:.6g} to {known[-1]:.6g}" if known.size else ""
        return (
            f"Trajectory({self.step.size} points, steps {self.step[0]:g} to {self.step[-1]:g}"
            f"{fell}, {RESULTS[self.result]} ({self.stopped:g}), "
            f"recorded: {', '.join(self.record)})"
        )

    def _repr_html_(self) -> str:
        if not is_concrete(self.step) or self.step.ndim != 1 or not self.step.size:
            return f"<pre>{html.escape(repr(self))}</pre>"
        records = {name: self[name] for name in self.record}
        scalars = {n: v for n, v in records.items() if np.shape(v) == self.step.shape}
        places = np.unique(np.linspace(0, self.step.size - 1, 7).round().astype(int))
        rows = [
            (f"{self.time[i]:.5g}", f"{self.step[i]:g}", *(f"{v[i]:.6g}" for v in scalars.values()))
            for i in places
        ]
        title = f"Trajectory: {RESULTS[self.result]}, at {self.stopped:g}"
        return html_table(title, ("t/τ" if self.timed else "time", "step", *scalars), rows)

    @property
    def loss(self) -> Float[Array, " T"]:
        """The training loss at the saved times."""
        return self["loss"]

    @property
    def model(self) -> Any:
        """The weights at the end of the run."""
        return self.state.model

    def to_dataset(self, settings: Any = None) -> xr.Dataset:
        """The run with its labels, as `sweep` labels many.

        - `settings`: what the attributes say of the run; what it was trained on, started from and
          trained by if omitted, so that `diagnose`, `animate` and `explore` know it again, from a
          file too.

        >>> import jax, iclflow as icl
        >>> task = icl.Task([0.6, 0.3], context=31)
        >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
        >>> run = icl.simulate(icl.Population(task), model, icl.Descent(0.1), until=4)
        >>> run.to_dataset().loss.dims
        ('time',)
        """
        axes = None if self.state is None else self.model.axes()
        data = {
            name: (("time", *dims), array, attributes(name))
            for name, (dims, array) in variables(self.record, 1, axes).items()
        }
        coordinates, ends = clock_and_ends(
            time=np.asarray(self.time),
            step=np.asarray(self.step),
            result=((), outcome(self.result)),
            stopped=((), np.asarray(self.stopped)),
            timed=self.timed,
        )
        about = {} if self.timed else {"clock": COUNTED}
        settings = self.lineage.settings if settings is None else settings
        coordinates |= coordinates_of(self.record)
        return xr.Dataset(data | ends, coordinates, stamp(settings) | about)


def as_dataset(runs: Any) -> xr.Dataset:
    """Runs as a Dataset, of `sweep` or of one `Trajectory`; `ValueError` for anything else."""
    if isinstance(runs, Trajectory):
        return runs.to_dataset()
    needed = "a Dataset of sweep or of a file of runs, or the Trajectory of simulate"
    return require_kind("runs", runs, xr.Dataset, needed)
