"""Figs 1 (left) and 2, with numbers in them: one small prompt through attention and networks."""

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

from iclflow.experiments.runs import labelled
from iclflow.models import ConvNet, Separate
from iclflow.models.networks import cubic_features
from iclflow.results.progress import Progress
from iclflow.tasks.task import Task

SPECTRUM, CONTEXT, HEADS = (0.5, 0.3, 0.2), 4, 2


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """A prompt with D = 3, its features z, and a rank-one layer as convolutional networks."""
    found = {name: np.asarray(a) for name, a in _through(Task(SPECTRUM, CONTEXT)).items()}
    keys, queries, values = found["keys"], found["queries"], found["values"]
    size = keys.shape[1]
    # Row c of K holds the kernel at columns c D … c D + D - 1: kernel size D, stride D.
    matrices = np.stack([np.kron(np.eye(size), k[None, :]) for k in keys])
    hidden = np.einsum("hcf,f->hc", matrices, found["features"])
    if progress is not None:
        progress(1, 1)
    variables = {
        "tokens": (("token", "position"), found["tokens"].T, "prompt X"),
        "correlation": (("row",), found["correlation"], "β"),
        "query": (("column",), found["query"], "x_q"),
        "features": (("feature",), found["features"], "z = vec(β x_qᵀ)"),
        "keys": (("head", "row"), keys, "kernels k"),
        "queries": (("head", "column"), queries, "queries q"),
        "values": (("head",), values, "values v"),
        "matrices": (("head", "column", "feature"), matrices, "convolution matrices K"),
        "hidden": (("head", "column"), hidden, "K z"),
        "outputs": (("head",), values * np.sum(queries * hidden, axis=1), "v qᵀ K z"),
        "attention": ((), found["attention"], "prediction of the attention layer"),
        "network": ((), found["network"], "prediction of the networks"),
    }
    settings = {"figure": "Fig. 2", "quick": quick, "size": size, "heads": HEADS}
    return labelled(variables, {"head": np.arange(HEADS)}, settings)


@eqx.filter_jit
def _through(task: Task) -> dict[str, Array]:
    """A prompt, weights, and what the attention layer and the networks make of the prompt."""
    prompt = task.sample(jax.random.key(3))
    model = Separate.initialiser(task, heads=HEADS, scale=2.0)(jax.random.key(1))
    return {
        "tokens": prompt.tokens,
        "correlation": prompt.correlation[0],
        "query": prompt.query,
        "features": cubic_features(prompt)[0],
        "keys": model.keys[:, 0],
        "queries": model.queries[:, 0],
        "values": model.values[:, 0, 0],
        "attention": model(prompt)[0],
        "network": ConvNet.from_attention(model)(prompt)[0],
    }
