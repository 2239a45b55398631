"""In-weight learning first, then in-context learning (Figs 5, 10)."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE_FIG5 = _HERE.source("_fig5")
_SOURCE_FIG10 = _HERE.source("_fig10")
_LIVE = Live(
    "training", "predicted", "levels", "drop_time", until="predicted_end", runs="share fixed",
    tests=(("in_context", "test: any task"), ("in_weight", "test: the fixed task")), front=3,
    dashed="the first drop, from the initial weights; the theory says nothing of what follows",
    model="mixture",
)  # fmt: skip

FIGURES = (
    Figure(
        "fig5", "Figure 5", "In weight first, then in context",
        _SOURCE_FIG5, _HERE.figure.draw_fig5,
        caption="""A share of the training sequences has one fixed task vector. The layer first
        learns this task in its weights, and later to read any task from the context. Left: training
        loss and two test losses with 60% of the sequences fixed. Right: training loss by
        portion.""",
        alt="""Left: three losses over training; the in-weight test loss falls first, the in-context
        test loss later. Right: training loss for six portions of fixed sequences.""",
        live=(_LIVE,),
    ),
    Figure(
        "fig10", "Figure 10", "Every portion of fixed sequences",
        _SOURCE_FIG10, _HERE.figure.draw_fig10,
        caption="""Training loss, in-context and in-weight test loss for six portions of fixed
        sequences, from none to all.""",
        alt="""Six panels, one a portion, with three loss curves each.""",
        live=(_LIVE,),
    ),
)  # fmt: skip
