"""All 2^D fixed points: their losses, which are left and how, and the limit of long contexts."""

from iclflow.experiments.entry import Figure, Folder

_HERE = Folder(__name__)
_SOURCE = _HERE.source(shares="four_inputs")

FIGURES = (
    Figure(
        "fixed-points", "Fixed points", "The fixed points that are visited, and those that are not",
        _SOURCE, _HERE.figure.draw,
        caption="""The task of Figure 3. (a) The loss of all 16 fixed points M(S) (dots) and (59)
        (white dashes), each joined to those that have learned one mode more; the path of training
        from small weights is black. (b) Leaving a fixed point: on the path the loss falls with the
        third power of the distance, off it with the second (dashed: these powers), as there a head
        can turn to a mode of larger eigenvalue. (c) In long contexts the loss on the path becomes
        the sum of the eigenvalues not learned, and the final weights Λ⁻¹, both with an error of
        1/N.""",
        alt="""Left: a lattice of sixteen points, loss against the number of modes learned, with one
        path drawn through it. Middle: fall of the loss against distance on logarithmic axes, two
        bundles of straight lines with slopes two and three. Right: two errors that fall as one over
        the context length.""",
    ),
)  # fmt: skip
