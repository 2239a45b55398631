"""Published tables: how they are read, compared, and asked for on the command line."""

import json
import shutil

import numpy as np
import pytest

from iclflow.experiments.field.claims import claims, controls, summary
from iclflow.experiments.field.comparisons.cells import (
    Cells,
    Check,
    Found,
    agrees,
    error_of_difference,
    scores,
)
from iclflow.experiments.field.comparisons.end_points import (
    Sample,
    covariance_error,
    draws_for,
    new_and_pool,
)
from iclflow.experiments.field.comparisons.reading import HERE, read_table
from iclflow.experiments.field.data import BY_FILE, as_dataset, found_in, read_folder
from iclflow.experiments.field.figure import draw
from iclflow.results.netcdf import load, save
from tests.helpers.commands import call, refused
from tests.helpers.verdicts import unmoved

LENGTHS = HERE / "alignment_length.csv"


def test_every_table_that_ships_can_be_read():
    found = read_folder(HERE)
    assert set(found) == set(BY_FILE) == {path.name for path in HERE.iterdir()}
    assert all(len(table) > 0 for table in found.values())
    words = ("arXiv", "paper announced")
    assert all(any(w in table.header for w in words) for table in found.values())


def test_settings_are_those_of_the_header():
    table = read_table(HERE / "alignment_half.csv", ())
    names = ("d", "alpha", "tau", "N", "n", "rho", "lambda")
    assert [table.setting(n) for n in names] == [80, 80, 80, 6400, 512000, 0.01, 1e-6]
    assert table.setting("nothing", 3.0) == 3.0
    with pytest.raises(ValueError, match="states no nothing"):
        table.setting("nothing")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("power,draw,", "power,drawn,"), "has no column draw"),
        (lambda text: text.replace("4.9647195", "nan"), "has nan in column error, row 1"),
        (lambda text: text.replace("4.9647195", "five"), "has words in column error"),
        (lambda text: text.replace("4.9647195", "4.9,1"), "has 5 values in row 1 and 4 columns"),
        (lambda text: "# nothing\n", "has no rows"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, change, complaint, capsys):
    (tmp_path / LENGTHS.name).write_text(change(LENGTHS.read_text("utf-8")), "utf-8")
    with pytest.raises(ValueError, match=complaint) as found:
        read_folder(tmp_path)
    assert "\n" not in str(found.value)
    arguments = ("reproduce", "field", "--tables", str(tmp_path), "--out", str(tmp_path / "out"))
    assert complaint in refused(capsys, *arguments)
    assert not (tmp_path / "out").exists()


def test_bad_archives_and_folders(tmp_path):
    name = "spinglass_curves.npz"
    (tmp_path / name).write_text("no archive")
    with pytest.raises(ValueError, match="no archive of numbers"):
        read_folder(tmp_path)
    np.savez(tmp_path / name, header="N = 100", few_test=np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="NaN or inf in few_test"):
        read_folder(tmp_path)
    (tmp_path / name).rename(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="has no table that is known"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="is no folder"):
        read_folder(tmp_path / "other.npz")
    agf = json.loads((HERE / "agf_staircase.json").read_text("utf-8"))
    (tmp_path / "agf_staircase.json").write_text(json.dumps(agf | {"Lambda": [[1], [2, 3]]}))
    with pytest.raises(ValueError, match="rows of one length"):
        read_folder(tmp_path)


def test_standard_errors_of_differences():
    """Against many simulated tables: z is a standard normal number."""
    rng = np.random.default_rng(0)
    z = []
    for _ in range(4000):
        theirs, ours = rng.normal(2.0, 0.3, 20), rng.normal(2.0, 0.3, 3)
        error = error_of_difference(theirs.std(), 20, ours)
        z.append((theirs.mean() - ours.mean()) / error)
    assert abs(np.std(z) - 1.05) < 0.06  # t with 21 degrees of freedom
    exact = error_of_difference(0.3, 10)
    assert exact == pytest.approx(0.1)
    wide = error_of_difference(0.3, 10, np.array([1.0, 3.0] * 4))
    assert wide == pytest.approx((0.01 + np.var([1.0, 3.0] * 4, ddof=1) / 8) ** 0.5)
    assert scores(np.array([1.0, -3.0])) == (5.0, 3.0)
    assert agrees(np.array([1.0, -1.0]))
    assert not agrees(np.array([0.1] * 40 + [4.5]))


def test_the_exact_error_is_that_of_the_population():
    """The formula of the tables, in their units, is `LabelPopulation` of a pool on the sphere."""
    import jax.numpy as jnp

    from iclflow.losses.label_population import LabelPopulation
    from iclflow.models import LabelRow

    rng = np.random.default_rng(1)
    sample = Sample(5, 15, 100, 0.2, 1e-6)
    tasks = rng.standard_normal((4, 5))
    tasks *= (5**0.5 / np.linalg.norm(tasks, axis=1))[:, None]
    pool, gamma = jnp.asarray(tasks), rng.standard_normal((5, 6))
    scale = np.append(np.full(5, 5.0), 1.0)
    model = LabelRow(None, jnp.asarray(gamma.T * scale[:, None]))
    expected = LabelPopulation(sample.task(pool))(model)
    np.testing.assert_allclose(new_and_pool(gamma, pool, sample)[1], expected, rtol=1e-12)
    # without terms of order 1/l both formulas agree on tasks with the identity as covariance
    long = Sample(5, 10**9, 100, 0.2, 1e-6)
    np.testing.assert_allclose(
        covariance_error(gamma, np.ones(5), 10**9, 0.2), new_and_pool(gamma, pool, long)[0],
        rtol=1e-6,
    )  # fmt: skip


def test_the_quick_form_makes_what_is_cheap():
    few, many = (Sample(100, 100, prompts, 0.1, 0.0) for prompts in (100, 10**7))
    assert draws_for([few, many, few], quick=False, full=7) == [7, 7, 7]
    assert draws_for([few, many, few], quick=True, full=7) == [7, 0, 7]
    assert draws_for([many, many], quick=True, full=7) == [1, 0]
    assert draws_for([many, many], quick=True, full=7, order=["b", "a"]) == [0, 1]


def _data(shift=0.0):
    rng = np.random.default_rng(0)
    cells = Cells()
    for i, z in enumerate(rng.standard_normal(20)):
        cells.add(f"cell {i}", 1 + 0.1 * z + shift, 1.0, 0.1, 2.0 + i)
    check = Check("drop", "the step of a drop", 1.0, 1.001, 0.005, 2.0)
    one = ("lu_gtask", Found(cells, "a mistake", 40, (check,), "a note", 18.0), 2.0)
    other = ("ngram_curves", Found(Cells(), "another", 0, (check,)), 0.1)
    return as_dataset([one, other], {"group": "pools", "quick": True})


def test_claims_hold_and_their_controls_do_not(tmp_path):
    data = load(save(_data(), tmp_path / "data.nc"))
    found = {claim.id: claim.holds for claim in claims(data)}
    assert found == {
        "field-lu_gtask": True, "field-lu_gtask-drop": True, "field-ngram_curves-drop": True,
    }  # fmt: skip
    assert unmoved(data, claims, controls) == []
    said = summary(data)
    assert set(said["lu_gtask"]) == {"cells", "chi2_per_cell", "largest_z", "control_fails"}
    assert said["lu_gtask"]["cells"] == 20
    assert said["lu_gtask"]["control_fails"] is True
    assert said["ngram_curves"] == {
        "cells": 0, "chi2_per_cell": None, "largest_z": None, "control_fails": True,
    }  # fmt: skip
    assert [name for name, _, _ in found_in(data)] == ["lu_gtask", "ngram_curves"]
    assert not claims(load(save(_data(shift=1.0), tmp_path / "far.nc")))[0].holds
    draw(data).savefig(tmp_path / "figure.png", dpi=50)


def test_one_table_on_the_command_line(tmp_path, capsys):
    tables = tmp_path / "tables"
    tables.mkdir()
    shutil.copy(HERE / "agf_staircase.json", tables)
    arguments = ["reproduce", "field", "--quick", "--tables", str(tables), "--out",
                 str(tmp_path / "out")]  # fmt: skip
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"agf_staircase"}
    assert found["agf_staircase"]["control_fails"]
    assert found["agf_staircase"]["chi2_per_cell"] < 2
    shown = call(capsys, *arguments)[1]
    assert "agf_staircase" in shown
    assert "4 of 4" in shown  # heads and drops
    rows = json.loads((tmp_path / "out" / "scorecard.json").read_text("utf-8"))
    assert all(row["holds"] for row in rows)
    said = refused(capsys, "reproduce", "fig1", "--tables", str(tables))
    assert "name field alone" in said
