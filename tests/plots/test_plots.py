"""What figures share: levels with names that can be read, looks that can be told apart."""

import itertools

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import iclflow as icl
from iclflow.plots.losses import LEVEL, plot_levels
from iclflow.plots.style import COLUMN, THEORY, style


@pytest.mark.parametrize("size", [2, 5, 8, 20])
def test_names_of_levels_do_not_run_into_one_another(size):
    spectrum = 1 / np.arange(1, size)
    levels = icl.theory.plateau_losses(icl.Task(spectrum / spectrum.sum(), 31))
    with style():
        figure = Figure(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        canvas, axes = FigureCanvasAgg(figure), figure.subplots()
        axes.set_ylim(0, 1.05)
        plot_levels(axes, levels)
        canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(axes.lines) == len(levels)
    assert min(len(levels), 5) <= len(boxes) <= len(levels)
    assert axes.texts[0].get_text() == (
        r"$L_*$" if size == 2 else rf"$L(\mathcal{{M}}_{{{size - 1}}})$"
    )
    # Names are higher than their letters: a tenth of a line may be shared.
    heights = sorted((box.y0 + box.y1) / 2 for box in boxes)
    apart = [b - a for a, b in itertools.pairwise(heights)]
    assert min(apart) > 0.9 * 6.5 / 72 * figure.dpi


def test_levels_do_not_look_like_theory():
    assert LEVEL["linestyle"] != THEORY["linestyle"]
    assert LEVEL["color"] != THEORY["color"]


@pytest.mark.parametrize(
    ("seeds", "predicted", "names"),
    [
        (2, 1, ["seed 0", "seed 1", "theory"]),
        (30, 1, ["29 more seeds", "seed 0", "theory"]),
        (1200, 0, ["1,200 seeds"]),
        (30, 30, ["30 seeds", "theory"]),
    ],
)
def test_a_legend_has_room_for_any_number_of_seeds(seeds, predicted, names):
    time = np.arange(3.0)
    curves = np.linspace(1, 0.2, 3) * np.ones((seeds, 1))
    runs = xr.Dataset({"loss": (("seed", "time"), curves)}, {"time": time, "seed": range(seeds)})
    theory = xr.Dataset({"loss": (("seed", "time"), curves[:predicted])}, {"time": time})
    (axes,) = icl.plots.loss(runs, theory=theory if predicted else None).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    assert len(axes.lines) >= seeds + predicted


@pytest.mark.parametrize(("seeds", "colours"), [(1, 1), (3, 3), (30, 1)])
def test_test_losses_are_drawn_by_name_in_the_colours_of_their_runs(seeds, colours):
    time = np.arange(5.0)
    tests = np.ones((seeds, 5, 2)) * [1.0, 4.0]
    runs = xr.Dataset(
        {"loss": (("seed", "time"), np.ones((seeds, 5))),
         "test_loss": (("seed", "time", "test"), tests)},
        {"time": time, "test": ["longer", "noisy"], "seed": np.arange(seeds)},
    )  # fmt: skip
    (axes,) = icl.plots.loss(runs).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label for label in labels if "test" in label] == ["test: longer", "test: noisy"]
    high = [line for line in axes.lines if np.array_equal(line.get_ydata(), np.full(5, 4.0))]
    assert len({line.get_color() for line in high}) == len(high) == colours
    assert axes.get_ylim()[1] > 5  # the names have room above the curves


def test_drops_too_close_for_two_names_share_one():
    from iclflow.plots.theory import _labels

    names = [name for name, _ in _labels([100.0, 104.0, 107.0, 3000.0], 25.0, 6000.0)]
    assert names == ["$t_{1}$–$t_{3}$", "$t_{4}$"]
    assert _labels([], 1.0, 2.0) == []
