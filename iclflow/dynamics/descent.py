"""Discrete training: gradient descent and its relatives, step by step, and its stable rates.

The update rules are Optax transformations, built from a rate that may be traced. The sharpness, the
largest curvature of the loss, bounds that rate.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from iclflow.dynamics.base import RESULTS, AbstractDynamics, Recorder, Stretch, log_steps
from iclflow.dynamics.flow import Flow
from iclflow.losses import AbstractLoss
from iclflow.losses.base import require_loss
from iclflow.measures.curvature import hessian_vector_product, top_eigenvalues
from iclflow.models import AbstractLinearModel, AbstractModel, Merged
from iclflow.models.base import require_model
from iclflow.tasks.checks import require_real, require_within, shown


def _require_share(name: str, value: Any) -> None:
    """Refuse what cannot be the share of a running sum that a step keeps."""
    found = require_real(name, value, ndim=0)
    require_within(name, found, lower=0.0, upper=1.0)
    if not isinstance(found, Tracer) and found == 1:
        raise ValueError(f"{name} must be below 1, or the first steps are remembered for ever")


class AbstractOptimiser(eqx.Module):
    """Which update a step of descent makes.

    >>> import iclflow as icl
    >>> isinstance(icl.Adam(), icl.AbstractOptimiser)
    True
    """

    @abc.abstractmethod
    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        """The Optax transformation at this learning rate."""

    @property
    def keeps_time(self) -> bool:
        """Whether a step advances the clock of gradient flow, t/τ = 2η."""
        return False


class GradientDescent(AbstractOptimiser):
    """θ ← θ - η ∂L/∂θ.

    >>> import iclflow as icl
    >>> isinstance(icl.Descent(0.1).optimiser, icl.GradientDescent)
    True
    """

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.sgd(rate)

    @property
    def keeps_time(self) -> bool:
        return True


class Momentum(AbstractOptimiser):
    """Heavy-ball momentum.

    - `decay`: of the running sum of gradients.
    - `nesterov`: take the gradient a step ahead.

    >>> import iclflow as icl
    >>> icl.Descent(0.1, icl.Momentum(decay=0.9)).optimiser.nesterov
    False
    """

    decay: float | Float[Array, ""] = 0.9
    nesterov: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        decay = require_real("decay", self.decay, ndim=0)
        require_within("decay", decay, lower=0.0, upper=1.0)
        if not isinstance(self.nesterov, bool):
            raise ValueError(f"nesterov must be True or False, got {shown(self.nesterov)}")

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=self.decay, nesterov=self.nesterov)  # pyright: ignore


class Adam(AbstractOptimiser):
    """Adam; with weight decay, AdamW, unless the decay is inside the gradient.

    - `b1`, `b2`: decay of the running means of the gradient and of its square.
    - `eps`: added to the root of the latter.
    - `weight_decay`: times the rate, the share of the weights that a step takes off.
    - `decay_inside`: add `weight_decay` times the weights to the gradient instead, as PyTorch's
      `Adam` does: training then ends at the minimum of L + ½ `weight_decay` |θ|².

    >>> import iclflow as icl
    >>> icl.Descent(1e-3, icl.Adam(weight_decay=0.1)).keeps_time
    False
    """

    b1: float | Float[Array, ""] = 0.9
    b2: float | Float[Array, ""] = 0.999
    eps: float | Float[Array, ""] = 1e-8
    weight_decay: float | Float[Array, ""] = 0.0
    decay_inside: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        _require_share("b1", self.b1)
        _require_share("b2", self.b2)
        for name in ("eps", "weight_decay"):
            require_within(name, require_real(name, getattr(self, name), ndim=0), lower=0.0)

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        fields: dict[str, Any] = {"b1": self.b1, "b2": self.b2, "eps": self.eps}
        if self.decay_inside:
            decay: Any = self.weight_decay
            return optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, **fields))
        return optax.adamw(rate, **fields, weight_decay=self.weight_decay)  # pyright: ignore


class Optax(AbstractOptimiser):
    """Any optimiser of Optax, made at the rate of the run; `Descent(1e-3, optax.lion)` makes one.

    - `make`: rate -> transformation: a function of Optax, one of your own, or
      `functools.partial(optax.lion, b1=0.95)`.

    >>> import optax, iclflow as icl
    >>> icl.Descent(1e-3, optax.lion).optimiser == icl.Optax(optax.lion)
    True
    >>> icl.Descent(1e-3, icl.Optax(optax.lion)).keeps_time
    False
    """

    make: Any = eqx.field(static=True)

    def __check_init__(self) -> None:
        if isinstance(self.make, optax.GradientTransformation) or not callable(self.make):
            raise ValueError(
                f"needed is a function that makes an optimiser from a rate, such as optax.adam or "
                f"functools.partial(optax.adam, b1=0.5), got {type(self.make).__name__}; a "
                f"transformation has a rate inside already"
            )

    def transformation(self, rate: Float[Array, ""]) -> optax.GradientTransformation:
        try:
            return self.make(rate)
        except jax.errors.TracerBoolConversionError:
            raise ValueError(
                "the function that makes the optimiser decides by its rate, which is not known "
                "when the loop is compiled; give a schedule as the rate instead: "
                "Descent(optax.cosine_decay_schedule(0.2, 4000), optax.adam)"
            ) from None


CHECKPOINTS = 64  # states kept for the backward pass
BLOCK = 3  # on a GPU, 2^BLOCK steps between two looks at the counter; more are longer in compiling
SMALL = 8192  # numbers in a state, up to which a look costs more than a step


def repeat(step: Callable[[Any], Any], state: Any, count: Int[Array, ""]) -> Any:
    """`step` applied `count` times.

    A loop of unknown length has no reverse-mode gradient in JAX; Equinox's checkpointed one, the
    loop behind Diffrax, has, and is as fast. On a GPU each look at its counter waits for the
    device, longer than a step of a small model takes there: the loop goes over blocks of known
    length, and what is left over over the bits of its count.
    """
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state))
    if jax.default_backend() != "gpu" or numbers > SMALL:
        return _while(step, state, count)
    state = _while(_steps(step, 2**BLOCK), state, count >> BLOCK)
    for bit in range(BLOCK):
        state = jax.lax.cond((count >> bit) & 1, _steps(step, 2**bit), lambda s: s, state)
    return state


def _steps(step: Callable[[Any], Any], count: int) -> Callable[[Any], Any]:
    return lambda s: jax.lax.scan(lambda s, _: (step(s), None), s, None, count, unroll=count)[0]


def _while(step: Callable[[Any], Any], state: Any, count: Int[Array, ""]) -> Any:
    return eqxi.while_loop(
        lambda carry: carry[1] < count,
        lambda carry: (step(carry[0]), carry[1] + 1),
        (state, count * 0),
        kind="checkpointed",
        checkpoints=CHECKPOINTS,
    )[0]


EXPLODED = 1e6  # a loss this many times its start (plus one) will not come back
LONGEST = 2**26  # steps of a schedule that are searched for a time


class Run(eqx.Module):
    """The part of a run's state that differs between runs of a batch."""

    model: AbstractModel
    optimiser: Any
    key: PRNGKeyArray
    bound: Float[Array, ""]
    result: RESULTS
    failed: Int[Array, ""]  # the last step that went well, of a run that has failed

    def stop(self, fails: Bool[Array, ""], step: Int[Array, ""]) -> "Run":
        """The same, where it `fails` after so many steps, as failed."""
        result = RESULTS.where(fails, RESULTS.diverged, self.result)
        failed = jnp.where(fails, step, self.failed)
        return eqx.tree_at(lambda r: (r.result, r.failed), self, (result, failed))


class DescentState(eqx.Module):
    """Everything needed to go on with a run.

    - `run`: weights, state of the optimiser and key of one run.
    """

    run: Run
    step: Int[Array, ""]  # shared by all runs of a batch, so the loop needs no per-run test

    @property
    def model(self) -> AbstractModel:
        """The weights now."""
        return self.run.model

    @property
    def mark(self) -> Int[Array, "*runs"]:
        """The steps made."""
        return self.step

    @property
    def result(self) -> RESULTS:
        """How the run stands."""
        return self.run.result

    @property
    def stopped(self) -> Int[Array, "*runs"]:
        """The last step that was computed."""
        return jnp.where(self.running, self.step, self.run.failed)

    @property
    def running(self) -> Bool[Array, "*runs"]:
        """Whether the run goes on."""
        return self.run.result == RESULTS.finished


class Descent(AbstractDynamics):
    """Updates at learning rate η; gradient descent advances t/τ by 2η per step (10).

    - `rate`: the learning rate η. It may change during training: a schedule of Optax, or any
      function of the number of steps made so far, which is an array of one whole number.
    - `optimiser`: the update rule; gradient descent if omitted. A function of Optax that makes
      one at a given rate, such as `optax.lion`, is taken as `Optax(optax.lion)`.

    Under a schedule gradient descent keeps the exact clock t/τ = 2 Σ ηₛ over the steps made.

    >>> import optax, iclflow as icl
    >>> descent = icl.Descent(optax.linear_schedule(0.2, 0.0, transition_steps=100))
    >>> round(float(descent.time(100)), 6)
    20.2
    >>> int(descent.steps(20.0))
    91
    """

    shared = ("step",)
    whole = True

    rate: Float[Array, ""] | Callable[[Any], Any]
    optimiser: AbstractOptimiser

    def __init__(self, rate: ArrayLike | Callable[[Any], Any], optimiser: Any = None) -> None:
        """Rate η, or a function of the step, and update rule."""
        self.rate = rate if callable(rate) else require_real("rate", rate, ndim=0)
        optimiser = GradientDescent() if optimiser is None else optimiser
        made = isinstance(optimiser, optax.GradientTransformation)
        if made or (callable(optimiser) and not isinstance(optimiser, AbstractOptimiser)):
            optimiser = Optax(optimiser)
        self.optimiser = optimiser

    def __check_init__(self) -> None:
        if callable(self.rate):
            _require_schedule(self.rate)
        elif not isinstance(self.rate, Tracer) and not np.all(
            np.isfinite(self.rate) & (np.asarray(self.rate) > 0)
        ):
            raise ValueError(f"the rate must be a positive number, got {self.rate}")
        if not isinstance(self.optimiser, AbstractOptimiser):
            raise ValueError(
                f"the optimiser must be one of iclflow's, got {self.optimiser!r}; the number of "
                f"steps is said to simulate or sweep: until=10_000"
            )

    @property
    def keeps_time(self) -> bool:
        return self.optimiser.keeps_time

    @property
    def constant_rate(self) -> float | None:
        return None if callable(self.rate) else float(self.rate)

    def rate_at(self, step: ArrayLike) -> Float[Array, "*steps"]:
        """The learning rate η of the step that follows so many steps."""
        if callable(self.rate):
            each = jnp.vectorize(lambda s: jnp.asarray(self.rate(s), float))  # pyright: ignore
            return each(jnp.asarray(step))
        return jnp.broadcast_to(self.rate, jnp.shape(step))

    def time(self, marks: ArrayLike) -> Float[Array, "*T"]:
        if not self.keeps_time:
            return jnp.asarray(marks, float)
        if not callable(self.rate):
            return self.rate * (2 * jnp.asarray(marks, self.rate.dtype))  # step 0 is time 0
        flat = jnp.asarray(marks)
        return _elapsed(self.rate_at, flat.reshape(-1)).reshape(flat.shape)

    def steps(self, time: ArrayLike) -> Any:
        """The first whole step at which the clock shows `time` or more.

        The inverse of `time`: of t/τ where the update rule keeps it, of steps where it does not.
        """
        wanted = np.asarray(time, float)
        if not self.keeps_time or not callable(self.rate):
            each = 1.0 if not self.keeps_time else 2 * float(self.rate)  # pyright: ignore
            # A time that was computed from a whole step is that step, whatever its rounding.
            return np.ceil(wanted / each * (1 - 1e-12)).astype(int)
        count = 1024
        while True:
            rates = np.asarray(jax.jit(self.rate_at)(jnp.arange(count)), float)
            shown = np.concatenate([[0.0], 2 * np.cumsum(rates)])
            if shown[-1] >= wanted.max(initial=0.0):
                return np.searchsorted(shown, wanted * (1 - 1e-12))
            if count >= LONGEST:
                raise ValueError(
                    f"under this schedule t/τ is {shown[-1]:.6g} after {count:,} steps, asked for "
                    f"is {wanted.max():g}; the rate may end at zero before"
                )
            count *= 4

    def spread(self, until: float, count: int) -> np.ndarray:
        return log_steps(int(until), count)

    def as_marks(self, marks: Any) -> Any:
        if isinstance(marks, Tracer):
            return marks.astype(int)
        found = np.asarray(marks)
        if found.dtype == object and all(type(mark) is int for mark in found.flat):
            found = found.astype(float)  # whole numbers beyond 64 bits
        whole = found.dtype.kind in "fiu" and np.isfinite(found).all()
        if not whole or np.any(found != np.round(found)):
            raise ValueError(
                f"Descent counts whole steps, got {shown(marks)}; for times t/τ use Flow"
            )
        if found.size and found.max() >= np.iinfo(jax.dtypes.canonicalize_dtype(np.int64)).max:
            advice = '; put jax.config.update("jax_enable_x64", True) at the top of the program'
            advice *= not jax.config.read("jax_enable_x64")
            raise ValueError(f"{found.max():g} steps are more than can be counted{advice}")
        return found.astype(int)

    def init(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> DescentState:
        first = loss(model)
        run = Run(
            model=model,
            optimiser=self.optimiser.transformation(self.rate_at(0)).init(
                eqx.filter(model, eqx.is_inexact_array)
            ),
            key=key,
            bound=EXPLODED * (1 + jnp.abs(first)),
            result=RESULTS.where(jnp.isfinite(first), RESULTS.finished, RESULTS.not_a_number),
            failed=jnp.zeros((), int),
        )
        return DescentState(run, jnp.zeros((), int))

    def advance(
        self,
        loss: AbstractLoss,
        state: DescentState,
        marks: Int[Array, " T"],
        record: dict[str, Recorder],
    ) -> Stretch:
        dynamic, static = eqx.partition(state, eqx.is_array)

        def update(dynamic: Any) -> Any:
            return eqx.filter(self.update(loss, eqx.combine(dynamic, static)), eqx.is_array)

        def to_mark(dynamic: Any, mark: Int[Array, ""]) -> tuple[Any, dict]:
            dynamic = repeat(update, dynamic, jnp.maximum(mark - dynamic.step, 0))
            return dynamic, self.look(loss, eqx.combine(dynamic, static), record)

        marks = jnp.asarray(marks)
        dynamic, values = jax.lax.scan(to_mark, dynamic, marks)
        state = eqx.combine(dynamic, static)
        return Stretch(
            time=self.time(marks),
            step=marks,
            record=values,
            result=state.run.result,
            stopped=state.stopped,
            state=state,
            timed=self.keeps_time,
        )

    def renew(self, loss: AbstractLoss, state: DescentState) -> DescentState:
        """The same with a bound that the value of the new loss does not pass at once."""
        value = loss.at(state.step)(state.model)
        bound = jnp.fmax(state.run.bound, EXPLODED * (1 + jnp.abs(value)))
        return eqx.tree_at(lambda s: s.run.bound, state, bound)

    def update(self, loss: AbstractLoss, state: DescentState) -> DescentState:
        """One step further; a run that has failed stays where it was."""
        well, after = self.attempt(loss, state)
        run = _select(state.running & well, after.run, state.run)
        return DescentState(run.stop(state.running & ~well, state.step), after.step)

    def attempt(
        self, loss: AbstractLoss, state: DescentState
    ) -> tuple[Bool[Array, ""], DescentState]:
        """Whether a step goes well, and the state after it if it does."""
        run = state.run
        batch = loss.at(state.step).draw(jax.random.fold_in(run.key, state.step))
        value, gradient = eqx.filter_value_and_grad(lambda m: batch(m))(run.model)
        transformation = self.optimiser.transformation(self.rate_at(state.step))
        updates, optimiser = transformation.update(
            gradient, run.optimiser, eqx.filter(run.model, eqx.is_inexact_array)
        )
        # A rate in double precision must not lift weights in single precision out of it.
        updates = jax.tree.map(lambda u, g: u.astype(g.dtype), updates, gradient)
        model = eqx.apply_updates(run.model, updates)
        after = eqx.tree_at(lambda r: (r.model, r.optimiser), run, (model, optimiser))
        return value < run.bound, DescentState(after, state.step + 1)  # False for NaN too

    def look(
        self, loss: AbstractLoss, state: DescentState, record: dict[str, Recorder]
    ) -> dict[str, Any]:
        """What is recorded of a state; NaN of a run that has failed."""
        now = loss.at(state.step)
        values = {name: f(state.model, now) for name, f in record.items()}
        return jax.tree.map(lambda a: jnp.where(state.running, a, jnp.nan), values)


def _select(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    """`new` where the condition holds, else `old`; what did not change needs no test."""
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), new, old)


def _require_schedule(schedule: Callable[[Any], Any]) -> None:
    """Raise `ValueError` unless a function gives a learning rate at a traced step."""
    needed = "the rate must be a positive number, or a function of the step that returns one"
    try:
        found = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), int))
    except jax.errors.TracerBoolConversionError:
        raise ValueError(
            f"{needed}; this one decides with `if`, which is compiled once for all steps: use "
            f"jnp.where(step < 1000, 0.2, 0.1)"
        ) from None
    except Exception as error:  # a function of the user's may raise anything
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{needed}; {type(error).__name__}: {reason}") from None
    leaves = jax.tree.leaves(found)
    if len(leaves) != 1 or getattr(leaves[0], "shape", None) != ():
        shape = getattr(found, "shape", None)
        got = type(found).__name__ if shape is None else f"an array of shape {tuple(shape)}"
        raise ValueError(f"{needed}, got {got}; an optimiser comes second")
    first = float(schedule(0))
    if not (np.isfinite(first) and first >= 0):
        raise ValueError(f"{needed}, got {first:g} at step 0")


def _elapsed(rate_at: Callable[[Array], Array], marks: Int[Array, " T"]) -> Float[Array, " T"]:
    """2 Σ ηₛ over the steps before each mark, in one pass over the steps.

    The sum is compensated (Neumaier), so that it is correct to the last bit however many steps
    there are: a constant schedule shows the same time as a constant rate.
    """

    def add(carry: Any) -> Any:
        step, total, lost = carry
        term = 2 * rate_at(step)
        whole = total + term
        large = jnp.abs(total) >= jnp.abs(term)
        lost = lost + jnp.where(large, (total - whole) + term, (term - whole) + total)
        return step + 1, whole, lost

    def to_mark(carry: Any, mark: Int[Array, ""]) -> Any:
        step, _, _ = carry
        carry = repeat(add, carry, jnp.maximum(mark - step, 0))
        return carry, carry[1] + carry[2]

    zero = jnp.zeros((), float)
    order = jnp.argsort(marks)
    found = jax.lax.scan(to_mark, (jnp.zeros((), marks.dtype), zero, zero), marks[order])[1]
    return jnp.zeros_like(found).at[order].set(found)


STABLE_FRACTION = 0.25  # of the limit 2 / sharpness: the default rate
CLOSE = 0.01  # of the whole fall: what a flow may still lack of the least loss
MOST_DOUBLINGS, AT_REST = 20, 4  # doublings of the time that a flow is given, and of one at rest


@eqx.filter_jit
def sharpness(loss: AbstractLoss, model: AbstractModel, iterations: int = 40) -> Float[Array, ""]:
    """The largest eigenvalue of the Hessian of L at the given weights (Lanczos, matrix-free).

    Descent at rate η is stable there while η · sharpness < 2. Only weights that exist are
    counted: full blocks are several times sharper than frozen ones.

    - `loss`, `model`: the loss, and the weights at which it is taken.
    - `iterations`: Hessian-vector products; the eigenvalue is exact for as many weights.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=1, scale=0.0)(jax.random.key(0))
    >>> round(float(icl.sharpness(icl.Population(task), model)), 2)
    0.74
    """
    require_loss(loss)
    require_model(model)
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    product = hessian_vector_product(lambda w: loss(eqx.combine(unravel(w), static)), flat)
    # Any start with a share of every direction will do; a fixed one keeps the function pure.
    start = jnp.cos(jnp.arange(flat.size, dtype=flat.dtype) + 1)
    return top_eigenvalues(product, flat.size, jax.random.key(0), steps=iterations, start=start)[0]


def reference_minimum(loss: AbstractLoss, model: AbstractModel) -> AbstractModel:
    """Weights of the model's kind at the least-squares solution, balanced, extra blocks zero.

    This is where training from small weights ends, up to O(1/P) (merged: all heads parallel;
    separate: one head for R modes, E9), so its sharpness tells the stable rate beforehand. Of a
    linear model of your own, which need not know such weights, it is where its own gradient flow
    from the given weights comes within a hundredth of the least loss.

    - `loss`: the loss; it says the solution.
    - `model`: any weights of the model's kind.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Separate.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> loss = icl.Population(task)
    >>> least = loss(icl.dynamics.reference_minimum(loss, model))
    >>> bool(abs(least - icl.theory.plateau_losses(task)[-1]) < 1e-6)
    True
    """
    layers = model.attention_layers()
    if layers and loss.admits(_linear_map(layers[0])) is not None:
        raise ValueError(
            f"{type(loss).__name__} knows no least-squares weights, from which the stable rate "
            f"would follow; give the rate"
        )
    found = model.at_minimum(_minimum(loss, layers[0])) if layers else None
    if found is None and not layers and isinstance(model, AbstractLinearModel):
        found = _flowed(loss, model)
    if found is None:
        raise ValueError(
            f"the least-squares weights of {type(model).__name__} are not known in advance; "
            f"give the rate"
        )
    return found


def _flowed(loss: AbstractLoss, model: AbstractLinearModel) -> AbstractModel:
    """Where the gradient flow of a linear model comes close to the least loss, or to rest."""
    shape = model.reduced_weights().shape
    heads, size = shape[0] * shape[1], shape[2]
    values = jnp.eye(heads).reshape(heads, *shape[:2])
    best = _minimum(loss, Merged(values=values, merged=jnp.zeros((heads, size, size))))
    least = loss(Merged(values=values, merged=best.reshape(heads, size, size)))
    flow = Flow(1e-6)
    state = eqx.filter_jit(flow.init)(loss, model, jax.random.key(0))
    losses = [float(loss(model))]
    for end in 2.0 ** np.arange(MOST_DOUBLINGS):
        state = _advanced(flow, loss, state, jnp.asarray([end])).state
        losses.append(float(loss(state.model)))
        near = losses[-1] - float(least) <= CLOSE * (losses[0] - float(least))
        # At rest, and not only on a plateau: several doublings of the time changed nothing.
        rests = len(losses) > AT_REST and abs(losses[-AT_REST] / losses[-1] - 1) < 1e-6
        if near or (rests and end > 2**14) or state.result != RESULTS.finished:
            break
    return state.model


@eqx.filter_jit
def _advanced(flow: Flow, loss: AbstractLoss, state: Any, marks: Any) -> Any:
    return flow.advance(loss, state, marks, {})


def stable_rate(
    loss: AbstractLoss, model: AbstractModel, fraction: float = STABLE_FRACTION
) -> Float[Array, ""]:
    """The rate at the stated fraction of descent's stability limit 2 / sharpness at the end.

    Of a `Curriculum` it is the smallest of its losses' rates.

    - `loss`, `model`: the loss, and initial weights of the model.
    - `fraction`: of the limit; a quarter if omitted.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=1, scale=0.0)(jax.random.key(0))
    >>> bool(icl.stable_rate(icl.Population(task), model) > 0)
    True
    """
    require_loss(loss)
    require_model(model)
    if loss.drifts:
        raise ValueError(
            "the sharpness of a loss that drifts changes with it; give the rate, or ask for "
            "stable_rate(loss.at(step), model) at the steps that matter"
        )
    limits = [sharpness(one, reference_minimum(one, model)) for _, one in loss.pieces]
    return 2 * fraction / jnp.max(jnp.stack(limits))


def _linear_map(model: AbstractModel) -> Merged:
    """Linear attention at M = 0: one head for each pair of output and label slot carries any M."""
    shape = jax.eval_shape(lambda m: m.reduced_weights(), model).shape
    outputs, size = shape[0], shape[2]
    pairs = outputs * outputs
    values = jnp.eye(pairs).reshape(pairs, outputs, outputs)
    return Merged(values=values, merged=jnp.zeros((pairs, size, size)))


@eqx.filter_jit
def _minimum(loss: AbstractLoss, model: AbstractModel) -> Float[Array, "O O D D"]:
    """The best reduced weights M: conjugate gradients on the quadratic loss of one linear map."""
    linear = _linear_map(model)
    shape = jax.eval_shape(lambda m: m.reduced_weights(), linear).shape

    def of_weights(weights: Array) -> Array:
        merged = weights.reshape(linear.merged.shape)
        return loss(Merged(values=linear.values, merged=merged))

    gradient = jax.grad(of_weights)
    zero = jnp.zeros(linear.merged.size)

    def product(vector: Array) -> Array:
        return jax.jvp(gradient, (zero,), (vector,))[1]

    solution, _ = jax.scipy.sparse.linalg.cg(product, -gradient(zero), tol=1e-8, maxiter=500)
    return solution.reshape(shape)
