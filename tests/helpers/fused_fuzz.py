"""Random programs through the fused loop and through JAX's `vmap`, compared.

    python tests/helpers/fused_fuzz.py --programs 5000 [--engine C++|CUDA] [--seed 0]

Each program is a state of a few small arrays, of any type that the loop knows, and a step of random
operations on them: every primitive with a rule, constants on either side, shared numbers, casts,
states that change places, empty axes, NaN, infinities and zeros. Many programs share one compiled
loop. Integers and bools must agree exactly, reals to 1e-12 (single precision: 1e-5).

    python tests/helpers/fused_fuzz.py --flows 500

does the same with flows: random smooth slopes, by the fused flow and by the same solver written
out in NumPy, one run after the other. They agree to 1e-9 (single precision: 1e-3). `--pair` says
which solver: Tsit5, ROCK4, or Rodas5P, for which the random slopes are gradients.
"""

import argparse
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from iclflow.runs.fused import cpp, cuda, flow_cpp, flow_cuda, rock4, rodas5p, tsit5
from iclflow.runs.fused.flow_cpp import ROCK4, RODAS5P, TSIT5
from iclflow.runs.fused.program import trace, write
from iclflow.runs.fused.steps_cpp import REFUSED
from iclflow.runs.fused.values import CannotFuse

RUNS, STEPS, TOGETHER = 37, 3, 16
FLOATS, INTEGERS = ("float32", "float64"), ("int32", "int64", "uint32", "int8", "uint8")
KINDS = (*FLOATS, *FLOATS, *INTEGERS, "bool")
SHAPES = ((), (1,), (3,), (2, 2), (0,), (2, 3))
# Dyadic numbers: their sums and products are exact, so that no comparison hangs on a rounding.
NUMBERS = np.asarray([0.0, -0.0, 0.5, 1.0, -1.0, 1.5, -2.0, 3.0, 0.25, -0.75, 4.0])
STRANGE = np.asarray([np.inf, -np.inf, np.nan, 0.0, 1e300, -1e300])


def numbers(rng, shape, kind, strange):
    """Random entries of a type; `strange`: the share that is not finite, or extreme."""
    if kind == "bool":
        return rng.random(shape) < 0.5
    if kind in FLOATS:
        found = rng.choice(NUMBERS, shape)
        odd = np.where(rng.random(shape) < strange, rng.choice(STRANGE, shape), found)
        with np.errstate(over="ignore"):
            return np.asarray(odd, kind)
    info = np.iinfo(kind)
    found = rng.integers(max(info.min, -5), 6, shape)
    extreme = rng.choice(np.asarray([info.min, info.max, 0], object), shape)
    chosen = np.where(rng.random(shape) < strange, extreme, found.astype(object))
    return np.asarray(chosen, kind)


def unary(rng, x):
    """A random operation on one array that keeps its shape."""
    kind = str(x.dtype)
    choices = ["cast", "rev", "reshape", "neg", "zero", "power", "scatter", "gather", "slice"]
    if kind in FLOATS:
        choices += ["sqrt", "finite", "square", "sign", "abs", "pow"]
    elif kind == "bool":
        choices = ["not", "cast", "rev", "reshape", "gather", "slice"]
    else:
        choices += ["not", "sign", "square"] + ["abs"] * (kind[0] == "i")
    return rng.choice(choices)


def program(seed):
    """(state arrays [run, ...], shared arrays, step): one random program."""
    rng = np.random.default_rng(seed)
    strange = rng.choice([0.0, 0.0, 0.15])
    shape = SHAPES[rng.integers(len(SHAPES))]
    kinds = list(rng.choice(KINDS, rng.integers(1, 4)))
    states = [numbers(rng, (RUNS, *shape), kind, strange) for kind in kinds]
    shared = [numbers(rng, shape, kind, strange) for kind in kinds]
    plan = int(rng.integers(2**31))

    def step(state, common):
        draw = np.random.default_rng(plan)
        pool = [*state, *common]
        pool += [jnp.asarray(numbers(draw, (), kind, strange)) for kind in kinds]
        for _ in range(draw.integers(2, 7)):
            pool.append(operation(draw, pool, strange))
        new = []
        for old in state:
            like = [v for v in pool[len(state) + 2 :] if v.shape == old.shape] or [old]
            new.append(like[draw.integers(len(like))].astype(old.dtype))
        if len(state) > 1 and draw.random() < 0.4 and state[0].dtype == state[1].dtype:
            new[0], new[1] = state[1], state[0]  # change places
        return new

    return states, shared, step


def operation(rng, pool, strange):
    """One more array, from those of a pool."""
    x = pool[rng.integers(len(pool))]
    if rng.random() < 0.4:
        return single(rng, x, unary(rng, x))
    y = pool[rng.integers(len(pool))]
    y = y.astype(x.dtype)
    if rng.random() < 0.3:  # a constant on either side
        constant = jnp.asarray(numbers(rng, x.shape, str(x.dtype), strange))
        x, y = (constant, x) if rng.random() < 0.5 else (x, constant)
    x, y = jnp.broadcast_arrays(x, y)
    kind = str(x.dtype)
    logic = ["and", "or", "xor"] * (kind not in FLOATS)
    compare = ["lt", "le", "gt", "ge", "eq", "ne"]
    maths = ["add", "sub", "mul", "max", "min", "div", "rem", "dot", "add_any"] * (kind != "bool")
    name = rng.choice(["select", "cases", "concatenate", *logic, *compare, *maths, *maths])
    if name == "select":
        return lax.select_n(jnp.asarray(x < y), x, y)
    if name == "cases":
        which = jnp.clip(lax.convert_element_type(x, jnp.int32), -1, 3)
        return lax.select_n(jnp.mod(which, 3), x, y, x)
    if name == "concatenate":
        if x.ndim == 0:
            return x
        joined = jnp.concatenate([x, y])
        return joined[x.shape[0] // 2 :][: x.shape[0]]
    if name == "dot":
        if x.ndim == 0:
            return x * y
        return jnp.broadcast_to(jnp.tensordot(x, y, x.ndim), x.shape)
    if name == "add_any":
        return x + y
    if name in ("div", "rem") and kind[0] == "i":  # XLA itself dies of the lowest integer by -1
        y = jnp.where(y == -1, 3, y).astype(kind)
    functions = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}
    return (functions.get(str(name)) or getattr(lax, str(name)))(x, y)


def single(rng, x, name):
    kind = str(x.dtype)
    if name == "cast":
        return x.astype(str(rng.choice(KINDS)))
    if name == "rev":
        return lax.rev(x, tuple(range(x.ndim)))
    if name == "reshape":
        return x.T.reshape(x.shape) if x.ndim else x.reshape(1).reshape(())
    if name == "zero":
        return x * jnp.zeros((), kind) + x
    if name == "power":
        return lax.integer_pow(
            x, int(rng.choice([0, 1, 2, 3, -1] if kind in FLOATS else [0, 2, 3]))
        )
    if name == "scatter":
        return x if x.ndim == 0 or x.size == 0 else x.at[0].add(x[-1])
    if name == "gather":
        return x if x.ndim == 0 or x.size == 0 else x[np.asarray([0] * x.shape[0])]
    if name == "slice":
        reduce = [jnp.sum, jnp.max, jnp.min, jnp.prod] if x.size else [jnp.sum, jnp.prod]
        reduce = [jnp.any, jnp.all] if kind == "bool" else reduce
        return jnp.broadcast_to(reduce[rng.integers(len(reduce))](x).astype(kind), x.shape)
    if name == "pow":
        return lax.pow(x, jnp.asarray(rng.choice([2.0, 0.0, 1.0, 0.5]), kind))
    functions = {
        "neg": lax.neg, "sqrt": lax.sqrt, "finite": lax.is_finite, "square": lax.square,
        "sign": lax.sign, "abs": lax.abs, "not": lax.bitwise_not,
    }  # fmt: skip
    return functions[name](x)


def compare(programs, engine, options=()):
    """(how many ran fused, mismatches, reasons) of programs in one loop."""
    states, shared, steps = zip(*programs, strict=True)
    sizes = [len(s) for s in states]
    ends = np.cumsum(sizes)
    flat_shared = [a for s in shared for a in s]
    flat_states = [a for s in states for a in s]

    def advance(*leaves):
        common, (*state, clock) = leaves[: len(flat_shared)], leaves[len(flat_shared) :]
        new = []
        for end, size, step in zip(ends, sizes, steps, strict=True):
            part = slice(end - size, end)
            new += step(list(state[part]), list(common[part]))
        return [jnp.asarray(True), *new, clock + 1]

    def look(*leaves):
        return {"none": jnp.zeros(())}

    leaves = [*flat_shared, *(a[0] for a in flat_states), np.zeros((), np.int64)]
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves)
    own = (*[False] * len(flat_shared), *[True] * len(flat_states), False)
    traced = trace(advance, look, shapes, own, len(flat_shared))
    real = [a for a in flat_shared if np.issubdtype(a.dtype, np.floating)]
    zeros = None
    if all(np.isfinite(a).all() for a in real):
        zeros = tuple(
            ((a == 0) & ~np.signbit(a)).tobytes()
            if i < len(flat_shared) and a.dtype.kind == "f"
            else b""
            for i, a in enumerate(leaves)
        )
    flat = {
        i: a.reshape(-1) if i < len(flat_shared) else a.reshape(RUNS, a[0].size).T
        for i, a in enumerate([*flat_shared, *flat_states])
    }
    flat[len(leaves) - 1] = np.zeros((), np.int64)
    given = {i: flat[i] for i in traced.read}
    run = runner(traced, given, engine, options)
    after, _, _, odd = run(zeros)
    if odd.any():
        after, *_ = run(None)
    found = dict(zip(traced.carried, after, strict=True))

    def one(common, *state):
        return tuple(advance(*common, *state, jnp.zeros((), int))[1:-1])

    together = jax.vmap(one, in_axes=(None, *[0] * len(flat_states)))

    def apart(step):
        """(program, leaf, ours, theirs) that differ after all steps."""
        common = tuple(jnp.asarray(a) for a in flat_shared)
        theirs, wrong = tuple(jnp.asarray(a) for a in flat_states), []
        for _ in range(STEPS):
            theirs = step(common, *theirs)
        for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            for place in range(end - size, end):
                leaf, wanted = len(flat_shared) + place, np.asarray(theirs[place])
                wanted = wanted.reshape(RUNS, wanted[0].size).T
                ours = np.asarray(found[leaf]) if leaf in found else flat[leaf]
                if not agree(ours, wanted):
                    wrong.append((number, place - (end - size), ours, wanted))
        return wrong

    # XLA turns x times a bool into a choice, which has 0 for infinity times False where JAX has
    # NaN, and on a GPU its single-precision root is off by a unit in the last place, which a cast
    # to double keeps: what JAX computes on the CPU, operation by operation, decides.
    if not apart(jax.jit(together)):
        return []
    with jax.default_device(jax.devices("cpu")[0]):
        return apart(together)


def runner(traced, given, engine, options):
    marks = np.asarray([], int)
    if engine == "CUDA":
        leaves = {i: jnp.asarray(a) for i, a in given.items()}
        running = jnp.ones(RUNS, bool)
        return lambda zeros: cuda.advance(
            traced, leaves, zeros, np.asarray([], int), STEPS, running
        )
    running = np.ones(RUNS, bool)
    marks = np.asarray([], int)
    return lambda zeros: cpp.advance(traced, given, zeros, marks, STEPS, running, 1, options)


def agree(ours, theirs):
    if ours.dtype != theirs.dtype:
        return False
    if ours.dtype.kind != "f":
        return np.array_equal(ours, theirs)
    single = ours.dtype == np.float32
    return np.allclose(ours, theirs, rtol=1e-5 if single else 1e-12, atol=1e-300, equal_nan=True)


def fused_alone(one):
    """None, or why a program has no fused loop."""
    states, shared, step = one
    leaves = [*shared, *(a[0] for a in states), np.zeros((), np.int64)]
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves)
    own = (*[False] * len(shared), *[True] * len(states), False)

    def advance(*values):
        common, (*state, clock) = values[: len(shared)], values[len(shared) :]
        return [jnp.asarray(True), *step(list(state), list(common)), clock + 1]

    try:
        write(trace(advance, lambda *_: {"none": jnp.zeros(())}, shapes, own, len(shared)), None)
    except CannotFuse as reason:
        return str(reason)
    return None


def fuzz(count, seed=0, engine="C++", options=("-O1",)):
    """How many programs ran fused, why others did not, and the (seed, leaf, ours, theirs) apart."""
    ran, reasons, wrong, batch = 0, Counter(), [], []
    for number in range(seed, seed + count):
        one = program(number)
        reason = fused_alone(one)
        if reason is not None:
            reasons[reason] += 1
            continue
        batch.append((number, one))
        if len(batch) == TOGETHER or number == seed + count - 1:
            found = compare([p for _, p in batch], engine, options)
            wrong += [(batch[n][0], *rest) for n, *rest in found]
            ran += len(batch)
            batch = []
    if batch:
        found = compare([p for _, p in batch], engine, options)
        wrong += [(batch[n][0], *rest) for n, *rest in found]
        ran += len(batch)
    return ran, reasons, wrong


def smooth(rng, pool):
    """One more array, a smooth and bounded function of some of a pool."""
    x, y = (pool[rng.integers(len(pool))] for _ in range(2))
    y = y.astype(x.dtype)
    if x.shape != y.shape:
        y = jnp.sum(y)
    name = rng.choice(
        ["add", "sub", "mul", "div", "sqrt", "power", "rev", "dot", "scatter", "zero"]
    )
    if name == "scatter":
        return x if x.ndim == 0 else x.at[0].add(0.5 * x[-1])
    if name == "dot":
        return x * jnp.sum(x * y) / (1 + jnp.sum(x * x))
    return {
        "add": lambda: x + y,
        "sub": lambda: x - 0.5 * y,
        "mul": lambda: x * y / (1 + x * x + y * y),
        "div": lambda: y / (1 + x * x),
        "sqrt": lambda: jnp.sqrt(1 + x * x),
        "power": lambda: x**3 / (1 + x**4),
        "rev": lambda: lax.rev(x, tuple(range(x.ndim))),
        "zero": lambda: x * jnp.zeros((), x.dtype) + x,
    }[str(name)]()


def flow_program(seed, descends=False):
    """(weights [run, ...], shared arrays, slope): a random flow that stays bounded.

    - `descends`: whether the slope is a gradient, as implicit steps need it.
    """
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(FLOATS))
    shapes = [SHAPES[n] for n in rng.choice([0, 1, 2, 3, 5], rng.integers(1, 4))]
    states = [np.asarray(rng.normal(size=(FLOWS, *shape)), kind) for shape in shapes]
    shared = [np.asarray(rng.normal(size=shape).round(), kind) for shape in shapes]
    plan = int(rng.integers(2**31))

    def slope(state, common):
        draw = np.random.default_rng(plan)
        pool = [*state, *common]
        for _ in range(draw.integers(2, 7)):
            pool.append(smooth(draw, pool))
        slopes = []
        for old in state:
            like = [v for v in pool if v.shape == old.shape]
            x = like[draw.integers(len(like))]
            slopes.append((2 * x / (1 + x * x) - draw.random() * old).astype(old.dtype))
        return slopes

    def height(state, common):
        along = slope(state, common)
        heights = zip(state, along, strict=True)
        return sum(jnp.sum(0.5 * y**2 - 0.3 * y * s / (1 + s * s)) for y, s in heights)

    if descends:
        down = jax.grad(height)
        return states, shared, lambda *given: jax.tree.map(jnp.negative, down(*given))
    return states, shared, slope


FLOWS = 11  # runs of a random flow
TARGETS = np.asarray([0.0, 0.3, 0.3, 2.0, 7.0])


def explicit_step(slope, y, k0, h, kind):
    """(end, its slope, estimated error, θ -> weights) of one step of the pair of Tsitouras."""
    k = [k0]
    for row in tsit5.A[1:]:
        at = np.asarray(y + h * sum(a * b for a, b in zip(row, k, strict=True)), kind)
        k.append(slope(at))
    error = h * sum(e * b for e, b in zip(tsit5.ERROR, k, strict=True))

    def inside(theta):
        powers = [theta] + [theta**2] * 6
        dense = [
            c * p * np.polynomial.Polynomial(rest)(theta)
            for (c, rest), p in zip(tsit5.DENSE, powers, strict=True)
        ]
        return y + h * sum(d * b for d, b in zip(dense, k, strict=True))

    return at, k[-1], error, inside


def stabilised_step(slope, y, k0, h, kind):
    """The same by the stabilised pair of Abdulle, with the cubic of Hermite inside the step."""
    before, at = y, np.asarray(y + h * rock4.FIRST * k0, kind)
    for mu, kappa in rock4.RECURRENCE:
        after = h * mu * slope(at) + (1 + kappa) * at - kappa * before
        before, at = at, np.asarray(after, kind)
    k = []
    for row in rock4.A:
        moved = at + h * sum(a * b for a, b in zip(row, k, strict=True))
        k.append(slope(np.asarray(moved, kind)))
    end = np.asarray(at + h * sum(b * x for b, x in zip(rock4.END, k, strict=True)), kind)
    k.append(slope(end))
    error = h * sum(e * x for e, x in zip(rock4.ERROR, k, strict=True))

    def inside(theta):
        left, right = (1 - theta) ** 2, theta**2
        weights = left * (1 + 2 * theta) * y + right * (3 - 2 * theta) * end
        return weights + h * (left * theta * k0 - right * (1 - theta) * k[-1])

    return end, k[-1], error, inside


def implicit_step(slope, jacobian, y, h, kind):
    """The same by Rodas5P; the error is infinite where the matrix is not positive."""
    matrix, u = np.eye(y.size) - h * rodas5p.GAMMA * jacobian(y), []
    for a, c in zip(rodas5p.A, rodas5p.C, strict=True):
        at = np.asarray(y + sum(x * b for x, b in zip(a, u, strict=True)), kind)
        mixed = h * slope(at) + sum(x * b for x, b in zip(c, u, strict=True))
        u.append(np.linalg.solve(matrix, rodas5p.GAMMA * mixed))
    end = np.asarray(y + sum(x * b for x, b in zip(rodas5p.END, u, strict=True)), kind)
    refused = np.linalg.eigvalsh((matrix + matrix.T) / 2)[0] <= 0
    error = np.full(y.size, np.inf) if refused else u[-1]

    def inside(theta):
        rows = zip(rodas5p.END, *rodas5p.DENSE, strict=True)
        dense = [theta * (b + (1 - theta) * (p + theta * (q + theta * r))) for b, p, q, r in rows]
        return y + sum(d * x for d, x in zip(dense, u, strict=True))

    return end, slope(end), error, inside


def written_out(slope, y, tolerance, kind, pair=TSIT5, jacobian=None):
    """The weights at the targets, by steps of a pair with proportional and integral control.

    - `jacobian`: of the slope, where the steps are implicit.
    """
    order = {TSIT5: tsit5, ROCK4: rock4, RODAS5P: rodas5p}[pair].ORDER
    norm = lambda x, scale: np.sqrt(np.mean((x / scale) ** 2))  # noqa: E731
    ground = max(np.sqrt(np.mean(np.square(y, dtype=float))), np.finfo(kind).tiny)
    t, last, found, mark = 0.0, 0.0, [], 0
    k0, size = slope(y), tolerance * (ground + np.abs(y))
    rise, weight = norm(k0, size), norm(y, size)
    trial = 1e-6 if min(rise, weight) < 1e-5 else 0.01 * weight / rise
    most = max(rise, norm(slope(np.asarray(y + trial * k0, kind)) - k0, size) / trial)
    h = max(1e-6, trial * 1e-3) if most <= 1e-15 else (0.01 / most) ** (1 / order)
    h = min(100 * trial, h)
    while mark < len(TARGETS) and TARGETS[mark] <= t:
        found, mark = [*found, y], mark + 1
    while mark < len(TARGETS):
        if pair != RODAS5P:
            step = explicit_step if pair == TSIT5 else stabilised_step
            at, k1, error, inside = step(slope, y, k0, h, kind)
        else:
            at, k1, error, inside = implicit_step(slope, jacobian, y, h, kind)
        scale = tolerance * (ground + np.maximum(np.abs(y), np.abs(at)))
        # An implicit step that is refused counts as one with this error.
        square = norm(error, scale) ** 2 if np.isfinite(error).all() else REFUSED / y.size
        while square < 1 and mark < len(TARGETS) and TARGETS[mark] <= t + h:
            theta = (TARGETS[mark] - t) / h
            found, mark = [*found, np.asarray(inside(theta), kind)], mark + 1
        logarithm = np.log2(np.clip(square, 1e-20, 1e20))
        factor = tsit5.SAFETY * 2 ** ((0.2 * last - 0.35 * logarithm) / order)
        factor = np.clip(factor, tsit5.SMALLEST, tsit5.LARGEST if square < 1 else tsit5.SAFETY)
        if square < 1:
            t, y, k0, last = t + h, at, k1, logarithm
        h = h * factor
    return np.stack(found)


def compare_flow(one, tolerance, engine, options=(), pair=TSIT5):
    """(target, run) -> weights, by the fused flow and written out."""
    states, shared, slope = one
    leaves = [*shared, *(a[0] for a in states)]
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves)
    own = (*[False] * len(shared), *[True] * len(states))
    kind, count = states[0].dtype, len(shared)

    def rise(*values):
        return [jnp.asarray(True), *slope(list(values[count:]), list(values[:count]))]

    def look(*values):
        return {"weights": jnp.concatenate([v.reshape(-1) for v in values[count:]])}

    traced = trace(rise, look, shapes, own, count, flows=True)
    zeros = tuple(
        ((a == 0) & ~np.signbit(a)).tobytes() if i < count else b"" for i, a in enumerate(leaves)
    )
    flat = [a.reshape(FLOWS, -1) for a in states]
    start = np.concatenate(flat, axis=1)
    given = {i: a.reshape(-1) for i, a in enumerate(shared)}
    given |= {count + i: a for i, a in enumerate(flat)}
    ground = np.sqrt(np.mean(np.square(start, dtype=float), axis=1))
    crawled = np.full(FLOWS, np.inf if pair == RODAS5P else 0.0)
    course = flow_cpp.Course(*np.zeros((4, FLOWS)), crawled)
    module = flow_cpp if engine == "C++" else flow_cuda
    found = module.advance(
        traced,
        {i: given[i] for i in traced.read},
        [given[i] for i in traced.carried],
        course,
        zeros,
        np.append(TARGETS, TARGETS[-1]),
        10_000,
        (np.full(FLOWS, tolerance), ground),
        np.ones(FLOWS, bool),
        loose=np.full(FLOWS, pair == ROCK4),
        **({"cores": 1, "options": options} if engine == "C++" else {}),
    )
    ends = np.cumsum([a.shape[1] for a in flat])[:-1]
    together = jax.jit(lambda *values: rise(*values)[1:])

    def slopes(y):
        parts = [p.reshape(a[0].shape) for p, a in zip(np.split(y, ends), states, strict=True)]
        return np.concatenate([np.ravel(a) for a in together(*shared, *parts)])

    def joined(y):
        parts = [p.reshape(a[0].shape) for p, a in zip(jnp.split(y, ends), states, strict=True)]
        return jnp.concatenate([jnp.ravel(a) for a in rise(*map(jnp.asarray, shared), *parts)[1:]])

    bent = jax.jit(jax.jacfwd(joined)) if pair == RODAS5P else None
    wanted = np.stack([written_out(slopes, y, tolerance, kind, pair, bent) for y in start])
    assert not np.asarray(found.odd).any()
    return np.asarray(found.seen), wanted


def fuzz_flows(count, seed=0, engine="C++", options=("-O1",), pair=TSIT5):
    """The seeds of random flows that the fused loop and the solver written out follow apart."""
    apart = []
    for number in range(seed, seed + count):
        one = flow_program(number, pair == RODAS5P)
        single = one[0][0].dtype == np.float32
        ours, theirs = compare_flow(one, 1e-3 if single else 1e-7, engine, options, pair)
        near = 1e-3 if single else 1e-9
        if not np.allclose(ours, theirs, rtol=near, atol=near):
            apart.append((number, float(np.abs(ours - theirs).max())))
    return apart


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="CUDA" if jax.default_backend() == "gpu" else "C++")
    parser.add_argument("--flows", type=int, default=0, help="random flows instead of programs")
    parser.add_argument("--pair", choices=(TSIT5, ROCK4, RODAS5P), default=TSIT5)
    args = parser.parse_args(argv)
    if args.flows:
        apart = fuzz_flows(args.flows, args.seed, args.engine, pair=args.pair)
        print(
            f"{args.flows} flows ran fused ({args.engine}, {args.pair}), {len(apart)} differ",
            *apart[:10],
        )
        return 1 if apart else 0
    ran, reasons, wrong = fuzz(args.programs, args.seed, args.engine)
    for number, leaf, ours, theirs in wrong[:10]:
        print(f"program {number}, state {leaf}:\n{ours}\n{theirs}")
    print(f"{ran} of {args.programs} programs ran fused ({args.engine}), {len(wrong)} differ")
    for reason, count in reasons.items():
        print(f"{count} by vmap: {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
