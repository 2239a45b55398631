"""The part of `iclflow theory` about several layers: best losses, limits, and plateaus of two."""

import argparse
from typing import Any

from iclflow.cli.console import print_json


def run(args: argparse.Namespace, settings: Any) -> int:
    """Evaluate the formulas and report."""
    if args.plot is not None:
        raise ValueError("the theory of several layers has no picture; leave --plot out")
    from iclflow.theory.depth import depth_summary

    found = depth_summary(settings.task(), settings.layers or 2) | {"notes": notes_of(settings)}
    if args.json:
        print_json(found)
    else:
        show(found)
    return 0


def notes_of(settings: Any) -> list[str]:
    """What these numbers do not say, in words."""
    found = ["the drops of several layers are not predicted from the initial weights"]
    if settings.fixed_fraction > 0:
        found.append("with a fixed task only its second moment is known here")
    return found


def show(found: dict[str, Any]) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("loss", "tied", "untied", title=f"{found['layers']} layers: least losses")
    untied = ", ".join(f"{x:.6f}" for x in found["untied_losses"])
    table.add_row(found["covers"], f"{found['tied_loss']:.6f}", untied)
    rows = {"layers proportional to the inverse of Λ": "isotropic", "D, N → ∞": "asymptotic"}
    for title, name in rows.items():
        tied, best = (found[f"{name}_{kind}_loss"] for kind in ("tied", "untied"))
        table.add_row(title, f"{tied:.6f}", f"{best:.6f}")
    console.print(table)
    steps = ", ".join(f"{x:.4f}" for x in found["isotropic_untied_steps"])
    console.print(f"steps g: tied {found['isotropic_tied_step']:.4f}; untied {steps}")
    if found["plateau_table"] is not None:
        size = len(found["plateau_table"])
        table = Table("r0 \\ r1", *map(str, range(size)), title="plateaus L*(r0, r1)")
        for rank, row in enumerate(found["plateau_table"]):
            table.add_row(str(rank), *(f"{x:.5f}" for x in row))
        console.print(table)
        levels = ", ".join(f"{x:.6f}" for x in found["tied_levels"])
        console.print(f"tied layers, 0 … {size - 1} heads: {levels}")
    if found["second_drop_rates"] is not None:
        first, second = found["second_drop_rates"]
        console.print(
            f"rate of an idle layer at the one-layer optimum: {first:.4g} (the first layer), "
            f"{second:.4g} (the second)"
        )
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)
