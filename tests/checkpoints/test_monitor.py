"""The monitor inside real, small training loops."""

import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.checkpoints import Monitor, TrainerCallback
from iclflow.checkpoints.monitor import named_arrays


def linear_network(steps, rate=0.1, seed=0):
    """Two-layer linear network from a small start: one drop for each singular value of the map."""
    target = jnp.diag(jnp.array([4.0, 2.0, 1.0, 0.0]))
    keys = jax.random.split(jax.random.key(seed), 2)
    weights = {n: 1e-3 * jax.random.normal(k, (4, 4)) for n, k in zip("ab", keys, strict=True)}

    def loss(weights):
        return jnp.sum((weights["a"] @ weights["b"] - target) ** 2) / 2

    @jax.jit
    def update(weights):
        value, gradient = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), value

    for step in range(steps):
        weights, value = update(weights)
        yield step, value, weights


@pytest.fixture(scope="module")
def watched():
    names = ["norm", "effective_rank", "step_distance", "subspace_speed"]
    monitor = Monitor(measures=names, rank=1, budget=1e9)
    for step, loss, weights in linear_network(1000):
        monitor(step, loss=loss, weights=weights)
    return monitor


def test_drops_of_a_jax_loop_are_found_online(watched):
    stages = watched.stages()
    assert len(stages.drops) == 3
    # levels are half the squares of the singular values still to be learned
    np.testing.assert_allclose([p.level for p in stages.plateaus], [10.5, 2.5, 0.5, 0.0], atol=0.03)


def test_the_dataset_has_log_spaced_steps_and_the_final_rank(watched):
    data = watched.to_dataset()
    steps = data["step"].values
    assert steps[0] == 0
    assert 20 < steps.size < 3 * 20 + 12  # per decade, plus whole steps at the start
    ratios = steps[10:] / steps[9:-1]
    assert np.all(ratios >= 10 ** (1 / 20))
    assert list(data["matrix"].values) == ["a", "b"]
    np.testing.assert_allclose(data["norm"][-1], np.sqrt(4 + 2 + 1), rtol=0.01)
    assert data["drop_step"].size == 3
    assert float(data["drop_confidence"].min()) > 0.5
    assert data["step_distance"][0].isnull().all()
    apart = np.log(steps[2:] / steps[1:-1])[:, None]
    np.testing.assert_allclose(data["subspace_speed"][2:], data["step_distance"][2:] / apart)
    assert data["loss"].size < 250
    assert data["loss"].attrs["units"] == "1"


def test_the_line_tells_the_stage(watched):
    line = watched.line()
    assert line.startswith("step 999 · loss ")
    assert "3 drops" in line
    assert "plateau at" in line
    assert "effective_rank" in line


def test_heads_of_a_known_family_give_the_checkpoint_dataset():
    rng = np.random.default_rng(0)
    monitor = Monitor(heads=2, rank=2, budget=1e9)
    weights = {}
    for step in range(3):
        weights = {
            f"module.transformer.h.{n}.attn.{name}": rng.normal(size=shape).astype(np.float32)
            for n in range(2)
            for name, shape in (("c_attn.weight", (8, 24)), ("c_proj.weight", (8, 8)))
        }
        monitor(step, loss=1.0, weights=weights)
    data = monitor.to_dataset()
    assert data.attrs["family"] == "GPT-2"
    assert data["effective_rank"].dims == ("step", "circuit", "layer", "head")
    fused = weights["module.transformer.h.1.attn.c_attn.weight"]
    product = fused[:, 4:8] @ fused[:, 12:16].T
    np.testing.assert_allclose(
        data["norm"].sel(step=2, circuit="QK", layer=1, head=1), np.linalg.norm(product), rtol=1e-5
    )


def test_cost_is_bounded_by_the_budget():
    now = [0.0]
    calls = []

    def weights():
        calls.append(now[0])
        now[0] += 1.0  # measuring takes a second
        return {"w": np.eye(3)}

    monitor = Monitor(budget=0.1, stopwatch=lambda: now[0], measures=["norm"])
    for step in range(2000):
        now[0] += 0.05
        monitor(step, weights=weights)
    # the first measurement is free; after that a tenth of the time at most
    assert len(calls) - 1 <= 0.1 * now[0] + 1
    assert len(calls) > 5


def test_weights_are_only_asked_for_when_due():
    calls = []
    monitor = Monitor(per_decade=5, budget=1e9, measures=["norm"])
    for step in range(1001):
        monitor(step, weights=lambda step=step: (calls.append(step), {"w": np.eye(2)})[1])
    assert calls[:6] == [0, 1, 2, 4, 7, 12]
    assert len(calls) < 5 * 3 + 5
    assert not monitor.due(1001)


def test_large_matrices_and_patterns():
    weights = {"big": np.ones((6, 6)), "stack": np.ones((2, 3, 4)), "bias": np.ones(6)}
    monitor = Monitor(largest=5, measures=["norm"])
    monitor(0, weights=weights)
    data = monitor.to_dataset()
    assert list(data["matrix"].values) == ["stack[0]", "stack[1]"]
    assert "big" in data.attrs["too_large"]
    only = Monitor(matrices=["b*"], measures=["norm"])
    only(0, weights=weights)
    assert list(only.to_dataset()["matrix"].values) == ["big"]


def test_losses_that_are_not_finite_are_counted():
    monitor = Monitor()
    for step, loss in enumerate([1.0, float("nan"), 2.0, float("inf")]):
        monitor(step, loss=loss)
    data = monitor.to_dataset()
    assert data.attrs["losses_not_finite"] == 2
    np.testing.assert_array_equal(data["loss"], [1.0, 2.0])


def test_names_from_nested_pytrees():
    tree = {"blocks": [{"w": jnp.eye(2)}, {"w": jnp.eye(2)}], "scale": 3.0}
    assert list(named_arrays(tree)) == ["blocks.0.w", "blocks.1.w"]
    with pytest.raises(ValueError, match="hold no arrays"):
        named_arrays({"a": 1.0})


def test_mistakes():
    with pytest.raises(ValueError, match="needs the last checkpoint"):
        Monitor(measures=["subspace_distance"])
    with pytest.raises(ValueError, match="unknown measures"):
        Monitor(measures=["nonsense"])
    monitor = Monitor()
    monitor(5, loss=1.0)
    with pytest.raises(ValueError, match="must not go back"):
        monitor(4, loss=1.0)


@pytest.mark.parametrize(
    ("step", "given", "complaint"),
    [
        ("a", {"loss": 1.0}, "whole number, got 'a'"),
        (1.5, {"loss": 1.0}, "whole number, got 1.5"),
        (-1, {"loss": 1.0}, "count from 0"),
        (3, {"loss": "x"}, "loss of step 3 must be one number, got str"),
        (3, {"loss": np.ones(3)}, r"one number, got shape \(3,\)"),
        (0, {"weights": {}}, "hold no arrays"),
        (0, {"weights": {"a": np.zeros((0, 4))}}, r"no matrix to measure among a \(0, 4\)"),
        (0, {"weights": {"a": np.ones((4, 4), complex)}}, "is complex"),
        (2, {"weights": {"w": np.eye(4)}}, r"changed their names or shapes at step 2 \(w\)"),
        (2, {"weights": {"v": np.eye(3)}}, "changed their names or shapes"),
    ],
)
def test_what_cannot_be_watched_is_one_line(step, given, complaint):
    monitor = Monitor(budget=1e9)
    if step == 2:
        monitor(0, weights={"w": np.eye(3)})
    with pytest.raises(ValueError, match=complaint) as error:
        monitor(step, **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options", [{"budget": -1.0}, {"rank": 0}, {"largest": 0}, {"measures": "norm"}]
)
def test_impossible_monitors_do_not_exist(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Monitor(**options)


def test_weights_that_are_not_finite_have_no_rank():
    monitor = Monitor(measures=["norm", "effective_rank", "stable_rank"])
    monitor(0, weights={"w": np.full((3, 3), np.nan)})
    data = monitor.to_dataset()
    assert all(data[name].isnull().all() for name in ("norm", "effective_rank", "stable_rank"))


def test_live_line(capsys):
    with Monitor(live=True, stopwatch=iter(np.arange(1e4).tolist()).__next__) as monitor:
        for step in range(20):
            monitor(step, loss=1.0 / (step + 1))
    assert "step 19 · loss" in capsys.readouterr().out


class HalfTensor:
    """Looks like a PyTorch tensor in half precision, which NumPy cannot read."""

    def __init__(self, values):
        self.values, self.dtype, self.shape = values, "torch.bfloat16", values.shape

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return types.SimpleNamespace(numpy=lambda: self.values.astype(np.float32))


def test_tensors_are_read_without_torch():
    monitor = Monitor(measures=["norm"])
    monitor(0, loss=np.float32(1.0), weights={"w": HalfTensor(2 * np.eye(3))})
    np.testing.assert_allclose(monitor.to_dataset()["norm"], [[2 * np.sqrt(3)]], rtol=1e-6)


def test_trainer_callback_answers_every_event():
    """The calls a Trainer makes, in its order and with its keyword arguments."""
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(to_dict=lambda: {"num_attention_heads": 2}),
        state_dict=lambda: {
            "model.layers.0.self_attn.q_proj.weight": np.eye(4),
            "model.layers.0.self_attn.k_proj.weight": np.eye(4),
            "model.layers.0.self_attn.v_proj.weight": np.eye(4),
            "model.layers.0.self_attn.o_proj.weight": np.eye(4),
        },
    )
    callback = TrainerCallback(Monitor(measures=["norm"], budget=1e9))
    state = types.SimpleNamespace(global_step=0, is_world_process_zero=True)
    context = {"model": model, "optimizer": None, "train_dataloader": None}

    def event(name, **more):
        assert getattr(callback, name)(None, state, None, **context, **more) is None

    for name in ("on_init_end", "on_train_begin", "on_epoch_begin"):
        event(name)
    for step in range(1, 6):
        state.global_step = step
        for name in ("on_step_begin", "on_pre_optimizer_step", "on_step_end"):
            event(name)
        event("on_log", logs={"loss": 1.0 / step, "learning_rate": 1e-3})
    event("on_log", logs={"train_runtime": 3.0})
    event("on_train_end")
    data = callback.monitor.to_dataset()
    assert data.attrs["family"] == "Llama"
    assert list(data["step"].values) == [0, 1, 2, 3, 4, 5]  # the initial weights too
    np.testing.assert_allclose(data["norm"], np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(data["loss"], 1 / np.arange(1, 6))
    state.global_step = 0  # a second train() counts from 0 again
    event("on_train_begin")
    for step in range(1, 4):
        state.global_step = step
        event("on_step_end")
        event("on_log", logs={"loss": 0.1})
    event("on_train_end")
    assert list(callback.monitor.to_dataset()["step"].values) == list(range(9))
    with pytest.raises(AttributeError):
        callback.nothing  # noqa: B018


def test_a_loss_in_a_buffer_that_is_used_again_is_copied():
    buffer, monitor = np.zeros(()), Monitor()
    for step in range(100):
        buffer[...] = step
        monitor(step, loss=buffer)
    assert float(monitor.to_dataset()["loss"][0]) == 0.0
    update = jax.jit(lambda loss: loss + 1, donate_argnums=0)
    loss, monitor = jnp.zeros(()), Monitor()
    for step in range(100):
        loss, given = update(loss), loss
        del given
        monitor(step, loss=loss)
    np.testing.assert_allclose(monitor.to_dataset()["loss"][:3], [1.0, 2.0, 3.0])


def test_modules_are_weights():
    linear = eqx.nn.Linear(3, 3, key=jax.random.key(0))  # callable, and a pytree
    assert set(named_arrays(linear)) == {"weight", "bias"}
    assert set(named_arrays(lambda: linear)) == {"weight", "bias"}
    monitor = Monitor(measures=["norm"])
    monitor(0, weights=linear)
    assert list(monitor.to_dataset()["matrix"].values) == ["weight"]


def test_a_module_of_nnx_is_weights():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not needed by the package")
    attention = nnx.MultiHeadAttention(2, 6, decode=False, rngs=nnx.Rngs(0))
    monitor = Monitor(measures=["norm"])
    monitor(0, weights=attention)
    data = monitor.to_dataset()
    assert data.attrs["family"] == "Flax"
    kernel = np.asarray(attention.query.kernel[...])[:, 1]  # [d, heads, size]
    product = kernel @ np.asarray(attention.key.kernel[...])[:, 1].T
    found = data["norm"].sel(circuit="QK", head=1, layer=0)
    np.testing.assert_allclose(found, np.linalg.norm(product), rtol=1e-5)


def gpt2_weights(rng):
    return {
        "h.0.attn.c_attn.weight": rng.normal(size=(8, 24)),
        "h.0.attn.c_proj.weight": rng.normal(size=(8, 8)),
    }


def test_attention_that_cannot_be_cut_into_heads_is_warned_of():
    weights = gpt2_weights(np.random.default_rng(0))
    with pytest.warns(UserWarning, match="GPT-2 names, but the number of heads.*plain matrices"):
        Monitor(measures=["norm"])(0, weights=weights)
    monitor = Monitor(measures=["norm"], config={"n_head": 2})
    monitor(0, weights=weights)  # a warning would be an error
    assert monitor.to_dataset().sizes["head"] == 2


def test_the_last_step_is_measured_whatever_the_budget():
    monitor = Monitor(budget=1e-9, measures=["norm"], stopwatch=iter(range(1000)).__next__)
    weights = gpt2_weights(np.random.default_rng(0))
    for step in range(20):
        monitor(step, weights={"w": weights["h.0.attn.c_proj.weight"]}, last=step == 19)
    steps = list(monitor.to_dataset()["step"].values)
    assert steps[-1] == 19
    assert len(steps) < 5


@pytest.mark.parametrize("heads", [2, None])
def test_everything_is_compiled_at_the_first_measurement(heads, caplog):
    rng = np.random.default_rng(0)
    weights = gpt2_weights(rng) if heads else {"w": rng.normal(size=(7, 5))}
    monitor = Monitor(heads=heads, budget=1e9)
    monitor(0, weights=weights)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        monitor(1, weights=weights)
    assert [r for r in caplog.records if "Compiling" in r.getMessage()] == []


def test_a_torch_training_loop():
    torch = pytest.importorskip("torch", reason="torch is not needed by the package")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    target = torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.0]))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=1e-3)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = Monitor(measures=["norm"], budget=1e9)
    for step in range(1000):
        optimiser.zero_grad()
        loss = ((net(torch.eye(4)) - target.T) ** 2).sum() / 2
        loss.backward()
        optimiser.step()
        monitor(step, loss=loss, weights=net)
    assert len(monitor.stages().drops) == 3
    assert list(monitor.to_dataset()["matrix"].values) == ["0.weight", "1.weight"]
