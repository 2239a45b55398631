"""Where the diagnoses go: NetCDF, a figure, JSON."""

import argparse
from pathlib import Path
from typing import Any

from iclflow.cli.console import print_json
from iclflow.cli.outputs import check_outputs

ELSEWHERE = ("out", "plot", "json", "command", "force")  # options that do not change what is found


def diagnosis_key(args: argparse.Namespace) -> str:
    """A name for what is asked of which files: the same command on the same files, the same key."""
    from iclflow.results.provenance import content_key

    asked = {k: str(v) for k, v in vars(args).items() if k not in ELSEWHERE}
    files = [Path(path) for path in args.paths if Path(path).is_file()]
    states = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return content_key(["diagnose", asked, states])


def require_free(args: argparse.Namespace) -> None:
    """Refuse before any work what could not be written after it."""
    from iclflow.results.netcdf import check_free

    check_outputs(args, (".nc",), args.paths)
    if args.out is not None and not args.force:
        check_free(args.out, diagnosis_key(args))


def finish(
    args: argparse.Namespace, found: Any, summary: dict[str, Any], figure: str, *options: Any
) -> None:
    """Write what was asked for."""
    from iclflow.results.netcdf import replace

    if args.out is not None:
        replace(found.assign_attrs(content_key=diagnosis_key(args)), args.out)
        summary["out"] = str(args.out)
    if args.plot is not None:
        from iclflow.plots import diagnose
        from iclflow.results.pictures import save_figure

        save_figure(getattr(diagnose, figure)(found, *options), args.plot)
        summary["plot"] = str(args.plot)
    if args.json:
        print_json(summary)
