"""What an experiment is: figures, their data, the claims that the data settle, and controls.

A small experiment is one file, a large one a folder with the same names in each: `data.compute`,
`claims.claims`, `claims.controls`, `figure.draw`, with a suffix where there are several. A figure
says where it comes from as an object, so that no science is imported here, or until it is used.
"""

import dataclasses
import importlib
import itertools
from collections.abc import Callable
from typing import Any

Control = Any  # a Dataset, or a tuple of several


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement with the number that was measured for it.

    - `holds` is decided by comparing `measured` with `expected` within `tolerance`, never by hand.
    - `reason` says where the tolerance comes from, `note` what a reader should know besides.
    - `population`: measured without sampling, on the loss's closed form or by formulas alone.
    - `beyond`: not in the paper; a result of ours beside it.
    - `interval`: of what was measured, over seeds, where the claim is judged by it.
    - `decided`: False where that interval contains the limit, so that more seeds are needed.
    """

    id: str
    claim: str
    equation: str
    expected: float | str
    measured: float
    tolerance: float
    holds: bool
    reason: str = ""
    note: str = ""
    population: bool = False
    beyond: bool = False
    interval: tuple[float, float] | None = None
    decided: bool = True


def near(
    id: str, claim: str, equation: str, expected: float, measured: float, tolerance: float,
    reason: str, note: str = "", **marks: Any,
) -> Claim:  # fmt: skip
    """A claim that `measured` lies within `tolerance` of `expected`; NaN does not hold."""
    holds = bool(abs(measured - expected) <= tolerance)
    return Claim(id, claim, equation, expected, measured, tolerance, holds, reason, note, **marks)


def below(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str,
    note: str = "", **marks: Any,
) -> Claim:  # fmt: skip
    """A claim that a measured size, 0 at best, is at most `limit`; NaN does not hold."""
    holds = bool(measured <= limit)
    return Claim(id, claim, equation, 0.0, measured, limit, holds, reason, note, **marks)


def at_least(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str,
    note: str = "", **marks: Any,
) -> Claim:  # fmt: skip
    """A claim that `measured` reaches `limit`."""
    wanted, holds = f"at least {limit:g}", bool(measured >= limit)
    return Claim(id, claim, equation, wanted, measured, limit, holds, reason, note, **marks)


def at_most(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str,
    note: str = "", **marks: Any,
) -> Claim:  # fmt: skip
    """A claim that `measured` does not exceed `limit`."""
    wanted, holds = f"at most {limit:g}", bool(measured <= limit)
    return Claim(id, claim, equation, wanted, measured, limit, holds, reason, note, **marks)


def less(
    id: str, claim: str, equation: str, measured: float, other: float, reason: str,
    note: str = "", **marks: Any,
) -> Claim:  # fmt: skip
    """A claim of order, `measured` < `other`."""
    wanted, holds = f"below {other:g}", bool(measured < other)
    return Claim(id, claim, equation, wanted, measured, other, holds, reason, note, **marks)


def level_tolerance(levels: Any, deviation: float) -> float:
    """Three standard errors, or half the smallest step if that is less: no other level fits."""
    steps = [abs(float(b - a)) for a, b in itertools.pairwise(levels)]
    return min(3 * deviation, min(steps) / 2)


@dataclasses.dataclass(frozen=True)
class Function:
    """A function, its module imported when it is called: a table of figures is quick to read."""

    module: str
    name: str

    def resolve(self) -> Callable[..., Any]:
        """The function itself."""
        return getattr(importlib.import_module(self.module), self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.resolve()(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module whose attributes are functions not imported yet."""

    name: str

    def __getattr__(self, function: str) -> Function:
        """The function of that name; a test resolves every one that a figure has."""
        if function.startswith("_"):
            raise AttributeError(function)
        return Function(self.name, function)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where data and claims come from. Figures may share one: its claims go with the first.

    - `compute`: `(*, quick, progress)` to the Dataset that the figures show.
    - `claims`: Dataset to the claims that it settles.
    - `controls`: Dataset to altered ones, claim by claim, that turn its verdict round.
    - `shares`: sources with the same word share training data or programs.
    - `resumes`: `compute` takes a `folder` too, and goes on from the checkpoints in it.
    - `settings`: what else `compute` takes, by name, as words.
    - `key`: what the data depend on besides code and scale, such as the contents of a file.
    """

    compute: Function
    claims: Function
    controls: Function
    shares: str = ""
    resumes: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    key: str = ""

    @property
    def shared(self) -> str:
        """A name for the training data; that of the module if nothing else was said."""
        return self.shares or self.module

    @property
    def module(self) -> str:
        """The module that computes."""
        return self.compute.module

    @property
    def name(self) -> str:
        """A name for files."""
        last = self.module.removesuffix(".data").rpartition(".")[2]
        part = self.compute.name.removeprefix("compute").lstrip("_")
        return f"{last}-{part}" if part else last

    def file(self, quick: bool) -> str:
        """Where its data go in a report; quick data never replace those at paper scale."""
        return f"data/{self.name}{'-quick' if quick else ''}.nc"

    def checkpoints(self, quick: bool) -> str:
        """Where its checkpoints go in a report."""
        return f"checkpoints/{self.name}{'-quick' if quick else ''}"


@dataclasses.dataclass(frozen=True)
class Live:
    """Runs behind a figure that a report shows live, by the names of variables of the data.

    What has no name is left out; so is a theory that the data do not have, as in a quick form.

    - `loss`: [run, time], or [time] of a single run.
    - `theory`: the same by theory; [time] belongs to the first run, and with a `theory_time` of its
      own it belongs to the runs with the same coordinate.
    - `levels`: the losses of the plateaus, [level] or [run, level].
    - `times`: the predicted drops, [run] or [run, drop].
    - `time`: the clock, [time] or [run, time]; `clock` says what it counts.
    - `of`: pairs of a dimension and the one value that is shown, such as ("source", "population").
    - `panels`: a dimension that all of these may have first; one panel for each of its values.
    - `title`: of the panel, or of a value of `panels`.
    - `until`: where the theory ends, [run].
    - `tests`: pairs of another loss, like `loss`, and its name.
    - `lines`: what is drawn below the loss, [run, time, line], without runs or lines where there
      is one; `lines_theory` is the same by theory, `ends` its dotted limits, `lines_name` what it
      is: where that ends in a "|" sizes are drawn.
    - `runs`: what distinguishes them.
    - `front`: which of them is shown first.
    - `dashed`: what the theory is.
    - `loss_name`: what the loss is.
    - `model`: names the plateaus: those of "attention", of a "transformer" or of a "mixture".
    """

    loss: str
    theory: str = ""
    levels: str = ""
    times: str = ""
    time: str = "time"
    clock: str = "training time t/τ"
    theory_time: str = ""
    of: tuple[tuple[str, str], ...] = ()
    panels: str = ""
    title: str = ""
    until: str = ""
    tests: tuple[tuple[str, str], ...] = ()
    lines: str = ""
    lines_theory: str = ""
    ends: str = ""
    lines_name: str = "value weights |v|"
    runs: str = "run"
    front: int = 0
    dashed: str = "predicted from the initial weights"
    model: str = "attention"
    loss_name: str = "loss  E(y − ŷ)²"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure of the report.

    - `label`: what the paper calls it.
    - `draw`: Dataset to a matplotlib figure.
    - `group`: figures that `all` leaves out are asked for by this name.
    - `live`: the runs behind it, where there are any, a panel each.
    - `words`: Dataset to the words of the fields that the caption has, as `{starts}`.
    - `cover`: Dataset to a low and wide figure that a report begins with.
    """

    name: str
    label: str
    title: str
    source: Source
    draw: Function
    caption: str
    alt: str
    group: str = ""
    live: tuple[Live, ...] = ()
    words: Function | None = None
    cover: Function | None = None
    cover_caption: str = ""

    def __post_init__(self) -> None:
        """Captions are written over several lines."""
        for field in ("caption", "alt", "cover_caption"):
            object.__setattr__(self, field, " ".join(getattr(self, field).split()))

    def captions(self, data: Any) -> tuple[str, str]:
        """The captions of figure and cover, with the words that they take from the data."""
        words = {} if self.words is None else self.words(data)
        found = (self.caption, self.cover_caption)
        first, second = (" ".join(text.format(**words).split()) for text in found)
        return first, second


class Experiment:
    """The functions of an experiment, none of them imported yet.

    - `name`: of its module in `iclflow.experiments`.
    - `folder`: whether it is a folder with `data`, `claims` and `figure`, as the large ones are; a
      small one is a single file with all three.
    """

    def __init__(self, name: str, *, folder: bool = False):
        self.data, self.claims, self.figure = (
            Module(f"iclflow.experiments.{name}" + (f".{part}" if folder else ""))
            for part in ("data", "claims", "figure")
        )

    def source(self, part: str = "", *, shares: str = "", resumes: bool = False) -> Source:
        """`compute`, `claims` and `controls`, with a suffix where an experiment has several."""
        compute = getattr(self.data, f"compute{part}")
        claims, controls = (
            getattr(self.claims, f"{name}{part}") for name in ("claims", "controls")
        )
        return Source(compute, claims, controls, shares, resumes)
