"""Run a design: settings of `simulate`, some with many values, from many seeds, into one store.

The same command goes on where it was stopped, whatever stopped it; values and seeds that were added
to the design are computed alone. xarray opens the store: xarray.open_zarr("s.zarr").
"""

import argparse
import shlex
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from iclflow.cli.options import positive, print_json

EVERY = 30.0  # seconds between two lines of progress, where stderr is no terminal

EXAMPLES = """examples:
  # design.toml is one table:
  #   [sweep]
  #   steps = 2000
  #   seeds = 8
  #   scale = [0.05, 0.1]
  iclflow sweep design.toml --out s.zarr --dry-run
  iclflow sweep design.toml --out s.zarr --workers 2
  iclflow sweep design.toml --set seeds=16 --out s.zarr
  iclflow sweep design.toml --out s.zarr --scheduler tcp://10.0.0.1:8786
  iclflow plot s.zarr --x scale --y drop_times

Values of a setting: a list, {log = [1e-3, 1], count = 7} (linear, range), or a law,
{loguniform = [0.01, 0.1]} (uniform, normal, choice) with draws = 100. zip = [["scale", "rate"]]
varies fields together. record = ["loss"] is kept at the save points; summaries = ["final_loss",
"drop_times", "plateau_lengths", "detected_times", "predicted_times", "prediction_error",
"algorithm"] of each run.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The design, where it goes, and who computes."""
    parser.add_argument(
        "design", nargs="?", type=Path, metavar="DESIGN.toml", help="the design to run"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="changed",
        help="change an entry of the design; the value is TOML, numbers with commas, or plain text",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FILE.zarr", help="the store that the runs go into"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only say how long the sweep takes and how much memory and disk",
    )
    parser.add_argument(
        "--block",
        type=positive,
        metavar="CELLS",
        help="how many cells are trained together (as many as fit)",
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="number of worker processes here (Dask)"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask cluster, or its scheduler file"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Validate the whole design, say what it takes, run it, and say what came out."""
    from iclflow.sweeps.design import Design

    began = time.perf_counter()
    check(args)
    return carry_out(args, Design.read(args.design, changed(args.changed)), began)


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if args.design is None:
        raise ValueError("give a design, for example design.toml")
    if args.out is None and not args.dry_run:
        raise ValueError("give --out FILE.zarr, the store, or --dry-run")
    if args.out is not None and args.out.suffix != ".zarr":
        raise ValueError(f"--out {args.out.name}: the ending must be .zarr")
    if args.workers is not None and args.scheduler is not None:
        raise ValueError("give --workers, for processes here, or --scheduler, for a cluster")


def changed(said: list[str]) -> dict[str, Any]:
    """Words of the design that the command line changes."""
    found = {}
    for one in said:
        name, equals, value = one.partition("=")
        if not equals:
            raise ValueError(f"--set needs NAME=VALUE, got {one!r}")
        text = value.strip()
        found[name.strip()] = toml(value, toml(f"[{value}]", text) if "," in value else text)
    return found


def toml(value: str, otherwise: Any) -> Any:
    """What a text says in TOML, or `otherwise`."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return otherwise


def carry_out(args: argparse.Namespace, design: Any, began: float) -> int:
    """Run a design into --out, or say what it would take."""
    from iclflow.runs.sweep import estimate, into_store

    expected = estimate(design, args.workers or 1, args.block)
    if args.dry_run:
        report(args, takes(expected), sentences(expected))
        return 0
    if not args.json:
        print("\n".join(sentences(expected)))
    show = False if args.json else None if sys.stderr.isatty() else Lines()
    try:
        with cluster(args) as client:
            plan = expected if client is None else None  # a cluster has other workers
            into_store(design, args.out, block=args.block, client=client, progress=show,
                       expected=plan)  # fmt: skip
    except KeyboardInterrupt:
        again = shlex.join(["iclflow", *sys.argv[1:]])
        print(f"iclflow: interrupted; what was computed is kept. Go on: {again}", file=sys.stderr)
        return 130
    from iclflow.runs.store import load

    found = outcome(load(args.out, check=False)) | {"out": str(args.out)}
    found["seconds"] = time.perf_counter() - began
    report(args, found, lines(found))
    return 0


@contextmanager
def cluster(args: argparse.Namespace) -> Iterator[Any]:
    """The Dask client that was asked for, or none."""
    from iclflow.runs.cluster import local_client, remote_client

    if args.workers is not None:
        chosen = local_client(args.workers)
    else:
        chosen = nullcontext() if args.scheduler is None else remote_client(args.scheduler)
    with chosen as client:
        yield client


class Lines:
    """Progress where stderr is no terminal: a line now and then, with the rate and what is left."""

    def __init__(self) -> None:
        self.began = self.told = time.perf_counter()
        self.first: float | None = None

    def __call__(self, done: float, total: float) -> None:
        """So many cells of all are done."""
        self.first = done if self.first is None else self.first
        now = time.perf_counter()
        if now - self.told < EVERY or done >= total:
            return
        self.told, rate = now, (done - self.first) / max(1e-9, now - self.began)
        left = f"{duration((total - done) / rate)} left" if rate else "begun"
        said = f"{int(done):,} of {int(total):,} cells, {rate:.3g}/s, {left}"
        print(f"iclflow: {said}", file=sys.stderr, flush=True)


def takes(expected: Any) -> dict[str, Any]:
    """An estimate as JSON."""
    names = ("cells", "points", "blocks", "programs", "memory", "disk", "seconds", "workers")
    return {name: getattr(expected, name) for name in names}


def sentences(expected: Any) -> list[str]:
    """An estimate in words."""
    from iclflow.tasks.checks import readable

    on_all = f", {duration(expected.seconds)} on {expected.workers} workers as fast as this one"
    many = on_all if expected.workers > 1 else ""
    return [
        f"{expected.cells:,} cells ({expected.points:,} points) in {expected.blocks:,} blocks of "
        f"{' x '.join(map(str, expected.block))}, {expected.programs} compiled programs",
        f"about {duration(expected.alone)} on one process{many}; memory "
        f"{readable(expected.memory)} per block; store at most {readable(expected.disk)}",
    ]


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def outcome(store: Any) -> dict[str, Any]:
    """How the cells of a store ended."""
    from iclflow.runs.record import OUTCOMES

    ended, failure = store["result"].values, store["failure"].values
    counts = {name: int((ended == code).sum()) for code, name in enumerate(OUTCOMES)}
    reasons = [store.attrs["reasons"][code - 1] for code in sorted(set(failure[failure > 0].flat))]
    advanced = store["engine"].values
    names = enumerate(store["engine"].attrs["flag_meanings"].split())
    by = {name: int((advanced == code).sum()) for code, name in names if (advanced == code).any()}
    return {
        "cells": ended.size,
        "advanced_by": by,
        "engines": [name for name in str(store.attrs.get("engine", "")).split("; ") if name],
        **{name: count for name, count in counts.items() if count},
        "failed": int((failure > 0).sum()),
        "reasons": reasons,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The outcome in words."""
    said = (
        "cells",
        "advanced_by",
        "failed",
        "reasons",
        "engines",
        "out",
        "seconds",
    )
    ended = [f"{count:,} {name.replace('_', ' ')}" for name, count in found.items()
             if name not in said]  # fmt: skip
    failed = (
        [f"{found['failed']:,} failed: {'; '.join(found['reasons'])}"] if found["failed"] else []
    )
    by = [f"{count:,} by {name}" for name, count in found["advanced_by"].items()]
    two = [f"cells of two engines, which differ in their last digits: {', '.join(by)}"]
    return [
        f"{found['cells']:,} cells: {', '.join([*ended, *failed])}",
        *(two if len(by) > 1 else []),
        *(f"engine: {name}" for name in found["engines"]),
        f"wrote {found['out']}, {found['seconds']:.1f} s",
    ]


def report(args: argparse.Namespace, found: dict[str, Any], said: list[str]) -> None:
    """JSON, or lines."""
    if args.json:
        print_json(found)
    else:
        print("\n".join(said))
