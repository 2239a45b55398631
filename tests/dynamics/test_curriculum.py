"""Losses that change during training: curricula, drifts and blends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.runs.fused.engine import VMAP, available

TASK = icl.Task([0.5, 0.3], 15)
NOISY = TASK.replace(label_noise=0.8)
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.3)
LOSS, OTHER = icl.Population(TASK), icl.Population(NOISY)
DESCENT = icl.Descent(0.3)
JUMP = 150
CURRICULUM = icl.Curriculum({0: LOSS, JUMP: OTHER})
MARKS = np.array([0, 40, JUMP - 1, JUMP, 260, 400])


def start():
    return INIT(jax.random.key(0))


def same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


DYNAMICS = {
    "descent": DESCENT,
    "adam": icl.Descent(0.01, icl.Adam()),
    "minibatches": DESCENT,
    "schedule": icl.Descent(lambda step: 0.3 / (1 + 0.01 * step)),
}


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_curriculum_of_two_equal_losses_is_one_loss_bit_for_bit(name):
    loss = LOSS
    if name == "minibatches":
        loss = icl.Minibatch(icl.Features.sample(TASK, 30, jax.random.key(1)), 5)
    runs = [
        icl.simulate(one, start(), DYNAMICS[name], saveat=MARKS, record=["loss", "weights"])
        for one in (loss, icl.Curriculum({0: loss, JUMP: loss}))
    ]
    same_bits(runs[0].record, runs[1].record)
    same_bits(runs[0].time, runs[1].time)


def test_a_curriculum_is_two_runs_one_after_the_other():
    whole = icl.simulate(CURRICULUM, start(), DESCENT, saveat=MARKS, record=["loss", "weights"])
    first = icl.simulate(LOSS, start(), DESCENT, saveat=MARKS[:4], record=["loss", "weights"])
    second = icl.simulate(
        OTHER, first.model, DESCENT, saveat=MARKS[3:] - JUMP, record=["loss", "weights"]
    )
    np.testing.assert_allclose(whole.loss[:3], first.loss[:3], rtol=1e-13)
    np.testing.assert_allclose(whole.loss[3:], second.loss, rtol=1e-13)
    np.testing.assert_allclose(
        whole.record["weights"]["keys"][-1], second.record["weights"]["keys"][-1], rtol=1e-12
    )
    np.testing.assert_allclose(whole.time, 0.6 * MARKS, rtol=1e-14)


def test_every_jump_is_among_the_save_points():
    assert icl.simulate(CURRICULUM, start(), DESCENT, saveat=[0, 300]).step.tolist() == [
        0, JUMP, 300,
    ]  # fmt: skip
    assert JUMP in icl.simulate(CURRICULUM, start(), DESCENT, until=300).step
    assert JUMP not in icl.simulate(CURRICULUM, start(), DESCENT, saveat=[0, 100]).step
    runs = icl.sweep(CURRICULUM, INIT, DESCENT, saveat=[0, 300])
    assert runs["step"].values.tolist() == [0, JUMP, 300]


def test_resuming_over_a_jump_is_the_uninterrupted_run():
    whole = icl.simulate(CURRICULUM, start(), DESCENT, saveat=MARKS, record=["loss", "weights"])
    for stop in (100, JUMP, 200):
        before = icl.simulate(CURRICULUM, start(), DESCENT, until=stop)
        after = icl.simulate(
            CURRICULUM, start(), DESCENT, saveat=[260, 400], state=before.state,
            record=["loss", "weights"],
        )  # fmt: skip
        kept = np.isin(after.step, [260, 400])
        same_bits(
            jax.tree.map(lambda a: a[-2:], whole.record),
            jax.tree.map(lambda a, kept=kept: a[kept], after.record),
        )
        assert (JUMP in after.step) == (stop <= JUMP)


@pytest.mark.long
def test_a_sweep_over_a_curriculum_is_its_runs_and_goes_on_from_a_store(tmp_path):
    runs = icl.sweep(
        CURRICULUM, INIT, DESCENT, saveat=MARKS, seeds=2, record=["loss", "weights"],
        final=["loss"], axes={"rate": [0.3, 0.2]}, store=tmp_path / "store",
    )  # fmt: skip
    alone = icl.simulate(CURRICULUM, start(), DESCENT, saveat=MARKS)
    np.testing.assert_allclose(runs["loss"].sel(rate=0.3, seed=0), alone.loss, rtol=1e-12)
    np.testing.assert_allclose(runs["final_loss"], runs["loss"][..., -1], rtol=1e-13)

    class Stop:
        """Ctrl-C after the first marks past the jump."""

        def stops(self, marks):
            return [260.0]

        def __call__(self, piece):
            if piece.mark == 260:
                raise KeyboardInterrupt

    again = {"saveat": MARKS, "seeds": 2, "store": tmp_path / "stopped"}
    part = icl.sweep(CURRICULUM, INIT, DESCENT, observers=[Stop()], **again)
    assert np.isnan(part["loss"].values[:, -1]).all()
    rest = icl.sweep(CURRICULUM, INIT, DESCENT, **again)
    np.testing.assert_allclose(rest["loss"], runs["loss"].sel(rate=0.3), rtol=1e-12)


@pytest.mark.long
@pytest.mark.skipif(available() == VMAP, reason="needs a C++ compiler")
def test_the_fused_loop_has_a_program_per_piece(monkeypatch):
    from iclflow.runs import cost

    slow = icl.sweep(CURRICULUM, INIT, DESCENT, saveat=MARKS, seeds=3)
    monkeypatch.setattr(cost, "worth_compiling", lambda *a: True)
    fast = icl.sweep(CURRICULUM, INIT, DESCENT, saveat=MARKS, seeds=3)
    assert fast.attrs["engine"].startswith("fused")
    np.testing.assert_allclose(fast["loss"], slow["loss"], rtol=1e-11)
    # A piece that cannot be fused takes the others with it, and says why.
    drawn = icl.Minibatch(icl.Features.sample(TASK, 10, jax.random.key(1)), 2)
    mixed = icl.sweep(icl.Curriculum({0: LOSS, 5: drawn}), INIT, DESCENT, saveat=[0, 9])
    assert "a loss with noise is not fused" in mixed.attrs["engine"]
    drift = icl.Drift(lambda step: icl.Blend([LOSS, OTHER], [1 - step / 400, step / 400]))
    by_loop = icl.sweep(drift, INIT, DESCENT, saveat=MARKS, seeds=3)
    assert by_loop.attrs["engine"].startswith("fused"), by_loop.attrs["engine"]
    alone = icl.simulate(drift, start(), DESCENT, saveat=MARKS)
    np.testing.assert_allclose(by_loop["loss"][0], alone.loss, rtol=1e-11)


def test_a_jump_renews_the_bound_of_divergence():
    """A new loss a million times larger has not diverged; without the renewal it would have."""
    large = icl.Blend([LOSS], [1e8])
    run = icl.simulate(
        icl.Curriculum({0: LOSS, 10: large}), start(), icl.Descent(1e-9), saveat=[0, 20]
    )
    assert run.result == icl.RESULTS.finished
    assert float(run.loss[-1]) > 1e7
    runs = icl.sweep(icl.Curriculum({0: LOSS, 10: large}), INIT, icl.Descent(1e-9), saveat=[0, 20])
    assert int(runs["result"][0]) == 0


def test_a_run_that_diverged_stays_so_over_a_jump():
    run = icl.simulate(CURRICULUM, start(), icl.Descent(50.0), saveat=MARKS)
    assert run.result == icl.RESULTS.diverged
    assert np.isnan(run.loss[-3:]).all()
    assert int(run.stopped) < JUMP


@pytest.mark.long
def test_what_is_measured_after_a_run_knows_the_loss_of_its_step():
    record = ["loss", "sharpness", "gradient_norm", "conserved_drift"]
    run = icl.simulate(CURRICULUM, start(), DESCENT, saveat=MARKS, record=[*record, "weights"])
    sharp = {}
    for place, loss in ((2, LOSS), (3, OTHER)):
        weights = {n: a[place] for n, a in run.record["weights"].items()}
        model = start().with_weights(weights)
        sharp[place] = float(icl.sharpness(loss, model))
        np.testing.assert_allclose(run["sharpness"][place], sharp[place], rtol=1e-6)
        np.testing.assert_allclose(run.loss[place], loss(model), rtol=1e-13)
    assert abs(sharp[3] / sharp[2] - 1) > 0.05
    runs = icl.sweep(CURRICULUM, INIT, DESCENT, saveat=MARKS, record=record)
    np.testing.assert_allclose(runs["sharpness"][0], run["sharpness"], rtol=1e-6)
    np.testing.assert_allclose(runs["conserved_drift"][0], run["conserved_drift"], rtol=1e-6)


@pytest.mark.long
def test_a_flow_jumps_and_drifts():
    """A curriculum is two flows; a drift that is constant is no drift."""
    flow, marks = icl.Flow(1e-10), [0.0, 30.0, 60.0, 120.0]
    whole = icl.simulate(icl.Curriculum({0: LOSS, 45.5: OTHER}), start(), flow, saveat=marks)
    assert whole.step.tolist() == [0.0, 30.0, 45.5, 60.0, 120.0]
    first = icl.simulate(LOSS, start(), flow, saveat=[30.0, 45.5])
    second = icl.simulate(OTHER, first.model, flow, saveat=[0.0, 14.5, 74.5])
    np.testing.assert_allclose(whole.loss[1], first.loss[0], rtol=1e-8)
    np.testing.assert_allclose(whole.loss[2:], second.loss, rtol=1e-8)
    still = icl.simulate(icl.Drift(lambda time: LOSS), start(), flow, saveat=marks)
    plain = icl.simulate(LOSS, start(), flow, saveat=marks)
    np.testing.assert_allclose(still.loss[:-1], plain.loss[:-1], rtol=1e-12)
    # The last step of a drift ends at the last mark, and other steps reach beyond it.
    np.testing.assert_allclose(still.loss[-1], plain.loss[-1], rtol=1e-10)
    with pytest.raises(ValueError, match="this loss drifts; use Flow"):
        icl.simulate(icl.Drift(lambda time: LOSS), start(),
                     icl.Flow(solver=icl.Rosenbrock()), until=1.0)  # fmt: skip


def noise_at(step):
    return TASK.replace(label_noise=0.8 * step / 400)


def test_a_drift_is_the_limit_of_small_pieces():
    """Pieces of n steps against the drift: the error is of first order in n - 1, and 0 for 1."""
    slow = icl.Descent(0.05)
    drift = icl.simulate(icl.Drift(noise_at), start(), slow, saveat=[240])
    errors, lengths = [], np.array([4, 3, 2])
    for length in lengths:
        pieces = {int(s): icl.Population(noise_at(int(s))) for s in range(0, 240, length)}
        run = icl.simulate(icl.Curriculum(pieces), start(), slow, saveat=[240])
        change = run.model.reduced_weights() - drift.model.reduced_weights()
        errors.append(float(jnp.abs(change).max()))
    slope = np.polyfit(np.log(lengths - 1), np.log(errors), 1)[0]
    assert 0.95 < slope < 1.05
    single = {s: icl.Population(noise_at(s)) for s in range(8)}
    run = icl.simulate(icl.Curriculum(single), start(), DESCENT, saveat=[8], record=["weights"])
    exact = icl.simulate(icl.Drift(noise_at), start(), DESCENT, saveat=[8], record=["weights"])
    np.testing.assert_allclose(
        run.record["weights"]["keys"][-1], exact.record["weights"]["keys"][-1], rtol=1e-13
    )


def test_a_drift_against_a_literal_loop():
    """Descent on a covariance that turns, step by step in plain JAX; records know their step."""

    def turning(step):
        share = jnp.asarray(step) / 60
        return TASK.replace(spectrum=jnp.stack([0.5 - 0.2 * share, 0.3 + 0.2 * share]))

    model, losses = start(), []
    gradient = jax.jit(jax.value_and_grad(lambda m, step: icl.Population(turning(step))(m)))
    for step in range(61):
        value, slope = gradient(model, step)
        losses.append(value)
        model = jax.tree.map(lambda w, g: w - 0.3 * g, model, slope)
    run = icl.simulate(icl.Drift(turning), start(), DESCENT, saveat=np.arange(61))
    np.testing.assert_allclose(run.loss, losses, rtol=1e-12)
    runs = icl.sweep(icl.Drift(turning), INIT, DESCENT, saveat=np.arange(61), final=["loss"])
    np.testing.assert_allclose(runs["loss"][0], losses, rtol=1e-12)
    np.testing.assert_allclose(runs["final_loss"][0], losses[-1], rtol=1e-12)


def test_shares_of_a_mixture_and_weights_of_lengths_drift():
    short, long = TASK.replace(context=4), TASK.replace(context=30)
    fixed = jnp.asarray([1.0, -1.0])

    def mixture(step):
        return TASK.replace(tasks=icl.Mixture(icl.Normal(), fixed, fraction=step / 100))

    for function, at_half in (
        (lambda s: icl.Blend([short, long], jnp.stack([1 - s / 100, s / 100])),
         0.5 * (icl.Population(short)(start()) + icl.Population(long)(start()))),
        (mixture, icl.Population(mixture(50.0))(start())),
    ):  # fmt: skip
        run = icl.simulate(icl.Drift(function), start(), icl.Descent(1e-12), saveat=[0, 50])
        np.testing.assert_allclose(run.loss[1], at_half, rtol=1e-9)


@pytest.mark.long
def test_a_curriculum_under_jit_vmap_and_grad():
    def last(scale):
        model = jax.tree.map(lambda w: scale * w, start())
        return icl.simulate(CURRICULUM, model, DESCENT, saveat=[0, 200]).loss[-1]

    together = jax.jit(jax.vmap(last))(jnp.asarray([1.0, 1.01]))
    np.testing.assert_allclose(together[0], last(1.0), rtol=1e-10)
    slope = jax.jit(jax.grad(last))(1.0)
    np.testing.assert_allclose(slope, (last(1 + 1e-5) - last(1 - 1e-5)) / 2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: icl.Curriculum({}), "a mapping of steps to losses"),
        (lambda: icl.Curriculum([LOSS]), "a mapping of steps to losses"),
        (lambda: icl.Curriculum({10: LOSS}), "begins at 0, got 10"),
        (lambda: icl.Curriculum({0: LOSS, -1: LOSS}), "at least 0, got -1"),
        (lambda: icl.Curriculum({0: LOSS, "x": LOSS}), "at least 0, got 'x'"),
        (lambda: icl.Curriculum({0: LOSS, 5: 3}), "losses or tasks, got int"),
        (lambda: icl.Curriculum({0: LOSS, 5: CURRICULUM}), "inside a curriculum"),
        (lambda: icl.Drift(3), "a function of the step"),
        (lambda: icl.Drift(lambda step: 3.0), "losses or tasks, got float"),
        (lambda: icl.Drift(lambda step: LOSS if step < 3 else OTHER), "decides with `if`"),
        (lambda: icl.Drift(lambda: LOSS), "takes 0 positional arguments"),
        (lambda: icl.Blend([LOSS], [0.5, 0.5]), "one share per loss"),
        (lambda: icl.Blend([LOSS], [-1.0]), "at least 0"),
        (lambda: icl.Blend([CURRICULUM], [1.0]), "losses that do not change"),
    ],
)
def test_what_is_no_changing_loss_is_refused_in_one_line(make, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_piece_that_does_not_fit_is_named():
    wide = icl.Population(icl.Task([0.5, 0.3, 0.2], 15))
    with pytest.raises(ValueError, match=r"D = 2 inputs.*the loss from 9 on, Population"):
        icl.simulate(icl.Curriculum({0: LOSS, 9: wide}), start(), DESCENT, until=20)
    with pytest.raises(ValueError, match="whole steps"):
        icl.simulate(icl.Curriculum({0: LOSS, 9.5: OTHER}), start(), DESCENT, until=20)


def test_the_theory_is_of_one_piece_and_says_so():
    for loss, reason in (
        (CURRICULUM, r"changes at 150.*loss.at\(0\)"),
        (icl.Drift(noise_at), r"drifts.*loss.at\(0\)"),
    ):
        with pytest.raises(ValueError, match=reason):
            icl.predict(loss, start())
    small = icl.Separate.initialiser(TASK, heads=3, scale=0.01)(jax.random.key(0))
    first = icl.predict(CURRICULUM.at(0), small)
    np.testing.assert_array_equal(first.times, icl.predict(LOSS, small).times)
    with pytest.raises(ValueError, match="drifts"):
        icl.stable_rate(icl.Drift(noise_at), small)
    rates = [float(icl.stable_rate(loss, small)) for loss in (CURRICULUM, LOSS, OTHER)]
    assert rates[0] == min(rates[1:])


@pytest.mark.long
def test_the_theory_of_a_blend_is_that_of_the_blended_numbers():
    """Two samples with shares 1/4 and 3/4 against one sample of both."""
    keys = jax.random.split(jax.random.key(3))
    sets = [
        icl.PromptSet.sample(TASK, n, k).prompts() for n, k in zip((50, 150), keys, strict=True)
    ]
    both = jax.tree.map(lambda *a: jnp.concatenate(a), *sets)
    blend = icl.Blend([icl.Moments.of(one) for one in sets], [0.25, 0.75])
    small = icl.Separate.initialiser(TASK, heads=3, scale=0.01)(jax.random.key(0))
    found, one = icl.predict(blend, small), icl.predict(icl.Moments.of(both), small)
    np.testing.assert_allclose(found.times, one.times, rtol=1e-8)
    np.testing.assert_allclose(blend(small), icl.Moments.of(both)(small), rtol=1e-12)
