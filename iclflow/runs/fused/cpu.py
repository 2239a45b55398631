"""The whole of a training as one compiled loop on the CPU: blocks of runs side by side (Numba)."""

import functools
import importlib.util
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from iclflow.runs.compiling import cores
from iclflow.runs.fused.numbers import Arithmetic
from iclflow.runs.fused.program import Program, numbers_of

LANES = 16  # runs side by side: a vector or two; a loop of eight is unrolled, not vectorised


def installed() -> bool:
    """Whether Numba is there (the extra `fast`)."""
    return importlib.util.find_spec("numba") is not None


def advance(
    program: Program, leaves: dict[int, np.ndarray], zeros: tuple[bytes, ...], marks: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """The carried leaves after the last mark, [numbers, run], and what is seen, [run, T, numbers].

    - `leaves`: those that `program` reads, flat: [numbers, run], or [numbers] where shared.
    - `zeros`: of each shared leaf, which numbers are zero and drop out of the program.
    """
    runs = leaves[program.carried[0]].shape[1]
    read = [*program.carried, *program.given]
    arrays = [_blocks(leaves[i]) if program.leaves[i].own else leaves[i] for i in read]
    count = arrays[0].shape[0]
    record = np.empty((count, len(marks), program.seen_count, LANES), program.dtype)
    loop = _compiled(_source(program, zeros))
    begin, steps = int(leaves[program.clock].item()), np.asarray(marks, np.int64)
    workers = min(cores(), count)
    with ThreadPoolExecutor(workers) as pool:  # the loop holds no lock
        ends = np.linspace(0, count, workers + 1).astype(int)
        jobs = [pool.submit(loop, *part, begin, steps, record, *arrays) for part in pairwise(ends)]
        for job in jobs:
            job.result()
    after = [_rows(arrays[n])[:, :runs] for n in range(len(program.carried))]
    seen = np.moveaxis(record, 3, 1).reshape(-1, *record.shape[1:3])
    return after, seen[:runs]


def _blocks(rows: np.ndarray) -> np.ndarray:
    """[numbers, run] as blocks of runs side by side, [block, numbers, lane]."""
    wide = np.pad(rows, ((0, 0), (0, -rows.shape[1] % LANES)), mode="edge")
    return np.moveaxis(wide.reshape(len(rows), -1, LANES), 1, 0).copy()


def _rows(blocks: np.ndarray) -> np.ndarray:
    return np.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> Any:
    import numba

    _allow_vectors()
    space: dict[str, Any] = {"np": np, "nan": np.nan, "inf": np.inf}
    exec(source, space)  # written by `_source`, from numbers and operators alone
    # Contracted products and sums only: NaN and infinity keep their meaning.
    options = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}
    return numba.njit(**options)(space["loop"])


@functools.cache
def _allow_vectors() -> None:
    """Let LLVM compare all addresses of a loop: of more than about 60 numbers it gives up else."""
    import llvmlite.binding as llvm

    llvm.set_option("", "-memory-check-merge-threshold=100000")


class _Symbol:
    """A number of the program that is being written: its name."""

    __slots__ = ("name", "text")

    def __init__(self, name: str, text: list[str]) -> None:
        self.name, self.text = name, text

    def write(self, expression: str) -> "_Symbol":
        """A new number, the value of an expression."""
        found = _Symbol(f"t{len(self.text)}", self.text)
        self.text.append(f"{found.name} = {expression}")
        return found

    def _with(self, sign: str, other: Any) -> "_Symbol":
        return self.write(f"{self.name} {sign} {_name(other)}")

    def __add__(self, other: Any) -> "_Symbol":
        return self._with("+", other)

    def __sub__(self, other: Any) -> "_Symbol":
        return self._with("-", other)

    def __mul__(self, other: Any) -> "_Symbol":
        return self._with("*", other)

    def __truediv__(self, other: Any) -> "_Symbol":
        return self._with("/", other)

    def __lt__(self, other: Any) -> "_Symbol":
        return self._with("<", other)

    def __and__(self, other: Any) -> "_Symbol":
        return self._with("&", other)

    def __eq__(self, other: object) -> "_Symbol":  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._with("==", other)

    def __radd__(self, other: Any) -> "_Symbol":
        return self.write(f"{_name(other)} + {self.name}")

    def __rsub__(self, other: Any) -> "_Symbol":
        return self.write(f"{_name(other)} - {self.name}")

    def __rmul__(self, other: Any) -> "_Symbol":
        return self.write(f"{_name(other)} * {self.name}")

    def __rtruediv__(self, other: Any) -> "_Symbol":
        return self.write(f"{_name(other)} / {self.name}")

    def __neg__(self) -> "_Symbol":
        return self.write(f"-{self.name}")

    def __invert__(self) -> "_Symbol":
        return self.write(f"not {self.name}")


def _name(value: Any) -> str:
    if isinstance(value, _Symbol):
        return value.name
    # A bare literal would lift a program in single precision out of it.
    return f"real({value!r})" if isinstance(value, float) else f"whole({value!r})"


def _writer(*values: Any) -> _Symbol:
    return next(v for v in values if isinstance(v, _Symbol))


def _choose(condition: Any, yes: Any, no: Any) -> _Symbol:
    return condition.write(f"{_name(yes)} if {_name(condition)} else {_name(no)}")


WRITING = Arithmetic(
    multiply_add=lambda x, y, z: _writer(x, y, z).write(f"{_name(x)} * {_name(y)} + {_name(z)}"),
    choose=_choose,
    sqrt=lambda x: x.write(f"np.sqrt({x.name})"),
    power=lambda x, y: _writer(x, y).write(f"{_name(x)} ** {_name(y)}"),
    cast=lambda x, dtype: x.write(f"np.{np.dtype(dtype).name}({x.name})"),
)


def _source(program: Program, zeros: tuple[bytes, ...]) -> str:
    """The loop as Python that Numba compiles: straight-line code for one run, over the lanes."""
    leaves, clock = program.leaves, program.clock
    names = {i: f"w{n}" for n, i in enumerate([*program.carried, *program.given])}

    def numbers(text: list[str]) -> list[Any]:
        values: list[Any] = [None] * len(leaves)
        values[clock] = numbers_of([_Symbol("step", text)], ())
        for i, name in names.items():
            empty = np.frombuffer(zeros[i], bool) if zeros[i] else np.zeros(leaves[i].size, bool)
            entries = [0.0 if e else _Symbol(f"{name}_{j}", text) for j, e in enumerate(empty)]
            values[i] = numbers_of(entries, leaves[i].shape)
        return values

    def lines(wanted: Callable[[int], bool], form: str) -> list[str]:
        """A line for each number of some leaves."""
        chosen = [(i, name) for i, name in names.items() if wanted(i)]
        return [form.format(n=name, j=j) for i, name in chosen for j in range(leaves[i].size)]

    stepping: list[str] = []
    after = program.after(numbers(stepping), WRITING)
    new = [(names[i], j, n) for i in program.carried for j, n in enumerate(after[i].ravel())]
    stores = [f"{name}_[{j}, lane] = {_name(n.value)}" for name, j, n in new]
    looking: list[str] = []
    seen = program.seen(numbers(looking), WRITING)
    shown = [f"record[block, t, {j}, lane] = {_name(n.value)}" for j, n in enumerate(seen)]
    shared = lines(lambda i: not leaves[i].own, "{n}_{j} = {n}[{j}]")
    loads = lines(lambda i: leaves[i].own, "{n}_{j} = {n}_[{j}, lane]")
    # Room of a block's own, which nothing else can change, lets a compiler use vectors.
    mine = {n: leaves[i] for i, n in names.items() if leaves[i].own}
    room = [f"{n}_ = np.empty(({f.size}, {LANES}), {n}.dtype)" for n, f in mine.items()]
    copies = lines(lambda i: leaves[i].own, "{n}_[{j}, lane] = {n}[block, {j}, lane]")
    back = lines(lambda i: leaves[i].changes, "{n}[block, {j}, lane] = {n}_[{j}, lane]")
    return f"""
real, whole = np.{np.dtype(program.dtype).name}, np.int64
def loop(first, last, begin, marks, record, {", ".join(names.values())}):
{_indented([*shared, *room], 4)}
    for block in range(first, last):
        for lane in range({LANES}):
{_indented(copies, 12)}
        done = begin
        for t in range(len(marks)):
            for step in range(done, marks[t]):
                for lane in range({LANES}):
{_indented([*loads, *stepping, *stores], 20)}
            step = done = max(done, marks[t])
            for lane in range({LANES}):
{_indented([*loads, *looking, *shown], 16)}
        for lane in range({LANES}):
{_indented(back, 12)}
"""


def _indented(lines: list[str], by: int) -> str:
    return textwrap.indent("\n".join(lines), " " * by)
