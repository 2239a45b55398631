"""The loop over blocks of runs in C++, compiled by the compiler of this machine."""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.runs.fused.lanes import LANES, Block, Loops, Product, block
from iclflow.runs.fused.order import NAME
from iclflow.runs.fused.program import Program
from iclflow.runs.fused.writing import CPP, TYPES, indented, type_names, write

# Contracted products and sums only: NaN and infinity keep their meaning.
OPTIONS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-w"]
# Rows of the result are summed in registers, some at a time; a table is read where it lies.
PRODUCT = """
typedef real Vector __attribute__((vector_size(64)));
constexpr int PARTS = LANES * sizeof(real) / 64, SOME = 12 / PARTS;

template <int N, int F, int K> static inline void rows(
    const real* table, const real (&x)[K][LANES], real (&y)[F][LANES], int first) {
    Vector sums[N][PARTS] = {};
    for (int k = 0; k < K; k++)
        #pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            #pragma GCC unroll 2
            for (int j = 0; j < PARTS; j++)
                sums[i][j] += table[k * F + first + i] * ((const Vector*) x[k])[j];
    #pragma GCC unroll 16
    for (int i = 0; i < N; i++)
        #pragma GCC unroll 2
        for (int j = 0; j < PARTS; j++) ((Vector*) y[first + i])[j] = sums[i][j];
}

template <int F, int K> static inline void multiply(
    const real* table, const real (&x)[K][LANES], real (&y)[F][LANES]) {
    int first = 0;
    for (; first + SOME <= F; first += SOME) rows<SOME, F, K>(table, x, y, first);
    if constexpr (F % SOME != 0) rows<F % SOME, F, K>(table, x, y, first);
}
"""


@functools.cache
def compiler() -> str | None:
    """The command of a C++ compiler: `CXX`, or one that is found."""
    named = os.environ.get("CXX")
    return named or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@functools.cache
def trouble() -> str | None:
    """None, or what is wrong with the compiler: a program is compiled and called."""
    try:
        answer = 'extern "C" int answer() { return 42; }'
        library = _library(_head("float64") + PRODUCT + answer)
        return None if library.answer() == 42 else "its programs do not work"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]


@functools.lru_cache(maxsize=64)
def compiled(program: Program, zeros: tuple[bytes, ...], careful: bool) -> Callable[..., None]:
    """The loop: (first block, last, begin, marks, well, alive, made, record, *arrays)."""
    written = write(program, zeros, CPP)
    library = _library(_source(block(program, written, CPP, careful), program))

    def loop(first: int, last: int, begin: int, *arrays: np.ndarray) -> None:
        numbers = (ctypes.c_longlong(n) for n in (first, last, begin, len(arrays[0])))
        library.loop(*numbers, *(ctypes.c_void_p(a.ctypes.data) for a in arrays))

    return loop


def _library(source: str) -> Any:
    """A compiled program, in this process; its files are gone."""
    command = shlex.split(compiler() or "c++")
    with tempfile.TemporaryDirectory(prefix="iclflow-") as folder:
        code, made = Path(folder, "loop.cpp"), Path(folder, "loop.so")
        code.write_text(source, encoding="utf-8")
        for more in (_native(), []):  # not every compiler knows its machine
            call = [*command, *OPTIONS, *more, "-o", str(made), str(code)]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return ctypes.CDLL(str(made))
        raise OSError(f"{command[0]}: {done.stderr.strip() or 'it failed'}")


def _native() -> list[str]:
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    return ["-march=native", *wide]


def _head(real: str) -> str:
    return f"""
#include <cmath>
#include <cstring>
#include <limits>
using std::sqrt, std::pow;
{type_names(real)}
constexpr int LANES = {LANES};
#define nan std::numeric_limits<double>::quiet_NaN()
#define inf std::numeric_limits<double>::infinity()
"""


def _source(what: Block, program: Program) -> str:
    kinds = {n: TYPES[np.dtype(leaf.dtype).name] for n, leaf in what.leaves.items()}
    room = [f"alignas(64) real {name}[{rows}][LANES];" for name, rows in what.rooms.items()]
    copies, back = [], []
    for name, (place, first) in what.rows.items():
        size = what.leaves[name].size
        if place not in what.rooms:
            room.append(f"alignas(64) {kinds[name]} {place}[{size}][LANES];")
        there = f"{name} + block * {size} * LANES"
        copies.append(f"std::memcpy({place}[{first}], {there}, sizeof(*{name}) * {size} * LANES);")
        if name in what.changing:
            back.append(
                f"std::memcpy({there}, {place}[{first}], sizeof(*{name}) * {size} * LANES);"
            )
    if what.careful:
        back.append("for (int lane = 0; lane < LANES; lane++) {")
        back.append("    alives[block * LANES + lane] = alive[lane];")
        back.append("    mades[block * LANES + lane] = begin + made[lane];")
        back.append("}")
    fixed = {n: leaf.size for n, leaf in what.leaves.items() if not leaf.own and not leaf.table}
    room += [f"const auto {n}_{j} = {n}[{j}];" for n, size in fixed.items() for j in range(size)]
    arrays = ", ".join(f"{kind}* __restrict__ {name}" for name, kind in kinds.items())
    tables = any(leaf.table for leaf in what.leaves.values())
    return f"""
{_head(np.dtype(program.dtype).name)}
{PRODUCT if tables else ""}
constexpr int SEEN = {program.seen_count};
extern "C" void loop(whole first, whole last, whole begin, whole count, const whole* marks,
        bool* well, bool* alives, whole* mades, real* record, {arrays}) {{
    int alive[LANES], made[LANES];  // as wide as numbers, for vectors
    alignas(64) real bad[LANES];
{indented(room, 4)}
    for (whole block = first; block < last; block++) {{
        for (int lane = 0; lane < LANES; lane++) {{
            alive[lane] = alives[block * LANES + lane];
            made[lane] = 0;
            bad[lane] = 0;
        }}
{indented(copies, 8)}
        whole step = begin;
        for (whole t = 0; t < count && well[block]; t++) {{
            for (; step < marks[t]; step++) {{
{indented(_lines(what.step), 16)}
            }}
            for (int lane = 0; lane < LANES; lane++) well[block] &= !(bad[lane] > 0);
{indented(_lines(what.look), 12)}
            real* shown = record + (block * count + t) * SEEN * LANES;
            std::memcpy(shown, seen, sizeof(real) * SEEN * LANES);
        }}
        if (!well[block]) continue;
{indented(back, 8)}
    }}
}}
"""


def _lines(loops: Loops) -> list[str]:
    found: list[str] = []
    for part in loops:
        if isinstance(part, Product):
            found.append(f"multiply({part.table}, {part.x}, {part.y});")
            continue
        found += ["#pragma GCC ivdep", "for (int lane = 0; lane < LANES; lane++) {"]
        kinds = ["const auto " if NAME.fullmatch(s.name) else "" for s in part]
        lines = zip(kinds, part, strict=True)
        found += [f"    {kind}{s.name} = {s.expression};" for kind, s in lines] + ["}"]
    return found
