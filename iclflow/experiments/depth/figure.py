"""Figures of several layers."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from iclflow.plots.losses import LEVEL
from iclflow.plots.style import COLOURS, LOSS, PAPER, THEORY, TIME, Picture, side_by_side

KINDS = (("tied", COLOURS[1]), ("untied", COLOURS[0]))
DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.5}


def draw_losses(data: xr.Dataset) -> Picture:
    """Loss against L, against D at fixed N/D, and against N."""
    return side_by_side(data, _by_layers, _by_size, _by_context, height=0.86)


def _by_layers(axes: Axes, data: xr.Dataset) -> None:
    at = data.sel(context=31)
    for kind, colour in KINDS:
        axes.plot(at["layers"], at["by_context"].sel(kind=kind), color=colour, label=kind)
        axes.plot(at["layers"], at["by_context_limit"].sel(kind=kind), **{**PAPER, "color": colour})
        axes.plot(at["trained_layers"], at["trained"].sel(kind=kind), color=colour, **DOTS)
    axes.plot([], [], color="0.4", label="trained", **DOTS)
    axes.plot([], [], **{**PAPER, "color": "0.4"}, label="limit (D9)")
    axes.set(yscale="log", xlabel="layers $L$", ylabel=r"least loss$/\mathrm{tr}\,T$")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("D = 4, N = 31", loc="left")
    axes.legend(loc="lower left")


def _by_size(axes: Axes, data: xr.Dataset) -> None:
    excess = data["size"] * (data["by_size"] - data["by_size_limit"])
    for count, marker in ((2, "o"), (4, "s")):
        for kind, colour in KINDS:
            look: dict[str, Any] = {**DOTS, "marker": marker, "linestyle": "-", "color": colour}
            axes.plot(data["size"], excess.sel(kind=kind, layers=count), **look)
        axes.plot([], [], color="0.4", label=f"L = {count}", **{**DOTS, "marker": marker})
    size = data["size"].values
    top = float(excess.sel(layers=[2, 4]).max())
    axes.set(xscale="log", ylim=(0, 1.1 * top))
    axes.set(xlabel="inputs $D$", ylabel=r"$D$ times the loss above the limit")
    axes.set_xticks(size, [f"{d}" for d in size])
    axes.minorticks_off()
    axes.set_title("N = 2D", loc="left")
    axes.legend(loc="lower left")


def _by_context(axes: Axes, data: xr.Dataset) -> None:
    for count, marker in ((1, "^"), (2, "o")):
        for kind, colour in KINDS[1:] if count == 1 else KINDS:
            look: dict[str, Any] = {**DOTS, "marker": marker, "linestyle": "-"}
            colour = "0.3" if count == 1 else colour
            name = "L = 1" if count == 1 else f"L = 2, {kind}"
            part = {"kind": kind, "layers": count}
            axes.plot(
                data["context"], data["by_context"].sel(part), color=colour, label=name, **look
            )
            axes.plot(
                data["context"], data["by_context_limit"].sel(part), **{**PAPER, "color": colour}
            )
    axes.set(
        xscale="log", yscale="log", xlabel="context $N$", ylabel=r"least loss$/\mathrm{tr}\,T$"
    )
    axes.set_title("D = 4", loc="left")
    axes.legend(loc="lower left")


def draw_stairs(data: xr.Dataset) -> Picture:
    """The loss of one run over its levels, and the path of its ranks over the lattice."""
    return side_by_side(data, _run, _lattice, height=0.92)


def _run(axes: Axes, data: xr.Dataset) -> None:
    one = data.isel(seed=data.attrs["shown_seed"])
    time = one["time"].values[1:]
    axes.plot(time, one["loss"].values[1:], color=COLOURS[0], label="simulated")
    drops, levels = one["predicted_time"].values, one["levels"].values
    edges = np.concatenate([[time[0]], drops, [time[-1]]])
    axes.stairs(levels, edges, baseline=None, label="predicted", **THEORY)
    for level, pair in zip(levels, _ranks(one), strict=True):
        axes.axhline(level, **LEVEL)
        axes.annotate(
            f"({pair[0]}, {pair[1]})", (1, level), xycoords=("axes fraction", "data"),
            xytext=(3, 0), textcoords="offset points", va="center", fontsize=6.5,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(time[0], time[-1]), xlabel=TIME, ylabel=LOSS)
    axes.set_title("one run, and the ranks $(r_0, r_1)$ of its plateaus", loc="left")
    axes.legend(loc="lower left", frameon=True, framealpha=1, edgecolor="none")


def _ranks(one: xr.Dataset) -> list[tuple[int, int]]:
    """The heads active in each layer on each plateau, as predicted."""
    layers = one["predicted_layer"].values
    return [
        (int(np.sum(layers[:k] == 0)), int(np.sum(layers[:k] == 1))) for k in range(len(layers) + 1)
    ]


def _lattice(axes: Axes, data: xr.Dataset) -> None:
    table, seeds = data["table"].values, data.sizes["seed"]
    axes.imshow(np.log(table).T, origin="lower", cmap="Greys_r", alpha=0.35)
    for (i, j), level in np.ndenumerate(table):
        axes.annotate(f"{level:.3f}", (i - 0.47, j + 0.46), ha="left", va="top", fontsize=6.5)
    for seed in range(seeds):
        path = np.array(_ranks(data.isel(seed=seed)), float)
        shown = seed == data.attrs["shown_seed"]
        beside = 0.0 if shown else 0.24 * ((seed + 0.5) / seeds - 0.5)
        look: dict[str, Any] = (
            {"linewidth": 2.2, "zorder": 4} if shown else {"linewidth": 0.7, "alpha": 0.8}
        )
        axes.plot(
            path[:, 0] + beside,
            path[:, 1] + beside,
            color=COLOURS[0 if shown else 1],
            **look,
        )
    axes.plot([], [], color=COLOURS[0], linewidth=2.2, label="the run on the left")
    axes.plot([], [], color=COLOURS[1], linewidth=0.7, label="other starts")
    axes.set(xlabel="active heads of layer 0", ylabel="active heads of layer 1")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    axes.set_xticks(range(len(table)))
    axes.set_yticks(range(len(table)))
    axes.set_title(r"levels $L^*(r_0, r_1)$ and the paths", loc="left")


def draw_splitting(data: xr.Dataset) -> Picture:
    """Steps and losses of tied, almost equal and random layers."""
    return side_by_side(data, _steps, _apart, _split_losses, height=0.86)


def _steps(axes: Axes, data: xr.Dataset) -> None:
    time = data["time"].values
    for row in data["random_steps"].values:
        axes.plot(time, row[:, 0], color=COLOURS[0], linewidth=0.8)
        axes.plot(time, row[:, 1], color=COLOURS[5], linewidth=0.8)
    axes.plot(time, data["tied_step"], color=COLOURS[1])
    for step in data["best_steps"].values:
        axes.axhline(step, **THEORY)
    for name, colour in (("layer 0", COLOURS[0]), ("layer 1", COLOURS[5]), ("tied", COLOURS[1])):
        axes.plot([], [], color=colour, label=name)
    axes.plot([], [], label="(D8)", **THEORY)
    axes.set(xlabel=TIME, ylabel=r"steps $\gamma_l$", xlim=(0, 100))
    axes.set_title("white, D = 4, N = 31", loc="left")
    axes.legend(loc="lower right")


def _apart(axes: Axes, data: xr.Dataset) -> None:
    time, gap = data["time"].values, np.ptp(data["near_steps"].values, axis=1)
    axes.plot(time, gap, color=COLOURS[0], label="simulated")
    growth = gap[0] * np.exp(float(data["rate"]) * time)
    kept = growth < 2 * gap[-1]
    axes.plot(time[kept], growth[kept], label="rate of the saddle", **THEORY)
    axes.set(yscale="log", xlabel=TIME, ylabel=r"$|\gamma_0 - \gamma_1|$", xlim=(0, 100))
    axes.set_title("almost equal layers", loc="left")
    axes.legend(loc="lower right")


def _split_losses(axes: Axes, data: xr.Dataset) -> None:
    time = data["time"].values
    for row in data["random_loss"].values:
        axes.plot(time, row, color=COLOURS[0], linewidth=0.8)
    axes.plot(time, data["near_loss"], color=COLOURS[2])
    axes.plot(time, data["tied_loss"], color=COLOURS[1])
    for name, words in (("best_tied", "least, tied"), ("best_untied", "least, untied")):
        axes.axhline(float(data[name]), **THEORY)
        axes.annotate(
            words, (100, float(data[name])), xytext=(-2, 3), textcoords="offset points",
            ha="right", fontsize=6.5,
        )  # fmt: skip
    for name, colour in (
        ("random", COLOURS[0]),
        ("almost equal", COLOURS[2]),
        ("tied", COLOURS[1]),
    ):
        axes.plot([], [], color=colour, label=name)
    axes.set(yscale="log", xlabel=TIME, ylabel=LOSS, xlim=(0, 100))
    axes.set_title("from three kinds of starts", loc="left")
    axes.legend(loc="upper right")


def draw_times(data: xr.Dataset) -> Picture:
    """Predicted against simulated drops, and their relative errors."""
    return side_by_side(data, _scatter, _errors, height=0.92)


def _scatter(axes: Axes, data: xr.Dataset) -> None:
    for drop in range(data.sizes["drop_number"]):
        part = data.isel(drop_number=drop)
        axes.plot(
            part["predicted_time"], part["drop_time"], color=COLOURS[drop % len(COLOURS)],
            label=f"drop {drop + 1}", **DOTS,
        )  # fmt: skip
    ends = np.array([data["drop_time"].min(), data["drop_time"].max()], float)
    axes.plot(ends, ends, **THEORY)
    axes.set(xscale="log", yscale="log", xlabel="predicted $t/\\tau$", ylabel="simulated $t/\\tau$")
    axes.legend(loc="upper left")


def _errors(axes: Axes, data: xr.Dataset) -> None:
    error = abs(data["predicted_time"] / data["drop_time"] - 1)
    for drop in range(data.sizes["drop_number"]):
        row = np.sort(error.isel(drop_number=drop).values)
        share = (np.arange(len(row)) + 1) / len(row)
        axes.step(row, share, where="post", color=COLOURS[drop % len(COLOURS)])
    axes.set(xscale="log", xlabel="relative error of the time", ylabel="share of the starts")
    axes.set_ylim(0, 1.03)
    whole = np.log10([float(error.min()), float(error.max())])
    axes.set_xlim(10 ** np.floor(whole[0]), 10 ** np.ceil(whole[1]))  # decades, for their labels


def draw_laws(data: xr.Dataset) -> Picture:
    """Deep losses over time and over the context, and all exponents against the theory."""
    return side_by_side(data, _over_time, _over_context, _exponents, height=0.92)


def _over_time(axes: Axes, data: xr.Dataset) -> None:
    time = data["over_time"].values
    for number, pair in enumerate(data["pair"].values):
        part = data.sel(pair=pair, law="time")
        axes.plot(time, part["curve"], color=COLOURS[number], label=f"({pair})")
        line = float(part["curve"][0]) * (time / time[0]) ** float(part["theory"])
        axes.plot(time, line, **THEORY)
        level = float(part["one_layer"][-1])
        axes.axhline(level, color=COLOURS[number], linestyle=":", linewidth=0.9)
    axes.plot([], [], label="theory", **THEORY)
    axes.plot([], [], color="0.4", linestyle=":", linewidth=0.9, label="one layer")
    axes.set(xscale="log", yscale="log", xlabel=TIME, ylabel="loss", ylim=(8e-5, 0.5))
    axes.set_title(r"$\Gamma = \gamma I$, rotated covariances", loc="left")
    axes.legend(title=r"$(\nu, \beta)$", loc="lower left")


def _over_context(axes: Axes, data: xr.Dataset) -> None:
    short, long = data["context"].values, data["long_context"].values
    for number, pair in enumerate(data["context_pair"].values):
        part, colour = data.sel(context_pair=pair), COLOURS[number]
        axes.errorbar(
            short, part["context_loss"], part["context_error"], color=colour, capsize=2,
            linewidth=0.8, label=f"({pair})", **DOTS,
        )  # fmt: skip
        if float(part["decay"]) > 1:
            axes.plot(long, part["long_limit"], **THEORY)
        else:  # at ν = 1 the limit depends on the number of modes
            axes.plot(short, part["context_limit"], **THEORY)
    axes.plot([], [], label="limit", **THEORY)
    axes.set(xscale="log", yscale="log", xlabel="context $N$", ylabel="loss")
    axes.set_title("infinitely many layers", loc="left")
    axes.legend(title=r"$(\nu, \beta)$", loc="lower left")


def _exponents(axes: Axes, data: xr.Dataset) -> None:
    look: dict[str, Any] = {"capsize": 2, "linewidth": 0.8, **DOTS}
    for number, law in enumerate(data["law"].values):
        part = data.sel(law=law)
        axes.errorbar(
            -part["theory"], -part["measured"], part["error"], color=COLOURS[number],
            label=str(law), **look,
        )  # fmt: skip
    steep = data.isel(context_pair=data["decay"].values > 1)
    axes.errorbar(
        -steep["long_theory"], -steep["long_measured"], steep["long_error"], color="0.3",
        label="context", **{**look, "marker": "s"},
    )  # fmt: skip
    ends = np.array([0.14, 3.8])
    axes.plot(ends, ends, **THEORY)
    axes.set(xscale="log", yscale="log", xlabel="exponent of the theory", ylabel="measured")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0.2, 0.5, 1.0, 2.0], ["-0.2", "-0.5", "-1", "-2"])
        axis.set_minor_locator(NullLocator())
    axes.legend(loc="upper left")


def draw_shift(data: xr.Dataset) -> Picture:
    """Test losses of one and two layers along training, and the algorithm of the two."""
    return side_by_side(data, _tests, _algorithms, height=0.92)


def _tests(axes: Axes, data: xr.Dataset) -> None:
    time = data["time"].values
    for number, test in enumerate(data["test"].values):
        for run, look in (("one layer", "--"), ("two, large step first", "-")):
            part = data["test_loss"].sel(test=test, run=run)
            axes.plot(time[1:], part[1:], color=COLOURS[number], linestyle=look)
        axes.plot([], [], color=COLOURS[number], label=str(test))
    axes.plot([], [], color="0.4", label="two layers")
    axes.plot([], [], color="0.4", linestyle="--", label="one layer")
    axes.set(xscale="log", yscale="log", xlabel=TIME, ylabel="loss on the test covariance")
    axes.legend(loc="upper left", fontsize=6.5)


def _algorithms(axes: Axes, data: xr.Dataset) -> None:
    time = data["some"].values
    for number, name in enumerate(data["algorithm"].values):
        axes.plot(
            time[1:],
            data["distance"].sel(algorithm=name)[1:],
            color=COLOURS[number],
            label=str(name),
        )
    axes.set(xscale="log", yscale="log", xlabel=TIME, ylabel="distance of the predictions")
    axes.set_title("two layers, large step first", loc="left")
    axes.legend(loc="lower left", fontsize=6.5)
