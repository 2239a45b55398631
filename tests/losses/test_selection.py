import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.models import Blocks
from iclflow.study.study import compare
from iclflow.tasks.checks import readable, require_memory
from tests.helpers.cases import KEY, MODELS, TASKS, softmax
from tests.helpers.tiers import some


def test_the_cheapest_exact_level():
    task = TASKS["plain"]()
    full = MODELS["merged"](task, Blocks.FULL, 1.0)(KEY)
    frozen = MODELS["merged"](task, Blocks.FROZEN, 1.0)(KEY)
    assert icl.select(task, frozen, None).level == "population"
    assert icl.select(task, full, 5000).level == "moments"
    assert icl.select(task, full, 5).level == "features"  # 30 features, 5 sequences
    assert icl.select(task, softmax(task)(KEY), 100).level == "sequences"
    with pytest.raises(ValueError, match="give a number of sequences"):
        icl.select(task, softmax(task)(KEY), None)


def test_the_cheaper_of_moments_and_features():
    """The moments cost more where they leave the cache; every length of a prompt is a row."""
    small, large = icl.Task(np.ones(4), 31), icl.Task(np.ones(16), 31)
    level = {
        (task.size, count): icl.select(task, MODELS["merged"](task, Blocks.FULL, 1.0)(KEY), count)
        for task, count in ((small, 100), (small, 50), (large, 7000), (large, 3000))
    }
    assert [choice.level for choice in level.values()] == ["moments", "features"] * 2
    lengths = icl.Task(np.ones(4), 31, lengths=(10, 20, 31))
    model = MODELS["merged"](lengths, Blocks.FULL, 1.0)(KEY)
    assert icl.select(lengths, model, 50).level == "moments"


@pytest.mark.parametrize("sequences", [None, 5, 5000])
@pytest.mark.parametrize("blocks", Blocks)
def test_what_it_picks_admits_the_model(sequences, blocks):
    task = TASKS["mixture"]()
    model = MODELS["separate"](task, blocks, 1.0)(KEY)
    choice = icl.select(task, model, sequences)
    loss = choice.build(task, sequences, KEY)
    assert loss.admits(model) is None
    assert choice.reason


def test_memory_decides(monkeypatch):
    task = TASKS["plain"]()
    model = MODELS["merged"](task, Blocks.FULL, 1.0)(KEY)
    monkeypatch.setattr("iclflow.losses.select.available_bytes", lambda: 10_000)
    assert icl.select(task, model, 20).level == "features"
    assert icl.select(task, model, 10**6).level == "sequences"


def test_memory_in_words():
    assert readable(3) == "3.0 bytes"
    assert readable(5 * 2**30) == "5.0 GiB"
    assert readable(5000 * 2**30) == "5000 GiB"
    with pytest.raises(ValueError, match=r"need .* free; use less"):
        require_memory(10**15, "the moments", "use less")


@pytest.mark.parametrize("name", some(MODELS, "separate"))
def test_theory_over_a_simulation(name):
    """The predicted drop times agree with the flow from the same small weights."""
    task = icl.Task([0.5, 0.3], 9)
    init = MODELS[name](task, Blocks.FROZEN, 1e-3)
    end = {"merged": 80.0, "separate": 2e4}[name]
    runs = icl.sweep(
        icl.Population(task), init, icl.Flow(), seeds=2, saveat=np.linspace(0, end, 3000)
    )
    models = [init(jax.random.key(s)) for s in (0, 1)]
    theory = compare([task, task], models, runs)
    seen = np.isfinite(theory.measured)
    assert seen.any()
    assert theory.error < 0.01
    assert theory.curves["loss"].shape == (2, 3000)


def test_no_theory_for_softmax():
    task = TASKS["plain"]()
    loss = icl.Sequences.sample(task, 20, KEY)
    init = softmax(task)
    runs = icl.sweep(loss, init, icl.Descent(0.1), until=5)
    assert compare([task], [init(KEY)], runs) is None


def test_public_names_are_what_they_say():
    """Every public name loads, and functions are not hidden by modules of the same name."""
    for name in icl.__all__:
        assert getattr(icl, name) is not None
    assert callable(icl.simulate)
    assert callable(icl.sweep)
    assert callable(icl.select)
    assert callable(icl.plots.loss)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        icl.nothing  # noqa: B018
    assert "Task" in dir(icl)
