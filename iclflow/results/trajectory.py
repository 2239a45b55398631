"""What a run returns: recorded quantities at saved times, and how the run ended."""

import html
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from iclflow.linalg import is_concrete
from iclflow.results.display import html_table


class RESULTS(eqx.Enumeration):
    """How a run ended. Numerical failure is a result, not an exception.

    >>> import iclflow as icl
    >>> bool(icl.RESULTS.finished == icl.RESULTS.diverged)
    False
    """

    finished = "reached the end"
    diverged = "the loss grew past any bound: the rate is too large"
    not_a_number = "the loss or the weights were not numbers from the start"
    step_limit = "the solver used up its steps before the end"


class Labelled(eqx.Module):
    """Recorded numbers with the names of their last axes, and the labels along each of them.

    It is a pytree with one array: loops, `vmap` and files put further axes before those of `dims`.
    """

    values: Any  # [..., *dims]
    dims: tuple[tuple[str, tuple[Any, ...]], ...] = eqx.field(static=True)  # name, labels


class Trajectory(eqx.Module):
    """One training run.

    Saved points after the run stopped hold NaN; everything before is kept. For gradient descent
    at rate η, `time` is t/τ = 2 η · step, the one clock of every plot (Section 4 of the theory).
    Under a schedule it is 2 Σ ηₛ. Rules such as Adam keep no such clock: `timed` is False, and
    `time` is the number of steps.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> loss = icl.Population(task)
    >>> run = icl.simulate(loss, model, icl.Descent(0.1), until=4, saveat=[0, 4])
    >>> run.step.tolist(), run.loss.shape
    ([0, 4], (2,))
    """

    time: Float[Array, " T"]  # t/τ; steps unless `timed`
    step: Float[Array, " T"] | Int[Array, " T"]  # updates made; for a flow, equal to `time`
    record: dict[str, Any]  # name -> [T, ...], or a dict of such
    result: RESULTS
    stopped: Float[Array, ""] | Int[Array, ""]  # the last step (flow: time) that was computed
    state: Any = None  # resumes the run; see `simulate(..., state=)`
    timed: bool = eqx.field(static=True, default=True)  # whether `time` is t/τ

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
