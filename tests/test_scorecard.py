"""The scorecard in quick form: no verdict changes unnoticed.

`data/quick_verdicts.json` has what each claim came to when it was last looked at. If a verdict
changed for a reason, change it there too, by hand.
"""

import json
from pathlib import Path

import pytest

from iclflow.report.build import build
from iclflow.report.figures import choose

VERDICTS = Path(__file__).parent / "data" / "quick_verdicts.json"


@pytest.mark.parametrize("group", ["all", pytest.param("nonlinear", marks=pytest.mark.slow)])
def test_quick_verdicts_have_not_changed(group, tmp_path):
    report = build(choose([group]), tmp_path, quick=True, jobs=2)
    assert {name: report.outcomes[name].error for name in report.failed} == {}
    ids = [row["id"] for row in report.rows]
    assert len(ids) == len(set(ids))
    found = {row["id"]: row["holds"] for row in report.rows}
    assert found == json.loads(VERDICTS.read_text())[group]
