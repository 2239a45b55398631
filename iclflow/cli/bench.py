"""How fast training is on this machine: every level, model and engine, against its peak.

Also how costs grow with each size, what a start takes, and how many times faster all this is than
attention as it is written, with the whole map of every prompt and automatic differentiation.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from iclflow.cli.options import add_force, check_outputs, plain, print_json
from iclflow.results.messages import progress_bar

EXAMPLES = """examples:
  iclflow bench --quick
  iclflow bench --out machine.json --plot machine.png
  iclflow bench --single --json
  iclflow bench --from machine.json other.json --plot both.png
  iclflow bench --from march.json may.json --history years.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is measured, and where it goes."""
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller runs, in about a minute"
    )
    parser.add_argument("--single", action="store_true", help="measure in single precision")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the measurement")
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", default=[], metavar="FILE.json",
        help="show earlier measurements instead",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw speeds and exponents")
    parser.add_argument(
        "--history", type=Path, metavar="FILE.png",
        help="draw the speeds of --from, all of one machine, against their dates",
    )  # fmt: skip
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Measure, or read what was measured; show, write and draw."""
    from iclflow.bench import read

    for name in ("quick", "single", "out"):
        if args.files and getattr(args, name):
            raise ValueError(f"--{name} is for a new measurement; leave out --from, or --{name}")
    if args.history is not None and len(args.files) < 2:
        raise ValueError("--history needs several measurements; give them after --from")
    check_outputs(args, (".json",), args.files)
    found = [read(path) for path in args.files] or [_measured(args)]
    try:
        return _report(args, found)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        if not args.files:
            raise
        raise ValueError(
            f"{', '.join(map(str, args.files))}: a measurement is damaged ({error!r}); give files "
            f"of iclflow bench --out"
        ) from None


def _report(args: argparse.Namespace, found: list[dict[str, Any]]) -> int:
    """Write, draw and show the measurements."""
    from iclflow.results.files import write_text

    if args.out is not None:
        write_text(args.out, json.dumps(plain(found[0]), indent=1, allow_nan=False) + "\n")
    for path, name in ((args.plot, "bench_figure"), (args.history, "history_figure")):
        if path is not None:
            from iclflow.plots import bench
            from iclflow.results.pictures import save_figure

            save_figure(getattr(bench, name)(found), path)
    if args.json:
        print_json(found[0] if len(found) == 1 else {"measurements": found})
        return 0
    for one in found:
        show(one)
    for path in (args.out, args.plot, args.history):
        if path is not None:
            print(f"wrote {path}")
    return 0


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    import jax

    from iclflow.bench import measure

    before = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", not args.single)
    try:
        with progress_bar("measuring", False if args.json else None) as report:
            return measure(args.quick, report)
    finally:
        jax.config.update("jax_enable_x64", before)


def show(found: dict[str, Any]) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console, machine = Console(highlight=False), found["machine"]
    console.print(
        f"{machine['device']} ({machine['backend']}, {machine['cores']} cores), "
        f"{machine['precision']} precision, jax {machine['jax']}; peak "
        f"{found['peak'] / 1e9:,.4g} GFLOP/s by a matrix product"
    )
    sizes = sorted({size for row in found["rows"] for size in row["sizes"].items()})
    names = [name for name, _ in sizes]
    same = [(name, n) for name, n in sizes if names.count(name) == 1]
    console.print(", ".join(f"{name} = {n:,}" for name, n in same))
    # Within 80 columns no number may be cut.
    look: dict[str, Any] = {"box": None, "padding": (0, 1, 0, 0), "header_style": "bold"}
    numbers = ("runs", "runs·steps/s", "of peak", "/ vmap", "/ literal")
    table = Table("training", "engine", *numbers, **look)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in found["rows"]:
        speed, ratios = row["steps_per_second"], (row["over_vmap"], row["over_literal"])
        own = [f"{name}={n}" for name, n in row["sizes"].items() if (name, n) not in same]
        table.add_row(
            " ".join([row["level"], row["model"], *own]), row["engine"], f"{row['runs']:,}",
            f"{speed:.4g}" if speed < 1e4 else f"{speed:,.0f}",
            f"{row['of_peak']:.1%}",
            *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
        )  # fmt: skip
    console.print(table)
    console.print()
    table = Table("cost of a step", "against", "exponent", "of the operations", **look)
    for line in found["exponents"]:
        table.add_row(
            f"{line['level']} {line['model']}",
            f"{line['size']} = {line['values'][0]:,} to {line['values'][-1]:,}",
            f"{line['exponent']:.2f} ± {line['error']:.2f}",
            f"{line['exponent_of_operations']:.2f}",
        )
    console.print(table)
    sweep, start = found["sweep"], found["start"]
    console.print()
    console.print(
        f"sweep of {sweep['runs']:,} runs, {sweep['steps']:,} steps: "
        f"{sweep['runs_per_second']:,.0f} runs/s, {sweep['engine']}"
    )
    ratio = start["import iclflow"] / start["import jax"]
    console.print("; ".join(f"{name} {seconds:.2f} s" for name, seconds in start.items()))
    console.print(
        f"import iclflow / import jax {ratio:.2f}; all this took {found['seconds']:.0f} s"
    )
