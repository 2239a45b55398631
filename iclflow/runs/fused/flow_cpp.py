"""The fused flow in C++: blocks of lanes, one run per lane, each with a step of its own.

The values of a block's lanes lie side by side, as in `cpp`. All lanes try a step at the same time,
each from its own time and of its own size, and a mask says which lanes keep theirs. A lane whose
run is over takes the next run that nobody has begun, so that no lane waits for its neighbours.
What is recorded is read from the dense output of a step. These weights are collected until they
fill a block of their own, and then one look serves all of them.

Every lane does the same arithmetic, whichever lane it is and whatever its neighbours do: the bits
of a run depend neither on its neighbours, nor on the number of cores, nor on the pieces that it is
computed in.
"""

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from iclflow.runs.fused import steps_cpp
from iclflow.runs.fused.cpp import (
    HEAD,
    PRODUCT,
    Rooms,
    function,
    indented,
    library,
    loops,
    type_names,
)
from iclflow.runs.fused.jacobian import jacobian
from iclflow.runs.fused.program import Program, Written, write
from iclflow.runs.fused.rules import FUNCTIONS
from iclflow.runs.fused.tsit5 import control
from iclflow.runs.fused.values import CannotFuse, Statement

VECTOR = 64  # bytes of the weights of a lane block in a row: one vector of the widest processors
BITS = """
#include <new>
FUNCTION whole bits_of(double x) { whole found; std::memcpy(&found, &x, 8); return found; }
FUNCTION double real_of(whole x) { double found; std::memcpy(&found, &x, 8); return found; }
"""
# The pairs of a fused flow: explicit, stabilised, linearly implicit.
TSIT5, ROCK4, RODAS5P = "Tsit5", "ROCK4", "Rodas5P"
# The ends of a run, in the order of `RESULTS_OF_FLOW` in the engine.
FINISHED, STEP_LIMIT, DIVERGED, STIFF = range(4)
# Every so many steps, a run is asked how stiff it is. `crawl` counts the steps since the last
# answer that stability did not bound the step.
EVERY = 64
ASK = f"""
bool crawls[LANES];
for (int lane = 0; lane < LANES; lane++) {{
    crawls[lane] = run[lane] >= 0 && block.keep[lane] > 0
        && whole(flow->crawl[lane] + 1) % {EVERY} == 0;
    if (crawls[lane] && !(stiffness(block, lane) > STABLE)) {{
        flow->crawl[lane] = -1;
        crawls[lane] = false;
    }}
}}
""".strip().splitlines()
LEAVE = f"""
if (crawls[lane] && flow->crawl[lane] >= patience[run[lane]]) {{
    flow->end(lane, {STIFF}, block.t[lane], block.y);
    continue;
}}
""".strip().splitlines()


def weight_type(program: Program) -> str:
    """The one type that the weights of a flow have: their error is one number."""
    kinds = {np.dtype(program.leaves[i].dtype).name for i in program.carried}
    if len(kinds) != 1 or not kinds <= {"float32", "float64"}:
        raise CannotFuse("the weights of a flow must be of one type, single or double precision")
    return kinds.pop()


def lanes(program: Program) -> int:
    """How many runs a block has."""
    return VECTOR // np.dtype(weight_type(program)).itemsize


def weight_rows(program: Program, written: Written) -> dict[str, int]:
    """The first row of each array of weights, where all weights of a run are one vector."""
    rows, found = 0, dict[str, int]()
    for i in program.carried:
        found[written.arrays[i]] = rows
        rows += program.leaves[i].size
    return found


def source(program: Program, written: Written, pair: str = TSIT5, zeros: Any = None) -> str:
    """The whole C++ program.

    - `pair`: the one that makes its steps; the Jacobian of implicit ones drops the `zeros`.
    """
    real, seen = weight_type(program), np.dtype(program.dtype).name
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    kinds = {name: np.dtype(leaf.dtype).name for name, leaf in leaves.items()}
    rows = weight_rows(program, written)
    width = sum(leaves[name].size for name in rows)
    shared = {n: leaf for n, leaf in leaves.items() if not leaf.own}
    fixed = {n: leaf for n, leaf in leaves.items() if leaf.own and n not in rows}
    given, scratch = Rooms("given"), Rooms("scratch")
    first = {name: given.take(kinds[name], leaf.size) for name, leaf in fixed.items()}
    weights = {f"{n}_{j}": row + j for n, row in rows.items() for j in range(leaves[n].size)}
    places = {name: f"y[{row}][lane]" for name, row in weights.items()}
    places |= {
        f"{n}_{j}": given.place(kinds[n], first[n] + j)
        for n, leaf in fixed.items()
        for j in range(leaf.size)
    }
    finite = lambda names: [  # noqa: E731
        Statement(
            "block.odd[lane]", "", f"block.odd[lane] + (finite_({n}) ? real(0) : real(1))", (n,)
        )
        for n in names
    ]
    slopes = [
        Statement(f"dy[{weights[name]}][lane]", "", *value) for name, value in written.after.items()
    ]
    shows = [
        Statement(f"block.seen[{j}][lane]", "", f"{seen}({value.expression})", value.reads)
        for j, value in enumerate(written.seen)
    ]
    vectors = "const real (*__restrict__ y)[LANES]"
    functions = [
        function(
            "slope",
            loops(written, written.step, [*slopes, *finite(written.checks)], places, scratch),
            shared,
            f"{vectors}, real (*__restrict__ dy)[LANES]",
        ),
        function(
            "look",
            loops(written, written.look, [*shows, *finite(written.look_checks)], places, scratch),
            shared,
            vectors,
            "Looks",
        ),
    ]
    if pair == RODAS5P:
        entries = jacobian(program, written, zeros)
        steps = steps_cpp.implicit(width, real, written, entries, places)
    else:
        steps = {TSIT5: steps_cpp.explicit, ROCK4: steps_cpp.stabilised}[pair](width, real)
    between = "from.y[row][lane]"
    for j, (_, what) in enumerate(steps.dense):
        between = f"multiply_add(dense[{j}], {what}, {between})"
    load, keep, fill = [], [], []
    for name, row in rows.items():
        size = leaves[name].size
        for array, to in ((f"{name}_ahead", load), (name, load)):
            test = "size[n] > 0" if array != name else "!(size[n] > 0)"
            to.append(
                f"if ({test}) for (int j = 0; j < {size}; j++) "
                f"block.y[{row} + j][lane] = arrays.{array}[n * {size} + j];"
            )
        keep.append(
            f"for (int j = 0; j < {size}; j++) arrays.{name}_ahead[n * {size} + j] = "
            f"block.y[{row} + j][lane];"
        )
        fill.append(
            f"for (int j = 0; j < {size}; j++) "
            f"arrays.{name}[n * {size} + j] = from[{row} + j][lane];"
        )
    for name, leaf in fixed.items():
        load.append(
            f"for (int j = 0; j < {leaf.size}; j++) block.given.{kinds[name]}_rows"
            f"[{first[name]} + j][lane] = arrays.{name}[n * {leaf.size} + j];"
        )
    passing = [
        f"for (int row = 0; row < {n}; row++) looks.given.{kind}_rows[row][to] = "
        f"block.given.{kind}_rows[row][lane];"
        for kind, n in given.rows.items()
    ]
    arrays = [f"{kinds[n]}* {n}" for n in leaves] + [f"{kinds[n]}* {n}_ahead" for n in rows]
    names = ", ".join([*leaves, *(f"{n}_ahead" for n in rows)])
    members = [f"const {kinds[n]}* {n};" for n in shared]
    drops = "true" if written.guarded else "false"
    return f"""
{HEAD}
{type_names()}
typedef {real} real;
constexpr int LANES = {lanes(program)}, WEIGHTS = {width}, SEEN = {program.seen_count};
constexpr bool DROPS = {drops};
constexpr double STABLE = {steps.stable if steps.stiffness else 0};
{FUNCTIONS}
{BITS}
{control(steps.order)}
{PRODUCT if program.matrices else ""}
{given.struct("Given")}
{scratch.struct("Scratch")}
struct Shared {{
{indented(members, 4)}
}};
struct Arrays {{
{indented([f"{array};" for array in arrays], 4)}
}};
struct Block {{
    alignas(64) real y[WEIGHTS][LANES], at[WEIGHTS][LANES];
    alignas(64) real k[{steps.stages}][{steps.rows}][LANES];
    alignas(64) real size[LANES], inverse[LANES], ground[LANES], keep[LANES], odd[LANES];
    alignas(64) real error[WEIGHTS][LANES];
    alignas(64) float total[LANES];
    alignas(64) double t[LANES], h[LANES], last[LANES], size_of_error[LANES], factor[LANES];
{indented(steps.members, 4)}
    Given given;
    Scratch scratch;
}};
struct Looks {{
    alignas(64) real y[WEIGHTS][LANES], odd[LANES];
    alignas(64) {seen} seen[{max(1, program.seen_count)}][LANES];
    whole run[LANES];
    int mark[LANES], count;
    Given given;
    Scratch scratch;
}};
{"".join(functions)}
{steps.before}
// What is done with whole rows is written with vectors: one per row and type of weights.
typedef real Vector __attribute__((vector_size(LANES * sizeof(real))));
typedef float Short __attribute__((vector_size(LANES * sizeof(float))));
#define VECTOR(x) (*(Vector*) (x))
#define Y VECTOR(block.y[row])
#define AT VECTOR(block.at[row])
#define K(j) VECTOR(block.k[j][row])
#define SIZE VECTOR(block.size)
#define KEEP (VECTOR(block.keep) > 0)
#define SHORT(x) __builtin_convertvector(x, Short)
#define ERROR VECTOR(block.error[row])
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
{steps.functions}
{steps_cpp.each_weight("accept", steps.accept)}
// The mean square of the estimated error of each lane, in units of its tolerance. The quotients
// are rounded to single precision: nobody needs more digits of an estimate.
static __attribute__((noinline)) void estimate(Block& block) {{
    Short total = {{}};
    const Vector ground = VECTOR(block.ground), unit = {steps.unit};
    for (int row = 0; row < WEIGHTS; row++) {{
        const Vector error = unit * ({steps.error});
        const Vector before = Y < 0 ? -Y : Y, after = AT < 0 ? -AT : AT;
        const Vector large = ground + (before > after ? before : after);
        const Short part = SHORT(error) / SHORT(large);
        total += part * part;
    }}
    *(Short*) block.total = total;
    {steps.estimated}
}}
static __attribute__((noinline)) void control(Block& block) {{
    int lanes = LANES;
    asm("" : "+r"(lanes));  // a loop whose length is known and short is unrolled, not vectorised
    #pragma GCC ivdep
    for (int lane = 0; lane < lanes; lane++) {{
        const double square = double(block.total[lane]) / WEIGHTS;
        const bool keep = square < 1;
        block.keep[lane] = keep ? real(1) : real(0);
        block.size_of_error[lane] = logarithm(square);
        block.factor[lane] = next_factor(block.size_of_error[lane], block.last[lane], keep);
    }}
}}
#pragma GCC pop_options
{steps.stiffness}
// The root mean square of a vector of a lane, in units of the tolerance.
static double norm(
        const Block& block, const real (*x)[LANES], const real (*less)[LANES], int lane) {{
    double total = 0;
    for (int row = 0; row < WEIGHTS; row++) {{
        const double value = x[row][lane] - (less ? less[row][lane] : real(0));
        const double part = value * block.inverse[lane]
            / (double(block.ground[lane]) + absolute(double(block.y[row][lane])));
        total += part * part;
    }}
    return sqrt(total / WEIGHTS);
}}
// The weights of a lane inside its step, by the dense output.
static __attribute__((noinline, optimize("no-tree-vectorize"))) void interpolate(
        const Block& from, int lane, double time, real (*to)[LANES], int column) {{
    const double size = from.h[lane], theta = (time - from.t[lane]) / size;
    const real dense[] = {{{", ".join(factor for factor, _ in steps.dense)}}};
    for (int row = 0; row < WEIGHTS; row++) to[row][column] = {between};
}}
struct Flow {{
    const Shared& shared;
    const Arrays& arrays;
    const whole count;
    double *reached, *time, *size, *last, *crawled;
    whole *begun, *looked;
    signed char* ends;
    bool* odds;
    {seen}* record;
    Block block;
    Looks looks;
    whole run[LANES], made[LANES];
    int mark[LANES];
    double crawl[LANES];

    void flush() {{
        for (int i = 0; i < LANES; i++) looks.odd[i] = 0;
        look(looks, shared, looks.y);
        for (int i = 0; i < looks.count; i++) {{
            {seen}* shown = record + (looks.run[i] * count + looks.mark[i]) * SEEN;
            for (int j = 0; j < SEEN; j++)
                shown[j] = finite_(looks.seen[j][i]) ? looks.seen[j][i] : {seen}(NOT_A_NUMBER);
            if (looks.odd[i] > 0) odds[looks.run[i]] = true;
        }}
        looks.count = 0;
    }}
    void show(int lane, double time) {{
        const int to = looks.count++;
        if (time > block.t[lane]) interpolate(block, lane, time, looks.y, to);
        else for (int row = 0; row < WEIGHTS; row++) looks.y[row][to] = block.y[row][lane];
{indented(passing, 8)}
        looks.run[to] = run[lane];
        looks.mark[to] = mark[lane]++;
        if (looks.count == LANES) flush();
    }}
    void miss(whole n, whole from) {{
        for (whole j = (n * count + from) * SEEN; j < (n * count + count) * SEEN; j++)
            record[j] = {seen}(NOT_A_NUMBER);
    }}
    void begin(whole n, int lane) {{
        run[lane] = n;
        mark[lane] = looked[n];
        made[lane] = begun[n];
        crawl[lane] = crawled[n];
{indented(load, 8)}
        block.t[lane] = size[n] > 0 ? time[n] : reached[n];
        block.h[lane] = size[n];
        block.last[lane] = last[n];
        block.odd[lane] = 0;
    }}
    void end(int lane, int how, double when, const real (*from)[LANES]) {{
        const whole n = run[lane];
{indented(keep, 8)}
{indented(fill, 8)}
        time[n] = block.t[lane];
        size[n] = block.h[lane];
        last[n] = block.last[lane];
        reached[n] = when;
        ends[n] = how;
        crawled[n] = crawl[lane];
        begun[n] = made[lane];
        looked[n] = mark[lane];
        odds[n] |= DROPS && block.odd[lane] > 0;
        if (how != {STIFF}) miss(n, mark[lane]);
        run[lane] = -1;
        block.size[lane] = block.h[lane] = 0;
    }}
}};
extern "C" void flow(whole* queue, whole runs, whole count, whole limit, const double* targets,
        const bool* goes_on, const double* tolerance, const double* ground,
        const double* patience, double* reached, double* time, double* size, double* last,
        double* crawled, whole* begun, whole* looked, signed char* ends, bool* odds,
        {seen}* record,
        {", ".join(arrays)}) {{
    const Arrays arrays{{{names}}};
    const Shared shared{{{", ".join(shared)}}};
    Flow* const flow = new (std::align_val_t(64)) Flow{{
        shared, arrays, count, reached, time, size, last, crawled, begun, looked, ends, odds,
        record}};
    Block& block = flow->block;
    whole* const run = flow->run;
    int* const mark = flow->mark;
    for (int lane = 0; lane < LANES; lane++) run[lane] = -1;
    bool more = true;
    for (;;) {{
        bool fresh[LANES], trial[LANES], starts = false, tries = false, goes = false;
        for (int lane = 0; lane < LANES; lane++) {{
            fresh[lane] = trial[lane] = false;
            while (more && run[lane] < 0) {{
                const whole n = __atomic_fetch_add(queue, 1, __ATOMIC_RELAXED);
                if (n >= runs) {{ more = false; break; }}
                if (!goes_on[n]) continue;
                flow->begin(n, lane);
                block.inverse[lane] = real(1 / tolerance[n]);
                block.ground[lane] = real(ground[n]);
                while (mark[lane] < count && targets[mark[lane]] <= block.t[lane])
                    flow->show(lane, targets[mark[lane]]);
                if (targets[count] <= block.t[lane]) {{
                    looked[n] = mark[lane];
                    ends[n] = {FINISHED};
                    run[lane] = -1;
                    continue;
                }}
                fresh[lane] = starts = true;
                trial[lane] = !(size[n] > 0);
                tries |= trial[lane];
            }}
            goes |= run[lane] >= 0;
        }}
        if (!goes) break;
        if (starts) {{
            slope(block, shared, block.y, block.error);
            double weights[LANES], rise[LANES], step[LANES];
            for (int lane = 0; lane < LANES; lane++) {{
                if (!fresh[lane]) continue;
                for (int row = 0; row < WEIGHTS; row++)
                    block.k[0][row][lane] = block.error[row][lane];
                if (!trial[lane]) continue;
                weights[lane] = norm(block, block.y, nullptr, lane) ;
                rise[lane] = norm(block, block.k[0], nullptr, lane);
                step[lane] = weights[lane] < 1e-5 || rise[lane] < 1e-5
                    ? 1e-6 : 0.01 * (weights[lane] / rise[lane]);
                for (int row = 0; row < WEIGHTS; row++)
                    block.at[row][lane] =
                        block.y[row][lane] + real(step[lane]) * block.k[0][row][lane];
            }}
            if (tries) slope(block, shared, block.at, block.error);
            for (int lane = 0; lane < LANES; lane++) {{
                if (!trial[lane]) continue;
                const double change = norm(block, block.error, block.k[0], lane) / step[lane];
                block.h[lane] = first_size(rise[lane], change, step[lane]);
            }}
        }}
        for (int lane = 0; lane < LANES; lane++) block.size[lane] = real(block.h[lane]);
{indented(steps.calls, 8)}
        estimate(block);
        control(block);
        double after[LANES];
        for (int lane = 0; lane < LANES; lane++) {{
            after[lane] = block.t[lane] + block.h[lane];
            flow->made[lane]++;
            if (DROPS && !finite_(block.total[lane])) block.odd[lane] += 1;
        }}
        for (int lane = 0; lane < LANES; lane++) {{
            if (run[lane] < 0 || !(block.keep[lane] > 0)) continue;
            while (mark[lane] < count && targets[mark[lane]] <= after[lane])
                flow->show(lane, targets[mark[lane]]);
            if (!(targets[count] <= after[lane])) continue;
            interpolate(block, lane, targets[count], block.error, lane);
            flow->end(lane, {FINISHED}, targets[count], block.error);
        }}
{indented(ASK, 8) if steps.stiffness else ""}
        accept(block);
        for (int lane = 0; lane < LANES; lane++) {{
            if (run[lane] < 0) continue;
            if (block.keep[lane] > 0) {{
                block.t[lane] = after[lane];
                block.last[lane] = block.size_of_error[lane];
                flow->crawl[lane]++;
            }}
            block.h[lane] *= block.factor[lane];
{indented(LEAVE, 12) if steps.stiffness else ""}
            const bool stuck = !(block.t[lane] + block.h[lane] > block.t[lane]);
            if (stuck || flow->made[lane] >= limit)
                flow->end(lane, stuck ? {DIVERGED} : {STEP_LIMIT}, block.t[lane], block.y);
        }}
    }}
    if (flow->looks.count) flow->flush();
    flow->~Flow();
    operator delete(flow, std::align_val_t(64));
}}
"""


@functools.lru_cache(maxsize=64)
def _compiled(
    program: Program,
    zeros: tuple[bytes, ...] | None,
    options: tuple[str, ...],
    pair: str,
) -> Callable[..., None] | CannotFuse:
    """The loop, or why there is none: a compiler that fails is not called twice."""
    try:
        found = library(source(program, write(program, zeros), pair, zeros), options)
    except CannotFuse as reason:
        return reason

    def loop(queue: np.ndarray, numbers: tuple[int, ...], *arrays: np.ndarray) -> None:
        given = (ctypes.c_longlong(n) for n in numbers)
        places = (ctypes.c_void_p(a.ctypes.data) for a in (queue, *arrays))
        first, *rest = places
        found.flow(first, *given, *rest)

    return loop


def compiled(
    program: Program,
    zeros: tuple[bytes, ...] | None,
    options: tuple[str, ...] = (),
    pair: str = TSIT5,
) -> Callable[..., None]:
    """The loop of a program by a pair; `CannotFuse` if the compiler fails or takes too long."""
    found = _compiled(program, zeros, options, pair)
    if isinstance(found, CannotFuse):
        raise found
    return found


class Course(NamedTuple):
    """Where the runs of a flow are, one number per run; the solver goes on from there.

    - `reached`: the time of the weights.
    - `time`, `size`, `last`: the time at which the solver's next step begins, its size, and the
      logarithm of the squared error of the last step that it kept. There, it has weights of its
      own (`ahead`). A size of zero means that it begins from the weights themselves.
    - `crawled`: explicit steps in a row whose size was bounded by stability; infinite for a run
      that makes implicit steps.
    """

    reached: Any
    time: Any
    size: Any
    last: Any
    crawled: Any


class Flowed(NamedTuple):
    """The runs of a flow after their last mark.

    - `weights`, `ahead`: carried leaves [run, numbers], at the last mark and at the next step.
    - `seen`: records [run, mark, numbers].
    - `ends`: FINISHED, STEP_LIMIT or DIVERGED.
    - `odd`: runs to compute again without dropping zeros.
    """

    weights: list[Any]
    ahead: list[Any]
    course: Course
    seen: Any
    ends: Any
    odd: Any


def advance(
    program: Program,
    leaves: dict[int, np.ndarray],
    ahead: list[np.ndarray],
    course: Course,
    zeros: tuple[bytes, ...] | None,
    targets: np.ndarray,
    limit: int,
    tolerances: tuple[np.ndarray, np.ndarray],
    running: np.ndarray,
    cores: int,
    loose: np.ndarray | bool = False,
    patience: np.ndarray | float = np.inf,
    options: tuple[str, ...] = (),
) -> Flowed:
    """All runs to the last target; they are recorded at the others.

    - `leaves`: those that `program` reads: [run, numbers], or [numbers] where shared.
    - `ahead`, `course`: where the solver is.
    - `zeros`: of each shared leaf, which entries are zero and drop out of the program.
    - `targets`: increasing times.
    - `limit`: the most steps of a run.
    - `tolerances`: relative tolerance and the weight that makes it absolute, one per run.
    - `running`: which runs have not failed before.
    - `cores`: the number of threads.
    - `loose`: which runs make stabilised steps.
    - `patience`: the explicit steps in a row that stability may bound; a run that makes more goes
      on by implicit steps.
    - `options`: more options for the compiler.
    """
    runs, count = len(running), len(targets) - 1
    fixed = [np.ascontiguousarray(leaves[i]) for i in program.given]
    weights = [np.array(leaves[i], order="C") for i in program.carried]
    ahead = [np.array(a, order="C") for a in ahead]
    course = Course(*(np.array(a, np.float64) for a in course))
    record = np.empty((runs, count, program.seen_count), program.dtype)
    ends, odd = np.zeros(runs, np.int8), np.zeros(runs, bool)
    running, stiff = np.asarray(running, bool), np.isinf(course.crawled)
    loose = np.asarray(loose, bool)
    record[~running] = np.nan
    begun, looked = np.zeros((2, runs), np.int64)
    state = (*course, begun, looked, ends, odd, record, *weights, *fixed, *ahead)
    times, workers = np.asarray(targets, np.float64), max(1, min(cores, -(-runs // lanes(program))))

    def call(pair: str, goes_on: np.ndarray, patience: Any) -> None:
        if not goes_on.any():
            return
        loop, queue = compiled(program, zeros, options, pair), np.zeros(1, np.int64)
        known = (goes_on, *tolerances, np.broadcast_to(patience, runs))
        kinds = (bool, np.float64, np.float64, np.float64)
        known = tuple(np.ascontiguousarray(a, k) for a, k in zip(known, kinds, strict=True))
        with ThreadPoolExecutor(workers) as pool:  # the loop holds no lock
            given = (queue, (runs, count, limit), times, *known, *state)
            for job in [pool.submit(loop, *given) for _ in range(workers)]:
                job.result()

    call(ROCK4, running & ~stiff & loose, patience)
    call(TSIT5, running & ~stiff & ~loose, patience)
    crawling = running & (ends == STIFF)
    course.crawled[crawling] = np.inf
    try:
        call(RODAS5P, running & (stiff | crawling), np.inf)
    except CannotFuse:
        if (running & stiff).any():
            raise
        course.crawled[crawling] = 0.0
        call(ROCK4, crawling & loose, np.inf)
        call(TSIT5, crawling & ~loose, np.inf)
    return Flowed(weights, ahead, course, record, ends, odd)
