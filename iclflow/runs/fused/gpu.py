"""The whole of a training as one GPU kernel: one lane a run, its weights in registers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Int

from iclflow.runs.fused.numbers import Arithmetic
from iclflow.runs.fused.program import Program, numbers_of

BLOCK = 128  # runs a program of the grid
WARPS = 4
INTERPRET = False  # without a GPU, by JAX: for tests


def _multiply_add(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once: the compiler behind Pallas does not contract it by itself."""
    x, y, z = jnp.broadcast_arrays(x, y, z)
    kind = jnp.result_type(x, y, z)
    if jax.default_backend() != "gpu" or x.ndim == 0 or kind not in FMA:
        return x * y + z
    code, letter = FMA[kind]
    [found] = triton.elementwise_inline_asm(
        f"{code} $0, $1, $2, $3;",
        args=[a.astype(kind) for a in (x, y, z)],
        constraints=f"={letter},{letter},{letter},{letter}",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, kind)],
    )
    return found


FMA = {np.dtype("float32"): ("fma.rn.f32", "f"), np.dtype("float64"): ("fma.rn.f64", "d")}
BLOCKS = Arithmetic(
    multiply_add=_multiply_add,
    choose=jnp.where,
    sqrt=jnp.sqrt,
    power=jnp.power,
    cast=lambda x, dtype: x.astype(dtype),
)


def advance(
    program: Program,
    leaves: dict[int, Array],
    zeros: tuple[bytes, ...],
    marks: Int[Array, " T"],
    running: Bool[Array, " runs"],
) -> tuple[list[Array], Array, Array]:
    """As `cpu.advance`."""
    block = BLOCK
    runs = next(leaves[i].shape[1] for i in program.carried)
    spare = -runs % block
    pad = ((0, 0), (0, spare))
    wide = {i: jnp.pad(a, pad, mode="edge") if a.ndim == 2 else a for i, a in leaves.items()}
    read = [*program.carried, *program.given]
    clock, begin = program.clock, wide[program.clock].reshape(1)
    # The steps made by a run that goes on are the clock's; of one that has failed, fewer.
    alive = jnp.pad(running, (0, spare), mode="edge").astype(begin.dtype)

    def kernel(*refs: Any) -> None:
        begin_ref, marks_ref, alive_ref, *rest = refs
        inputs, (*outputs, record, made_ref) = rest[: len(read)], rest[len(read) :]
        lanes = pallas.ds(pallas.program_id(0) * block, block)
        numbers: list[Any] = [None] * len(program.leaves)
        for index, ref in zip(read, inputs, strict=True):
            numbers[index] = _numbers(program.leaves[index], ref, lanes, zeros[index])

        def put(values: tuple[Any, ...], step: Any) -> list[Any]:
            flat, now = iter(values), list(numbers)
            for index in program.carried:
                leaf = program.leaves[index]
                now[index] = numbers_of([next(flat) for _ in range(leaf.size)], leaf.shape)
            now[clock] = numbers_of([step], ())
            return now

        def one(step: Any, carry: Any) -> Any:
            made, values = carry
            well, after = program.after(put(values, step), BLOCKS)
            go = (made == step) & well.value
            new = _values(program, after, values)
            values = tuple(jnp.where(go, v, old) for v, old in zip(new, values, strict=True))
            return jnp.where(go, step + 1, made), values

        def to_mark(t: Any, carry: Any) -> Any:
            done, made, values = carry
            mark = jnp.maximum(marks_ref[t], done)
            made, values = jax.lax.fori_loop(done, mark, one, (made, values))
            for i, number in enumerate(program.seen(put(values, mark), BLOCKS)):
                value = jnp.asarray(number.value, record.dtype)
                record[t, i, lanes] = jnp.where(made == mark, value, jnp.nan)
            return mark, made, values

        first = tuple(n.value for i in program.carried for n in numbers[i].ravel())
        made = begin_ref[0] + alive_ref[lanes] - 1
        _, made, last = jax.lax.fori_loop(0, len(marks), to_mark, (begin_ref[0], made, first))
        made_ref[lanes] = made
        flat = iter(last)
        for index, ref in zip(program.carried, outputs, strict=True):
            for i in range(program.leaves[index].size):
                ref[i, lanes] = next(flat)

    total = runs + spare
    shapes = [jax.ShapeDtypeStruct(wide[i].shape, wide[i].dtype) for i in program.carried]
    seen = max(1, program.seen_count)  # an array without numbers has no place in memory
    shapes.append(jax.ShapeDtypeStruct((len(marks), seen, total), program.dtype))
    shapes.append(jax.ShapeDtypeStruct((total,), begin.dtype))
    *after, record, made = pallas.pallas_call(
        kernel,
        grid=(total // block,),
        out_shape=shapes,
        interpret=INTERPRET,
        compiler_params=None if INTERPRET else triton.CompilerParams(num_warps=WARPS),
    )(begin, marks.astype(begin.dtype), alive, *(wide[i] for i in read))
    record = jnp.moveaxis(record[:, : program.seen_count, :runs], 2, 0)
    return [a[:, :runs] for a in after], record, made[:runs]


def _numbers(leaf: Any, ref: Any, lanes: Any, zeros: bytes) -> np.ndarray:
    if leaf.own:
        return numbers_of([ref[i, lanes] for i in range(leaf.size)], leaf.shape)
    empty = np.frombuffer(zeros, bool)
    return numbers_of([0.0 if empty[i] else ref[i] for i in range(leaf.size)], leaf.shape)


def _values(program: Program, numbers: list[Any], like: tuple[Any, ...]) -> tuple[Any, ...]:
    flat = [n.value for i in program.carried for n in numbers[i].ravel()]
    return tuple(
        jnp.broadcast_to(jnp.asarray(v, old.dtype), old.shape)
        for v, old in zip(flat, like, strict=True)
    )
