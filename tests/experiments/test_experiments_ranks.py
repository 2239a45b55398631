"""Quick forms of Figs 4, 5, 8, 9, 10 and the softmax versions: data, verdicts, drawings."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import iclflow as icl
from iclflow.experiments import in_weight, softmax_drops
from iclflow.experiments.low_rank import claims as low_rank_claims
from iclflow.experiments.low_rank import data as low_rank
from iclflow.experiments.low_rank import figure as low_rank_plots
from iclflow.models.softmax import SoftmaxInitialiser

TASK = icl.Task([0.5, 0.3, 0.2], 11, rotation=jax.random.key(0))


@pytest.fixture(scope="module")
def ranks() -> xr.Dataset:
    return low_rank.compute_fig9(quick=True)


@pytest.fixture(scope="module")
def portions() -> xr.Dataset:
    return in_weight.compute_fig5(quick=True)


def _of_rank_two(start: low_rank.PaddedInitialiser) -> icl.Separate:
    return dataclasses.replace(start, rank=jnp.asarray(2))(jax.random.key(1))


def _published_start(task: icl.Task) -> icl.Merged:
    inner = icl.Merged.initialiser(
        task, heads=in_weight.HEADS, scale=in_weight.SCALE, blocks=icl.Blocks.FULL
    )
    return in_weight.PublishedStart(inner)(jax.random.key(in_weight.SEED))


def test_padded_pairs_stay_empty_and_change_nothing() -> None:
    """Rank 2 stored as rank 3 with an empty pair: the same losses, and the pair stays zero."""
    start = low_rank.padded(TASK, 3, 3, 0.3)
    stored = _of_rank_two(start)
    assert not np.any(stored.keys[:, 2])
    assert np.all(stored.keys[:, :2] != 0)
    assert stored.key_labels is not None
    alone = icl.Separate(
        values=stored.values,
        keys=stored.keys[:, :2],
        queries=stored.queries[:, :2],
        value_inputs=stored.value_inputs,
        key_labels=stored.key_labels[:, :2],
    )
    loss = icl.Moments.sample(TASK, 300, jax.random.key(0))
    descent, marks = icl.Descent(0.1), np.array([0, 50, 100])
    first = icl.simulate(loss, stored, descent, saveat=marks)
    second = icl.simulate(loss, alone, descent, saveat=marks)
    np.testing.assert_allclose(first.loss, second.loss, rtol=1e-12)
    assert not np.any(first.model.keys[:, 2])
    assert not np.any(first.model.queries[:, 2])


def test_padded_entries_have_the_scale_of_their_rank() -> None:
    start = low_rank.padded(TASK, 400, 3, 0.3)
    keys = np.asarray(_of_rank_two(start).keys[:, :2])
    np.testing.assert_allclose(keys.std(), 0.3 / (400 * 2 * 3) ** 0.5, rtol=0.05)


@pytest.mark.slow
def test_rank_rule(ranks: xr.Dataset) -> None:
    verdicts = {claim.id: claim.holds for claim in low_rank_claims.claims_fig9(ranks)}
    assert verdicts == {
        "fig9-rank-rule": True, "fig9-heads": True, "fig9-levels": True, "fig9-final": True,
    }  # fmt: skip


@pytest.mark.slow
def test_rank_rule_can_fail(ranks: xr.Dataset) -> None:
    """Drops at even distances have no conspicuous plateaus, wherever the levels are."""
    times = 500.0 * np.arange(1, 9)
    even = ranks.assign(drop_times=ranks["drop_times"] * 0 + times)
    rule = next(c for c in low_rank_claims.claims_fig9(even) if c.id == "fig9-rank-rule")
    assert not rule.holds
    assert rule.measured == pytest.approx(1.0)
    nothing = ranks.assign(drop_times=ranks["drop_times"] * np.nan)
    assert not any(
        c.holds for c in low_rank_claims.claims_fig4(nothing) if c.id.endswith(("rule", "final"))
    )


def test_final_values_of_rank_two() -> None:
    """v = (m₁ + m₂)^(1/3), (m₃ + m₄)^(1/3) with m = λ/a = 1/(λ + (λ + tr Λ)/N) (E9)."""
    spectrum = np.array([0.4, 0.3, 0.2, 0.1])
    m = 1 / (spectrum + (spectrum + 1) / 31)
    expected = np.sort([(m[0] + m[1]) ** (1 / 3), (m[2] + m[3]) ** (1 / 3)])[::-1]
    found = low_rank._final_values(low_rank.four_input_task(), 2)
    np.testing.assert_allclose(found, [*expected, 0, 0, 0], rtol=1e-12)


@pytest.mark.slow
def test_value_weights() -> None:
    data = low_rank.compute_fig8(quick=True)
    assert all(claim.holds for claim in low_rank_claims.claims_fig8(data))
    assert isinstance(low_rank_plots.draw_fig8(data), Figure)


@pytest.mark.slow
def test_in_weight_then_in_context(portions: xr.Dataset) -> None:
    verdicts = {c.id: c.holds for c in in_weight.claims_fig5(portions)}
    verdicts |= {c.id: c.holds for c in in_weight.claims_fig10(portions)}
    assert len(verdicts) == 7
    assert all(verdicts.values())


@pytest.mark.slow
def test_order_of_learning_can_fail(portions: xr.Dataset) -> None:
    swapped = portions.rename(in_weight="in_context", in_context="in_weight")
    order = next(c for c in in_weight.claims_fig5(swapped) if c.id == "fig5-order")
    assert not order.holds


def test_first_drop_is_the_closed_form_without_fixed_tasks() -> None:
    """At portion 0: γ = c²√D, and the level of least squares (15)(16)."""
    loss = icl.population_moments(in_weight.portion_task(0.0))
    drop = icl.theory.first_drop(loss, _published_start(in_weight.portion_task(0.0)))
    assert drop.growth == pytest.approx(0.25**2 * 4**0.5, rel=1e-12)
    assert drop.level == pytest.approx(1 - 1 / (1 + 5 / 31), rel=1e-12)
    times = np.array([0.0, drop.time(0.5), 1e4])
    expected = [1.0, 1 - 0.75 * (1 - drop.level), drop.level]
    np.testing.assert_allclose(drop.loss(times), expected, atol=1e-8)


def test_first_drop_grows_as_the_linearised_flow() -> None:
    """With fixed tasks too, small weights grow at the rate σ₁ of E[y S ⊗ x_q]."""
    task = in_weight.portion_task(0.6)
    loss, start = icl.population_moments(task), _published_start(task)
    drop = icl.theory.first_drop(loss, start)
    marks = np.array([0, 1400, 1600])
    run = icl.simulate(loss, start, icl.Descent(0.005), saveat=marks, record=["weights"])
    size = [float(jnp.linalg.norm(run["weights"]["values"][i])) for i in (1, 2)]
    assert np.log(size[1] / size[0]) / (2 * 0.005 * 200) == pytest.approx(drop.growth, rel=0.01)


def test_fours_have_no_odd_averages_and_keep_the_zero_blocks() -> None:
    loss = softmax_drops.in_fours(TASK, 80, jax.random.key(2))
    prompts = loss.prompts
    target = prompts.targets[:, -1]
    assert loss.count == 80
    np.testing.assert_allclose(jnp.mean(target[:, :, None] * prompts.inputs, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(jnp.mean(target * prompts.labels[:, 0], axis=0), 0, atol=1e-12)
    inner = icl.Separate.initialiser(TASK, heads=3, scale=1.0, blocks=icl.Blocks.FULL)
    start = SoftmaxInitialiser(inner)(jax.random.key(0))
    run = icl.simulate(loss, start, icl.Descent(0.1), saveat=np.array([0, 30]))
    assert float(run.loss[-1]) < float(run.loss[0])
    np.testing.assert_allclose(run.model.attention.value_inputs, 0, atol=1e-12)
    np.testing.assert_allclose(run.model.attention.key_labels, 0, atol=1e-12)


@pytest.mark.slow
def test_softmax_drops() -> None:
    data = softmax_drops.compute(quick=True)
    assert all(claim.holds for claim in softmax_drops.claims(data))
    assert isinstance(softmax_drops.draw(data), Figure)


@pytest.mark.slow
def test_drawings(ranks: xr.Dataset, portions: xr.Dataset) -> None:
    figures = [
        low_rank_plots.draw_fig9(ranks),
        in_weight.draw_fig5(portions),
        in_weight.draw_fig10(portions),
    ]
    for figure in figures:
        figure.draw_without_rendering()
        assert all(axes.get_title() for axes in figure.axes)
