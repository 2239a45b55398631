"""One run in the words of several codes: rate, init and clock under each convention."""

import dataclasses
import enum

from iclflow.published.weights import InitConvention
from iclflow.results.messages import require_choice
from iclflow.study.flags import Options
from iclflow.tasks.base import Normaliser

FACTORS = {"merged": 2, "separate": 3}  # weights that multiply in one term of the prediction


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes that conversions depend on.

    - `model`: `merged` or `separate` key and query.
    - `heads`, `rank`: H and R; merged attention has no rank.
    - `dim`, `context`: D and N, labelled pairs without the query.
    """

    model: str = "separate"
    heads: int = 5
    rank: int = 1
    dim: int = 4
    context: int = 31

    def __post_init__(self) -> None:
        require_choice("model", self.model, list(FACTORS))
        for name in ("heads", "rank", "dim", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.model == "merged" and self.rank != 1:
            raise ValueError("rank does nothing with model merged; leave it out")

    def divisor(self, normaliser: Normaliser) -> int:
        """What attention divides its sum over tokens by, at one fixed length."""
        known = {Normaliser.TOKENS: self.context + 1, Normaliser.NONE: 1}
        return known.get(normaliser, self.context)


class Convention(enum.Enum):
    """What a number called init means, and by what attention divides unless it is said.

    `ICLFLOW`: the norm w of each layer (34)(36), over N. `PUBLISHED`, `NEWEST`: the published code
    when its figures were made and now (`InitConvention`), over nothing. `TORCH`: multiples of the
    default of `torch.nn.Linear` on tokens of D + 1 numbers, of standard deviation 1/√(3(D+1)), over
    nothing. `ENTRIES`: the standard deviation of every entry, over N.
    """

    ICLFLOW = "iclflow"
    PUBLISHED = "published"
    NEWEST = "published-newest"
    TORCH = "torch"
    ENTRIES = "entries"

    @property
    def normaliser(self) -> Normaliser:
        """What attention divides by, unless it is said."""
        sums = (Convention.PUBLISHED, Convention.NEWEST, Convention.TORCH)
        return Normaliser.NONE if self in sums else Normaliser.PAIRS

    def unit(self, shape: Shape) -> tuple[float, float]:
        """Standard deviations of an entry at init 1: value weights, and the other layer(s)."""
        heads, rank, dim = shape.heads, shape.rank, shape.dim
        if self is Convention.ENTRIES:
            return 1.0, 1.0
        if self is Convention.TORCH:
            default = (3 * (dim + 1)) ** -0.5
            return default, default
        if self is Convention.ICLFLOW:
            others = rank * dim if shape.model == "separate" else dim**2
            return heads**-0.5, (heads * others) ** -0.5
        kind = "attnS" if shape.model == "separate" else "attnM"
        options = Options(model=kind, head_num=heads, rank=rank, in_dim=dim, init=1.0)
        newest = self is Convention.NEWEST
        return (InitConvention.NEWEST if newest else InitConvention.FIGURES).deviations(options)


@dataclasses.dataclass(frozen=True)
class Stated:
    """A run of plain gradient descent as one code states it.

    Linear attention of one output and one fixed length: then conventions are rescalings of one
    another (E8), and a converted run has the same loss at every step. Weights of code that divides
    by F are F^(1/k) times those of code that divides by nothing and rates F^(2/k) times, with k = 3
    factors in a term of the prediction (separate) or 2 (merged).

    - `shape`: the sizes of the model.
    - `convention`: what `init` means.
    - `rate`: η of W ← W - η ∂(loss)/∂W.
    - `init`: of the value weights, and of the other layer(s); one number for both.
    - `normaliser`: what attention divides by; that of the convention if omitted.
    - `loss_factor`: c of the loss c·E(y - ŷ)²; ½ in much code.

    >>> from iclflow.published import Convention, Shape, Stated
    >>> fig3 = Stated(Shape(heads=5), Convention.PUBLISHED, rate=0.02, init=(0.01, 0.01))
    >>> here = fig3.to(Convention.ICLFLOW)
    >>> f"rate {here.rate:.3f}, w {here.init[0]:.3f} and {here.init[1]:.3f}"
    'rate 0.197, w 0.070 and 0.063'
    """

    shape: Shape
    convention: Convention = Convention.ICLFLOW
    rate: float = 0.1
    init: tuple[float, float] = (0.01, 0.01)
    normaliser: Normaliser | None = None
    loss_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.normaliser is None:
            object.__setattr__(self, "normaliser", self.convention.normaliser)
        for name in ("rate", "loss_factor"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not all(0 <= one < float("inf") for one in self.init):
            raise ValueError(f"init must be at least 0, got {self.init}")

    @property
    def divisor(self) -> int:
        """F, what attention divides by."""
        assert self.normaliser is not None
        return self.shape.divisor(self.normaliser)

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviation of an entry: of the value weights, and of the other layer(s)."""
        values, others = self.convention.unit(self.shape)
        return self.init[0] * values, self.init[1] * others

    @property
    def clock(self) -> float:
        """t/τ of one step: 2 η in the paper's normalisation and without ½."""
        return 2 * self.to(Convention.ICLFLOW).rate

    def to(
        self,
        convention: Convention,
        *,
        normaliser: Normaliser | None = None,
        loss_factor: float = 1.0,
    ) -> "Stated":
        """The same run in the words of another code."""
        factors = FACTORS[self.shape.model]
        wanted = convention.normaliser if normaliser is None else normaliser
        ratio = self.shape.divisor(wanted) / self.divisor
        rate = self.rate * self.loss_factor / loss_factor * ratio ** (2 / factors)
        units = zip(self.deviations, convention.unit(self.shape), strict=True)
        values, others = (ratio ** (1 / factors) * said / unit for said, unit in units)
        return Stated(self.shape, convention, rate, (values, others), wanted, loss_factor)
