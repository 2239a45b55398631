"""The published code's conventions, against a literal NumPy version and recorded runs."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from iclflow.dynamics import Descent
from iclflow.losses import Moments, ReducedFeatures, Sequences
from iclflow.models import MLP, Merged, Softmax
from iclflow.published import (
    InitConvention,
    Options,
    PublishedInitialiser,
    RecordedRun,
    from_published,
    normalised,
    prompt_set,
    published_loss,
    published_task,
    replay,
    to_published,
    train,
)
from iclflow.runs.simulate import simulate
from iclflow.tasks.base import Normaliser
from tests.helpers import published_literal as literal
from tests.helpers.tiers import some

DATA = Path(__file__).parents[1] / "data"
KEY = jax.random.key(3)

# Every kind of run the format describes: model, softmax, varying length, mixture, test sets.
RUNS = {
    "merged": {"model": "attnM"},
    "separate": {"model": "attnS", "rank": 2, "lr": 0.05},
    "mlp": {"model": "mlp", "icl": 0.5, "testset_size": 11},
    "mixture with tests": {"model": "attnM", "icl": 0.4, "testset_size": 12},
    "all fixed": {"model": "attnS", "rank": 3, "icl": 0, "testset_size": 9},
    "softmax merged": {"model": "attnM", "softmax": True, "lr": 0.2},
    "softmax separate": {"model": "attnS", "rank": 2, "softmax": True, "testset_size": 8},
    "varying length": {"model": "attnM", "vary_len": True, "lr": 0.1, "testset_size": 10},
    "varying length, noise": {"model": "attnS", "vary_len": True, "icl": 0, "lr": 0.1},
    "softmax, varying length": {"model": "attnM", "vary_len": True, "softmax": True, "lr": 0.5},
}


@pytest.mark.parametrize("name", ["merged", "softmax separate", "varying length, noise", "mlp"])
def test_the_literal_gradient_is_that_of_the_literal_loss(name):
    arrays = literal.record(**RUNS[name], epoch=1)
    recorded = json.loads(str(arrays["args_json"]))
    weights = {k[5:]: v for k, v in arrays.items() if k.startswith("init_")}
    _, gradient = literal.training_loss(weights, arrays["X"], arrays["yq"], recorded)
    for part, array in weights.items():
        for index in [(0, 0), (-1, -1), (0, -1), (-1, 1)]:
            ends = []
            for step in (1e-6, -1e-6):
                moved = array.copy()
                moved[index] += step
                at = {**weights, part: moved}
                ends.append(literal.training_loss(at, arrays["X"], arrays["yq"], recorded)[0])
            slope = (ends[0] - ends[1]) / 2e-6
            assert slope == pytest.approx(gradient[part][index], abs=2e-8)


@pytest.mark.parametrize("name", some(RUNS, "separate", "mlp", "softmax, varying length"))
def test_replay_of_a_literal_run(name, tmp_path):
    arrays = literal.record(**RUNS[name])
    comparison = replay(RecordedRun.load(literal.save(tmp_path / "run.npz", arrays)))
    assert np.ptp(arrays["loss"]) > 1e-3  # the run moved, so agreement means something
    assert comparison.max_abs_loss < 1e-12
    assert comparison.max_abs_values is not None
    assert comparison.max_abs_values < 1e-12
    tests = (comparison.max_abs_in_weight, comparison.max_abs_in_context)
    if "testset_size" in RUNS[name]:
        assert all(t is not None and t < 1e-12 for t in tests)
    else:
        assert tests == (None, None)


def test_replay_sees_a_difference(tmp_path):
    arrays = literal.record()
    arrays["loss"] = arrays["loss"] + 1e-3 * (np.arange(40) == 17)
    arrays["v_traj"] = arrays["v_traj"] + 2e-3
    comparison = replay(RecordedRun.load(literal.save(tmp_path / "run.npz", arrays)))
    assert comparison.max_abs_loss == pytest.approx(1e-3, abs=1e-12)
    assert comparison.max_abs_values == pytest.approx(2e-3, abs=1e-12)
    assert not comparison.within


def test_extra_blocks_are_trained(tmp_path):
    """Frozen at zero, the repetition would leave the recording: they are part of the run."""
    arrays = literal.record()
    recording = RecordedRun.load(literal.save(tmp_path / "run.npz", arrays))
    assert np.abs(arrays["final"]["value"].reshape(2, 4, 4)[:, -1, :3]).max() > 1e-3
    assert np.abs(arrays["final"]["kq"].reshape(2, 4, 4)[:, :3, 3]).max() > 1e-3
    assert isinstance(recording.model, Merged)
    frozen = replay(dataclasses.replace(recording, model=recording.model.reduce()))
    assert frozen.max_abs_loss > 1e-4


@pytest.mark.parametrize("name", ["attnM_P1000_H8", "mlp_P1000_H8", "attnS_P500_H5_R2"])
def test_recorded_runs_are_reproduced(name):
    """Golden numbers: single-precision runs of the published code, see data/README.md."""
    comparison = replay(RecordedRun.load(DATA / f"{name}.npz"))
    tolerance = 5e-5 if name.startswith("attnS") else 5e-6
    assert comparison.max_abs_loss < tolerance
    assert comparison.max_abs_values is not None
    assert comparison.max_abs_values < tolerance
    assert comparison.within
    assert float(comparison.run["loss"][-1]) < 0.15  # the run went through its drops


def test_replay_stops_where_the_recording_diverged(tmp_path):
    arrays = literal.record()
    arrays["loss"][25:] = np.nan
    comparison = replay(RecordedRun.load(literal.save(tmp_path / "run.npz", arrays)))
    assert comparison.epochs == 25
    assert comparison.max_abs_loss < 1e-12


def test_replay_that_diverges_is_a_result(tmp_path):
    arrays = literal.record(lr=2.0, epoch=5)
    assert arrays["loss"][-1] > 1e9
    comparison = replay(RecordedRun.load(literal.save(tmp_path / "run.npz", arrays)))
    assert comparison.result == "diverged"
    assert comparison.max_abs_loss == np.inf
    assert not comparison.within


# Weights


@pytest.mark.parametrize("name", ["merged", "separate", "mlp", "softmax merged"])
def test_weights_survive_the_round_trip(name):
    changes = {k: v for k, v in RUNS[name].items() if k != "testset_size"}
    options = Options(head_num=3, in_dim=4, cubic_feat=name == "mlp", **changes)
    model = PublishedInitialiser(options)(KEY)
    model = jax.tree.map(lambda w: w + jax.random.normal(KEY, w.shape), model)  # no zero blocks
    back = from_published(to_published(model), options)
    assert type(back) is type(model)
    for old, new in zip(jax.tree.leaves(model), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(("convention", "value", "other"), [
    (InitConvention.FIGURES, 0.3, 0.3 / np.sqrt(3 * 5)),
    (InitConvention.NEWEST, 0.3 / (np.sqrt(4000) * 5), 0.3 / np.sqrt(4000 * 3 * 5)),
])  # fmt: skip
def test_initial_deviations_of_separate_weights(convention, value, other):
    options = Options(model="attnS", head_num=4000, rank=3, init=0.3)
    model = PublishedInitialiser(options, convention)(KEY)
    # The sample deviation of n numbers is known to 1/√(2n): 4 of those.
    assert np.std(model.values) == pytest.approx(value, rel=4 / np.sqrt(2 * 4000))
    assert np.std(model.keys) == pytest.approx(other, rel=4 / np.sqrt(2 * 48000))
    assert np.std(model.queries) == pytest.approx(other, rel=4 / np.sqrt(2 * 48000))
    assert not np.any(model.key_labels)
    assert not np.any(model.value_inputs)


@pytest.mark.parametrize("convention", InitConvention)
def test_initial_deviations_of_merged_and_mlp(convention):
    for extra in ({"model": "attnM"}, {"model": "mlp", "cubic_feat": True}):
        options = Options(head_num=4000, init=0.2, **extra)
        weights = to_published(PublishedInitialiser(options, convention)(KEY))
        value = weights["fc2"] if "fc2" in weights else weights["value"][4::5, 4]
        first = weights["fc1"] if "fc1" in weights else weights["kq"].reshape(-1, 5, 5)[:, :4, :4]
        assert np.std(value) == pytest.approx(0.2, rel=4 / np.sqrt(2 * 4000))
        assert np.std(first) == pytest.approx(0.2, rel=4 / np.sqrt(2 * 64000))


def test_recorded_initial_weights_have_the_newest_deviations():
    """The recordings came from the newest version: 0.05/√50 for keys, 0.05/(5√5) for values."""
    weights = np.load(DATA / "attnS_P500_H5_R2.npz")
    options = Options(model="attnS", head_num=5, rank=2, init=0.05)
    value, other = InitConvention.NEWEST.deviations(options)
    drawn = np.concatenate([weights["init_key"][:, :4].ravel(), weights["init_query"].ravel()])
    assert np.std(drawn) == pytest.approx(other, rel=4 / np.sqrt(2 * drawn.size))
    rows = weights["init_value"].reshape(5, 5, 5)[:, :4].ravel()
    assert np.std(rows) == pytest.approx(value, rel=4 / np.sqrt(2 * rows.size))


@pytest.mark.parametrize("extra", [
    {"model": "attnM"}, {"model": "attnS", "rank": 2}, {"model": "mlp", "cubic_feat": True},
])  # fmt: skip
def test_missing_division_is_a_rescaling(extra):
    """E8: dividing by N, with weights and rate rescaled, gives the same loss at every step."""
    options = Options(head_num=3, in_dim=3, seq_len=8, trainset_size=40, init=0.2, **extra)
    task = published_task(options, KEY)
    model = PublishedInitialiser(options)(KEY)
    if extra["model"] != "mlp":
        model = jax.tree.map(lambda w: w + 0.05, model)  # extra blocks scale with the rest
    prompts = prompt_set(task, 1.0, 40, KEY).prompts()
    pairs = jax.vmap(lambda p: dataclasses.replace(p, normaliser=Normaliser.PAIRS))(prompts)
    scaled, rate = normalised(model, 0.01, options.context)
    steps = np.arange(0, 201, 20)
    plain = simulate(Sequences.of(prompts), model, Descent(0.01), saveat=steps)
    divided = simulate(Sequences.of(pairs), scaled, Descent(rate), saveat=steps)
    assert np.ptp(plain.loss) > 0.05
    np.testing.assert_allclose(divided.loss, plain.loss, rtol=0, atol=1e-13)


def test_rescaling_of_softmax_is_refused():
    model = PublishedInitialiser(Options(softmax=True))(KEY)
    with pytest.raises(ValueError, match="only linear"):
        normalised(model, 0.1, 31)


def test_published_figure_three_in_our_units():
    """§12: rate 0.02 is η = 0.197, and init 0.01 with 5 heads is w = 0.07 in (36)."""
    model = PublishedInitialiser(Options(model="attnS", head_num=5, init=0.01))(KEY)
    scaled, rate = normalised(model, 0.02, 31)
    assert rate == pytest.approx(0.1974, abs=5e-5)
    ratio = float(scaled.values[0, 0, 0] / model.values[0, 0, 0])
    assert 0.01 * ratio * np.sqrt(5) == pytest.approx(0.0702, abs=5e-5)


# Losses and training


CHUNKED = {
    "merged, mixture": {"model": "attnM", "icl": 0.4},
    "separate, varying length": {"model": "attnS", "rank": 2, "vary_len": True, "icl": 0.0},
    "cubic": {"model": "mlp", "cubic_feat": True},
}


@pytest.mark.parametrize("name", some(CHUNKED, "merged, mixture"))
def test_loss_in_chunks_is_the_loss_of_the_sequences(name, monkeypatch):
    options = Options(head_num=2, in_dim=3, seq_len=6, trainset_size=500, **CHUNKED[name])
    task = published_task(options, KEY)
    model = jax.tree.map(lambda w: w + 0.1, PublishedInitialiser(options)(KEY))
    prompts = prompt_set(task, options.icl, 500, KEY)
    monkeypatch.setattr("iclflow.losses.moments.CHUNK_BYTES", 2**14)
    seen = []
    loss = published_loss(prompts, model, lambda *a: seen.append(a))
    assert isinstance(loss, Moments)
    assert isinstance(loss.map, ReducedFeatures) == isinstance(model, MLP)
    assert len(seen) > 1
    assert seen[-1] == (500, 500)
    whole = Sequences.of(prompts)
    assert float(loss(model)) == pytest.approx(float(whole(model)), abs=1e-12)


def test_few_sequences_of_large_inputs_use_features():
    options = Options(in_dim=9, seq_len=5, trainset_size=20, icl=0.5)
    task = published_task(options, KEY)
    model = jax.tree.map(lambda w: w + 0.1, PublishedInitialiser(options)(KEY))
    prompts = prompt_set(task, 0.5, 20, KEY)
    loss = published_loss(prompts, model)
    assert type(loss).__name__ == "Features"
    whole = Sequences.of(prompts)
    assert float(loss(model)) == pytest.approx(float(whole(model)), abs=1e-12)


def test_train_records_every_epoch_and_both_tests():
    options = Options(
        head_num=2, init=0.3, epoch=30, lr=0.01, trainset_size=60, testset_size=50, icl=0.5
    )
    run = train(options)
    assert run.sizes["time"] == 30
    np.testing.assert_array_equal(run["step"], np.arange(30))
    assert run["values"].shape == (30, 2)
    assert {"loss", "in_weight_loss", "in_context_loss"} <= set(run)
    assert float(run["loss"][-1]) < float(run["loss"][0])
    np.testing.assert_allclose(run["paper_time"], 2 * 0.01 * 31 * np.arange(30))
    again = train(options)
    np.testing.assert_array_equal(run["loss"], again["loss"])
    other = train(Options(**{**vars(options), "seed": 11}))
    assert other.attrs["content_key"] != run.attrs["content_key"]
    assert float(other["loss"][0]) != float(run["loss"][0])


def test_softmax_trains_on_sequences():
    run = train(Options(softmax=True, head_num=2, init=0.3, epoch=20, lr=0.2, trainset_size=40))
    assert float(run["loss"][-1]) < float(run["loss"][0])
    assert "paper_time" not in run.coords
    model = PublishedInitialiser(Options(softmax=True))(KEY)
    assert type(model) is Softmax


def test_in_weight_test_starts_at_the_power_of_the_fixed_task():
    """At zero weights the in-weight test loss is w*ᵀ Λ̂ w*, near |w*|²/D = 1."""
    options = Options(icl=0.0, white_cov=True, in_dim=3, seq_len=6)
    task = published_task(options, KEY)
    model = jax.tree.map(lambda w: 0 * w, PublishedInitialiser(options)(KEY))
    prompts = prompt_set(task, 0.0, 4000, KEY)
    loss = published_loss(prompts, model)
    assert float(loss(model)) == pytest.approx(1.0, abs=0.1)


# Bad input


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "attn"}, "attnM, attnS, mlp"),
    ({"icl": 1.5}, "between 0 and 1"),
    ({"seq_len": 1}, "at least 2"),
    ({"head_num": 0}, "at least 1"),
    ({"lr": float("nan")}, "finite"),
    ({"lr": 0.0}, "above 0"),
    ({"init": -1.0}, "at least 0"),
    ({"out_dim": 2}, "must be 1"),
    ({"model": "mlp"}, "belong together"),
    ({"cubic_feat": True}, "belong together"),
    ({"model": "mlp", "cubic_feat": True, "vary_len": True}, "needs attention"),
    ({"testset_size": -1}, "at least 0"),
])  # fmt: skip
def test_impossible_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Options(**changes)


def broken(arrays, **changes):
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


@pytest.mark.parametrize(("changes", "message"), [
    ({"loss": None}, "array loss is missing"),
    ({"init_kq": None}, "array init_kq is missing"),
    ({"args_json": None}, "options are missing"),
    ({"args_json": np.array("{")}, "not a JSON object"),
    ({"args_json": np.array('{"model": 3}')}, "recorded option 'model'"),
    ({"yq": np.zeros(7)}, "array yq must be numbers of shape 30"),
    ({"X": np.full((30, 6, 4), np.nan)}, "at least one sequence of numbers"),
    ({"X": np.zeros((0, 6, 4)), "yq": np.zeros(0)}, "at least one sequence"),
    ({"v_traj": np.array(["a"] * 80).reshape(40, 2)}, "array v_traj must be numbers"),
])  # fmt: skip
def test_incomplete_recordings_are_refused(changes, message, tmp_path):
    path = literal.save(tmp_path / "run.npz", broken(literal.record(epoch=40), **changes))
    with pytest.raises(ValueError, match=message) as caught:
        RecordedRun.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_unreadable_recordings_are_refused(tmp_path):
    whole = literal.save(tmp_path / "run.npz", literal.record(epoch=2)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("not a recording")
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 255
    (tmp_path / "damaged.npz").write_bytes(bytes(damaged))
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "pickled.npz", args_json=np.array([{"model": "attnM"}], dtype=object))
    for name in ("cut.npz", "text.npz", "damaged.npz", "array.npy", "pickled.npz"):
        with pytest.raises(ValueError, match="not a readable recording") as caught:
            RecordedRun.load(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="no file"):
        RecordedRun.load(tmp_path / "absent.npz")
