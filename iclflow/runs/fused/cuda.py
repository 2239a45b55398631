"""The fused loop as one CUDA kernel (CuPy): one thread per run, its state in registers."""

import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from iclflow.runs.fused.cpp import PATIENCE, indented, type_names
from iclflow.runs.fused.program import Program, Written, write
from iclflow.runs.fused.rules import FUNCTIONS
from iclflow.runs.fused.values import CannotFuse, Multiplied, Statement

BLOCK = 128  # runs per block of threads
LARGEST = 200 * 2**10  # bytes that a block of threads may share
# Products and sums are contracted where `values` says so, and nowhere else.
OPTIONS = ("--std=c++17", "--fmad=false")
HEAD = """
#define FUNCTION __device__ __forceinline__
#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000LL)
#define INFINITE __longlong_as_double(0x7ff0000000000000LL)
FUNCTION double multiply_add(double a, double b, double c) { return fma(a, b, c); }
FUNCTION float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
FUNCTION double absolute(double a) { return fabs(a); }
FUNCTION float absolute(float a) { return fabsf(a); }
FUNCTION double remainder_of(double a, double b) { return fmod(a, b); }
FUNCTION float remainder_of(float a, float b) { return fmodf(a, b); }
"""
# As matrices are multiplied on a GPU: a thread has some rows and columns of the result, so what
# it reads serves several products. The result may lie where the numbers were if there is one pass.
PRODUCT = """
constexpr int V = 16 / sizeof(real), COLUMNS = 2 * V, GROUPS = BLOCK / COLUMNS;
struct alignas(16) Vector { real of[V]; };

template <int F, int K, int ROWS, int PASSES>
__device__ __forceinline__ void multiply(const real* matrix, const real* x, real* y) {
    const int column = threadIdx.x % GROUPS * V, group = threadIdx.x / GROUPS;
    for (int pass = 0; pass < PASSES; pass++) {
        const int first = (pass * COLUMNS + group) * ROWS;
        real sums[ROWS][COLUMNS] = {};
        #pragma unroll 4
        for (int k = 0; k < K; k++) {
            Vector left[ROWS / V], right[2];
            #pragma unroll
            for (int i = 0; i < ROWS / V; i++)
                left[i] = *(const Vector*)(matrix + k * ROWS * COLUMNS * PASSES + first + i * V);
            #pragma unroll
            for (int j = 0; j < 2; j++)
                right[j] = *(const Vector*)(x + k * BLOCK + j * BLOCK / 2 + column);
            #pragma unroll
            for (int i = 0; i < ROWS; i++)
                #pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    sums[i][j] = multiply_add(
                        left[i / V].of[i % V], right[j / V].of[j % V], sums[i][j]);
        }
        if (PASSES == 1) __syncthreads();
        #pragma unroll
        for (int i = 0; i < ROWS; i++)
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                Vector some;
                #pragma unroll
                for (int v = 0; v < V; v++) some.of[v] = sums[i][j * V + v];
                if (first + i < F)
                    *(Vector*)(y + (first + i) * BLOCK + j * BLOCK / 2 + column) = some;
            }
    }
    __syncthreads();
}
"""


class SharedMemory:
    """The memory that the threads of a block share: matrices, and the vectors that they multiply.

    Places are counted in numbers.
    """

    def __init__(self, program: Program) -> None:
        """For the shared matrices of a program."""
        self.kind = np.dtype(_matrix_type(program)).name
        self.itemsize = np.dtype(self.kind).itemsize
        self.columns = 2 * (16 // self.itemsize)
        self.shapes = {i: program.leaves[i].shape for i in program.matrices}
        self.places, end = dict[int, int](), 0
        for i, (inner, outputs) in self.shapes.items():
            self.places[i] = end
            end += inner * self.wide(outputs)
        longest = max((max(shape) for shape in self.shapes.values()), default=0)
        once = all(self.passes(outputs) == 1 for _, outputs in self.shapes.values())
        self.x, self.y = end, end if once else end + longest * BLOCK
        self.size = self.y + longest * BLOCK

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.size * self.itemsize

    def passes(self, outputs: int) -> int:
        """In how many passes a product has so many numbers."""
        return -(-outputs // (8 * self.columns))

    def rows(self, outputs: int) -> int:
        """How many of them a thread has in a pass: whole vectors."""
        vector = self.columns // 2
        return -(-outputs // (self.columns * self.passes(outputs) * vector)) * vector

    def wide(self, outputs: int) -> int:
        """How many there are with those that fill up the last pass."""
        return self.rows(outputs) * self.columns * self.passes(outputs)

    def load(self, arrays: dict[int, str]) -> list[str]:
        """Lines that fill the matrices from their arrays."""
        found = []
        for i, place in self.places.items():
            (inner, outputs), wide = self.shapes[i], self.wide(self.shapes[i][1])
            entry = f"{arrays[i]}[i / {wide} * {outputs} + i % {wide}]"
            found += [
                f"for (int i = threadIdx.x; i < {inner * wide}; i += BLOCK)",
                f"    room[{place} + i] = i % {wide} < {outputs} ? {entry} : real(0);",
            ]
        return found

    def multiply(self, line: Multiplied) -> list[str]:
        """Lines for a product."""
        outputs, inputs = len(line.outputs), len(line.inputs)
        sizes = f"{outputs}, {inputs}, {self.rows(outputs)}, {self.passes(outputs)}"
        places = ", ".join(f"room + {n}" for n in (self.places[line.leaf], self.x, self.y))
        column = "BLOCK + threadIdx.x]"
        return [
            *(f"room[{self.x} + {j} * {column} = {v};" for j, v in enumerate(line.inputs)),
            "__syncthreads();",
            f"multiply<{sizes}>({places});",
            *(
                f"const auto {name} = room[{self.y} + {j} * {column};"
                for j, name in enumerate(line.outputs)
            ),
        ]


def _matrix_type(program: Program) -> Any:
    kinds = {np.dtype(program.leaves[i].dtype) for i in program.matrices}
    if len(kinds) > 1:
        raise CannotFuse("its large shared matrices are of several types")
    return next(iter(kinds), np.dtype(program.dtype))


def installed() -> bool:
    """Whether CuPy is there."""
    return importlib.util.find_spec("cupy") is not None


def cupy_module() -> Any:
    """CuPy, which only a GPU needs."""
    return importlib.import_module("cupy")


def advance(
    program: Program,
    leaves: dict[int, Array],
    zeros: tuple[bytes, ...] | None,
    marks: np.ndarray,
    end: int,
    running: Bool[Array, " runs"],
) -> tuple[list[Array], Array, Array, np.ndarray]:
    """As `cpp.advance`, on the arrays of a GPU."""
    cupy = cupy_module()
    runs, read = running.shape[0], [*program.carried, *program.given]
    jax.block_until_ready((leaves, running))
    [device] = running.devices()
    kernel, constants = compiled(program, zeros, device.local_hardware_id)
    with cupy.cuda.Device(device.local_hardware_id):
        given = {i: cupy.from_dlpack(_plain(leaves[i])) for i in read}
        for i, room in constants.items():
            room[...] = given.pop(i)
        after = [cupy.empty_like(given[i]) for i in program.carried]
        # One number at least: an empty array has no place in memory.
        shape = (max(1, len(marks)), max(1, program.seen_count), runs)
        record = cupy.empty(shape, program.dtype)
        made, odd = cupy.empty(runs, np.int64), cupy.zeros(runs, np.uint8)
        steps = (np.int64(leaves[program.counter].item()), np.int64(end), np.int32(len(marks)))
        times = cupy.asarray(np.append(marks, end), np.int64)
        alive = cupy.from_dlpack(running.view(np.uint8))
        arguments = (*steps, np.int64(runs), times, alive, made, odd, record)
        blocks, shared = -(-runs // BLOCK), SharedMemory(program).bytes
        kernel((blocks,), (BLOCK,), (*arguments, *given.values(), *after), shared_mem=shared)
        cupy.cuda.get_current_stream().synchronize()
        flags = cupy.asnumpy(odd).astype(bool)
    found = [jnp.from_dlpack(a) for a in (*after, record, made)]
    carried = [
        a.astype(bool) if program.leaves[i].dtype == bool else a
        for i, a in zip(program.carried, found[:-2], strict=True)
    ]
    return carried, by_run(found[-2], len(marks), program.seen_count), found[-1], flags


def _plain(array: Array) -> Array:
    """Bools as bytes, which every exchange of arrays knows."""
    return array.view(np.uint8) if array.dtype == bool else array


@functools.partial(jax.jit, static_argnames=("marks", "count"))
def by_run(record: Array, marks: int, count: int) -> Array:
    """Records [mark, numbers, run] as [run, mark, numbers]."""
    return jnp.moveaxis(record, 2, 0)[:, :marks, :count]


@functools.lru_cache(maxsize=64)
def _compiled(program: Program, zeros: tuple[bytes, ...] | None, device: int) -> Any:
    """The kernel and its constant memory, or why there is none."""
    return patiently(lambda: _built(program, zeros, device))


def patiently(built: Callable[[], Any]) -> Any:
    """What is built, or why it is not: the compiler failed, or took longer than `PATIENCE`."""
    found: list[Any] = []

    def build() -> None:
        try:
            found.append(built())
        except CannotFuse as reason:
            found.append(reason)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            said = next((line for line in lines if "error" in line), lines[0])
            found.append(CannotFuse(f"the CUDA compiler failed: {said}"))

    worker = threading.Thread(target=build, daemon=True)  # the compiler cannot be stopped
    worker.start()
    worker.join(PATIENCE)
    return found[0] if found else CannotFuse(f"the CUDA compiler took longer than {PATIENCE:g} s")


def compiled(
    program: Program, zeros: tuple[bytes, ...] | None, device: int = 0
) -> tuple[Any, dict[int, Any]]:
    """The kernel, and the constant memory of the arrays that all runs share."""
    found = _compiled(program, zeros, device)
    if isinstance(found, CannotFuse):
        raise found
    return found


def _built(program: Program, zeros: tuple[bytes, ...] | None, device: int) -> Any:
    cupy = cupy_module()
    written = write(program, zeros)
    with cupy.cuda.Device(device):
        module = cupy.RawModule(code=source(program, written), options=OPTIONS)
        kernel = module.get_function("train")
        kernel.max_dynamic_shared_size_bytes = SharedMemory(program).bytes
        return kernel, constant_memory(cupy, module, program, written)


def constant_memory(cupy: Any, module: Any, program: Program, written: Written) -> dict[int, Any]:
    """Where a compiled kernel reads the arrays that all runs share, by leaf; matrices apart."""
    found = {}
    for i in program.given:
        leaf = program.leaves[i]
        if not leaf.own and not leaf.matrix:
            place = module.get_global(written.arrays[i])
            kind = np.uint8 if leaf.dtype == bool else leaf.dtype
            found[i] = cupy.ndarray(leaf.size, kind, place)
    return found


def source(program: Program, written: Written) -> str:
    """The kernel: straight-line code for one run, in a loop over the steps."""
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    kinds = {name: np.dtype(leaf.dtype).name for name, leaf in leaves.items()}
    changing = [written.arrays[i] for i in program.carried]
    own = [(name, j) for name, leaf in leaves.items() if leaf.own for j in range(leaf.size)]
    fixed = {n: leaf.size for n, leaf in leaves.items() if not leaf.own and not leaf.matrix}
    first = [f"{kinds[name]} {name}_{j} = {name}[{j} * runs + run];" for name, j in own]
    first += [f"const {kinds[n]} {n}_{j} = {n}[{j}];" for n in fixed for j in range(fixed[n])]
    constant = [f"__constant__ {kinds[n]} {n}[{max(1, size)}];" for n, size in fixed.items()]
    given = [name for name in leaves if name not in fixed]
    arrays = [f"const {kinds[name]}* __restrict__ {name}" for name in given]
    arrays += [f"{kinds[name]}* __restrict__ {name}_after" for name in changing]
    memory, seen = SharedMemory(program), np.dtype(program.dtype).name
    shows = [
        f"record[(t * {len(written.seen)}LL + {j}) * runs + run] = "
        f"go ? {seen}({value.expression}) : {seen}(NOT_A_NUMBER);"
        for j, value in enumerate(written.seen)
    ]
    # All new values are computed before any is stored: states may change places.
    new = [
        f"const {written.kinds[name]} new_{name} = {value.expression};"
        for name, value in written.after.items()
    ]
    store = [f"{name} = new_{name};" for name in written.after]
    back = [f"{name}_after[{j} * runs + run] = {name}_{j};" for name, j in own if name in changing]
    clock = f"const {written.kinds['clock']} clock = {written.kinds['clock']}(step);"
    return f"""
{HEAD}
{type_names()}
typedef {memory.kind} real;
constexpr int BLOCK = {BLOCK};
{FUNCTIONS}
{indented(constant, 0)}
{PRODUCT if memory.places else ""}
extern "C" __global__ void __launch_bounds__(BLOCK) train(
    const whole begin, const whole end, const int count, const whole runs,
    const whole* __restrict__ marks, const unsigned char* __restrict__ alive,
    whole* __restrict__ made, unsigned char* __restrict__ odds, {seen}* __restrict__ record,
    {", ".join(arrays)}) {{
    extern __shared__ __align__(16) real room[];
    const whole index = blockIdx.x * whole(BLOCK) + threadIdx.x;
    const whole run = index < runs ? index : runs - 1;
{indented(memory.load(written.arrays), 4)}
{indented(first, 4)}
    bool go = alive[run], odd = false;
    int good = 0;
    whole step = begin;
    for (int t = 0; t <= count; t++) {{
        for (int left = int((t < count ? marks[t] : end) - step); left > 0; left--) {{
            {clock}
{indented(lines_of(written.step, memory), 12)}
            {not_finite(written.checks)}
            go = go && {written.succeeds.expression};
            if (go) {{
{indented([*new, *store], 16)}
                good++;
            }}
            step++;
        }}
        {not_finite(written.guarded, "")}
        if (t == count) break;
        {{
            {clock}
{indented(lines_of(written.look, memory), 12)}
            {not_finite(written.look_checks)}
            if (index < runs) {{
{indented(shows, 16)}
            }}
        }}
    }}
    if (index >= runs) return;
    made[run] = begin + good;
    odds[run] = odd;
{indented(back, 4)}
}}
"""


def not_finite(names: list[str], while_running: str = "go && ") -> str:
    """A line that notes a run with a number that is not finite."""
    fine = " && ".join(f"finite_({name})" for name in names)
    return f"odd = odd || ({while_running}!({fine}));" if names else ""


def lines_of(text: list[Statement | Multiplied], memory: SharedMemory) -> list[str]:
    """The statements as lines of a kernel."""
    found: list[str] = []
    for line in text:
        if isinstance(line, Statement):
            found.append(f"const {line.kind} {line.name} = {line.expression};")
        else:
            found += memory.multiply(line)
    return found
