"""The ridge end points of `lu_gtask.csv` at one dimension; and whether a pool is ever transient.

Twelve values of κ with 20 draws each, as the authors made them: those of the table that ships, and
as many between them. The errors of dMMSE are part of it. The first value of κ is made once before
the clock starts, so that compiling for other values is counted and starting JAX is not.

    python benchmarks/field.py            # d = 64; 73 minutes for the authors
    python benchmarks/field.py 32 --quick
    python benchmarks/field.py --transient

`--transient` trains one layer of merged attention by the flow of the population on pools of M tasks
(D = 8, N = 32, eight heads from scale 0.01, to t/τ = 3000), and has the error on new tasks at the
start, where it is lowest, and at the end, over three seeds.
"""

import argparse
import dataclasses
import time

import jax
import numpy as np

import iclflow as icl

jax.config.update("jax_enable_x64", True)

from iclflow.experiments.field.comparisons.cells import scores  # noqa: E402
from iclflow.experiments.field.comparisons.pools import task_gap  # noqa: E402
from iclflow.experiments.field.comparisons.reading import (  # noqa: E402
    HERE,
    PublishedTable,
    read_table,
)


def of_size(table: PublishedTable, size: int) -> PublishedTable:
    """The rows with one d."""
    mine = np.flatnonzero(table["d"] == size)
    if not len(mine):
        sizes = sorted({int(d) for d in table["d"]})
        raise SystemExit(f"{table.name} has no d = {size}; it has {sizes}")
    return dataclasses.replace(table, columns={k: v[mine] for k, v in table.columns.items()})


def between(table: PublishedTable) -> PublishedTable:
    """As many values of κ between those of a table; their published numbers are not known."""
    d, kappa = table["d"], table["kappa"]
    ratio = (kappa[-1] / kappa[0]) ** (0.5 / max(len(kappa) - 1, 1))
    tasks = np.floor(kappa * ratio * d)
    prompts = tasks * np.round(table.setting("tau") * d**2 / tasks)
    changed = {"kappa": tasks / d, "K": tasks, "n": prompts}
    return dataclasses.replace(table, columns={**table.columns, **changed})


def transient(seeds: int = 3) -> None:
    """Print a row per size of the pool."""
    new = icl.Task([1.0] * 8, context=32)
    for many in (2, 4, 8, 16, 64):
        rows = []
        for seed in range(seeds):
            keys = jax.random.split(jax.random.key(seed))
            pool = new.replace(tasks=icl.Pool(jax.random.normal(keys[0], (many, 8))))
            model = icl.Merged.initialiser(pool, heads=8, scale=0.01)(keys[1])
            run = icl.simulate(
                icl.Population(pool), model, icl.Flow(), until=3000.0, test=icl.Population(new)
            )
            error = np.asarray(run["test_loss"]).reshape(len(run.time), -1)[:, 0]
            low = int(np.argmin(error))
            rows.append([error[0], error[low], float(run.time[low]), error[-1]])
        for row in rows:
            print(f"M = {many}: {row[0]:.3f}, {row[1]:.4f} at t/τ = {row[2]:.0f}, {row[3]:.4f}")


def main() -> None:
    """Time both halves and print what the comparison says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("size", type=int, nargs="?", default=64)
    parser.add_argument("--quick", action="store_true", help="as few draws as the quick form")
    parser.add_argument("--transient", action="store_true", help="the error on new tasks in time")
    args = parser.parse_args()
    if args.transient:
        return transient()
    table = of_size(read_table(HERE / "lu_gtask.csv", ()), args.size)
    first = {name: values[:1] for name, values in table.columns.items()}
    task_gap(dataclasses.replace(table, columns=first), True, lambda _: None)
    wall, processor = time.perf_counter(), time.process_time()
    found = task_gap(table, args.quick, lambda _: None)
    task_gap(between(table), args.quick, lambda _: None)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    chi2, largest = scores(found.cells.z())
    print(
        f"d = {args.size}, {2 * len(table)} values of κ on {jax.devices()[0].device_kind}: "
        f"{wall:.1f} s, {processor:.1f} s of processor; theirs {found.authors:,.0f} s; "
        f"{len(found.cells.label)} published cells, χ²/n {chi2:.2f}, largest |z| {largest:.1f}"
    )


if __name__ == "__main__":
    main()
