"""The loop over blocks of runs in Python, compiled by Numba."""

import functools
import importlib.util
from typing import Any

import numpy as np

from iclflow.runs.fused.lanes import LANES, Block, Loops, Product, block
from iclflow.runs.fused.order import renamed
from iclflow.runs.fused.program import Program
from iclflow.runs.fused.writing import PYTHON, indented, write


def installed() -> bool:
    """Whether Numba is there (the extra `fast`)."""
    return importlib.util.find_spec("numba") is not None


@functools.lru_cache(maxsize=64)
def compiled(program: Program, zeros: tuple[bytes, ...], careful: bool) -> Any:
    """The loop: (first block, last, begin, marks, well, alive, made, record, *arrays)."""
    import numba

    _allow_vectors()
    space: dict[str, Any] = {"np": np, "nan": np.nan, "inf": np.inf}
    written = write(program, zeros, PYTHON)
    source = _source(block(program, written, PYTHON, careful), np.dtype(program.dtype).name)
    exec(source, space)  # written by us, from numbers and operators alone
    # Contracted products and sums only: NaN and infinity keep their meaning.
    options = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}
    return numba.njit(**options)(space["loop"])


@functools.cache
def _allow_vectors() -> None:
    """Let LLVM compare all addresses of a loop: of more than about 60 numbers it gives up else."""
    import llvmlite.binding as llvm

    llvm.set_option("", "-memory-check-merge-threshold=100000")


def _source(what: Block, real: str) -> str:
    room = [f"{name} = np.empty(({rows}, {LANES}), real)" for name, rows in what.rooms.items()]
    copies, back = [], []
    for name, (place, first) in what.rows.items():
        size = what.leaves[name].size
        if place not in what.rooms:
            room.append(f"{place} = np.empty(({size}, {LANES}), {name}.dtype)")
        copies.append(f"{place}[{first}:{first + size}] = {name}[block]")
        if name in what.changing:
            back.append(f"{name}[block] = {place}[{first}:{first + size}]")
    back += ["alives[block], mades[block] = alive, made"] if what.careful else []
    fixed = {n: f.size for n, f in what.leaves.items() if not f.own and not f.table}
    room += [f"{name}_{j} = {name}[{j}]" for name, size in fixed.items() for j in range(size)]
    return f"""
real, whole = np.{real}, np.int64
def loop(first, last, begin, marks, well, alives, mades, record, {", ".join(what.leaves)}):
    alive, made = np.empty({LANES}, np.bool_), np.empty({LANES}, np.int64)
    bad = np.empty({LANES}, real)
{indented(room, 4)}
    for block in range(first, last):
        alive[:], made[:], bad[:] = alives[block], begin, 0
{indented(copies, 8)}
        step = begin
        for t in range(len(marks)):
            for step in range(step, marks[t]):
{indented(_lines(what.step, "s"), 16)}
            step = max(begin, marks[t])
            if bad.max() > 0:
                well[block] = False
                break
{indented(_lines(what.look, "l"), 12)}
            record[block, t] = seen[:record.shape[2]]
        if not well[block]:
            continue
{indented(back, 8)}
"""


def _lines(loops: Loops, ending: str) -> list[str]:
    found: list[str] = []
    for n, part in enumerate(loops):
        if isinstance(part, Product):
            found.append(f"np.dot({part.table}.T, {part.x}, {part.y})")
            continue
        found += [f"for lane in range({LANES}):"] if part else []  # a look may record nothing
        # Numba's time grows with the square of the names that more than one loop has.
        found += [f"    {s.name} = {s.expression}" for s in renamed(part, f"_{ending}{n}")]
    return found
