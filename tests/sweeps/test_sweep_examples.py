"""The examples of sweeps: every design holds, and small forms of them answer their question."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import iclflow as icl
from examples.sweeps.run import NAMES, Example, ExampleAnswer, distance, fastest, main

pytest.importorskip("zarr", reason="the extra sweep is not installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_a_design_that_can_run(name):
    example = Example.read(name)
    design = example.design()
    assert design.cells >= 48
    assert f"`{name}`" in (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    assert example.question
    if example.x:
        assert example.x in [field for axis in design.axes for field in axis.fields]
        assert {example.y, example.theory} <= {*design.summaries}


@pytest.mark.long
def test_a_small_example_finds_that_theory_and_runs_agree(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = ["scale=[0.1,0.2,0.3]", "seeds=2", "steps=3000", "spectrum=[1.0,0.5]", "heads=2"]
    changes += ["rate=0.05", "save=linear:600"]
    given = [word for change in changes for word in ("--set", change)]
    found = main(["rich-to-lazy", *given])
    assert "wrote rich-to-lazy.png" in capsys.readouterr().out
    assert found["drops_compared"] >= 6
    assert found["median_error"] < 0.03
    assert abs(found["slope"] - found["slope_of_theory"]) < 0.05
    assert (tmp_path / "rich-to-lazy.png").stat().st_size > 10_000


def test_the_fastest_of_heads_has_the_law_of_order_statistics():
    single = np.random.default_rng(0).exponential(size=200_000)  # its minimum over H is known
    for count in (1, 4, 16):
        assert fastest(single, count) == pytest.approx(np.sqrt(count) * np.log(2) / count, rel=0.02)


def test_kolmogorov_distances_are_those_of_scipy():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=300), rng.normal(0.3, 1, size=200)
    assert distance(one, other, np.inf) == pytest.approx(ks_2samp(one, other).statistic)
    late = np.where(one > 1, np.nan, one)  # runs that ended before: compared up to there
    assert distance(late, other, 1.0) <= distance(one, other, np.inf) + 1e-12


def test_laws_of_drop_times_are_those_of_theory(tmp_path):
    example = Example.read("drop-laws")
    words = {"spectrum": [1.0, 0.5], "heads": 3, "seeds": 200, "scale": 0.02, "rate": 0.1}
    design = example.design({**words, "steps": 3000})
    found = icl.sweeps.run(design, tmp_path / "s.zarr")
    answer = example.answer(found, design)
    assert answer.numbers["distance"][0] < 0.06  # the same 200 starts: no sampling error
    assert answer.numbers["distance_of_73"][0] > 0.3
    example.figure(answer)


def test_the_atlas_reads_errors_where_they_are():
    example = Example.read("atlas")
    heavy = {"optimiser": "momentum", "momentum": 0.5, "rate": 0.01}
    cases = [{"label": "none"}, {"label": "rate", "rate": 0.7}, {"label": "momentum", **heavy}]
    design = example.design({"cases": cases, "seeds": 2})
    said = np.array([[[10.0, 20.0]] * 2] * 3)
    measured = said * np.array([1.0, 1.5, 1.1])[:, None, None]
    measured[2] *= 0.5 / (2 * 0.01)  # in steps
    store = xr.Dataset(
        {
            "predicted_times": (("case", "seed", "drop_number"), said),
            "drop_times": (("case", "seed", "drop_number"), measured),
            "lyapunov": (("case", "seed"), [[0.0, 0.0], [0.3, 0.4], [np.nan, np.nan]]),
            "regime": (("case", "seed"), [["monotone"] * 2, ["chaotic"] * 2, [""] * 2]),
        },
        {"label": ("case", [case["label"] for case in cases])},
    )
    answer: ExampleAnswer = example.answer(store, design)
    np.testing.assert_allclose(answer.data["error"], [0, 0.5, 0.1], atol=1e-12)
    assert "chaotic, exponent 0.350" in answer.lines[1]
    example.figure(answer)
