"""`python -m iclflow.checkpoints.convert FILE ...`: PyTorch files as safetensors, beside them.

Most need no conversion, since `iclflow.checkpoints` reads the archives that `torch.save` writes.
This is for plain pickles, as PyTorch wrote them before version 1.6. PyTorch reads them with
`weights_only=True`, which runs no code of the file. The weights are taken out of what wraps them,
such as a checkpoint of Lightning.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from iclflow.checkpoints.torch_files import tensors_of
from iclflow.results.messages import printable


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
