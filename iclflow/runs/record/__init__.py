"""Quantities a run can record, by name: the glue between dynamics and what there is to measure."""

from iclflow.runs.record.after import CURVATURE_TIMES, TOP_EIGENVALUES, measure_after
from iclflow.runs.record.fixed_points import FixedPointDistance
from iclflow.runs.record.quantities import (
    QUANTITIES,
    OfModel,
    Quantity,
    names_after,
    resolve,
)
from iclflow.runs.record.weights import WEIGHT_DIMS, recorded_models

__all__ = [
    "CURVATURE_TIMES",
    "QUANTITIES",
    "TOP_EIGENVALUES",
    "WEIGHT_DIMS",
    "FixedPointDistance",
    "OfModel",
    "Quantity",
    "measure_after",
    "names_after",
    "recorded_models",
    "resolve",
]
