"""Null blocks of the linear transformer, and escape times (second paper)."""

from iclflow.experiments.entry import Figure, Folder

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="linear_transformer")

FIGURES = (
    Figure(
        "lt-blocks", "2nd paper, null blocks",
        "Which blocks are driven to zero, and when modes escape",
        _SOURCE, _HERE.figure.draw,
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
