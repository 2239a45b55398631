"""Plots: Datasets in, Figures and Axes out; they compute nothing."""

from iclflow.plots.losses import loss_figure as loss
from iclflow.plots.losses import plot_loss
from iclflow.plots.style import style

__all__ = ["loss", "plot_loss", "style"]
