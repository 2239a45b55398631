"""Speed and memory of the core, as ratios within one run: `python benchmarks/core.py`.

Prints a table; `--quick` uses smaller sizes. Whole commands are timed from the shell, with start
and compilation; single steps are timed after compilation, the best of several.
"""

import argparse
import resource
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp

import iclflow as icl
from iclflow.models import AbstractModel

jax.config.update("jax_enable_x64", True)

FIG3 = (
    "simulate --model separate --heads 5 --rank 1 --spectrum 0.4,0.3,0.2,0.1 --context 31 "
    "--sequences 80000 --init 0.07 --rate 0.2 --steps 10001 --seeds 6 --json"
)
FIG4 = (
    "simulate --model separate --heads 9 --rank 2 --spectrum power:1 --dim 8 --context 31 "
    "--sequences 80000 --init 0.07 --rate 0.2 --steps 20001 --seeds 6 --json"
)
PUBLISHED_FIG3 = 2.9 * 86400  # seconds, the published code on 2 CPU cores, measured


class WholeMap(AbstractModel):
    """Softmax attention that computes the whole N x N map, as (5) is written."""

    attention: icl.Merged

    def __call__(self, prompt):
        x = prompt.tokens.T
        size = self.attention.input_size
        output = x[size:]
        for values, key_query in zip(
            self.attention.value_rows(), self.attention.key_query(), strict=True
        ):
            square = jnp.pad(key_query, ((0, 0), (0, x.shape[0] - size)))
            scores = x.T @ square @ x
            output = output + values @ x @ jax.nn.softmax(scores, axis=0)
        return output[:, -1]


def step_seconds(loss, model, repeats=5):
    """Seconds of one gradient, compiled, the best of `repeats`."""
    step = eqx.filter_jit(lambda loss, model: jax.value_and_grad(lambda m: loss(m))(model))
    jax.block_until_ready(step(loss, model))
    count, best = 1, float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(count):
            result = step(loss, model)
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - begin) / count)
        count = max(1, min(200, int(0.2 / best)))
    return best


def training_seconds(loss, model):
    """Seconds of one step of descent inside a compiled run long enough to be timed."""
    descent = icl.Descent(1e-3)
    steps, seconds = 1, 0.0
    while seconds < 0.3:
        steps *= 4
        for _ in range(2):  # the first may compile
            begin = time.perf_counter()
            jax.block_until_ready(icl.simulate(loss, model, descent, saveat=[0, steps]))
            seconds = time.perf_counter() - begin
    return seconds / steps


def shell_seconds(arguments):
    """Wall seconds and peak memory (MiB) of one command from the shell."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "iclflow", *arguments.split()], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return time.perf_counter() - begin, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick

    rows = []
    seconds, _ = shell_seconds("--help")
    rows.append(("iclflow --help", f"{seconds:.2f} s", "limit 0.5 s"))
    seconds, peak = shell_seconds(FIG3)
    ratio = PUBLISHED_FIG3 / seconds
    rows.append(("Fig. 3 job, six seeds, from the shell", f"{seconds:.1f} s", "limit 10 s"))
    rows.append(("  against the published code (2.9 days)", f"{ratio:,.0f} x", ""))
    rows.append(("  peak memory", f"{peak:.0f} MiB", "limit 2048 MiB"))
    if not quick:
        seconds, peak = shell_seconds(FIG4)
        rows.append(("D = 8, rank 2, 20,001 steps, six seeds", f"{seconds:.1f} s", "limit 30 s"))
        million = FIG3.replace("80000", "2000000").replace("10001", "11").replace("--seeds 6", "")
        seconds, peak = shell_seconds(million)
        rows.append(("2,000,000 sequences: peak memory", f"{peak:.0f} MiB", "limit 2048 MiB"))

    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    count = 500 if quick else 2000
    key = jax.random.key(0)
    init = icl.Merged.initialiser(task, heads=8, scale=0.3, blocks=icl.Blocks.FULL)
    sequences = icl.Sequences.sample(task, count, key)
    attention = init(key)
    ours = step_seconds(sequences, icl.Softmax(attention))
    literal = step_seconds(sequences, WholeMap(attention))
    gap = abs(float(sequences(icl.Softmax(attention)) - sequences(WholeMap(attention))))
    rows.append((f"softmax step, {count} sequences: whole map / query row",
                 f"{literal / ours:.1f} x", f"at least 10 x; same loss to {gap:.0e}"))  # fmt: skip
    base = training_seconds(sequences, attention)
    for level in (icl.Features, icl.Moments):
        seconds = training_seconds(level.sample(task, count, key), attention)
        name = level.__name__
        rows.append((f"linear step, {count} sequences: Sequences / {name}",
                     f"{base / seconds:.0f} x", "exact"))  # fmt: skip
    width = max(len(row[0]) for row in rows)
    for name, value, note in rows:
        print(f"{name:{width}s}  {value:>12s}  {note}")


if __name__ == "__main__":
    main()
