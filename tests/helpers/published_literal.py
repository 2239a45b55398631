"""The published code's training written out in NumPy: all tokens, all heads, gradients by hand.

Independent of the package: it knows only what the recordings' format says. Weights are a dict
with the published names; `options` has the published options.
"""

import json

import numpy as np


def predict(weights, x, options):
    """Attention of the query (the last token) to all tokens: ŷ, and what backprop needs."""
    size, heads = options["in_dim"], options["head_num"]
    query = x[:, -1]
    value = weights["value"].reshape(heads, size + 1, size + 1)[:, -1]  # last rows
    if options["model"] == "attnM":
        matrix = weights["kq"].reshape(heads, size + 1, size + 1)
    else:
        q = weights["query"].reshape(heads, options["rank"], size + 1)
        k = weights["key"].reshape(heads, options["rank"], size + 1)
        matrix = np.einsum("hra,hrb->hab", q, k)
    scores = np.einsum("pa,hab,pjb->phj", query, matrix, x)
    attention = scores
    if options["softmax"]:
        attention = np.exp(scores - scores.max(axis=2, keepdims=True))
        attention /= attention.sum(axis=2, keepdims=True)
    read = np.einsum("ha,pja->phj", value, x)
    divisor = x.shape[1] if options["vary_len"] else 1
    return np.sum(attention * read, axis=(1, 2)) / divisor, attention, read, divisor


def attention_loss(weights, x, y, options):
    """Mean squared error on whole sequences, and its gradient."""
    size, heads = options["in_dim"], options["head_num"]
    prediction, attention, read, divisor = predict(weights, x, options)
    error = 2 * (prediction - y) / (len(y) * divisor)
    value = np.zeros((heads, size + 1, size + 1))
    value[:, -1] = np.einsum("p,phj,pja->ha", error, attention, x)
    to_scores = error[:, None, None] * read
    if options["softmax"]:
        mean = np.sum(attention * to_scores, axis=2, keepdims=True)
        to_scores = attention * (to_scores - mean)
    matrix = np.einsum("pa,phj,pjb->hab", x[:, -1], to_scores, x)
    gradient = {"value": value.reshape(heads * (size + 1), size + 1)}
    if options["model"] == "attnM":
        gradient["kq"] = matrix.reshape(heads * (size + 1), size + 1)
    else:
        q = weights["query"].reshape(heads, -1, size + 1)
        k = weights["key"].reshape(heads, -1, size + 1)
        gradient["query"] = np.einsum("hab,hrb->hra", matrix, k).reshape(-1, size + 1)
        gradient["key"] = np.einsum("hab,hra->hrb", matrix, q).reshape(-1, size + 1)
    return np.mean((prediction - y) ** 2), gradient


def training_loss(weights, x, y, options):
    """The training loss and gradient: MLP, whole sequences, or the mean over prefixes."""
    if options["model"] == "mlp":
        hidden = x @ weights["fc1"].T
        residual = hidden @ weights["fc2"][0] - y
        error = 2 * residual / len(y)
        first = weights["fc2"].T * (error @ x)[None, :]
        return np.mean(residual**2), {"fc1": first, "fc2": (error @ hidden)[None, :]}
    if not options["vary_len"]:
        return attention_loss(weights, x, y, options)
    total, gradient = 0.0, {name: np.zeros_like(w) for name, w in weights.items()}
    count = options["seq_len"] - 1
    for n in range(2, options["seq_len"] + 1):
        prefix = x[:, :n].copy()
        target = y if n == options["seq_len"] else prefix[:, -1, -1].copy()
        prefix[:, -1, -1] = 0.0
        part, slope = attention_loss(weights, prefix, target, options)
        total += part / count
        gradient = {name: gradient[name] + slope[name] / count for name in gradient}
    return total, gradient


def sequences(generator, options, icl):
    """Prompts in the published layout: X [P, tokens, D+1] (MLP: features) and targets."""
    count, tokens, size = options["trainset_size"], options["seq_len"], options["in_dim"]
    x = generator.normal(size=(count, tokens, size)) / size**0.5
    task = generator.normal(size=(count, size))
    task[int(count * icl) :] = 1.0
    y = np.einsum("pjd,pd->pj", x, task)
    if icl == 0:
        y[:, :-1] = generator.normal(size=(count, tokens - 1))
    target, slot = y[:, -1].copy(), y.copy()
    slot[:, -1] = 0.0
    if options["model"] == "mlp":
        beta = np.einsum("pj,pja->pa", slot, x)
        return np.einsum("pa,pb->pab", beta, x[:, -1]).reshape(count, -1), target
    return np.concatenate([x, slot[:, :, None]], axis=2), target


def initial_weights(generator, options):
    size, heads, rank, std = (options[k] for k in ("in_dim", "head_num", "rank", "init"))
    block = (heads, size + 1, size + 1)
    if options["model"] == "mlp":
        shapes = {"fc1": (heads, size * size), "fc2": (1, heads)}
        return {name: std * generator.normal(size=shape) for name, shape in shapes.items()}
    value = std * generator.normal(size=block)
    value[:, -1, :size] = 0.0
    weights = {"value": value.reshape(-1, size + 1)}
    if options["model"] == "attnM":
        kq = std * generator.normal(size=block)
        kq[:, :size, size] = 0.0
        weights["kq"] = kq.reshape(-1, size + 1)
    else:
        weights["query"] = std * generator.normal(size=(heads * rank, size + 1))
        weights["key"] = std * generator.normal(size=(heads * rank, size + 1))
        weights["key"][:, size] = 0.0
    return weights


def record(**changes):
    """Train literally; gives the arrays of a recording (in double precision)."""
    options = {
        "model": "attnM", "epoch": 40, "lr": 0.02, "seed": 10, "icl": 1, "trainset_size": 30,
        "testset_size": 0, "white_cov": False, "vary_len": False, "seq_len": 6, "in_dim": 3,
        "out_dim": 1, "cubic_feat": False, "softmax": False, "rank": 1, "head_num": 2,
        "init": 0.3, "show": False, "track_value": False,
    }  # fmt: skip
    options |= changes
    options["cubic_feat"] = options["model"] == "mlp"
    generator = np.random.default_rng(options["seed"])
    x, y = sequences(generator, options, options["icl"])
    weights = initial_weights(generator, options)
    arrays = {"X": x, "yq": y, "Lambda": np.eye(options["in_dim"]) / options["in_dim"]}
    arrays |= {f"init_{name}": w.copy() for name, w in weights.items()}
    arrays["w_fixed"] = np.ones((options["in_dim"], 1))
    tests = {}
    if options["testset_size"]:
        sizes = {**options, "trainset_size": options["testset_size"]}
        tests = {s: sequences(generator, sizes, i) for s, i in (("iwl", 0), ("icl", 1))}
        for short, (inputs, targets) in tests.items():
            arrays |= {f"X_{short}": inputs, f"yq_{short}": targets}
    curves = {"loss": [], "v_traj": [], **{f"loss_{s}_test": [] for s in tests}}
    for _ in range(options["epoch"]):
        loss, gradient = training_loss(weights, x, y, options)
        curves["loss"].append(loss)
        for short, (inputs, targets) in tests.items():
            whole = training_loss if options["model"] == "mlp" else attention_loss
            curves[f"loss_{short}_test"].append(whole(weights, inputs, targets, options)[0])
        heads, size = options["head_num"], options["in_dim"]
        if options["model"] == "mlp":
            curves["v_traj"].append(weights["fc2"][0].copy())
        else:
            blocks = weights["value"].reshape(heads, size + 1, size + 1)
            curves["v_traj"].append(blocks[:, -1, -1].copy())
        weights = {name: w - options["lr"] * gradient[name] for name, w in weights.items()}
    arrays |= {name: np.asarray(curve) for name, curve in curves.items()}
    arrays["args_json"] = np.array(json.dumps({**options, "wall_s": 1.5}))
    arrays["final"] = weights
    return arrays


def save(path, arrays):
    """Write a recording as the published one is laid out."""
    np.savez(path, **{name: a for name, a in arrays.items() if name != "final"})
    return path
