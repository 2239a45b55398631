"""Is a series what its steps say? Equal weights under two steps, and steps out of line.

Public series are known to serve the last weights under early steps.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from iclflow.checkpoints.files import AbstractSource, CheckpointError
from iclflow.checkpoints.layouts import Layout
from iclflow.checkpoints.series import Checkpoint

SAMPLED = 2048  # numbers of a tensor in the distance between steps
OUT_OF_LINE = 3.0  # times as far from both neighbours as they are from each other


def check_series(series: Sequence[Checkpoint], layout: Layout) -> list[str]:
    """What is wrong with the order of a series, in lines; three tensors of each step are read.

    Training moves on: the weights of a step lie between those of its neighbours, and the first
    ones are the farthest from the last. A step that cannot be read is left out.
    """
    ordered = sorted(series, key=lambda checkpoint: checkpoint.step)
    steps, digests, sketches = [], [], []
    for checkpoint in ordered:
        try:
            with checkpoint.open() as source:
                tensors = [source.read(name) for name in _watched(source, layout)]
        except CheckpointError:
            continue
        if not tensors:
            continue  # another model: the measures will say so
        steps.append(checkpoint.step)
        digests.append(hashlib.sha256(b"".join(t.tobytes() for t in tensors)).hexdigest())
        sketches.append(np.concatenate([_sample(t) for t in tensors]).astype(float))
    if len({sketch.shape for sketch in sketches}) != 1:
        return []
    return _equal(steps, digests) + _strayed(steps, np.stack(sketches))


def _watched(source: AbstractSource, layout: Layout) -> list[str]:
    """One matrix of the attention of the first, the middle and the last layer."""
    layers = layout.layers
    chosen = sorted({layers[0], layers[len(layers) // 2], layers[-1]})
    names = sorted(source.names())
    found = []
    for layer in chosen:
        stem = layout.stem(layer)
        own = (n for n in names if n.startswith(stem) and len(source.shape(n)) in (2, 3))
        found += [name for name in own if layout.kind.parts[0] in name][:1]
    return found


def _sample(tensor: np.ndarray) -> np.ndarray:
    flat = tensor.ravel()
    return flat[:: max(1, flat.size // SAMPLED)][:SAMPLED]


def _equal(steps: Sequence[int], digests: Sequence[str]) -> list[str]:
    found = []
    for digest in dict.fromkeys(digests):
        same = [step for step, other in zip(steps, digests, strict=True) if other == digest]
        if len(same) > 1:
            found.append(f"steps {', '.join(map(str, same))} have the same weights in every bit")
    return found


def _strayed(steps: Sequence[int], sketches: np.ndarray) -> list[str]:
    def apart(i: int, j: int) -> float:
        return float(np.linalg.norm(sketches[i] - sketches[j]))

    found, last = [], len(steps) - 1
    for i in range(1, last):
        nearest = min(apart(i, i - 1), apart(i, i + 1))
        if nearest > OUT_OF_LINE * apart(i - 1, i + 1):
            found.append(
                f"step {steps[i]} is out of line: at least {OUT_OF_LINE:g} times as far from steps "
                f"{steps[i - 1]} and {steps[i + 1]} as they are from each other"
            )
    if last >= 2:
        for end, beside, other in ((0, 1, last), (last, last - 1, 0)):
            if OUT_OF_LINE * apart(end, other) < apart(beside, other):
                found.append(
                    f"step {steps[end]} is out of line: nearer to step {steps[other]} than step "
                    f"{steps[beside]} is, by a factor of more than {OUT_OF_LINE:g}"
                )
    return found
