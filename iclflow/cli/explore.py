"""A page that trains attention as you watch, with the theory drawn before it gets there.

One file, no server, no network: it opens by double click, from a mail or a website. With a file of
recorded runs it shows those; with options of `iclflow simulate` it opens with that experiment.
"""

import argparse
from pathlib import Path

from iclflow.cli.options import add_file, add_force, add_settings, check_outputs, settings_of
from iclflow.study.fields import DATA, DYNAMICS, FIELDS, MODEL, RUNS, TASK

EXAMPLES = """examples:
  # the page, opened in the browser
  iclflow explore
  # the page with an experiment of your own, to be sent to someone
  iclflow explore --spectrum 0.6,0.3,0.1 --heads 4 --scale 0.02 --seeds 6 --out page.html
  # runs that were trained elsewhere, on finite data
  iclflow simulate --heads 5 --sequences 8000 --scale 0.07 --rate 0.2 --steps 20001 --out run.nc
  iclflow explore run.nc --out run.html --no-browser
  # your own prompts: np.savez("mine.npz", x=x, y=y) with x [P, N+1, D <= 8] and y [P, N+1];
  # they are trained here, and shown beside the theory of these very prompts
  iclflow explore --prompts mine.npz --heads 4 --scale 0.05 --seeds 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A file of runs, or the options of `simulate`; and where the page goes."""
    parser.add_argument("runs", nargs="*", type=Path, metavar="run.nc", help="runs to show")
    add_settings(parser, TASK, MODEL, DATA, DYNAMICS, RUNS)
    out = parser.add_argument_group("input and output")
    add_file(out)
    out.add_argument("--out", type=Path, metavar="page.html", help="the page; else a temporary one")
    out.add_argument("--no-browser", action="store_true", help="write the page, open nothing")
    add_force(out)


def run(args: argparse.Namespace) -> int:
    """Write the page and open it."""
    from iclflow.explorer.page import explore

    named = [] if args.prompts is None else args.prompts.split(",")
    read = [*args.runs, *([args.file] if args.file else []), *named]
    check_outputs(args, (".html", ".htm"), read)
    given = [name for name in FIELDS if getattr(args, name, None) is not None]
    if args.runs and (given or args.file):
        said = f"--{given[0].replace('_', '-')}" if given else "--from"
        raise ValueError(f"{args.runs[0]} has its own settings; leave {said} out, or the file")
    settings = vars(settings_of(args)) if given or args.file else None
    path = explore(*args.runs, settings=settings, out=args.out, browser=not args.no_browser)
    print(f"wrote {path}")
    return 0
