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
        two succeed. Below: subspace distance (16) of QK and OV to their last weights, mean over
        heads; shaded, the drop of the in-context score.""",
        alt="""Three panels: the late loss of one layer levels off while that of deeper models drops
        sharply; accuracy and induction heads rise at the same step; on Markov chains two layers
        follow the Bayes-optimal loss and one does not. Below, a panel a depth: two falling curves
        of subspace distance with the drop shaded.""",
        group="nonlinear",
        live=(
            Live(
                "late_loss", time="step", clock="training steps", panels="layers",
                title="layers: ", runs="seed", loss_name="loss late in the context, nats",
                lines="accuracy", lines_name="accuracy where the segment has been seen",
            ),
        ),
    ),
    Figure(
        "lt-fig6", "2nd paper, Figure 6", "Ranks and induction heads over training",
        _SOURCE, _HERE.figure.draw_fig6,
        caption="""The models of Figure 5. Above: effective rank (15) of QK and OV, mean over heads,
        over its start. Below: prefix-matching score of every head of the first seed, coloured by
        layer. Shaded, the drop of the in-context score.""",
        alt="""A column a depth: above, the effective rank of QK and OV, which changes by some per
        cent around the shaded drop; below, the scores of the heads, of which some jump up in the
        shaded drop in models of two and more layers.""",
        group="nonlinear",
    ),
)  # fmt: skip
