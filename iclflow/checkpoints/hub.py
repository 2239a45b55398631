"""Revisions of a model on the Hugging Face Hub: the tensors asked for, and nothing kept.

Needs the optional package `huggingface_hub`. Only safetensors files and settings are read. From a
server that sends whole files only they are downloaded, one revision at a time, and deleted.
"""

import contextlib
import importlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from iclflow.checkpoints.files import (
    PICKLES,
    AbstractSource,
    CheckpointError,
    Shards,
    open_checkpoint,
    read_json,
)
from iclflow.checkpoints.remote import NoRangesError, RemoteFile
from iclflow.checkpoints.series import Checkpoint, step_of
from iclflow.results.reading import field, inside, read_object

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

    Only the tensors that are measured are transferred, where the server sends parts of files.
    Otherwise a revision is on disk while its checkpoint is open, in a temporary folder (under
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
    """Reads where the files lie, or downloads them on entry and deletes them on exit."""

    def __init__(
        self, repository: str, revision: str, token: str | None, folder: str | Path | None
    ) -> None:
        self.repository, self.revision = repository, revision
        self.token, self.folder = token, folder

    @contextlib.contextmanager
    def __call__(self) -> Iterator[AbstractSource]:
        target = Path(tempfile.mkdtemp(prefix="iclflow-", dir=self.folder))
        try:
            listed = self._ask("list_repo_files", self.repository)
            if "config.json" in listed:
                self._fetch("config.json", target)
            shards, single = self._files(listed, target)
            try:
                source = self._remote(shards, single, target)
            except NoRangesError:
                for name in single or sorted(set(shards.values())):
                    self._fetch(name, target)
                source = open_checkpoint(target)
            yield source
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _files(self, listed: list[str], target: Path) -> tuple[dict[str, str], list[str]]:
        """Tensor -> file where an index says, or else the files."""
        if INDEX in listed:
            where = f"{self.repository}@{self.revision} {INDEX}"
            try:
                index = read_object(Path(self._fetch(INDEX, target)))
                files = field(index, "weight_map", dict, where)
                # The name as it is in the repository, after the check that it stays there.
                return {t: str(inside(Path(), name, where)) for t, name in files.items()}, []
            except ValueError as error:
                raise CheckpointError(str(error)) from None
        found = [name for name in listed if name.endswith(".safetensors") and "/" not in name]
        found = [SINGLE] if SINGLE in found else found
        if not found:
            pickles = [name for name in listed if name.endswith(PICKLES)]
            raise CheckpointError(
                f"{self.repository}@{self.revision}: no safetensors file"
                + (f", only pickles ({', '.join(pickles)}), which are refused" if pickles else "")
                + "; look for a revision with model.safetensors, or download and convert it"
            )
        return {}, found

    def _remote(self, shards: dict[str, str], single: list[str], target: Path) -> AbstractSource:
        config = read_json(target / "config.json") if (target / "config.json").exists() else {}
        headers = _hub(".utils").build_hf_headers(token=self.token)

        def opened(name: str) -> RemoteFile:
            url = _hub().hf_hub_url(self.repository, name, revision=self.revision)
            label = f"{self.repository}@{self.revision} {name}"
            return RemoteFile(url, headers, label, config)

        if len(single) == 1:
            return opened(single[0])
        sources = {name: opened(name) for name in single or sorted(set(shards.values()))}
        files = shards or {t: name for name, source in sources.items() for t in source.names()}
        return Shards(files, sources.__getitem__, config)

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


def _hub(part: str = "") -> Any:
    try:
        return importlib.import_module(f"huggingface_hub{part}")
    except ImportError:
        raise CheckpointError(
            "reading from the Hugging Face Hub needs the package huggingface_hub; "
            "pip install 'iclflow[hub]'"
        ) from None
