"""Dynamics: how training time advances."""

from iclflow.dynamics.base import AbstractDynamics as AbstractDynamics
from iclflow.dynamics.descent import AbstractOptimiser as AbstractOptimiser
from iclflow.dynamics.descent import Adam as Adam
from iclflow.dynamics.descent import Descent as Descent
from iclflow.dynamics.descent import DescentState as DescentState
from iclflow.dynamics.descent import GradientDescent as GradientDescent
from iclflow.dynamics.descent import Momentum as Momentum
from iclflow.dynamics.descent import Optax as Optax
from iclflow.dynamics.descent import reference_minimum as reference_minimum
from iclflow.dynamics.descent import sharpness as sharpness
from iclflow.dynamics.descent import stable_rate as stable_rate
from iclflow.dynamics.flow import Flow as Flow
from iclflow.dynamics.flow import FlowState as FlowState
from iclflow.dynamics.gradient_noise import GradientNoise as GradientNoise
from iclflow.dynamics.gradient_noise import gradient_noise as gradient_noise
