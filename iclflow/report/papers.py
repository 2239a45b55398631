"""The papers: which figures are theirs, in order, and what the published code needs for them."""

import dataclasses

from iclflow.experiments import (
    abrupt_drop,
    alignment,
    grokking,
    in_context_emergence,
    in_weight,
    init_scale,
    linear_transformer,
    linear_transformer_stages,
    low_rank,
    saddle_to_saddle,
    schematics,
    softmax_drops,
    varying_length,
    zero_blocks,
)
from iclflow.experiments.entry import Figure

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@dataclasses.dataclass(frozen=True)
class Published:
    """What the published code needs for a figure on 2 CPU cores, in seconds.

    `note` says how our computation differs; where it is another problem than the published one
    (`alike` false) the two times stand side by side without a ratio.
    """

    label: str
    figures: tuple[str, ...]
    seconds: float
    note: str = ""
    alike: bool = True


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper, its figures in the order of the page, and times of its code."""

    title: str
    byline: str  # authors, place and year
    arxiv: str
    figures: tuple[Figure, ...]
    published: tuple[Published, ...] = ()


_FIG3, _FIG7 = saddle_to_saddle.FIGURES
_FIG4, _FIG8, _FIG9 = low_rank.FIGURES
_FIG5, _FIG10 = in_weight.FIGURES
_FLOW = "here by gradient flow with adaptive steps, not descent"

PAPERS = (
    Paper(
        "Training Dynamics of In-Context Learning in Linear Attention",
        "Y. Zhang, A. K. Singh, P. E. Latham and A. M. Saxe, ICML 2025",
        "2501.16265",
        (
            *abrupt_drop.FIGURES, *schematics.FIGURES, _FIG3, _FIG4, _FIG5, *alignment.FIGURES,
            _FIG7, _FIG8, _FIG9, _FIG10, *softmax_drops.FIGURES, *init_scale.FIGURES,
            *varying_length.FIGURES, *zero_blocks.FIGURES,
        ),
        (
            Published("Fig. 1", ("fig1",), 26 * MINUTE),
            Published("Fig. 3a", ("fig3",), 2.9 * DAY),
            Published("Fig. 4", ("fig4",), 66 * DAY, _FLOW),
            Published("Fig. 9", ("fig9",), 73 * DAY, _FLOW),
            Published(
                "Figs 5 and 10", ("fig5", "fig10"), 3.4 * HOUR,
                "here in the population; only the 60% portion also on sampled sequences",
                alike=False,
            ),
        ),
    ),
    Paper(
        "Exact Learning Dynamics of In-Context Learning in Linear Transformers and Its Application "
        "to Non-Linear Transformers",
        "N. Mainali and L. Teixeira, 2025",
        "2504.12916",
        (
            *linear_transformer.FIGURES, *linear_transformer_stages.FIGURES,
            *in_context_emergence.FIGURES, *grokking.FIGURES,
        ),
    ),
)  # fmt: skip
