"""Merged key and query: one abrupt drop, and the network it is (Fig. 1)."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")

FIGURES = (
    Figure(
        "fig1", "Figure 1", "One abrupt drop, and the network it is",
        _SOURCE, _HERE.figure.draw,
        caption="""Linear attention with merged key and query, started from almost nothing, sits on
        one plateau and then learns least squares in context in one drop. A two-layer linear network
        on the cubic features z = vec(β x_qᵀ), started from the same weights, has the same loss at
        every step.""",
        alt="""Diagram of merged linear attention and of the two-layer network, beside their loss
        over training: a flat plateau, one sharp drop, and a low second plateau; the two curves
        coincide and theory is dashed on top.""",
        live=(
            Live(
                "loss", "loss_theory", "levels", "half_time_theory",
                tests=(("loss_mlp", "network on cubic features"),), runs="seed",
            ),
        ),
    ),
)  # fmt: skip
