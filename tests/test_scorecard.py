"""The scorecard in quick form: no verdict changes unnoticed.

`data/quick_verdicts.json` has what each claim came to when it was last looked at. If a verdict
changed for a reason, change it there too, by hand.
"""

import json
import re
from pathlib import Path

import pytest

from iclflow.experiments.base import unmoved
from iclflow.report.build import build
from iclflow.report.figures import choose
from iclflow.results.netcdf import load

pytestmark = pytest.mark.long
VERDICTS = Path(__file__).parent / "data" / "quick_verdicts.json"


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


def test_every_verdict_can_turn_round(group, report):
    """A claim that no data could refute, or none confirm, says nothing."""
    for source in {figure.source for figure in choose([group])}:
        data = load(report.out / source.file(quick=True))
        assert unmoved(data, source.claims, source.controls) == [], source.name
