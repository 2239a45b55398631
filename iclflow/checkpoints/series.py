"""Checkpoints over training: a folder for each step, or files with the step in their name."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from iclflow.checkpoints.files import (
    PICKLES,
    AbstractSource,
    CheckpointError,
    foreign,
    open_checkpoint,
    read_json,
)
from iclflow.results.reading import field

WEIGHTS = (".safetensors", ".npz", *PICKLES)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One moment of training; `open` gives its tensors for as long as they are needed."""

    step: int
    label: str
    open: Callable[[], AbstractContextManager[AbstractSource]]


def local_checkpoint(path: Path, step: int) -> Checkpoint:
    """A checkpoint on this machine."""

    @contextlib.contextmanager
    def opened() -> Iterator[AbstractSource]:
        yield open_checkpoint(path)

    return Checkpoint(step, str(path), opened)


def step_of(name: str) -> int | None:
    """The number after "step" in a name, or else the last number in it."""
    named = re.search(r"step[-_=]?(\d+)", name)
    if named:
        return int(named.group(1))
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def step_said(path: Path) -> int | None:
    """The step in a Trainer's state beside the weights, or after a word for it in the name."""
    state = path / "trainer_state.json"
    if state.is_file():
        found = read_json(state)
        try:
            return max(0, field(found, "global_step", int, state)) if "global_step" in found else 0
        except ValueError as error:
            raise CheckpointError(str(error)) from None
    named = re.search(r"(?:step|checkpoint|ckpt|iter|epoch)s?[-_=]?(\d+)|^(\d+)$", path.stem)
    return int(named[1] or named[2]) if named else None


def find_series(*paths: str | Path) -> list[Checkpoint]:
    """The checkpoints under these paths, in order of their step.

    - one folder: its sub-folders, or its files, with a step in their name. Of a Trainer's folder
      the `checkpoint-*`, and the weights beside them where its state says they are later;
    - a pattern: `runs/step*/model.safetensors` or `runs/step{step}.npz`, where the step is the
      part that varies (`{step}`, or the first `*`);
    - several paths: one checkpoint each.
    """
    given = list(paths)
    if not given:
        raise CheckpointError("no checkpoints given; name a folder, a pattern or files")
    if len(given) > 1:
        found = [(_step(Path(p)), Path(p)) for p in given]
    elif "*" in str(given[0]) or "{step}" in str(given[0]):
        found = _matching(str(given[0]))
    else:
        found = _inside(Path(given[0]))
    steps = [step for step, _ in found]
    twice = sorted({step for step in steps if steps.count(step) > 1})
    if twice:
        both = [str(path) for step, path in found if step == twice[0]]
        raise CheckpointError(f"step {twice[0]} appears more than once: {', '.join(both)}")
    return [local_checkpoint(path, step) for step, path in sorted(found)]


def _step(path: Path) -> int:
    step = step_of(path.name)
    step = step_of(path.parent.name) if step is None else step
    if step is None:
        raise CheckpointError(f"{path}: no step in the name; name it like step512.safetensors")
    return step


def _matching(pattern: str) -> list[tuple[int, Path]]:
    fixed, _, rest = pattern.replace("{step}", "*").partition("*")
    root = Path(fixed) if fixed.endswith("/") else Path(fixed).parent
    expression = re.escape(fixed) + r"(.*?)" + re.escape(rest).replace(r"\*", ".*?") + "$"
    glob = str(Path(fixed + "*" + rest).relative_to(root))
    found = []
    for path in sorted(root.glob(glob)):
        match = re.match(expression, str(path)) or re.match(expression, f"./{path}")
        step = step_of(match.group(1)) if match else None
        if step is not None:
            found.append((step, path))
    if not found:
        raise CheckpointError(f"{pattern}: nothing matches with a number in place of the step")
    return found


def _inside(path: Path) -> list[tuple[int, Path]]:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if not path.is_dir():
        return [(step_said(path) or 0, path)]
    folders = [p for p in path.iterdir() if p.is_dir() and step_of(p.name) is not None]
    folders = [p for p in folders if _holds_weights(p)] or folders
    if _is_checkpoint(path):
        saved = [(_step(p), p) for p in folders if _holds_weights(p)]
        last = step_said(path)
        if not saved or (last is not None and last > max(saved)[0]):
            saved.append((last or 0, path))
        return saved
    files = [p for p in path.iterdir() if p.suffix in WEIGHTS and step_of(p.name) is not None]
    chosen = folders if folders else files
    if not chosen:
        raise CheckpointError(
            foreign(path)
            or f"{path}: no checkpoints with a step in their name (step512/, step512.safetensors, "
            f"step512.npz)"
        )
    return [(_step(p), p) for p in chosen]


def has_checkpoints(folder: Path) -> bool:
    """Whether there are weights in a folder, or in those inside it."""
    inside = [p for p in folder.iterdir() if p.is_dir()]
    return any(_holds_weights(place) for place in (folder, *inside))


def _holds_weights(folder: Path) -> bool:
    return any(file.suffix in (*WEIGHTS, ".npy") for file in folder.iterdir())


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is itself one checkpoint rather than a series."""
    if any(folder.glob("*.safetensors.index.json")) or any(folder.glob("*.npy")):
        return True
    files = [*folder.glob("*.safetensors"), *folder.glob("*.npz")]
    shards = [file for file in files if re.search(r"-\d+-of-\d+\.", file.name)]
    return bool(files) and (len(files) == 1 or len(shards) == len(files))
