"""Dynamics: how training time advances."""

from iclflow.dynamics.base import AbstractDynamics, AbstractReduced
from iclflow.dynamics.descent import Descent, DescentState
from iclflow.dynamics.flow import Flow, FlowState
from iclflow.dynamics.optimisers import AbstractOptimiser, Adam, GradientDescent, Momentum
from iclflow.dynamics.sharpness import reference_minimum, sharpness, stable_rate

__all__ = [
    "AbstractDynamics",
    "AbstractOptimiser",
    "AbstractReduced",
    "Adam",
    "Descent",
    "DescentState",
    "Flow",
    "FlowState",
    "GradientDescent",
    "Momentum",
    "reference_minimum",
    "sharpness",
    "stable_rate",
]
