"""Stages of the linear transformer, and their detectors (second paper, Figs 3A, 4)."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="linear_transformer")
_LOSS = "loss  ½E|y − ŷ|²"

FIGURES = (
    Figure(
        "lt-fig3", "2nd paper, Figure 3A", "Plateaus and cliffs, and what a short context changes",
        _SOURCE, _HERE.figure.draw_fig3,
        caption="""Left: with well separated eigenvalues the loss falls in one cliff a mode, at the
        times of (13). Middle: at N = 8 training follows the exact mean flow, while the decoupled
        theory (14) has other plateaus and its last cliffs early: it leaves out that learned modes
        slow the others. Right: the error of the closed form falls as 1/N; that of the final loss
        does not, relative to that loss. Losses with the paper's factor ½.""",
        alt="""Left: a loss with four cliffs and both theories on top. Middle: a loss that the exact
        theory follows and the paper's does not. Right: errors against the context length on
        logarithmic axes, one with slope minus one and one that levels off.""",
        live=(
            Live(
                "loss", "loss_exact", "levels", "drop_paper", time="epoch", clock="epochs",
                tests=(("loss_paper", "closed form (14)"),), lines="a",
                lines_name="a = p₂q₁ of each mode", title="long contexts",
                dashed="the exact mean flow", model="transformer", loss_name=_LOSS,
            ),
            Live(
                "small_loss", "small_loss_exact", time="small_time", lines="small_a",
                tests=(("small_loss_paper", "closed form (14)"),),
                lines_name="a = p₂q₁ of each mode", title="N = 8",
                dashed="the exact mean flow", model="transformer", loss_name=_LOSS,
            ),
        ),
    ),
    Figure(
        "lt-fig4", "2nd paper, Figure 4", "Finding the time scales",
        _SOURCE, _HERE.figure.draw_fig4,
        caption="""Four time scales in the run on the left of Figure 3A, by the curvature of the
        loss's autocorrelation, of the norm ‖p₂‖, and of the loss itself; dashed: when each mode is
        half learned. The paper's figure names no marks: here they are where a mode has been
        learned, at which a loss bends up and a norm bends down. The norm's maxima, where a mode
        begins to rise, come as much before. Last: effective rank of p₂q₁, without the modes learned
        first.""",
        alt="""Three curvature curves with a marked bend beside each of four dashed lines, and the
        effective rank without 0, 1 and 2 modes, which rises with every mode that is left.""",
    ),
)  # fmt: skip
