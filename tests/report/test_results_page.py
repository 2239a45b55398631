"""The page of results names what a real result has."""

import re
from pathlib import Path

import jax
import pytest

import iclflow as icl
from iclflow.runs.record import QUANTITIES

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")


def table(first: str) -> dict[str, tuple[str, ...]]:
    """The rows of the table whose first column is called so: name -> its second column."""
    rows = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, flags=re.M)
    assert rows is not None
    found = {}
    for row in rows[1].splitlines():
        name, second = (cell.strip() for cell in row.split("|")[1:3])
        found[name.strip("`")] = tuple(second.split(", "))
    return found


def shapes(data) -> dict[str, tuple[str, ...]]:
    return {str(name): tuple(map(str, one.dims)) for name, one in data.variables.items()}


def test_a_sweep_has_the_variables_of_the_page():
    task = icl.Task(spectrum=[0.6, 0.3], context=15)
    init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    others = {"gradient_noise", "learning_coefficient", "rho"}  # of other losses
    record, last = [name for name in QUANTITIES if name not in others], ["weights"]
    runs = icl.sweep(
        icl.Population(task), init, icl.Descent(0.2), until=4, seeds=2,
        axes={"scale": [0.1, 0.2]}, record=record, final=last,
    )  # fmt: skip
    assert shapes(runs) == table("variable")
    assert set(runs.attrs) == set(table("attribute"))
    assert runs["result"].attrs["flag_meanings"] in PAGE.replace(",", "")
    assert all({"long_name"} <= set(one.attrs) for one in runs.data_vars.values())
    rates = icl.sweep(
        icl.Population(task), init, icl.Descent(0.2), until=4, axes={"rate": [0.1, 0.2]}
    )
    assert rates["clock"].dims == ("rate", "seed", "time")
    assert "time" not in rates.coords
    assert "rate" not in rates.attrs


def test_a_store_has_the_variables_of_the_page(tmp_path):
    pytest.importorskip("zarr", reason="the extra sweep is not installed")
    design = icl.sweeps.Design.of(
        spectrum=[1.0, 0.5], heads=2, scale=[0.1, 0.2], steps=60, seeds=2, rate=0.1,
        summaries=["final_loss", "drop_times"],
    )  # fmt: skip
    icl.sweeps.run(design, tmp_path / "s.zarr")
    assert shapes(icl.sweeps.load(tmp_path / "s.zarr")) == table("stored")


def test_the_page_is_read():
    assert jax.config.read("jax_enable_x64")
    assert table("variable")["keys"] == ("scale", "seed", "time", "head", "pair", "row")
