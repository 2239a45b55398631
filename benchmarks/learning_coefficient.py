"""Sampled learning coefficients beside the exact ones, on losses where these are known.

    python benchmarks/learning_coefficient.py [--draws 2000] [--chains 32] [--set first|fresh]

Regular minima have half the number of weights; (v k q)² has 1/2 everywhere on its minimum, with
multiplicity 3 at the origin; |A B - A₀B₀|² has Aoyagi and Watanabe's value; attention with more
heads than it needs has half the number of entries of its effective weights.

The rule for the stated error was made with the first set in view. The fresh set was written down
afterwards, and the rule has not been changed since: (x² - y³)² has 5/12, half of the log canonical
threshold of the cusp; of monomials x^2a y^2b the smallest of 1/2a and 1/2b counts; sums over
separate weights add their coefficients.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import iclflow as icl
from iclflow.dynamics import reference_minimum
from iclflow.measures import learning_coefficient
from iclflow.theory import attention_coefficient, reduced_rank_coefficient


def factors(inputs: int, outputs: int, hidden: int, rank: int) -> tuple:
    """The loss |A B - A₀B₀|² and its most degenerate minimum."""
    left, right = np.zeros((outputs, hidden)), np.zeros((hidden, inputs))
    left[range(rank), range(rank)] = right[range(rank), range(rank)] = 1
    goal = jnp.asarray(left @ right)
    exact = reduced_rank_coefficient(inputs=inputs, outputs=outputs, hidden=hidden, rank=rank)
    at = jnp.asarray(left), jnp.asarray(right)
    return lambda w: jnp.sum((w[0] @ w[1] - goal) ** 2), at, exact.coefficient, {}


def cases() -> dict[str, tuple]:
    """Name -> loss, weights, exact coefficient, options."""
    task = icl.Task(spectrum=[0.6, 0.4], context=31)
    loss = icl.Population(task)
    found = {
        "regular, 6 weights": (
            lambda w: jnp.sum(jnp.arange(1.0, 7) * w**2), jnp.zeros(6), 3.0, {}
        ),
        "(v k q)² at (0, 1, 1)": (
            lambda w: jnp.prod(w) ** 2, jnp.array([0.0, 1, 1]), 0.5, {"localisation": 100.0}
        ),
        "(v k q)² at the origin": (lambda w: jnp.prod(w) ** 2, jnp.zeros(3), 0.5, {}),
        "A B, 2 x 2 x 2, rank 0": factors(2, 2, 2, 0),
        "A B, 3 x 3 x 3, rank 1": factors(3, 3, 3, 1),
    }  # fmt: skip
    for kind in (icl.Merged, icl.Separate):
        start = kind.initialiser(task, heads=4, scale=0.1)(jax.random.key(0))
        minimum = reference_minimum(loss, start)
        exact = attention_coefficient(minimum).coefficient
        found[f"{kind.__name__}, D = 2, 4 heads"] = (loss, minimum, exact, {})
    return found


def fresh() -> dict[str, tuple]:
    """Losses that nobody looked at when the rule for the stated error was made."""
    task = icl.Task(spectrum=[0.5, 0.3, 0.2], context=15, label_noise=0.5)
    loss = icl.Population(task)
    curvatures = jnp.logspace(-1.0, 1.0, 12)
    zero = jnp.zeros(2)
    found = {
        "regular, 12 weights": (lambda w: jnp.sum(curvatures * w**2), jnp.zeros(12), 6.0, {}),
        "x⁴ + y²": (lambda w: w[0] ** 4 + w[1] ** 2, zero, 0.75, {}),
        "x² y²": (lambda w: w[0] ** 2 * w[1] ** 2, zero, 0.5, {}),
        "x² y⁴": (lambda w: w[0] ** 2 * w[1] ** 4, zero, 0.25, {}),
        "(x² - y³)²": (lambda w: (w[0] ** 2 - w[1] ** 3) ** 2, zero, 5 / 12, {}),
        "A B, 3 x 4 x 2, rank 1": factors(3, 4, 2, 1),
        "A B, 4 x 2 x 3, rank 2": factors(4, 2, 3, 2),
        "A B, 4 x 4 x 4, rank 0": factors(4, 4, 4, 0),
    }  # fmt: skip
    for name, init in {
        "Merged, D = 3, 5 heads": icl.Merged.initialiser(task, heads=5, scale=0.1),
        "Separate, D = 3, rank 2": icl.Separate.initialiser(task, heads=4, rank=2, scale=0.1),
    }.items():
        minimum = reference_minimum(loss, init(jax.random.key(1)))
        found[name] = (loss, minimum, attention_coefficient(minimum).coefficient, {})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--set", choices=("first", "fresh"), default="first")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{'loss':26} {'weights':>7} exact  sampled  standard error  stated error  seconds")
    chosen = cases() if options.set == "first" else fresh()
    for name, (loss, model, exact, given) in chosen.items():
        began = time.perf_counter()
        sizes = {"draws": options.draws, "chains": options.chains}
        found = learning_coefficient(loss, model, **sizes, **given)
        count = sum(leaf.size for leaf in jax.tree.leaves(model))
        numbers = (float(n) for n in (found.value, found.standard_error, found.error))
        print(
            "{:26} {:7} {:5.3g} {:8.3f} {:15.3f} {:13.3f} {:8.1f}".format(
                name, count, exact, *numbers, time.perf_counter() - began
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
