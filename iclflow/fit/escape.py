"""How the time of a drop depends on the scale of the initial weights, with an interval."""

import dataclasses
import enum
import itertools
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.measures import SharedSlope, first_crossings, shared_slope
from iclflow.models import AbstractInitialiser, Merged, Separate, draw_models, empty_model
from iclflow.results.display import html_table
from iclflow.results.messages import Progress, progress_bar, require_choice
from iclflow.runs.record import COUNTED
from iclflow.study.origin import Origin, Source
from iclflow.tasks.checks import require_kind
from iclflow.theory.drops.quadratic import Quadratic
from iclflow.theory.fixed_points.modes import visited_levels
from iclflow.theory.predict import drop_times, select

DROP = "drop_number"
SEED = "seed"
FEW = 5  # seeds below which an interval is said to be rough


class EscapeLaw(enum.Enum):
    """What is fitted to the times T of a drop.

    - `POWER`: T ∝ wᵇ. The slope b of ln T against ln w is the exponent. Heads that leave a saddle
      of third order, as separate key and query do, have b → -1 for small weights.
    - `LOGARITHM`: T = a + b ln w. The slope b is a time. Heads that leave an ordinary saddle at a
      rate r, as merged key and query do, have b → -1/r.
    """

    POWER = "power"
    LOGARITHM = "logarithm"


@dataclasses.dataclass(frozen=True)
class EscapeFit:
    """The slopes of the drop times of a sweep against an axis, and those of the theory.

    - `law`: what was fitted.
    - `against`: the axis, `scale` unless another one was asked for.
    - `data`: a Dataset over the drops and the other axes of the sweep, with `slope`, `low` and
      `high`, `seeds` (that had the drop at two places or more) and `missing` (runs that did not
      have the drop). `theory`, `theory_low` and `theory_high` are the same fit to the times that
      the theory predicts from the same initial weights; NaN where no theory covers the runs.
      `limit` is the slope for vanishing weights. `time` and `theory_time` are the times
      themselves; `local` has the slope between neighbouring values of the axis (median over seeds),
      which shows whether there is one law at all.
    - `notes`: what a reader should know of it, in sentences.

    >>> import iclflow as icl
    >>> task = icl.Task([1.0, 0.5], context=8)
    >>> init = icl.Separate.initialiser(task, heads=3, scale=0.1)
    >>> runs = icl.sweep(
    ...     task, init, icl.Descent(0.1), until=3000, seeds=4, axes={"scale": [0.05, 0.1]},
    ...     record=["drop_times"],
    ... )
    >>> found = icl.fit.escape(runs)
    >>> bool(abs(found.data.slope[0] + 1) < 0.1), float(found.data.limit)
    (True, -1.0)
    """

    law: EscapeLaw
    against: str
    data: xr.Dataset
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*(self._line(*cell) for cell in self._cells()), *self._notes()])

    def __repr__(self) -> str:
        return f"EscapeFit(law={self.law.value}, against={self.against}, {dict(self.data.sizes)})"

    def _repr_html_(self) -> str:
        rows = [
            (name, *(f"{float(one[n]):.4g}" for n in ("slope", "low", "high", "theory")),
             int(one["seeds"]), int(one["missing"]))
            for name, one in self._cells()
        ]  # fmt: skip
        header = ("drop", "slope", "low", "high", "theory", "seeds", "missing")
        return html_table(f"{self.law.value} law against {self.against}", header, rows)

    def _cells(self) -> Iterator[tuple[str, xr.Dataset]]:
        """Each fit with its name: the other axes, then the drop counted from one."""
        axes = list(self.data["slope"].dims)
        for place in itertools.product(*(range(self.data.sizes[d]) for d in axes)):
            at: dict[Hashable, int] = dict(zip(axes, place, strict=True))
            words = [
                f"drop {i + 1}" if d == DROP
                else f"{d} {self.data[d].values[i] if d in self.data.coords else i}"
                for d, i in at.items()
            ]  # fmt: skip
            yield ", ".join(words), self.data.isel(at)

    def _line(self, name: str, one: xr.Dataset) -> str:
        slope, low, high, theory, limit = (
            float(one[n]) for n in ("slope", "low", "high", "theory", "limit")
        )
        if not np.isfinite(slope):
            return f"{name}: no run had this drop at two values of {self.against}"
        if self.law is EscapeLaw.POWER:
            text = f"{name}: T ~ {self.against}^{slope:.3f}"
        else:
            text = f"{name}: dT/d ln {self.against} = {slope:.4g}"
        digits = ".3f" if self.law is EscapeLaw.POWER else ".4g"
        interval = "no interval from one seed"
        if np.isfinite(low):
            interval = (
                f"{self.data.attrs['confidence']:g} interval {low:{digits}} to {high:{digits}}"
            )
        said = f"; theory of the same starts {theory:{digits}}" if np.isfinite(theory) else ""
        said += f"; for vanishing weights {limit:{digits}}" if np.isfinite(limit) else ""
        return f"{text} ({interval}, {int(one['seeds'])} seeds){said}"

    def _notes(self) -> list[str]:
        return [f"note: {note}" for note in self.notes]


def escape(
    runs: xr.Dataset,
    *,
    against: str = "scale",
    times: str = "drop_times",
    law: EscapeLaw | str = EscapeLaw.POWER,
    confidence: float = 0.95,
    resamples: int = 4000,
    starts: int = 8,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
    progress: bool | Progress | None = None,
) -> EscapeFit:
    """Fit the drop times T of a sweep against the scale w of its initial weights.

    Runs of one seed have the same initial weights up to the factor w. So each seed has an intercept
    of its own, all seeds share the slope, and the bootstrap draws whole seeds
    (`measures.shared_slope`). A run that ended before its drop is left out and counted; within a
    seed that does not shift the slope.

    - `runs`: of `sweep`, of a design or of their files, with the axis `against` and several seeds.
      The times are read from the summary `drop_times`. Without it they are where the recorded loss
      is halfway between the levels of the theory.
    - `against`: another axis of positive numbers, as `heads` or `rank`.
    - `times`: another variable over (…, seed, drop), as `detected_times`.
    - `law`: `"power"` fits ln T, `"logarithm"` fits T (see `EscapeLaw`).
    - `confidence`: of the intervals; `resamples`: draws of the bootstrap.
    - `starts`: of how many seeds the theory is computed, at every point; 0 for no theory. The
      summary `predicted_times` is used where it was recorded, and then costs nothing.
    - `source`, `init`: the loss and the initialiser that were trained, where the runs do not say
      so themselves (sampled prompts, a model of your own).
    - `progress`: a bar while the theory is computed, as in `sweep`.

    >>> import iclflow as icl
    >>> task = icl.Task([1.0, 0.5], context=8)
    >>> init = icl.Separate.initialiser(task, heads=3, scale=0.1)
    >>> runs = icl.sweep(
    ...     task, init, icl.Descent(0.1), until=3000, seeds=4, axes={"scale": [0.05, 0.1]},
    ...     record=["drop_times"],
    ... )
    >>> print(str(icl.fit.escape(runs, starts=0)).partition(" (")[0][:18])
    drop 1: T ~ scale^
    """
    word = law.value if isinstance(law, EscapeLaw) else law
    require_choice("law", word, [one.value for one in EscapeLaw])
    chosen = EscapeLaw(word)
    require_kind("runs", runs, xr.Dataset, "a Dataset of sweep or of a file of runs")
    x = _axis(runs, against)
    measured = _times(runs, times, source, init)
    order = [d for d in measured.dims if d not in (against, SEED, DROP)]
    measured = measured.transpose(*order, DROP, against, SEED)
    notes: list[str] = []
    with progress_bar("theory", progress) as report:
        predicted = _predicted(runs, measured, starts, source, init, notes, report)
    shape = measured.shape[:-2]
    curves = {"": measured.values, "theory": predicted}
    found = {
        name: np.full(shape, np.nan) for name in (
            "slope", "low", "high", "theory", "theory_low", "theory_high", "seeds", "missing",
        )
    }  # fmt: skip
    for place in np.ndindex(shape):
        for kind, values in curves.items():
            fit = _fit(x, values[place], chosen, confidence, resamples)
            if kind:
                found["theory"][place] = fit.slope
                found["theory_low"][place], found["theory_high"][place] = fit.low, fit.high
                continue
            found["slope"][place], found["low"][place], found["high"][place] = (
                fit.slope, fit.low, fit.high,
            )  # fmt: skip
            found["seeds"][place], found["missing"][place] = fit.groups, fit.missing
    missing = int(found["missing"].sum())
    if missing:
        notes.append(
            f"{missing} of {measured.size} drops had not come when the run ended; train longer"
        )
    if 1 < measured.sizes[SEED] < FEW:
        notes.append(f"an interval from {measured.sizes[SEED]} seeds is rough; {FEW} or more help")
    dims = tuple(map(str, measured.dims[:-2]))
    whole = (*dims, against, SEED)
    data = xr.Dataset(
        {
            **{name: (dims, array) for name, array in found.items()},
            "limit": ((), _limit(runs, source, init, chosen, against)),
            "local": ((*dims, "between"), _local(x, measured.values, chosen)),
            "time": (whole, measured.values, {"long_name": "drop time", **measured.attrs}),
            "theory_time": (whole, predicted, {"long_name": "predicted drop time"}),
        },
        {d: measured[d] for d in measured.dims if d in measured.coords},
        {"law": chosen.value, "against": against, "confidence": confidence},
    )
    data = data.assign({name: data[name].astype(int) for name in ("seeds", "missing")})
    return EscapeFit(chosen, against, data, tuple(dict.fromkeys(notes)))


def _axis(runs: xr.Dataset, against: str) -> np.ndarray:
    """The positive numbers along an axis of a sweep; `ValueError` in one line without them."""
    names = [str(d) for d in runs.dims if d in runs.coords and d not in (SEED, "time")]
    if against not in runs.dims or against not in runs.coords:
        raise ValueError(
            f"these runs have no axis {against}, only {', '.join(names) or 'none'}; sweep it: "
            f'axes={{"{against}": [0.01, 0.03, 0.1]}}'
        )
    x = runs[against].values
    if x.dtype.kind not in "fiu" or not (np.isfinite(x).all() and (x > 0).all()):
        raise ValueError(f"a law needs an axis of positive numbers, and {against} is {x[:4]}")
    if len(np.unique(x)) < 2:
        raise ValueError(f"a law needs at least two values of {against}, got {len(x)}")
    if SEED not in runs.dims:
        raise ValueError("these runs have no dimension seed; an interval needs several seeds")
    return x.astype(float)


def _times(runs: xr.Dataset, name: str, source: Any, init: Any) -> xr.DataArray:
    """The drop times [..., seed, drop]: the summary, or the crossings of the recorded loss."""
    if name in runs:
        found = runs[name].load()
        drops = [d for d in found.dims if d not in runs["result"].dims]
        if len(drops) > 1 or "time" in drops:
            raise ValueError(
                f"{name} is over {', '.join(map(str, drops))}; times need one number per drop"
            )
        return found.rename({drops[0]: DROP}) if drops else found.expand_dims({DROP: 1}, axis=-1)
    if name != "drop_times":
        require_choice("variable of these runs", name, [str(n) for n in runs.data_vars])
    if "loss" not in runs:
        raise ValueError(
            "these runs have neither drop_times nor loss; sweep with record=['drop_times']"
        )
    lead = [d for d in runs["loss"].dims if d != "time"]
    rows: list[np.ndarray] = []
    for at in _points(runs, [d for d in lead if d != SEED]):
        origin = _origin(runs.isel(at), source, init)
        levels = _levels(origin)
        if len(levels) < 2:
            raise ValueError(
                "the theory has no levels for these runs, so halfway is nowhere; record drop_times "
                "or give times='detected_times'"
            )
        one = runs.isel(at)
        clock = one["clock"] if "clock" in one else one["time"]
        losses = one["loss"].transpose(SEED, "time").values
        rows.append(first_crossings(clock.values, losses, (levels[:-1] + levels[1:]) / 2))
    axes = [d for d in lead if d != SEED]
    width = max(row.shape[-1] for row in rows)
    padded = [
        np.pad(row, ((0, 0), (0, width - row.shape[1])), constant_values=np.nan) for row in rows
    ]
    array = np.asarray(padded).reshape(*(runs.sizes[d] for d in axes), *padded[0].shape)
    known = {d: runs[d] for d in (*axes, SEED) if d in runs.coords}
    return xr.DataArray(array, known, (*axes, SEED, DROP), attrs={"units": "t/τ"})


def _points(runs: xr.Dataset, axes: list[Hashable]) -> Iterator[dict[Hashable, int]]:
    for place in itertools.product(*(range(runs.sizes[d]) for d in axes)):
        yield dict(zip(axes, place, strict=True))


def _origin(point: xr.Dataset, source: Any, init: Any) -> Origin:
    """What was trained at one point of the sweep, with the point's own scale, heads and so on."""
    found = Origin.of(point, source, init)
    if init is None:
        return found
    fields = {f.name for f in dataclasses.fields(init)}
    own = {str(n): c.values.item() for n, c in point.coords.items() if n in fields and not c.dims}
    changed = {
        n: jnp.asarray(v, float) if hasattr(getattr(init, n), "dtype") else v
        for n, v in own.items()
    }
    return dataclasses.replace(found, init=dataclasses.replace(init, **changed))


def _levels(origin: Origin) -> np.ndarray:
    if origin.source is None or origin.init is None:
        return np.zeros(0)
    start = _start(origin.init)
    covered = select(origin.source, start) is not None
    return np.asarray(visited_levels(origin.source, start)) if covered else np.zeros(0)


def _start(init: AbstractInitialiser) -> Any:
    return init(jax.random.key(0))


def _predicted(
    runs: xr.Dataset,
    measured: xr.DataArray,
    starts: int,
    source: Any,
    init: Any,
    notes: list[str],
    report: Progress,
) -> np.ndarray:
    """Predicted times laid out as the measured ones; NaN where nothing is predicted."""
    found = measured.copy(data=np.full(measured.shape, np.nan))
    if "predicted_times" in runs:
        known = runs["predicted_times"].load().transpose(*measured.dims)
        drops = min(known.sizes[DROP], found.sizes[DROP])
        found[{DROP: slice(drops)}] = known.isel({DROP: slice(drops)}).values
        return found.values
    if starts < 1:
        return found.values
    if runs.attrs.get("clock") == COUNTED:
        notes.append("the theory covers gradient descent and flow, which keep the clock t/τ")
        return found.values
    if source is None and '"vary": "all"' in str(runs.attrs.get("settings")):
        notes.append("every seed has its own task; record predicted_times for the theory of each")
        return found.values
    axes = [d for d in measured.dims if d not in (SEED, DROP)]
    points, seeds = list(_points(runs, axes)), measured[SEED].values[:starts]
    for number, at in enumerate(points):
        origin = _origin(runs.isel(at), source, init)
        if origin.source is None or origin.init is None:
            notes.append(
                "these runs do not say what they were trained on, so there is no theory beside "
                "them; record predicted_times, or give source= and init="
            )
            return found.values
        settings = origin.settings
        whole = origin.loss() if settings is not None and settings.finite else origin.source
        models = draw_models(origin.init, [int(seed) for seed in seeds])
        each = [jax.tree.map(lambda a, i=i: a[i], models) for i in range(len(seeds))]
        if select(whole, each[0]) is None:
            notes.append("no theory predicts the drops of these runs")
            return found.values
        times = drop_times(whole, each)
        drops = min(times.shape[1], found.sizes[DROP])
        place = {**at, SEED: slice(len(seeds)), DROP: slice(drops)}
        found[place] = (
            xr.DataArray(times[:, :drops], dims=(SEED, DROP)).transpose(*found[place].dims).values
        )
        report(number + 1, len(points))
    return found.values


def _value(x: np.ndarray, times: np.ndarray, law: EscapeLaw) -> np.ndarray:
    """What the law says is a straight line in ln x."""
    finite = np.where(np.isfinite(times) & (times > 0), times, np.nan)
    return np.log(finite) if law is EscapeLaw.POWER else finite


def _fit(
    x: np.ndarray, times: np.ndarray, law: EscapeLaw, confidence: float, resamples: int
) -> SharedSlope:
    y = _value(x, times, law)
    return shared_slope(np.log(x), y, confidence=confidence, resamples=resamples)


def _local(x: np.ndarray, times: np.ndarray, law: EscapeLaw) -> np.ndarray:
    """The slope between neighbouring values of the axis, the median over seeds."""
    order = np.argsort(x)
    change = np.diff(_value(x, times, law)[..., order, :], axis=-2)
    slopes = change / np.diff(np.log(x[order]))[:, None]
    known = np.asarray(np.isfinite(slopes).any(axis=-1))
    middle = np.nanmedian(np.where(np.expand_dims(known, -1), slopes, 0.0), axis=-1)
    return np.where(known, middle, np.nan)


def _limit(runs: xr.Dataset, source: Any, init: Any, law: EscapeLaw, against: str) -> float:
    """The slope for vanishing weights, where the theory has one for all points of the sweep."""
    if against != "scale":
        return np.nan
    axes = [d for d in runs.dims if d in runs.coords and d not in (SEED, "time")]
    if law is EscapeLaw.POWER:
        origin = _origin(runs.isel(dict.fromkeys(axes, 0)), source, init)
        kind = None if origin.init is None else empty_model(origin.init).as_attention()
        return -1.0 if isinstance(kind, Separate) else np.nan
    rates = set()
    for at in _points(runs, [d for d in axes if d != against]):
        origin = _origin(runs.isel({**at, against: 0}), source, init)
        if origin.source is None or origin.init is None:
            return np.nan
        start = _start(origin.init)
        if not isinstance(start.as_attention(), Merged) or select(origin.source, start) is None:
            return np.nan
        rates.add(float(np.linalg.norm(Quadratic.of(origin.source).cross)))
    return -1 / rates.pop() if len(rates) == 1 else np.nan
