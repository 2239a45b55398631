"""What the theory says of a task: plateau levels, drops, stability, and losses of algorithms.

Only --spectrum and --context are needed. With --scale it also predicts, from the initial weights
that `simulate` would draw, when each drop comes and which head makes it (t/tau = 2 * rate * step).
"""

import argparse
from pathlib import Path
from typing import Any

from iclflow.cli import theory_depth, theory_linear_transformer
from iclflow.cli.console import print_json
from iclflow.cli.options import add_settings, settings_of
from iclflow.cli.outputs import add_force, check_outputs
from iclflow.study.fields import DEEP, MODEL, TASK

EXAMPLES = """examples:
  iclflow theory --spectrum 0.4,0.3,0.2,0.1 --context 31
  iclflow theory --spectrum 0.4,0.3,0.2,0.1 --context 31 --scale 0.01 --plot stairs.png
  iclflow theory --spectrum power:1 --dim 8 --context 31 --rank 2 --heads 9 --scale 1e-3 --json
  iclflow theory --spectrum 1,0.5 --context 200 --task-covariance 1,3 --noise 0.1
  iclflow theory --spectrum 0.4,0.3,0.2,0.1 --context 31 --layers 2
  iclflow theory --model linear-transformer --spectrum 1.7,1.4,1.1,1 --context 200 --scale 0.01
"""

ROWS = 16  # of a table; the rest is in --json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task and model options of `simulate`."""
    add_settings(parser, TASK, MODEL, only=("seed", "eigen_seed"))
    theory_linear_transformer.add_arguments(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--from", dest="file", metavar="FILE", help="TOML or run.nc; options win")
    out.add_argument("--plot", type=Path, metavar="FILE.png", help="draw levels and staircase")
    add_force(out)
    out.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Evaluate the formulas, report, draw."""
    settings = settings_of(args)
    check_outputs(args, (), [] if args.file is None else [args.file])
    if settings.model == "linear-transformer":
        return theory_linear_transformer.run(args, settings)
    theory_linear_transformer.refuse_options(args)
    if settings.model in DEEP.values():
        return theory_depth.run(args, settings)
    import jax

    from iclflow.theory.predict import predict
    from iclflow.theory.summary import start_summary, task_summary

    task = settings.task()
    found = task_summary(task, settings.heads, settings.rank) | {"notes": not_covered(settings)}
    prediction = None
    if args.scale is not None or (args.file is not None and settings.scale):
        model = settings.initialiser(task)(jax.random.key(settings.seed))
        prediction = predict(task, model)
        found |= start_summary(prediction, task, settings.scale)
    if args.plot is not None:
        draw(found, prediction, args.plot)
    if args.json:
        print_json(found)
    else:
        show(found)
    return 0


def not_covered(settings: Any) -> list[str]:
    """What of the settings these levels do not know of, in words."""
    found = []
    if settings.model.startswith("softmax"):
        found.append(f"the levels are those of linear attention; no theory covers {settings.model}")
    if settings.model in ("merged", "mlp"):
        found.append("merged key and query visit the first and the last of these levels only")
    if settings.fixed_fraction > 0:
        found.append(
            "with a fixed task the zero blocks learn it: the levels are those of weights that "
            "leave them zero, and runs go lower"
        )
    return found


def draw(found: dict[str, Any], prediction: Any, path: Path) -> None:
    """The predicted loss, with the levels; the levels alone without initial weights."""
    from iclflow.plots.theory import theory_figure
    from iclflow.results.pictures import save_figure

    curve = None if prediction is None else prediction.curve(prediction.time)
    save_figure(
        theory_figure(found["plateau_losses"], curve=curve, drops=found.get("drop_times")), path
    )


def show(found: dict[str, Any]) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        "m", "loss L(M_m)", "drop to next", "order", "index", "gain", title="plateaus visited"
    )
    drops = [*found["drop_sizes"], None]
    for m, saddle in enumerate(found["saddles"][:ROWS]):
        drop = "" if drops[m] is None else f"{drops[m]:.6f}"
        row = (f"{saddle['loss']:.6f}", drop, str(saddle["order"]), str(saddle["index"]))
        table.add_row(str(m), *row, f"{saddle['cubic_gain']:.4g}")
    console.print(table)
    if len(found["saddles"]) > ROWS:
        console.print(f"({len(found['saddles']) - ROWS} more; --json has them all)")
    console.print(
        "order 3: left by blow-up, t = tau/(gain * weight); order 2: exponentially; "
        f"fixed points in all: {found['fixed_points']}"
    )
    table = Table("in-context algorithm", "population loss", "by", title="algorithms")
    exact = "closed form"
    for name, label in (
        ("zero", "zero"),
        ("gradient_step", "one gradient step, best rate"),
        ("least_squares", "least squares (16) = PCR-D"),
        ("ordinary_least_squares", "ordinary least squares"),
        ("ridge", "ridge, ρ = σ²"),
        ("bayes", "Bayes-optimal"),
    ):
        error = found.get(f"{name}_error")
        how = exact if not error else f"Monte Carlo ± {error:.2g}"
        how = "too long to sample" if error != error and error is not None else how
        table.add_row(label, f"{found[f'{name}_loss']:.6f}", how)
    console.print(table)
    if "drop_times" in found:
        show_drops(console, found)
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)


def show_drops(console: Any, found: dict[str, Any]) -> None:
    """The predicted drops of one start."""
    from rich.table import Table

    table = Table(
        "drop", "time t/τ", "head", "condition", "duration", "paper's (51)(68)(73)",
        title="drops predicted from the initial weights",
    )  # fmt: skip
    durations = found.get("durations") or found["drop_times"]
    for i, time in enumerate(found["drop_times"][:ROWS]):
        head = "all" if found["heads"] is None else str(found["heads"][i])
        condition = "" if found["condition"] is None else f"{found['condition'][i]:.2g}"
        paper = found["paper_durations"][i]
        shown = "–" if paper != paper else f"{paper:.5g}"
        table.add_row(str(i + 1), f"{time:.6g}", head, condition, f"{durations[i]:.5g}", shown)
    console.print(table)
