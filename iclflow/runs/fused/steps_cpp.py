"""How the lanes of a fused flow make a step in C++: explicit, stabilised, or linearly implicit.

An implicit step solves eight linear systems with one matrix, 1 - γhJ, which is symmetric since the
slope of a flow is a gradient. Every lane has a matrix of its own, and the matrices of a block lie
side by side as everything else does: one factorisation serves all lanes, in blocks of four rows and
columns whose sums stay in registers. There are no pivots to choose. A matrix that is not positive
belongs to a step in which some direction grows by more than e^4.7, and that step is refused.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from iclflow.runs.fused import rock4, rodas5p, tsit5
from iclflow.runs.fused.cpp import indented
from iclflow.runs.fused.jacobian import Jacobian
from iclflow.runs.fused.program import Written
from iclflow.runs.fused.values import Statement

BLOCK = 4  # rows and columns of the factorisation whose sums are in registers together
PIVOT = 1e-6  # below, a step is refused: the matrix is not safely positive
REFUSED = 1e10  # the squared error of such a step: the next one is a quarter as long
SHARE = 0.57  # of the stable interval: a step that is longer was bounded by stability
ENTRIES = 250  # of the matrix that one function computes


class Stepping(NamedTuple):
    """One way of making steps, as C++.

    - `order`: of the pair.
    - `stages`: how many slopes or increments a step keeps.
    - `rows`: the numbers of each, of all weights and what a solver needs beyond.
    - `members`: what a block has besides.
    - `before`, `functions`: functions of a block, before and after the names of its vectors.
    - `calls`: a step of all lanes, from `y` to `at`.
    - `unit`, `error`: the estimated error of a step is their product, in units of the tolerance.
    - `estimated`: what follows the estimate.
    - `accept`: what a lane that keeps its step does with each weight.
    - `dense`: what the dense output adds to the weights at the beginning: (factor, in θ and `size`;
      what it multiplies, in `from`, `row` and `lane`).
    - `stiffness`: a function, the size of the step times the stiffness that it met in `lane`; none
      where nobody asks.
    - `stable`: above this, stability bounded the step.
    """

    order: int
    stages: int
    rows: int
    members: list[str]
    before: str
    functions: str
    calls: list[str]
    unit: str
    error: str
    estimated: str
    accept: str
    dense: list[tuple[str, str]]
    stiffness: str
    stable: float


def explicit(width: int, kind: str) -> Stepping:
    """Stepping by the pair of Tsitouras, of so many weights of a type."""
    A, error = tsit5.A, tsit5.ERROR
    # The last stage reads all slopes but its own, so that it begins the sum of the error.
    bodies = [f"AT = Y + SIZE * ({combined(row)});" for row in A[1:-1]]
    bodies.append(
        f"const Vector at = Y + SIZE * ({combined(A[-1])}), error = {combined(error[:-1])}; "
        f"AT = at; ERROR = error;"
    )
    stages = [each_weight(f"stage_{n}", body) for n, body in enumerate(bodies, 1)]
    calls = [
        f"stage_{n}(block);\nslope(block, shared, block.at, block.k[{n}]);"
        for n in range(1, len(A))
    ]
    # The last two stages are both at the end of the step, at weights that differ by rounding where
    # nothing is stiff. The ratio of their slopes is the stiffness in the direction between them.
    apart = [a - b for a, b in zip(A[-1], [*A[-2], 0.0], strict=True)]
    change = [0.0] * 5 + [-1.0, 1.0]
    return Stepping(
        order=tsit5.ORDER,
        stages=7,
        rows=width,
        members=[],
        before="",
        functions="".join(stages),
        calls=calls,
        unit="SIZE * VECTOR(block.inverse)",
        error=f"ERROR + real({error[-1]!r}) * K(6)",
        estimated="",
        accept="Y = KEEP ? AT : Y; K(0) = KEEP ? K(6) : K(0);",
        dense=list(zip(dense_weights(kind), kept(7), strict=True)),
        stiffness=met(change, apart),
        stable=SHARE * tsit5.REACH,
    )


def stabilised(width: int, kind: str) -> Stepping:
    """Stepping by the stabilised pair of Abdulle, of so many weights of a type."""
    count, last = len(rock4.RECURRENCE) + 1, len(rock4.END) + 1
    # Two places take turns, so that `other` has the weights from which the last stages start.
    place = [("OTHER", "AT")[(count - n) % 2] if n else "Y" for n in range(count + 1)]
    of = {"Y": "block.y", "AT": "block.at", "OTHER": "block.other"}
    bodies = [f"{place[1]} = Y + SIZE * (real({rock4.FIRST!r}) * K(0));"]
    bodies += [
        f"{place[n]} = SIZE * (real({mu!r}) * K({last})) + real({1 + kappa!r}) * {place[n - 1]}"
        f" - real({kappa!r}) * {place[n - 2]};"
        for n, (mu, kappa) in enumerate(rock4.RECURRENCE, 2)
    ]
    ends = [(of[place[n]], last) for n in range(1, count)]
    ends += [(of[place[count]], 1)]
    for n, row in enumerate(rock4.A[1:], 2):
        bodies.append(f"AT = OTHER + SIZE * ({combined(row, 1)});")
        ends.append(("block.at", n))
    bodies.append(
        f"AT = OTHER + SIZE * ({combined(rock4.END, 1)}); ERROR = {combined(rock4.ERROR[:-1], 1)};"
    )
    ends.append(("block.at", last))
    # The estimate is a sum of slopes whose weights add up to zero: the slope of such a sum of the
    # stages, where the flow is linear. The ratio of both is the stiffness in its direction.
    change = [0.0, *rock4.ERROR]
    rows = [*rock4.A, rock4.END]
    apart = [0.0] + [
        sum(e * row[j] for e, row in zip(rock4.ERROR, rows, strict=True) if j < len(row))
        for j in range(len(rock4.END))
    ]
    _, end, before, after = hermite_weights(kind)
    return Stepping(
        order=rock4.ORDER,
        stages=last + 1,
        rows=width,
        members=["alignas(64) real other[WEIGHTS][LANES];"],
        before="",
        functions="#define OTHER VECTOR(block.other[row])\n"
        + "".join(each_weight(f"stage_{n}", body) for n, body in enumerate(bodies, 1)),
        calls=[
            f"stage_{n}(block);\nslope(block, shared, {at}, block.k[{to}]);"
            for n, (at, to) in enumerate(ends, 1)
        ],
        unit="SIZE * VECTOR(block.inverse)",
        error=f"ERROR + real({rock4.ERROR[-1]!r}) * K({last})",
        estimated="",
        accept=f"Y = KEEP ? AT : Y; K(0) = KEEP ? K({last}) : K(0);",
        dense=[
            (end, "(from.at[row][lane] - from.y[row][lane])"),
            (before, kept(1)[0]),
            (after, kept(last + 1)[last]),
        ],
        stiffness=met(change, apart),
        stable=SHARE * rock4.REACH,
    )


def kept(count: int) -> list[str]:
    """The slopes or increments of a step, as the dense output reads them."""
    return [f"from.k[{j}][row][lane]" for j in range(count)]


def met(change: list[float], apart: list[float]) -> str:
    """The size of a step times the stiffness between two sums of its stages.

    - `change`: the weights of the slopes in the difference of the slopes of these sums.
    - `apart`: the weights of the slopes in the difference of the sums, over the size of the step.
    """
    sums = (
        " + ".join(f"real({c!r}) * block.k[{j}][row][lane]" for j, c in enumerate(some) if c)
        for some in (change, apart)
    )
    return """
static double stiffness(const Block& block, int lane) {{
    double slopes = 0, weights = 0;
    for (int row = 0; row < WEIGHTS; row++) {{
        const double change = {}, apart = {};
        slopes += change * change;
        weights += apart * apart;
    }}
    return sqrt(slopes / weights);
}}
""".format(*sums)


def hermite_weights(kind: str) -> list[str]:
    """The weights of the cubic of Hermite: of both ends of a step, and of the slopes there."""
    end = "theta * theta * (3 - 2 * theta)"
    return [
        f"{kind}(1 - {end})",
        f"{kind}({end})",
        f"{kind}(size * theta * (1 - theta) * (1 - theta))",
        f"{kind}(-size * theta * theta * (1 - theta))",
    ]


def dense_weights(kind: str) -> list[str]:
    """The weights of the slopes in the dense output, as functions of θ and the size of a step."""
    found = []
    for n, (leading, rest) in enumerate(tsit5.DENSE):
        inner = repr(rest[-1])
        for c in reversed(rest[:-1]):
            inner = f"({inner}) * theta + {c!r}"
        power = "theta" if n == 0 else "theta * theta"
        found.append(f"{kind}(size * {leading!r} * {power} * ({inner}))")
    return found


def implicit(
    width: int, kind: str, written: Written, known: Jacobian, places: dict[str, str]
) -> Stepping:
    """Stepping by Rodas5P, of so many weights of a type.

    - `places`: where the weights and the arrays of a run are stored.
    """
    rows = -(-width // BLOCK) * BLOCK
    A, C = rodas5p.A, rodas5p.C
    stages = [
        each_weight(
            f"stage_{n}",
            f"AT = {'Y' if n < 6 else 'AT'} + {combined(row) if n < 6 else f'K({n - 1})'};",
        )
        for n, row in enumerate(A)
        if n
    ]
    stages.append(each_weight("finish", f"AT = AT + K({len(A) - 1});"))
    mixes = [
        each_weight(
            f"mix_{n}",
            f"K({n}) = real({rodas5p.GAMMA!r}) * (SIZE * ERROR"
            f"{''.join(f' + real({c!r}) * K({j})' for j, c in enumerate(row))});",
        )
        for n, row in enumerate(C)
    ]
    matrix, calls = _matrix(rows, written, known, places)
    calls.append("factorise(block);")
    for n in range(len(A)):
        calls += [f"stage_{n}(block);"] if n else []
        at = "block.at" if n else "block.y"
        calls.append(f"slope(block, shared, {at}, block.error);")
        calls.append(f"mix_{n}(block);\nsolve(block, block.k[{n}]);")
    calls.append("finish(block);")
    dense = [
        f"{kind}(theta * ({end!r} + (1 - theta) * ({a!r} + theta * ({b!r} + theta * {c!r}))))"
        for end, a, b, c in zip(rodas5p.END, *rodas5p.DENSE, strict=True)
    ]
    return Stepping(
        order=rodas5p.ORDER,
        stages=len(A),
        rows=rows,
        members=[
            f"alignas(64) real matrix[{rows * (rows + 1) // 2}][LANES], pivot[{rows}][LANES];",
            f"alignas(64) real panel[{BLOCK}][{rows}][LANES], refused[LANES];",
        ],
        before=matrix,
        functions=_factorise(rows) + "".join(stages + mixes),
        calls=calls,
        unit="VECTOR(block.inverse)",
        error=f"K({len(A) - 1})",
        estimated=f"for (int lane = 0; lane < LANES; lane++) "
        f"if (block.refused[lane] > 0) block.total[lane] = {REFUSED!r}f;",
        accept="Y = KEEP ? AT : Y;",
        dense=list(zip(dense, kept(len(A)), strict=True)),
        stiffness="",
        stable=np.inf,
    )


def combined(coefficients: list[float], first: int = 0) -> str:
    """Σ c_j k_j, from the slope `first` on."""
    return " + ".join(f"real({c!r}) * K({j})" for j, c in enumerate(coefficients, first))


def each_weight(name: str, body: str) -> str:
    """A function of a block that does the same with every weight of every lane."""
    return f"""
static __attribute__((noinline)) void {name}(Block& block) {{
    for (int row = 0; row < WEIGHTS; row++) {{ {body} }}
}}
"""


def _matrix(
    rows: int, written: Written, known: Jacobian, places: dict[str, str]
) -> tuple[str, list[str]]:
    """Functions that fill the lower triangle of 1 - γhJ, and their calls.

    A loop of too many statements is not turned into vectors. Each function computes what its own
    entries need, some of it once more than necessary.
    """
    lines = {line.name: line for line in known.text}
    functions, part = [], []
    for place, value in known.entries.items():
        part.append((place, value))
        if len(part) == ENTRIES:
            functions.append(_part(len(functions), part, lines, written, places))
            part = []
    if part:
        functions.append(_part(len(functions), part, lines, written, places))
    rest = [
        f"VECTOR(block.matrix[{_place(row, column)}]) = {'one' if row == column else 'none'};"
        for row in range(rows)
        for column in range(row + 1)
        if (row, column) not in known.entries
    ]
    functions.append(f"""
static __attribute__((noinline)) void fill(Block& block) {{
    typedef real Vector __attribute__((vector_size(LANES * sizeof(real))));
    const Vector none = {{}}, one = none + real(1);
    #define VECTOR(x) (*(Vector*) (x))
{indented(rest, 4)}
    #undef VECTOR
}}
""")
    calls = [f"matrix_{n}(block, shared);" for n in range(len(functions) - 1)]
    return "".join(functions), [*calls, "fill(block);"]


def _place(row: int, column: int) -> int:
    return row * (row + 1) // 2 + column


def _needed(values: list[str], lines: dict[str, Statement]) -> set[str]:
    """The names that values are computed from, their own among them."""
    found, queue = set[str](), list(values)
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += lines[name].reads if name in lines else ()
    return found


def _part(
    number: int,
    entries: list[tuple[tuple[int, int], str]],
    lines: dict[str, Statement],
    written: Written,
    places: dict[str, str],
) -> str:
    needed = _needed([value for _, value in entries], lines)
    text = [line for name, line in lines.items() if name in needed]
    loads = [
        f"const {written.kinds[name]} {name} = {place};"
        for name, place in places.items()
        if name in needed
    ]
    shared = [
        f"const auto {name} = shared.{'['.join(name.rsplit('_', 1))}];"
        for name in sorted(needed)
        if name in written.kinds and name not in places
    ]
    stores: dict[str, list[str]] = {}
    for (row, column), value in entries:
        one = "real(1)" if row == column else "real(0)"
        word = f"block.matrix[{_place(row, column)}][lane] = multiply_add(width, {value}, {one});"
        stores.setdefault(value, []).append(word)
    body = [word for value, words in stores.items() if value not in lines for word in words]
    for line in text:
        body.append(f"const {line.kind} {line.name} = {line.expression};")
        body += stores.get(line.name, [])
    return f"""
static __attribute__((noinline)) void matrix_{number}(Block& block, const Shared& shared) {{
    const real (*const y)[LANES] = block.y;
{indented(shared, 4)}
    #pragma GCC ivdep
    for (int lane = 0; lane < LANES; lane++) {{
        const real width = real({-rodas5p.GAMMA!r}) * block.size[lane];
{indented([*loads, *body], 8)}
    }}
}}
"""


def _lines(*loops: range) -> Iterator[tuple[int, ...]]:
    return itertools.product(*loops)


def _factorise(rows: int) -> str:
    """Functions that factorise the matrices of a block and solve with them.

    The matrix is L D Lᵀ. `panel` has the rows of L D that are being computed, `matrix` the finished
    ones of L, and `pivot` the inverse of D. A tile of sums has a name for each, since a compiler
    keeps names in registers and arrays in memory.
    """
    each = range(BLOCK)
    load = [f"Vector s{a}{b} = MATRIX(i + {a}, k + {b});" for a, b in _lines(each, each)]
    lower = [line for line, (a, b) in zip(load, _lines(each, each), strict=True) if a >= b]
    left = [f"const Vector l{a} = VECTOR(block.panel[{a}][j]);" for a in each]
    right = [f"const Vector r{b} = MATRIX(k + {b}, j);" for b in each]
    off, on = [], []
    for b in each:
        off += [
            f"s{a}{b} -= s{a}{c} * MATRIX(k + {b}, k + {c});" for c, a in _lines(range(b), each)
        ]
        off += [f"VECTOR(block.panel[{a}][k + {b}]) = s{a}{b};" for a in each]
        off += [f"MATRIX(i + {a}, k + {b}) = s{a}{b} * PIVOT(k + {b});" for a in each]
        on += [f"s{a}{b} -= s{a}{c} * f{b}{c};" for c in range(b) for a in range(b, BLOCK)]
        on += [
            f"refused = s{b}{b} <= small ? one : refused;",
            f"const Vector p{b} = one / (s{b}{b} <= small ? one : s{b}{b});",
            f"PIVOT(k + {b}) = p{b};",
        ]
        for a in range(b + 1, BLOCK):
            on.append(f"const Vector f{a}{b} = s{a}{b} * p{b};")
            on.append(f"MATRIX(k + {a}, k + {b}) = f{a}{b};")
    whole = [f"s{a}{b} -= l{a} * r{b};" for a, b in _lines(each, each)]
    half = [line for line, (a, b) in zip(whole, _lines(each, each), strict=True) if a >= b]
    row = [f"Vector s{a} = VECTOR(x[i + {a}]);" for a in each]
    forth = [f"s{a} -= MATRIX(i + {a}, j) * right;" for a in each]
    forth_end, back, back_end = [], [], []
    for a in each:
        forth_end += [f"s{a} -= MATRIX(i + {a}, i + {b}) * s{b};" for b in range(a)]
        forth_end.append(f"VECTOR(x[i + {a}]) = s{a};")
    for a in reversed(each):
        back += [f"s{a} -= MATRIX(i + {b}, i + {a}) * s{b};" for b in range(a + 1, BLOCK)]
        back.append(f"VECTOR(x[i + {a}]) = s{a};")
    back_end = [f"rest -= MATRIX(i + {a}, j) * s{a};" for a in each]
    return f"""
#define MATRIX(i, j) VECTOR(block.matrix[(i) * ((i) + 1) / 2 + (j)])
#define PIVOT(i) VECTOR(block.pivot[i])
static __attribute__((noinline)) void factorise(Block& block) {{
    const Vector none = {{}}, one = none + real(1), small = none + real({PIVOT!r});
    Vector refused = none;
    for (int i = 0; i < {rows}; i += {BLOCK}) {{
        for (int k = 0; k < i; k += {BLOCK}) {{
{indented(load, 12)}
            for (int j = 0; j < k; j++) {{
{indented([*left, *right, *whole], 16)}
            }}
{indented(off, 12)}
        }}
        const int k = i;
{indented(lower, 8)}
        for (int j = 0; j < k; j++) {{
{indented([*left, *right, *half], 12)}
        }}
{indented(on, 8)}
    }}
    VECTOR(block.refused) = refused;
}}
static __attribute__((noinline)) void solve(Block& block, real (*x)[LANES]) {{
    for (int i = 0; i < {rows}; i += {BLOCK}) {{
{indented(row, 8)}
        for (int j = 0; j < i; j++) {{
            const Vector right = VECTOR(x[j]);
{indented(forth, 12)}
        }}
{indented(forth_end, 8)}
    }}
    for (int i = 0; i < {rows}; i++) VECTOR(x[i]) *= PIVOT(i);
    for (int i = {rows - BLOCK}; i >= 0; i -= {BLOCK}) {{
{indented(row, 8)}
{indented(back, 8)}
        for (int j = 0; j < i; j++) {{
            Vector rest = VECTOR(x[j]);
{indented(back_end, 12)}
            VECTOR(x[j]) = rest;
        }}
    }}
}}
"""
