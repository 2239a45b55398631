"""The linear transformer (second paper) on the ladder: task, model, losses, training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.dynamics import Descent, Flow
from iclflow.losses import Fresh, Population, population_moments
from iclflow.models import Blocks, Merged
from iclflow.runs.simulate import simulate
from iclflow.tasks.laws import Commuting, Mixture, Normal
from iclflow.tasks.task import Task
from iclflow.theory.linear_transformer import CoupledFlow, TransformerModes, optimum

SPECTRUM = (1.0, 0.6, 0.36, 0.216)
CONTEXT = 8
KEY = jax.random.key(11)
ROTATION = jnp.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0])


def transformer_task(variances=1.0, context=CONTEXT):
    return Task(SPECTRUM, context, rotation=ROTATION, tasks=Commuting(variances))


def at_weights(task, p, q, blocks=Blocks.FROZEN):
    """The model with p₂ = U diag(p) Uᵀ and q₁ = U diag(q) Uᵀ."""
    basis = task.basis
    zeros = jnp.zeros((1, 4, 4)) if blocks is Blocks.FULL else None
    values, merged = ((basis * jnp.asarray(w)[None, :]) @ basis.T for w in (p, q))
    return Merged(values[None], merged[None], zeros, zeros)


def in_basis(task, weights):
    """Weights [..., O, O] in the eigenvectors U."""
    basis = np.asarray(task.basis)
    return np.einsum("oa,...op,pb->...ab", basis, np.asarray(weights), basis)


def diagonal(matrices):
    return np.einsum("...aa->...a", matrices)


def test_prediction_is_the_literal_transformer():
    """(8) is the lower right of f(Z) (1), all blocks and the rest of W too."""
    task, rng = transformer_task(), np.random.default_rng(1)
    prompt = task.sample(KEY)
    p1, p2, q1, q2 = rng.normal(size=(4, 4, 4))
    outer_p = np.block([[rng.normal(size=(4, 8))], [p1, p2]])
    outer_q = np.block([[q1, rng.normal(size=(4, 4))], [q2, rng.normal(size=(4, 4))]])
    tokens = np.asarray(prompt.tokens).T  # [2d, N+1]
    whole = tokens + outer_p @ (tokens @ tokens.T / CONTEXT) @ outer_q @ tokens
    model = Merged(*(jnp.asarray(w)[None] for w in (p2, q1, p1, q2)))
    np.testing.assert_allclose(
        model(prompt), whole[4:, -1], rtol=0, atol=2e-14 * np.abs(whole).max()
    )
    x, task_matrix = np.asarray(prompt.inputs), np.asarray(task.draw(KEY).task)
    sample = x[:-1].T @ x[:-1] / CONTEXT
    reduced = p2 @ task_matrix @ sample @ q1 @ x[-1]
    np.testing.assert_allclose(model.reduce()(prompt), reduced, atol=1e-13 * np.abs(reduced).max())


def test_starts():
    task = transformer_task()
    model = Merged.linear_transformer(task, scale=0.3, query_scale=-0.1, blocks=Blocks.FULL)(KEY)
    np.testing.assert_array_equal(model.values, 0.3 * np.eye(4)[None])
    np.testing.assert_array_equal(model.merged, -0.1 * np.eye(4)[None])
    assert not np.any(model.value_inputs)
    assert not np.any(model.key_labels)
    random = Merged.linear_transformer(task, scale=0.0, spread=0.2)(KEY)
    assert random.blocks is Blocks.FROZEN
    entries = np.concatenate([random.values.ravel(), random.merged.ravel()])
    assert abs(entries.std() / 0.2 - 1) < 0.5
    assert not np.array_equal(random.values, random.merged)
    with pytest.raises(ValueError, match="as many outputs as inputs, got 1 and 4"):
        Merged.linear_transformer(Task(SPECTRUM, 3), scale=0.1)


def test_commuting_tasks_commute_and_have_their_moments():
    variances = (1.0, 0.5, 2.0, 0.25)
    tasks = transformer_task(variances).tasks
    draws = np.asarray(tasks.pool(100_000, KEY).members)
    values = in_basis(transformer_task(), draws)
    np.testing.assert_allclose(values[:50], values[:50] * np.eye(4)[None], atol=1e-14)
    covariance = np.asarray(transformer_task().covariance)
    np.testing.assert_allclose(draws[0] @ covariance, covariance @ draws[0], atol=1e-14)
    single = in_basis(transformer_task(), tasks.sample(KEY))
    np.testing.assert_allclose(single, np.diag(np.diagonal(single)), atol=1e-14)
    second = np.asarray(tasks.second_moment())
    fourth = np.asarray(eqx.filter_jit(tasks.fourth_moment)())
    flat = draws.reshape(len(draws), -1)
    for empirical, closed in (
        (flat.T @ flat / len(flat), second.reshape(16, 16)),
        ((flat**2).T @ flat**2 / len(flat), np.einsum("iijj->ij", fourth[1:, 1:, 1:, 1:])),
    ):
        error = 5 * np.sqrt((np.abs(closed).max() ** 2 * 10) / len(flat))
        np.testing.assert_allclose(empirical, closed, atol=error)
    # E[λ_a λ_b λ_c λ_d] = v_a v_b in pairs, 3 v² for equal ones; odd moments are 0.
    basis = np.asarray(tasks.basis)
    factor = np.einsum("oa,ca->oca", basis, basis).reshape(16, 4)
    four = np.einsum("ia,jb,kc,ld,ijkl->abcd", *[factor] * 4, fourth[1:, 1:, 1:, 1:])
    v = np.asarray(variances)
    pairs = np.einsum("a,c,ab,cd->abcd", v, v, np.eye(4), np.eye(4))
    expected = pairs + pairs.transpose(0, 2, 1, 3) + pairs.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(four, expected, atol=1e-13)
    assert not np.any(fourth[1:, 1:, 1:, 0])
    assert fourth[0, 0, 0, 0] == 1
    assert tasks.symmetric()


def test_quenched_sets():
    tasks = transformer_task().tasks
    pool = tasks.pool(6, KEY)
    both = pool.symmetrised()
    assert not pool.symmetric()
    assert both.symmetric()
    np.testing.assert_array_equal(both.members[:6], -both.members[6:])
    np.testing.assert_allclose(both.second_moment(), pool.second_moment(), atol=1e-14)
    task = transformer_task().replace(tasks=both)
    modes = TransformerModes.of(task)
    values = diagonal(in_basis(task, pool.members))
    np.testing.assert_allclose(modes.variances, (values**2).mean(axis=0), rtol=1e-12)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        tasks.pool(0, KEY)
    with pytest.raises(ValueError, match="4 variances of at least 0"):
        Commuting([1.0, 2.0]).bind(ROTATION)


@pytest.mark.parametrize("variances", [1.0, (1.0, 0.5, 2.0, 0.25)])
def test_population_is_the_coupled_mean_loss(variances):
    """Both closed forms of the library, and their gradients, against the formula by modes."""
    task = transformer_task(variances)
    flow = CoupledFlow(TransformerModes.of(task))
    rng = np.random.default_rng(3)
    p, q = rng.normal(size=(2, 4))
    population, moments = Population(task), population_moments(task)
    model = at_weights(task, p, q)
    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: population(m)))(model)
    assert float(value) / 2 == pytest.approx(float(flow.loss(p, q)), rel=1e-13)
    full = at_weights(task, p, q, Blocks.FULL)
    assert float(moments(full)) / 2 == pytest.approx(float(flow.loss(p, q)), rel=1e-12)
    for found, expected in zip((gradient.values, gradient.merged), flow.slope(p, q), strict=True):
        # Entries off the diagonal have no drive.
        inside = -in_basis(task, found[0]) / 2
        np.testing.assert_allclose(inside, np.diag(expected), atol=1e-12)


def test_mean_loss_and_gradient_against_monte_carlo():
    """(5) over samples of Σ̂, λ and x_q in NumPy, nothing shared with the library."""
    rng, count = np.random.default_rng(4), 400_000
    s, p, q = np.asarray(SPECTRUM), np.full(4, 0.8), np.asarray([0.9, 1.0, 1.1, 0.7])
    flow = CoupledFlow(TransformerModes.given(s, CONTEXT))
    parts = []
    for _ in range(8):
        x = rng.normal(size=(count // 8, CONTEXT + 1, 4)) * np.sqrt(s)
        tasks = rng.normal(size=(count // 8, 4))
        read = np.einsum("sna,snb,b,sb->sa", x[:, :-1], x[:, :-1], q, x[:, -1]) / CONTEXT
        mixed = np.einsum("sna,snb->sab", x[:, :-1], x[:, :-1]) / CONTEXT
        rest = tasks * (p * read - x[:, -1])  # ŷ - y
        g_p = rest * tasks * read
        g_q = np.einsum("sa,a,sab,sb->sb", rest * tasks, p, mixed, x[:, -1])
        parts.append(np.column_stack([np.sum(rest**2, axis=1) / 2, g_p, g_q]))
    samples = np.concatenate(parts)
    expected = np.concatenate([[flow.loss(p, q)], *(-slope for slope in flow.slope(p, q))])
    error = samples.std(axis=0) / np.sqrt(count)
    assert np.abs((samples.mean(axis=0) - expected) / error).max() < 4.5
    assert error[0] / expected[0] < 0.01  # sharp enough to mean something


def test_extra_blocks_have_no_drive_unless_the_tasks_are_lopsided():
    base = transformer_task()
    pool = base.tasks.pool(5, KEY)
    sizes = {}
    gradient_of = eqx.filter_jit(eqx.filter_grad(lambda m, loss: loss(m)))
    for name, tasks in (("fresh", base.tasks), ("pool", pool), ("both", pool.symmetrised())):
        task = base.replace(tasks=tasks)
        model = at_weights(task, np.full(4, 0.5), np.full(4, 0.7), Blocks.FULL)
        gradient = gradient_of(model, population_moments(task))
        blocks = (gradient.value_inputs, gradient.key_labels)
        sizes[name] = max(float(jnp.abs(block).max()) for block in blocks)
    assert sizes["fresh"] < 1e-14
    assert sizes["both"] < 1e-14
    assert sizes["pool"] > 1e-3


def test_the_other_pair_of_blocks_does_as_well():
    """p₁ Σ̂W q₂ has the mean loss of p₂ WΣ̂ q₁ with the same diagonals: which of them win is open."""
    task, rng = transformer_task(), np.random.default_rng(4)
    loss = population_moments(task)
    p, q = rng.uniform(0.2, 1.0, size=(2, 4))
    model = at_weights(task, p, q, Blocks.FULL)
    other = Merged(model.value_inputs, model.key_labels, model.values, model.merged)
    assert float(loss(other)) == pytest.approx(float(loss(model)), rel=1e-12)
    both = Merged(model.values, model.merged, model.values, model.merged)
    assert float(loss(both)) > float(loss(model)) + 0.1


def test_flow_of_the_population_is_the_coupled_flow():
    """Unbalanced, and from all of two random matrices to the least loss."""
    task = transformer_task()
    modes = TransformerModes.of(task)
    flow, times = CoupledFlow(modes), np.linspace(0, 60, 7)
    start = Merged.linear_transformer(task, scale=0.3, query_scale=0.1)(KEY)
    run = simulate(Population(task), start, Flow(), saveat=times, record=["loss", "weights"])
    course = flow.solve(times, np.full(4, 0.3), np.full(4, 0.1), tolerance=1e-11)
    weights = run.record["weights"]
    for name, expected in (("values", course.p), ("merged", course.q)):
        found = in_basis(task, weights[name][:, 0])
        np.testing.assert_allclose(diagonal(found), expected, atol=1e-8)
        off = found - np.einsum("ta,ab->tab", diagonal(found), np.eye(4))
        assert np.abs(off).max() < 1e-12
    np.testing.assert_allclose(np.asarray(run.loss) / 2, flow.loss(course.p, course.q), rtol=1e-8)


def test_alignment_need_not_be_assumed():
    task = transformer_task()
    modes, times = TransformerModes.of(task), np.linspace(0, 3000, 7)
    start = Merged.linear_transformer(task, scale=0.05, spread=0.05)(KEY)
    run = simulate(Population(task), start, Flow(), saveat=times, record=["loss", "weights"])
    weights = run.record["weights"]
    products = np.asarray(weights["values"][:, 0] @ weights["merged"][:, 0])
    inside = in_basis(task, products)
    off = np.abs(inside[-1] - np.diag(np.diagonal(inside[-1])))
    assert off.max() < 1e-6 < 1e-4 < np.abs(inside[0] - np.diag(np.diagonal(inside[0]))).max()
    best = optimum(modes)
    np.testing.assert_allclose(np.diagonal(inside[-1]), best.products, atol=1e-6)
    assert float(run.loss[-1]) / 2 == pytest.approx(best.loss, rel=1e-9)


def test_quenched_training_is_the_coupled_flow_only_if_the_set_is_symmetric():
    """τ_α/v_α with v the mean squares of the set; a lopsided set drives the extra blocks."""
    base, times = transformer_task(), np.linspace(0, 120, 13)
    pool = base.tasks.pool(32, KEY)
    errors = {}
    for name, tasks in (("pool", pool), ("both", pool.symmetrised())):
        task = base.replace(tasks=tasks)
        modes = TransformerModes.of(task)
        start = Merged.linear_transformer(task, scale=0.05, blocks=Blocks.FULL)(KEY)
        loss = population_moments(task)
        run = simulate(loss, start, Flow(1e-8), saveat=times, record=["weights"])
        weights = run.record["weights"]
        found = diagonal(in_basis(task, weights["values"][:, 0] @ weights["merged"][:, 0]))
        course = CoupledFlow(modes).solve(times, np.full(4, 0.05), np.full(4, 0.05))
        errors[name] = (np.abs(found - course.products) / course.products[-1]).max()
    assert errors["both"] < 1e-6
    assert errors["pool"] > 0.02


def test_a_batch_of_fresh_tasks_descends_the_population_in_the_mean():
    """So a step at rate ηP/2 is an epoch of P tasks, and t/τ = ηP times the epochs."""
    task = transformer_task()
    model = at_weights(task, np.full(4, 0.5), np.full(4, 0.6))
    fresh = Fresh(task, Population(task), 4096)

    @eqx.filter_jit
    def gradients(loss, keys):
        one = eqx.filter_grad(lambda m, key: loss.draw(key)(m))
        return jax.vmap(lambda key: one(model, key))(keys)

    found = gradients(fresh, jax.random.split(KEY, 16))
    mean = eqx.filter_jit(eqx.filter_grad(lambda m: Population(task)(m)))(model)
    for drawn, expected in ((found.values, mean.values), (found.merged, mean.merged)):
        error = np.std(drawn, axis=0, ddof=1) / 4
        assert np.abs((np.mean(drawn, axis=0) - expected) / error).max() < 5.5
    run = simulate(Population(task), model, Descent(0.02 / 2), saveat=[0, 50])
    assert float(run.time[-1]) == pytest.approx(0.02 * 50)


def test_the_theory_says_what_it_does_not_cover():
    covered = transformer_task()
    plain = Task(SPECTRUM, 3, rotation=ROTATION, tasks=Normal(outputs=4))
    assert isinstance(plain.tasks, Normal)
    turned = covered.replace(tasks=Commuting(basis=jnp.eye(4)))
    for task, reason in (
        (Task(SPECTRUM, 3), "1 outputs of 4 inputs"),
        (plain, "needs tasks W = U diag Uᵀ"),
        (turned, "needs tasks W = U diag Uᵀ"),
        (covered.replace(label_noise=0.1), "noise on the labels"),
        (covered.replace(tasks=Mixture(covered.tasks, fraction=0.5)), "a fixed task"),
        (covered.replace(context=9, lengths=(3, 9)), "varying context lengths"),
    ):
        with pytest.raises(ValueError, match=reason):
            TransformerModes.of(task)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "batch", "exact_error", "paper_error"),
    [(8, 2048, 0.05, 0.4), (64, 256, 0.06, 0.08)],
)
def test_sgd_follows_the_exact_flow(context, batch, exact_error, paper_error):
    """Batches of fresh tasks, all blocks trained."""
    from iclflow.theory.linear_transformer import DecoupledFlow

    task = transformer_task(context=context)
    modes = TransformerModes.of(task)
    start, clock, steps = 0.05, 0.1, 2400
    marks = np.arange(0, steps + 1, 20)
    loss = Fresh(task, population_moments(task), batch)
    model = Merged.linear_transformer(task, scale=start, blocks=Blocks.FULL)(KEY)
    run = simulate(loss, model, Descent(clock / 2), saveat=marks, record=["weights"], key=KEY)
    weights = run.record["weights"]
    found = diagonal(in_basis(task, weights["values"][:, 0] @ weights["merged"][:, 0]))
    p = np.full(4, start)
    paper = DecoupledFlow(modes)
    exact = CoupledFlow(modes).solve(clock * marks, p, p).products
    closed = paper.products(clock * marks, p, p)
    assert (np.abs(found - exact) / paper.fixed_point).max() < exact_error
    assert (np.abs(found - closed) / paper.fixed_point).max() > paper_error
