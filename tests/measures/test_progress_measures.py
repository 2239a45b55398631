"""Fourier concentration and change times on constructed curves, and the claims built on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from iclflow.experiments.grokking import data as grokking
from iclflow.experiments.grokking.claims import claims, controls, half_change
from iclflow.experiments.grokking.figure import draw
from iclflow.experiments.runs import finished, named
from iclflow.measures import (
    change_time,
    first_crossing,
    fourier_concentration,
    frequency_shares,
)
from tests.helpers.verdicts import unmoved

concentration = jax.jit(fourier_concentration, static_argnums=1)


def waves(p, amplitudes):
    """A table over 0 … p - 1 with a plane of its own for each frequency, rotated."""
    number = 2 * np.pi * np.arange(p)[:, None] / p
    columns = [
        size * wave(number * k) for k, size in amplitudes.items() for wave in (np.cos, np.sin)
    ]
    table = np.concatenate(columns, axis=1)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(table.shape[1],) * 2))[0]
    return jnp.asarray(table @ rotation)


def test_shares_are_those_put_in():
    shares = np.asarray(frequency_shares(waves(13, {2: 3.0, 5: 4.0})))
    wanted = np.zeros(6)
    wanted[[1, 4]] = 9 / 25, 16 / 25
    np.testing.assert_allclose(shares, wanted, atol=1e-15)


def test_shares_are_projections_on_waves():
    table = np.random.default_rng(2).normal(size=(12, 4))  # 12 has a frequency p/2
    found = np.asarray(frequency_shares(jnp.asarray(table)))
    centred = table - table.mean(0)
    for k in range(1, 7):
        pair = np.stack([f(2 * np.pi * k * np.arange(12) / 12) for f in (np.cos, np.sin)], axis=1)
        basis, singular, _ = np.linalg.svd(pair, full_matrices=False)
        share = np.sum((basis[:, singular > 1e-9].T @ centred) ** 2) / np.sum(centred**2)
        assert found[k - 1] == pytest.approx(share, rel=1e-12)
    assert found.sum() == pytest.approx(1, rel=1e-14)


def test_concentration_of_few_waves_and_its_invariances():
    table = waves(31, {1: 1.0, 4: 0.5, 9: 2.0, 15: 0.1})
    whole = 1 + 0.25 + 4 + 0.01
    for count, share in ((1, 4), (2, 5), (3, 5.25), (4, whole), (5, whole)):
        assert float(concentration(table, count)) == pytest.approx(share / whole, rel=1e-13)
    rng = np.random.default_rng(1)
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    value = float(concentration(table, 2))
    table = np.asarray(table)
    for changed in (
        7.5 * table,
        table @ rotation,
        np.roll(table, 3, axis=0),
        table + rng.normal(size=(1, 8)),
        table[(5 * np.arange(31)) % 31],
    ):
        assert float(concentration(jnp.asarray(changed), 2)) == pytest.approx(value, rel=1e-12)
    # not a permutation of the numbers, which does matter
    assert float(concentration(jnp.asarray(table[rng.permutation(31)]), 2)) < 0.6 * value


def test_concentration_of_constants_and_of_noise():
    assert float(concentration(jnp.ones((9, 3)), 2)) == 0
    table = np.random.default_rng(0).normal(size=(113, 4000))
    assert float(concentration(jnp.asarray(table), 5)) == pytest.approx(5 / 56, rel=0.06)
    with pytest.raises(ValueError, match="there are 4 frequencies modulo 9, got count 5"):
        fourier_concentration(jnp.ones((9, 3)), 5)


def test_crossing_of_a_level():
    time, loss = [0.0, 1.0, 2.0, 3.0], [1.0, 0.8, 0.2, 0.9]
    assert first_crossing(time, loss, 0.5) == pytest.approx(1.5)
    assert np.isnan(first_crossing(time, loss, 0.1))
    assert np.isnan(first_crossing(time, loss, 1.1))  # it begins below


def test_change_times():
    time = np.linspace(0, 10, 201)
    fall = 1 / (1 + np.exp(3 * (time - 4)))
    assert change_time(time, fall) == pytest.approx(4, abs=1e-3)
    assert change_time(time, 5 - 2 * fall) == pytest.approx(4, abs=1e-3)  # rising, other units
    assert change_time(time, fall, left=0.1) == pytest.approx(4 + np.log(9) / 3, abs=1e-3)
    assert change_time(time, fall, left=0.9) == pytest.approx(4 - np.log(9) / 3, abs=1e-3)
    # away from the end first, and a second start counted from `since` only
    hump = np.where(time < 2, time / 2, np.where(time < 6, 1.5 - time / 4, 0))
    assert change_time(time, hump) == pytest.approx(4)
    early = np.where(time < 1, 10.0, fall)
    assert change_time(time, early) == pytest.approx(0.99, abs=0.05)
    assert change_time(time, early, since=1.0) == pytest.approx(4, abs=1e-3)
    assert np.isnan(change_time(time, np.ones(201)))
    assert np.isnan(change_time(time, np.full(201, np.nan)))
    with pytest.raises(ValueError, match="one time for each value"):
        change_time(time, fall[1:])


def constructed(shift):
    """Three seeds that memorise at 100 and generalise near 2000; a measure moves at its `shift`."""
    steps = grokking.marks(6000)
    move = lambda at: 1 / (1 + (np.maximum(steps, 1) / at) ** 12)  # noqa: E731
    stack = lambda curve: np.stack([curve] * 3)  # noqa: E731
    fall = stack(move(2000.0))
    memory = stack(move(60.0))
    curves = {name: stack(0.5 + move(at)) for name, at in shift.items()}
    curves |= {"test_loss": 1e-3 + 9 * fall, "train_loss": 1e-7 + 1e-3 * fall + 4 * memory}
    curves |= {"train_accuracy": (memory < 0.002).astype(float), "test_accuracy": 1 - fall}
    variables = named({n: (("seed", "time"), values, n) for n, values in curves.items()})
    curved = xr.Dataset(variables, {"step": ("time", steps), "seed": np.arange(3)})
    # to whatever end, the subspace has made half of its way at its shift
    distance = move(shift["projector_distance"])
    times = grokking._times(curved, lambda seed, last: np.maximum(distance - distance[last], 0))
    named_axes = {"measure": list(grokking.MEASURES), "end": list(grokking.ENDS)}
    one = curved.assign_coords(named_axes).assign(named(times))
    one = one.assign(named(grokking._norm_curvature(curved)))
    tasks = xr.DataArray(["addition", "subtraction"], dims="task", name="task")
    both = xr.concat([one, one], tasks, data_vars="all")
    return finished(both, {"frequencies": 5})


def test_claims_say_what_moves_with_generalisation_and_the_figure_is_drawn():
    names = [name for name in grokking.MEASURES if name != "test_loss"]
    data = constructed({name: 500.0 * (i + 1) for i, name in enumerate(names)})
    half = half_change(data, "test_loss", "run").values
    assert half == pytest.approx(2000, rel=1e-2)
    answered = float(data["grokked"][0, 0])  # 95% are right when the loss has fallen by as much
    assert answered == pytest.approx(2000 * 19 ** (1 / 12), rel=0.03)
    for i, name in enumerate(names):
        whole = half_change(data, name, "run").values
        assert whole == pytest.approx(500 * (i + 1), rel=0.03), name
    found = {claim.id: claim for claim in claims(data)}
    assert found["lt-grok-delay"].holds
    assert found["lt-grok-stages"].measured == 2
    # "with" has two sides, on two clocks: the rank at 500 is too early on both
    for id in ("lt-grok-rank", "lt-grok-rank-loss"):
        assert not found[id].holds, id
        assert found[id].decided, id
    assert found["lt-grok-rank-loss"].measured == pytest.approx(1 / 4, rel=0.03)
    # the subspaces, at 2000, move with the loss and before the accuracy
    assert found["lt-grok-subspace-loss"].holds
    assert not found["lt-grok-subspace-run"].holds
    assert found["lt-grok-norm"].holds  # at 2500
    assert data["half_change"].sel(measure="weight_norm", end="1").max() < 2500  # an earlier end
    figure = draw(data)
    assert len(figure.axes) == 8


def test_a_seed_that_never_generalises_settles_no_claim():
    names = [name for name in grokking.MEASURES if name != "test_loss"]
    data = constructed(dict.fromkeys(names, 1000.0))
    data["test_accuracy"][0, 1] = 0.3
    data["grokked"][0, 1] = np.nan
    found = {claim.id: claim.holds for claim in claims(data)}
    assert not found["lt-grok-generalises"]
    assert not found["lt-grok-delay"]


@pytest.mark.long
def test_other_curves_of_the_same_runs_turn_every_verdict_of_grokking_round():
    names = [name for name in grokking.MEASURES if name != "test_loss"]
    for shift in (500.0, 2500.0):  # no measure with generalisation, and all of them
        data = constructed(dict.fromkeys(names, shift))
        assert unmoved(data, claims, controls) == []
