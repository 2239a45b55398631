"""The part of `iclflow theory` about the linear transformer: the paper's theory and the exact one.

Losses are in the paper's convention, with a factor 1/2; times are epochs at the stated eta P.
"""

import argparse
from pathlib import Path
from typing import Any

from iclflow.cli.console import print_json
from iclflow.cli.options import above_zero, typed

OPTIONS = ("query_init", "epoch_rate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that only the linear transformer has."""
    group = parser.add_argument_group("linear-transformer")
    group.add_argument(
        "--query-init", type=typed(float), metavar="Q", help="q1 = Q * I (default: as p2, --scale)"
    )
    group.add_argument(
        "--epoch-rate", type=above_zero, metavar="ETA_P",
        help="rate times tasks an epoch; times are then epochs (default 1: times t/tau)",
    )  # fmt: skip


def refuse_options(args: argparse.Namespace) -> None:
    """Raise `ValueError` if one of these options was given for another model."""
    for name in OPTIONS:
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} needs --model linear-transformer")


def run(args: argparse.Namespace, settings: Any) -> int:
    """Evaluate both theories, report, draw."""
    from iclflow.theory.linear_transformer import (
        TransformerModes,
        transformer_curves,
        transformer_summary,
    )

    modes = TransformerModes.of(settings.task())
    start = None
    if args.scale is not None or args.query_init is not None or args.file is not None:
        second = settings.scale if args.query_init is None else args.query_init
        start = (settings.scale, second)
    rate = 1.0 if args.epoch_rate is None else args.epoch_rate
    found = transformer_summary(modes, start, epoch_rate=rate)
    if args.plot is not None:
        if start is None:
            raise ValueError("a plot over time needs a start; give --scale, for example 0.01")
        draw(found, transformer_curves(modes, start), args.plot)
    if args.json:
        print_json(found)
    else:
        show(found)
    return 0


def draw(found: dict[str, Any], curves: dict[str, Any], path: Path) -> None:
    """a(t) and loss of both theories."""
    import xarray as xr

    from iclflow.plots.theory import transformer_figure
    from iclflow.results.pictures import save_figure

    dims = {1: ("time",), 2: ("time", "mode")}
    data = xr.Dataset(
        {name: (dims[values.ndim], values) for name, values in curves.items() if name != "time"},
        {"time": curves["time"], "eigenvalue": ("mode", found["eigenvalues"])},
    )
    data["a_optimum"] = ("mode", found["a_optimum"])
    data["optimum_loss"] = found["optimum_loss"]
    save_figure(transformer_figure(data.assign_attrs(epoch_rate=found["epoch_rate"])), path)


def show(found: dict[str, Any]) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    clock = "t/τ" if found["epoch_rate"] == 1 else "epochs"
    columns = {
        "s": "eigenvalues",
        "τ_α": "timescales",
        "a∞ (11)": "a_infinity",
        "a first": "overshoot",
        "a best": "a_optimum",
        "t*": "escape_times",
        "t½ (13)": "paper_half_times",
        "t½ exact": "exact_half_times",
    }
    shown = {title: found[name] for title, name in columns.items() if name in found}
    table = Table("mode", *shown, title=f"the paper's theory and the exact one; times in {clock}")
    for i, row in enumerate(zip(*shown.values(), strict=True)):
        table.add_row(str(i + 1), *(f"{x:.4g}" for x in row))
    console.print(table)
    table = Table("loss (with ½)", "value")
    for title, name in (
        ("at zero weights", "initial_loss"),
        ("paper's final loss (14)", "paper_final_loss"),
        ("least loss, exact", "optimum_loss"),
    ):
        table.add_row(title, f"{found[name]:.6f}")
    console.print(table)
    inactive = found["active"].count(False)
    console.print(
        f"a∞ differs from the best a by up to {found['fixed_point_error']:.2%}; a mode goes to "
        f"'a first' when it is learned; the slowest drift takes {found['drift_time']:.4g} {clock}"
        + (f"; {inactive} modes are not worth learning" if inactive else "")
    )
    if "paper_error" in found:
        console.print(
            f"(13) differs from the exact a(t) by up to {found['paper_error']:.2%} of a∞ on the way"
        )
