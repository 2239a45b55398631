"""`python -m iclflow.checkpoints.convert FILE ...`: PyTorch files as safetensors, beside them.

PyTorch reads them with `weights_only=True`, which runs no code of the file. Of a file that holds
more than weights, such as one of Lightning, the weights are taken.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iclflow.results.messages import printable

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")


def tensors_of(found: Any, path: Path | str) -> dict[str, Any]:
    """The tensors by name, out of whatever they are wrapped in."""
    for _ in range(3):  # {"state": {"model": {"state_dict": ...}}}
        if not isinstance(found, Mapping) or any(hasattr(v, "detach") for v in found.values()):
            break
        inner = next((found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    tensors = (
        {k: v for k, v in found.items() if hasattr(v, "detach")}
        if isinstance(found, Mapping)
        else {}
    )
    if not tensors:
        keys = list(found)[:8] if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"{path}: no tensors under names, nor under {', '.join(WRAPPERS)}: {keys}")
    return {str(name): tensor for name, tensor in tensors.items()}


def convert(path: Path | str) -> Path:
    """Write the tensors of a PyTorch file as safetensors beside it."""
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file

    target = Path(path).with_suffix(".safetensors")
    if target.exists():
        raise ValueError(f"{target} exists; move it away first")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises almost anything
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"{path}: not read as weights alone ({first[0]})") from None
    from iclflow.results.files import replacing

    # tensors that share memory, such as tied embeddings, are written apart
    own = {name: t.detach().clone().contiguous() for name, t in tensors_of(found, path).items()}
    with replacing(target) as partial:
        save_file(own, partial)
    return target


def main(paths: Sequence[str]) -> int:
    """Convert each file; 2 where one cannot be."""
    if not paths:
        print("usage: python -m iclflow.checkpoints.convert FILE ...", file=sys.stderr)
        return 2
    try:
        for path in paths:
            print(printable(convert(path)))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"iclflow: {printable(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
