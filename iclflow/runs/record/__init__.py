"""Quantities a run can record, by name: the glue between dynamics and what there is to measure."""

from iclflow.runs.record.after import CURVATURE_TIMES as CURVATURE_TIMES
from iclflow.runs.record.after import TOP_EIGENVALUES as TOP_EIGENVALUES
from iclflow.runs.record.after import measure_after as measure_after
from iclflow.runs.record.fixed_points import FixedPointDistance as FixedPointDistance
from iclflow.runs.record.fixed_points import PlateauDistance as PlateauDistance
from iclflow.runs.record.quantities import QUANTITIES as QUANTITIES
from iclflow.runs.record.quantities import OfModel as OfModel
from iclflow.runs.record.quantities import Quantity as Quantity
from iclflow.runs.record.quantities import Record as Record
from iclflow.runs.record.quantities import Recording as Recording
from iclflow.runs.record.quantities import by_name as by_name
from iclflow.runs.record.quantities import resolve as resolve
from iclflow.runs.record.weights import recorded_models as recorded_models
