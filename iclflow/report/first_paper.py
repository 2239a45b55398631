"""The figures of the first paper: linear and softmax attention with one output."""

from iclflow.report.entries import DAY, HOUR, MINUTE, Paper, Published, figure

PAPER = Paper(
    "Training Dynamics of In-Context Learning in Linear Attention",
    "Y. Zhang, A. K. Singh, P. E. Latham and A. M. Saxe, ICML 2025",
    "2501.16265",
)

_FLOW = "here by gradient flow with adaptive steps, not descent"
PUBLISHED = (
    Published("Fig. 1", ("fig1",), 26 * MINUTE),
    Published("Fig. 3a", ("fig3",), 2.9 * DAY),
    Published("Fig. 4", ("fig4",), 66 * DAY, _FLOW),
    Published("Fig. 9", ("fig9",), 73 * DAY, _FLOW),
    Published(
        "Figs 5 and 10",
        ("fig5", "fig10"),
        3.4 * HOUR,
        "here in the population; only the 60% portion also on sampled sequences",
        alike=False,
    ),
)

FIRST_PAPER = (
    figure(
        "fig1", "Figure 1", "One abrupt drop, and the network it is",
        "abrupt_drop", "abrupt_drop:abrupt_drop_figure",
        """Linear attention with merged key and query, started from almost nothing, sits on one
        plateau and then learns least squares in context in one drop. A two-layer linear network on
        the cubic features z = vec(β x_qᵀ), started from the same weights, has the same loss at
        every step.""",
        """Diagram of merged linear attention and of the two-layer network, beside their loss over
        training: a flat plateau, one sharp drop, and a low second plateau; the two curves coincide
        and theory is dashed on top.""",
        data="four_inputs",
    ),
    figure(
        "fig2", "Figure 2", "Rank-one attention as a sum of convolutional networks",
        "schematics", "schematics:schematics_figure",
        """A rank-one head with separate key and query is a three-layer linear network on z: a
        convolution with the key as its kernel and stride D, then the query, then the value. A layer
        with H heads is the sum of H such networks.""",
        """Diagram: a prompt matrix goes through one attention head, and the cubic features z go
        through a convolution, a linear layer and a scalar weight to the same prediction.""",
        claims=None,
    ),
    figure(
        "fig3", "Figure 3", "Saddle to saddle: D drops, one principal component each",
        "saddle_to_saddle", "saddle_to_saddle:saddle_to_saddle_figure",
        """With separate key and query of rank one, training visits D saddles. Each drop adds one
        eigenvector of the input covariance, largest eigenvalue first; on the plateaus the loss is
        L(M_m) (24) and the layer does principal component regression with m components (27).
        (a) Six initialisations, in the paper's window and until all are done; (b) value weights
        against the scalar equation (26); (c) key weights on each plateau beside the theory's.""",
        """The loss of six runs descends in four steps, each at a dashed level; value weights grow
        one after another along dashed theory curves; below, heatmaps of the key weights on each of
        five plateaus, one more row filled on each, beside the theory's.""",
        data="four_inputs",
    ),
    figure(
        "fig4", "Figure 4", "Key and query of rank R: plateaus at every R-th level",
        "low_rank", "low_rank:draw_fig4",
        """Eight input dimensions with eigenvalues proportional to 1/d, ranks 1, 2, 4 and 8, six
        initialisations each. A value weight that has grown serves all R components of its head, so
        the long plateaus are those at L(M_m) with m = 0, R, 2R, …: eight at rank one, and a single
        one at rank eight.""",
        """Four panels of loss curves, for ranks 1, 2, 4 and 8: the higher the rank, the fewer the
        long plateaus; dashed lines mark the levels.""",
        compute="compute_fig4", claims="low_rank.claims:claims_fig4",
    ),
    figure(
        "fig5", "Figure 5", "In weight first, then in context",
        "in_weight", "in_weight:draw_fig5",
        """A share of the training sequences has one fixed task vector. The layer first learns this
        task in its weights, and later to read any task from the context. Left: training loss and
        two test losses with 60% of the sequences fixed. Right: training loss by portion.""",
        """Left: three losses over training; the in-weight test loss falls first, the in-context
        test loss later. Right: training loss for six portions of fixed sequences.""",
        compute="compute_fig5", claims="in_weight.claims:claims_fig5",
    ),
    figure(
        "fig6", "Figure 6", "Early and late alignment of the merged weights",
        "alignment", "alignment:alignment_figure",
        """On the plateau every head turns to E[y zᵀ]; at convergence it has turned to
        E[y zᵀ] E[z zᵀ]⁻¹. Weights of attention and of the network beside the data statistics that
        predict them.""",
        """Heatmaps in two rows, plateau and convergence: weights of the attention heads, of the
        network's hidden units, and the matrix of data statistics that predicts both.""",
        data="four_inputs",
    ),
    figure(
        "fig7", "Figure 7", "When each plateau begins and ends",
        "saddle_to_saddle", "saddle_to_saddle:plateau_times_figure",
        """Left: a run of Figure 3 with the times t₁ … t_D of its drops. Right: how long each
        plateau of every run lasts, against the paper's estimate (73), an order of magnitude, and
        against the prediction from the initial weights alone.""",
        """Left: the loss of one run with vertical marks at its four drops. Right: predicted against
        measured durations on logarithmic axes; predictions from the initial weights lie on the
        diagonal, the paper's estimates scatter around it.""",
        data="four_inputs",
    ),
    figure(
        "fig8", "Figure 8", "Value weights at higher rank",
        "low_rank", "low_rank:draw_fig8",
        """Four input dimensions, ranks 2, 3 and 4: one value weight grows for each group of R
        eigenvectors, to the size of the minimal-norm solution (dotted), and the loss has its long
        plateaus between groups. Dashed: predicted from the initial weights.""",
        """Loss above and value weights below, over training, for ranks 2, 3 and 4: two heads grow
        at ranks 2 and 3 and one at rank 4.""",
        compute="compute_fig8", claims="low_rank.claims:claims_fig8",
    ),
    figure(
        "fig9", "Figure 9", "The other ranks",
        "low_rank", "low_rank:draw_fig9",
        """As Figure 4, for ranks 3, 5, 6 and 7.""",
        """Four panels of loss curves, for ranks 3, 5, 6 and 7, with dashed levels.""",
        compute="compute_fig9", claims="low_rank.claims:claims_fig9",
    ),
    figure(
        "fig10", "Figure 10", "Every portion of fixed sequences",
        "in_weight", "in_weight:draw_fig10",
        """Training loss, in-context and in-weight test loss for six portions of fixed sequences,
        from none to all.""",
        """Six panels, one a portion, with three loss curves each.""",
        compute="compute_fig10", claims="in_weight.claims:claims_fig10",
    ),
    figure(
        "v2-softmax", "Softmax", "The same drops with softmax attention",
        "softmax_drops", "softmax_drops:draw",
        """The set-ups of Figures 1 and 3 with softmax attention: merged key and query still learn
        in one drop, separate ones in several.""",
        """Two panels of loss over training for softmax attention: one drop for merged key and
        query, several for separate ones.""",
    ),
    figure(
        "v2-init", "Init scale", "The scale of the initial weights",
        "init_scale", "init_scale:init_scale_figure",
        """From 10⁻⁶ to large: smaller initial weights make every plateau longer, large ones leave
        none, and the loss decays exponentially instead.""",
        """Loss over training for many scales of the initial weights, for merged and for separate
        key and query: the smaller the scale, the later the drops.""",
    ),
    figure(
        "v2-length", "Varying length", "Contexts of varying length",
        "varying_length", "varying_length:varying_length_figure",
        """The loss averaged over context lengths: training shows the same drops, at levels that
        follow from the average of 1/n.""",
        """Loss over training with varying context length, in the same steps, with dashed
        levels.""",
        data="four_inputs",
    ),
    figure(
        "zero-blocks", "Zero blocks", "What the theory sets to zero, and finite data do not",
        "zero_blocks", "zero_blocks:zero_blocks_figure",
        """The weights that read labels as inputs and inputs as labels stay zero in the population.
        On P sequences they grow to P^(-1/2), and lower the training loss by 1/P: measured at
        convergence, 32 datasets of each size (16 in the quick form).""",
        """Two panels on logarithmic axes against the number of sequences: the size of the extra
        blocks falls with slope minus one half, the loss gained with slope minus one.""",
        data="four_inputs",
    ),
)  # fmt: skip
