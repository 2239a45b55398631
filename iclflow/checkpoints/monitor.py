"""Watch somebody's training loop: measures at log-spaced steps, stages online, one Dataset.

`TrainerCallback` is the same monitor as a callback of the Hugging Face Trainer.
"""

import json
import math
import operator
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
import xarray as xr

from iclflow.checkpoints.files import Arrays, CheckpointError
from iclflow.checkpoints.layouts import NoAttentionError, find_layout
from iclflow.checkpoints.measures import (
    MEASURES,
    MOVES,
    NEED_REFERENCE,
    MatrixTable,
    Plan,
    Table,
)
from iclflow.measures.in_context import InContext
from iclflow.measures.in_context import by_position as means_by_position
from iclflow.measures.stages import Stages, find_stages


def named_arrays(weights: Any) -> Mapping[str, Any]:
    """Arrays by name from a module (PyTorch, Equinox, NNX), a mapping, a pytree, or a function.

    A function returns one of the others, and is called.
    """
    if hasattr(weights, "state_dict"):
        weights = weights.state_dict()
    elif not any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(weights)):
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None and isinstance(weights, nnx.Module):  # before NNX had pytrees
            weights = nnx.state(weights)
        elif callable(weights):
            return named_arrays(weights())
    plain = isinstance(weights, Mapping) and all(hasattr(v, "shape") for v in weights.values())
    if plain and weights:
        return {str(name): value for name, value in weights.items()}
    leaves = jax.tree_util.tree_flatten_with_path(weights)[0]
    named = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }
    if not named:
        raise ValueError(
            f"weights hold no arrays, got {type(weights).__name__}; pass a module, a state_dict, a "
            f"pytree or named arrays"
        )
    if all(name.endswith(".value") for name in named):  # the variables of NNX
        named = {name.removesuffix(".value"): leaf for name, leaf in named.items()}
    return named


def settings_of(weights: Any) -> Mapping[str, Any]:
    """The settings that a model of transformers carries; nothing of others."""
    settings = getattr(getattr(weights, "config", None), "to_dict", None)
    return {} if settings is None else settings()


def copy_number(step: int, value: Any, what: str = "the loss") -> Any:
    """A copy of one number, which no later step overwrites; refused unless it is one number.

    A number on a device is not waited for. `what` names the number in the error.
    """
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1 or not hasattr(value, "__float__"):
        got = f"shape {shape}" if shape else type(value).__name__
        raise ValueError(
            f"{what} of step {step} must be one number, got {got}; take its mean, or give losses "
            f"by position as by_position="
        )
    value = value.reshape(()) if shape else value
    return _copied(value) if _on_device(value) else float(_detached(value))


def copy_row(step: int, values: Any) -> Any:
    """A copy of the losses at all positions of the context, a row of two numbers or more."""
    shape = tuple(np.shape(values)) if not hasattr(values, "shape") else tuple(values.shape)
    if len(shape) != 1 or shape[0] < 2:
        raise ValueError(
            f"by_position of step {step} must be a row of losses, one per position, got shape "
            f"{shape}; take the mean over the batch"
        )
    return _copied(values) if _on_device(values) else np.array(_detached(values), float)


def _on_device(value: Any) -> bool:
    """Whether reading the numbers would mean waiting for a device."""
    if isinstance(value, jax.Array):
        return True
    return hasattr(value, "detach") and value.device.type != "cpu"


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, jax.Array) else value.detach().clone()


class Line:
    """One line that is rewritten in place, at most twice per second."""

    def __init__(self) -> None:
        from rich.live import Live  # only when asked for

        self.live = Live("", auto_refresh=False)
        self.shown: float | None = None

    def stale(self, now: float) -> bool:
        """Whether it is time for a new text."""
        if self.shown is None or now - self.shown > 0.5:
            self.shown = now
            return True
        return False

    def show(self, text: str) -> None:
        """Put a text in place of the last."""
        if not self.live.is_started:
            self.live.start()
        self.live.update(text, refresh=True)

    def close(self) -> None:
        """Leave the line as it is."""
        self.live.stop()


BINS = 32  # of the loss, in a factor e of steps
PENDING = 256  # losses kept on the device before they are read
ALLOWANCE = (
    0.2  # seconds of measuring beyond the budget, so that a short run is seen from its start
)
NONE = InContext(*6 * (math.nan,), label=False)  # of an unknown drop
ROW = "loss_by_position"
# Variables of the Dataset whose names a metric cannot have.
TAKEN = (*MEASURES, "loss", "early_loss", "late_loss", ROW)
ONLINE = ("norm", "effective_rank", "stable_rank", "step_distance", "subspace_speed")


class Monitor:
    """Called at every step as `monitor(step, loss=..., weights=...)`; cheap when nothing is due.

    Weights may be a module of PyTorch, Equinox or NNX, a state_dict, any JAX pytree, named arrays,
    or a function that returns one of these (then called only when due). Attention weights under a
    known family of names give measures of QK and OV of every head, as for checkpoints; other
    weights give measures of every matrix. Nothing of the training is changed: losses are copied
    when they are given, weights are measured before the call returns.

    With losses by position of the context, or with the losses of early and of late positions,
    `monitor.stages().drops[i].in_context` says how much of a drop is in-context learning.

    >>> import numpy as np
    >>> from iclflow.checkpoints import Monitor
    >>> monitor = Monitor(measures=["norm"])
    >>> for step in range(100):
    ...     monitor(step, loss=1 / (1 + step), weights={"w": np.eye(2)}, last=step == 99)
    >>> dict(monitor.to_dataset().norm.isel(step=[0, -1]).sizes)
    {'step': 2, 'matrix': 1}

    >>> monitor = Monitor()
    >>> for step in range(2000):
    ...     fall = 1 / (1 + np.exp(-(step - 1000) / 20))
    ...     monitor(step, by_position=[2.0, 2.0, 2.0 - fall], metrics={"induction": fall})
    >>> monitor.stages().drops[0].in_context.label
    True
    """

    def __init__(
        self,
        *,
        measures: Sequence[str] = ONLINE,
        rank: int = 8,
        drop: int = 1,
        matrices: Sequence[str] = ("*",),
        largest: int = 4096,
        per_decade: int = 20,
        budget: float = 0.02,
        heads: int | None = None,
        stack: str | None = None,
        config: Mapping[str, Any] | None = None,
        live: bool = False,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Choose what to watch.

        - `measures`: as for checkpoints, but for those that need the last one.
        - `rank`: the number of leading singular directions that make a subspace.
        - `drop`: how many of the largest singular values the marginalised rank leaves out.
        - `matrices`: patterns of names, where the names are of no known family; matrices whose
          smaller side exceeds `largest` are left out.
        - `per_decade`: measured steps in a factor ten of steps.
        - `budget`: measuring takes at most this share of the time, and a fifth of a second; a
          measurement that would exceed it is put off. The first one, which compiles, is not
          counted.
        - `heads`, `config`: the number of heads, or the model's settings that hold it.
        - `stack`: part of the names of the layers to watch, where there are several stacks.
        - `live`: keep a line about the run on the terminal.
        - `stopwatch`: gives the seconds that the budget is counted in; another clock for tests.
        """
        ahead = [name for name in measures if name in NEED_REFERENCE]
        if ahead:
            raise ValueError(
                f"{', '.join(ahead)} needs the last checkpoint, which a running job does not have; "
                f"use subspace_speed, or measure saved checkpoints"
            )
        if isinstance(measures, str):
            raise ValueError(f"measures must be a list of names, got the string {measures!r}")
        for name, value in (("per_decade", per_decade), ("rank", rank), ("largest", largest)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not budget > 0:
            raise ValueError(f"budget is a share of the time and must be above 0, got {budget}")
        self.plan = Plan(tuple(measures), rank, drop)
        self.matrices, self.largest = tuple(matrices), largest
        self.ratio, self.budget = 10 ** (1 / per_decade), budget
        self.heads, self.stack, self.config = heads, stack, dict(config or {})
        self.stopwatch = stopwatch
        self.last_step: int | None = None
        self.measured: int | None = None  # the last step whose weights were measured
        self.next_step = 0
        self.started: float | None = None
        self.spent = 0.0
        self.table: Table | MatrixTable | None = None
        self.lost = 0  # losses that were not finite
        self._pending: list[tuple[int, str, Any]] = []
        # name -> bin of steps -> sums of step and value, count
        self._bins: dict[str, dict[int, tuple[float, Any, int]]] = {"loss": {}}
        self._stages: Stages | None = None
        self._line = Line() if live else None

    def due(self, step: Any) -> bool:
        """Whether weights would be measured at this step."""
        if _whole(step) < self.next_step:
            return False
        if self.started is None:
            return True
        return self.spent <= self.budget * (self.stopwatch() - self.started) + ALLOWANCE

    def __call__(
        self,
        step: Any,
        *,
        loss: Any = None,
        by_position: Any = None,
        early: Any = None,
        late: Any = None,
        metrics: Mapping[str, Any] | None = None,
        weights: Any = None,
        last: bool = False,
    ) -> None:
        """Note the losses of a step, and measure the weights if it is their turn, or the last.

        - `loss`: the training loss, one number.
        - `by_position`: the loss at each position of the context, a row. Its mean is the loss where
          none is given, and its first and last tenth are `early` and `late`.
        - `early`, `late`: the losses early and late in the context, where there is no whole row.
        - `metrics`: further numbers by name, such as an induction score. They may be given at some
          of the steps only.
        - `weights`: the weights, or a function that returns them.
        - `last`: measure the weights whatever the budget.
        """
        step = _whole(step)
        if self.last_step is not None and step < self.last_step:
            raise ValueError(
                f"steps must not go back, got {step} after {self.last_step}; "
                f"use a new Monitor for a new run"
            )
        self.last_step = step
        if self.started is None:
            self.started = self.stopwatch()
        for name, value in {"loss": loss, "early_loss": early, "late_loss": late}.items():
            if value is not None:
                what = f"the {name.replace('_', ' ')}"
                self._pending.append((step, name, copy_number(step, value, what)))
        if by_position is not None:
            if early is not None or late is not None:
                raise ValueError("give the losses by_position, or early and late, not both")
            name = ROW if loss is None else f"{ROW} beside a loss"
            self._pending.append((step, name, copy_row(step, by_position)))
        for name, value in (metrics or {}).items():
            if not name.isidentifier() or name in TAKEN:
                raise ValueError(
                    f"a metric needs a name of letters, digits and _ that is not taken by the "
                    f"monitor, got {name!r}"
                )
            self._pending.append((step, name, copy_number(step, value, f"the metric {name}")))
        if len(self._pending) >= PENDING:
            self._read_losses()
        if weights is not None and ((last and step != self.measured) or self.due(step)):
            self._measure(step, weights)
        if self._line is not None and (step == 0 or self._line.stale(self.stopwatch())):
            self._line.show(self.line())

    def stages(self, *, resamples: int = 0) -> Stages:
        """Plateaus and drops of the loss so far; with losses by position, what each drop is.

        - `resamples`: curves drawn for the confidence of each plateau and drop, as in
          `find_stages`.
        """
        self._read_losses()
        if resamples or self._stages is None:
            steps, losses = self._curve("loss")
            early = late = None
            if "early_loss" in self._bins and "late_loss" in self._bins:
                early, late = self._beside("early_loss"), self._beside("late_loss")
            self._stages = find_stages(steps, losses, early=early, late=late, resamples=resamples)
        return self._stages

    def line(self) -> str:
        """One line: step, loss, plateau, drops, mean of each measure."""
        stages = self.stages()
        _, losses = self._curve("loss")
        parts = ["no step yet" if self.last_step is None else f"step {self.last_step}"]
        if losses.size:
            parts.append(f"loss {losses[-1]:.4g}")
        if stages.drops:
            times = ", ".join(
                f"{drop.time:.4g}" + " (in context)" * (drop.in_context or NONE).label
                for drop in stages.drops[-3:]
            )
            parts.append(f"{len(stages.drops)} drops, last at {times}")
        if stages.plateaus and (not stages.drops or stages.drops[-1].complete):
            now = stages.plateaus[-1]
            parts.append(f"plateau at {now.level:.4g} since {now.start:.4g}")
        elif stages.drops:
            parts.append("falling")
        if self.table is not None and self.table.rows:
            row = self.table.rows[-1]
            known = {n: v for n, v in row.items() if np.isfinite(v).any() or n not in MOVES}
            # The plain mean: one head with NaN shows, where a mean without it would hide it.
            parts += [f"{name} {np.mean(values):.3g}" for name, values in known.items()]
            if self.table.not_finite:
                parts.append(self.table.not_finite[-1])
        parts += [f"{name} {self._curve(name)[1][-1]:.3g}" for name in self._metrics()]
        if self.lost:
            parts.append(f"{self.lost} losses not finite")
        return " · ".join(parts)

    def to_dataset(self) -> xr.Dataset:
        """All measures, [step, circuit, layer, head] or [step, matrix], and the binned loss.

        With losses by position: `early_loss` and `late_loss` over `loss_step`, `loss_by_position`
        over (`loss_step`, `position`), and over the drops `drop_in_context`, the share of each that
        late positions have alone, with `drop_in_context_error` and `drop_in_context_p_value`. The
        metrics are over `metric_step`, NaN where a metric was not given.
        """
        stages = self.stages(resamples=20)
        steps, losses = self._curve("loss")
        data = xr.Dataset() if self.table is None else self.table.to_dataset()
        data = data.assign_coords(
            loss_step=("loss_step", steps, {"long_name": "step", "units": "1"})
        )
        data["loss"] = ("loss_step", losses, {"long_name": "training loss", "units": "1"})
        for side in ("early", "late"):
            if f"{side}_loss" in self._bins:
                about = {"long_name": f"loss {side} in the context", "units": "1"}
                data[f"{side}_loss"] = ("loss_step", self._beside(f"{side}_loss"), about)
        if ROW in self._bins:
            about = {"long_name": "loss by position", "units": "1"}
            data[ROW] = (("loss_step", "position"), self._beside(ROW), about)
        data = data.assign(self._metric_variables())
        data["drop_step"] = (
            "drop_number",
            np.array([drop.time for drop in stages.drops], float),
            {"long_name": "middle of a drop of the loss", "units": "1"},
        )
        data["drop_confidence"] = (
            "drop_number",
            np.array([drop.confidence for drop in stages.drops], float),
            {"long_name": "confidence", "units": "1"},
        )
        found = [drop.in_context for drop in stages.drops]
        if any(found):
            for field, name in (("share", ""), ("error", "_error"), ("p_value", "_p_value")):
                values = [getattr(one or NONE, field) for one in found]
                about = {"long_name": f"{field} of the fall late in the context alone"}
                data[f"drop_in_context{name}"] = ("drop_number", values, about | {"units": "1"})
        data.attrs |= {"losses_not_finite": self.lost, "stages": json.dumps(stages.lines())}
        return data

    def close(self) -> None:
        """Leave the terminal line as it is."""
        if self._line is not None:
            self._line.show(self.line())
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure(self, step: int, weights: Any) -> None:
        began = self.stopwatch()
        source = Arrays(named_arrays(weights), self.config or settings_of(weights))
        first = self.table is None
        if self.table is None:
            self.table = self._table(source)
        self.table.add(step, source)
        if not first:
            self.spent += self.stopwatch() - began
        self.measured = step
        self.next_step = max(step + 1, math.ceil(step * self.ratio))

    def _table(self, source: Arrays) -> Table | MatrixTable:
        try:
            return Table(self.plan, find_layout(source, heads=self.heads, stack=self.stack))
        except NoAttentionError as error:
            reason = str(error)
        except CheckpointError as error:  # there is attention, but it cannot be cut into heads
            reason = str(error)
            warnings.warn(f"{reason}; plain matrices are measured instead", stacklevel=4)
        return MatrixTable(self.plan, self.matrices, self.largest, reason)

    def _read_losses(self) -> None:
        for step, name, value in self._pending:
            for known, number in _read(name, value).items():
                if not np.isfinite(number).all():
                    self.lost += 1
                    break
                label = -1 if step == 0 else math.floor(BINS * math.log(step))
                bins = self._bins.setdefault(known, {})
                at, total, count = bins.get(label, (0.0, 0.0, 0))
                if np.shape(total) not in ((), np.shape(number)):
                    raise ValueError(
                        f"by_position had {np.size(total)} positions, and {np.size(number)} at "
                        f"step {step}; give the same positions at every step"
                    )
                bins[label] = (at + step, total + number, count + 1)
                self._stages = None
        self._pending.clear()

    def _curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean steps and means of one name: per bin one value, or one row of losses by position."""
        rows = list(self._bins.get(self._known(name), {}).values())
        steps = np.array([at / count for at, _, count in rows], float)
        return steps, np.array([total / count for _, total, count in rows], float)

    def _known(self, name: str) -> str:
        """The name itself; for the loss, where only early and late losses are given, the late."""
        no_loss = name == "loss" and not self._bins["loss"] and "late_loss" in self._bins
        return "late_loss" if no_loss else name

    def _beside(self, name: str) -> np.ndarray:
        """The means of one name in the bins of the loss, NaN where it was not given."""
        bins, means = self._bins[name], self._curve(name)[1]
        rows = dict(zip(bins, means, strict=True))
        empty = np.full(means.shape[1:], np.nan)
        return np.array([rows.get(label, empty) for label in self._bins[self._known("loss")]])

    def _metrics(self) -> list[str]:
        return [name for name in self._bins if name not in TAKEN]

    def _metric_variables(self) -> dict[str, xr.DataArray]:
        """The metrics on one axis of steps, the mean step of each bin."""
        names = self._metrics()
        labels = sorted({label for name in names for label in self._bins[name]})
        sums = [
            [self._bins[name][label] for name in names if label in self._bins[name]]
            for label in labels
        ]
        steps = [sum(at for at, *_ in row) / sum(count for *_, count in row) for row in sums]
        at = {"metric_step": ("metric_step", steps, {"long_name": "step", "units": "1"})}
        found = {}
        for name in names:
            values = dict(zip(self._bins[name], self._curve(name)[1], strict=True))
            column = np.array([values.get(label, np.nan) for label in labels], float)
            about = {"long_name": name.replace("_", " "), "units": "1"}
            found[name] = xr.DataArray(column, at, ["metric_step"], attrs=about)
        return found


def _read(name: str, value: Any) -> dict[str, Any]:
    """What is noted of one number, or of one row of losses by position."""
    if not name.startswith(ROW):
        return {name: float(value)}
    row = np.asarray(value, float)
    loss, early, late = (float(mean[0]) for mean in means_by_position(row[None]))
    found = {ROW: row, "early_loss": early, "late_loss": late}
    return {"loss": loss, **found} if name == ROW else found


def _whole(step: Any) -> int:
    """A step as a whole number, not negative."""
    try:
        number = operator.index(step)
    except TypeError:
        raise ValueError(f"a step must be a whole number, got {step!r}") from None
    if number < 0:
        raise ValueError(f"steps count from 0, got {number}")
    return number


class TrainerCallback:
    """A `Monitor` as a callback: `Trainer(callbacks=[TrainerCallback(monitor)])`.

    It has the methods the Trainer calls and inherits nothing, so that transformers is not
    imported. Losses are those the Trainer logs (`logging_steps`); weights are read only when due,
    and at the start and the end. A second `train()` counts on from where the first one ended.
    """

    def __init__(self, monitor: Monitor) -> None:
        """Watch with this monitor."""
        self.monitor = monitor
        self.before = 0  # steps of earlier calls of train()

    def on_train_begin(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Take the head counts from the model's settings, and measure the initial weights."""
        if not self.monitor.config:
            self.monitor.config = dict(settings_of(context.get("model")))
        last = self.monitor.last_step
        self.before = 0 if last is None else max(0, last - state.global_step)
        self._see(state, context)

    def on_step_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Measure the weights."""
        self._see(state, context)

    def on_log(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Note the loss."""
        logs = context.get("logs") or {}
        if "loss" in logs and self._leads(state):
            self.monitor(self.before + state.global_step, loss=logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Measure the last weights, and release the terminal line."""
        self._see(state, context, last=True)
        self.monitor.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):  # every other event
            return lambda *_, **__: None
        raise AttributeError(name)

    def _see(self, state: Any, context: dict[str, Any], *, last: bool = False) -> None:
        model, step = context.get("model"), self.before + state.global_step
        if model is not None and self._leads(state) and (last or self.monitor.due(step)):
            self.monitor(step, weights=model, last=last)

    @staticmethod
    def _leads(state: Any) -> bool:
        return bool(getattr(state, "is_world_process_zero", True))
