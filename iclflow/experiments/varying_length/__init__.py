"""Contexts of varying length."""

from iclflow.experiments.entry import Figure, Folder, Live

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")

FIGURES = (
    Figure(
        "v2-length", "Varying length", "Contexts of varying length",
        _SOURCE, _HERE.figure.draw,
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
