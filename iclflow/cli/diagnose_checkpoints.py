"""`iclflow diagnose CHECKPOINTS`: measures of every head over a series of checkpoints."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from iclflow.cli.console import progress
from iclflow.cli.diagnose_output import finish
from iclflow.results.terminal import printable


def diagnose_checkpoints(args: argparse.Namespace) -> int:
    """Measures of every head over a series of checkpoints."""
    from iclflow import checkpoints

    if args.hf is not None:
        series = checkpoints.hub_series(args.hf, args.revisions)
    else:
        series = checkpoints.find_series(*args.paths)
    measures = args.measures or checkpoints.DEFAULT_MEASURES
    if args.show is not None and args.show not in measures:
        raise ValueError(f"--show {args.show} is not measured; there are {', '.join(measures)}")
    with progress("reading checkpoints", quiet=args.json) as report:
        data = checkpoints.measure_series(
            series,
            measures=measures,
            rank=args.subspace,
            heads=args.heads,
            stack=args.stack,
            keep_going=args.keep_going,
            progress=lambda done, total, label: report(done, total),
        )
    losses = losses_beside(args)
    data = checkpoints.mark_stages(data, **losses)
    problems = json.loads(data.attrs["problems"])
    # With NaN: a head whose weights are not finite must not be averaged away.
    last = data[list(measures)].isel(step=-1).mean(("layer", "head"), skipna=False)
    summary = {
        "family": data.attrs["family"],
        "steps": data["step"].values,
        "layers": data.sizes["layer"],
        "heads": data.sizes["head"],
        "notes": json.loads(data.attrs["notes"]),
        "problems": problems,
        "integrity": json.loads(data.attrs["integrity"]),
        "not_finite": json.loads(data.attrs["not_finite"]),
        "stages": json.loads(data.attrs.get("stages", "[]")),
        "log": str(args.log) if losses else None,
        "marks": [
            {"step": float(t), "source": str(s)}
            for t, s in zip(data["mark"].values, data["mark_source"].values, strict=True)
        ],
        "last": {
            name: {str(c): float(last[name].sel(circuit=c)) for c in data["circuit"].values}
            for name in measures
        },
    }
    finish(args, data, summary, "checkpoints_figure", args.show or measures[0])
    if not args.json:
        show_checkpoints(summary)
    for doubt in summary["integrity"]:
        print(f"iclflow: warning: {printable(doubt)}", file=sys.stderr)
    if summary["not_finite"]:
        first, *others = summary["not_finite"]
        more = f" (and {len(others)} more, see --json)" if others else ""
        print(f"iclflow: warning: {printable(first)}{more}", file=sys.stderr)
    for problem in problems:
        print(f"iclflow: {printable(problem)}", file=sys.stderr)
    # As for a report some of whose figures failed: 1 is a result with parts missing, 2 is none.
    return 1 if problems else 0


def losses_beside(args: argparse.Namespace) -> dict[str, Any]:
    """Steps and losses of --log, or of the log in the folder of the checkpoints."""
    from iclflow.diagnosis import find_log, read_curve

    asked = args.log is not None
    if not asked:
        folders = [Path(path) for path in args.paths if Path(path).is_dir()]
        args.log = next((log for log in map(find_log, folders) if log is not None), None)
    if args.log is None:
        return {}
    try:
        steps, losses = read_curve(args.log, args.column)
    except ValueError as error:
        if asked:
            raise
        print(f"iclflow: warning: without a loss: {printable(error)}", file=sys.stderr)
        return {}
    return {"steps": steps, "losses": losses}


def show_checkpoints(summary: dict[str, Any]) -> None:
    """The measures of the last step, the notes and the marks, in lines."""
    steps = summary["steps"]
    print(
        f"{summary['family']} names, {summary['layers']} layers of {summary['heads']} heads, "
        f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    )
    for name, values in summary["last"].items():
        shown = ", ".join(f"{circuit} {value:.4g}" for circuit, value in values.items())
        print(f"{name} at the end, mean over heads: {shown}")
    for line in summary["stages"]:
        print(f"loss, {printable(line)}")
    for name, note in summary["notes"].items():
        print(f"{printable(name)}: {printable(note)}")
    for mark in summary["marks"]:
        print(f"step {mark['step']:.6g}: {mark['source']}")
