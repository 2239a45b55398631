"""A quick look at a sweep: a number against an axis, over two axes as a map, or as a fitted law.

Lines are the median and 10-90% over the seeds; a map says which statistic it shows. --fit gives
the exponent of the drop times against the axis, with a bootstrap interval, beside the theory's.
"""

import argparse
from pathlib import Path
from typing import Any

from iclflow.cli.options import add_force, check_outputs, print_json

EXAMPLES = """examples:
  iclflow plot s.zarr --x scale --y drop_times
  iclflow plot s.zarr --x scale --y final_loss --color heads --plot look.png
  iclflow plot s.zarr --x predicted_times --y drop_times
  # a map over two axes, one panel per drop
  iclflow plot s.zarr --x scale --y context --z drop_times
  iclflow plot s.zarr --x scale --y heads --z drop_times --statistic share
  # the exponent of each drop time against the init scale, with its interval and the theory's
  iclflow plot s.zarr --x scale --y drop_times --fit
"""

STATISTICS = ("median", "mean", "spread", "share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The store, and what against what."""
    parser.add_argument("store", type=Path, metavar="FILE.zarr", help="a sweep; or FILE.nc")
    parser.add_argument("--x", required=True, metavar="NAME", help="an axis, or a variable")
    parser.add_argument(
        "--y", required=True, metavar="NAME", help="a number of each run; for a map, an axis"
    )
    parser.add_argument("--z", metavar="NAME", help="a map: a number of each run, as colours")
    parser.add_argument(
        "--statistic", metavar="NAME",
        help=f"statistic over the runs in a square of a map: {', '.join(STATISTICS)} (median)",
    )  # fmt: skip
    parser.add_argument("--color", metavar="NAME", help="an axis with one colour per value")
    parser.add_argument(
        "--fit", metavar="LAW", nargs="?", const="power",
        help="fit the times --y against --x: power (T ~ x^b) or logarithm (T = a + b ln x)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="with --fit: one JSON object on stdout")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="where the picture goes (beside FILE)"
    )
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Pool, draw, and say where it is."""
    refuse_together(args)
    store = opened(args.store)
    args.plot = args.plot or args.store.with_suffix(".png")
    check_outputs(args, (), [args.store])
    if args.fit is not None:
        return fitted(args, store)
    from iclflow.plots.maps import map_figure
    from iclflow.plots.sweeps import sweep_figure
    from iclflow.results.pictures import save_figure
    from iclflow.sweeps.look import look, look_map

    if args.z is None:
        save_figure(sweep_figure(look(store, args.x, args.y, args.color, args.store)), args.plot)
    else:
        found = look_map(store, args.x, args.y, args.z, args.statistic or "median", args.store)
        save_figure(map_figure(found), args.plot)
        about = found.attrs
        print(f"{about['statistic_label']} over {about['runs']} runs per square ({about['over']})")
        if about["missing"]:
            print(
                f"{about['missing']} values of {args.z} are missing; without any, squares are grey"
            )
    print(f"wrote {args.plot}")
    return 0


def refuse_together(args: argparse.Namespace) -> None:
    """Raise `ValueError` for options that do not go together."""
    if args.z is not None and (args.color is not None or args.fit is not None):
        raise ValueError("a map (--z) has no --color and no --fit; leave one of them out")
    if args.fit is not None and args.color is not None:
        raise ValueError("--fit has a panel for each other axis, and no --color; leave it out")
    if args.statistic is not None and args.z is None:
        raise ValueError("--statistic belongs to a map; name the map's number with --z")
    if args.json and args.fit is None:
        raise ValueError("--json prints the numbers of a fit; give --fit")


def opened(path: Path) -> Any:
    """The runs of a store, or of a file that `icl.save` wrote."""
    if path.suffix.lower() == ".nc":
        from iclflow.results.netcdf import load as load_file

        return load_file(path)
    from iclflow.runs.store import load

    return load(path)


def fitted(args: argparse.Namespace, store: Any) -> int:
    """Fit the law, print it, and draw it."""
    from iclflow.fit import escape
    from iclflow.plots.escape import escape_figure
    from iclflow.results.pictures import save_figure

    found = escape(store, against=args.x, times=args.y, law=args.fit)
    save_figure(escape_figure(found.data), args.plot)
    if args.json:
        names = ("slope", "low", "high", "theory", "theory_low", "theory_high", "seeds", "missing")
        about = {"law": found.law.value, "against": found.against, "limit": float(found.data.limit)}
        table = {name: found.data[name].values.tolist() for name in names}
        print_json(
            about | {"dims": list(found.data["slope"].dims)} | table | {"notes": found.notes}
        )
        return 0
    print(found)
    print(f"wrote {args.plot}")
    return 0
