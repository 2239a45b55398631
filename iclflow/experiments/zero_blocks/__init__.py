"""The blocks that the theory sets to zero, on finite data."""

from iclflow.experiments.entry import Figure, Folder

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")

FIGURES = (
    Figure(
        "zero-blocks", "Zero blocks", "What the theory sets to zero, and finite data do not",
        _SOURCE, _HERE.figure.draw,
        caption="""The weights that read labels as inputs and inputs as labels stay zero in the
        population. On P sequences they grow to P^(-1/2), and lower the training loss by 1/P:
        measured at convergence, 32 datasets of each size (16 in the quick form).""",
        alt="""Two panels on logarithmic axes against the number of sequences: the size of the extra
        blocks falls with slope minus one half, the loss gained with slope minus one.""",
    ),
)  # fmt: skip
