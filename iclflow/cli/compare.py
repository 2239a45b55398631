"""Repeat a recorded run of the published code on the same prompts and weights."""

import argparse
import time
from pathlib import Path
from typing import Any

from iclflow.cli.options import add_force, check_outputs, print_json
from iclflow.results.messages import progress_bar

EXAMPLES = """examples:
  iclflow compare attnM_P1000_H8.npz
  iclflow compare attnS_P500_H5_R2.npz --json
  iclflow compare mlp_P1000_H8.npz --plot overlay.png

The recording was made in single precision; the repetition runs in double precision, from moments
where the model is linear. The report is the largest absolute difference over all epochs of the
training loss, the two test losses and the value weights. Single precision explains 5e-6, and 5e-5
for attnS; the exit code is 1 where the difference is larger.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file and the kind of report."""
    parser.add_argument("file", type=Path, metavar="FILE.npz", help="the recorded run")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw both runs, one over the other"
    )
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Repeat and report."""
    from iclflow.published import RecordedRun, replay

    began = time.perf_counter()
    check_outputs(args, (), [args.file])
    recording = RecordedRun.load(args.file)
    with progress_bar("repeating", False if args.json else None) as report:
        found = replay(recording, report)
    if found.result == "interrupted":
        raise KeyboardInterrupt
    options = recording.options
    summary = {
        "file": str(args.file),
        "model": options.model,
        "epochs": found.epochs,
        "max_abs_loss": found.max_abs_loss,
        "max_abs_v": found.max_abs_values,
        "max_abs_test_icl": found.max_abs_in_context,
        "max_abs_test_iwl": found.max_abs_in_weight,
        "tolerance": options.tolerance,
        "within_tolerance": found.within,
        "result": found.result,
        "level": type(recording.train).__name__.lower(),
        "recorded_seconds": recording.seconds,
        "seconds": round(time.perf_counter() - began, 3),
        "training_seconds": round(found.seconds, 3),
        "plot": None if args.plot is None else str(args.plot),
    }
    if args.plot is not None:
        draw(found, args.plot)
    if args.json:
        print_json(summary)
    else:
        show(summary)
    return 0 if found.within else 1


def draw(found: Any, path: Path) -> None:
    """Both curves in one figure."""
    from iclflow.plots.epochs import comparison_figure
    from iclflow.results.pictures import save_figure

    recording = found.recording
    recorded = {"loss": recording.loss}
    recorded |= {f"{name}_loss": curve for name, curve in recording.test_losses.items()}
    recorded = {name: curve[: found.epochs] for name, curve in recorded.items()}
    save_figure(comparison_figure(found.run, recorded, title=recording.options.stem), path)


def show(summary: dict[str, Any]) -> None:
    """The differences as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table("curve", f"largest difference over {summary['epochs']} epochs")
    rows = {
        "training loss": "max_abs_loss",
        "value weights": "max_abs_v",
        "in-context test loss": "max_abs_test_icl",
        "in-weight test loss": "max_abs_test_iwl",
    }
    for label, key in rows.items():
        table.add_row(label, "not recorded" if summary[key] is None else f"{summary[key]:.2e}")
    console = Console()
    console.print(table)
    verdict = "within" if summary["within_tolerance"] else "NOT within"
    console.print(f"{verdict} {summary['tolerance']:g}, what single precision explains")
    if summary["result"] != "finished":
        console.print(f"the repetition ended early: {summary['result']}")
    recorded = summary["recorded_seconds"]
    before = "" if recorded is None else f" (recorded run: {recorded:.1f} s)"
    console.print(f"{summary['seconds']:.1f} s{before}")
    if summary["plot"]:
        console.print(f"wrote {summary['plot']}")
