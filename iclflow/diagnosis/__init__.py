"""A run or a loss curve, read with the theory at hand: stages, algorithms, what comes next."""

from iclflow.diagnosis.along import measure_along as measure_along
from iclflow.diagnosis.curves import diagnose_curve as diagnose_curve
from iclflow.diagnosis.film import animate as animate
from iclflow.diagnosis.runs import diagnose as diagnose
from iclflow.diagnosis.runs import diagnose_run as diagnose_run
from iclflow.diagnosis.runs import diagnose_runs as diagnose_runs
from iclflow.diagnosis.runs import run_settings as run_settings
from iclflow.diagnosis.runs import select_run as select_run
from iclflow.diagnosis.runs import spells as spells
from iclflow.diagnosis.runs import stage_rows as stage_rows
