"""How a thread of a fused flow makes a step in CUDA: the stages of a pair as a table.

A thread has rows of numbers as long as its weights. Row 0 has the weights at the beginning of the
step, row 1 their slope. A stage adds up rows, may keep the sum in a row, and writes the slope there
into another one. Rows are used again as soon as nobody reads them, since all rows of all threads
have to fit into the first cache of a processor.
"""

from typing import NamedTuple

from iclflow.runs.fused import rock4, tsit5
from iclflow.runs.fused.steps_cpp import dense_weights, hermite_weights


class RowStage(NamedTuple):
    """One stage: the slope at a sum of rows.

    - `terms`: (row, fixed, width): a row is multiplied by `fixed` plus `width` times the step.
    - `keep`: the row that gets the sum, or -1.
    - `to`: the row that gets the slope.
    """

    terms: list[tuple[int, float, float]]
    keep: int
    to: int


class RowStepping(NamedTuple):
    """The stages of a pair.

    - `order`: of the pair.
    - `rows`: how many rows it needs.
    - `stages`: the last one keeps the end of the step and has the slope there.
    - `error`: (row, weight): the estimated error is their sum times the size of the step.
    - `dense`: (row, factor in θ and `size`): their sum is what lies inside the step.
    """

    order: int
    rows: int
    stages: list[RowStage]
    error: list[tuple[int, float]]
    dense: list[tuple[int, str]]


def explicit(kind: str) -> RowStepping:
    """The pair of Tsitouras: a row per slope, and one for the end."""
    count = len(tsit5.A)
    stages = [
        RowStage(
            [(0, 1.0, 0.0), *((1 + j, 0.0, a) for j, a in enumerate(row))],
            count + 1 if n == count - 1 else -1,
            1 + n,
        )
        for n, row in enumerate(tsit5.A)
        if n
    ]
    dense = [(0, f"{kind}(1)"), *enumerate(dense_weights(kind), 1)]
    error = list(enumerate(tsit5.ERROR, 1))
    return RowStepping(tsit5.ORDER, count + 2, stages, error, dense)


def stabilised(kind: str) -> RowStepping:
    """The stabilised pair of Abdulle: two rows take turns, then the slopes of the last stages."""
    count = len(rock4.RECURRENCE) + 1
    ends = len(rock4.END)
    base, first, spare = 2, 3, 2 + ends  # the last stages begin at `base`; slopes are from `first`
    place = [(base, spare)[(count - n) % 2] if n else 0 for n in range(count + 1)]
    stages = [RowStage([(0, 1.0, 0.0), (1, 0.0, rock4.FIRST)], place[1], first)]
    stages += [
        RowStage(
            [(first, 0.0, mu), (place[n - 1], 1 + kappa, 0.0), (place[n - 2], -kappa, 0.0)],
            place[n],
            first,
        )
        for n, (mu, kappa) in enumerate(rock4.RECURRENCE, 2)
    ]
    for n, row in enumerate([*rock4.A[1:], rock4.END], 1):
        terms = [(base, 1.0, 0.0), *((first + j, 0.0, a) for j, a in enumerate(row))]
        stages.append(RowStage(terms, base if n == ends else -1, first + n))
    y, end, before, after = hermite_weights(kind)
    dense = [(0, y), (base, end), (1, before), (first + ends, after)]
    error = list(enumerate(rock4.ERROR, first))
    return RowStepping(rock4.ORDER, first + ends + 1, stages, error, dense)
