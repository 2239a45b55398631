"""Quantities a run can record, by name: the glue between dynamics and what there is to measure."""

from iclflow.runs.record.after import CURVATURE_TIMES, TOP_EIGENVALUES, measure_after
from iclflow.runs.record.fixed_points import FixedPointDistance
from iclflow.runs.record.quantities import (
    QUANTITIES,
    OfModel,
    Quantity,
    Record,
    Recording,
    resolve,
)
from iclflow.runs.record.weights import recorded_models

__all__ = [
    "CURVATURE_TIMES",
    "QUANTITIES",
    "TOP_EIGENVALUES",
    "FixedPointDistance",
    "OfModel",
    "Quantity",
    "Record",
    "Recording",
    "measure_after",
    "recorded_models",
    "resolve",
]
