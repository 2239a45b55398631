"""Grokking, and which measures move first (second paper, Figs 3B, 7)."""

from iclflow.experiments.base import Experiment, Figure, Live

_HERE = Experiment("grokking", folder=True)
_SOURCE = _HERE.source(resumes=True)

FIGURES = (
    Figure(
        "lt-fig7", "2nd paper, Figures 3B and 7", "Grokking: who moves when the model generalises",
        _SOURCE, _HERE.figure.draw,
        caption="""A transformer of one layer learns a + b mod p on some of the pairs, others a - b.
        (a, b) They memorise them at once and answer the others long after. (c) to (f) Measures of
        every seed of the first task, on a clock on which 95% of the test pairs are right at 1;
        shaded, the middle half of the test loss's drop. (g, h) When each measure has made half of
        its change since memorising, against 95% test accuracy and against half of the test loss's
        change. Full dots: the change is taken to end soon after generalisation; hollow ones: at the
        end of the run, which includes the clean-up that follows.""",
        alt="""Training and test loss and accuracy of several seeds over training on a logarithmic
        axis, the test accuracy rising long after the training accuracy; four panels of measures
        around the step of generalisation; below, one row of dots per measure, left or right of a
        line at 1, on two clocks side by side.""",
        group="nonlinear",
        live=(
            Live(
                "train_loss", time="step", clock="training steps", panels="task", runs="seed",
                tests=(("test_loss", "test"),), loss_name="loss, nats", lines="test_accuracy",
                lines_name="test accuracy",
            ),
        ),
    ),
)  # fmt: skip
