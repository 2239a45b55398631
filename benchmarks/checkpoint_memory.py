"""Peak memory of `iclflow diagnose` on a checkpoint of 1.4B parameters.

    python benchmarks/checkpoint_memory.py [--layers 24] [--steps 2]

Writes checkpoints with the names, shapes and type of a 24-layer GPT-NeoX of width 2048 (1.4B
parameters in half precision, several files with an index) as sparse files: full length, next to
nothing on disk. Weights are read a layer at a time, so the peak should be far below their size.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH, HEADS, VOCABULARY = 2048, 16, 50304


def shapes(layers: int) -> dict[str, dict[str, list[int]]]:
    """Shapes by file and tensor: the embeddings, then a file for every 6 layers."""
    files = {"model-00000.safetensors": {"gpt_neox.embed_in.weight": [VOCABULARY, WIDTH]}}
    files["model-00000.safetensors"]["embed_out.weight"] = [VOCABULARY, WIDTH]
    for n in range(layers):
        file = files.setdefault(f"model-{1 + n // 6:05d}.safetensors", {})
        stem = f"gpt_neox.layers.{n}."
        file[stem + "attention.query_key_value.weight"] = [3 * WIDTH, WIDTH]
        file[stem + "attention.dense.weight"] = [WIDTH, WIDTH]
        file[stem + "mlp.dense_h_to_4h.weight"] = [4 * WIDTH, WIDTH]
        file[stem + "mlp.dense_4h_to_h.weight"] = [WIDTH, 4 * WIDTH]
    return files


def write(folder: Path, layers: int) -> int:
    """One sparse checkpoint; its number of parameters."""
    folder.mkdir(parents=True)
    total, places = 0, {}
    for name, tensors in shapes(layers).items():
        header, end = {}, 0
        for tensor, (rows, columns) in tensors.items():
            begin, end = end, end + 2 * rows * columns
            header[tensor] = {
                "dtype": "F16",
                "shape": [rows, columns],
                "data_offsets": [begin, end],
            }
            places[tensor] = name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        total += end // 2
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {"model_type": "gpt_neox", "num_attention_heads": HEADS, "hidden_size": WIDTH}
    (folder / "config.json").write_text(json.dumps(config))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--measures", default="norm,effective_rank,subspace_distance")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        totals = [write(root / f"step{step}", args.layers) for step in range(args.steps)]
        command = [sys.executable, "-m", "iclflow", "diagnose", str(root), "--json"]
        command += ["--measures", args.measures]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{args.steps} checkpoints of {totals[0] / 1e9:.2f}e9 parameters, {args.layers} layers")
    print(f"{2 * totals[0] / 2**20:,.0f} MiB each; peak memory {peak:,.0f} MiB; {seconds:.0f} s")


if __name__ == "__main__":
    main()
