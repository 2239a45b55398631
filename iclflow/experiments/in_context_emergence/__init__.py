"""In-context learning emerges with the second layer (second paper, Figs 5, 6)."""

from iclflow.experiments.base import Experiment, Figure, Live

_HERE = Experiment("in_context_emergence", folder=True)
_SOURCE = _HERE.source(resumes=True)

FIGURES = (
    Figure(
        "lt-fig5", "2nd paper, Figure 5", "In-context learning emerges with the second layer",
        _SOURCE, _HERE.figure.draw_fig5,
        caption="""Attention-only transformers on tokens repeated with a period drawn for each
        sequence. Above: the loss late in the context; accuracy where the segment has been seen
        before, and the best prefix-matching score of a head; and, for other models trained on
        Markov chains, the loss at every position beside the best possible. One layer fails where
        two succeed. Below, by depth: the subspace distance (16) of QK and OV to their last weights
        in a training of the usual kind, whose rate falls to zero soon after the emergence, and in a
        long one at a constant rate, where it measures the drift after everything is learned. Last
        row: the speed of the subspaces, which needs no last weights. Every seed is a line; dotted,
        the same training on text with nothing to copy; shaded, the drop of the in-context
        score.""",
        alt="""Three panels: the late loss of one layer levels off while that of deeper models drops
        sharply; accuracy and induction heads rise at the same step; on Markov chains two layers
        follow the Bayes-optimal loss and one does not. Below, a panel per depth in three rows:
        distances that fall most of their way before the shaded drop ends, distances that fall long
        after it, and speeds with a sharp peak in it, which the dotted lines do not have.""",
        group="nonlinear",
        live=(
            Live(
                "usual_late_loss", time="usual_step", clock="training steps", panels="layers",
                title="layers: ", runs="seed", loss_name="loss late in the context, nats",
                lines="usual_accuracy", lines_name="accuracy where the segment has been seen",
            ),
        ),
    ),
    Figure(
        "lt-fig6", "2nd paper, Figure 6", "Ranks and induction heads over training",
        _SOURCE, _HERE.figure.draw_fig6,
        caption="""The models of Figure 5. Above: effective rank (15) of QK and OV, mean over heads,
        over its start, in the training of the usual kind and in the long one at a constant rate.
        The rank of QK dips in the drop where there are several layers. Below: prefix-matching score
        of every head of the first seed, coloured by layer. Dotted, text with nothing to copy;
        shaded, the drop of the in-context score.""",
        alt="""A column per depth: above, effective ranks that change by some per cent, that of QK
        falling in the shaded drop and rising a little after it where there are several layers;
        below, the scores of the heads, of which some jump up in the shaded drop in models of two
        and more layers.""",
        group="nonlinear",
    ),
)  # fmt: skip
