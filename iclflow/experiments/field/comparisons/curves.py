"""Curves of transformers while they learn: Hoogland et al. by position, Chen et al. with drops."""

import re

import jax
import numpy as np

from iclflow.experiments.field.comparisons.cells import Cells, Check, Found, Report
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.measures.small_drops import SmallDrop, small_drops
from iclflow.measures.stages import find_stages
from iclflow.measures.turns import turns
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.bayes import bayes_loss

NEAR = 0.05  # of a level, that a plateau may be away from it


def development(table: PublishedTable, quick: bool, report: Report) -> Found:
    """Error of the Bayes predictor by position, first small drop, and the algorithm after it."""
    _require_shapes(table)
    step = table["step"].astype(float)
    ridge = [table[f"{b}_mse"] - table[f"{b}_delta_ridge"] for b in ("first", "second")]
    means = np.stack([r.mean(axis=(0, 1)) for r in ridge]).astype(float)
    size = int(table.setting("D"))
    noise = table.number(rf"eps ~ N\(0, {NUMBER}\)", "variance of the noise")
    zero = size + noise  # the loss of ŷ = 0
    # The size of the two batches is not stated: that of training is taken.
    batch = table.number(r"batch (\d+)", "size of the batches", 256.0)
    relative = (2 / batch / len(ridge)) ** 0.5
    cells, positions = Cells(), means.shape[1]
    for k in range(positions):
        ours, wrong = (_least(size, k, variance, quick) for variance in (noise, 2 * noise))
        theirs = means[:, k].mean()
        cells.add(f"ridge after {k} pairs", theirs, ours, relative * ours, wrong)
        report(0.8 * (k + 1) / positions)
    checks = []
    for i, seed in enumerate(table["seed"].astype(int)):
        curves = np.concatenate([
            table[f"{batch}_mse"][i].T for batch in ("first", "second")
        ]).astype(float)  # fmt: skip
        found = small_drops(step, curves)
        said = found[0] if found else None
        # the mistake: the record without its first drop
        after = step > (2 * said.rest if said else step[len(step) // 4])
        late = small_drops(step[after], curves[:, after])
        first, without = (_at_zero(some, zero) for some in (found, late))
        checks += [
            Check(
                f"seed-{seed}-first-drop", f"seed {seed}: confidence of the first small drop", 1.0,
                first, 0.05, without,
            ),
            Check(
                f"seed-{seed}-zero", f"seed {seed}: loss where it ends, over that of ŷ = 0", 1.0,
                (said.after if said else np.nan) / zero, NEAR,
                (late[0].after if late else float(curves[:, -1].mean())) / zero,
            ),
        ]  # fmt: skip
        checks += _plateaus(table, i, seed, said, zero)
        checks += _borders(table, i, seed, found, late)
    report(1.0)
    return Found(
        cells, "twice the noise variance; the record without its first drop", positions,
        tuple(checks),
        note="the size of the evaluation batches is not stated; that of training is taken",
    )  # fmt: skip


def _require_shapes(table: PublishedTable) -> None:
    """Raise `ValueError` unless the arrays belong to the same seeds, steps and positions."""
    seeds, steps = len(table["seed"]), len(table["step"])
    known = table["first_mse"].shape
    for name, values in table.columns.items():
        curve = name.endswith(("_mse", "_delta_ridge"))
        if curve and (values.shape != known or values.shape[:2] != (seeds, steps)):
            raise ValueError(
                f"{table.name} has {name} of shape {values.shape}; {seeds} seeds, {steps} steps "
                f"and the same positions in all are needed"
            )
        if name.startswith("llc_") and values.shape != (seeds, steps):
            raise ValueError(
                f"{table.name} has {name} of shape {values.shape}; {(seeds, steps)} is needed"
            )


def _plateaus(
    table: PublishedTable, i: int, seed: int, first: SmallDrop | None, zero: float
) -> list[Check]:
    """Which algorithm the model is at its first rest and at the end: ŷ = 0, then near ridge.

    Both errors alone say it. By the orthogonality of the Bayes predictor the squared distance to
    ridge is mse - mse of ridge, and that of ŷ = 0 is the power of ridge's predictions: of the two
    the ratio is 1 where the model is zero and 0 where it is ridge.
    """
    step = table["step"].astype(float)
    away, mse = (
        np.mean([table[f"{b}_{n}"][i].mean(axis=1) for b in ("first", "second")], axis=0)
        for n in ("delta_ridge", "mse")
    )
    share = away / (zero - float(np.mean(mse - away)))
    rest = int(np.argmin(np.abs(step - first.rest))) if first else 0
    told = "squared distance to ridge, over that of ŷ = 0"
    return [
        Check(f"seed-{seed}-is-zero", f"seed {seed}, first rest: {told}", 1.0, float(share[rest]),
              NEAR, float(share[-1])),
        Check(f"seed-{seed}-is-ridge", f"seed {seed}, end: {told}", 0.0, float(share[-1]),
              NEAR, float(share[rest])),
    ]  # fmt: skip


def _borders(
    table: PublishedTable, i: int, seed: int, found: list[SmallDrop], late: list[SmallDrop]
) -> list[Check]:
    """The authors' borders of the stages of a seed, beside rests and turns of a second signal."""
    said = re.search(
        rf"stages of seed {seed} .*?LR1 0-(\d+), LR2 \d+-(\d+)(?:, LR3 \d+-(\d+))?", table.header
    )
    ends = [float(end) for end in said.groups() if end] if said else []
    checks = []
    for stage, end in enumerate(ends[:2], start=1):
        near = min((d.rest for d in found), key=lambda r: abs(np.log(r / end)), default=0.0)
        checks.append(Check(
            f"seed-{seed}-border-{stage}",
            f"seed {seed}: the rest nearest to the authors' end of LR{stage}, over it", 1.0,
            near / end, 0.3, (late[0].rest if late else 0.0) / end,
        ))  # fmt: skip
    if "llc_mean" not in table.columns or len(ends) < 2:
        return checks
    step = table["step"].astype(float)
    signal = table["llc_mean"][i].astype(float)
    spread = table["llc_std"][i].astype(float) if "llc_std" in table.columns else None
    turned = turns(step, signal, spread=spread)
    # the mistake: the loss instead of a second signal
    loss = np.mean([table[f"{b}_mse"][i].mean(axis=1) for b in ("first", "second")], axis=0)
    straight = turns(step, loss)
    for stage, kind, words in ((2, "maximum", "is largest"), (3, "level", "settles")):
        if stage <= len(ends):
            where, wrong = (
                next((t.time for t in some if t.kind == kind), 0.0) for some in (turned, straight)
            )
            checks.append(Check(
                f"seed-{seed}-coefficient-{stage}",
                f"seed {seed}: where the learning coefficient {words}, over the authors' end of "
                f"LR{stage}", 1.0, where / ends[stage - 1], 0.3, wrong / ends[stage - 1],
            ))  # fmt: skip
    return checks


def _at_zero(found: list[SmallDrop], zero: float) -> float:
    """The confidence of a first small drop that ends at the loss of ŷ = 0; 0 without one."""
    if not found or abs(found[0].after / zero - 1) > NEAR:
        return 0.0
    return found[0].confidence


def _least(size: int, pairs: int, variance: float, quick: bool) -> float:
    """The error of the Bayes predictor after so many pairs."""
    if pairs == 0:
        return size + variance
    spread = variance**0.5
    task = Task([1.0] * size, pairs, label_noise=spread, target_noise=spread)
    return float(bayes_loss(task, 4_000 if quick else 40_000, jax.random.key(pairs)).mean)


def ngrams(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The drop that the detector of stages finds, and where the curve is halfway down."""
    runs = sorted(n.removesuffix("_epoch") for n in table.columns if n.endswith("_epoch"))
    checks = []
    for done, run in enumerate(runs):
        epoch, loss = (table[f"{run}_{n}"].astype(float) for n in ("epoch", "val"))
        half = (loss[0] + loss[-1]) / 2
        crossing = float(epoch[int(np.argmax(loss <= half))])
        found, shuffled = (_largest(epoch, curve) for curve in (loss, _straight(loss)))
        checks.append(Check(
            f"run-{run}", f"run {run}: epoch of the largest drop over that halfway down", 1.0,
            found / crossing, 0.5, shuffled / crossing,
        ))  # fmt: skip
        report((done + 1) / len(runs))
    return Found(
        Cells(), "a curve of the same range that only decays", 0, tuple(checks),
        note="curves only: there is no parameter to be recomputed",
    )  # fmt: skip


def _largest(epoch: np.ndarray, loss: np.ndarray) -> float:
    """When the largest drop is; 0 where the detector finds none."""
    drops = find_stages(epoch, loss, resamples=50).drops
    if not drops:
        return 0.0
    return float(max(drops, key=lambda d: d.size).time)


def _straight(loss: np.ndarray) -> np.ndarray:
    """A convex decay between the same ends."""
    return loss[-1] + (loss[0] - loss[-1]) * np.linspace(1, 0, len(loss)) ** 2
