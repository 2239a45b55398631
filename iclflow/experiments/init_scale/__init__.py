"""The scale of the initial weights."""

from iclflow.experiments.entry import Figure, Folder, Source

_HERE = Folder(__name__)
_SOURCE = Source(_HERE.data.compute, _HERE.claims.claims, _HERE.claims.controls)

FIGURES = (
    Figure(
        "v2-init", "Init scale", "The scale of the initial weights",
        _SOURCE, _HERE.figure.draw,
        caption="""From 10⁻⁶ to large: smaller initial weights make every plateau longer, large ones
        leave none, and the loss decays exponentially instead.""",
        alt="""Loss over training for many scales of the initial weights, for merged and for
        separate key and query: the smaller the scale, the later the drops.""",
    ),
)  # fmt: skip
