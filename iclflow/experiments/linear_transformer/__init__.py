"""The linear transformer: where it ends, how it gets there (second paper, Figs 1, 2)."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="linear_transformer")

FIGURES = (
    Figure(
        "lt-fig1", "2nd paper, Figure 1", "Where the linear transformer ends",
        _SOURCE, _HERE.figure.draw_fig1,
        caption="""A linear transformer with vector outputs, y = Wx with W diagonal in the
        eigenvectors of the input covariance, trained by SGD on fresh tasks. Its weights p₂q₁ end up
        diagonal in the same basis, near the paper's a∞ (11); right: what is left between
        simulation, the paper's theory, which is the limit of long contexts, and the exact mean
        flow.""",
        alt="""Three four by four heatmaps, diagonal and alike: simulated weights, the paper's
        theory, the exact flow. Beside them the differences in per cent, mode by mode, all below a
        few per cent.""",
    ),
    Figure(
        "lt-fig2", "2nd paper, Figure 2", "Each mode in its own time, and what is conserved",
        _SOURCE, _HERE.figure.draw_fig2,
        caption="""Left: the diagonal of p₂q₁ over training, mean of seeds with its standard error,
        the closed form (13) and the exact mean flow. Middle: ‖p₂‖² and ‖q₁‖² mirror one another,
        and their difference stays. Right: the paper's theory conserves p² - q² of every mode; in
        the exact flow it drifts, in a time of order N, until p/q is proportional to √s. Grey line:
        the end of the simulation.""",
        alt="""Left: four rising curves, one a mode, with theory on top. Middle: two mirrored curves
        and their flat sum. Right: four curves that start at zero and separate at long times.""",
        live=(
            Live(
                "loss", time="epoch", clock="epochs", lines="a", lines_theory="a_exact",
                ends="a_optimum", lines_name="a = p₂q₁ of each mode", runs="seed",
                dashed="the exact mean flow", model="transformer", loss_name="loss  ½E|y − ŷ|²",
            ),
        ),
    ),
)  # fmt: skip
