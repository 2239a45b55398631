"""The whole of a training as one CUDA kernel: a thread a run, its weights in registers (CuPy)."""

import functools
import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from iclflow.runs.fused.order import Statement
from iclflow.runs.fused.program import Program
from iclflow.runs.fused.tables import BLOCK, PRODUCT, Room
from iclflow.runs.fused.writing import CPP, TYPES, Multiplied, Written, indented, type_names, write


def installed() -> bool:
    """Whether CuPy is there."""
    return importlib.util.find_spec("cupy") is not None


def _cupy() -> Any:
    return importlib.import_module("cupy")


def advance(
    program: Program,
    leaves: dict[int, Array],
    zeros: tuple[bytes, ...],
    marks: np.ndarray,
    running: Bool[Array, " runs"],
) -> tuple[list[Array], Array, Array]:
    """As `cpu.advance`, on the arrays of a GPU."""
    cupy = _cupy()
    runs, read = running.shape[0], [*program.carried, *program.given]
    jax.block_until_ready((leaves, running))
    [device] = running.devices()
    with cupy.cuda.Device(device.local_hardware_id):
        kernel, constants = _compiled(program, zeros)
        given = {i: cupy.from_dlpack(leaves[i]) for i in read}
        for i, room in constants.items():
            room[...] = given.pop(i)
        after = [cupy.empty_like(given[i]) for i in program.carried]
        # One at least: an array without numbers has no place in memory.
        record = cupy.empty((len(marks), max(1, program.seen_count), runs), program.dtype)
        made = cupy.empty(runs, np.int64)
        steps = np.int64(leaves[program.clock].item()), np.int32(len(marks))
        times, alive = cupy.asarray(marks, np.int64), cupy.from_dlpack(running.view(np.uint8))
        arguments = (*steps, np.int64(runs), times, alive, made, record, *given.values(), *after)
        blocks, room = -(-runs // BLOCK), Room(program).bytes
        kernel((blocks,), (BLOCK,), arguments, shared_mem=room)
        cupy.cuda.get_current_stream().synchronize()
    found = [jnp.from_dlpack(a) for a in (*after, record, made)]
    return found[:-2], _by_run(found[-2], program.seen_count), found[-1]


@functools.partial(jax.jit, static_argnames="count")
def _by_run(record: Array, count: int) -> Array:
    return jnp.moveaxis(record, 2, 0)[:, :, :count]


@functools.lru_cache(maxsize=64)
def _compiled(program: Program, zeros: tuple[bytes, ...]) -> tuple[Any, dict[int, Any]]:
    """The kernel, and the constant memory of the arrays that all runs share."""
    cupy = _cupy()
    written = write(program, zeros, CPP)
    module = cupy.RawModule(code=source(program, written), options=("--std=c++17",))
    kernel = module.get_function("train")
    kernel.max_dynamic_shared_size_bytes = Room(program).bytes
    constants = {}
    for i in program.given:
        leaf = program.leaves[i]
        if not leaf.own and not leaf.table:
            place = module.get_global(written.arrays[i])
            constants[i] = cupy.ndarray(leaf.size, leaf.dtype, place)
    return kernel, constants


def source(program: Program, written: Written) -> str:
    """The kernel: straight-line code for one run, in a loop over the steps."""
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    kinds = {name: TYPES[np.dtype(leaf.dtype).name] for name, leaf in leaves.items()}
    changing = [written.arrays[i] for i in program.carried]
    own = [(name, j) for name, leaf in leaves.items() if leaf.own for j in range(leaf.size)]
    fixed = {n: leaf.size for n, leaf in leaves.items() if not leaf.own and not leaf.table}
    first = [f"{kinds[name]} {name}_{j} = {name}[{j} * runs + run];" for name, j in own]
    first += [f"const {kinds[n]} {n}_{j} = {n}[{j}];" for n in fixed for j in range(fixed[n])]
    constant = [f"__constant__ {kinds[name]} {name}[{size}];" for name, size in fixed.items()]
    outputs = ", ".join(f"{kinds[name]}* __restrict__ {name}_after" for name in changing)
    given = [name for name in leaves if name not in fixed]
    inputs = ", ".join(f"const {kinds[name]}* __restrict__ {name}" for name in given)
    room = Room(program)
    shows = [
        f"record[(t * {len(written.seen)}LL + {j}) * runs + run] = go ? real({value}) : real(nan);"
        for j, value in enumerate(written.seen)
    ]
    back = [f"{name}_after[{j} * runs + run] = {name}_{j};" for name, j in own if name in changing]
    return f"""
{type_names(np.dtype(program.dtype).name)}
constexpr int BLOCK = {BLOCK};
#define nan __longlong_as_double(0x7ff8000000000000LL)
#define inf __longlong_as_double(0x7ff0000000000000LL)
{indented(constant, 0)}
{PRODUCT if room.places else ""}
extern "C" __global__ void __launch_bounds__(BLOCK) train(
    const whole begin, const int marks_count, const whole runs,
    const whole* __restrict__ marks, const unsigned char* __restrict__ alive,
    whole* __restrict__ made, real* __restrict__ record, {inputs}, {outputs}) {{
    extern __shared__ __align__(16) real room[];
    const whole index = blockIdx.x * whole(BLOCK) + threadIdx.x;
    const whole run = index < runs ? index : runs - 1;
{indented(room.load(written.arrays), 4)}
{indented(first, 4)}
    bool go = alive[run];
    int good = 0;
    whole step = begin;
    for (int t = 0; t < marks_count; t++) {{
        for (int left = int(marks[t] - step); left > 0; left--) {{
{indented(_lines(written.step, room), 12)}
            go = go && {written.well};
            if (go) {{
{indented([f"{name} = {value};" for name, value in written.after.items()], 16)}
                good++;
            }}
            step++;
        }}
        {{
{indented(_lines(written.look, room), 12)}
            if (index < runs) {{
{indented(shows, 16)}
            }}
        }}
    }}
    if (index >= runs) return;
    made[run] = begin + good;
{indented(back, 4)}
}}
"""


def _lines(text: list[Statement | Multiplied], room: Room) -> list[str]:
    found: list[str] = []
    for line in text:
        if isinstance(line, Statement):
            found.append(f"const auto {line.name} = {line.expression};")
        else:
            found += room.multiply(line)
    return found
