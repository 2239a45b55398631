"""What a comparison settles: every table agrees within its standard errors, and a mistake does not.

The same for every group, as the Datasets are alike.
"""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, near
from iclflow.experiments.field.comparisons.cells import SOLID_CHI2, SOLID_Z, agrees, scores
from iclflow.experiments.field.data import found_in


def claims(data: xr.Dataset) -> list[Claim]:
    """One claim per table with cells, and one per check."""
    out = []
    for name, found, _ in found_in(data):
        z = found.cells.z()
        if len(z):
            chi2, largest = scores(z)
            out.append(Claim(
                f"field-{name}", f"{name}: equal means within standard errors, χ² per cell",
                "published table", f"below {SOLID_CHI2:g}, no |z| above {SOLID_Z:g}", chi2,
                SOLID_CHI2, agrees(z), f"one is luck of the draw alone; {len(z)} cells",
                f"largest |z| {largest:.2g}; {found.note}".rstrip("; "), beyond=True,
            ))  # fmt: skip
        out += [
            near(
                f"field-{name}-{check.name}", f"{name}: {check.words}", "published table",
                check.expected, check.measured, check.tolerance,
                "what the table itself can tell", beyond=True,
            )
            for check in found.checks
        ]  # fmt: skip
    return out


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """Each table with one mistake in our numbers, which the data name."""
    out = {}
    for name, found, _ in found_in(data):
        mine = data["cell_table"].values == name
        wrong = np.where(mine, data["control"].values, data["ours"].values)
        out[f"field-{name}"] = data.assign(ours=("cell", wrong))
        for check in found.checks:
            place = data["check"].values == f"{name}/{check.name}"
            mistaken = np.where(place, data["check_control"].values, data["check_measured"].values)
            out[f"field-{name}-{check.name}"] = data.assign(check_measured=("check", mistaken))
    return out


def summary(data: xr.Dataset) -> dict[str, dict[str, float | int | bool | None]]:
    """The comparison in numbers: {table: {cells, chi2_per_cell, largest_z, control_fails}}.

    `cells` are those that were recomputed. The control fails where its numbers do not agree, or,
    in a table of checks alone, where none of them holds.
    """
    out = {}
    for name, found, _ in found_in(data):
        chi2, largest = scores(found.cells.z())
        if found.cells.label:
            fails = not agrees(found.cells.z("control"))
        else:
            fails = all(abs(c.control - c.expected) > c.tolerance for c in found.checks)
        known = np.isfinite(chi2)
        out[name] = {
            "cells": len(found.cells.label),
            "chi2_per_cell": round(chi2, 4) if known else None,
            "largest_z": round(largest, 4) if known else None,
            "control_fails": fails,
        }
    return out
