"""The experiment of attention-only transformers: claims on constructed runs; training when slow."""

import dataclasses
import itertools

import numpy as np
import pytest
import xarray as xr

from iclflow.experiments.in_context_emergence import data as experiment
from iclflow.experiments.in_context_emergence.claims import (
    claims,
    controls,
    fastest_turn,
    lead,
    rank_rise,
    share_done,
    turns_inside,
)
from iclflow.experiments.in_context_emergence.data import emergence_window
from iclflow.experiments.in_context_emergence.figure import draw_fig5, draw_fig6
from tests.helpers.verdicts import unmoved

slow = pytest.mark.slow  # trains transformers

SMALL = experiment.Sizes(
    vocabulary=8, context=16, width=16, heads=2, batch=4, emergence=6, usual=2,
    courses=(*experiment._both(2, 4), *experiment._both(2, shuffled=True)), markov_steps=6,
    rate=1e-3, layers=(1, 2), seeds=(2, 3), few=2, marks=8, sequences=4, long=20,
)  # fmt: skip


def _same_code(patch):
    """A file edited while the tests run is not what they are about."""
    for module in ("store", "sweep"):
        patch.setattr(f"iclflow.runs.{module}.code_key", lambda *modules: "this code")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "QUICK", SMALL)
        _same_code(patch)
        data = experiment.compute(
            quick=True, folder=folder, progress=lambda done, total: told.append(done / total)
        )
    return data, folder, told


@slow
def test_the_data_are_whole_and_labelled(small):
    data, _, told = small
    assert data["late_loss"].dims == ("layers", "course", "seed", "mark")
    assert data["effective_rank"].dims == ("layers", "course", "seed", "mark", "circuit")
    assert np.all(np.isfinite(data["effective_rank"]))
    scores = data["prefix_matching"].sel(course="cosine, 2 times")
    assert np.all(np.isfinite(scores.sel(layers=2)))
    assert np.all(np.isnan(scores.sel(layers=1).isel(layer=1)))  # there is no second layer
    shuffled = data.sel(course="cosine, 2 times, nothing to copy")
    assert np.all(np.isnan(shuffled["accuracy"]))
    assert float(data["subspace_distance"].isel(mark=-1).max()) < 1e-3  # full rank of the heads
    assert np.all(np.isnan(data["subspace_speed"].isel(mark=0)))
    assert data["step"].sel(course="constant, 4 times").values[-1] == 24
    assert data.attrs["usual"] == "cosine, 2 times"
    assert np.all(np.diff(told) >= 0)
    assert told[-1] == 1
    first, second = (data["late_loss"].isel(seed=i) for i in range(2))
    assert np.all(first != second)
    # Schedules begin with the same weights, and part when the rate begins to fall.
    cosine, constant = (data["late_loss"].sel(course=f"{kind}, 2 times") for kind in
                        ("cosine", "constant"))  # fmt: skip
    np.testing.assert_array_equal(cosine.isel(mark=0), constant.isel(mark=0))
    assert np.all(cosine.isel(mark=-1) != constant.isel(mark=-1))


@slow
def test_it_goes_on_from_its_folder(small, monkeypatch):
    data, folder, _ = small
    monkeypatch.setattr(experiment, "QUICK", SMALL)
    _same_code(monkeypatch)
    # Runs as short as these leave no state: they are trained again, to the same bits.
    again = experiment.compute(quick=True, folder=folder)
    xr.testing.assert_identical(again, data)
    (run,) = folder.iterdir()
    assert sorted(p.name for p in run.iterdir()) == [
        "markov-1", "markov-2", "repeated-1-12-2", "repeated-1-24-2", "repeated-2-12-2",
        "repeated-2-24-2", "shuffled-1-12-2", "shuffled-2-12-2",
    ]  # fmt: skip
    other = dataclasses.replace(SMALL, rate=2e-3)
    assert experiment.own_folder(folder, experiment.__name__, other) != run


@slow
def test_both_figures_can_be_drawn_and_the_claims_do_not_hold_untrained(small):
    data = small[0]
    for figure in (draw_fig5(data), draw_fig6(data)):
        assert all(axes.get_lines() for axes in figure.get_axes())
    # With periods of two tokens even uniform attention matches prefixes.
    holding = [claim.id for claim in claims(data) if claim.holds]
    assert holding in ([], ["lt-induction"])


def steps_and_clock():
    steps = np.unique(np.round(np.geomspace(1, 10_000, 90)).astype(int))
    return steps, np.log(steps)


def test_the_window_is_the_largest_drop():
    steps, clock = steps_and_clock()
    score = -0.5 / (1 + np.exp(-(clock - np.log(10)) / 0.1))
    score = score - 3 / (1 + np.exp(-(clock - np.log(800)) / 0.1))
    start, end = emergence_window(steps, score)
    # a logistic curve is 10% and 90% done at ∓ ln 9 of its width
    np.testing.assert_allclose([start, end], 800 * 9.0 ** np.array([-0.1, 0.1]), rtol=0.1)
    assert np.all(np.isnan(emergence_window(steps, np.zeros(len(steps)))))


def test_the_rate_rises_and_falls_as_a_cosine_or_stays():
    sizes = experiment.FULL
    cosine, constant = (
        experiment._Rate.of(sizes, experiment.TrainingCourse(4, falls)) for falls in (True, False)
    )
    rise, last = int(experiment.WARMUP * sizes.emergence), 4 * sizes.emergence
    middle = (rise + last) // 2
    found = [[float(rate(step)) for step in (0, rise - 1, middle, last)] for rate in
             (cosine, constant)]  # fmt: skip
    expected = [[1 / rise, 1, 0.5, 0], [1 / rise, 1, 1, 1]]
    np.testing.assert_allclose(found, sizes.rate * np.array(expected), rtol=1e-5, atol=1e-10)


def constructed():
    """Eight seeds of one to four layers that do what the claims say, with a drop at 200 to 400."""
    rng = np.random.default_rng(0)
    courses, seeds = experiment.FULL.courses, 8
    clock = np.geomspace(1, 1280, 60)
    shape = (4, len(courses), seeds, 60)
    data = {name: np.zeros((*shape, 2)) for name in ("distance", "rank", "speed")}
    late, window = np.full(shape, 3.0), np.full((4, len(courses), seeds, 2), np.nan)
    step = np.stack([clock * (course.multiple / 4) for course in courses])
    rise = lambda s, at, width: 1 / (1 + np.exp(-np.log(s / at) / width))  # noqa: E731
    for n, (c, course), seed in itertools.product(range(4), enumerate(courses), range(seeds)):
        s, learns = step[c], n > 0 and not course.shuffled
        wobble = 1 + 0.02 * rng.normal(size=4)
        if learns:
            late[n, c, seed] = 3 - 2.9 * rise(s, 280, 0.05)
            window[n, c, seed] = 200, 400
        for k in range(2):
            drift = course.multiple > 4 or (course.shuffled and not course.cosine)
            at = (3000 if course.multiple > 4 else 900) if drift else 280 - 30 * k - 10 * n
            at += 60 * (course.shuffled and course.cosine)
            width = 0.05 if course.multiple == 2 else 0.45
            data["distance"][n, c, seed, :, k] = 1 - 0.6 * rise(s, at * wobble[0], width)
            data["speed"][n, c, seed, :, k] = 1 + 0.1 * rng.random(60) + 0.1 * rise(s, 900, 0.1)
            if learns:
                bump = np.exp(-0.5 * (np.log(s / 280) / 0.2) ** 2)
                data["speed"][n, c, seed, :, k] += 2 * wobble[1] * bump
            fall = -0.02 * rise(s, 280, 0.05) * wobble[2] if learns else -0.06 * rise(s, 700, 0.3)
            back = (0.01 if k == 0 else -0.02) * rise(s, 800, 0.1) * wobble[3] * learns
            data["rank"][n, c, seed, :, k] = 30 * (1 + fall + back)
    heads = np.where(np.arange(4) > 0, 0.9, 0.1)[:, None, None, None, None, None]
    run = ("layers", "course", "seed", "mark")
    names = {"distance": "subspace_distance", "rank": "effective_rank", "speed": "subspace_speed"}
    variables = {names[n]: ((*run, "circuit"), values) for n, values in data.items()}
    variables |= {
        "late_loss": (run, late), "accuracy": (run, np.ones(shape)),
        "window": ((*run[:3], "edge"), window),
        "prefix_matching": ((*run, "layer", "head"), heads * np.ones((*shape, 4, 4))),
        "markov_late_loss": (("markov_layers", "markov_seed"), [[2.0, 2.0], [1.75, 1.75]]),
        "markov_optimal": (("position",), np.full(8, 1.7)),
        "markov_unigram": (("position",), np.full(8, 2.0)),
    }  # fmt: skip
    coordinates = {
        "layers": [1, 2, 3, 4], "course": [course.name for course in courses],
        "circuit": ["QK", "OV"], "step": (("course", "mark"), step), "markov_layers": [1, 2],
    }  # fmt: skip
    about = {"vocabulary": 64, "learned": experiment.LEARNED, **experiment._names(experiment.FULL)}
    return xr.Dataset(variables, coordinates, attrs=about)


def test_every_claim_is_settled_by_the_data_and_turned_round_by_another_experiment():
    data = constructed()
    found = {claim.id: claim for claim in claims(data)}
    assert all(claim.decided for claim in found.values())
    assert [id for id, claim in found.items() if not claim.holds] == ["lt-subspace-early"]
    assert unmoved(data, claims, controls) == []
    # Of the interval: one seed that differs leaves the mean where it is, and decides nothing.
    few = data.isel(seed=slice(0, 2))
    assert any(not claim.decided for claim in claims(few))


def test_what_is_read_off_a_run():
    steps, start, end = np.array([1.0, 10, 100, 200, 300, 1000]), 100.0, 250.0
    one = xr.Dataset(
        {
            "subspace_distance": ("mark", [1.0, 1.0, 0.8, 0.6, 0.5, 0.0]),
            "effective_rank": ("mark", [10.0, 10.0, 9.9, 9.0, 9.2, 9.5]),
            "subspace_speed": ("mark", [np.nan, 1.0, 2.0, 5.0, 6.0, 0.1]),
            "window": ("edge", [start, end]),
        },
        {"step": ("mark", steps)},
    )
    assert float(share_done(one)) == pytest.approx(0.45)  # the distance is 0.55 at step 250
    assert float(lead(one)) == pytest.approx(np.log10(250 / 300))
    assert float(fastest_turn(one)) == 5.0
    assert float(turns_inside(one)) == 0.0  # step 300 is beyond 1.1 times 250
    assert float(rank_rise(one)) == pytest.approx(5.0)
    assert np.isnan(share_done(one.assign(window=("edge", [np.nan, np.nan]))))


@slow
def test_two_layers_learn_in_context_what_one_does_not(tmp_path):
    """The quick preset, by its usual course."""
    data = experiment.compute(quick=True, folder=tmp_path)
    usual = data.sel(course=data.attrs["usual"]).isel(mark=-1)
    last = {n: usual.sel(layers=n) for n in (1, 2)}
    scores = {n: one["in_context_score"] for n, one in last.items()}
    assert float(scores[2].max()) < float(scores[1].min()) - 0.5
    assert float(last[2]["late_loss"].max()) < float(last[1]["late_loss"].min()) - 0.5
    assert float(last[2]["accuracy"].min()) > float(last[1]["accuracy"].max())
