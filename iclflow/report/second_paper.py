"""The figures of the second paper: vector outputs, and transformers that are not linear."""

from iclflow.report.entries import Figure, Paper, figure

PAPER = Paper(
    "Exact Learning Dynamics of In-Context Learning in Linear Transformers and Its Application to "
    "Non-Linear Transformers",
    "N. Mainali and L. Teixeira, 2025",
    "2504.12916",
)

SECOND_PAPER: tuple[Figure, ...] = (
    figure(
        "lt-fig1", "2nd paper, Figure 1", "Where the linear transformer ends",
        "linear_transformer", "linear_transformer:fixed_point_figure",
        """A linear transformer with vector outputs, y = Wx with W diagonal in the eigenvectors of
        the input covariance, trained by SGD on fresh tasks. Its weights p₂q₁ end up diagonal in
        the same basis, near the paper's a∞ (11); right: what is left between simulation, the
        paper's theory, which is the limit of long contexts, and the exact mean flow.""",
        """Three four by four heatmaps, diagonal and alike: simulated weights, the paper's theory,
        the exact flow. Beside them the differences in per cent, mode by mode, all below a few per
        cent.""",
        claims="linear_transformer.claims:claims", data="linear_transformer",
    ),
    figure(
        "lt-fig2", "2nd paper, Figure 2", "Each mode in its own time, and what is conserved",
        "linear_transformer", "linear_transformer:dynamics_figure",
        """Left: the diagonal of p₂q₁ over training, mean of seeds with its standard error, the
        closed form (13) and the exact mean flow. Middle: ‖p₂‖² and ‖q₁‖² mirror one another, and
        their difference stays. Right: the paper's theory conserves p² - q² of every mode; in the
        exact flow it drifts, in a time of order N, until p/q is proportional to √s. Grey line:
        the end of the simulation.""",
        """Left: four rising curves, one a mode, with theory on top. Middle: two mirrored curves
        and their flat sum. Right: four curves that start at zero and separate at long times.""",
        claims="linear_transformer.claims:claims", data="linear_transformer",
    ),
    figure(
        "lt-fig3", "2nd paper, Figure 3A", "Plateaus and cliffs, and what a short context changes",
        "linear_transformer_stages", "linear_transformer_stages:stages_figure",
        """Left: with well separated eigenvalues the loss falls in one cliff a mode, at the times
        of (13). Middle: at N = 8 training follows the exact mean flow, while the decoupled theory
        (14) has other plateaus and its last cliffs early: it leaves out that learned modes slow
        the others. Right: the error of the
        closed form falls as 1/N; that of the final loss does not, relative to that loss. Losses
        with the paper's factor ½.""",
        """Left: a loss with four cliffs and both theories on top. Middle: a loss that the exact
        theory follows and the paper's does not. Right: errors against the context length on
        logarithmic axes, one with slope minus one and one that levels off.""",
        claims="linear_transformer_stages.claims:claims", data="linear_transformer",
    ),
    figure(
        "lt-fig4", "2nd paper, Figure 4", "Finding the time scales",
        "linear_transformer_stages", "linear_transformer_stages:detectors_figure",
        """Four time scales in the run on the left of Figure 3A, by the curvature of the loss's
        autocorrelation, of the norm of p₂q₁, and of the loss itself; dashed: when each mode is
        half learned. Last: effective rank of p₂q₁, without the modes learned first.""",
        """Three curvature curves with a marked peak beside each of four dashed lines, and the
        effective rank without 0, 1 and 2 modes, which rises with every mode that is left.""",
        claims="linear_transformer_stages.claims:claims", data="linear_transformer",
    ),
    figure(
        "lt-fig5", "2nd paper, Figure 5", "In-context learning emerges with the second layer",
        "in_context_emergence", "in_context_emergence:draw_fig5",
        """Attention-only transformers on tokens repeated with a period drawn for each sequence.
        Above: the loss late in the context; accuracy where the segment has been seen before, and
        the best prefix-matching score of a head; and, for other models trained on Markov chains,
        the loss at every position beside the best possible. One layer fails where two succeed.
        Below: subspace distance (16) of QK and OV to their last weights, mean over heads; shaded,
        the drop of the in-context score.""",
        """Three panels: the late loss of one layer levels off while that of deeper models drops
        sharply; accuracy and induction heads rise at the same step; on Markov chains two layers
        follow the Bayes-optimal loss and one does not. Below, a panel a depth: two falling curves
        of subspace distance with the drop shaded.""",
        claims="in_context_emergence.claims:claims", group="nonlinear", resumes=True,
    ),
    figure(
        "lt-fig6", "2nd paper, Figure 6", "Ranks and induction heads over training",
        "in_context_emergence", "in_context_emergence:draw_fig6",
        """The models of Figure 5. Above: effective rank (15) of QK and OV, mean over heads, over
        its start. Below: prefix-matching score of every head of the first seed, coloured by layer.
        Shaded, the drop of the in-context score.""",
        """A column a depth: above, the effective rank of QK and OV, which changes by some per cent
        around the shaded drop; below, the scores of the heads, of which some jump up in the shaded
        drop in models of two and more layers.""",
        claims="in_context_emergence.claims:claims", group="nonlinear", resumes=True,
    ),
    figure(
        "lt-fig7", "2nd paper, Figures 3B and 7", "Grokking: who moves before the test loss",
        "grokking", "grokking:grokking_figure",
        """A transformer of one layer learns a + b mod p on some of the pairs. (a, b) It memorises
        them at once and answers the others long after. (c) to (f) Measures of every seed, on a
        clock on which half of the test loss's drop is at 1; shaded, the middle half of the drop.
        (g) When each measure has made half of its change since memorising: the paper's measures of
        OV, and beside them the norm of the weights and how much of the embedding is in few
        frequencies.""",
        """Training and test loss and accuracy of several seeds over training on a logarithmic axis,
        the test accuracy rising long after the training accuracy; four panels of measures around
        the drop of the test loss; below, one row of dots a measure, left or right of a line at 1.
        """,
        claims="grokking.claims:claims", group="nonlinear", resumes=True,
    ),
)  # fmt: skip
