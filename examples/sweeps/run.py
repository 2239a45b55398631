"""Designs of sweeps that answer a question: run, read against the theory, and drawn.

    python examples/sweeps/run.py NAME [--set NAME=VALUE ...] [--out FILE.zarr] [--block CELLS]

NAME is one of the designs beside this file. Each has plain settings, as for `iclflow sweep`, and a
question. The store goes into NAME.zarr and the picture beside it. The same command goes on where it
was stopped; `--set` makes a design smaller.
"""

import argparse
import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import iclflow as icl
from iclflow.cli.sweep import Lines, changed, sentences
from iclflow.models import draw_models
from iclflow.plots.style import COLOURS, COLUMN, TIME, mode_colour, style
from iclflow.plots.sweeps import sweep_figure
from iclflow.results.pictures import save_figure
from iclflow.runs.sweep import estimate
from iclflow.study.study import Study
from iclflow.sweeps.design import Design
from iclflow.sweeps.look import look
from iclflow.theory.drops.limit import many_escapes

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


@dataclasses.dataclass(frozen=True)
class ExampleAnswer:
    """The numbers found, by name, in words, and the data of the picture."""

    numbers: dict[str, Any]
    lines: list[str]
    data: xr.Dataset


@dataclasses.dataclass(frozen=True)
class Example:
    """A design, and what is asked of it.

    - `question`: in words.
    - `by`: the entry of `ANSWERS` that answers it.
    - `x`, `y`, `theory`: for answers by curve: the axis, the variable, and what theory says of it.
    - `words`: the table of its design.
    """

    name: str
    question: str
    by: str
    words: Mapping[str, Any]
    x: str = ""
    y: str = "drop_times"
    theory: str = "predicted_times"

    @classmethod
    def read(cls, name: str) -> "Example":
        """An example by name."""
        found = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        return cls(name=name, words=found["sweep"], **found["example"])

    def design(self, changed: Mapping[str, Any] | None = None) -> Design:
        """Its design, with some words changed."""
        return Design.of(**{**self.words, **(changed or {})})

    def answer(self, store: xr.Dataset, design: Design) -> ExampleAnswer:
        """What the store says."""
        return ANSWERS[self.by][0](self, store, design)

    def figure(self, answer: ExampleAnswer) -> Any:
        """The picture, theory beside simulation."""
        return ANSWERS[self.by][1](self, answer)


# Answers by curve: a number of the runs along an axis, and the theory beside it


def curve(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """Medians along the axis, relative errors run by run, and slopes in log-log."""
    del design
    data = look(store, example.x, example.y, None, example.name)
    theory = look(store, example.x, example.theory, None, example.name)
    data["theory"] = theory["middle"]
    ratio = store[example.theory].values / store[example.y].values
    error = np.abs(ratio - 1)
    numbers: dict[str, Any] = {"runs": int(store["content"].size)}
    numbers |= {"drops_compared": int(np.isfinite(error).sum())}
    numbers |= {"median_error": _quantile(error, 0.5), "error_90": _quantile(error, 0.9)}
    lines = [
        f"{numbers['drops_compared']} drops seen and predicted, from the same initial weights: "
        f"relative error {numbers['median_error']:.2%} (median), {numbers['error_90']:.2%} (90%)"
    ]
    rows = _rows(store, example, error)
    numbers["by_value"] = rows
    lines += [
        f"  {example.x} = {row['value']}: first drop at {row['time']:.5g}, theory "
        f"{row['theory']:.5g}, error {row['error']:.2%}"
        for row in rows
    ]
    slopes = _slopes(data)
    if slopes is not None:
        numbers |= {"slope": slopes[0], "slope_of_theory": slopes[1]}
        lines.append(f"first drop ~ {example.x}^{slopes[0]:.3f}; theory ^{slopes[1]:.3f}")
    return ExampleAnswer(numbers, lines, data)


def _rows(store: xr.Dataset, example: Example, error: np.ndarray) -> list[dict[str, Any]]:
    """The first drop along the axis: medians over runs, and the error over all drops."""
    measured, theory = (np.asarray(store[n].values) for n in (example.y, example.theory))
    place = store[example.y].dims.index(store[example.x].dims[0])
    values = store[example.x].values.tolist()
    rows = []
    for i, value in enumerate(values):
        first, said, off = (np.take(a, i, axis=place) for a in (measured, theory, error))
        both = np.isfinite(first[..., 0]) & np.isfinite(said[..., 0])
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        row = {"value": shown, "time": _quantile(first[..., 0][both], 0.5)}
        row |= {"theory": _quantile(said[..., 0][both], 0.5), "error": _quantile(off, 0.5)}
        rows.append(row)
    return rows


def _quantile(values: np.ndarray, share: float) -> float:
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.quantile(finite, share)) if finite.size else float("nan")


def _slopes(data: xr.Dataset) -> tuple[float, float] | None:
    """Of the first drop and of the theory's, by least squares in log-log."""
    x = data["x"].values
    if x.dtype.kind not in "fiu" or x.min() <= 0:
        return None
    pair = [data[name].values[0, 0] for name in ("middle", "theory")]
    ok = np.isfinite(pair[0]) & np.isfinite(pair[1])
    if ok.sum() < 3:
        return None
    first, second = (float(np.polyfit(np.log(x[ok]), np.log(y[ok]), 1)[0]) for y in pair)
    return first, second


def curve_figure(example: Example, answer: ExampleAnswer) -> Figure:
    """The curve, theory dashed."""
    return sweep_figure(answer.data, title=example.question)


# More heads: the first plateau, and the law of the fastest of H dormant heads

SINGLE = 20_000  # single heads behind the law


def heads(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """The curve, and the median of the fastest of H heads from the law of a single one."""
    found = curve(example, store, design)
    settings = dataclasses.replace(design.settings((0,)), heads=1)
    study = Study.of(settings)
    single = many_escapes(study.task, draw_models(study.init, range(SINGLE))).times[:, 0]
    counts = store["heads"].values
    medians = [fastest(single, int(h)) for h in counts]
    found.data["formula"] = ("x", medians)
    seen = found.data["middle"].values[0, 0]
    error = np.abs(np.asarray(medians) / seen - 1)
    numbers = {**found.numbers, "fastest_of_heads": medians, "formula_error": error.tolist()}
    lines = [*found.lines, "median first drop by the law of the fastest of H:"]
    for h, time, off in zip(counts, medians, error, strict=True):
        lines.append(f"  H = {h}: {time:.5g}, {off:.1%} off")
    return ExampleAnswer(numbers, lines, found.data)


def fastest(single: np.ndarray, heads: int, share: float = 0.5) -> float:
    """The time by which the fastest of H heads has escaped with probability `share`.

    Dormant heads do not feel each other, and (36) gives each the weights of a single one over √H,
    so P(t₁ > t) = P(T > t/√H)^H, T the escape time of a single head at the same init scale.
    """
    needed = 1 - (1 - share) ** (1 / heads)
    return float(np.sqrt(heads) * np.quantile(single, needed))


# The laws of the drop times over very many starts, against theory and against (73)

STARTS = 10_000  # of which the theory is computed
POINTS = 400  # of a curve that is drawn


def laws(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """Kolmogorov distances of the simulated law to the theory's and to (73)'s, drop by drop.

    Runs end; a law is compared up to where they do.
    """
    del example
    study = Study.of(design.settings(()))
    seeds = store["seed"].values[:STARTS].tolist()
    theory = many_escapes(study.task, draw_models(study.init, seeds))
    measured = store["drop_times"].values
    end = float(study.dynamics.time(store["stopped"].values.max()))
    drops = min(measured.shape[-1], theory.times.shape[1])
    grid = np.linspace(0, end, POINTS)
    shares = np.stack([
        [_law(times[:, m], grid) for m in range(drops)]
        for times in (measured, theory.times, theory.paper)
    ])  # fmt: skip
    distances = np.asarray([
        [distance(measured[:, m], other[:, m], end) for m in range(drops)]
        for other in (theory.times, theory.paper)
    ])  # fmt: skip
    data = xr.Dataset(
        {
            "law": (("source", "drop_number", "time"), shares),
            "distance": (("of", "drop_number"), distances),
        },
        {"time": grid, "source": ["simulated", "theory", "(73)"], "of": ["theory", "(73)"]},
    )
    lines = [
        f"t_{m + 1}: Kolmogorov distance to the theory {distances[0, m]:.4f}, to (73) "
        f"{distances[1, m]:.4f}; {np.isfinite(measured[:, m]).mean():.1%} of the runs had it"
        for m in range(drops)
    ]
    numbers = {"starts": len(measured), "starts_of_theory": len(seeds)}
    numbers |= {"distance": distances[0].tolist(), "distance_of_73": distances[1].tolist()}
    return ExampleAnswer(numbers, lines, data)


def distance(one: np.ndarray, other: np.ndarray, end: float) -> float:
    """sup |F - G| up to `end`; what is not finite comes later."""
    points = np.concatenate([one, other])
    points = np.sort(points[np.isfinite(points) & (points <= end)])
    return float(np.max(np.abs(_law(one, points) - _law(other, points)), initial=0.0))


def _law(times: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The share of starts whose drop has come."""
    found = np.sort(np.where(np.isfinite(times), times, np.inf))
    return np.searchsorted(found, at, side="right") / len(times)


def laws_figure(example: Example, answer: ExampleAnswer) -> Figure:
    """Distribution functions of each drop time: simulated, theory dashed, (73) dotted."""
    data = answer.data
    title = f"{example.question} over {answer.numbers['starts']:,} starts"
    strokes = {"simulated": ("-", 1.4), "theory": ((0, (4, 3)), 1.0), "(73)": (":", 1.0)}
    with style():
        figure = Figure(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        axes = figure.subplots()
        for drop in range(data.sizes["drop_number"]):
            for source, (stroke, width) in strokes.items():
                law = data["law"].sel(source=source).isel(drop_number=drop).values
                colour = mode_colour(drop) if source != "theory" else "black"
                name = f"$t_{drop + 1}$" if source == "simulated" else None
                line = {"color": colour, "linewidth": width, "label": name}
                axes.plot(data["time"].values, law, linestyle=stroke, **line)
        for source in ("theory", "(73)"):
            axes.plot([], [], linestyle=strokes[source][0], color="black", label=source)
        axes.set(xlabel=TIME, ylabel="share of starts past the drop", title=title, ylim=(0, 1.02))
        axes.set_xlim(0, float(data["time"][-1]))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


# The error of the theory where one of its assumptions is broken

# The field whose value says how strongly an assumption is broken.
STRENGTH = {
    "init scale": "scale",
    "rate": "rate",
    "momentum": "momentum",
    "Adam": "rate",
    "finite P": "sequences",
    "minibatch": "batch",
    "free zero blocks": "blocks",
    "inputs": "inputs",
    "softmax": "context",
}
CLOCKLESS = ("Adam",)  # no time to compare: the ratio of the drop times is
BY_DETECTOR = ("softmax",)  # no levels to cross: the stage detector says when
GAUSSIAN = ("inputs",)  # the theory knows these inputs: broken is the one for Gaussian inputs


def atlas(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """The median relative error of the drop times of each case, over runs and drops."""
    del example
    labels = store["label"].values.tolist()
    base = store["predicted_times"].values[labels.index("none")]
    errors, seen = np.full((2, len(labels)), np.nan)
    for i, label in enumerate(labels):
        measured = store["detected_times" if label in BY_DETECTOR else "drop_times"].values[i]
        measured = measured[:, : base.shape[1]]
        said = store["predicted_times"].values[i]
        said = base if label in GAUSSIAN or not np.isfinite(said).any() else said
        said = said[:, : measured.shape[1]]
        settings = design.settings((i,))
        if label == "momentum":  # a step of the heavy ball is 1/(1 - β) steps
            measured = measured * 2 * settings.rate / (1 - settings.momentum)  # pyright: ignore
        if label in CLOCKLESS:
            measured, said = measured[:, 1:] / measured[:, :1], said[:, 1:] / said[:, :1]
        error = np.abs(measured / said - 1)
        errors[i] = np.median(error[np.isfinite(error)]) if np.isfinite(error).any() else np.nan
        seen[i] = np.isfinite(error).mean()
    strength = [_strength(design, i, label) for i, label in enumerate(labels)]
    data = xr.Dataset(
        {"error": ("case", errors), "seen": ("case", seen)}
        | {n: (("case", "seed"), store[n].values) for n in ("lyapunov", "regime") if n in store},
        {"label": ("case", labels), "strength": ("case", strength)},
    )
    lines = [
        f"{label} {value}: error {error:.2%}, {share:.0%} of the drops seen{_regimes(data, i)}"
        for i, (label, value, error, share) in enumerate(
            zip(labels, strength, errors, seen, strict=True)
        )
    ]
    names = ("label", "strength", "error", "seen")
    rows = zip(labels, strength, errors, seen, strict=True)
    return ExampleAnswer(
        {"cases": [dict(zip(names, row, strict=True)) for row in rows]}, lines, data
    )


def _strength(design: Design, place: int, label: str) -> str:
    value = getattr(design.settings((place,)), STRENGTH.get(label, "rate"))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _regimes(data: xr.Dataset, place: int) -> str:
    """How descent ends and its exponent, where the rate is what is broken."""
    if data["label"].values[place] != "rate":
        return ""
    kinds = sorted({str(kind) for kind in data["regime"].values[place]})
    exponents = data["lyapunov"].values[place]
    finite = exponents[np.isfinite(exponents)]
    exponent = float(np.median(finite)) if finite.size else np.nan
    return f"; {' or '.join(kinds)}, exponent {exponent:z.3f}"


PLACES = {"monotone": "o", "catapult": "P", "periodic": "s", "chaotic": "^", "divergent": "X"}
RANGE = (1e-3, 1.0)  # of the colours


def atlas_figure(example: Example, answer: ExampleAnswer) -> Figure:
    """One assumption per row, broken more to the right; beside it, rates past stability."""
    data = answer.data
    with style():
        if "lyapunov" in data:
            figure = Figure(figsize=(2.4 * COLUMN, 1.05 * COLUMN))
            left, right = figure.subplots(1, 2, width_ratios=(2.1, 1))
            plot_exponents(right, data)
        else:
            figure = Figure(figsize=(1.6 * COLUMN, 1.05 * COLUMN))
            left = figure.subplots()
        plot_atlas(left, data)
        left.set_title(example.question)
    return figure


def plot_atlas(axes: Axes, data: xr.Dataset) -> Axes:
    """The median error of the drop times, one square per case; grey where no drop was seen."""
    labels = data["label"].values.tolist()
    rows = list(dict.fromkeys(labels))
    norm, colours = LogNorm(*RANGE), mpl.colormaps["cividis"]
    for row, label in enumerate(rows):
        for column, case in enumerate(i for i, name in enumerate(labels) if name == label):
            error, strength = float(data["error"][case]), str(data["strength"].values[case])
            known = np.isfinite(error)
            colour = colours(norm(np.clip(error, *RANGE))) if known else "0.8"
            dark = known and norm(np.clip(error, *RANGE)) < 0.55
            axes.add_patch(Rectangle((column, row), 0.96, 0.9, facecolor=colour))
            text = f"{strength}\n{_percent(error)}" if known else f"{strength}\nno drop"
            axes.text(
                column + 0.48, row + 0.45, text, ha="center", va="center", fontsize=5,
                color="white" if dark else "black",
            )  # fmt: skip
    axes.set_yticks(np.arange(len(rows)) + 0.45, rows)
    axes.set_xticks([])
    axes.set(xlim=(0, max(labels.count(label) for label in rows)), ylim=(len(rows), 0))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("broken more strongly →")
    bar = ScalarMappable(norm, colours)
    axes.figure.colorbar(bar, ax=axes, shrink=0.8, label="error of the drop times")
    return axes


def plot_exponents(axes: Axes, data: xr.Dataset) -> Axes:
    """The largest Lyapunov exponent per step against the rate, one mark per run, by its regime."""
    chosen = data["label"].values == "rate"
    rates = data["strength"].values[chosen].astype(float)
    exponents, kinds = (data[n].values[chosen] for n in ("lyapunov", "regime"))
    top = np.nanmax(exponents, initial=0.1)
    for number, (kind, mark) in enumerate(PLACES.items()):
        where = np.argwhere(kinds == kind)
        if not len(where):
            continue
        x = [rates[i] for i, _ in where]
        y = [exponents[i, j] if np.isfinite(exponents[i, j]) else 1.15 * top for i, j in where]
        axes.plot(x, y, mark, markersize=3.5, alpha=0.7, color=COLOURS[number], label=kind)
    axes.axhline(0, color="0.6", linewidth=0.6)
    axes.set(xlabel=r"rate $\eta$", ylabel="Lyapunov exponent per step")
    axes.legend(loc="upper left", fontsize=6)
    return axes


def _percent(error: float) -> str:
    digits = 0 if error >= 0.095 else 1 if error >= 0.0095 else 2
    return f"{error:.{digits}%}"


ANSWERS = {
    "curve": (curve, curve_figure),
    "heads": (heads, curve_figure),
    "laws": (laws, laws_figure),
    "atlas": (atlas, atlas_figure),
}


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Run a design, and write, draw and print its answer; returns the numbers of the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="changed",
                        help="change an entry of the design, as in iclflow sweep")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE.zarr", help="the store (NAME.zarr)")
    parser.add_argument("--block", type=int, metavar="CELLS", help="cells that train together")
    args = parser.parse_args(words)
    jax.config.update("jax_enable_x64", True)
    example = Example.read(args.name)
    design, out = example.design(changed(args.changed)), args.out or Path(f"{args.name}.zarr")
    print("\n".join(sentences(estimate(design, 1, args.block))))
    store = icl.sweeps.run(design, out, block=args.block, progress=Lines())
    answer = example.answer(store, design)
    save_figure(example.figure(answer), out.with_suffix(".png"))
    print("\n".join([example.question, *answer.lines, f"wrote {out.with_suffix('.png')}"]))
    return answer.numbers


if __name__ == "__main__":
    main()
