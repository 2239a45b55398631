"""The slope that several groups of points share, with a bootstrap interval over the groups."""

import dataclasses

import numpy as np
import scipy
from jaxtyping import Float

RESAMPLES = 4000


@dataclasses.dataclass(frozen=True)
class SharedSlope:
    """A slope with its interval, and what it rests on.

    - `slope`, `low`, `high`: least squares, and the ends of the bootstrap interval.
    - `groups`: how many groups had points at two places or more.
    - `missing`: how many points of the groups were not finite, and were left out.
    """

    slope: float
    low: float
    high: float
    groups: int
    missing: int

    def __str__(self) -> str:
        return f"{self.slope:.3f} ({self.low:.3f} to {self.high:.3f})"


def shared_slope(
    x: Float[np.ndarray, " P"],
    y: Float[np.ndarray, "P G"],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> SharedSlope:
    """The slope b of y = a_g + b x, with an intercept of its own for each group g.

    - `x`: the places, [P].
    - `y`: what was measured there, [P, G]; points that are not finite are left out.
    - `confidence`: the probability that the interval covers the slope.
    - `resamples`: how many times the groups are drawn again, with replacement.
    - `seed`: of these draws, so that the same data give the same interval.

    A group is what was measured on one start, or one seed: its points share what that start has of
    its own, so whole groups are drawn again and never single points. Intervals from a few groups
    are too short when they end at the plain quantiles. So the quantiles are moved outwards to those
    at which the interval of a mean of G normal numbers has the right size (Student's t with G - 1
    degrees of freedom). With one group there is no interval, and its ends are NaN.

    >>> import numpy as np
    >>> from iclflow.measures import shared_slope
    >>> x = np.log([0.01, 0.1, 1.0])
    >>> found = shared_slope(x, np.array([3.0, 5.0, 4.0]) - 2 * x[:, None])
    >>> round(found.slope, 12), round(found.low, 12)
    (-2.0, -2.0)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    finite = np.isfinite(y)
    missing = int(np.sum(~finite))
    count = finite.sum(axis=0)
    places = np.where(finite, x[:, None], 0.0)
    values = np.where(finite, y, 0.0)
    share = np.maximum(count, 1)
    away = np.where(finite, x[:, None] - places.sum(axis=0) / share, 0.0)
    above = np.where(finite, values - values.sum(axis=0) / share, 0.0)
    product, square = (away * above).sum(axis=0), (away**2).sum(axis=0)
    usable = square > 0
    product, square = product[usable], square[usable]
    groups = int(usable.sum())
    if groups == 0:
        return SharedSlope(np.nan, np.nan, np.nan, 0, missing)
    slope = float(product.sum() / square.sum())
    if groups == 1:
        return SharedSlope(slope, np.nan, np.nan, 1, missing)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples)
    slopes = (drawn @ product) / (drawn @ square)
    tail = scipy.special.stdtrit(groups - 1, (1 - confidence) / 2) * np.sqrt(groups / (groups - 1))
    low, high = np.quantile(slopes, [scipy.special.ndtr(tail), scipy.special.ndtr(-tail)])
    return SharedSlope(slope, float(low), float(high), groups, missing)
