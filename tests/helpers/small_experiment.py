"""An experiment small enough to build reports of in tests; counts how often it computes."""

import os
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Drawing

from iclflow.experiments.base import Claim, Figure, Module, Source, below, near

COMPUTED: list[str] = []
HERE = Module(__name__)


def compute(*, quick=False, progress=None):
    COMPUTED.append("compute")
    time_axis = np.linspace(0, 4, 20 if quick else 200)
    if progress is not None:
        progress(1.0, 2.0)
    loss = xr.DataArray(np.exp(-time_axis), dims="time", coords={"time": time_axis})
    attributes = {"settings": '{"heads": 3, "sequences": 80000}', "quick": quick}
    return xr.Dataset({"loss": loss}, attrs=attributes)


def compute_runs(*, quick=False, progress=None):
    """Two runs with a drop, the theory that says so, and their plateaus."""
    step = np.arange(400)
    falls = 1 - 0.5 / (1 + np.exp((np.array([[100.0], [200.0]]) - step) / 5))
    coordinates = {"time": 0.4 * step, "step": ("time", step), "seed": [0, 1]}
    runs = dict.fromkeys(("loss", "theory"), (("seed", "time"), falls))
    times = ("seed", [40.0, 80.0])
    values = ("seed", "time", "head"), falls[:, :, None] * [1.0, -0.5, 0.0]
    found = {**runs, "levels": ("level", [1.0, 0.5]), "drops": times, "values": values}
    return xr.Dataset(found, coordinates, attrs={"settings": "{}", "quick": quick})


def compute_cores(*, quick=False, progress=None):
    return compute(quick=quick).assign_attrs(cores=os.environ["NPROC"])


def compute_nothing(*, quick=False, progress=None):
    raise FloatingPointError("the loss\nis not a number")


def compute_and_be_interrupted(*, quick=False, progress=None):
    raise KeyboardInterrupt


def compute_and_die(*, quick=False, progress=None):
    os._exit(9)


def claims(data) -> list[Claim]:
    last = float(data["loss"][-1])
    return [
        near("last", "the last loss is e⁻⁴", "(1)", np.exp(-4.0), last, 1e-12, "rounding"),
        below("small", "the loss is <small> & below 10⁻⁹", "(2)", last, 1e-9, "none", "It is not."),
        below("never", "what was not measured does not hold", "", float("nan"), 1.0, "none"),
    ]


def controls(data) -> dict[str, xr.Dataset]:
    return {"last": data.assign(loss=2 * data["loss"]), "small": data.assign(loss=0 * data["loss"])}


def no_claims(data) -> list[Claim]:
    return []


def draw(data) -> Drawing:
    figure = Drawing(figsize=(3.4, 2.4))
    figure.subplots().plot(data["time"], data["loss"].values.T)
    return figure


def draw_wide(data) -> Drawing:
    figure = draw(data)
    figure.set_size_inches(9, 2)
    return figure


def words(data) -> dict[str, str]:
    return {"points": str(data.sizes["time"])}


def draw_badly(data) -> Drawing:
    raise ValueError("no ink")


def figure(name: str = "small", **changes) -> Figure:
    source = Source(
        changes.pop("compute", HERE.compute), changes.pop("claims", HERE.claims), HERE.controls
    )
    given = {
        "name": name,
        "label": name.title(),
        "title": f"The title of {name}",
        "source": source,
        "draw": HERE.draw,
        "caption": "A caption with β & <β>.",
        "alt": "A curve that falls.",
    }
    return Figure(**{**given, **changes})


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
