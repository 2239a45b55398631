"""The figures in words: what each is called, shows and claims, and where it comes from.

Reading this table imports no science: the functions of an experiment are loaded when they are
called. `grokking` and `in_context_emergence` have theirs beside their data.
"""

import dataclasses

from iclflow.experiments import field, grokking, in_context_emergence
from iclflow.experiments.base import Experiment, Figure, Live, Module, Source

_WORDS = Module("iclflow.experiments.captions")

# Merged key and query: one abrupt drop, and the network it is (Fig. 1).
_abrupt_drop = Experiment("abrupt_drop", folder=True)
_abrupt_drop_source = _abrupt_drop.source(shares="four_inputs")

ABRUPT_DROP = (
    Figure(
        "fig1", "Figure 1", "One abrupt drop, and the network it is",
        _abrupt_drop_source, _abrupt_drop.figure.draw,
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

# Attention as a sum of convolutional networks, drawn with numbers (Fig. 2).
_schematics = Experiment("schematics")
_schematics_source = _schematics.source()

SCHEMATICS = (
    Figure(
        "fig2", "Figure 2", "Rank-one attention as a sum of convolutional networks",
        _schematics_source, _schematics.figure.draw,
        caption="""A rank-one head with separate key and query is a three-layer linear network on z:
        a convolution with the key as its kernel and stride D, then the query, then the value. A
        layer with H heads is the sum of H such networks.""",
        alt="""Diagram: a prompt matrix goes through one attention head, and the cubic features z go
        through a convolution, a linear layer and a scalar weight to the same prediction.""",
    ),
)  # fmt: skip

# Separate key and query of rank one: D drops, one eigenvector each (Figs 3, 7).
_saddle_to_saddle = Experiment("saddle_to_saddle", folder=True)
_saddle_to_saddle_source = _saddle_to_saddle.source(shares="four_inputs")
_saddle_to_saddle_live = Live(
    "loss", "staircase_loss", "levels", "staircase_time", runs="seed", of=(("source", "sequences"),)
)

SADDLE_TO_SADDLE = (
    Figure(
        "fig3", "Figure 3", "Saddle to saddle: D drops, one principal component each",
        _saddle_to_saddle_source, _saddle_to_saddle.figure.draw_fig3,
        caption="""With separate key and query of rank one, training visits D saddles. Each drop
        adds one eigenvector of the input covariance, largest eigenvalue first; on the plateaus the
        loss is L(M_m) (24) and the layer does principal component regression with m components
        (27). (a) {starts}, in the paper's window and until all are done; (b) value
        weights against the scalar equation (26); (c) key weights on each plateau beside the
        theory's. Dashed: the theory of the sequences trained on, from the initial weights. What
        error is left comes from the blocks outside the reduced model, which training moves and the
        theory leaves out; it is named for the worst drop.""",
        alt="""The loss of six runs descends in four steps, each at a dotted level; value weights
        grow one after another along dashed theory curves; below, heatmaps of the key weights on
        each of five plateaus, one more row filled on each, beside the theory's.""",
        live=(dataclasses.replace(_saddle_to_saddle_live, lines="values", ends="value_limit"),),
        words=_WORDS.staircase,
        cover=_saddle_to_saddle.figure.draw_cover,
        cover_caption="""{runs} on the same {prompts} prompts (pale), and what the theory computes
        for each of them from its initial weights (dashed). Nothing is fitted. On every plateau the
        model uses one principal component of the inputs more.""",
    ),
    Figure(
        "fig7", "Figure 7", "When each plateau begins and ends",
        _saddle_to_saddle_source, _saddle_to_saddle.figure.draw_fig7,
        caption="""Left: a run of Figure 3 with the times t₁ … t_D of its drops. Right: how long
        each plateau of every run lasts, and two predictions of it. The paper's estimate (73) is
        {paper} times the measured duration at the median; the prediction from the initial weights
        is {ours} off.""",
        alt="""Left: the loss of one run with vertical marks at its four drops. Right: predicted
        against measured durations on logarithmic axes; predictions from the initial weights lie on
        the diagonal, the paper's estimates scatter, most of them below it.""",
        live=(_saddle_to_saddle_live,),
        words=_WORDS.staircase,
    ),
)  # fmt: skip

# Key and query of rank R: plateaus at every R-th level (Figs 4, 8, 9).
_low_rank = Experiment("low_rank", folder=True)
_low_rank_source_fig4 = _low_rank.source("_fig4")
_low_rank_source_fig8 = _low_rank.source("_fig8", shares="four_inputs")
_low_rank_source_fig9 = _low_rank.source("_fig9")
_low_rank_live = Live(
    "loss", levels="levels", time="clock", panels="rank", title="R = ", runs="seed"
)

LOW_RANK = (
    Figure(
        "fig4", "Figure 4", "Key and query of rank R: plateaus at every R-th level",
        _low_rank_source_fig4, _low_rank.figure.draw_fig4,
        caption="""{inputs} with eigenvalues proportional to 1/d, ranks {ranks}, {starts} each. A
        value weight that has grown serves all R components of its head, so the long plateaus are
        those at L(M_m) with m = 0, R, 2R, …: {plateaus} at rank one, and a single one at rank
        {plateaus}.""",
        alt="""Four panels of loss curves, for ranks 1, 2, 4 and 8: the higher the rank, the fewer
        the long plateaus; dotted lines mark the levels.""",
        live=(_low_rank_live,),
        words=_WORDS.ranks,
    ),
    Figure(
        "fig8", "Figure 8", "Value weights at higher rank",
        _low_rank_source_fig8, _low_rank.figure.draw_fig8,
        caption="""{inputs}, ranks {ranks}: one value weight grows for each group of
        R eigenvectors, to the size of the minimal-norm solution (dotted), and the loss has its long
        plateaus between groups. Dashed: predicted from the initial weights.""",
        alt="""Loss above and value weights below, over training, for ranks 2, 3 and 4: two heads
        grow at ranks 2 and 3 and one at rank 4.""",
        live=(dataclasses.replace(_low_rank_live, lines="values", ends="final_values"),),
        words=_WORDS.ranks,
    ),
    Figure(
        "fig9", "Figure 9", "The other ranks",
        _low_rank_source_fig9, _low_rank.figure.draw_fig9,
        caption="""As Figure 4, for ranks {ranks}.""",
        alt="""Four panels of loss curves, for ranks 3, 5, 6 and 7, with dotted levels.""",
        live=(_low_rank_live,),
        words=_WORDS.ranks,
    ),
)  # fmt: skip

# In-weight learning first, then in-context learning (Figs 5, 10).
_in_weight = Experiment("in_weight")
_in_weight_source_fig5 = _in_weight.source("_fig5")
_in_weight_source_fig10 = _in_weight.source("_fig10")
_in_weight_live = Live(
    "training", "predicted", "levels", "drop_time", until="predicted_end", runs="share fixed",
    tests=(("in_context", "test: any task"), ("in_weight", "test: the fixed task")), front=3,
    dashed="the first drop, from the initial weights; the theory says nothing of what follows",
    model="mixture",
)  # fmt: skip

IN_WEIGHT = (
    Figure(
        "fig5", "Figure 5", "In weight first, then in context",
        _in_weight_source_fig5, _in_weight.figure.draw_fig5,
        caption="""A share of the training sequences has one fixed task vector. The layer first
        learns this task in its weights, and later to read any task from the context. Left: training
        loss and two test losses with {shown} of the sequences fixed. Right: training loss by
        portion.""",
        alt="""Left: three losses over training; the in-weight test loss falls first, the in-context
        test loss later. Right: training loss for six portions of fixed sequences.""",
        live=(_in_weight_live,),
        words=_WORDS.portions,
    ),
    Figure(
        "fig10", "Figure 10", "Every portion of fixed sequences",
        _in_weight_source_fig10, _in_weight.figure.draw_fig10,
        caption="""Training loss, in-context and in-weight test loss for {portions} of fixed
        sequences, from {from} to {to}.""",
        alt="""Six panels, one per portion, with three loss curves each.""",
        live=(_in_weight_live,),
        words=_WORDS.portions,
    ),
)  # fmt: skip

# Early and late alignment of the merged weights (Fig. 6).
_alignment = Experiment("alignment")
_alignment_source = _alignment.source(shares="four_inputs")

ALIGNMENT = (
    Figure(
        "fig6", "Figure 6", "Early and late alignment of the merged weights",
        _alignment_source, _alignment.figure.draw,
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

# All 2^D fixed points: their losses, which are left and how, and the limit of long contexts.
_fixed_points = Experiment("fixed_points", folder=True)
_fixed_points_source = _fixed_points.source(shares="four_inputs")

FIXED_POINTS = (
    Figure(
        "fixed-points", "Fixed points", "The fixed points that are visited, and those that are not",
        _fixed_points_source, _fixed_points.figure.draw,
        caption="""The task of Figure 3. (a) The loss of all {points} fixed points M(S) (dots) and
        (59) (white dashes), each joined to those that have learned one mode more; the path of
        training from small weights is black. (b) Leaving a fixed point: on the path the loss falls
        with the third power of the distance, off it with the second (dashed: these powers), as
        there a head can turn to a mode of larger eigenvalue. (c) In long contexts the loss on the
        path becomes the sum of the eigenvalues not learned, and the final weights Λ⁻¹, both with an
        error of 1/N.""",
        alt="""Left: a lattice of sixteen points, loss against the number of modes learned, with one
        path drawn through it. Middle: fall of the loss against distance on logarithmic axes, two
        bundles of straight lines with slopes two and three. Right: two errors that fall as one over
        the context length.""",
        words=_WORDS.fixed_points,
    ),
)  # fmt: skip

# What small heads do on a plateau: keys and queries turn towards the unlearned modes.
_plateau_alignment = Experiment("plateau_alignment")
_plateau_alignment_source = _plateau_alignment.source(shares="four_inputs")

PLATEAU_ALIGNMENT = (
    Figure(
        "plateau-alignment", "Alignment on plateaus",
        "On a plateau small heads turn towards what is not learned",
        _plateau_alignment_source, _plateau_alignment.figure.draw,
        caption="""The runs of Figure 3, in the population. (a, b) The head that ends the first
        and the one that ends the third plateau, along each eigenvector: the half of its key and
        query that grows and the half that decays, against the phase s = ∫ |v| dt/τ. Dashed, (63)
        and (70): straight lines with slopes ±λ². Along modes that are learned nothing moves. (c)
        Every component of every small head of {seeds} late on its plateau, predicted from early
        on it. The printed third term of (70) makes key and query equal on learned modes, which they
        are not.""",
        alt="""Two panels with weights on a logarithmic axis against phase: straight rising and
        falling lines with dashed theory on top; on the third plateau two pairs are level. Right:
        predicted against measured weights, dots on the diagonal and crosses scattered off it.""",
        words=_WORDS.alignment,
    ),
)  # fmt: skip

# Softmax attention: one drop with merged key and query, several with separate ones.
_softmax_drops = Experiment("softmax_drops")
_softmax_drops_source = _softmax_drops.source()

SOFTMAX_DROPS = (
    Figure(
        "v2-softmax", "Softmax", "Softmax attention drops too, at its own times",
        _softmax_drops_source, _softmax_drops.figure.draw,
        caption="""The set-ups of Figures 1 and 3 with softmax attention: merged key and query still
        learn in one drop, separate ones in several. The plateaus lie near the levels of linear
        attention, but the drops come close together{linear}.""",
        alt="""Two panels of loss over training for softmax attention: one drop for merged key and
        query, several for separate ones, which follow one another faster than those of linear
        attention.""",
        live=tuple(
            Live(
                kind, f"{kind}_linear", f"{kind}_levels", time=f"{kind}_time", title=kind,
                dashed="linear attention from the same start on the same data", runs="seed",
            )
            for kind in ("merged", "separate")
        ),
        words=_WORDS.softmax,
    ),
)  # fmt: skip

# The scale of the initial weights.
_init_scale = Experiment("init_scale")
_init_scale_source = _init_scale.source()

INIT_SCALE = (
    Figure(
        "v2-init", "Init scale", "The scale of the initial weights",
        _init_scale_source, _init_scale.figure.draw,
        caption="""Init scales from {smallest} to {largest}: smaller initial weights make every
        plateau longer, large ones leave none, and the loss decays exponentially instead. Dashed:
        predicted from the initial weights; separate plateaus last so long at small scales that they
        are predicted alone.""",
        alt="""Loss over training for many scales of the initial weights, for merged and for
        separate key and query: the smaller the scale, the later the drops.""",
        words=_WORDS.scales,
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

# Contexts of varying length.
_varying_length = Experiment("varying_length")
_varying_length_source = _varying_length.source(shares="four_inputs")

VARYING_LENGTH = (
    Figure(
        "v2-length", "Varying length", "Contexts of varying length",
        _varying_length_source, _varying_length.figure.draw,
        caption="""The loss averaged over context lengths: training shows the same drops, at levels
        that follow from the average of 1/n.""",
        alt="""Loss over training with varying context length, in the same steps, with dotted
        levels.""",
        live=(
            Live("loss", "staircase_loss", "levels", title="separate", runs="seed"),
            Live(
                "merged_loss", "merged_theory", "merged_levels", time="merged_time",
                title="merged", runs="seed",
            ),
        ),
    ),
)  # fmt: skip

# The blocks that the theory sets to zero, on finite data.
_zero_blocks = Experiment("zero_blocks")
_zero_blocks_source = _zero_blocks.source(shares="four_inputs")

ZERO_BLOCKS = (
    Figure(
        "zero-blocks", "Zero blocks", "What the theory sets to zero, and finite data do not",
        _zero_blocks_source, _zero_blocks.figure.draw,
        caption="""The weights that read labels as inputs and inputs as labels stay zero in the
        population. On P sequences they grow to P^(-1/2), and lower the training loss by 1/P:
        measured at convergence, {datasets} of each size.""",
        alt="""Two panels on logarithmic axes against the number of sequences: the size of the extra
        blocks falls with slope minus one half, the loss gained with slope minus one.""",
        words=_WORDS.datasets,
    ),
)  # fmt: skip

# The linear transformer: where it ends, how it gets there (second paper, Figs 1, 2).
_linear_transformer = Experiment("linear_transformer")
_linear_transformer_source = _linear_transformer.source(shares="linear_transformer")

LINEAR_TRANSFORMER = (
    Figure(
        "lt-fig1", "2nd paper, Figure 1", "Where the linear transformer ends",
        _linear_transformer_source, _linear_transformer.figure.draw_fig1,
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
        _linear_transformer_source, _linear_transformer.figure.draw_fig2,
        caption="""Left: the diagonal of p₂q₁ over training, mean of seeds with its standard error,
        the closed form (13) and the exact mean flow. Middle: ‖p₂‖² and ‖q₁‖² mirror one another,
        and their difference stays. Right: the paper's theory conserves p² - q² of every mode; in
        the exact flow it drifts, in a time of order N, until p/q is proportional to √s. Grey line:
        the end of the simulation.""",
        alt="""Left: four rising curves, one per mode, with theory on top. Middle: two mirrored
        curves and their flat sum. Right: four curves that start at zero and separate at long
        times.""",
        live=(
            Live(
                "loss", time="epoch", clock="epochs", lines="a", lines_theory="a_exact",
                ends="a_optimum", lines_name="a = p₂q₁ of each mode", runs="seed",
                dashed="the exact mean flow", model="transformer", loss_name="loss  ½E|y − ŷ|²",
            ),
        ),
    ),
)  # fmt: skip

# Stages of the linear transformer, and their detectors (second paper, Figs 3A, 4).
_linear_transformer_stages = Experiment("linear_transformer_stages", folder=True)
_linear_transformer_stages_source = _linear_transformer_stages.source(shares="linear_transformer")
_HALF_LOSS = "loss  ½E|y − ŷ|²"

LINEAR_TRANSFORMER_STAGES = (
    Figure(
        "lt-fig3", "2nd paper, Figure 3A", "Plateaus and cliffs, and what a short context changes",
        _linear_transformer_stages_source, _linear_transformer_stages.figure.draw_fig3,
        caption="""Left: with well separated eigenvalues the loss falls in one cliff per mode, at
        the times of (13). Middle: at N = 8 training follows the exact mean flow, while the
        decoupled theory (14) has other plateaus and its last cliffs early, because it leaves out
        that learned modes slow the others. Right: the error of the closed form falls as 1/N; that
        of the final loss does not, relative to that loss. Losses with the paper's factor ½.""",
        alt="""Left: a loss with four cliffs and both theories on top. Middle: a loss that the exact
        theory follows and the paper's does not. Right: errors against the context length on
        logarithmic axes, one with slope minus one and one that levels off.""",
        live=(
            Live(
                "loss", "loss_exact", "levels", "drop_paper", time="epoch", clock="epochs",
                tests=(("loss_paper", "closed form (14)"),), lines="a",
                lines_name="a = p₂q₁ of each mode", title="long contexts",
                dashed="the exact mean flow", model="transformer", loss_name=_HALF_LOSS,
            ),
            Live(
                "small_loss", "small_loss_exact", time="small_time", lines="small_a",
                tests=(("small_loss_paper", "closed form (14)"),),
                lines_name="a = p₂q₁ of each mode", title="N = 8",
                dashed="the exact mean flow", model="transformer", loss_name=_HALF_LOSS,
            ),
        ),
    ),
    Figure(
        "lt-fig4", "2nd paper, Figure 4", "Finding the time scales",
        _linear_transformer_stages_source, _linear_transformer_stages.figure.draw_fig4,
        caption="""{modes} in the run on the left of Figure 3A, by the curvature of the
        loss's autocorrelation, of the norm ‖p₂‖, and of the loss itself; dashed: when each mode is
        half learned. The paper's figure names no marks: here they are where a mode has been
        learned, at which a loss bends up and a norm bends down. The norm's maxima, where a mode
        begins to rise, come as much before. Last: effective rank of p₂q₁, without the modes learned
        first.""",
        alt="""Three curvature curves with a marked bend beside each of four dashed lines, and the
        effective rank without 0, 1 and 2 modes, which rises with every mode that is left.""",
        words=_WORDS.modes,
    ),
)  # fmt: skip

# Null blocks of the linear transformer, and escape times (second paper).
_null_blocks = Experiment("null_blocks")
_null_blocks_source = _null_blocks.source(shares="linear_transformer")

NULL_BLOCKS = (
    Figure(
        "lt-blocks", "2nd paper, null blocks",
        "Which blocks are driven to zero, and when modes escape",
        _null_blocks_source, _null_blocks.figure.draw,
        caption="""All blocks of a linear transformer, trained in the population. (a) Where p₁ and
        q₂ start smaller than p₂ and q₁, they are driven to zero. (b) Where they start larger, they
        win: p₁ Σ̂W q₂ predicts as well as p₂ WΣ̂ q₁, and p₂ and q₁ are driven to zero. (c) When each
        mode is half learned, in the exact mean flow, against its start a₀ = p q; lines: the escape
        time (τ_α/2) ln(1/(s∞a₀)).""",
        alt="""Two panels of norms over training on a logarithmic axis: in the first the extra
        blocks rise a little and then decay to nothing, in the second the other two do. Right: four
        sets of dots on straight lines, time against the logarithm of one over the start.""",
    ),
)  # fmt: skip

# Several layers of linear attention: our own theory beyond one layer.
_depth = Experiment("depth", folder=True)
_depth_stairs = _depth.source("_stairs")

DEPTH = (
    Figure(
        "depth-fig1", "Depth, Figure 1", "The least loss of L layers, at finite D and N",
        _depth.source("_losses"), _depth.figure.draw_losses,
        caption="""Layers γ I on white inputs are a polynomial of the context's covariance, and
        their least loss is exact at any D and N: one step for all layers (tied) or one for each
        (untied). Left: against the number of layers, with training from random small steps.
        Middle: the excess over the limit D, N → ∞ falls as 1/D, so that D times it is almost
        constant. Right: against the context. Dotted: the limit, which is far too low at D = 4.""",
        alt="""Left: two falling curves with dots on them, untied below tied, each with a dotted
        curve below it that falls faster. Middle: four almost level lines. Right: three falling
        curves above their dotted limits.""",
    ),
    Figure(
        "depth-fig2", "Depth, Figure 2", "The staircase of two layers, and its path",
        _depth_stairs, _depth.figure.draw_stairs,
        caption="""Two layers of rank-one heads take 2D steps. Left: a run over the levels that the
        theory predicts from its initial weights; each plateau has a pair of ranks. Right: the
        least losses of all pairs and the paths that the starts take; the thick one is on the
        left.""",
        alt="""Left: a loss that falls in four steps onto horizontal lines named by pairs of
        numbers. Right: a lattice of three by three numbers with paths from the lower left to the
        upper right corner.""",
        live=(
            Live(
                "loss", levels="levels", times="predicted_time", runs="seed",
            ),
        ),
    ),
    Figure(
        "depth-fig3", "Depth, Figure 3", "Tied layers are a saddle: untied ones split",
        _depth.source("_splitting"), _depth.figure.draw_splitting,
        caption="""Two white layers. Left: from random small steps one layer takes a large step and
        the other a small one, the roots of (D8); tied layers stay between. Middle: two almost equal
        layers move apart at the rate of the saddle. Right: their losses beside the least ones,
        tied and untied.""",
        alt="""Left: pairs of curves rise together and split onto two dashed lines; one curve stays
        between. Middle: a straight line on a logarithmic axis that levels off. Right: losses that
        end on two levels.""",
    ),
    Figure(
        "depth-fig4", "Depth, Figure 4", "When two layers drop, predicted from their start",
        _depth_stairs, _depth.figure.draw_times,
        caption="""All drops of all starts of Figure 2. Left: simulated against predicted times.
        Right: the distribution of the relative errors of each drop.""",
        alt="""Left: dots on the diagonal of a logarithmic plane. Right: cumulative curves of
        errors, most of them below a thousandth.""",
    ),
    Figure(
        "depth-fig5", "Depth, Figure 5", "Power laws in time, depth and context",
        _depth.source("_laws"), _depth.figure.draw_laws,
        caption="""Spectra λ_k = k^-ν with label power k^(-νβ - 1). Left: deep layers γ I over time;
        one layer has no power law, it saturates (dotted). Middle: infinitely many layers against
        the context, averaged over samples, with the standard error; dashed the limit of long
        contexts and many modes. Right: all exponents, with half the difference of the two halves
        of each fit as error; those of the context are of the limit from 500 pairs on, for
        ν > 1.""",
        alt="""Left: three straight lines on logarithmic axes with dashed lines on them, and dotted
        levels. Middle: falling dots on dashed lines, which get straight. Right: dots with error
        bars on a diagonal.""",
    ),
    Figure(
        "depth-fig6", "Depth, Figure 6", "Outside of its covariance depth is brittle",
        _depth.source("_shift"), _depth.figure.draw_shift,
        caption="""Layers trained at λ = (0.4, 0.3, 0.2, 0.1), N = 31. Left: their losses on this
        and on three other covariances while they train. Right: how far the predictions of two
        layers are from the best one and two preconditioned steps of gradient descent.""",
        alt="""Left: curves that fall together and then part; on the reversed spectrum two layers
        rise to twenty. Right: the distance to one step has a minimum, that to two steps goes to
        zero.""",
    ),
)  # fmt: skip

# Softmax attention from ever smaller weights, beside linear attention.
_softmax_plateaus = Experiment("softmax_plateaus")

SOFTMAX_PLATEAUS = (
    Figure(
        "softmax-fig1", "Softmax, Figure 1", "Softmax attention waits once for small weights",
        _softmax_plateaus.source(), _softmax_plateaus.figure.draw,
        caption="""Softmax and linear attention from the same weights of ever smaller scale w. Left:
        their losses. Middle: the first plateau lasts ∝ 1/w in both. Right: the first drop makes the
        values of all softmax heads of order one, so that their later plateaus last as long as
        ln(1/w); those of linear attention go on growing as 1/w. A line is a start; where one is cut
        short, linear attention does not fall below 0.18 in the time given.""",
        alt="""Left: solid curves that fall once, soon after each other's first drop, and dashed
        staircases that take ten times as long. Middle: two bundles of parallel lines that rise as
        1/w. Right: one bundle that rises as 1/w and far below it another that is almost flat.""",
    ),
)  # fmt: skip

# Transformers on pools of tasks, and linear attention, which cannot tell the pools apart.
_diversity = Experiment("task_diversity")
_diversity_published = Source(
    _diversity.data.compute_published, _diversity.claims.claims, _diversity.claims.controls,
    resumes=True,
)  # fmt: skip

TASK_DIVERSITY = (
    Figure(
        "diversity-fig1", "Task diversity, Figure 1", "How many tasks, and how long",
        _diversity.source(resumes=True), _diversity.figure.draw,
        caption="""Small transformers on prompts of K tasks. Left: whether their predictions are
        nearer to dMMSE, which knows the tasks, or to ridge regression, over training; few tasks are
        memorised soon, more of them later, and many not at all in this time. Middle: distances to
        both on new tasks at the end, and those of linear attention. Right: linear attention knows
        only the second moment of the pool, so that on pools with the same one it trains as on
        infinitely many tasks.""",
        alt="""Left: curves that begin near ridge; those of few tasks rise to dMMSE, those of many
        stay. Middle: the distance to ridge falls below that to dMMSE as tasks are added. Right: the
        losses of all pools lie on one dashed curve; dotted ones of other pools do not.""",
        group="diversity",
    ),
    Figure(
        "diversity-published", "Task diversity at the published size", "The same at full size",
        _diversity_published, _diversity.figure.draw,
        caption="""As Figure 1 of task diversity, at the sizes and with the schedule of Raventós et
        al. (2023): D = 8, eight layers of width 128, half a million steps.""",
        alt="""As Figure 1 of task diversity: preference over training, distances at the end, and
        linear attention.""",
        group="diversity-published",
    ),
)  # fmt: skip

BY_NAME: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        *ABRUPT_DROP,
        *SCHEMATICS,
        *SADDLE_TO_SADDLE,
        *LOW_RANK,
        *IN_WEIGHT,
        *ALIGNMENT,
        *FIXED_POINTS,
        *PLATEAU_ALIGNMENT,
        *SOFTMAX_DROPS,
        *INIT_SCALE,
        *VARYING_LENGTH,
        *ZERO_BLOCKS,
        *LINEAR_TRANSFORMER,
        *LINEAR_TRANSFORMER_STAGES,
        *NULL_BLOCKS,
        *DEPTH,
        *SOFTMAX_PLATEAUS,
        *in_context_emergence.FIGURES,
        *grokking.FIGURES,
        *TASK_DIVERSITY,
        *field.FIGURES,
    )
}
