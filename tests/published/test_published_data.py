"""Prompts drawn by the published code's recipe: centring, whitening, mixture, noise labels."""

from pathlib import Path

import jax
import numpy as np
import pytest

from iclflow.published import Options, prompt_set, published_task
from iclflow.tasks.base import Normaliser

DATA = Path(__file__).parents[1] / "data"
KEY = jax.random.key(3)


def sample(icl, count=400, **changes):
    options = Options(in_dim=3, seq_len=6, icl=icl, trainset_size=count, **changes)
    task = published_task(options, KEY)
    return task, prompt_set(task, icl, count, KEY).prompts()


def tasks_of(prompts):
    """The task vectors, recovered from noiseless labels."""
    return np.stack([
        np.linalg.lstsq(x, y[:, 0])[0]
        for x, y in zip(np.asarray(prompts.inputs), np.asarray(prompts.labels), strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("icl", [0.0, 0.3, 1.0])
def test_inputs_are_centred_at_every_position(icl):
    task, prompts = sample(icl)
    assert np.abs(prompts.inputs.mean(axis=0)).max() < 1e-15
    found = np.cov(np.asarray(prompts.inputs).reshape(-1, 3).T)
    assert np.abs(found - np.asarray(task.covariance)).max() < 0.06
    np.testing.assert_allclose(np.linalg.eigvalsh(task.covariance), np.arange(1, 4) / 6)


def test_random_tasks_are_whitened_with_one_degree_of_freedom_less():
    _, prompts = sample(1.0)
    tasks = tasks_of(prompts)
    np.testing.assert_allclose(tasks.mean(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(np.cov(tasks.T), np.eye(3), atol=1e-12)
    target = np.einsum("pd,pd->p", tasks, prompts.inputs[:, -1])
    np.testing.assert_allclose(prompts.targets[:, -1, 0], target, atol=1e-12)


def test_recorded_tasks_are_whitened_the_same_way():
    x = np.load(DATA / "attnM_P1000_H8.npz")["X"].astype(float)
    tasks = np.stack([np.linalg.lstsq(p[:-1, :4], p[:-1, 4])[0] for p in x])
    assert np.abs(np.cov(tasks.T) - np.eye(4)).max() < 3e-6
    assert np.abs(x[:, :, :4].mean(axis=0)).max() < 1e-7


def test_mixture_has_whole_numbers_of_random_tasks_not_whitened():
    task, prompts = sample(0.3, count=333)
    tasks = tasks_of(prompts)
    fixed = np.abs(tasks - np.asarray(task.tasks.fixed)).max(axis=1) < 1e-9
    assert np.sum(~fixed) == int(333 * 0.3)
    assert np.linalg.norm(task.tasks.fixed) == pytest.approx(np.sqrt(3))
    assert np.abs(np.cov(tasks[~fixed].T) - np.eye(3)).max() > 0.01


def test_all_fixed_has_noise_for_labels():
    task, prompts = sample(0.0, count=4000)
    labels = np.asarray(prompts.labels)[:, :-1, 0]
    assert labels.std() == pytest.approx(1, abs=0.02)
    assert abs(np.mean(labels * prompts.targets[:, -1])) < 0.03
    target = np.asarray(prompts.inputs[:, -1]) @ np.asarray(task.tasks.fixed)[0]
    np.testing.assert_allclose(prompts.targets[:, -1, 0], target, atol=1e-14)


def test_prefixes_have_their_labels_as_targets():
    _, prompts = sample(0.0, vary_len=True)
    np.testing.assert_array_equal(prompts.targets[:, :-1], prompts.labels[:, :-1])
    assert not np.any(prompts.targets[:, -1] == prompts.labels[:, -1])
    assert prompts.normaliser is Normaliser.TOKENS


def test_white_covariance():
    task = published_task(Options(white_cov=True, in_dim=5), KEY)
    np.testing.assert_allclose(task.covariance, np.eye(5) / 5, atol=1e-15)
