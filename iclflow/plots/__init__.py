"""Plots: Datasets in, Axes out; they compute nothing."""
