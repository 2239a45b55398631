"""The scorecard in quick form: no verdict changes unnoticed.

`data/quick_verdicts.json` has what each claim came to when it was last looked at. If a verdict
changed for a reason, change it there too, by hand.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from iclflow.report.build import build
from iclflow.report.figures import choose
from iclflow.results.netcdf import load
from tests.helpers.verdicts import unmoved

pytestmark = pytest.mark.long
VERDICTS = Path(__file__).parents[1] / "data" / "quick_verdicts.json"
# The experiments whose controls may be numbers changed by hand; those of all others are other data
# or another theory.
CHANGED_BY_HAND = ("grokking", "in_context_emergence")


@pytest.fixture(scope="module", params=["all", pytest.param("nonlinear", marks=pytest.mark.slow)])
def group(request):
    return request.param


@pytest.fixture(scope="module")
def report(group, tmp_path_factory):
    return build(choose([group]), tmp_path_factory.mktemp(group), quick=True, jobs=2)


def test_quick_verdicts_have_not_changed(group, report):
    assert {name: report.outcomes[name].error for name in report.failed} == {}
    ids = [row["id"] for row in report.rows]
    assert len(ids) == len(set(ids))
    found = {row["id"]: row["holds"] for row in report.rows}
    assert found == json.loads(VERDICTS.read_text())[group]


def test_labels_of_our_own_equations_lead_somewhere(report):
    text = report.index.read_text()
    ids = re.findall(r'id="(E\d)"', text)
    assert set(re.findall(r'href="#(E\d)"', text)) == set(ids)


# The quick form has two seeds and no long course, which settle no claim that has an interval;
# test_in_context_emergence.py turns these round, by data in which they are settled.
TOO_QUICK = ("in_context_emergence",)


def test_every_verdict_can_turn_round(group, report):
    """A claim that no data could refute, or none confirm, says nothing."""
    for source in {figure.source for figure in choose([group])}:
        data = load(report.out / source.file(quick=True))
        left = set(unmoved(data, source.claims, source.controls))
        if source.name.startswith(TOO_QUICK):
            left -= {claim.id for claim in source.claims(data) if claim.interval is not None}
        assert left == set(), source.name


def _rescaled(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether new numbers are the old ones times a constant or plus one; a single one always is."""
    known = np.isfinite(old)
    if not np.array_equal(known, np.isfinite(new)):
        return False
    x, y = old[known].astype(float), new[known].astype(float)
    shift, factor = np.mean(y - x), np.sum(x * y) / max(np.sum(x * x), 1e-300)
    # Number by number, so that a few large numbers do not hide the others.
    return any(np.allclose(y, guess, rtol=1e-10, atol=0) for guess in (x + shift, factor * x))


def _only_rescaled(data: xr.Dataset, control: xr.Dataset) -> bool:
    """Whether a control is the data themselves, but for a factor or an offset of variables."""
    if any(data[name].shape != control[name].shape for name in data.variables):
        return False
    changed = [name for name in data.variables if not data[name].equals(control[name])]
    return all(_rescaled(data[name].values, control[name].values) for name in changed)


def test_a_factor_or_an_offset_is_told_from_other_data():
    curve, other = np.array([[3.0, np.nan, 1.0, 0.5], [3.0, np.nan, 1.2, 0.5]])
    data = xr.Dataset({"curve": ("time", curve), "other": ("time", other), "number": 2.0})
    for merely in (1.1 * curve, (1 + 1e-9) * curve, curve + 0.01, 0 * curve, curve):
        assert _only_rescaled(data, data.assign(curve=("time", merely)))
    assert _only_rescaled(data, data.assign(number=5.0))
    for real in (other, curve[::-1], curve**1.05):
        assert not _only_rescaled(data, data.assign(curve=("time", real)))
    large = xr.Dataset({"curve": ("time", np.append(curve, 1e20))})
    assert not _only_rescaled(large, large.assign(curve=("time", np.append(other, 1e20))))
    assert not _only_rescaled(data, data.isel(time=[0, 2]))


def test_controls_are_other_data_or_another_theory(group, report):
    """A number times 1.1 shows that a tolerance is finite, and not what the opposite looks like."""
    for source in {figure.source for figure in choose([group])}:
        if not source.name.startswith(CHANGED_BY_HAND):
            data = load(report.out / source.file(quick=True))
            for id, found in source.controls(data).items():
                for control in found if isinstance(found, tuple) else (found,):
                    assert not _only_rescaled(data, control), id
