"""Sweeps stated in plain settings: a design, its cells, and what a store of them has found."""

from iclflow.runs.store import load as load
from iclflow.sweeps.design import Design as Design
from iclflow.sweeps.design import run as run
from iclflow.sweeps.look import look_map as look_map
