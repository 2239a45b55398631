"""The fused flow as one CUDA kernel (CuPy): one thread per run, each with a step of its own.

The slopes of a step are more numbers than a thread has registers. They lie in the thread's local
memory, of which the first cache of the processor holds what a stage needs. The slope is a function
that is called and never copied, so that the compiler sees it once; what the stages of a step differ
in is a table (`steps_cuda`). A thread whose run is over takes the next run that nobody has begun.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.runs.fused import steps_cuda
from iclflow.runs.fused.cpp import indented, type_names
from iclflow.runs.fused.cuda import (
    BLOCK,
    HEAD,
    OPTIONS,
    PRODUCT,
    SharedMemory,
    by_run,
    constant_memory,
    cupy_module,
    lines_of,
    not_finite,
    patiently,
)
from iclflow.runs.fused.flow_cpp import (
    DIVERGED,
    FINISHED,
    ROCK4,
    STEP_LIMIT,
    TSIT5,
    Course,
    Flowed,
    weight_rows,
    weight_type,
)
from iclflow.runs.fused.program import Program, Written, write
from iclflow.runs.fused.rules import FUNCTIONS
from iclflow.runs.fused.tsit5 import control
from iclflow.runs.fused.values import CannotFuse

THREADS = 32  # of a block; those that share a matrix are as many as in `cuda`
# Bytes of the memory of all threads that a processor works on. This is more than its first cache
# has, but a stage needs only half of the rows. Four warps hide the latency of each other.
CACHE = 384 * 2**10
BITS = """
FUNCTION whole bits_of(double x) { return __double_as_longlong(x); }
FUNCTION double real_of(whole x) { return __longlong_as_double(x); }
"""


def threads(program: Program) -> int:
    """How many threads a block has."""
    return BLOCK if program.matrices else THREADS


def source(program: Program, written: Written, pair: str = TSIT5) -> str:
    """The kernel, by the steps of a pair."""
    real, seen = weight_type(program), np.dtype(program.dtype).name
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    kinds = {name: np.dtype(leaf.dtype).name for name, leaf in leaves.items()}
    rows = weight_rows(program, written)
    width = sum(leaves[name].size for name in rows)
    memory = SharedMemory(program)
    constant = {n: leaf for n, leaf in leaves.items() if not leaf.own and not leaf.matrix}
    fixed = {n: leaf for n, leaf in leaves.items() if leaf.own and n not in rows}
    weights = {f"{n}_{j}": row + j for n, row in rows.items() for j in range(leaves[n].size)}
    given = [
        f"const {kinds[n]} {n}_{j} = {n}[{j}];" for n in constant for j in range(constant[n].size)
    ]
    given += [
        f"const {kinds[n]} {n}_{j} = of.{n}[{j} * of.runs + run];"
        for n, leaf in fixed.items()
        for j in range(leaf.size)
    ]
    steps = {TSIT5: steps_cuda.explicit, ROCK4: steps_cuda.stabilised}[pair]("real")
    start = [f"real {name} = 0;" for name in weights]
    add = [f"    {n} = multiply_add(c, from[{row}], {n});" for n, row in weights.items()]
    inside = [
        *start,
        "#pragma unroll 2",
        "for (int j = 0; j < TERMS[stage]; j++) {",
        "    const real c = multiply_add(step, WIDTH[stage][j], FIXED[stage][j]);",
        "    const real* const from = v[ROW[stage][j]];",
        *add,
        "}",
        "if (KEEP[stage] >= 0) {",
        "    real* const at = v[KEEP[stage]];",
        *(f"    at[{row}] = {n};" for n, row in weights.items()),
        "}",
        "real* const dy = v[TO[stage]];",
    ]
    between = [
        *start,
        "#pragma unroll 2",
        "for (int j = 0; j < terms; j++) {",
        "    const real c = of_row[j];",
        "    const real* const from = v[DENSE[j]];",
        *add,
        "}",
    ]
    slopes = [f"dy[{weights[name]}] = {value.expression};" for name, value in written.after.items()]
    shows = [
        f"shown[{j} * of.runs] = finite_({value.expression}) ? {seen}({value.expression}) : "
        f"{seen}(NOT_A_NUMBER);"
        for j, value in enumerate(written.seen)
    ]
    constants = [
        f"__constant__ {kinds[n]} {n}[{max(1, leaf.size)}];" for n, leaf in constant.items()
    ]
    memory_argument = ", real_of_matrix* room" if memory.places else ""
    room = ", room" if memory.places else ""
    arrays = [f"const {kinds[n]}* {n}" for n in leaves if n not in constant and n not in rows]
    # Two stages more: the slope at the beginning, and the one of a step that is only tried.
    stages = [
        steps_cuda.RowStage([(0, 1.0, 0.0)], -1, 1),
        steps_cuda.RowStage([(0, 1.0, 0.0), (1, 0.0, 1.0)], -1, 2),
        *steps.stages,
    ]
    last, most = stages[-1], max(len(stage.terms) for stage in stages)
    columns = [list(zip(*stage.terms, strict=True)) for stage in stages]
    tables = [
        _table(f"{kind} {name}", [list(column[n]) for column in columns], most)
        for n, (kind, name) in enumerate((("int", "ROW"), ("real", "FIXED"), ("real", "WIDTH")))
    ]
    tables += [
        f"__constant__ int {name}[{len(found)}] = {{{', '.join(map(str, found))}}};"
        for name, found in (
            ("TERMS", [len(stage.terms) for stage in stages]),
            ("KEEP", [stage.keep for stage in stages]),
            ("TO", [stage.to for stage in stages]),
            ("DENSE", [row for row, _ in steps.dense]),
        )
    ]
    dense = ", ".join(factor for _, factor in steps.dense)
    inside_step = _combined([(row, f"dense[{j}]") for j, (row, _) in enumerate(steps.dense)])
    error = _combined([(row, f"real({c!r})") for row, c in steps.error])
    return f"""
{HEAD}
{type_names()}
typedef {real} real;
typedef {memory.kind} real_of_matrix;
constexpr int BLOCK = {threads(program)}, WEIGHTS = {width}, SEEN = {program.seen_count};
constexpr bool DROPS = {"true" if written.guarded else "false"};
{FUNCTIONS}
{BITS}
{control(steps.order)}
{indented(constants, 0)}
{PRODUCT.replace("real", "real_of_matrix") if memory.places else ""}
#define EACH _Pragma("unroll 9") for (int i = 0; i < WEIGHTS; i++)
// Threads that share a matrix go through its products together.
#define ANY(x) {"__syncthreads_or(x)" if memory.places else "(x)"}
struct Given {{
    whole runs;
    {" ".join(f"const {kinds[n]}* {n};" for n in fixed)}
}};
{indented(tables, 0)}
// The slope at a sum of rows, which is made in registers, for all weights at once, so that many
// loads are on their way.
__device__ __noinline__ void slope(const Given& of, const whole run, const int stage,
        const real step, real (*v)[WEIGHTS], bool& odd{memory_argument}) {{
{indented([*given, *inside], 4)}
{indented(lines_of(written.step, memory), 4)}
{indented(slopes, 4)}
    {not_finite(written.checks, "")}
}}
__device__ __noinline__ void look(const Given& of, const whole run, const real* of_row,
        const int terms, const real (*v)[WEIGHTS], {seen}* shown,
        const bool here, bool& odd{memory_argument}) {{
{indented([*given, *between], 4)}
{indented(lines_of(written.look, memory), 4)}
    if (here) {{
{indented(shows, 8)}
        {not_finite(written.look_checks, "")}
    }}
}}
__device__ double norm(
        const real* x, const real* less, const real* y, double inverse, double ground) {{
    double total = 0;
    EACH {{
        const double part = double(x[i] - (less ? less[i] : real(0))) * inverse
            / (ground + absolute(double(y[i])));
        total += part * part;
    }}
    return sqrt(total / WEIGHTS);
}}
extern "C" __global__ void __launch_bounds__(BLOCK) flow(
        unsigned long long* queue, const whole runs, const whole count, const whole limit,
        const double* __restrict__ targets, const unsigned char* __restrict__ mine,
        const unsigned char* __restrict__ alive, double* numbers, signed char* ends,
        unsigned char* odds, {seen}* record, real* weights,
        real* ahead{"".join(f", {array}" for array in arrays)}) {{
    {"extern __shared__ __align__(16) real_of_matrix room[];" if memory.places else ""}
{indented(memory.load(written.arrays), 4)}
    double *const reached = numbers, *const time = reached + runs, *const size = time + runs;
    double *const last = size + runs, *const tolerance = last + runs;
    double *const grounds = tolerance + runs;
    const Given of{{{", ".join(["runs", *fixed])}}};
    real v[{steps.rows}][WEIGHTS];
    real* const y = v[0];
    double t = 0, h = 0, before = 0, inverse = 0;
    real ground = 1;
    whole run = 0, made = 0;
    int mark = 0;
    bool going = false, more = true, odd = false;
    EACH y[i] = v[1][i] = 0;
    const real whole_row[1] = {{1}};
    for (;;) {{
        bool begun = false, trial = false;
        while (!going && more) {{
            const whole n = atomicAdd(queue, 1ULL);
            more = n < runs;
            if (!more) break;
            if (!mine[n]) continue;
            odds[n] = 0;
            run = n;
            if (!alive[n]) {{
                for (whole j = 0; j < count * SEEN; j++)
                    record[j * runs + n] = {seen}(NOT_A_NUMBER);
                continue;
            }}
            trial = !(size[n] > 0);
            const real* const from = trial ? weights : ahead;
            EACH y[i] = from[i * runs + run];
            going = begun = true;
            t = trial ? reached[n] : time[n];
            h = size[n];
            before = last[n];
            inverse = 1 / tolerance[n];
            ground = grounds[n];
            made = mark = 0;
            odd = false;
        }}
        if (!ANY(going)) break;
        while (ANY(begun && mark < count && targets[mark] <= t)) {{
            const bool here = begun && mark < count && targets[mark] <= t;
            {seen}* const shown = record + whole(mark) * SEEN * runs + run;
            look(of, run, whole_row, 1, v, shown, here, odd{room});
            mark += here;
        }}
        if (begun && targets[count] <= t) {{
            ends[run] = {FINISHED};
            odds[run] = odd;
            going = begun = trial = false;
        }}
        // The slope of the others is there already, and is computed again to the same number.
        if (ANY(begun)) slope(of, run, 0, real(0), v, odd{room});
        if (ANY(trial)) {{
            const double weight = norm(y, nullptr, y, inverse, ground);
            const double rise = norm(v[1], nullptr, y, inverse, ground);
            const double step = weight < 1e-5 || rise < 1e-5 ? 1e-6 : 0.01 * (weight / rise);
            slope(of, run, 1, real(step), v, odd{room});
            if (trial) h = first_size(rise, norm(v[2], v[1], y, inverse, ground) / step, step);
        }}
        if (!ANY(going)) continue;
        const real step = h;
        #pragma unroll 1
        for (int stage = 2; stage < {len(stages)}; stage++)
            slope(of, run, stage, step, v, odd{room});
        float total = 0;
        {{
            const real unit = step * real(inverse);
            EACH {{
                const real a = absolute(y[i]), b = absolute(v[{last.keep}][i]);
                const real e = unit * ({error});
                const float part = __fdividef(float(e), float(ground + (a > b ? a : b)));
                total += part * part;
            }}
        }}
        made++;
        odd = odd || (DROPS && !finite_(total));
        const double square = double(total) / WEIGHTS, now = logarithm(square), after = t + h;
        const bool keep = square < 1;
        const double factor = next_factor(now, before, keep);
        while (ANY(going && keep && mark < count && targets[mark] <= after)) {{
            const bool here = going && keep && mark < count && targets[mark] <= after;
            const double size = h, theta = here ? (targets[mark] - t) / h : 0.0;
            const real dense[] = {{{dense}}};
            {seen}* const shown = record + whole(mark) * SEEN * runs + run;
            look(of, run, dense, {len(steps.dense)}, v, shown, here, odd{room});
            mark += here;
        }}
        bool over = false;
        int how = {FINISHED};
        double when = targets[count];
        if (going && keep && targets[count] <= after) {{
            const double size = h, theta = (targets[count] - t) / h;
            const real dense[] = {{{dense}}};
            over = true;
            EACH ahead[i * runs + run] = y[i];
            EACH y[i] = {inside_step};
        }} else if (going) {{
            if (keep) {{
                EACH {{
                    y[i] = v[{last.keep}][i];
                    v[1][i] = v[{last.to}][i];
                }}
                t = after;
                before = now;
            }}
            h *= factor;
            const bool stuck = !(t + h > t);
            if (stuck || made >= limit) {{
                over = true;
                how = stuck ? {DIVERGED} : {STEP_LIMIT};
                when = t;
                EACH ahead[i * runs + run] = y[i];
            }}
        }}
        if (over) {{
            EACH weights[i * runs + run] = y[i];
            time[run] = t;
            size[run] = h;
            last[run] = before;
            reached[run] = when;
            ends[run] = how;
            odds[run] = odd;
            for (whole j = mark * SEEN; j < count * SEEN; j++)
                record[j * runs + run] = {seen}(NOT_A_NUMBER);
            going = false;
        }}
    }}
}}
"""


def _table(name: str, rows: list[list[Any]], width: int) -> str:
    """Rows of numbers as constant memory, each filled up with zeros."""
    filled = [[*row, *[0] * (width - len(row))] for row in rows]
    text = ", ".join(f"{{{', '.join(map(repr, row))}}}" for row in filled)
    return f"__constant__ {name}[{len(rows)}][{width}] = {{{text}}};"


def _combined(terms: list[tuple[int, str]]) -> str:
    """A sum of rows as one chain of multiply-adds."""
    found = ""
    for row, c in terms:
        found = f"multiply_add({c}, v[{row}][i], {found})" if found else f"{c} * v[{row}][i]"
    return found


@functools.lru_cache(maxsize=64)
def _compiled(program: Program, zeros: tuple[bytes, ...] | None, device: int, pair: str) -> Any:
    return patiently(lambda: _built(program, zeros, device, pair))


def compiled(
    program: Program, zeros: tuple[bytes, ...] | None, device: int = 0, pair: str = TSIT5
) -> tuple[Any, dict[int, Any]]:
    """The kernel by a pair, and the constant memory of the arrays that all runs share."""
    found = _compiled(program, zeros, device, pair)
    if isinstance(found, CannotFuse):
        raise found
    return found


def _built(program: Program, zeros: tuple[bytes, ...] | None, device: int, pair: str) -> Any:
    cupy, written = cupy_module(), write(program, zeros)
    with cupy.cuda.Device(device):
        module = cupy.RawModule(code=source(program, written, pair), options=OPTIONS)
        kernel = module.get_function("flow")
        if program.matrices:
            kernel.max_dynamic_shared_size_bytes = SharedMemory(program).bytes
        return kernel, constant_memory(cupy, module, program, written)


@functools.lru_cache
def _processors(device: int) -> int:
    return cupy_module().cuda.runtime.getDeviceProperties(device)["multiProcessorCount"]


def _resident(kernel: Any, program: Program, device: int) -> int:
    """How many blocks the processors of a GPU work on at a time."""
    each = max(1, CACHE // (kernel.local_size_bytes * threads(program)))
    return each * _processors(device)


def advance(
    program: Program,
    leaves: dict[int, Any],
    ahead: list[Any],
    course: Course,
    zeros: tuple[bytes, ...] | None,
    targets: np.ndarray,
    limit: int,
    tolerances: tuple[Any, Any],
    running: Any,
    loose: np.ndarray | bool = False,
) -> Flowed:
    """As `flow_cpp.advance`, on the arrays of a GPU, where all steps are explicit."""
    cupy, running = cupy_module(), jnp.asarray(running)
    [device] = running.devices()
    number = device.local_hardware_id
    loose = np.broadcast_to(loose, running.shape)
    parts = [(pair, some) for pair, some in ((ROCK4, loose), (TSIT5, ~loose)) if some.any()]
    leaves = {i: jnp.asarray(a) for i, a in leaves.items()}
    *started, crawled = course
    runs, count, kind = running.shape[0], len(targets) - 1, course.reached.dtype
    packed = _packed([leaves[i] for i in program.carried], ahead, [*started, *tolerances])
    jax.block_until_ready((leaves, packed, running))
    with cupy.cuda.Device(number):
        there = cupy.from_dlpack
        weights, before, numbers = (there(a).copy() for a in packed)
        numbers = numbers.astype(np.float64, copy=False)
        fixed = []
        for i in program.given:
            leaf = program.leaves[i]
            if leaf.own or leaf.matrix:
                array = there(leaves[i])
                array = array.reshape(runs, -1).T if leaf.own else array
                fixed.append(cupy.ascontiguousarray(array))
        # One number at least: an empty array has no place in memory.
        record = cupy.empty((max(1, count), max(1, program.seen_count), runs), program.dtype)
        ends, odd = cupy.zeros(runs, np.int8), cupy.zeros(runs, np.uint8)
        times, alive = cupy.asarray(targets, np.float64), there(running.view(np.uint8))
        for pair, some in parts:
            kernel, constants = compiled(program, zeros, number, pair)
            for i, room in constants.items():
                room[...] = there(leaves[i]).reshape(-1)
            mine = cupy.asarray(some.astype(np.uint8))
            given = (cupy.zeros(1, np.uint64), *map(np.int64, (runs, count, limit)), times)
            given += (mine, alive, numbers, ends, odd, record, weights, before, *fixed)
            blocks = -(-runs // threads(program))
            kernel(
                (min(blocks, _resident(kernel, program, number)),),
                (threads(program),),
                given,
                shared_mem=SharedMemory(program).bytes if program.matrices else 0,
            )
        cupy.cuda.get_current_stream().synchronize()
        flags = cupy.asnumpy(odd).astype(bool)
        after = [jnp.from_dlpack(a) for a in (weights, before, numbers.astype(kind), ends, record)]
    sizes = tuple(program.leaves[i].size for i in program.carried)
    weights, ahead, solver, seen = _unpacked(*after[:3], after[4], sizes, count, program.seen_count)
    return Flowed(weights, ahead, Course(*solver, crawled=crawled), seen, after[3], flags)


@jax.jit
def _packed(weights: list[Any], ahead: list[Any], numbers: list[Any]) -> Any:
    """[run, ...] as [numbers, run], as threads side by side read it."""
    rows = lambda some: jnp.concatenate([a.reshape(a.shape[0], -1).T for a in some])  # noqa: E731
    return rows(weights), rows(ahead), jnp.stack(numbers)


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _unpacked(
    weights: Any,
    ahead: Any,
    numbers: Any,
    seen: Any,
    sizes: tuple[int, ...],
    marks: int,
    count: int,
) -> Any:
    ends = np.cumsum(sizes)[:-1]
    parts = ([a.T for a in jnp.split(some, ends)] for some in (weights, ahead))
    return (*parts, list(numbers[:4]), by_run(seen, marks, count))
