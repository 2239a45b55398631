"""Attention as a sum of convolutional networks, drawn with numbers (Fig. 2)."""

from iclflow.experiments.entry import Figure, Folder

_HERE = Folder(__name__)
_SOURCE = _HERE.source()

FIGURES = (
    Figure(
        "fig2", "Figure 2", "Rank-one attention as a sum of convolutional networks",
        _SOURCE, _HERE.figure.draw,
        caption="""A rank-one head with separate key and query is a three-layer linear network on z:
        a convolution with the key as its kernel and stride D, then the query, then the value. A
        layer with H heads is the sum of H such networks.""",
        alt="""Diagram: a prompt matrix goes through one attention head, and the cubic features z go
        through a convolution, a linear layer and a scalar weight to the same prediction.""",
    ),
)  # fmt: skip
