"""The solver of a fused flow at loose tolerances: a stabilised explicit pair of orders 4 and 3.

A flow of weights that have been learned has a slope with real negative eigenvalues, and stability
bounds an explicit step by the largest of them. These eight stages are stable up to h|λ| = 19.7, 5.6
times as far as the six of Tsitouras, and their weights are those of A. Abdulle, "Fourth order
Chebyshev methods with recurrence relation", SIAM Journal on Scientific Computing 23 (2002)
2041-2054, in the tables of its program ROCK4. A test finds the orders of the step and of the
estimate by the slopes of their errors, and the end of the stable interval.
"""

from typing import Any

# g_0 = y, g_1 = y + h FIRST f(y), then g_i = h μ f(g_{i-1}) + (1 + κ) g_{i-1} - κ g_{i-2}.
FIRST = 0.05345766591735225
RECURRENCE = [
    (0.06421114488497465, 0.006297251335072349),
    (0.07361067001944596, 0.02954244012876854),
    (0.08450213007949955, 0.06370198138618569),
]
# From the last of them, u, four stages at u + h Σ_j A[i][j] k_j; the end is u + h Σ_j END_j k_j.
A = [
    [],
    [-0.177747282156689],
    [0.47559889085897, -0.236544145857569],
    [0.0357873367680739, -0.0561802405454197, 0.498502393780149],
]
END = [0.655616700297981, -0.238808679740035, -0.342918097601918, 0.643274312048176]
# The end of the pair of order 3, whose last slope is the one at the end of the step.
OTHER = [
    0.980171201303714,
    -0.394437889689979,
    -0.517381582925487,
    0.601142288908999,
    0.0476702174069568,
]
# The error of a step, estimated: h Σ_j ERROR[j] k_j.
ERROR = [a - b for a, b in zip(OTHER, [*END, 0.0], strict=True)]
ORDER = 4
REACH = 19.7  # of the stable interval

# Where stability bounds the steps of Tsitouras, as it does at loose tolerances, their errors are
# smaller than the tolerance. They stay at about that of MOST (D = 2 to 8, population). A stabilised
# step is not bounded so, and is given a smaller tolerance for errors of the same size.
MOST = 6e-6


def strict(tolerance: Any) -> Any:
    """The tolerance of stabilised steps whose errors are those of Tsitouras at another one."""
    return tolerance / (1 + tolerance / MOST)
