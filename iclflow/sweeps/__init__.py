"""Sweeps over settings: a design, its cells in batches, one Zarr store, and what it found."""

from iclflow.sweeps.design import Design as Design
from iclflow.sweeps.execute import run as run
from iclflow.sweeps.store import load as load
