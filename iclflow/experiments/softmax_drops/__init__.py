"""Softmax attention: one drop with merged key and query, several with separate ones."""

from iclflow.experiments.entry import Figure, Folder, Source

_HERE = Folder(__name__)
_SOURCE = Source(_HERE.data.compute, _HERE.claims.claims, _HERE.claims.controls)

FIGURES = (
    Figure(
        "v2-softmax", "Softmax", "The same drops with softmax attention",
        _SOURCE, _HERE.figure.draw,
        caption="""The set-ups of Figures 1 and 3 with softmax attention: merged key and query still
        learn in one drop, separate ones in several.""",
        alt="""Two panels of loss over training for softmax attention: one drop for merged key and
        query, several for separate ones.""",
    ),
)  # fmt: skip
