"""Revisions of a model on the Hugging Face Hub, downloaded one at a time and deleted after use.

Needs the optional package `huggingface_hub`. Only safetensors files and settings are fetched.
"""

import contextlib
import importlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from iclflow.checkpoints.files import (
    PICKLES,
    AbstractSource,
    CheckpointError,
    open_checkpoint,
)
from iclflow.checkpoints.series import Checkpoint, step_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def hub_series(
    repository: str,
    revisions: Sequence[str],
    *,
    token: str | None = None,
    folder: str | Path | None = None,
) -> list[Checkpoint]:
    """A series from revisions such as `step0`, `step512` of `EleutherAI/pythia-70m`.

    A revision is on disk only while its checkpoint is open, in a temporary folder (under
    `folder` if given): at most two at once in `measure_series`, the current and the reference.
    """
    _hub()
    found = []
    for position, revision in enumerate(revisions):
        step = step_of(revision)
        found.append(
            Checkpoint(
                position if step is None else step,
                f"{repository}@{revision}",
                _Opener(repository, revision, token, folder),
            )
        )
    steps = [checkpoint.step for checkpoint in found]
    if len(set(steps)) < len(steps):
        raise CheckpointError(f"{repository}: two revisions have the same step: {revisions}")
    return sorted(found, key=lambda checkpoint: checkpoint.step)


class _Opener:
    """Downloads on entry, deletes on exit."""

    def __init__(
        self, repository: str, revision: str, token: str | None, folder: str | Path | None
    ) -> None:
        self.repository, self.revision = repository, revision
        self.token, self.folder = token, folder

    @contextlib.contextmanager
    def __call__(self) -> Iterator[AbstractSource]:
        target = Path(tempfile.mkdtemp(prefix="iclflow-", dir=self.folder))
        try:
            self._download(target)
            yield open_checkpoint(target)
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _download(self, target: Path) -> None:
        listed = self._ask("list_repo_files", self.repository)
        if INDEX in listed:
            index = Path(self._fetch(INDEX, target))
            chosen = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        elif SINGLE in listed:
            chosen = [SINGLE]
        else:
            chosen = [name for name in listed if name.endswith(".safetensors") and "/" not in name]
        if not chosen:
            pickles = [name for name in listed if name.endswith(PICKLES)]
            raise CheckpointError(
                f"{self.repository}@{self.revision}: no safetensors file"
                + (f", only pickles ({', '.join(pickles)}), which are refused" if pickles else "")
                + "; look for a revision with model.safetensors, or download and convert it"
            )
        for name in chosen:
            self._fetch(name, target)
        if "config.json" in listed:
            self._fetch("config.json", target)

    def _fetch(self, name: str, target: Path) -> str:
        return self._ask("hf_hub_download", self.repository, name, local_dir=target)

    def _ask(self, function: str, *names: str, **options: Any) -> Any:
        try:
            return getattr(_hub(), function)(
                *names, revision=self.revision, token=self.token, **options
            )
        except Exception as error:  # any error of the network or the service
            what = f"{self.repository}@{self.revision}"
            file = f" {names[1]}" if len(names) > 1 else ""
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise CheckpointError(f"{what}{file}: {first[0]}") from error


def _hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise CheckpointError(
            "reading from the Hugging Face Hub needs the package huggingface_hub; "
            "pip install 'iclflow[hub]'"
        ) from None
