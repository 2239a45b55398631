"""Numbers that other groups published with their code, recomputed: a figure per group."""

from iclflow.experiments.base import Experiment, Figure, Source

_HERE = Experiment("field", folder=True)
_BAND = """Each dot is a cell of a table: their number minus ours, in standard errors of the
difference. Crosses are ours with one deliberate mistake, the negative control, which must leave
the grey band; the scorecard says which mistake it is."""
_ALT = """A panel per table. Blue dots scatter about zero inside a grey band of four standard
errors; grey crosses lie outside it."""


def _figure(group: str, label: str, title: str, caption: str) -> Figure:
    source = Source(
        getattr(_HERE.data, f"compute_{group}"), _HERE.claims.claims, _HERE.claims.controls
    )
    return Figure(
        f"field-{group}", label, title, source, _HERE.figure.draw, f"{caption} {_BAND}", _ALT,
        group="field",
    )  # fmt: skip


FIGURES = (
    _figure(
        "staircase", "Kunin et al. 2025", "A training run with four drops, from its weights",
        """The loss of stochastic descent at the printed steps, beside the theory from the same
        initial weights.""",
    ),
    _figure(
        "pools", "Lu et al. 2025", "Ridge end points and Bayes predictors on pools of tasks",
        """The error of one matrix at its ridge minimum, on new tasks and on the pool, against
        prompts, context and tasks; the gap between the two errors; and dMMSE.""",
    ),
    _figure(
        "shifted", "Letey et al. 2025", "The task covariance or the length of the test is another",
        """Trained on one covariance or length, tested on others.""",
    ),
    _figure(
        "tokens", "Letey et al. 2026, Li et al. 2024", "Inputs with memory",
        """Tokens that are correlated along the context, with the query or without.""",
    ),
    _figure(
        "spins", "Li et al. 2024", "One matrix, Adam and weight decay",
        """Ridge minima against the context length, ends of Adam from large weights, and the exact
        error of published weights.""",
    ),
    _figure(
        "softmax", "He et al. 2025", "Heads of softmax attention, given and trained",
        """Two heads of opposite sign, one head, one step of gradient descent and ridge, at every
        length of the context.""",
    ),
    _figure(
        "depth", "Ahn et al. 2023", "Three layers of linear attention, trained by Adam",
        """The training loss of layers that move inputs and labels.""",
    ),
    _figure(
        "curves", "Hoogland et al. 2024, Chen et al. 2024", "Curves of transformers",
        """The error of the Bayes predictor behind curves by position, and drops that are found.""",
    ),
)  # fmt: skip
