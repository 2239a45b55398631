"""The attention-only transformer written out in NumPy, and one with its weights set by hand."""

import jax.numpy as jnp
import numpy as np

from iclflow.transformers import AttentionOnly


def norm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def literal_forward(model, tokens):
    """Logits [n, V] and attention [L, H, n, n], one number at a time where it matters."""
    weights = {name: np.asarray(w) for name, w in model.tensors().items()}
    n = len(tokens)
    stream = [weights["embed.W_E"][t] + weights["pos_embed.W_pos"][i] for i, t in enumerate(tokens)]
    heads = weights["blocks.0.attn.W_Q"].shape[0]
    patterns = np.zeros((model.depth, heads, n, n))
    for layer in range(model.depth):
        wq, wk, wv, wo = (weights[f"blocks.{layer}.attn.W_{c}"] for c in "QKVO")
        inputs, added = [norm(x) for x in stream], [0 * x for x in stream]
        for h in range(heads):
            for i in range(n):  # position i looks at positions 0 … i
                scores = [
                    inputs[i] @ wq[h] @ (inputs[j] @ wk[h]) / np.sqrt(wq.shape[2])
                    for j in range(i + 1)
                ]
                exps = np.exp(np.array(scores) - max(scores))
                patterns[layer, h, i, : i + 1] = exps / exps.sum()
                for j in range(i + 1):
                    added[i] = added[i] + patterns[layer, h, i, j] * (inputs[j] @ wv[h] @ wo[h])
        stream = [x + a for x, a in zip(stream, added, strict=True)]
    return np.array([norm(x) @ weights["unembed.W_U"] for x in stream]), patterns


def induction_model(vocabulary, context, sharp=200.0):
    """Two layers, one head each, in which the second is an induction head.

    The stream has three parts: this token, this position, the token before. The first layer looks
    one position back and writes the token there into the third part; the second looks for a place
    whose token before is this token, and copies the token there to the logits.
    """
    v, t = vocabulary, context
    width = 2 * v + t
    token, place, before = slice(0, v), slice(v, v + t), slice(v + t, width)
    size = max(v, t) + 1

    def matrix(rows, columns, block):
        out = np.zeros((rows, columns))
        out[block[0], block[1]] = block[2]
        return out

    eye = np.eye(v)
    back = np.eye(t, k=-1)  # query at position i meets the key of position i - 1
    query = np.stack([
        matrix(width, size, (place, slice(0, t), sharp * back)),
        matrix(width, size, (token, slice(0, v), sharp * eye)),
    ])  # fmt: skip
    key = np.stack([
        matrix(width, size, (place, slice(0, t), np.eye(t))),
        matrix(width, size, (before, slice(0, v), eye)),
    ])  # fmt: skip
    # The first position has nothing before it and looked at itself: it is not to be found.
    query[1, place, size - 1], key[1, v, size - 1] = sharp, -9
    value = np.stack([matrix(width, size, (token, slice(0, v), eye))] * 2)
    output = np.stack([
        matrix(size, width, (slice(0, v), before, eye)),
        # What is copied goes beside the token itself, which must not be predicted again.
        matrix(size, width, (slice(0, v), before, 20 * eye)),
    ])  # fmt: skip
    unembedding = matrix(width, v, (before, slice(0, v), 10 * eye))
    arrays = {
        "embedding": matrix(v, width, (slice(0, v), token, eye)),
        "positions": matrix(t, width, (slice(0, t), place, np.eye(t))),
        "query": query[:, None],
        "key": key[:, None],
        "value": value[:, None],
        "output": output[:, None],
        "unembedding": unembedding,
    }
    return AttentionOnly(**{name: jnp.asarray(a) for name, a in arrays.items()})
