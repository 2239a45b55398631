"""Where the linear transformer ends and how it gets there (second paper, Figs 1 and 2).

d = 4, s = (1.7, 1.4, 1.1, 1), N = 200, ηP = 0.02 an epoch, p₂ = q₁ = 0.01 I, 500 epochs: read off
the paper's figures, which state no settings. Stochastic training on fresh tasks, one update a
task, beside the paper's decoupled theory and the exact mean flow. Losses have a factor ½.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.experiments.base import Claim, below
from iclflow.experiments.linear_transformer_runs import (
    SCALE,
    diagonal,
    products,
    standard_error,
    stochastic,
    transformer_task,
)
from iclflow.experiments.runs import Variable, called, finished, named
from iclflow.plots.style import (
    BENEATH,
    COLOURS,
    COLUMN,
    HEAT,
    PAPER,
    THEORY,
    Picture,
    mode_colour,
    side_by_side,
    style,
    theory_of,
)
from iclflow.results.messages import Progress
from iclflow.theory.linear_transformer import (
    CoupledFlow,
    DecoupledFlow,
    TransformerModes,
    optimum,
)

SPECTRUM, CONTEXT = (1.7, 1.4, 1.1, 1.0), 200
EPOCH_RATE, EPOCHS = 0.02, 500  # ηP; t/τ ends at 10
TASKS, QUICK_TASKS = 32, 4  # P, tasks an epoch
SEEDS = 4
EVERY = 5  # epochs between save points
DRIFT_POINTS = 300


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Weights over training, simulated and by both theories; the drift of p² - q² of a mode."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    tasks = QUICK_TASKS if quick else TASKS
    task = transformer_task(SPECTRUM, CONTEXT)
    epochs = np.arange(0, EPOCHS + 1, EVERY)
    run = stochastic(task, epochs * tasks, clock=EPOCH_RATE / tasks, batch=1, seeds=SEEDS)
    report(1, 2)
    run = run.drop_vars(["time", "step"]).rename(time="epoch")
    matrices = products(run)
    modes = TransformerModes.of(task)
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    start = np.full(modes.size, SCALE)
    time = EPOCH_RATE * epochs
    course = exact.solve(time, start, start)
    a, trained = diagonal(matrices), ("epoch", "mode")
    data = run[["loss"]].assign(
        loss=called(run["loss"], "population loss, with ½"),
        products=called(matrices.isel(epoch=-1), "p₂q₁ in U, at the end"),
        a=called(a, "a = (p₂q₁)_αα, simulated"),
        a_error=called(standard_error(a), "standard error of the mean"),
        norm_p=called((run["p"] ** 2).sum(("row", "column")), "‖p₂‖²"),
        norm_q=called((run["q"] ** 2).sum(("row", "column")), "‖q₁‖²"),
    )
    data = data.assign(
        named(
            {
                "a_paper": (trained, paper.products(time, start, start), "a(t) (13)"),
                "a_exact": (trained, course.products, "a(t), exact mean flow"),
                "a_infinity": (("mode",), paper.fixed_point, "1/s∞ (11)"),
                "a_optimum": (("mode",), optimum(modes).products, "least loss"),
                "norm_exact": (("epoch",), np.sum(course.p**2, axis=1), "‖p₂‖², exact"),
                "conserved_exact": (("epoch",), course.conserved.sum(axis=1), "C, exact mean flow"),
                **_drift(modes),
            }
        )
    ).assign_coords(
        epoch=("epoch", epochs, {"long_name": "epochs"}),
        eigenvalue=("mode", modes.spectrum, {"long_name": "s"}),
    )
    report(2, 2)
    settings = {
        "figure": "linear transformer, fixed point and dynamics",
        "quick": quick,
        "data": f"fresh tasks, P = {tasks} an epoch",
        "context": CONTEXT,
        "epoch_rate": EPOCH_RATE,
        "tasks": tasks,
        "scale": SCALE,
    }
    return finished(data, settings)


def _drift(modes: TransformerModes) -> dict[str, Variable]:
    """The exact flow until N times longer, when p² - q² of each mode has drifted to its end."""
    exact = CoupledFlow(modes)
    start = np.full(modes.size, SCALE)
    end = 4 * modes.context * EPOCHS * EPOCH_RATE
    time = np.concatenate([[0.0], np.geomspace(1.0, end, DRIFT_POINTS - 1)])
    course = exact.solve(time, start, start)
    p, q = optimum(modes).weights(float(np.sum(start**2 - start**2)))
    return {
        "drift_time": (("drift",), time / EPOCH_RATE, "epochs"),
        "drift": (("drift", "mode"), course.conserved, "p² - q² by mode, exact flow"),
        "drift_end": (("mode",), p**2 - q**2, "p² - q² of the optimum"),
        "drift_products": (("drift", "mode"), course.products, "a, exact flow"),
    }


ROUNDING = 1e-6  # what "exact" is held to: far above any solver's error here
SHORT_CONTEXT = 32  # of the theory that the fixed point is not to be taken for


def claims(data: xr.Dataset) -> list[Claim]:
    """Fixed point and conservation: the paper's and the exact theory.

    The course a(t) is judged on the population, by the experiment on stages: the noise of these
    runs is larger than the difference between the two theories.
    """
    limit = data["a_infinity"].values
    neglected = data.sizes["mode"] / int(data.attrs["context"])
    update = float(data.attrs["epoch_rate"]) / int(data.attrs["tasks"])
    mean = data["a"].mean("seed").values
    error = data["a_error"].values / limit
    paper, exact = (np.abs(mean - data[name].values) / limit for name in ("a_paper", "a_exact"))
    seeds = f"{data.sizes['seed']} seeds"
    return [
        below(
            "lt-fixed-point", "Training ends at p₂q₁ = a∞ on the diagonal",
            "2nd paper (11), Fig. 1", float(paper[-1].max()),
            neglected + 3 * float(error[-1].max()),
            f"d/N, the order of what the theory leaves out, and three standard errors of {seeds}",
            f"largest relative error; of the exact flow {float(exact[-1].max()):.2g}; over the "
            f"whole course {_size(paper):.2g} (13) and {_size(exact):.2g} (exact), root mean "
            f"square, where two standard errors are {2 * _size(error):.2g}",
        ),
        _diagonal(data),
        *_conservation(data, update),
    ]  # fmt: skip


def _size(values: np.ndarray) -> float:
    """The root mean square."""
    return float(np.sqrt(np.mean(values**2)))


def _diagonal(data: xr.Dataset) -> Claim:
    """Entries off the diagonal against their own standard errors."""
    matrices = data["products"]
    off = ~np.eye(matrices.sizes["row"], dtype=bool)
    mean, error = (a.values[off] for a in (matrices.mean("seed"), standard_error(matrices)))
    return below(
        "lt-fixed-point-diagonal",
        "p₂q₁ is diagonal in the eigenvectors of the input covariance",
        "2nd paper, Fig. 1",
        _size(mean),
        3 * _size(error),
        f"three standard errors, root mean square over {off.sum()} entries",
        f"diagonal entries are {float(data['a_infinity'].min()):.2f} and more",
    )


def _conservation(data: xr.Dataset, update: float) -> list[Claim]:
    balance = data["norm_p"] - data["norm_q"]
    size = float(data["norm_p"].mean("seed").max())
    mean = balance.mean("seed")
    moved = np.abs(mean - mean.isel(epoch=0)).max() / size
    noise = float(standard_error(balance).max()) / size
    # An update changes C by η²(‖g_p‖² - ‖g_q‖²), and E‖g_p‖² is about 2L Σ s³ a.
    squares = 2 * data["loss"] * (data["eigenvalue"] ** 3 * data["a"]).sum("mode")
    time = float(data.attrs["epoch_rate"]) * data["epoch"].values
    discrete = update * float(np.trapezoid(squares.mean("seed").values, time)) / size
    drift, optimum = data["drift"].values, data["a_optimum"].values
    window = drift[data["drift_time"].values <= float(data["epoch"][-1])]
    end = np.abs(drift[-1] - data["drift_end"].values).max()
    return [
        below(
            "lt-conserved", "C = ‖p₂‖² - ‖q₁‖² does not change in training", "2nd paper, Fig. 2B",
            float(moved), 3 * noise + discrete,
            "three standard errors, and what updates of finite size add, Σ η²‖g‖²",
            f"largest change over ‖p₂‖² at the end; exact flow: "
            f"{float(np.abs(data['conserved_exact']).max()):.1g}",
        ),
        below(
            "lt-mode-conserved", "p² - q² of every single mode is conserved", "2nd paper (12)",
            float((np.abs(drift[-1]) / optimum).max()), ROUNDING,
            "called exact; here from the exact mean flow, integrated to 1e-10",
            f"largest |p² - q²|/a after {float(data['drift_time'][-1]):.2g} epochs from p = q, "
            f"where p/q ∝ √s at any N (to {end:.0e}); {float(np.abs(window).max()):.2g} within "
            f"the {int(data['epoch'][-1])} epochs of the figure",
            population=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turn its verdict round.

    - `lt-fixed-point`: the closed form of a context of 32 pairs, where training had 200.
    - `lt-fixed-point-diagonal`: the same products p₂q₁ in the coordinates of the inputs, which are
      not the eigenvectors of their covariance.
    - `lt-conserved`: p² and q² of the fastest mode alone in place of the sums over modes, by the
      exact flow until its drift has ended. Their difference is not conserved.
    - `lt-mode-conserved`: the exact flow on white inputs. With equal eigenvalues no mode drifts.
    """
    s, scale = data["eigenvalue"].values, float(data.attrs["scale"])
    rate, start = float(data.attrs["epoch_rate"]), np.full(data.sizes["mode"], scale)
    short = DecoupledFlow(TransformerModes.given(s, SHORT_CONTEXT))
    other = short.products(rate * data["epoch"].values, start, start)
    basis = np.asarray(transformer_task(tuple(s), int(data.attrs["context"])).basis)
    inputs = np.einsum("oa,sab,pb->sop", basis, data["products"].values, basis)
    white = TransformerModes.given(np.full(s.size, s.mean()), int(data.attrs["context"]))
    course = CoupledFlow(white).solve(rate * data["drift_time"].values, start, start)
    return {
        "lt-fixed-point": data.assign(a_paper=(("epoch", "mode"), other)),
        "lt-fixed-point-diagonal": data.assign(products=(data["products"].dims, inputs)),
        "lt-conserved": _fastest_alone(data),
        "lt-mode-conserved": data.assign_coords(drift=(("drift", "mode"), course.conserved)),
    }


def _fastest_alone(data: xr.Dataset) -> xr.Dataset:
    """Data whose norms are p² and q² of the first mode, over the whole of its drift."""
    gap, product = (data[name].values[:, 0] for name in ("drift", "drift_products"))
    size = np.sqrt(gap**2 + 4 * product**2)  # p² + q², from p² - q² and p q
    spaced = np.linspace(0, gap.size - 1, data.sizes["epoch"]).round().astype(int)
    seeds = (data.sizes["seed"], 1)
    return data.assign(
        norm_p=(("seed", "epoch"), np.tile((size + gap)[spaced] / 2, seeds)),
        norm_q=(("seed", "epoch"), np.tile((size - gap)[spaced] / 2, seeds)),
    )


def draw_fig1(data: xr.Dataset) -> Picture:
    """p₂q₁ simulated, a∞ of the paper, the exact flow; and how far apart they are."""
    simulated = data["products"].mean("seed").values
    exact = np.diag(data["a_exact"].values[-1])
    panels = (
        ("$p_2q_1$, simulation", simulated),
        (r"paper, $a_\infty = 1/s_\infty$ (11)", np.diag(data["a_infinity"].values)),
        ("exact mean flow", exact),
    )
    top = max(float(np.abs(matrix).max()) for _, matrix in panels)
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 0.72 * COLUMN))
        axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.25))
        for place, (title, matrix) in zip(axes, panels, strict=False):
            image = place.imshow(matrix, cmap=HEAT, vmin=-top, vmax=top)
            place.set_title(title, fontsize=7.5)
            size = len(matrix)
            place.set_xticks(range(size), [str(i + 1) for i in range(size)])
            place.set_yticks(range(size), [str(i + 1) for i in range(size)])
            place.set_xlabel("mode")
            for i in range(size):
                value = matrix[i, i]
                colour = "white" if value > 0.6 * top else "black"
                place.annotate(
                    f"{value:.3f}", (i, i), ha="center", va="center", fontsize=5.5, color=colour
                )
        axes[0].set_ylabel("mode")
        figure.colorbar(image, ax=list(axes[:3]), shrink=0.72, pad=0.02)
        _deviation(axes[3], data)
    return figure


def _deviation(axes: Axes, data: xr.Dataset) -> None:
    """Relative to a∞, in per cent, with standard errors."""
    limit = data["a_infinity"].values
    mode = np.arange(1, limit.size + 1)
    relative = {
        name: 100 * (values / limit - 1)
        for name, values in (
            ("simulation", data["a"].mean("seed").values[-1]),
            ("exact", data["a_exact"].values[-1]),
            ("optimum", data["a_optimum"].values),
        )
    }
    error = 100 * data["a_error"].values[-1] / limit
    axes.axhline(0, label=r"paper, $a_\infty$", **PAPER)
    axes.errorbar(
        mode, relative["simulation"], error, fmt="o", color=COLOURS[0], markersize=3.5,
        linewidth=0.8, capsize=2, label="simulation",
    )  # fmt: skip
    axes.plot(mode, relative["exact"], "_", color="black", markersize=9, label="exact, same time")
    axes.plot(
        mode, relative["optimum"], "D", color=COLOURS[1], markersize=3, markerfacecolor="none",
        label="exact optimum",
    )  # fmt: skip
    axes.set_xticks(mode)
    axes.set_xlim(0.5, limit.size + 0.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.75 * (high - low))
    axes.set_xlabel("mode")
    axes.set_ylabel(r"difference from $a_\infty$ (%)")
    axes.legend(loc="upper left", fontsize=6, handlelength=1.2, borderaxespad=0.0)


def draw_fig2(data: xr.Dataset) -> Picture:
    """a_α(t) with both theories; the conserved quantity; what single modes conserve."""
    return side_by_side(data, _courses, _conserved, _draw_drift, height=0.8)


def _courses(axes: Axes, data: xr.Dataset) -> None:
    epochs = data["epoch"].values
    mean, error = data["a"].mean("seed").values, data["a_error"].values
    for i, s in enumerate(data["eigenvalue"].values):
        colour = mode_colour(i)
        axes.plot(epochs, mean[:, i], color=colour, label=f"$s = {s:g}$", **BENEATH)
        axes.fill_between(
            epochs, mean[:, i] - error[:, i], mean[:, i] + error[:, i], color=colour, alpha=0.2,
            linewidth=0,
        )  # fmt: skip
        axes.plot(epochs, data["a_paper"].values[:, i], **PAPER)
        axes.plot(epochs, data["a_exact"].values[:, i], **theory_of(colour))
    axes.plot([], [], label="paper (13)", **PAPER)
    axes.plot([], [], label="exact", **theory_of("0.3"))
    axes.set_xlabel("epochs")
    axes.set_ylabel(r"$a_\alpha = (p_2 q_1)_{\alpha\alpha}$")
    axes.set_title(f"N = {int(data.attrs['context'])}", loc="left")
    axes.legend(loc="lower right", fontsize=6, handlelength=1.6, labelspacing=0.3)


def _conserved(axes: Axes, data: xr.Dataset) -> None:
    epochs = data["epoch"].values
    first, second = data["norm_p"].mean("seed").values, data["norm_q"].mean("seed").values
    axes.plot(epochs, first, color=COLOURS[0], label=r"$\|p_2\|^2$")
    axes.plot(epochs, -second, color=COLOURS[1], label=r"$-\|q_1\|^2$")
    axes.plot(epochs, first - second, color=COLOURS[2], label=r"$\mathcal{C}$, their sum")
    exact = data["norm_exact"].values
    axes.plot(epochs, exact, label="exact", **THEORY)
    axes.plot(epochs, -exact, **THEORY)
    axes.axhline(0, **THEORY)
    axes.set_xlabel("epochs")
    axes.set_ylabel("squared norms")
    axes.set_title("conserved: the whole", loc="left")
    axes.set_ylim(-1.12 * exact.max(), 1.75 * exact.max())  # room for the legend
    axes.legend(loc="upper left", fontsize=6, handlelength=1.6)


def _draw_drift(axes: Axes, data: xr.Dataset) -> None:
    time = data["drift_time"].values
    for i, s in enumerate(data["eigenvalue"].values):
        colour = mode_colour(i)
        label = "optimum" if i == 0 else None
        axes.plot(time[1:], data["drift"].values[1:, i], color=colour)
        axes.axhline(
            float(data["drift_end"][i]), color=colour, linewidth=0.6, linestyle="--", label=label
        )
        above = 2 if data["drift_end"][i] > 0 else -8
        axes.annotate(
            f"$s = {s:g}$", (time[-1], float(data["drift_end"][i])), xytext=(0, above),
            textcoords="offset points", fontsize=6.5, color=colour, ha="right",
        )  # fmt: skip
    axes.axhline(0, label="paper (12)", **PAPER)
    axes.axvline(float(data["epoch"][-1]), color="0.8", linewidth=0.7, zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("epochs")
    axes.set_ylabel(r"$p_\alpha^2 - q_\alpha^2$, exact flow")
    axes.set_title("not conserved: a mode", loc="left")
    axes.margins(y=0.12)
    axes.legend(loc="lower left", fontsize=6, handlelength=1.4)
