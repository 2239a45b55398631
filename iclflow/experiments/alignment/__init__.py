"""Early and late alignment of the merged weights (Fig. 6)."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")

FIGURES = (
    Figure(
        "fig6", "Figure 6", "Early and late alignment of the merged weights",
        _SOURCE, _HERE.figure.draw,
        caption="""On the plateau every head turns to E[y zᵀ]; at convergence it has turned to E[y
        zᵀ] E[z zᵀ]⁻¹. Weights of attention and of the network beside the data statistics that
        predict them.""",
        alt="""Heatmaps in two rows, plateau and convergence: weights of the attention heads, of the
        network's hidden units, and the matrix of data statistics that predicts both.""",
        live=(
            Live(
                "loss", levels="levels", lines="cosines", runs="seed",
                lines_name="|cos| of heads with E[y z] (blue) and E[y z] E[z z]⁻¹ (orange)",
            ),
        ),
    ),
)  # fmt: skip
