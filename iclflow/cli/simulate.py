"""Train a model on in-context regression, at the level of exactness you choose.

State a task, a model and an initialisation; omit --sequences for the population. The loss has no
factor 1/2, the clock is t/tau = 2 * rate * step, and --init is the norm of each layer.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from iclflow.cli.console import (
    finite_float,
    numbers,
    positive_float,
    positive_int,
    print_json,
    progress,
)

EXAMPLES = """examples:
  # the staircase of Fig. 3: six initialisations on 80,000 sequences
  iclflow simulate --model separate --heads 5 --rank 1 --spectrum 0.4,0.3,0.2,0.1 --context 31 \\
      --sequences 80000 --init 0.07 --rate 0.2 --steps 40001 --seeds 6 --out run.nc --plot run.png
  # one abrupt drop, in the population (no sampling error)
  iclflow simulate --model merged --heads 8 --init 1e-3 --spectrum linear --dim 4 --plot drop.png
  # gradient flow, settings from a file, result as JSON
  iclflow simulate --from settings.toml --dynamics flow --time 4000 --json
  # softmax attention needs sampled sequences; matching makes few of them look like many
  iclflow simulate --model softmax-merged --sequences 2000 --match --heads 4 --steps 5000
"""


FINE = ("finished", "step_limit", "interrupted")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options; each is a field of `iclflow.study.settings.Settings`."""
    add_task_arguments(parser)
    add_model_arguments(parser)

    data = parser.add_argument_group("data and level of exactness")
    data.add_argument("--sequences", type=positive_int, metavar="P", help="omit: population")
    data.add_argument(
        "--match", action="store_const", const=True, help="whiten task vectors, centre inputs"
    )
    data.add_argument(
        "--loss", metavar="LEVEL", help="auto, sequences, features, moments or population"
    )
    data.add_argument("--batch", type=positive_int, metavar="B", help="minibatches of B sequences")
    data.add_argument(
        "--fresh", action="store_const", const=True, help="new sequences for every batch"
    )

    how = parser.add_argument_group("dynamics")
    how.add_argument("--dynamics", metavar="KIND", help="descent (default) or flow")
    how.add_argument("--optimiser", metavar="RULE", help="gd (default), momentum or adam")
    how.add_argument("--momentum", type=finite_float, help="its decay (default 0.9)")
    how.add_argument(
        "--rate", type=positive_float, help="default: a quarter of the stability limit"
    )
    how.add_argument("--steps", type=positive_int, help="updates (default 10001)")
    how.add_argument("--time", type=positive_float, help="end time t/tau, instead of --steps")
    how.add_argument("--tolerance", type=positive_float, help="of the flow (default 1e-9)")

    runs = parser.add_argument_group("runs and output")
    runs.add_argument("--seeds", type=positive_int, help="number of runs (default 1)")
    runs.add_argument("--seed", type=int, help="the first seed (default 0)")
    runs.add_argument("--vary", metavar="WHAT", help="what seeds change: weights, data or all")
    runs.add_argument("--data-seed", type=int, help="seed of the sequences (default 1)")
    runs.add_argument("--eigen-seed", type=int, help="seed of eigenvectors, pool and w* (2)")
    runs.add_argument(
        "--save",
        metavar="WHEN",
        help="log:COUNT, linear:COUNT, mixed:COUNT (default mixed:400), all, or a list",
    )
    runs.add_argument("--record", type=names, metavar="NAMES", help="e.g. loss,values,weights")
    runs.add_argument("--from", dest="file", metavar="TOML", help="settings file; options win")
    runs.add_argument("--out", type=Path, metavar="FILE.nc", help="write the runs as NetCDF")
    runs.add_argument("--plot", type=Path, metavar="FILE.png", help="draw loss and theory")
    runs.add_argument(
        "--theory", action="store_true", help="predict the drop times too (--plot does)"
    )
    runs.add_argument("--json", action="store_true", help="one JSON object on stdout")


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that state the task."""
    task = parser.add_argument_group("task")
    task.add_argument("--spectrum", type=spectrum, help="list, white, linear or power:ALPHA")
    task.add_argument("--dim", type=positive_int, metavar="D", help="for a named spectrum")
    task.add_argument("--trace", type=positive_float, help="of the covariance (named: 1)")
    task.add_argument("--context", type=positive_int, metavar="N", help="labelled pairs (31)")
    task.add_argument("--lengths", type=lengths, help="average over lengths, e.g. 1-31 or 8,16")
    task.add_argument("--normaliser", help="1/N by pairs (default), tokens, context or none")
    task.add_argument("--inputs", help="gaussian, sphere, rademacher or student:DEGREES")
    task.add_argument("--noise", type=finite_float, help="std of noise on context labels")
    task.add_argument("--target-noise", type=finite_float, help="std of noise on the target")
    task.add_argument("--task-covariance", type=floats, help="variances of w by eigenvector")
    task.add_argument("--task-mean", type=floats, help="mean of w")
    task.add_argument("--pool", type=positive_int, metavar="M", help="a finite pool of M tasks")
    task.add_argument("--fixed-fraction", type=finite_float, help="share with the task w*")
    task.add_argument(
        "--in-weight-test", metavar="LABELS", help="context labels of that test: task or noise"
    )
    task.add_argument(
        "--no-rotate", dest="rotate", action="store_const", const=False, help="eigenvectors = axes"
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that state the model and its initial weights."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        help="merged, separate (default), mlp, conv, softmax-merged, softmax-separate, or "
        "linear-transformer (D outputs, W = U diag Uᵀ; --init is p = q)",
    )
    model.add_argument("--heads", type=positive_int, metavar="H")
    model.add_argument("--rank", type=positive_int, metavar="R")
    model.add_argument("--init", type=finite_float, metavar="W", help="norm of each layer (0.01)")
    model.add_argument(
        "--blocks", help="zero blocks full or frozen (auto: full on finite data, else frozen)"
    )


def spectrum(text: str) -> tuple[float, ...] | str:
    """A list of eigenvalues or the name of a spectrum."""
    named = text[:1].isalpha() and "," not in text
    return text if named else tuple(numbers(text))


def floats(text: str) -> tuple[float, ...]:
    """A list of numbers as a tuple."""
    return tuple(numbers(text))


def names(text: str) -> tuple[str, ...]:
    """A list of names as a tuple."""
    return tuple(part for part in text.replace(" ", "").split(",") if part)


def lengths(text: str) -> tuple[int, ...]:
    """`1-31`, or a list of whole numbers."""
    first, dash, last = text.partition("-")
    try:
        if dash:
            return tuple(range(int(first), int(last) + 1))
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs FIRST-LAST or a list, got {text!r}") from None


def settings_of(args: argparse.Namespace) -> Any:
    """The options that were given, over those of a settings file."""
    from iclflow.study.settings import Settings

    fields = {field.name for field in dataclasses.fields(Settings)}
    given = {k: v for k, v in vars(args).items() if k in fields and v is not None}
    if getattr(args, "file", None) is not None:
        return Settings.from_toml(args.file, **given)
    return Settings(**given)


def run(args: argparse.Namespace) -> int:
    """Simulate, report, and write what was asked for."""
    from iclflow.results.netcdf import check_free, save
    from iclflow.results.provenance import content_key
    from iclflow.study.study import Study

    began = time.perf_counter()
    settings = settings_of(args)
    if args.out is not None:
        check_free(args.out, content_key(settings))
    if args.plot is not None and not args.plot.parent.is_dir():
        raise ValueError(f"the folder {args.plot.parent} does not exist; create it first")
    with progress("sampling", quiet=args.json) as report:
        study = Study.of(settings, progress=report)
    with progress("training", quiet=args.json) as report:
        runs = study.run(progress=report)
    if args.out is not None:
        save(runs, args.out)
    with progress("theory", quiet=args.json):
        theory = study.prediction(runs) if args.plot is not None or args.theory else None
    summary = study.summary(runs, theory)
    summary["seconds"] = round(time.perf_counter() - began, 3)
    summary["out"] = None if args.out is None else str(args.out)
    summary["plot"] = None if args.plot is None else str(args.plot)
    if args.plot is not None:
        draw(study, runs, theory, args.plot)
    if args.json:
        print_json(summary)
    else:
        show(summary)
    return exit_code(summary)


def exit_code(summary: dict[str, Any]) -> int:
    """0; 2 with one line if the rate made a run diverge; 130 after Ctrl-C. Files are kept."""
    failed = [i for i, result in enumerate(summary["result"]) if result not in FINE]
    if failed:
        first = failed[0]
        rate = "" if summary["rate"] is None else f" at rate {summary['rate']:g}"
        where = (
            f"{summary['result'][first].replace('_', ' ')} at step {summary['stopped'][first]:g}"
        )
        print(
            f"iclflow: {len(failed)} of {len(summary['result'])} runs failed, the first (seed "
            f"{summary['seeds'][first]}) {where}{rate}; leave out --rate for a stable one",
            file=sys.stderr,
        )
        return 2
    if "interrupted" in summary["result"]:
        kept = "" if summary["out"] is None else f"; what was computed is in {summary['out']}"
        print(f"iclflow: interrupted at step {max(summary['stopped']):g}{kept}", file=sys.stderr)
        return 130
    return 0


def draw(study: Any, runs: Any, theory: Any, path: Path) -> None:
    """The loss with the theory's levels and, where there is one, its prediction."""
    from iclflow.plots.losses import loss_figure
    from iclflow.results.pictures import save_figure

    curves = None if theory is None else theory.curves
    title = study.title()
    if theory is not None and theory.error == theory.error:
        title += f"\ntheory from the initial weights: drop times to {theory.error:.1%} (median)"
    save_figure(loss_figure(runs, levels=study.levels(), theory=curves, title=title), path)


def show(summary: dict[str, Any]) -> None:
    """The summary as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{summary['title']}[/bold]")
    console.print(f"level: {summary['level']} ({summary['level_reason']})")
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
    if summary["plateau_losses"]:
        levels = ", ".join(f"{level:.6f}" for level in summary["plateau_losses"])
        console.print(f"theory, plateau losses L(M_m): {levels}")
    if summary["drop_time_error"] is not None:
        error = summary["drop_time_error"]
        console.print(
            f"theory, drop times from the initial weights: median error {error:.2%}"
            if error == error
            else "theory: no predicted drop within this run"
        )
    for what in ("out", "plot"):
        if summary[what]:
            console.print(f"wrote {summary[what]}", markup=False, soft_wrap=True)
    console.print(f"{summary['seconds']:.1f} s")
