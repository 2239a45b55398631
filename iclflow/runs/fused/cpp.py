"""The fused loop in C++: blocks of runs side by side, compiled by the compiler of this machine.

A block is `LANES` runs. Its values lie in rows of `LANES` numbers, one row per value, and a step is
a loop over the lanes that the compiler turns into vector instructions. All blocks are advanced by
one compiled function for a step. A block in which a run fails is advanced again by the same
function, with a copy of the state before each step, so that the other runs of the block keep every
bit. Products and sums are contracted where `values` says so and nowhere else (`-ffp-contract=off`):
the bits of a run depend neither on its neighbours nor on the pieces that it is computed in.
"""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.runs.fused.program import Program, Written, write
from iclflow.runs.fused.rules import FUNCTIONS
from iclflow.runs.fused.schedule import scheduled, segments
from iclflow.runs.fused.values import TYPES, CannotFuse, Multiplied, Statement

LANES = 16  # runs in a block: a vector or two; a loop of eight is unrolled, not vectorised
SHARES = 8  # pieces per core: where other programs take time, all cores end together
PATIENCE = 180.0  # seconds that the compiler may take
OPTIONS = ["-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
HEAD = """
#include <cmath>
#include <cstring>
#define FUNCTION static inline
#define NOT_A_NUMBER __builtin_nan("")
#define INFINITE __builtin_inf()
using std::sqrt, std::pow;
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMA)
FUNCTION double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
FUNCTION float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
FUNCTION double multiply_add(double a, double b, double c) { return a * b + c; }
FUNCTION float multiply_add(float a, float b, float c) { return a * b + c; }
#endif
FUNCTION double absolute(double a) { return __builtin_fabs(a); }
FUNCTION float absolute(float a) { return __builtin_fabsf(a); }
FUNCTION double remainder_of(double a, double b) { return std::fmod(a, b); }
FUNCTION float remainder_of(float a, float b) { return std::fmod(a, b); }
"""
# Rows of the result are summed in registers, some at a time; a shared matrix is read where it lies.
PRODUCT = """
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
template <class T, int N, int F, int K> static inline void rows(
    const T* matrix, const T (*x)[LANES], T (*y)[LANES], int first) {
    typedef T Vector __attribute__((vector_size(64)));
    constexpr int PARTS = LANES * sizeof(T) / 64;
    Vector sums[N][PARTS] = {};
    for (int k = 0; k < K; k++)
        #pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            #pragma GCC unroll 2
            for (int j = 0; j < PARTS; j++)
                sums[i][j] += matrix[k * F + first + i] * ((const Vector*) x[k])[j];
    #pragma GCC unroll 16
    for (int i = 0; i < N; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < PARTS; j++) ((Vector*) y[first + i])[j] = sums[i][j];
}

template <class T, int F, int K> __attribute__((noinline)) static void multiply(
    const T* matrix, const T (*x)[LANES], T (*y)[LANES]) {
    constexpr int SOME = 12 / (LANES * sizeof(T) / 64);
    int first = 0;
    for (; first + SOME <= F; first += SOME) rows<T, SOME, F, K>(matrix, x, y, first);
    if constexpr (F % SOME != 0) rows<T, F % SOME, F, K>(matrix, x, y, first);
}
#pragma GCC pop_options
"""


@functools.cache
def compiler() -> str | None:
    """The command of a C++ compiler: `CXX`, or one that is found."""
    named = os.environ.get("CXX")
    return named or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@functools.lru_cache(maxsize=64)
def _compiled(
    program: Program, zeros: tuple[bytes, ...] | None, options: tuple[str, ...]
) -> Callable[..., None] | CannotFuse:
    """The loop, or why there is none: a compiler that fails is not called twice."""
    try:
        found = library(source(program, write(program, zeros)), options)
    except CannotFuse as reason:
        return reason

    def loop(first: int, last: int, begin: int, end: int, *arrays: np.ndarray) -> None:
        numbers = (ctypes.c_longlong(n) for n in (first, last, begin, end, len(arrays[0])))
        found.loop(*numbers, *(ctypes.c_void_p(a.ctypes.data) for a in arrays))

    return loop


def compiled(
    program: Program, zeros: tuple[bytes, ...] | None, options: tuple[str, ...] = ()
) -> Callable[..., None]:
    """The loop of a program; `CannotFuse` if the compiler fails or takes longer than `PATIENCE`."""
    found = _compiled(program, zeros, options)
    if isinstance(found, CannotFuse):
        raise found
    return found


def library(code: str, options: tuple[str, ...]) -> Any:
    """A compiled program, loaded into this process; its files are deleted."""
    command = shlex.split(compiler() or "c++")
    with tempfile.TemporaryDirectory(prefix="iclflow-") as folder:
        path, made = Path(folder, "loop.cpp"), Path(folder, "loop.so")
        path.write_text(code, encoding="utf-8")
        for more in (_native(), []):  # not every compiler knows its machine
            call = [*command, *OPTIONS, *options, *more, "-o", str(made), str(path)]
            problem = _run(call)
            if problem is None:
                return ctypes.CDLL(str(made))
        raise CannotFuse(f"the C++ compiler {command[0]} failed: {problem}")


def _run(call: list[str]) -> str | None:
    """None, or why a command failed; one that takes too long is ended with all that it started."""
    try:
        process = subprocess.Popen(
            call,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CannotFuse(f"the C++ compiler took longer than {PATIENCE:g} s") from None
        raise
    lines = [line for line in said.splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    return None if process.returncode == 0 else said.strip()


def _native() -> list[str]:
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    return ["-march=native", *wide]


def type_names() -> str:
    """The names of the types, as they are in NumPy."""
    names = "\n".join(f"typedef {kind} {name};" for name, kind in TYPES.items() if name != kind)
    return f"{names}\ntypedef long long whole;"


class Rooms:
    """Rows of values, one room per type."""

    def __init__(self, owner: str) -> None:
        self.owner, self.rows = owner, dict[str, int]()

    def take(self, kind: str, count: int) -> int:
        """The first of `count` new rows of a type."""
        first = self.rows.get(kind, 0)
        self.rows[kind] = first + count
        return first

    def place(self, kind: str, row: int) -> str:
        return f"block.{self.owner}.{kind}_rows[{row}][lane]"

    def struct(self, name: str) -> str:
        members = [f"alignas(64) {k} {k}_rows[{max(1, n)}][LANES];" for k, n in self.rows.items()]
        return f"struct {name} {{\n{indented(members, 4)}\n}};"


def source(program: Program, written: Written) -> str:
    """The whole C++ program."""
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    kinds = {name: np.dtype(leaf.dtype).name for name, leaf in leaves.items()}
    own = {name: leaf for name, leaf in leaves.items() if leaf.own}
    shared = {n: leaf for n, leaf in leaves.items() if not leaf.own}
    state, scratch = Rooms("state"), Rooms("scratch")
    first = {name: state.take(kinds[name], leaf.size) for name, leaf in own.items()}
    places = {
        f"{name}_{j}": state.place(kinds[name], first[name] + j)
        for name, leaf in own.items()
        for j in range(leaf.size)
    }
    real, seen = "float64", np.dtype(program.dtype).name
    if all(np.dtype(f.dtype) != np.float64 for f in leaves.values()):
        real = "float32"  # counters as wide as the values let the compiler use vectors
    count = lambda name, word, reads: Statement(  # noqa: E731
        f"block.{name}[lane]", "", f"block.{name}[lane] + ({word} ? {real}(0) : {real}(1))", reads
    )
    finite = lambda names: [count("odd", f"finite_({n})", (n,)) for n in names]  # noqa: E731
    stores = [Statement(places[name], "", *value) for name, value in written.after.items()]
    stores += [count("failed", *written.succeeds), *finite(written.checks)]
    shows = [
        Statement(f"block.seen[{j}][lane]", "", f"{seen}({value.expression})", value.reads)
        for j, value in enumerate(written.seen)
    ]
    shows += finite(written.look_checks)
    functions = [
        function("advance", loops(written, written.step, stores, places, scratch), shared),
        function("look", loops(written, written.look, shows, places, scratch), shared),
        function("inspect", loops(written, [], finite(written.guarded), places, scratch), shared),
    ]
    copies, back = [], []
    for name, leaf in own.items():
        there, size = f"{name} + number * {leaf.size} * LANES", f"sizeof(*{name}) * LANES"
        here = f"state.{kinds[name]}_rows[{first[name]}]"
        copies.append(f"std::memcpy(block.{here}, {there}, {leaf.size} * {size});")
        if any(written.arrays[i] == name for i in program.carried):
            back.append(f"std::memcpy({there}, block.{here}, {leaf.size} * {size});")
    row = "{0}.{2}_rows[row][lane] = {1}.{2}_rows[row][lane];"
    keep, revive = (
        [
            f"for (int row = 0; row < {n}; row++) {row.format(to, start, kind)}"
            for kind, n in state.rows.items()
        ]
        for to, start in (("kept", "before"), ("block.state", "kept"))
    )
    members = [f"const {kinds[n]}* {n};" for n in shared]
    arrays = ", ".join(f"{kinds[name]}* {name}" for name in leaves)
    given = ", ".join(shared)
    return f"""
{HEAD}
{type_names()}
constexpr int LANES = {LANES}, SEEN = {program.seen_count};
{FUNCTIONS}
{PRODUCT if program.matrices else ""}
{state.struct("State")}
{scratch.struct("Scratch")}
struct Shared {{
{indented(members, 4)}
}};
struct Block {{
    State state;
    Scratch scratch;
    alignas(64) {seen} seen[{max(1, program.seen_count)}][LANES];
    alignas(64) {real} failed[LANES], odd[LANES];
}};
{"".join(functions)}
extern "C" void loop(whole first, whole last, whole begin, whole end, whole count,
        const whole* marks, const bool* alives, whole* mades, bool* odds, {seen}* record,
        {arrays}) {{
    const Shared shared{{{given}}};
    static thread_local Block block;
    static thread_local State before, kept;
    for (whole number = first; number < last; number++) {{
        bool alive[LANES], odd[LANES], careful = false, any = true;
        whole made[LANES];
        for (int lane = 0; lane < LANES; lane++) careful |= !alives[number * LANES + lane];
    again:
{indented(copies, 8)}
        if (careful) kept = block.state;
        for (int lane = 0; lane < LANES; lane++) {{
            alive[lane] = alives[number * LANES + lane];
            made[lane] = end > begin ? end : begin;
            odd[lane] = false;
            block.failed[lane] = block.odd[lane] = 0;
        }}
        whole step = begin;
        for (whole t = 0; t <= count; t++) {{
            const whole target = t < count ? marks[t] : end;
            if (!careful) {{
                for (; step < target; step++) advance(block, shared, step);
                for (int lane = 0; lane < LANES; lane++) careful |= block.failed[lane] > 0;
                if (careful) goto again;
            }} else {{
                for (; step < target && any; step++) {{
                    before = block.state;
                    for (int lane = 0; lane < LANES; lane++) block.failed[lane] = 0;
                    advance(block, shared, step);
                    any = false;
                    for (int lane = 0; lane < LANES; lane++) {{
                        if (!alive[lane]) continue;
                        odd[lane] |= block.odd[lane] > 0;
                        if (block.failed[lane] > 0) {{
                            alive[lane] = false;
                            made[lane] = step;
{indented(keep, 28)}
                        }}
                        any |= alive[lane];
                    }}
                }}
            }}
            if (step < target) step = target;
            if (t == count) break;
            look(block, shared, step);
            inspect(block, shared, step);
            {seen}* shown = record + (number * count + t) * SEEN * LANES;
            for (int j = 0; j < SEEN; j++)
                for (int lane = 0; lane < LANES; lane++)
                    shown[j * LANES + lane] =
                        alive[lane] ? block.seen[j][lane] : {seen}(NOT_A_NUMBER);
            for (int lane = 0; lane < LANES; lane++)
                odd[lane] |= alive[lane] && block.odd[lane] > 0;
        }}
        for (int lane = 0; lane < LANES; lane++) {{
            if (alive[lane]) continue;
            block.odd[lane] = 0;
{indented(revive, 12)}
        }}
        inspect(block, shared, step);
        for (int lane = 0; lane < LANES; lane++) {{
            odd[lane] |= block.odd[lane] > 0;
            mades[number * LANES + lane] = made[lane];
            odds[number * LANES + lane] = odd[lane];
        }}
{indented(back, 8)}
    }}
}}
"""


def function(
    name: str,
    lines: list[str],
    shared: dict[str, Any],
    arguments: str = "const whole step",
    block: str = "Block",
) -> str:
    """A function of a block; it is called, never copied, so that it is compiled in one way."""
    loads = [
        f"const auto {n}_{j} = shared.{n}[{j}];"
        for n, leaf in shared.items()
        if not leaf.matrix
        for j in range(leaf.size)
        if any(f"{n}_{j}" in line for line in lines)
    ]
    return f"""
static __attribute__((noinline)) void {name}(
        {block}& block, const Shared& shared, {arguments}) {{
{indented([*loads, *lines], 4)}
}}
"""


def loops(
    written: Written,
    text: list[Statement | Multiplied],
    last: list[Statement],
    places: dict[str, str],
    scratch: Rooms,
) -> list[str]:
    """Statements as loops over the lanes, cut at products with a shared matrix."""
    found: list[str] = []
    places, kinds = dict(places), dict(written.kinds)
    for lines, product, kept in segments(text, last):
        kinds |= {line.name: line.kind for line in lines}
        if product is None:
            found += _lanes(scheduled([*lines, *last], places, kinds), written)
            continue
        sizes = len(product.inputs), len(product.outputs)
        x, y = (scratch.take(product.kind, size) for size in sizes)
        rows = {name: scratch.place(kinds[name], scratch.take(kinds[name], 1)) for name in kept}
        known = set(product.reads)
        put = [
            Statement(
                scratch.place(product.kind, x + j), "", word, (word,) if word in known else ()
            )
            for j, word in enumerate(product.inputs)
        ]
        put += [Statement(place, "", name, (name,)) for name, place in rows.items()]
        found += _lanes(scheduled([*lines, *put], places, kinds), written)
        array = written.arrays[product.leaf]
        room = f"block.scratch.{product.kind}_rows"
        found.append(
            f"multiply<{product.kind}, {sizes[1]}, {sizes[0]}>"
            f"(shared.{array}, {room} + {x}, {room} + {y});"
        )
        places |= rows
        kinds |= dict.fromkeys(product.outputs, product.kind)
        places |= {
            name: scratch.place(product.kind, y + j) for j, name in enumerate(product.outputs)
        }
    return found


def _lanes(statements: list[Statement], written: Written) -> list[str]:
    if not statements:
        return []
    lines = [f"const {s.kind} {s.name}" if s.kind else s.name for s in statements]
    body = [f"{left} = {s.expression};" for left, s in zip(lines, statements, strict=True)]
    kind = written.kinds.get("clock")
    clock = f"const {kind} clock = {kind}(step);" if kind else ""
    loop = ["#pragma GCC ivdep", "for (int lane = 0; lane < LANES; lane++) {"]
    return ["{", f"    {clock}", *loop, *(f"    {line}" for line in body), "}", "}"]


def indented(lines: list[str], by: int) -> str:
    """The lines as a block of a program."""
    return textwrap.indent("\n".join(lines), " " * by)


def advance(
    program: Program,
    leaves: dict[int, np.ndarray],
    zeros: tuple[bytes, ...] | None,
    marks: np.ndarray,
    end: int,
    running: np.ndarray,
    cores: int,
    options: tuple[str, ...] = (),
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """All runs to `end`: carried leaves [numbers, run], records, steps made, runs to check.

    The records are [run, mark, numbers]. Runs to check are those that had a number that is not
    finite where a sum dropped a zero; there are none without `zeros`.

    - `leaves`: those that `program` reads, flat: [numbers, run], or [numbers] where shared.
    - `zeros`: of each shared leaf, which entries are zero and drop out of the program.
    - `marks`: the steps at which something is recorded.
    - `running`: which runs have not failed before.
    - `cores`: the number of threads.
    - `options`: more options for the compiler.
    """
    runs, read = len(running), [*program.carried, *program.given]
    loop = compiled(program, zeros, options)
    arrays = [
        _blocks(leaves[i]) if program.leaves[i].own else np.ascontiguousarray(leaves[i])
        for i in read
    ]
    alive = np.ascontiguousarray(_blocks(np.asarray(running, bool)[None])[:, 0])
    record = np.empty((len(alive), len(marks), program.seen_count, LANES), program.dtype)
    begin, steps = int(leaves[program.counter].item()), np.ascontiguousarray(marks, np.int64)
    made, odd = np.empty(alive.shape, np.int64), np.zeros(alive.shape, bool)
    workers = max(1, min(cores, len(alive)))
    with ThreadPoolExecutor(workers) as pool:  # the loop holds no lock
        ends = np.linspace(0, len(alive), SHARES * workers + 1).astype(int).tolist()
        given = (steps, alive, made, odd, record, *arrays)
        jobs = [pool.submit(loop, *part, begin, end, *given) for part in pairwise(ends)]
        for job in jobs:
            job.result()
    after = [_rows(a)[:, :runs] for a in arrays[: len(program.carried)]]
    seen = np.moveaxis(record, 3, 1).reshape(made.size, *record.shape[1:3])
    return after, seen[:runs], made.reshape(-1)[:runs], odd.reshape(-1)[:runs]


def _blocks(rows: np.ndarray) -> np.ndarray:
    """[numbers, run] as blocks of runs side by side, [block, numbers, lane]."""
    wide = np.pad(rows, ((0, 0), (0, -rows.shape[1] % LANES)), mode="edge")
    return np.moveaxis(wide.reshape(len(rows), wide.shape[1] // LANES, LANES), 1, 0).copy()


def _rows(blocks: np.ndarray) -> np.ndarray:
    return np.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], len(blocks) * LANES)
