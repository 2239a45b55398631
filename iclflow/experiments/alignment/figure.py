"""Fig. 6: weights of attention and network beside the statistics that predict them."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.style import COLUMN, HEAT, Figure, style

NAMES = (r"$\mathbb{E}[y_q \mathbf{z}^\top]$",)
NAMES += (r"$\mathbb{E}[y_q \mathbf{z}^\top]\,\mathbb{E}[\mathbf{z}\mathbf{z}^\top]^{-1}$",)


def draw(data: xr.Dataset) -> Figure:
    """Rows: during the plateau, at convergence. Columns: ATTN_M, MLP, the data."""
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 0.92 * COLUMN))
        panels = figure.subplots(2, 3, width_ratios=(1, 1, 1), squeeze=False)
        for row, moment in enumerate(data["moment"].values):
            at = data.isel(moment=row)
            time = float(at["moment_time"].isel(seed=data.attrs["shown_seed"]))
            image = _heat(panels[row, 0], at["attention"].values)
            _heat(panels[row, 1], at["mlp"].values)
            _heat(panels[row, 2], at["statistics"].values[None, :])
            when = "on the plateau" if moment == "plateau" else "at convergence"
            panels[row, 0].set_ylabel(f"{when}\n$t/\\tau$ = {time:.0f}\nhead")
            panels[row, 1].set_ylabel("hidden unit")
            panels[row, 2].set_title(NAMES[row])
            panels[row, 2].set_yticks([])
        panels[0, 0].set_title(r"$\mathrm{ATTN_M}$: rows $\mathrm{vec}(U_i)^\top$")
        panels[0, 1].set_title(r"$\mathrm{MLP}(\mathbf{z})$: rows of $W_1$")
        for axes in panels[1]:
            axes.set_xlabel(r"entry of $\mathbf{z}$")
        figure.colorbar(
            image, ax=list(panels[:, 2]), shrink=0.8, label="over the panel's largest", pad=0.03
        )
    return figure


def _heat(axes: Axes, values: np.ndarray):
    """A matrix on the scale of its own largest entry: directions are what is compared."""
    image = axes.imshow(
        values / np.abs(values).max(), cmap=HEAT, vmin=-1, vmax=1, aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    rows, columns = values.shape
    axes.set_xticks(range(0, columns, 5), [f"{i + 1}" for i in range(0, columns, 5)])
    axes.set_yticks(range(0, rows, 7), [f"{i + 1}" for i in range(0, rows, 7)])
    axes.tick_params(length=2)
    if rows == 1:
        axes.set_box_aspect(0.14)
    return image
