"""Figs 1 (left) and 2, with numbers in them: one small prompt through attention and networks."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.experiments.base import Progress
from iclflow.experiments.runs import labelled
from iclflow.models import ConvNet, Separate
from iclflow.models.networks import cubic_features
from iclflow.task import Task

SPECTRUM, CONTEXT, HEADS = (0.5, 0.3, 0.2), 4, 2


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """A prompt with D = 3, its features z, and a rank-one layer as convolutional networks."""
    task = Task(SPECTRUM, CONTEXT)
    prompt = task.sample(jax.random.key(3))
    model = Separate.initialiser(task, heads=HEADS, scale=2.0)(jax.random.key(1))
    network = ConvNet.from_attention(model)
    features = cubic_features(prompt)[0]
    size = task.size
    # Row c of K holds the kernel at columns c D … c D + D - 1: kernel size D, stride D.
    matrices = jnp.stack([jnp.kron(jnp.eye(size), k[0][None, :]) for k in model.keys])
    hidden = jnp.einsum("hcf,f->hc", matrices, features)
    heads = jnp.einsum("hc,hc->h", model.queries[:, 0], hidden) * model.values[:, 0, 0]
    if progress is not None:
        progress(1, 1)
    variables = {
        "tokens": (("token", "position"), prompt.tokens.T, "prompt X"),
        "correlation": (("row",), prompt.correlation[0], "β"),
        "query": (("column",), prompt.query, "x_q"),
        "features": (("feature",), features, "z = vec(β x_qᵀ)"),
        "keys": (("head", "row"), model.keys[:, 0], "kernels k"),
        "queries": (("head", "column"), model.queries[:, 0], "queries q"),
        "values": (("head",), model.values[:, 0, 0], "values v"),
        "matrices": (("head", "column", "feature"), matrices, "convolution matrices K"),
        "hidden": (("head", "column"), hidden, "K z"),
        "outputs": (("head",), heads, "v qᵀ K z"),
        "attention": ((), model(prompt)[0], "prediction of the attention layer"),
        "network": ((), network(prompt)[0], "prediction of the networks"),
    }
    settings = {"figure": "Fig. 2", "quick": quick, "size": size, "heads": HEADS}
    return labelled(variables, {"head": np.arange(HEADS)}, settings)
