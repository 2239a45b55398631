"""The tables of every group beside our numbers, as one Dataset per group."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from iclflow.experiments.base import Function
from iclflow.experiments.field.comparisons.cells import Check, Found
from iclflow.experiments.field.comparisons.reading import HERE, PublishedTable, read_table
from iclflow.experiments.runs import Variable, finished, named
from iclflow.results.messages import Progress


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How a table is compared.

    - `file`: its name in a folder of tables.
    - `needed`: the columns or arrays without which it cannot be.
    - `compare`: (table, quick, report) -> `Found`.
    """

    file: str
    needed: tuple[str, ...]
    compare: Function

    @property
    def name(self) -> str:
        """The table."""
        return self.file.partition(".")[0]


def _here(module: str, name: str) -> Function:
    return Function(f"iclflow.experiments.field.comparisons.{module}", name)


_DRAWS = ("draws", "icl_mean", "icl_std", "idg_mean", "idg_std")
_FIVE = ("train", "white", "power_aligned", "power_opposed", "spike")
GROUPS: dict[str, tuple[Comparison, ...]] = {
    "staircase": (
        Comparison(
            "agf_staircase.json",
            ("Lambda", "values", "keys", "queries", "sgd_loss_values", "agf_values"),
            _here("staircase", "staircase"),
        ),
    ),
    "pools": (
        Comparison(
            "lu_double_descent.csv", ("alpha", "tau", "run", "e_icl", "e_idg"),
            _here("pools", "double_descent"),
        ),
        Comparison(
            "lu_context_length.csv", ("alpha", "kappa", *_DRAWS), _here("pools", "context_length")
        ),
        Comparison(
            "lu_task_diversity.csv", ("d", "alpha", "tau", "rho", "kappa", "tasks", *_DRAWS),
            _here("pools", "task_diversity"),
        ),
        Comparison(
            "lu_gtask.csv", ("d", "kappa", "K", "n", "gamma_mean", "dmmse_mean", "dmmse_std"),
            _here("pools", "task_gap"),
        ),
        Comparison(
            "lu_bayes.csv", ("alpha", "kind", "K", "dmmse", "ridge"), _here("pools", "bayes")
        ),
    ),
    "shifted": (
        Comparison(
            "alignment_half.csv",
            ("kappa", "K", "draws", *(f"{n}_{s}" for n in _FIVE for s in ("mean", "std"))),
            _here("shifted", "half"),
        ),
        Comparison(
            "alignment_spikes.csv", ("kappa", "K", "test", "mean", "std"),
            _here("shifted", "spikes"),
        ),
        Comparison(
            "alignment_length.csv", ("power", "draw", "test_length", "error"),
            _here("shifted", "length"),
        ),
    ),
    "tokens": (
        Comparison(
            "correlated_tokens.csv", ("curve", "xi_of_row", "xi", "N", "draws", "mean", "std"),
            _here("tokens", "correlated"),
        ),
        Comparison(
            "spinglass_token_correlation.csv", ("c", "repeat", "test_error"),
            _here("tokens", "token_correlation"),
        ),
    ),
    "spins": (
        Comparison(
            "spinglass_ridge_context.csv", ("N", "repeats", "test_mean", "test_std"),
            _here("tokens", "context"),
        ),
        Comparison(
            "spinglass_adam_sample.csv",
            ("model", "ratio", "P", "repeats", "test_mean", "test_std"),
            _here("adam", "sample"),
        ),
        Comparison("spinglass_curves.npz", (), _here("adam", "curves")),
    ),
    "softmax": (
        Comparison(
            "softmax_estimators.csv", ("L", "two_heads", "gd", "debiased_gd", "one_head", "ridge"),
            _here("softmax", "estimators"),
        ),
        Comparison(
            "softmax_trained.csv", ("heads", "L", "error_plus_0.1"), _here("softmax", "trained")
        ),
    ),
    "depth": (
        Comparison(
            "depth3_adam.csv", ("inputs", "seed", "iteration", "loss"),
            _here("depth", "three_layers"),
        ),
    ),
    "curves": (
        Comparison(
            "development_regression.npz",
            ("step", "seed", "first_mse", "first_delta_ridge", "second_mse", "second_delta_ridge"),
            _here("curves", "development"),
        ),
        Comparison("ngram_curves.npz", (), _here("curves", "ngrams")),
    ),
}  # fmt: skip
BY_FILE = {c.file: c for group in GROUPS.values() for c in group}


def read_folder(folder: Path) -> dict[str, PublishedTable]:
    """The tables of a folder by the names of their files; `ValueError` where none is known."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give one with tables such as lu_gtask.csv")
    found = {
        name: read_table(folder / name, comparison.needed)
        for name, comparison in BY_FILE.items()
        if (folder / name).is_file()
    }
    if not found:
        raise ValueError(
            f"{folder} has no table that is known; the names of the files are {', '.join(BY_FILE)}"
        )
    return found


def digest(folder: Path) -> str:
    """What the known tables of a folder have in them, as a short word."""
    files = [folder / name for name in BY_FILE if (folder / name).is_file()]
    parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _compare_group(
    group: str, quick: bool, progress: Progress | None, tables: str | None
) -> xr.Dataset:
    """Every table of a group that the folder has, compared."""
    folder = HERE if tables is None else Path(tables)
    chosen = [c for c in GROUPS[group] if (folder / c.file).is_file()]
    found: list[tuple[str, Found, float]] = []
    for place, comparison in enumerate(chosen):

        def report(done: float, place: int = place) -> None:
            if progress is not None:
                progress(place + done, len(chosen))

        table = read_table(folder / comparison.file, comparison.needed)
        began = time.perf_counter()
        one = comparison.compare(table, quick, report)
        found.append((comparison.name, one, time.perf_counter() - began))
        report(1.0)
    return as_dataset(found, {"group": group, "quick": quick})


def as_dataset(found: Sequence[tuple[str, Found, float]], settings: dict) -> xr.Dataset:
    """Comparisons as labelled arrays: [cell], [table] and, where there are any, [check].

    - `found`: the name of each table, what was found, and the seconds it took.
    """
    cells = [(name, one.cells) for name, one, _ in found]
    joined = {
        key: np.concatenate([np.asarray(getattr(c, key), float) for _, c in cells])
        for key in ("theirs", "ours", "error", "control")
    }
    words = {
        "theirs": "their number", "ours": "our number", "error": "standard error of the difference",
        "control": "our number with one mistake",
    }  # fmt: skip
    variables: dict[str, Variable] = {
        key: (("cell",), values, words[key]) for key, values in joined.items()
    }
    variables |= {
        "seconds": (("table",), [s for _, _, s in found], "seconds that ours took"),
        "authors_seconds": (
            ("table",), [one.authors for _, one, _ in found], "seconds that the authors state",
        ),
        "total": (("table",), [float(one.total) for _, one, _ in found], "cells of the table"),
    }  # fmt: skip
    coordinates = {
        "cell_table": ("cell", [name for name, c in cells for _ in c.label]),
        "cell_label": ("cell", [label for _, c in cells for label in c.label]),
        "table": [name for name, _, _ in found],
    }
    checks = [(name, check) for name, one, _ in found for check in one.checks]
    if checks:
        for key in ("expected", "measured", "tolerance", "control"):
            values = [getattr(check, key) for _, check in checks]
            variables[f"check_{key}"] = (("check",), values, f"{key} of a check")
        coordinates["check"] = [f"{name}/{check.name}" for name, check in checks]
    told = {
        name: {
            "mistake": one.mistake, "note": one.note,
            "checks": {check.name: check.words for check in one.checks},
        }
        for name, one, _ in found
    }  # fmt: skip
    data = xr.Dataset(named(variables), coordinates)
    return finished(data, {**settings, "told": json.dumps(told)})


def found_in(data: xr.Dataset) -> list[tuple[str, Found, float]]:
    """The comparisons of a Dataset of `as_dataset`."""
    from iclflow.experiments.field.comparisons.cells import Cells

    told, out = json.loads(data.attrs["told"]), []
    owners = data["cell_table"].values
    for place, name in enumerate(data["table"].values.tolist()):
        mine = np.flatnonzero(owners == name)
        numbers = {k: data[k].values[mine].tolist() for k in ("theirs", "ours", "error", "control")}
        cells = Cells(label=data["cell_label"].values[mine].tolist(), **numbers)
        checks = []
        for i, key in enumerate(data["check"].values.tolist() if "check" in data.coords else []):
            table, _, check = key.partition("/")
            if table == name:
                values = {
                    k: float(data[f"check_{k}"].values[i])
                    for k in ("expected", "measured", "tolerance", "control")
                }
                checks.append(Check(check, told[name]["checks"][check], **values))
        authors = float(data["authors_seconds"].values[place])
        found = Found(
            cells, told[name]["mistake"], int(data["total"].values[place]), tuple(checks),
            told[name]["note"], authors if math.isfinite(authors) else math.nan,
        )  # fmt: skip
        out.append((name, found, float(data["seconds"].values[place])))
    return out


def compute_staircase(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Kunin et al.: a run with four drops."""
    return _compare_group("staircase", quick, progress, tables)


def compute_pools(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Lu et al.: end points on pools of tasks."""
    return _compare_group("pools", quick, progress, tables)


def compute_shifted(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Letey et al.: training and test differ."""
    return _compare_group("shifted", quick, progress, tables)


def compute_tokens(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Inputs with memory."""
    return _compare_group("tokens", quick, progress, tables)


def compute_spins(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Li, Bai and Huang: one matrix."""
    return _compare_group("spins", quick, progress, tables)


def compute_softmax(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """He et al.: heads of softmax."""
    return _compare_group("softmax", quick, progress, tables)


def compute_depth(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Ahn et al.: three layers."""
    return _compare_group("depth", quick, progress, tables)


def compute_curves(
    *, quick: bool = False, progress: Progress | None = None, tables: str | None = None
) -> xr.Dataset:
    """Curves of transformers."""
    return _compare_group("curves", quick, progress, tables)
