"""A quick look at a sweep: one variable against another, the median and 10-90% over the seeds."""

import argparse
from pathlib import Path

from iclflow.cli.outputs import add_force, check_outputs

EXAMPLES = """examples:
  iclflow plot s.zarr --x scale --y drop_times
  iclflow plot s.zarr --x scale --y final_loss --color heads --plot look.png
  iclflow plot s.zarr --x predicted_times --y drop_times
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The store, and what against what."""
    parser.add_argument("store", type=Path, metavar="FILE.zarr")
    parser.add_argument("--x", required=True, metavar="NAME", help="an axis, or a variable")
    parser.add_argument("--y", required=True, metavar="NAME", help="a number of each run")
    parser.add_argument("--color", metavar="NAME", help="an axis that has a colour a value")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="FILE.png of the store")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Pool, draw, and say where it is."""
    from iclflow.plots.sweeps import sweep_figure
    from iclflow.results.pictures import save_figure
    from iclflow.runs.store import load
    from iclflow.sweeps.look import look

    store = load(args.store)
    args.plot = args.plot or args.store.with_suffix(".png")
    check_outputs(args, ())
    save_figure(sweep_figure(look(store, args.x, args.y, args.color, args.store)), args.plot)
    print(f"wrote {args.plot}")
    return 0
