"""What small heads do on a plateau: keys and queries turn towards the unlearned modes."""

from iclflow.experiments.entry import Figure, Folder

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")

FIGURES = (
    Figure(
        "plateau-alignment", "Alignment on plateaus",
        "On a plateau small heads turn towards what is not learned",
        _SOURCE, _HERE.figure.draw,
        caption="""The runs of Figure 3, in the population. (a, b) The head that ends the first
        and the one that ends the third plateau, along each eigenvector: the half of its key and
        query that grows and the half that decays, against the phase s = ∫ |v| dt/τ. Dashed, (63)
        and (70): straight lines with slopes ±λ². Along modes that are learned nothing moves. (c)
        Every component of every small head of six seeds late on its plateau, predicted from early
        on it. The printed third term of (70) makes key and query equal on learned modes, which they
        are not.""",
        alt="""Two panels with weights on a logarithmic axis against phase: straight rising and
        falling lines with dashed theory on top; on the third plateau two pairs are level. Right:
        predicted against measured weights, dots on the diagonal and crosses scattered off it.""",
    ),
)  # fmt: skip
