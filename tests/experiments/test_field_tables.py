"""Tables of our own in the format of the published ones, made by literal NumPy at small sizes.

What the comparisons read from a header and from rows is changed here: sizes, noise, constants,
pools, and which rows there are in which order.
"""

import dataclasses
import re

import numpy as np
import pytest

from iclflow.experiments.field.comparisons.adam import _adam, _said_of
from iclflow.experiments.field.comparisons.cells import agrees
from iclflow.experiments.field.comparisons.depth import (
    MovingLayers,
    context_eigenvalues,
    least_steps,
    left_over,
)
from iclflow.experiments.field.comparisons.pools import _stated_cost
from iclflow.experiments.field.comparisons.reading import HERE, PublishedTable, read_table
from iclflow.experiments.field.comparisons.shifted import _diagonal
from iclflow.experiments.field.data import BY_FILE

FRESH = 10_000  # prompts of a test


def header_of(file, **changes):
    """The lines of words of a published table, with some texts exchanged."""
    lines = (HERE / file).read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if line.startswith("#"))
    for old, new in changes.items():
        before = text
        text = re.sub(old, new, text)
        assert text != before, old
    return text


def written(path, header, columns, rows):
    """A table as a file, read again."""
    lines = [header, ",".join(columns)]
    lines += [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return read_table(path, BY_FILE[path.name].needed)


def features(rng, tasks, pairs, noise):
    """Label rows, queries and targets of prompts that are drawn token by token."""
    count, d = tasks.shape
    x = rng.standard_normal((count, pairs, d)) / d**0.5
    y = np.einsum("pnd,pd->pn", x, tasks) + noise**0.5 * rng.standard_normal((count, pairs))
    query = rng.standard_normal((count, d)) / d**0.5
    target = np.sum(query * tasks, axis=1) + noise**0.5 * rng.standard_normal(count)
    row = np.concatenate(
        [d / pairs * np.einsum("pn,pnd->pd", y, x), np.mean(y**2, axis=1, keepdims=True)], axis=1
    )
    return row, query, target


def on_sphere(rng, count, d):
    tasks = rng.standard_normal((count, d))
    return tasks * (d**0.5 / np.linalg.norm(tasks, axis=1))[:, None]


def literal_errors(rng, d, pairs, prompts, many, noise, penalty):
    """e_icl and e_idg of one draw, on prompts that nothing else has seen."""
    pool = on_sphere(rng, many, d)
    row, query, target = features(rng, pool[np.arange(prompts) % many], pairs, noise)
    phi = (query[:, :, None] * row[:, None, :]).reshape(prompts, -1)
    regular = phi.T @ phi + prompts / d * penalty * np.eye(phi.shape[1])
    gamma = np.linalg.solve(regular, phi.T @ target).reshape(d, d + 1)
    found = []
    for tasks in (on_sphere(rng, FRESH, d), pool[np.arange(FRESH) % many]):
        a, q, y = features(rng, tasks, pairs, noise)
        found.append(np.mean((y - np.einsum("pd,dk,pk->p", q, gamma, a)) ** 2))
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A table like `lu_double_descent.csv` at d = 4."""
    d, many, rho, lam = 4, 3, 0.2, 0.03
    header = header_of(
        "lu_double_descent.csv", **{
            "d = 100, rho = 0.01, lambda = 1e-8": f"d = {d}, rho = {rho}, lambda = {lam}",
            "K = 50 tasks": f"K = {many} tasks",
        }
    )  # fmt: skip
    rng, rows = np.random.default_rng(3), []
    # many prompts per feature: with few of them four dimensions have heavy tails
    for alpha, tau in ((2.0, 12.0), (3.5, 24.0)):
        prompts = many * round(tau * d**2 / many)
        for draw in range(30):
            errors = literal_errors(rng, d, int(alpha * d), prompts, many, rho, lam)
            rows.append([alpha, tau, "main", draw, *errors])
    path = tmp_path_factory.mktemp("tables") / "lu_double_descent.csv"
    columns = ("alpha", "tau", "run", "draw", "e_icl", "e_idg")
    return path, header, columns, rows


def compared(table):
    """The comparison of a table in full: label -> (theirs, ours, control)."""
    found = BY_FILE[f"{table.name}.csv"].compare(table, False, lambda _: None)
    cells = found.cells
    numbers = zip(cells.theirs, cells.ours, cells.control, strict=True)
    return found, dict(zip(cells.label, numbers, strict=True))


def test_another_size_noise_constant_and_pool(ours):
    """Ours from a header that says other numbers agree with literal prompts; the limit does not."""
    path, header, columns, rows = ours
    found, _ = compared(written(path, header, columns, rows))
    assert len(found.cells.label) == 4
    assert agrees(found.cells.z())
    assert not agrees(found.cells.z("control"))


def test_rows_may_come_in_any_order_and_number(ours):
    path, header, columns, rows = ours
    _, whole = compared(written(path, header, columns, rows))
    order = np.random.default_rng(0).permutation(len(rows))
    _, mixed = compared(written(path, header, columns, [rows[i] for i in order]))
    assert set(mixed) == set(whole)
    for label, numbers in whole.items():
        np.testing.assert_allclose(mixed[label], numbers, rtol=1e-12)
    some = [row for row in rows if row[0] == 3.5]
    _, part = compared(written(path, header, columns, some))
    assert len(part) == 2
    for label, numbers in part.items():
        np.testing.assert_allclose(whole[label], numbers, rtol=1e-12)


def test_a_header_that_says_less_is_refused(ours):
    path, header, columns, rows = ours
    with pytest.raises(ValueError, match="states no rho") as found:
        compared(written(path, header.replace("rho = 0.2", ""), columns, rows))
    assert "\n" not in str(found.value)


def literal_bayes(rng, d, pairs, many, variance, new):
    """Squared errors of dMMSE and ridge on one pool, prompt by prompt."""
    pool = rng.standard_normal((many, d))
    found = []
    for _ in range(2000):
        w = rng.standard_normal(d) if new else pool[rng.integers(many)]
        x = rng.standard_normal((pairs + 1, d)) / d**0.5
        y = x @ w + variance**0.5 * rng.standard_normal(pairs + 1)
        misfit = np.sum((y[:-1] - pool @ x[:-1].T) ** 2, axis=1)
        share = np.exp(-(misfit - misfit.min()) / (2 * variance))
        mean = share @ pool / share.sum()
        gram = x[:-1].T @ x[:-1] + variance * np.eye(d)
        other = np.linalg.solve(gram, x[:-1].T @ y[:-1])
        found.append([(y[-1] - x[-1] @ v) ** 2 for v in (mean, other)])
    return np.mean(found, axis=0)


def test_posteriors_of_another_size_and_noise(tmp_path):
    header = header_of("lu_bayes.csv", **{
        "d = 100": "d = 6", r"N\(0, 0.25\)": "N(0, 0.6)",
        "over 10,000 prompts": "over 2,000 prompts",
    })  # fmt: skip
    rng = np.random.default_rng(5)
    rows = [
        [alpha, kind, many, *literal_bayes(rng, 6, int(alpha * 6), many, 0.6, kind == "icl")]
        for alpha, kind, many in ((0.5, "icl", 4), (3.0, "idg", 4), (3.0, "icl", 9))
    ]
    columns = ("alpha", "kind", "K", "dmmse", "ridge")
    found, _ = compared(written(tmp_path / "lu_bayes.csv", header, columns, rows))
    assert len(found.cells.label) == 6
    assert agrees(found.cells.z())
    rows[0][1] = "new"
    with pytest.raises(ValueError, match="kind 'new' in row 1; icl or idg is needed"):
        compared(written(tmp_path / "lu_bayes.csv", header, columns, rows))


def changed(file, **columns):
    """A published table with other columns or arrays."""
    table = read_table(HERE / file, ())
    return dataclasses.replace(table, columns={**table.columns, **columns})


def test_shapes_that_disagree_and_pools_beyond_memory_are_one_line():
    curves = read_table(HERE / "development_regression.npz", ())
    cases = {
        "first_mse of shape": changed(
            "development_regression.npz", first_mse=curves["first_mse"][:, :5]
        ),
        "llc_mean of shape": changed(
            "development_regression.npz", llc_mean=curves["llc_mean"][:, :5]
        ),
        r"keys and queries of shape \(5, 4\)": changed("agf_staircase.json", keys=np.zeros((4, 4))),
        "pool of 100000000000 tasks need": changed("lu_gtask.csv", K=np.full(18, 1e11)),
    }
    for complaint, table in cases.items():
        file = next(name for name in BY_FILE if name.startswith(table.name))
        with pytest.raises(ValueError, match=complaint) as found:
            BY_FILE[file].compare(table, True, lambda _: None)
        assert "\n" not in str(found.value)


def table_of(header):
    return PublishedTable("mine", header, {"d": np.array([10.0, 64.0])})


def test_what_the_headers_say_in_words():
    half = table_of("settings: C_train = diag(2 x 40, 0 x 40)")
    np.testing.assert_allclose(_diagonal(half, 80), np.repeat([2.0, 0.0], 40))
    third = table_of("C_train = diag(5 x 2, 1 x 4);")
    np.testing.assert_allclose(_diagonal(third, 6), np.array([5, 5, 1, 1, 1, 1]) * 6 / 14)
    falling = table_of("C_train = diag(4, 3, ..., 1) scaled to trace d")
    np.testing.assert_allclose(_diagonal(falling, 4), np.array([4, 3, 2, 1]) * 0.4)
    for words in ("C_train = diag(2 x 3, 0 x 3)", "no law", "C_train = diag(a x 4)"):
        with pytest.raises(ValueError, match="states no C_train for d = 4"):
            _diagonal(table_of(words), 4)
    stated = table_of("stated cost of the authors: d = 10 18 s, d = 64 73 min 13 s (12 values)")
    assert _stated_cost(stated) == 18 + 73 * 60 + 13
    assert np.isnan(_stated_cost(table_of("no cost")))
    adam = _adam(
        table_of("torch Adam (0.8, 0.99, eps 1e-6)\nsettings: weight decay 0.02, 5 epochs")
    )
    assert (adam.b1, adam.b2, adam.eps, adam.weight_decay) == (0.8, 0.99, 1e-6, 0.02)
    runs = table_of(
        "few_*: N = 50, test error on 200 prompts. many_*: the same with P = 9.\n"
        "b_*: N = 70, test error on 1000 prompts. *_train[t]: loss"
    )
    said = [_said_of(runs, family, r"error on (\d+)") for family in ("few", "many", "b")]
    assert said == [200, 200, 1000]
    assert [_said_of(runs, f, r"N = (\d+)") for f in ("few", "many", "b")] == [50, 50, 70]


def test_what_three_moving_layers_leave():
    """The polynomial of the eigenvalues is the error of the layers on prompts, one by one."""
    import jax

    import iclflow as icl

    rng = np.random.default_rng(1)
    task = icl.Task([1.0] * 3, 7)
    a, b = rng.normal(0, 0.5, 3), rng.normal(-0.5, 0.3, 3)
    blocks = [np.einsum("l,ij->lij", values, np.eye(3)) for values in (a, b)]
    model = MovingLayers(*map(jax.numpy.asarray, blocks))
    for seed in range(3):
        prompt = task.sample(jax.random.key(seed))
        x = np.asarray(prompt.inputs)
        values, vectors = np.linalg.eigh(x[:-1].T @ x[:-1] / 7)
        weight = np.linalg.lstsq(x, np.asarray(prompt.targets[:, 0]), rcond=None)[0]
        left = vectors @ np.diag(left_over((a, b), values[None])[0]) @ vectors.T
        np.testing.assert_allclose(prompt.target - model(prompt), weight @ left @ x[-1], rtol=1e-9)


def test_the_least_loss_of_one_layer():
    """In closed form: D (1 - 1/m) with m = E tr S²/E tr S, here 1 + (D + 1)/N."""
    values = context_eigenvalues(200_000, 5, 20, np.random.default_rng(0))
    best = least_steps(1, values, starts=2)
    loss = np.mean(np.sum(left_over(best, values) ** 2, axis=1))
    assert loss == pytest.approx(5 * (1 - 1 / (1 + 6 / 20)), rel=0.01)
    assert best[1][0] == pytest.approx(-1 / 1.3, rel=0.01)
