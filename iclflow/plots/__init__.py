"""Plots: Datasets in, Figures and Axes out; they compute nothing."""

from iclflow.plots.escape import escape_figure as escape
from iclflow.plots.escape import plot_escape
from iclflow.plots.losses import loss_figure as loss
from iclflow.plots.losses import plot_loss
from iclflow.plots.maps import map_figure as map
from iclflow.plots.maps import plot_map
from iclflow.plots.style import style

__all__ = ["escape", "loss", "map", "plot_escape", "plot_loss", "plot_map", "style"]
