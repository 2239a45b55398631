"""How many prompts the exact mean over tasks saves, and what a step with it costs.

    python benchmarks/averaged_tasks.py [PROMPTS]

λ = (0.4, 0.3, 0.2, 0.1), N = 31, five rank-one heads, weights along a run of each model. `spread`
is the standard deviation of one prompt's loss over the mean, plain and averaged; the ratio of
their squares is how many times fewer prompts give the same error of the loss. The same ratio is
printed for the gradient (summed over its entries), and the seconds of value and gradient.
"""

import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import iclflow as icl

MARKS = [0.0, 400.0, 800.0, 1600.0, 3200.0]
CHUNK = 2000


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
    kinds = {
        "softmax": icl.Softmax.initialiser(task, heads=5, rank=1, scale=0.1),
        "linear": icl.Separate.initialiser(task, heads=5, scale=0.1),
        "2 layers": icl.Layers.initialiser(task, layers=2, heads=5, scale=0.1),
    }
    print("model      time    loss   spread: plain averaged  prompts: loss gradient  seconds ratio")
    for name, init in kinds.items():
        models = trained(task, init(jax.random.key(0)))
        seconds = [timed(task, models, averaged) for averaged in (False, True)]
        for i, mark in enumerate(MARKS):
            model = jax.tree.map(lambda a, i=i: a[i], models)
            plain, exact = (spread(task, model, count, averaged) for averaged in (False, True))
            fewer = [(a / b) ** 2 for a, b in zip(plain[1:], exact[1:], strict=True)]
            print(f"{name:9s} {mark:5.0f}  {exact[0]:.4f}  {plain[1]:13.2f} {exact[1]:8.2f}  "
                  f"{fewer[0]:13.1f} {fewer[1]:8.1f}  {seconds[1] / seconds[0]:13.2f}")  # fmt: skip


def trained(task, model):
    """The model at the marks of a run on fresh draws of inputs."""
    loss = icl.Sequences.sample(task, 600, jax.random.key(1), averaged=True)
    rate = 0.2
    steps = [int(mark / (2 * rate)) for mark in MARKS]
    run = icl.simulate(loss, model, icl.Descent(rate), saveat=steps, record=["weights"])
    return jax.vmap(model.with_weights)(run.record["weights"])


def spread(task, model, count, averaged) -> tuple[float, float, float]:
    """Mean loss, and the deviations of one prompt's loss and of its gradient over the mean."""

    @eqx.filter_jit
    def one_by_one(key):
        def one(key):
            loss = icl.Sequences.sample(task, 1, key, averaged=averaged)
            value, slope = eqx.filter_value_and_grad(lambda m: loss(m))(model)
            return value, jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(slope)])

        return jax.vmap(one)(jax.random.split(key, CHUNK))

    found = [one_by_one(jax.random.key(7 + i)) for i in range(count // CHUNK)]
    values, slopes = (np.concatenate([np.asarray(f[i]) for f in found]) for i in (0, 1))
    return values.mean(), values.std() / values.mean(), float(np.sqrt(slopes.var(axis=0).sum()))


def timed(task, models, averaged) -> float:
    """Seconds of value and gradient on 2,000 prompts, the best of ten."""
    model = jax.tree.map(lambda a: a[0], models)
    loss = icl.Sequences.sample(task, 2000, jax.random.key(3), averaged=averaged)
    step = eqx.filter_jit(eqx.filter_value_and_grad(lambda m, loss: loss(m)))
    best = np.inf
    for _ in range(10):
        began = time.process_time()
        jax.block_until_ready(step(model, loss))
        best = min(best, time.process_time() - began)
    return best


if __name__ == "__main__":
    main()
