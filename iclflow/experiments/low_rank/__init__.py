"""Key and query of rank R: plateaus at every R-th level (Figs 4, 8, 9)."""

import dataclasses

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE_FIG4 = _HERE.source("_fig4")
_SOURCE_FIG8 = _HERE.source("_fig8", shares="four_inputs")
_SOURCE_FIG9 = _HERE.source("_fig9")
_LIVE = Live("loss", levels="levels", time="clock", panels="rank", title="R = ", runs="seed")

FIGURES = (
    Figure(
        "fig4", "Figure 4", "Key and query of rank R: plateaus at every R-th level",
        _SOURCE_FIG4, _HERE.figure.draw_fig4,
        caption="""Eight input dimensions with eigenvalues proportional to 1/d, ranks 1, 2, 4 and 8,
        six initialisations each. A value weight that has grown serves all R components of its head,
        so the long plateaus are those at L(M_m) with m = 0, R, 2R, …: eight at rank one, and a
        single one at rank eight.""",
        alt="""Four panels of loss curves, for ranks 1, 2, 4 and 8: the higher the rank, the fewer
        the long plateaus; dotted lines mark the levels.""",
        live=(_LIVE,),
    ),
    Figure(
        "fig8", "Figure 8", "Value weights at higher rank",
        _SOURCE_FIG8, _HERE.figure.draw_fig8,
        caption="""Four input dimensions, ranks 2, 3 and 4: one value weight grows for each group of
        R eigenvectors, to the size of the minimal-norm solution (dotted), and the loss has its long
        plateaus between groups. Dashed: predicted from the initial weights.""",
        alt="""Loss above and value weights below, over training, for ranks 2, 3 and 4: two heads
        grow at ranks 2 and 3 and one at rank 4.""",
        live=(dataclasses.replace(_LIVE, lines="values", ends="final_values"),),
    ),
    Figure(
        "fig9", "Figure 9", "The other ranks",
        _SOURCE_FIG9, _HERE.figure.draw_fig9,
        caption="""As Figure 4, for ranks 3, 5, 6 and 7.""",
        alt="""Four panels of loss curves, for ranks 3, 5, 6 and 7, with dotted levels.""",
        live=(_LIVE,),
    ),
)  # fmt: skip
