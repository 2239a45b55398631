"""Arguments that cannot be meant: a `ValueError` of one line with what is needed, or the truth."""

import io
import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import iclflow as icl
from iclflow.cli import main
from iclflow.cli.reproduce import alone_in
from iclflow.tasks.checks import UNKNOWN, available_bytes

PLAIN = Path(__file__).parents[1] / "helpers" / "plain_calls.py"

SETUP = [
    "task := icl.Task([0.7, 0.2], 11)",
    "key := jax.random.key(0)",
    "wide := icl.Separate.initialiser(icl.Task([0.5, 0.3, 0.2], 11), heads=1, scale=0.1)(key)",
    "model := icl.Separate.initialiser(task, heads=2, scale=0.1)(key)",
    "loss := icl.Population(task)",
    "sequences := icl.Sequences.sample(task, 5, key)",
    "run := icl.simulate(loss, model, icl.Descent(0.1), until=20)",
    "init := icl.Separate.initialiser(task, heads=2, scale=0.1)",
    "other := icl.simulate(loss, icl.Separate.initialiser(task, heads=3, scale=0.1)(key), "
    "icl.Descent(0.1), until=20)",
    "runs := icl.sweep(task, icl.Separate.initialiser(task, heads=2, scale=0.1), "
    "icl.Descent(0.1), until=20)",
    "kept := icl.sweep(task, init, icl.Descent(0.1), until=20, seeds=2, "
    "record=['loss', 'weights'])",
    "changing := icl.Curriculum({0: task, 10: task.replace(label_noise=1.0)})",
]

# An expression, and a word of the message that refuses it.
REFUSED = {
    "sizes": [
        ("icl.Task([0.7, 0.2], 2.5)", "whole number of at least 1, got 2.5"),
        ("icl.Task([0.7, 0.2], 2.0)", "whole number of at least 1, got 2.0"),
        ("icl.Task([0.7, 0.2], '5')", "got '5'"),
        ("icl.Task([0.7, 0.2], True)", "got True"),
        ("icl.Task([0.7, 0.2], np.True_)", "got"),
        ("icl.Task([0.7, 0.2], jnp.asarray(True))", "whole number"),
        ("icl.Task([0.7, 0.2], None)", "got None"),
        ("icl.Task([0.7, 0.2], 0)", "at least 1, got 0"),
        ("icl.Task([0.7, 0.2], 10**20)", "at least 1 and below 2^63, got 1000"),
        ("icl.Tests(task, context=[5, 10**20])", "below 2^63"),
        ("icl.Task([0.7, 0.2], 5, lengths=[2.5])", "got 2.5"),
        ("icl.Task([0.7, 0.2], 5, lengths=['2'])", "got '2'"),
        ("icl.Task([0.7, 0.2], 5, lengths='25')", "list of whole numbers"),
        ("icl.Task([0.7, 0.2], 5, lengths=b'12')", "list of whole numbers"),
        ("icl.Task([0.7, 0.2], 5, lengths=3)", "list of whole numbers"),
        ("icl.Task([0.7, 0.2], 5, lengths=[])", "between 1 and"),
        ("task.replace(context=2.5)", "got 2.5"),
        ("task.replace(context='7')", "got '7'"),
        ("task.replace(lengths=[1.5])", "got 1.5"),
        ("icl.Separate.initialiser(task, heads=2.0, scale=0.1)", "heads must be"),
        ("icl.Separate.initialiser(task, heads='2', scale=0.1)", "heads must be"),
        ("icl.Separate.initialiser(task, heads=True, scale=0.1)", "heads must be"),
        ("icl.Separate.initialiser(task, heads=2, rank=1.5, scale=0.1)", "rank must be"),
        ("icl.Merged.initialiser(task, heads=0, scale=0.1)", "heads must be"),
        ("icl.MLP.initialiser(task, heads=2.0, scale=0.1)", "heads must be"),
        ("icl.ConvNet.initialiser(task, heads=2, rank='1', scale=0.1)", "rank must be"),
        ("icl.Softmax.initialiser(task, heads=2, rank=2.5, scale=0.1)", "rank must be"),
        ("icl.Normal(outputs=1.5)", "outputs must be"),
        ("icl.Normal(outputs=0)", "outputs must be"),
        ("icl.named_spectrum('linear', 2.5)", "got 2.5"),
        ("icl.named_spectrum('linear', True)", "got True"),
        ("icl.named_spectrum('linear', 3, trace=float('nan'))", "trace"),
        ("icl.PromptSet.sample(task, 2.5, key)", "number of sequences"),
        ("icl.PromptSet.sample(task, '5', key)", "number of sequences"),
        ("icl.Commuting().bind(jnp.eye(2)).pool(1.5, key)", "pool"),
    ],
    "numbers": [
        ("icl.Task([0.7, 0.2j], 5)", "spectrum must be real numbers"),
        ("icl.Task(jnp.asarray([0.7, 0.2j]), 5)", "spectrum must be real numbers"),
        ("icl.Task(['a', 'b'], 5)", "spectrum must be real numbers"),
        ("icl.Task([[0.7], [0.2, 0.1]], 5)", "spectrum must be real numbers"),
        ("icl.Task([None, 0.2], 5)", "spectrum must be real numbers"),
        ("icl.Task([True, False], 5)", "spectrum must be real numbers"),
        ("icl.Task('linear', 5)", "spectrum must be real numbers, got 'linear'"),
        ("icl.Task([0.7, float('nan')], 5)", "finite and at least 0"),
        ("icl.Task([0.7, -0.2], 5)", "finite and at least 0"),
        ("icl.Task([0.7, 0.2], 5, label_noise=[0.1, 0.2, 0.3])", "one number, got shape (3,)"),
        ("icl.Task([0.7, 0.2], 5, target_noise=jnp.ones(3))", "one number, got shape (3,)"),
        ("icl.Task([0.7, 0.2], 5, label_noise=1j)", "label noise must be real"),
        ("icl.Task([0.7, 0.2], 5, label_noise=-1.0)", "at least 0"),
        ("task.replace(label_noise=[0.1, 0.2, 0.3])", "one number"),
        ("task.replace(spectrum=0.5)", "a list"),
        ("icl.Task([0.7, 0.2], 5, rotation=[[1.0, 0.0], [1.0, 1.0]])", "orthonormal"),
        ("icl.Task([0.7, 0.2], 5, rotation='haar')", "rotation must be real numbers"),
        ("icl.Task([0.7, 0.2], 5, rotation=jnp.eye(3))", "2 x 2"),
        ("icl.Task([0.7, 0.2], 5, rotation=jax.random.split(key))", "one key"),
        ("icl.Task.from_covariance([[1.0, 1j], [-1j, 1.0]], 5)", "covariance must be real"),
        ("icl.Normal(mean=1j)", "task mean must be real"),
        ("icl.Pool([[1.0, float('nan')]])", "task pool must be finite"),
        ("icl.Mixture(fraction=[0.5, 0.5])", "one number"),
        ("icl.Mixture(fraction=1.5)", "between 0 and 1"),
        ("icl.Mixture(fraction=0.5, fixed='x')", "fixed task must be real"),
        ("icl.Separate.initialiser(task, heads=2, scale=-1)", "scale must be finite and at least"),
        ("icl.Separate.initialiser(task, heads=2, scale=float('nan'))", "got nan"),
        ("icl.Merged.initialiser(task, heads=2, scale=float('inf'))", "got inf"),
        ("icl.Merged.initialiser(task, heads=2, scale=1j)", "scale must be real"),
        ("icl.Merged.initialiser(task, heads=2, scale='0.1')", "scale must be real"),
        ("icl.Merged.initialiser(task, heads=2, scale=[0.1, 0.2])", "one number"),
        ("icl.MLP.initialiser(task, heads=2, scale=-0.1)", "at least 0"),
    ],
    "fits": [
        ("icl.Population(task)(wide)", "D = 3 inputs and O = 1 outputs, the prompts have D = 2"),
        ("icl.Moments.sample(task, 5, key)(wide)", "D = 3 inputs and O = 1 outputs, the prompts"),
        ("icl.Features.sample(task, 5, key)(wide)", "the prompts have D = 2"),
        ("icl.Sequences.sample(task, 5, key)(wide)", "the prompts have D = 2"),
        ("icl.Sequences.sample(task, 5, key)(icl.Softmax(wide))", "the prompts have D = 2"),
        ("icl.Population(task)(icl.ConvNet.from_attention(wide))", "the prompts have D = 2"),
        ("icl.population_moments(task)(wide)", "the prompts have D = 2"),
        ("icl.Fresh(task, icl.Population(task), 5).require(wide)", "the prompts have D = 2"),
        ("icl.simulate(icl.Population(task), wide, icl.Descent(0.1), until=5)", "D = 2"),
        ("icl.Statistics.sample(task, 5, key)(wide)", "the prompts have D = 2"),
        ("icl.Sequences.sample(task, 5, key)(icl.Layers.of([wide, wide]))", "have D = 2"),
        ("loss(icl.Layers.of([wide, wide]))", "the model has D = 3"),
        ("icl.Draws.sample(task, 5, key)(icl.Layers.of([wide, wide]))", "the model has D = 3"),
        ("icl.Layers.initialiser(task, tied='no', scale=1.0)", "tied must be True or False"),
        ("icl.Layers.of([1, 2])", "layer must be attention, such as icl.Merged, got 1"),
        ("icl.Layers.of([wide]).layer(1)", "numbered 0 to 0, got 1"),
        (
            "__import__('iclflow.theory.depth').theory.depth.layer_gains(task, "
            "jnp.zeros((3, 2, 2)))", "(2, 2, 2), got (3, 2, 2)",
        ),
        ("icl.select(task, wide, 10)", "the prompts have D = 2"),
        ("icl.select(task, model, -1)", "number of sequences must be a whole number"),
        ("icl.select(task, model, 2.5)", "number of sequences must be a whole number"),
        ("icl.select(task, icl.Separate, 5)", "model must be"),
        ("icl.Moments.sample(task, 10**12, key)", "would repeat themselves"),
        ("icl.Moments.sample(task, 0, key)", "number of sequences"),
        ("icl.Moments.sample([0.7, 0.2], 10, key)", "task must be a task"),
        ("icl.Sequences.sample(task, 5, key, averaged='yes')", "averaged must be True or False"),
        ("icl.Minibatch(icl.Sequences.sample(task, 5, key), 2.5)", "the batch must be a whole"),
        ("icl.Minibatch(icl.Sequences.sample(task, 5, key), 6)", "between 1 and 5"),
        ("icl.Minibatch(icl.Population(task), 2)", "Features or Sequences"),
        ("icl.Fresh(task, icl.Population(task), True)", "the batch must be a whole"),
        ("icl.Fresh(task, 'population', 5)", "evaluation must be a loss"),
    ],
    "files": [
        ("icl.save(runs, 'x.csv')", "would be NetCDF; give it the ending .nc"),
        ("icl.save(runs, 'x')", "give it the ending .nc"),
        ("icl.save(model, 'x.nc')", "save writes a Dataset"),
    ],
    "runs": [
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, seeds=10**9)", "000 seeds need"),
        (
            "icl.sweep(task, init, icl.Descent(0.1), saveat=range(10**5), seeds=10**6)",
            "the records of 1,000,000 runs need",
        ),
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, seeds=[0.5])", "a seed must be a whole"),
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, seeds=[0, 0])", "one twice"),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=2.5)", "whole steps"),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=-1)", "at least 0"),
        ("icl.simulate(loss, model, icl.Descent(0.1), saveat=[3, 1])", "sort it"),
        ("icl.simulate(loss, model, icl.Descent(-0.1), until=5)", "positive number"),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=30, state=other.state)", "of another"),
        ("icl.simulate(loss, model, icl.Flow(), until=30, state=run.state)", "another dynamics"),
        ("icl.simulate(0.1, model, icl.Descent(0.1), until=5)", "such as icl.Population(task)"),
        ("icl.simulate(loss, init, icl.Descent(0.1), until=5)", "such as init(jax.random.key(0))"),
        ("icl.simulate(loss, model, 0.1, until=5)", "such as icl.Descent(0.1), got 0.1"),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=5, key=3)", "key must be one key"),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=5, record=3)", "a list of names"),
        (
            "icl.simulate(loss, model, icl.Descent(0.1), until=5, record={'x': 3})",
            "got 3 as x",
        ),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=10**30)", "than can be counted"),
        ("icl.simulate(loss, model, icl.Flow(), until=float('inf'))", "finite numbers"),
        ("icl.simulate(loss, model, icl.Flow(), until='5')", "finite numbers"),
        ("icl.simulate(loss, model, icl.Flow(), until=1j)", "finite numbers"),
        ("icl.simulate(loss, model, icl.Flow(), saveat=[0, float('nan'), 2])", "finite numbers"),
        ("icl.sweep(task, model, icl.Descent(0.1), until=5)", "init must be an initialiser"),
        ("icl.sweep([0.7], init, icl.Descent(0.1), until=5)", "source must be a task, a loss"),
        ("icl.sweep({}, init, icl.Descent(0.1), until=5)", "source has no losses"),
        ("icl.sweep(task, init, 0.1, until=5)", "dynamics must be a dynamics"),
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, vary='data')", "Vary.WEIGHTS or"),
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, axes=['rate'])", "a mapping of names"),
        (
            "icl.sweep(task, init, icl.Descent(0.1), until=5, start=runs.drop_vars('result'))",
            "the Dataset of an earlier sweep",
        ),
        ("icl.Descent(True)", "rate must be real numbers, got True"),
        ("icl.Descent('0.1')", "rate must be real numbers, got '0.1'"),
        ("icl.Descent(1j)", "rate must be real numbers"),
        ("icl.Descent([0.1, 0.2])", "one number, got shape (2,)"),
        ("icl.Flow('1e-6')", "tolerance must be real numbers"),
        ("icl.Flow(True)", "tolerance must be real numbers"),
        ("icl.Flow(1e-6, max_steps=2.5)", "max_steps must be a whole number"),
        ("icl.Adam(b1='0.9')", "b1 must be real numbers"),
        ("icl.Adam(b1=1.0)", "b1 must be below 1"),
        ("icl.Adam(weight_decay=float('nan'))", "weight_decay must be finite"),
        ("icl.Momentum(decay=-1)", "decay must be finite and between 0 and 1"),
    ],
    "measures": [
        ("icl.diagnose(3)", "a Dataset of sweep or of a file of runs, or the Trajectory"),
        ("icl.measure_along(3)", "a Dataset of sweep or of a file of runs"),
        ("icl.animate(3, 'x.gif')", "a Dataset of sweep or of a file of runs"),
        ("icl.diagnose(kept, clock='log')", "Clock.LOG or Clock.LINEAR"),
        ("icl.diagnose(kept, on=3)", "on must be a task"),
        ("icl.diagnose(kept, on=icl.Task([0.5, 0.3, 0.2], 5))", "on has D = 3 inputs"),
        ("icl.diagnose(kept, source=icl.Task([0.5, 0.3, 0.2], 5))", "source has D = 3 inputs"),
        ("icl.diagnose(kept.isel(seed=slice(0)))", "no runs"),
        ("icl.diagnose(kept.assign_coords(seed=[0, 0]))", "a seed twice"),
        ("icl.predict(task, 3)", "model must be a model"),
        ("icl.predict(icl.Prompts(np.ones((3, 4, 2)), np.ones((3, 4))), model)", "icl.Moments.of("),
        ("icl.predict(task, model, engine='Stairs')", "engine must be one of iclflow.theory"),
        ("icl.theory.hessian_matrix(model, sequences)", "got Sequences; the theory of a sample is"),
        ("icl.theory.hessian_matrix(task, model)", "Task or its Population, got Separate"),
        ("icl.theory.saddle_path(sequences)", "modes are those of a Task"),
        ("icl.theory.residual_matrix(model, sequences)", "modes are those of a Task"),
        ("icl.theory.vanishing_limit(sequences, model)", "modes are those of a Task"),
        ("icl.measures.learning_coefficient(task, model)", "such as icl.Population(task), got"),
        ("icl.measures.learning_coefficient(model, loss)", "learning_coefficient(loss, model)"),
        ("icl.measures.learning_coefficient(lambda w: w, np.ones(3))", "one number, got (3,)"),
        ("icl.predict(task, init)", "model must be a model, such as init(jax.random.key(0))"),
        ("icl.stable_rate(task, model)", "loss must be a loss, such as icl.Population(task)"),
        ("icl.stable_rate(loss, init)", "model must be a model"),
        ("icl.sharpness(task, model)", "loss must be a loss"),
        ("icl.measures.find_stages([1, 2, 3], [1j, 2j, 3j])", "losses must be real numbers"),
        ("icl.measures.find_stages([1, 2, 3], ['a', 'b', 'c'])", "losses must be real numbers"),
        ("icl.measures.find_stages([1, 2], [2, 1], false_alarms=float('nan'))", "above 0 and"),
        ("icl.measures.find_stages([1, 2], [2, 1], false_alarms=2)", "above 0 and at most 1"),
        ("icl.measures.find_stages([1, 2], [2, 1], smallest=-1)", "smallest must be above 0"),
        ("icl.measures.find_stages([1, 2], [2, 1], resamples=-1)", "resamples must be a whole"),
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, store='')", "store must be the name"),
        ("icl.sweep(task, init, icl.Descent(0.1), until=5, store=3)", "store must be the name"),
    ],
    "changing": [
        ("icl.Drift(lambda step: changing)", "a Curriculum inside a drift"),
        ("icl.simulate(loss, model, icl.Descent(0.1), until=5, test=changing)", "a test stays"),
        (
            "icl.simulate(loss, model, icl.Descent(0.1), until=5, record={'t': changing})",
            "what is recorded as t stays the same",
        ),
        (
            "icl.simulate(icl.Curriculum({0: task, 2.5: task}), model, icl.Descent(0.1), until=5)",
            "the loss jumps at 2.5: Descent counts whole steps",
        ),
        ("icl.Blend(task, [1.0])", "a list of losses, got Task"),
        ("icl.Blend([task], [1j])", "shares must be real numbers"),
        ("icl.Blend([task], None)", "shares must be real numbers"),
        ("icl.Tests(task, sequences=2.5)", "sequences must be a whole number"),
        ("icl.Tests(task, sequences=-1)", "sequences must be a whole number"),
    ],
    "words": [
        ("icl.Task([0.7, 0.2], 5, inputs='sphere')", "such as Sphere(), got 'sphere'"),
        ("icl.Task([0.7, 0.2], 5, inputs=icl.Sphere)", "such as Sphere()"),
        ("icl.Task([0.7, 0.2], 5, tasks='normal')", "a law of task vectors"),
        ("icl.Task([0.7, 0.2], 5, normaliser='pairs')", "Normaliser.PAIRS or"),
        ("icl.Task([0.7, 0.2], 5, context_labels='noise')", "ContextLabels.TASK or"),
        ("task.replace(inputs='sphere')", "such as Sphere()"),
        ("task.replace(tasks='normal')", "a law of task vectors"),
        ("task.replace(nothing=3)", "no field"),
        ("icl.Merged.initialiser(task, heads=2, scale=0.1, blocks='full')", "Blocks.FROZEN or"),
        ("icl.Separate.initialiser(task, heads=2, scale=0.1, blocks=True)", "Blocks.FROZEN or"),
        ("icl.Softmax.initialiser(task, heads=2, scale=0.1, blocks='full')", "Blocks.FROZEN or"),
        ("icl.Merged.initialiser([0.7, 0.2], heads=2, scale=0.1)", "needs the sizes of a task"),
    ],
}  # fmt: skip

# An expression that is meant, and what it is.
MEANT = [
    (
        "icl.simulate(loss, model, icl.Descent(0.1), until=30, state=run.state).step.max().item()",
        "30",
    ),
    (
        "icl.sweep(task, init, icl.Descent(0.1), until=5, seeds=[3, 1]).seed.values.tolist()",
        "[3, 1]",
    ),
    (
        "[line.get_ydata().tolist() == run.loss.tolist() for line in "
        "icl.plots.loss(run).axes[0].lines]",
        "[True]",
    ),
    ("icl.sweep(task, init, icl.Descent(1e308), saveat=[5]).result.values.tolist()", "[1]"),
    ("icl.Task([0.7, 0.2], np.int64(5)).context", "5"),
    ("icl.Task([0.2, 0.7], 5).spectrum.tolist()", "[0.2, 0.7]"),
    ("icl.Task(np.asarray([1, 2]), 5).spectrum.tolist()", "[1.0, 2.0]"),
    ("icl.Task([0.7, 0.2], jnp.asarray(5)).lengths", "(5,)"),
    ("icl.Task([0.7, 0.2], 5, lengths=range(1, 4)).lengths", "(1, 2, 3)"),
    ("task.replace(context=5).lengths", "(5,)"),
    ("float(icl.Merged.initialiser(task, heads=1, scale=0)(key).values.sum())", "0.0"),
    ("icl.Merged.initialiser(task, heads=np.int32(3), scale=1).heads", "3"),
]

# A field of a sweep and values that it cannot have: the checks of an axis are those of its owner.
AXES = {
    "rate": ["-0.1", "0", "float('nan')", "float('inf')", "'0.1'", "True", "0.1j", "None", "[0.1]"],
    "scale": ["-0.1", "float('nan')", "float('inf')", "'0.1'", "True", "0.1j", "None"],
    "heads": ["2.5", "0", "-1", "'2'", "True", "None", "2.0"],
    "rank": ["1.5", "0", "'1'", "True", "2.0"],
    "blocks": ["'full'", "True", "None"],
    "context": ["2.5", "0", "'5'", "True"],
    "label_noise": ["-1.0", "float('nan')", "'x'", "1j", "[0.1, 0.2]"],
    "spectrum": ["[0.7, -0.2]", "'linear'", "[0.7, 0.2, 0.1j]"],
}

# Where a size is asked for, and what is none.
SIZES = [
    "icl.Task([0.7, 0.2], {})",
    "icl.Task([0.7, 0.2], 5, lengths=[{}])",
    "task.replace(context={})",
    "task.replace(lengths=({},))",
    "icl.Separate.initialiser(task, heads={}, scale=0.1)",
    "icl.Separate.initialiser(task, heads=2, rank={}, scale=0.1)",
    "icl.Merged.initialiser(task, heads={}, scale=0.1)",
    "icl.MLP.initialiser(task, heads={}, scale=0.1)",
    "icl.ConvNet.initialiser(task, heads=1, rank={}, scale=0.1)",
    "icl.Softmax.initialiser(task, heads={}, scale=0.1)",
    "icl.Normal(outputs={})",
    "icl.named_spectrum('linear', {})",
    "icl.PromptSet.sample(task, {}, key)",
    "icl.Moments.sample(task, {}, key)",
    "icl.Sequences.sample(task, {}, key)",
    "icl.Minibatch(sequences, {})",
    "icl.Fresh(task, loss, {})",
    "icl.sweep(task, init, icl.Descent(0.1), until=5, seeds={})",
]
NO_SIZES = [
    "2.5", "2.0", "'2'", "True", "np.True_", "jnp.asarray(True)", "-1", "0", "1j", "b'2'", "{}",
    "float('nan')", "float('inf')", "np.float64(2)", "np.asarray([2.5])", "object", "''",
]  # fmt: skip


def evaluate(expressions):
    """What becomes of each expression in one process of its own."""
    program = [sys.executable, str(PLAIN)]
    text = json.dumps([*SETUP, *expressions])
    done = subprocess.run(program, input=text, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)[len(SETUP) :]


def wrong(expected, found):
    """Each expression whose answer is not the expected one, in words."""
    for (expression, word), (kind, *rest) in zip(expected, found, strict=True):
        if kind == "value":
            yield f"{expression} is {rest[0]}"
        elif rest[0] != "ValueError" or word not in rest[1] or "\n" in rest[1]:
            yield f"{expression}: {rest[0]}: {rest[1][:300]}"


@pytest.fixture(scope="module")
def answers():
    groups = {**REFUSED, "meant": MEANT}
    found = iter(evaluate([text for group in groups.values() for text, _ in group]))
    return {name: [next(found) for _ in group] for name, group in groups.items()}


@pytest.mark.parametrize("group", REFUSED)
def test_an_argument_that_cannot_be_meant_is_refused_in_one_line(answers, group):
    assert not list(wrong(REFUSED[group], answers[group]))


def test_an_argument_that_is_meant_is_taken_as_it_is(answers):
    found = [(text, answer) for (text, _), answer in zip(MEANT, answers["meant"], strict=True)]
    assert found == [(text, ["value", value]) for text, value in MEANT]


def test_no_size_is_ever_guessed():
    """Every place that asks for a size, with everything that is none: 306 calls."""
    calls = [place.replace("{}", value) for place in SIZES for value in NO_SIZES]
    wrong = []
    for call, (kind, *rest) in zip(calls, evaluate(calls), strict=True):
        if kind == "value" or rest[0] not in ("ValueError", "TypeError") or "\n" in rest[1]:
            wrong.append(f"{call}: {rest}"[:300])
    assert not wrong, "\n".join(wrong)


def test_an_axis_is_checked_as_its_field_is():
    """Every field with every value that it cannot have, alone and after one that it can."""
    sweep = "icl.sweep(task, init, icl.Descent(0.1), until=5, axes={{'{}': [{}]}})"
    calls = [sweep.format(name, value) for name, values in AXES.items() for value in values]
    calls += [sweep.format("rate", f"0.1, {value}") for value in ("-0.1", "float('nan')", "0.1j")]
    flow = "icl.sweep(task, init, icl.Flow(1e-5), until=5, axes={{'tolerance': [{}]}})"
    calls += [flow.format(value) for value in ("-1e-5", "0.0", "float('nan')", "'x'", "True")]
    calls += [sweep.replace("[{}]", "{}").format("rate", v) for v in ("0.1", "'0.1'", "None", "[]")]
    wrong = []
    for call, (kind, *rest) in zip(calls, evaluate(calls), strict=True):
        if kind == "value" or rest[0] != "ValueError" or "\n" in rest[1]:
            wrong.append(f"{call}: {rest}"[:300])
    assert not wrong, "\n".join(wrong)


def test_steps_that_this_precision_cannot_count_are_refused():
    """In single precision steps are 32-bit integers, so that 2^33 would be another number."""
    for x64, most in ((False, 2**31), (True, 2**63)):
        with jax.enable_x64(x64):
            assert icl.Descent(0.1).as_marks([most // 4]).tolist() == [most // 4]
            for steps in (most, 4 * most, float(most), 10**30):
                with pytest.raises(ValueError, match="steps are more than can be counted") as error:
                    icl.Descent(0.1).as_marks([steps])
                assert ("jax_enable_x64" in str(error.value)) is not x64
                assert "\n" not in str(error.value)


def tree(folder, files):
    """A folder with these files of the kernel."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


KERNEL = {
    "machine": ({"proc/meminfo": "MemFree: 10 kB\nMemAvailable: 5000 kB\n"}, 5000 * 1024),
    "v2": ({
        "proc/meminfo": "MemAvailable: 5000 kB\n", "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/step/memory.current": "100\n",
        "sys/fs/cgroup/job/memory.max": "3000000\n",
        "sys/fs/cgroup/job/memory.current": "1500000\n",
        "sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 500000\n",
    }, 2_000_000),
    "v2, of a container": ({
        "proc/meminfo": "MemAvailable: 5000 kB\n", "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "3000000\n", "sys/fs/cgroup/memory.current": "2900000\n",
    }, 100_000),
    "v1": ({
        "proc/meminfo": "MemAvailable: 5000 kB\n",
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/host/only\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000000\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1000000\n",
    }, 2_000_000),
    "v1 without a limit": ({
        "proc/meminfo": "MemAvailable: 5000 kB\n", "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000000\n",
    }, 5000 * 1024),
    "more used than allowed": ({
        "proc/meminfo": "MemAvailable: 5000 kB\n", "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "2900\n",
    }, 0),
    "a kernel that says nothing": ({}, UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("case", KERNEL)
def test_free_memory_is_the_least_of_machine_and_control_groups(tmp_path, case):
    files, free = KERNEL[case]
    assert available_bytes(tree(tmp_path, files)) == free


def test_free_memory_knows_the_limit_of_the_address_space(tmp_path, monkeypatch):
    import resource

    kernel = tree(tmp_path, {"proc/self/status": "VmSize: 1000 kB\n"})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3_000_000, 4_000_000))
    assert available_bytes(kernel) == 3_000_000 - 1000 * 1024


def command(capsys, *arguments):
    """Exit code, stdout and stderr of one command."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as end:
        code = end.code
    found = capsys.readouterr()
    return code, found.out, found.err


TINY = ["--spectrum", "0.5,0.3", "--context", "4", "--heads", "2"]

# A command that cannot be meant, and a word of the line that refuses it.
LINES = [
    (["simulate", *TINY, "--eigen-seed", "5"], "eigen_seed does nothing without rotate"),
    (["theory", *TINY, "--scale", "5e-324"], "lost in rounding"),
    (["reproduce", "--out", ""], "give the name of a folder"),
    (["simulate", "--from", "both.toml"], "states scale twice"),
    (["simulate", "--dim=--"], "--dim=-- has no value"),
    (["simulate", *TINY, "--steps", "5", "--out", "loop.nc"], "link that leads to itself"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "word"), LINES, ids=str)
def test_a_command_that_cannot_be_meant_is_refused_in_one_line(
    capsys, tmp_path, monkeypatch, line, word
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both.toml").write_text("init = 0.1\nscale = 0.2\nsteps = 5\n")
    (tmp_path / "loop.nc").symlink_to("loop.nc")
    code, out, err = command(capsys, *line)
    assert (code, out) == (2, "")
    assert word in err
    assert err.count("\n") == 1


def test_a_plan_knows_the_largest_stable_rate(capsys):
    code, out, err = command(capsys, "plan", *TINY, "--steps", "1000", "--rate", "50")
    assert (code, out) == (2, "")
    assert "descent diverges at rate 50: the largest stable one is" in err


def test_a_bug_is_one_line_and_its_traceback_on_demand(capsys, monkeypatch):
    def broken(args):
        raise KeyError("a\nname")

    monkeypatch.setattr("iclflow.cli.convert.run", broken)
    monkeypatch.delenv("ICLFLOW_DEBUG", raising=False)
    code, out, err = command(capsys, "convert")
    assert (code, out) == (1, "")
    assert err.startswith("iclflow: KeyError: ")
    assert err.endswith("this is a bug; ICLFLOW_DEBUG=1 shows the traceback\n")
    assert err.count("\n") == 1
    monkeypatch.setenv("ICLFLOW_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["convert"])


def test_a_terminal_without_unicode_does_not_end_a_command(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["theory", *TINY]) == 0
    assert b"least squares" in raw.getvalue()


def test_two_reports_do_not_write_into_one_folder(tmp_path):
    second = alone_in(tmp_path / "out")
    with alone_in(tmp_path / "out"), pytest.raises(ValueError, match="another reproduce is"):
        second.__enter__()
    with alone_in(tmp_path / "out"):
        assert not list((tmp_path / "out").iterdir())


def test_fresh_data_with_sequences_say_what_the_sequences_are_for(capsys):
    line = ["simulate", *TINY, "--scale", "0.1", "--steps", "3", "--rate", "0.1", "--json"]
    code, _, err = command(capsys, *line, "--fresh", "--batch", "4", "--sequences", "50")
    assert code == 0
    assert err.count("\n") == 1
    assert "reported on the same 50" in err


def test_zero_weights_are_said_to_learn_nothing(capsys, tmp_path):
    line = ["simulate", *TINY, "--scale", "0", "--steps", "3", "--rate", "0.1", "--json"]
    assert "nothing is learned" in command(capsys, *line)[2]
    line = ["--model", "attnM", "--head", "2", "--in_dim", "2", "--trainset_size", "20"]
    line += ["--epoch", "3", "--out", tmp_path, "--json"]
    code, _, err = command(capsys, "train", *line, "--init", "0")
    assert (code, err.count("\n")) == (0, 1)
    assert "nothing is learned" in err


def test_what_a_dry_run_accepts_can_run(capsys, tmp_path):
    pytest.importorskip("zarr", reason="the extra sweep is not installed")
    design = tmp_path / "design.toml"
    design.write_text("[sweep]\nsteps = 5\nseeds = 2\n")
    given = ["sweep", design, "--set", "spectrum=white", "--out", tmp_path / "s.zarr"]
    for more in (["--dry-run"], []):
        code, _, err = command(capsys, *given, *more)
        assert code == 2
        assert "the spectrum 'white' needs a dimension" in err
        assert not (tmp_path / "s.zarr").exists()
