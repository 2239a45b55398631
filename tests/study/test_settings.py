"""Settings in plain values: which model, task and options they make."""

import jax
import pytest

from iclflow.models import LabelRow, Steps
from iclflow.study.study import Settings
from iclflow.tasks.laws import Sparse


def test_diagonal_layers_and_the_label_row_have_names():
    steps = Settings(model="steps", layers=3, tied=True, scale=0.1)
    model = steps.initialiser(steps.source())(jax.random.key(0))
    assert isinstance(model, Steps)
    assert (model.layers, model.tied, model.steps.shape) == (3, True, (1, 4))
    row = Settings(model="label-row", scale=0.1)
    model = row.initialiser(row.source())(jax.random.key(0))
    assert isinstance(model, LabelRow)
    assert float(abs(model.matrix).max()) < 0.5
    with pytest.raises(ValueError, match="heads does nothing with model steps"):
        Settings(model="steps", heads=3)


def test_sparse_tasks():
    task = Settings(nonzero=2).task()
    assert isinstance(task.tasks, Sparse)
    assert int((task.draw(jax.random.key(0)).task != 0).sum()) == 2
    with pytest.raises(ValueError, match="cannot have 5"):
        Settings(nonzero=5).task()
    for other in ({"pool": 4}, {"task_covariance": (1.0,) * 4}, {"fixed_fraction": 0.5}):
        with pytest.raises(ValueError, match="nonzero says what the tasks are"):
            Settings(nonzero=2, **other).task()
    with pytest.raises(ValueError, match="no sparse tasks"):
        Settings(nonzero=2, model="linear-transformer").task()
