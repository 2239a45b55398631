"""Dynamics: how training time advances."""

from iclflow.dynamics.base import AbstractDynamics
from iclflow.dynamics.descent import Descent, DescentState
from iclflow.dynamics.flow import Flow, FlowState
from iclflow.dynamics.optimisers import AbstractOptimiser, Adam, GradientDescent, Momentum
from iclflow.dynamics.sharpness import reference_minimum, sharpness, stable_rate
from iclflow.dynamics.stabilised import StabilisedFlow

__all__ = [
    "AbstractDynamics",
    "AbstractOptimiser",
    "Adam",
    "Descent",
    "DescentState",
    "Flow",
    "FlowState",
    "GradientDescent",
    "Momentum",
    "StabilisedFlow",
    "reference_minimum",
    "sharpness",
    "stable_rate",
]
