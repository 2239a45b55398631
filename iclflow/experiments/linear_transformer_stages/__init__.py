"""Stages of the linear transformer, and their detectors (second paper, Figs 3A, 4)."""
