"""BibTeX entries: the software, and the papers whose theory was used.

Without a file it names both papers. With runs or sweeps it names the papers behind them, and the
version that made them.
"""

import argparse
from pathlib import Path

from iclflow.cli.plot import opened

EXAMPLES = """examples:
  iclflow cite >> references.bib
  iclflow cite run.nc sweep.zarr
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files of runs."""
    parser.add_argument("runs", nargs="*", type=Path, metavar="run.nc", help="runs, or FILE.zarr")


def run(args: argparse.Namespace) -> int:
    """Print the entries."""
    from iclflow.study.citing import cite

    print(cite(*(opened(path) for path in args.runs)), end="")
    return 0
