"""Separate key and query of rank one: D drops, one eigenvector each (Figs 3, 7)."""

import dataclasses

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")
_LIVE = Live("loss", "staircase_loss", "levels", "staircase_time", runs="seed")

FIGURES = (
    Figure(
        "fig3", "Figure 3", "Saddle to saddle: D drops, one principal component each",
        _SOURCE, _HERE.figure.draw_fig3,
        caption="""With separate key and query of rank one, training visits D saddles. Each drop
        adds one eigenvector of the input covariance, largest eigenvalue first; on the plateaus the
        loss is L(M_m) (24) and the layer does principal component regression with m components
        (27). (a) Six initialisations, in the paper's window and until all are done; (b) value
        weights against the scalar equation (26); (c) key weights on each plateau beside the
        theory's. Dashed: the theory of the sequences trained on, from the initial weights. What
        error is left comes from the blocks outside the reduced model, which training moves and the
        theory leaves out; it is named for the worst drop.""",
        alt="""The loss of six runs descends in four steps, each at a dotted level; value weights
        grow one after another along dashed theory curves; below, heatmaps of the key weights on
        each of five plateaus, one more row filled on each, beside the theory's.""",
        live=(dataclasses.replace(_LIVE, lines="values", ends="value_limit"),),
    ),
    Figure(
        "fig7", "Figure 7", "When each plateau begins and ends",
        _SOURCE, _HERE.figure.draw_fig7,
        caption="""Left: a run of Figure 3 with the times t₁ … t_D of its drops. Right: how long
        each plateau of every run lasts, against the paper's estimate (73), an order of magnitude,
        and against the prediction from the initial weights alone.""",
        alt="""Left: the loss of one run with vertical marks at its four drops. Right: predicted
        against measured durations on logarithmic axes; predictions from the initial weights lie on
        the diagonal, the paper's estimates scatter, most of them below it.""",
        live=(_LIVE,),
    ),
)  # fmt: skip
