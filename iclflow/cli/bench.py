"""How fast training is on this machine: training steps per second by level, model and engine.

The last line is a whole sweep, as a user calls it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from iclflow.cli.options import add_force, check_outputs, plain, print_json
from iclflow.results.messages import progress_bar

EXAMPLES = """examples:
  iclflow bench --quick
  iclflow bench --out machine.json
  iclflow bench --single --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is measured, and where it goes."""
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller runs, in less than a minute"
    )
    parser.add_argument("--single", action="store_true", help="measure in single precision")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the measurement")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Measure, write and show."""
    check_outputs(args, (".json",))
    import jax

    from iclflow.bench import measure
    from iclflow.results.files import write_text

    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", not args.single)
    try:
        with progress_bar("measuring", False if args.json else None) as report:
            found = measure(args.quick, report)
    finally:
        jax.config.update("jax_enable_x64", before)
    if args.out is not None:
        write_text(args.out, json.dumps(plain(found), indent=1, allow_nan=False) + "\n")
    if args.json:
        print_json(found)
        return 0
    show(found)
    if args.out is not None:
        print(f"wrote {args.out}")
    return 0


def show(found: dict[str, Any]) -> None:
    """The table on stdout."""
    from rich.console import Console
    from rich.table import Table

    console, machine, sweep = Console(highlight=False), found["machine"], found["sweep"]
    console.print(
        f"{machine['device']} ({machine['backend']}, {machine['cores']} cores), "
        f"{machine['precision']} precision, jax {machine['jax']}"
    )
    sizes = sorted({size for row in found["rows"] for size in row["sizes"].items()})
    names = [name for name, _ in sizes]
    same = [(name, n) for name, n in sizes if names.count(name) == 1]
    console.print(", ".join(f"{name} = {n:,}" for name, n in same))
    # Within 80 columns no number may be cut.
    table = Table("training", "engine", "runs", "runs·steps/s", "/ vmap", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in found["rows"]:
        own = [f"{name}={n}" for name, n in row["sizes"].items() if (name, n) not in same]
        table.add_row(
            " ".join([row["level"], row["model"], *own]), row["engine"], f"{row['runs']:,}",
            f"{row['steps_per_second']:,.0f}", f"{row['over_vmap']:.3g}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"sweep of {sweep['runs']:,} runs, {sweep['steps']:,} steps: "
        f"{sweep['runs_per_second']:,.0f} runs/s, {sweep['engine']}"
    )
    console.print(f"all this took {found['seconds']:.0f} s")
