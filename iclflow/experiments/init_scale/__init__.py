"""The scale of the initial weights."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source()

FIGURES = (
    Figure(
        "v2-init", "Init scale", "The scale of the initial weights",
        _SOURCE, _HERE.figure.draw,
        caption="""From 10⁻⁶ to large: smaller initial weights make every plateau longer, large ones
        leave none, and the loss decays exponentially instead. Dashed: predicted from the initial
        weights; separate plateaus last so long at small scales that they are predicted alone.""",
        alt="""Loss over training for many scales of the initial weights, for merged and for
        separate key and query: the smaller the scale, the later the drops.""",
        live=(
            Live(
                "merged_loss", levels="merged_levels", times="merged_half_theory",
                time="merged_time", title="merged", runs="init scale",
            ),
            Live(
                "separate_loss", "theory_loss", "levels", time="separate_time",
                theory_time="theory_time", title="separate", runs="init scale",
            ),
        ),
    ),
)  # fmt: skip
