"""Conventions of several codes: a converted run is the same run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow import cli
from iclflow.published import Convention, Options, PublishedInitialiser, Shape, Stated

SPECTRUM, CONTEXT = [0.5, 0.3, 0.2], 7
KINDS = {"separate": icl.Separate, "merged": icl.Merged}
SHAPES = {
    "separate": Shape("separate", 4, 2, 3, CONTEXT),
    "merged": Shape("merged", 4, 1, 3, CONTEXT),
}


class Scaled(icl.AbstractLoss):
    """The loss with a factor, as in code that halves it."""

    inner: icl.AbstractLoss
    factor: float

    def __call__(self, model):
        return self.factor * self.inner(model)

    def admits(self, model):
        return self.inner.admits(model)


def losses(stated, start):
    """Trained on the same prompts whatever the convention; weights are rescaled from `start`'s."""
    task = icl.Task(SPECTRUM, CONTEXT, normaliser=stated.normaliser)
    loss = Scaled(icl.Moments.sample(task, 40, jax.random.key(1)), stated.loss_factor)
    ratios = [a / b for a, b in zip(stated.deviations, start.deviations, strict=True)]
    np.testing.assert_allclose(ratios[0], ratios[1], rtol=1e-14)
    options = {"rank": start.shape.rank} if start.shape.model == "separate" else {}
    init = KINDS[start.shape.model].initialiser(
        task, heads=start.shape.heads, scale=start.init[0], blocks=icl.Blocks.FULL, **options
    )
    model = jax.tree.map(lambda w: ratios[0] * w, init(jax.random.key(0)))
    run = icl.simulate(loss, model, icl.Descent(stated.rate), until=400)
    assert float(run.loss[-1]) < 0.9 * float(run.loss[0])
    return np.asarray(run.loss) / stated.loss_factor


@pytest.mark.parametrize("model", KINDS)
def test_a_converted_run_has_the_same_loss_at_every_step(model):
    given = Stated(SHAPES[model], rate=0.05, init=(0.6, 0.6))
    expected = losses(given, given)
    for normaliser, factor in [("none", 0.5), ("tokens", 1.0), ("context", 2.0)]:
        found = given.to(
            Convention.TORCH, normaliser=icl.Normaliser(normaliser), loss_factor=factor
        )
        np.testing.assert_allclose(losses(found, given), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.clock, given.clock, rtol=1e-14)
    other = dataclasses.replace(given, rate=0.051)
    assert np.max(np.abs(losses(other, given) - expected)) > 1e-4


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("convention", Convention)
def test_there_and_back(model, convention):
    given = Stated(SHAPES[model], Convention.ENTRIES, 0.3, (0.2, 0.1), icl.Normaliser.TOKENS, 0.5)
    back = given.to(convention).to(
        Convention.ENTRIES, normaliser=icl.Normaliser.TOKENS, loss_factor=0.5
    )
    np.testing.assert_allclose((back.rate, *back.init), (given.rate, *given.init), rtol=1e-14)


@pytest.mark.parametrize("model", KINDS)
def test_units_are_those_of_the_initialisers(model):
    shape, key = SHAPES[model], jax.random.key(3)
    task = icl.Task(SPECTRUM, CONTEXT)
    options = {"rank": shape.rank} if model == "separate" else {}
    drawn = {Convention.ICLFLOW: KINDS[model].initialiser(task, heads=4, scale=1.0, **options)(key)}
    published = Options("attnS" if model == "separate" else "attnM", 4, shape.rank, 1.0, in_dim=3)
    for convention in (Convention.PUBLISHED, Convention.NEWEST):
        word = "newest" if convention is Convention.NEWEST else "figures"
        drawn[convention] = PublishedInitialiser(published, icl.published.InitConvention(word))(key)
    for convention, weights in drawn.items():
        layers = len(weights.weights()) if convention is Convention.ICLFLOW else 3
        keys = jax.random.split(key, layers)
        other = weights.keys if model == "separate" else weights.merged
        unit = convention.unit(shape)
        for array, one, size in zip((weights.values, other), keys, unit, strict=False):
            normal = jax.random.normal(one, array.shape)
            np.testing.assert_allclose(array, size * normal, rtol=1e-14)


def test_the_default_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    weight = torch.nn.Linear(4, 100_000).weight.detach().numpy()
    expected = Convention.TORCH.unit(Shape(dim=3))[0]
    np.testing.assert_allclose(weight.std(), expected, rtol=5e-3)  # 4e5 draws: 1e-3 at one sigma
    assert abs(weight).max() <= np.sqrt(3) * expected  # uniform


def test_figure_3_of_the_paper():
    given = Stated(Shape(heads=5), Convention.PUBLISHED, 0.02, (0.01, 0.01))
    here = given.to(Convention.ICLFLOW)
    np.testing.assert_allclose(here.rate, 0.02 * 31 ** (2 / 3), rtol=1e-14)
    np.testing.assert_allclose(here.init[0], 0.01 * 5**0.5 * 31 ** (1 / 3), rtol=1e-14)
    np.testing.assert_allclose(here.init[1] / here.init[0], (4 / 5) ** 0.5, rtol=1e-14)
    run = icl.published.train(Options("attnS", 5, lr=0.02, epoch=3, trainset_size=20))
    np.testing.assert_allclose(run["paper_time"], given.clock * np.arange(3), rtol=1e-14)


def test_on_the_shell(capsys):
    given = ["convert", "--convention", "published", "--rate", "0.02", "--init", "0.01"]
    assert cli.main([*given, "--steps", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conventions"]["published"]["init_values"] == pytest.approx(0.01)
    assert found["conventions"]["iclflow"]["rate"] == pytest.approx(0.197365, abs=1e-6)
    assert cli.main([*given, "--time", str(found["time"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == pytest.approx(1000)
    assert cli.main([*given, "--loss-factor", "0.5", "--steps", "1000"]) == 0
    shown = capsys.readouterr().out
    assert "published-newest" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "merged", "--rank", "2"], "rank does nothing"),
        (["--rate", "0"], "above 0"),
        (["--steps", "3", "--time", "2"], "not allowed with"),
        (["model.bin"], "unrecognized"),
    ],
)
def test_what_cannot_be_converted_is_one_line(words, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["convert", *words])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
