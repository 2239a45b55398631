"""The figures of the second paper: vector outputs, and transformers that are not linear."""

from iclflow.report.entries import Figure

SECOND_PAPER: tuple[Figure, ...] = ()  # fmt: skip
