"""A run or a loss curve, read with the theory at hand: stages, algorithms, what comes next."""

from iclflow.diagnosis.along import measure_along
from iclflow.diagnosis.curves import diagnose_curve, read_curve
from iclflow.diagnosis.runs import (
    diagnose_run,
    diagnose_runs,
    run_settings,
    select_run,
    spells,
    stage_rows,
)

__all__ = [
    "diagnose_curve",
    "diagnose_run",
    "diagnose_runs",
    "measure_along",
    "read_curve",
    "run_settings",
    "select_run",
    "spells",
    "stage_rows",
]
