"""A monitor as a callback of the Hugging Face Trainer."""

from typing import Any

from iclflow.checkpoints.monitor import Monitor
from iclflow.checkpoints.watching import settings_of


class TrainerCallback:
    """A `Monitor` as a callback: `Trainer(callbacks=[TrainerCallback(monitor)])`.

    It has the methods the Trainer calls and inherits nothing, so that transformers is not
    imported. Losses are those the Trainer logs (`logging_steps`); weights are read only when due,
    and at the start and the end. A second `train()` counts on from where the first one ended.
    """

    def __init__(self, monitor: Monitor) -> None:
        """Watch with this monitor."""
        self.monitor = monitor
        self.before = 0  # steps of earlier calls of train()

    def on_train_begin(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Take the head counts from the model's settings, and measure the initial weights."""
        if not self.monitor.config:
            self.monitor.config = dict(settings_of(context.get("model")))
        last = self.monitor.last_step
        self.before = 0 if last is None else max(0, last - state.global_step)
        self._see(state, context)

    def on_step_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Measure the weights."""
        self._see(state, context)

    def on_log(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Note the loss."""
        logs = context.get("logs") or {}
        if "loss" in logs and self._leads(state):
            self.monitor(self.before + state.global_step, loss=logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """Measure the last weights, and release the terminal line."""
        self._see(state, context, last=True)
        self.monitor.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):  # every other event
            return lambda *_, **__: None
        raise AttributeError(name)

    def _see(self, state: Any, context: dict[str, Any], *, last: bool = False) -> None:
        model, step = context.get("model"), self.before + state.global_step
        if model is not None and self._leads(state) and (last or self.monitor.due(step)):
            self.monitor(step, weights=model, last=last)

    @staticmethod
    def _leads(state: Any) -> bool:
        return bool(getattr(state, "is_world_process_zero", True))
