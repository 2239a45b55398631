"""Will training get there? From theory: the probability that each plateau has been left in time.

Given a task, a model and a budget of steps: quantiles of each drop time over random starts, and the
init scale, heads or rank that would make it. With --check, the same from 200 simulated runs.
"""

import argparse
from typing import Any

from iclflow.cli.options import add_file, add_settings, print_json, settings_of, typed
from iclflow.results.messages import progress_bar
from iclflow.study.fields import MODEL, TASK

EXAMPLES = """examples:
  iclflow plan --spectrum 0.4,0.3,0.2,0.1 --heads 8 --scale 0.05 --rate 0.5 --steps 4000
  iclflow plan --spectrum 0.4,0.3,0.2,0.1 --heads 8 --scale 0.05 --rate 0.5 --steps 4000 --check
  iclflow plan --prompts mine.npz --heads 8 --scale 0.05 --steps 20000
  iclflow plan --model merged --spectrum linear --dim 4 --scale 1e-3 --steps 200 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task and model options of `simulate`, and the budget."""
    add_settings(parser, TASK, MODEL, only=("prompts", "rate", "steps", "seed", "eigen_seed"))
    more = parser.add_argument_group("plan")
    add_file(more)
    more.add_argument(
        "--probability", type=typed(float, above=0, most=0.999), default=0.9, metavar="P",
        help="wanted probability that the last drop comes in time (0.9)",
    )  # fmt: skip
    more.add_argument("--check", action="store_true", help="simulate 200 runs to check the answer")
    more.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Evaluate the theory, simulate if asked, and report."""
    from iclflow.sweeps.plan import check, plan

    settings = settings_of(args)
    with progress_bar("theory", False if args.json else None):
        found = plan(settings, args.probability)
    found["check"] = None
    if args.check:
        with progress_bar("training", False if args.json else None) as report:
            found["check"] = check(settings, report)
    if args.json:
        print_json(found)
    else:
        show(found)
    return 0


def show(found: dict[str, Any]) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console, check = Console(), found["check"]
    console.print(
        f"{found['steps']:,} steps at rate {found['rate']:.4g}: t/τ = {found['time']:.5g}; "
        f"{found['starts']} starts by {found['engine']}"
    )
    columns = ["drop", "has come", *(["simulated"] if check else [])]
    table = Table(*columns, *(f"step, {q:.0%}" for q in found["quantiles"]))
    for m, share in enumerate(found["left"]):
        row = [str(m + 1), f"{share:.1%} ± {found['standard_error'][m]:.1%}"]
        if check:
            row.append(f"{check['left'][m]:.1%} ± {check['standard_error'][m]:.1%}")
        table.add_row(*row, *(f"{steps[m]:,.0f}" for steps in found["drop_steps"]))
    console.print(table)
    if found["scale"] is None:
        console.print("no init scale makes all drops come: too few heads")
    else:
        console.print(
            f"all drops in time with probability {found['probability']:.0%}: --scale "
            f"{found['scale']:.3g}"
        )
    for name in ("heads", "rank"):
        for row in found[name]:
            # A head of rank R learns R modes with one escape, the later of them soon after it.
            what = "drops" if name == "heads" else "escapes"
            said = f"--{name} {row[name]}: {row['drops']} {what}, all in time {row['all']:.1%}"
            console.print(said, highlight=False)
