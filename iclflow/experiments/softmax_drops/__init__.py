"""Softmax attention: one drop with merged key and query, several with separate ones."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source()

FIGURES = (
    Figure(
        "v2-softmax", "Softmax", "Softmax attention drops too, at its own times",
        _SOURCE, _HERE.figure.draw,
        caption="""The set-ups of Figures 1 and 3 with softmax attention: merged key and query still
        learn in one drop, separate ones in several. The plateaus lie near the levels of linear
        attention, but the drops come close together: in the time shown linear attention, from the
        same start on the same data (dashed, at full scale), makes two of its four.""",
        alt="""Two panels of loss over training for softmax attention: one drop for merged key and
        query, several for separate ones, which follow one another faster than those of linear
        attention.""",
        live=tuple(
            Live(
                kind, f"{kind}_linear", f"{kind}_levels", time=f"{kind}_time", title=kind,
                dashed="linear attention from the same start on the same data", runs="seed",
            )
            for kind in ("merged", "separate")
        ),
    ),
)  # fmt: skip
