"""What the library computes, for the page to equal: `python -m iclflow.explorer.reference`.

Each run is what `iclflow simulate` makes of its settings. `web/page/check.js` repeats them all in
Node and in a browser, and some of them behind "test this page".
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import iclflow
from iclflow.diagnosis.identify import identify
from iclflow.dynamics import stable_rate
from iclflow.losses import Moments
from iclflow.models import AbstractLinearModel, AbstractModel, Merged
from iclflow.results.files import write_text
from iclflow.runs.record import recorded_models
from iclflow.study.study import Settings, Study
from iclflow.theory.drops.one_drop import first_drop, least_loss
from iclflow.theory.drops.staircase import staircase
from iclflow.theory.fixed_points.modes import Modes, visited_levels
from iclflow.theory.linear_transformer import DecoupledFlow, TransformerModes, plateau_losses
from iclflow.theory.predict import predict

PATH = Path(__file__).parent / "web" / "reference.json"
MARKS = 14  # save points of a run
INVERSE = (0.367933, 0.183966, 0.122644, 0.091983, 0.073587, 0.061322, 0.052562, 0.045992)

# Name -> settings of `iclflow simulate`; together they use every path of the page's kernel.
RUNS: dict[str, dict[str, Any]] = {
    "paper": {"scale": 0.07, "rate": 0.2, "steps": 20_000},
    "small init": {"scale": 0.01, "seed": 3, "rate": 0.2, "steps": 60_000},
    "coordinate axes": {"scale": 0.07, "rotate": False, "rate": 0.2, "steps": 20_000},
    "D = 8": {"spectrum": INVERSE, "heads": 9, "scale": 0.02, "seed": 1, "steps": 30_000},
    "rank 2": {"rank": 2, "scale": 0.05, "rate": 0.2, "steps": 20_000},
    "rank 3, D = 6": {
        "spectrum": INVERSE[:6], "heads": 4, "rank": 3, "scale": 0.1, "rate": 0.2, "steps": 10_000,
    },
    "noise": {
        "spectrum": (0.6, 0.3, 0.1), "heads": 4, "scale": 0.05, "noise": 0.5, "context": 15,
        "rate": 0.2, "steps": 20_000,
    },
    "task covariance": {
        "spectrum": (0.5, 0.3, 0.2), "task_covariance": (1.0, 1.2, 1.5), "scale": 0.05,
        "eigen_seed": 7, "rate": 0.2, "steps": 20_000,
    },
    "against the order": {
        "spectrum": (0.6, 0.3), "task_covariance": (1.0, 3.0), "heads": 4, "scale": 0.02,
        "context": 200, "rate": 0.2, "steps": 20_000,
    },
    "equal eigenvalues": {
        "spectrum": (0.35, 0.35, 0.15, 0.15), "scale": 0.03, "rate": 0.2, "steps": 40_000,
    },
    "large init": {"scale": 1.0, "rate": 0.2, "steps": 5_000},
    "merged": {"model": "merged", "heads": 8, "scale": 1e-3, "rate": 0.2, "steps": 400},
    "in weight": {
        "model": "merged", "spectrum": (0.25,) * 4, "heads": 8, "scale": 1e-4, "rate": 0.1,
        "fixed_fraction": 0.6, "steps": 2_000,
    },
    "in weight, separate": {
        "spectrum": (0.5, 0.3, 0.2), "task_covariance": (1.0, 1.2, 1.5), "heads": 3, "rank": 2,
        "scale": 0.2, "noise": 0.3, "context": 12, "rate": 0.1, "fixed_fraction": 0.3,
        "steps": 3_000,
    },
    "merged, white": {
        "model": "merged", "spectrum": (0.25,) * 4, "heads": 6, "scale": 1e-6, "rate": 0.2,
        "steps": 1_000,
    },
    "finite P": {
        "scale": 0.07, "noise": 0.2, "sequences": 300, "blocks": "frozen", "rate": 0.2,
        "steps": 8_000,
    },
    "linear transformer": {
        "model": "linear-transformer", "spectrum": (1.0, 0.5, 0.3), "context": 20, "scale": 0.01,
        "rate": 0.05, "steps": 2_000,
    },
    "two layers": {
        "layers": 2, "spectrum": (0.6, 0.3), "heads": 3, "scale": 0.07, "seed": 1, "rate": 0.5,
        "noise": 0.2, "steps": 4_000,
    },
    "softmax": {
        "model": "softmax-separate", "spectrum": (0.6, 0.3), "context": 7, "heads": 3, "rank": 2,
        "scale": 0.5, "sequences": 40, "blocks": "frozen", "rate": 1.0, "steps": 120,
    },
    "softmax, merged": {
        "model": "softmax-merged", "spectrum": (0.6, 0.3, 0.2), "context": 7, "heads": 2,
        "scale": 0.5, "sequences": 40, "blocks": "frozen", "rate": 0.5, "steps": 120,
    },
}  # fmt: skip


def reference(given: dict[str, Any]) -> dict[str, Any]:
    """One run as `iclflow simulate` makes it, what the theory says of it, and what it does."""
    given = {"rate": 0.2, "rotate": True, **given}
    marks = np.unique(np.geomspace(1, given["steps"], MARKS).round().astype(int))
    save = ",".join(map(str, [0, *marks]))
    study = Study.of(Settings(**given, save=save, record=("loss", "weights")))
    runs = study.run().isel(seed=0)
    model = study.init(jax.random.key(study.settings.seed))
    names = list(model.weights())
    result = {
        "settings": given,
        "marks": [0, *marks.tolist()],
        "start": [np.asarray(model.weights()[name]).ravel().tolist() for name in names],
        "loss": runs["loss"].values.tolist(),
        "end": [runs[name].values[-1].ravel().tolist() for name in names],
    }
    return {**result, **_theory(study, model, runs)}


def _theory(study: Study, model: AbstractModel, runs: Any) -> dict[str, Any]:
    """Levels, drop times and distances to the in-context algorithms, where the theory has them."""
    task = study.task
    if study.settings.fixed_fraction > 0:
        return _in_weight(study, model, runs)
    if task.outputs > 1:
        modes = TransformerModes.of(task)
        start = np.full(task.size, study.settings.scale**2)
        times = np.sort(DecoupledFlow(modes).drop_times(start))
        return {"levels": (2 * plateau_losses(modes)).tolist(), "times": {"transformer": times}}
    if model.depth > 1:
        found = predict(task, model, probes=0)
        rate = float(stable_rate(study.loss, model))
        times = {"layers": found.times.tolist()}
        return {"levels": found.levels, "rate": rate, "times": times, "heads": found.heads}
    if not isinstance(model, AbstractLinearModel):
        return {}
    modes = Modes.of(task)
    levels = [float(modes.level(range(m))) for m in range(modes.rank + 1)]
    result: dict[str, Any] = {"levels": levels}
    if study.settings.sequences is None:
        found = identify(recorded_models(runs, study.init), task)
        names = [n for n in found.candidate.values if n == "zero" or "PCR-" in n]
        result["distance"] = found.distance.sel(candidate=names).values.tolist()
        result["rate"] = float(stable_rate(study.loss, model))
    if len(visited_levels(modes, model)) == 2:
        return {**result, "times": {"merged": predict(task, model).times.tolist()}}
    stairs = staircase(modes, model, probes=0)
    return {**result, "times": {"flow": stairs.times.tolist()}, "heads": stairs.heads.tolist()}


def _in_weight(study: Study, model: AbstractModel, runs: Any) -> dict[str, Any]:
    """Of a mixture with a fixed task: its test losses, the least loss, and the first drop."""
    loss = study.loss
    assert isinstance(loss, Moments)
    result: dict[str, Any] = {
        "levels": [float(loss.power), least_loss(loss)],
        "rate": float(stable_rate(loss, model)),
        "tests": [runs[name].values.tolist() for name in study.tests],
    }
    if isinstance(model, Merged):
        drop = first_drop(loss, model)
        result["levels"].insert(1, drop.level)
        result["times"] = {"first": [drop.time()]}
    return result


def write(path: Path = PATH) -> Path:
    """Compute every run anew and write them all."""
    found = {name: reference(given) for name, given in RUNS.items()}
    about = {"iclflow": iclflow.__version__, "runs": found}
    return write_text(path, json.dumps(about, separators=(",", ":"), default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return value.tolist()


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(write())
