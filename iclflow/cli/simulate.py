"""Train a model on in-context regression, at the level of exactness you choose.

State a task, a model and an initialisation; omit --sequences for the population. The loss has no
factor 1/2, the clock is t/tau = 2 * rate * step, and --scale is the norm of each layer.
"""

import argparse
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

from iclflow.cli.options import (
    add_file,
    add_force,
    add_settings,
    check_outputs,
    finished,
    interrupted,
    print_json,
    settings_of,
    train_into,
)
from iclflow.results.messages import progress_bar
from iclflow.study.fields import DATA, DYNAMICS, MODEL, RUNS, TASK

EXAMPLES = """examples:
  # the staircase of Fig. 3: six initialisations on 80,000 sequences
  iclflow simulate --model separate --heads 5 --rank 1 --spectrum 0.4,0.3,0.2,0.1 --context 31 \\
      --sequences 80000 --scale 0.07 --rate 0.2 --steps 40001 --seeds 6 --out run.nc --plot run.png
  # one abrupt drop, in the population (no sampling error)
  iclflow simulate --model merged --heads 8 --scale 1e-3 --spectrum linear --dim 4 --plot drop.png
  # gradient flow, settings of a saved run (or of a TOML file), result as JSON
  iclflow simulate --from run.nc --rate 0.1 --seeds 1 --json
  iclflow simulate --dynamics flow --time 4000 --json
  # softmax attention needs sampled sequences; matching makes few of them look like many
  iclflow simulate --model softmax-merged --sequences 2000 --match --heads 4 --steps 5000 --rate 0.2
  # or take the mean over tasks exactly: softmax attention then needs five times fewer sequences
  iclflow simulate --model softmax-separate --sequences 500 --average --scale 0.1 --steps 5000
  # tested on another covariance and at other lengths; and label noise that begins at step 3000
  iclflow simulate --steps 8001 --test 'turned: spectrum=0.1,0.2,0.3,0.4' --test-context 8,31,100
  iclflow simulate --steps 8001 --change '3000: noise=0.5' --plot jump.png

  # your own prompts: np.savez("mine.npz", x=x, y=y) with x [P, N+1, D] and y [P, N+1]
  iclflow simulate --prompts mine.npz --heads 5 --scale 0.05 --theory --plot mine.png

A run with --out that was stopped (Ctrl-C, SIGTERM) goes on when the same command is given again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of `iclflow.study.study.Settings`, and what becomes of the result."""
    add_settings(parser, TASK, MODEL, DATA, DYNAMICS, RUNS)
    out = parser.add_argument_group("input and output")
    add_file(out)
    out.add_argument("--out", type=Path, metavar="FILE.nc", help="write the runs as NetCDF")
    out.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the loss and the theory")
    add_force(out)
    out.add_argument(
        "--theory", action="store_true", help="predict the drop times too (--plot does)"
    )
    out.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Simulate, report, and write what was asked for."""
    from iclflow.results.provenance import content_key
    from iclflow.study.study import Study

    began = time.perf_counter()
    read = [name for name in (args.file, args.prompts) if name is not None]
    check_outputs(args, (".nc",), read)
    settings, runs = settings_of(args), None
    if settings.fresh and settings.sequences is not None:
        warnings.warn(
            f"--fresh trains on new sequences; the loss is reported on the same "
            f"{settings.sequences} throughout, and without --sequences on the population",
            stacklevel=1,
        )
    if settings.scale == 0:
        warnings.warn("from zero weights nothing is learned; give a --scale", stacklevel=1)
    if args.out is not None:
        runs = finished(args.out, content_key(settings), force=args.force)
    with progress_bar("sampling", False if args.json else None) as report:
        study = Study.of(settings, progress=report)
    kept = runs is not None
    if runs is None:
        runs = train(study, args)
    try:
        summary = after(study, runs, args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("" if args.out is None else f"the run is in {args.out}") from None
    summary["seconds"] = round(time.perf_counter() - began, 3)
    if args.json:
        print_json(summary)
    else:
        show(summary, ("plot",) if kept else ("out", "plot"))
    return exit_code(summary)


def train(study: Any, args: argparse.Namespace) -> Any:
    """The runs; with --out they are written there."""
    with progress_bar("training", False if args.json else None) as report:
        if args.out is None:
            return study.run(progress=report)
        return train_into(args.out, lambda store: study.run(progress=report, store=store))


def after(study: Any, runs: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The summary of the runs, with theory and picture where asked for."""
    theory, wanted = None, args.plot is not None or args.theory
    if wanted and not interrupted(runs):
        with progress_bar("theory", False if args.json else None):
            theory = study.prediction(runs)
    summary = study.summary(runs, theory)
    missing = wanted and theory is None and not interrupted(runs)
    summary["theory_missing"] = study.without_prediction() if missing else None
    for name in ("out", "plot"):
        summary[name] = None if getattr(args, name) is None else str(getattr(args, name))
    if args.plot is not None:
        draw(study, runs, theory, args.plot)
    return summary


def show_tests(summary: dict[str, Any], console: Any) -> None:
    """The test losses at the end, a row per test and a column per length: means over the seeds."""
    import numpy as np
    from rich.table import Table

    lengths = [f"N = {n}" for n in summary.get("test_context", [])] or ["loss at end"]
    names = summary.get("test", ["this task"])
    values = np.asarray(summary["test_loss"]).mean(axis=0).reshape(len(names), len(lengths))
    table = Table("test", *lengths)
    for name, row in zip(names, values, strict=True):
        table.add_row(name, *(f"{value:.6f}" for value in row))
    console.print(table)


def _remedy(summary: dict[str, Any]) -> str:
    """What usually helps where runs fail."""
    if summary["level"] == "large-context":
        return "the formula ends at ρ = 1, so give a smaller --scale or --rate"
    if summary["model"] in ("steps", "transformer"):  # no stable rate is known of these
        return "give a smaller --rate"
    return "leave out --rate for a stable one"


def exit_code(summary: dict[str, Any]) -> int:
    """0; 2 with one line if the rate made a run diverge. Files are kept.

    `KeyboardInterrupt` with where they are if the run was stopped.
    """
    from iclflow.runs.record import FAILED

    failed = [i for i, result in enumerate(summary["result"]) if result in FAILED]
    if failed:
        first = failed[0]
        rate = "" if summary["rate"] is None else f" at rate {summary['rate']:g}"
        where = (
            f"{summary['result'][first].replace('_', ' ')} at step {summary['stopped'][first]:g}"
        )
        print(
            f"iclflow: {len(failed)} of {len(summary['result'])} runs failed, the first (seed "
            f"{summary['seeds'][first]}) {where}{rate}; {_remedy(summary)}",
            file=sys.stderr,
        )
        return 2
    if "interrupted" in summary["result"]:
        until = f"until step {max(summary['stopped']):g}"
        if summary["out"] is None:
            raise KeyboardInterrupt(f"this is what was computed {until}; with --out it could go on")
        raise KeyboardInterrupt(
            f"what was computed {until} is in {summary['out']}, the same command goes on"
        )
    return 0


def draw(study: Any, runs: Any, theory: Any, path: Path) -> None:
    """The loss with the theory's levels and, where there is one, its prediction."""
    from iclflow.plots.losses import loss_figure
    from iclflow.results.pictures import save_figure
    from iclflow.theory.predict import LEFT_OUT

    curves = None if theory is None else theory.curves
    title = study.title()
    title = textwrap.fill(title, 78 if len(title) <= 78 else len(title) // 2 + 10)  # no short line
    if theory is not None and theory.error == theory.error:
        title += f"\ntheory from the initial weights: drop times to {theory.error:.1%} (median)"
        title += f", {theory.worst:.1%} (worst)"
        if LEFT_OUT in theory.notes:
            title += "\n(the theory leaves out the zero blocks that training moves)"
    save_figure(loss_figure(runs, levels=study.levels(), theory=curves, title=title), path)


def show(summary: dict[str, Any], wrote: tuple[str, ...]) -> None:
    """The summary as a table on stdout, and the files that were written."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{summary['title']}[/bold]", soft_wrap=True)
    console.print(f"level: {summary['level']} ({summary['level_reason']})")
    if summary["blocks"] == "full":
        console.print(
            "zero blocks: trained; --blocks frozen leaves them out, as the library's initialisers "
            "do by default",
            soft_wrap=True,
        )
    console.print(f"engine: {summary['engine']}", markup=False, soft_wrap=True)
    if summary["rate"] is not None:
        largest = max(summary["rate_times_sharpness"])
        console.print(
            f"rate {summary['rate']:.4g}, rate x sharpness at the end {largest:.3g} "
            f"(descent is stable below 2)"
        )
    table = Table("seed", "loss at start", "loss at end", "result", "stopped at")
    for i, seed in enumerate(summary["seeds"]):
        table.add_row(
            str(seed),
            f"{summary['initial_loss'][i]:.6f}",
            f"{summary['final_loss'][i]:.6f}",
            summary["result"][i],
            f"{summary['stopped'][i]:g}",
        )
    console.print(table)
    if "test_loss" in summary:
        show_tests(summary, console)
    if summary["plateau_losses"]:
        levels = ", ".join(f"{level:.6f}" for level in summary["plateau_losses"])
        console.print(f"theory, plateau losses L(M_m): {levels}")
    if summary["drop_time_error"] is not None:
        error = summary["drop_time_error"]
        console.print(
            f"theory, drop times from the initial weights: median error {error:.2%}, worst "
            f"{summary['worst_drop_time_error']:.2%}"
            if error == error
            else "theory: no predicted drop within this run"
        )
    for note in summary["theory_notes"]:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if summary["theory_missing"] is not None:
        reason = summary["theory_missing"]
        console.print(f"theory: no drop times ({reason})", markup=False, soft_wrap=True)
    if summary["needed_steps"] is not None and summary["needed_steps"] > summary["steps"]:
        console.print(f"theory: the last drop needs --steps {summary['needed_steps']}")
    for what in wrote:
        if summary[what]:
            console.print(f"wrote {summary[what]}", markup=False, soft_wrap=True)
    console.print(f"{summary['seconds']:.1f} s")
