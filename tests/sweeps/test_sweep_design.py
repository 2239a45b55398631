"""Designs of sweeps: what a table may say, and what is refused before anything runs."""

import numpy as np
import pytest

from iclflow.cli.sweep import changed
from iclflow.runs.store import block_shape, content_keys, point_keys, regions
from iclflow.runs.sweep import WRITTEN, estimate
from iclflow.study.study import Settings
from iclflow.sweeps.design import Design, StudyCache


def test_the_smallest_design_is_one_table(tmp_path):
    file = tmp_path / "design.toml"
    file.write_text("[sweep]\nsteps = 2000\nseeds = 8\nscale = [0.05, 0.1]\n")
    design = Design.read(file, {"rate": 0.2})
    assert (design.dims, design.shape, design.cells) == (("scale", "seed"), (2, 8), 16)
    settings = design.settings((1,))
    assert (settings.scale, settings.steps, settings.rate) == (0.1, 2000, 0.2)


def test_values_are_lists_ranges_and_laws():
    design = Design.of(
        steps=10,
        heads={"range": [1, 7, 3]},
        scale={"log": [0.01, 1.0], "count": 3},
        noise={"linear": [0, 0.3], "count": 4},
        rate={"loguniform": [0.1, 0.2]},
        context={"choice": [8, 16]},
        draws=50,
    )
    by_name = {axis.name: axis for axis in design.axes}
    assert by_name["heads"].fields["heads"] == (1, 4, 7)
    assert by_name["scale"].fields["scale"] == (0.01, 0.1, 1.0)
    assert by_name["noise"].fields["noise"] == (0.0, 0.1, 0.2, 0.3)
    drawn = by_name["draw"].fields
    assert all(0.1 <= rate <= 0.2 for rate in drawn["rate"])
    assert set(drawn["context"]) == {8, 16}
    assert design.shape == (50, 3, 3, 4, 1)


def test_more_draws_keep_the_first_and_laws_are_those_named():
    words = {"steps": 1, "scale": {"normal": [0.5, 0.01]}, "rate": {"uniform": [0.1, 0.3]}}
    few, many = (Design.of(**words, draws=n).axes[0].fields for n in (10, 4000))
    for name in ("scale", "rate"):
        assert few[name] == many[name][:10]
    assert abs(np.mean(many["scale"]) - 0.5) < 4 * 0.01 / 4000**0.5
    assert abs(np.std(many["scale"]) / 0.01 - 1) < 0.05
    assert abs(np.mean(many["rate"]) - 0.2) < 4 * (0.2 / 12**0.5) / 4000**0.5
    other = Design.of(**words, draws=10, draw_seed=1).axes[0].fields
    assert set(other["rate"]).isdisjoint(few["rate"])


def test_lists_that_are_one_value_and_fields_that_vary_together():
    one = Design.of(steps=1, spectrum=[0.4, 0.3], task_covariance=[1, 2])
    assert one.axes == ()
    many = Design.of(steps=1, spectrum=[[0.4, 0.3], [0.5, 0.2, 0.1]])
    assert many.shape == (2, 1)
    named = Design.of(steps=1, spectrum=["white", "linear"], dim=4)
    assert named.shape == (2, 1)
    zipped = Design.of(steps=1, scale=[0.1, 0.2], rate=[1, 2], heads=[1, 2, 3],
                       zip=[["scale", "rate"]])  # fmt: skip
    assert zipped.dims == ("scale_rate", "heads", "seed")
    assert zipped.settings((1, 0)).rate == 2.0


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("spectrum=0.5,0.3", [0.5, 0.3]),
        ("spectrum=[[0.5, 0.3]]", [[0.5, 0.3]]),
        ("scale={log = [1e-3, 1], count = 3}", {"log": [1e-3, 1], "count": 3}),
        ("prompts=x.npy,y.npy", "x.npy,y.npy"),
        ("heads=3", 3),
        ("heads=", ""),
    ],
)
def test_the_shell_changes_a_word_by_toml_numbers_with_commas_or_text(said, found):
    assert changed([said]) == {said.partition("=")[0]: found}


def test_cases_are_points_stated_one_by_one():
    design = Design.of(
        steps=5, rate=0.1, cases=[{"label": "base"}, {"heads": 2, "label": "few"}, {"rate": 0.3}]
    )
    assert (design.dims, design.shape) == (("case", "seed"), (3, 1))
    found = [design.settings((i,)) for i in range(3)]
    assert [(s.heads, s.rate) for s in found] == [(5, 0.1), (2, 0.1), (5, 0.3)]
    for wrong, message in (([], "list of tables"), ([{"rate": 1}, {"rate": 1.0}], "same settings"),
                           ([{"rat": 1}], "did you mean 'rate'")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Design.of(steps=5, cases=wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"scale": [0.1]}, "needs an end"),
        ({"steps": 5, "scal": [0.1]}, "did you mean 'scale'"),
        ({"steps": 5, "scale": [0.1, "x"]}, "scale needs a number"),
        ({"steps": 5, "scale": [0.1, 0.1]}, "twice"),
        ({"steps": 5, "scale": []}, "1 to"),
        ({"steps": 5, "seeds": [1, 2]}, "seeds is a number"),
        ({"steps": 5, "rate": [0.1, -1]}, "rate must be above 0"),
        ({"steps": 5, "model": ["merged", "separate"], "rank": 2}, "at model = 'merged'"),
        ({"steps": 5, "scale": {"log": [0, 1], "count": 3}}, "both above 0"),
        ({"steps": 5, "scale": {"log": [0.1, 1]}}, "count of at least 2"),
        ({"steps": 5, "scale": {"lgo": [0.1, 1]}}, "did you mean 'log'"),
        ({"steps": 5, "scale": {"uniform": [0.1, 1]}}, "needs draws"),
        ({"steps": 5, "scale": {"uniform": [1, 0.1]}, "draws": 3}, "LOW below HIGH"),
        ({"steps": 5, "draws": 3}, "draws needs a law"),
        ({"steps": 5, "scale": [0.1, 0.2], "zip": [["scale", "rate"]]}, "rate needs a list"),
        ({"steps": 5, "scale": [1, 2], "rate": [1], "zip": [["scale", "rate"]]}, "scale has 2"),
        ({"steps": 5, "zip": "scale"}, "zip needs lists"),
        ({"steps": 5, "record": ["los"]}, "did you mean 'loss'"),
        ({"steps": 5, "summaries": ["final"]}, "unknown name in summaries"),
        ({"steps": 5, "save": "auto:20"}, "mixed:COUNT"),
        ({"steps": 5, "seed": 2**32 - 2, "seeds": 3}, r"at most 2\^32"),
        ({"steps": 5, "seeds": 2**31, "scale": [0.1, 0.2]}, "give fewer"),
    ],
)
def test_a_design_is_refused_whole_in_one_line(words, message):
    with pytest.raises(ValueError, match=message) as caught:
        Design.of(**words)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_design_is_refused(tmp_path):
    file = tmp_path / "design.toml"
    for text, message in (("steps = 5\n", r"one table, \[sweep\]"), ("[sweep\n", "not a readable")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            Design.read(file)


def test_blocks_cover_every_cell_once_and_hold_one_shape():
    design = Design.of(steps=5, heads=[1, 2, 3], scale=[0.1, 0.2, 0.3, 0.4], seeds=5)
    block = block_shape(design, 12)
    assert block == (1, 2, 5)  # heads change the shape of the weights
    covered = np.zeros(design.shape, int)
    for region in regions(design.shape, block):
        covered[region] += 1
    assert (covered == 1).all()


def keys_of(design):
    return content_keys(point_keys(design), design.numbers)


def test_cells_have_keys_of_what_they_compute():
    design = Design.of(steps=5, rate=0.1, scale=[0.1, 0.2], seeds=3)
    keys = keys_of(design)
    assert len(np.unique(keys)) == 6
    more = keys_of(Design.of(steps=5, rate=0.1, scale=[0.2, 0.3, 0.1], seeds=4))
    np.testing.assert_array_equal(more[[2, 0], :3], keys)
    assert not np.isin(keys_of(Design.of(steps=6, rate=0.1, scale=0.1, seeds=3)), keys).any()


def test_the_estimate_grows_with_the_cells_and_blocks_with_the_workers():
    words = {"steps": 1000, "rate": 0.1, "scale": [0.1, 0.2]}
    some, small, large = (
        estimate(Design.of(**words, seeds=n)) for n in (100_000, 1_000_000, 10_000_000)
    )
    grown = (large.seconds - small.seconds) / (small.seconds - some.seconds)
    assert grown == pytest.approx(10)
    assert large.memory == small.memory  # bounded: a block
    assert estimate(Design.of(**words, seeds=100), workers=2).blocks >= 8


def test_a_billion_cells_on_eight_workers_are_announced_without_building_them():
    """Time, store and blocks; work is shared by the workers, what each does for itself is not."""
    words = {"steps": 200, "rate": 0.1, "record": [], "scale": [0.1, 0.2]}
    design = Design.of(**words, seeds=500_000_000)
    alone, all_ = estimate(design), estimate(design, workers=8)
    assert (all_.cells, all_.workers) == (10**9, 8)
    assert alone.seconds == alone.alone == all_.alone
    own = (8 * all_.seconds - all_.alone) / 7
    assert 0 < own < 60
    assert all_.disk >= 8 * 10**9
    assert all_.blocks >= 10**9 / 2**20
    # One process writes for all workers, however many there are.
    assert estimate(design, workers=10**6).seconds > WRITTEN * 10**9


def test_every_depth_has_its_own_initialiser():
    """What points have in common is built once, and models of other sizes do not have it."""
    cache = StudyCache()
    inits = [cache.study(Settings(layers=n, rate=0.1)).init for n in (2, 3)]
    assert [init.layers for init in inits] == [2, 3]
    tied = cache.study(Settings(layers=2, tied=True, rate=0.1)).init
    assert tied.tied
    sized = {"model": "transformer", "sequences": 4, "rate": 0.1}
    wide = [cache.study(Settings(**sized, width=w)).init for w in (10, 20)]
    assert [init.width for init in wide] == [10, 20]
