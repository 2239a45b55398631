"""Grokking, and which measures move first (second paper, Figs 3B, 7)."""

from iclflow.experiments.base import Experiment, Figure, Live

_HERE = Experiment("grokking", folder=True)
_SOURCE = _HERE.source(resumes=True)

FIGURES = (
    Figure(
        "lt-fig7", "2nd paper, Figures 3B and 7", "Grokking: who moves before the test loss",
        _SOURCE, _HERE.figure.draw,
        caption="""A transformer of one layer learns a + b mod p on some of the pairs. (a, b) It
        memorises them at once and answers the others long after. (c) to (f) Measures of every seed,
        on a clock on which half of the test loss's drop is at 1; shaded, the middle half of the
        drop. (g) When each measure has made half of its change since memorising: the paper's
        measures of OV, and beside them the norm of the weights and how much of the embedding is in
        few frequencies.""",
        alt="""Training and test loss and accuracy of several seeds over training on a logarithmic
        axis, the test accuracy rising long after the training accuracy; four panels of measures
        around the drop of the test loss; below, one row of dots a measure, left or right of a line
        at 1.""",
        group="nonlinear",
        live=(
            Live(
                "train_loss", time="step", clock="training steps", runs="seed",
                tests=(("test_loss", "test"),), loss_name="loss, nats", lines="test_accuracy",
                lines_name="test accuracy",
            ),
        ),
    ),
)  # fmt: skip
