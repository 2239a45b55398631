"""`iclflow diagnose RUN.nc`: one line per stage of our own runs."""

import argparse
import sys
from math import isnan
from typing import Any

from iclflow.cli.diagnose_curve import report_curve
from iclflow.cli.diagnose_output import finish

COLUMNS = {"in_context_loss": "in-context", "in_weight_loss": "in-weight"}


def diagnose_our_runs(args: argparse.Namespace) -> int:
    """Stages and algorithms of one seed, or of every seed of the file."""
    from iclflow.diagnosis import diagnose_run, diagnose_runs, run_settings
    from iclflow.diagnosis.identify import shifted
    from iclflow.measures import Clock
    from iclflow.study.settings import load_runs

    path = args.paths[0]
    runs = load_runs(path)
    if not weights_recorded(runs):
        return diagnose_losses(args, runs)
    require_room(args, runs)
    moved = args.test_context or args.test_spectrum or args.test_scale != 1
    several = args.seed is None and runs.sizes.get("seed", 1) > 1
    try:
        on = None
        if moved:
            task = run_settings(runs).task()
            on = shifted(
                task, context=args.test_context, spectrum=args.test_spectrum, scale=args.test_scale
            )
        options: dict[str, Any] = {
            "on": on, "clock": Clock(args.clock), "sequences": args.prompts
        }  # fmt: skip
        found = (
            diagnose_runs(runs, **options)
            if several
            else diagnose_run(runs, seed=args.seed, **options)
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    singles = [found.sel(seed=seed) for seed in found["seed"].values] if several else [found]
    if not several and "seed" in runs.dims:
        chosen = runs["seed"].values[0] if args.seed is None else args.seed
        singles = [found.assign_coords(seed=int(chosen))]
    summary = {
        "path": str(path),
        "clock": found["time"].attrs["long_name"],
        "runs": [summarise(single) for single in singles],
        "levels": found["level_theory"].values,
    }
    finish(args, found, summary, "runs_figure" if several else "run_figure")
    if not args.json:
        for run in summary["runs"]:
            show_run(run, several)
    return 0


def weights_recorded(runs: Any) -> bool:
    """Whether a file of runs that says what it was trained on has the weights too."""
    from iclflow.diagnosis import run_settings
    from iclflow.models import empty_model

    settings = run_settings(runs)
    model = empty_model(settings.initialiser(settings.task()))
    return all(name in runs for name in model.weights())


def require_room(args: argparse.Namespace, runs: Any) -> None:
    """Refuse prompts that would not fit in memory."""
    from iclflow.diagnosis import run_settings
    from iclflow.losses.memory import require_memory
    from iclflow.study.settings import task_size

    settings = run_settings(runs)
    pairs = args.test_context or settings.context
    needed = 8 * 8 * args.prompts * pairs * (task_size(settings) + 1)
    require_memory(needed, f"{args.prompts} prompts of {pairs} pairs", "give fewer --prompts")


def diagnose_losses(args: argparse.Namespace, runs: Any) -> int:
    """What the loss alone can tell, of one seed."""
    from iclflow.diagnosis import diagnose_curve, run_settings
    from iclflow.diagnosis.runs import select_run, task_of
    from iclflow.measures import Clock

    run = select_run(runs, args.seed)
    task = task_of(run, run_settings(runs))
    found = diagnose_curve(
        run["step"].values.astype(float), run["loss"].values, task=task, clock=Clock(args.clock)
    )
    print(
        f"iclflow: {args.paths[0]} has no weights: stages of the loss alone; for the algorithms, "
        f"iclflow simulate --from {args.paths[0]} --record loss,weights --out NEW.nc",
        file=sys.stderr,
    )
    return report_curve(args, found)


def summarise(found: Any) -> dict[str, Any]:
    """One run ready for JSON."""
    from iclflow.diagnosis import spells, stage_rows

    drops = found["drop_time"].values[: int(found["drop_count"])]
    last = int(found["loss"].notnull().values.nonzero()[0][-1])
    names = found["candidate"].values.tolist()
    return {
        "seed": int(found["seed"]) if "seed" in found.coords else None,
        "stages": stage_rows(found),
        "drops": drops,
        "algorithms": spells(found),
        "final_distance": dict(zip(names, found["distance"].values[last], strict=True)),
    }


def show_run(run: dict[str, Any], several: bool) -> None:
    """One line per stage, and the nearest algorithm through time."""
    if several:
        print(f"seed {run['seed']}")
    tests = [name for name in COLUMNS if run["stages"] and name in run["stages"][0]]
    extra = "".join(f" {COLUMNS[name]:>10}" for name in tests)
    print(f"{'stage':>5} {'start':>10} {'end':>10} {'loss':>10}{extra} {'margin':>7}  algorithm")
    for i, row in enumerate(run["stages"]):
        times = f"{row['start']:>10.5g} {row['end']:>10.5g} {row['level']:>10.6f}"
        extra = "".join(f" {row[name]:>10.4f}" for name in tests)
        margin = (
            "none" if isnan(row["margin"]) else f"{row['margin']:.3f}"
        )  # nothing to confuse with
        print(f"{i:>5} {times}{extra} {margin:>7}  {row['algorithm']}")
    path = " > ".join(f"{s['algorithm']} (until {s['end']:.4g})" for s in run["algorithms"])
    print(f"nearest algorithm over time: {path}")
