"""A miniature of the public attention-only models of the Hub, as `torch.save` writes them.

`python tests/helpers/attention_only.py` (with torch) writes tests/data/attention_only. Folders and
types are those that the Hub lists for NeelNanda/Attn_Only_1L512W_C4_Code, the names of tensors are
those of TransformerLens, which trained it: state dicts with a mask (bool) and a constant beside the
weights, in files checkpoints/tokens_N.pth. `types.pth` has what else a file of `torch.save` may
hold: half precisions, views, wrappers, numbers.
"""

import collections
import json
from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parents[1] / "data" / "attention_only"
TOKENS = (0, 196_608, 60_293_120)
WIDTH, HEADS, SIZE, LAYERS, CONTEXT, WORDS = 6, 2, 3, 2, 4, 5
CONFIG = {
    "n_layers": LAYERS, "d_model": WIDTH, "n_ctx": CONTEXT, "d_head": SIZE, "n_heads": HEADS,
    "d_mlp": -1, "act_fn": None, "d_vocab": WORDS, "attn_only": True, "normalization_type": "LNPre",
    "tokenizer_name": "NeelNanda/gpt-neox-tokenizer-digits",
}  # fmt: skip


def numbers(*shape: int, salt: int) -> np.ndarray:
    """Different numbers for every salt, exact in every floating type."""
    count = int(np.prod(shape))
    return (((np.arange(count) * 37 + salt * 53) % 101 - 50) / 64).reshape(shape)


def state_dict(tokens: int) -> dict[str, np.ndarray]:
    """The tensors of one checkpoint, as NumPy has them."""
    salt = 100 * TOKENS.index(tokens)
    found = {"embed.W_E": numbers(WORDS, WIDTH, salt=salt)}
    for layer in range(LAYERS):
        stem = f"blocks.{layer}.attn."
        for number, part in enumerate("QKV", start=10 * layer + 1):
            found[f"{stem}W_{part}"] = numbers(HEADS, WIDTH, SIZE, salt=salt + number)
        found[f"{stem}W_O"] = numbers(HEADS, SIZE, WIDTH, salt=salt + 10 * layer + 4)
        found[f"{stem}b_Q"] = numbers(HEADS, SIZE, salt=salt + 10 * layer + 5)
        found[f"{stem}mask"] = np.tril(np.ones((CONTEXT, CONTEXT), bool))
        found[f"{stem}IGNORE"] = np.array(-1e5)
    return found | {"unembed.W_U": numbers(WIDTH, WORDS, salt=salt + 90)}


def other_types() -> dict[str, np.ndarray]:
    """The tensors of `types.pth`: name -> their values."""
    whole = numbers(4, 6, salt=1)
    return {
        "double": whole, "half": whole, "brain": whole, "turned": whole.T, "part": whole[1:3, 2:5],
        "every second": whole[:, ::2], "tied": whole, "parameter": whole, "scalar": np.array(0.25),
        "empty": np.zeros((0, 3)),
    }  # fmt: skip


def main() -> None:
    """Write the folder anew."""
    import torch  # pyright: ignore[reportMissingImports]

    (RECORDED / "checkpoints").mkdir(parents=True, exist_ok=True)
    (RECORDED / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    for tokens in TOKENS:
        state = collections.OrderedDict()
        for name, values in state_dict(tokens).items():
            state[name] = torch.from_numpy(values)
            if values.dtype != bool:
                state[name] = state[name].float()
        state._metadata = collections.OrderedDict({"": {"version": 1}})  # as a module's has
        torch.save(state, RECORDED / "checkpoints" / f"tokens_{tokens:012d}.pth")
    whole = torch.from_numpy(other_types()["double"]).float()
    tensors = {
        "double": whole.double(), "half": whole.half(), "brain": whole.bfloat16(),
        "turned": whole.T, "part": whole[1:3, 2:5], "every second": whole[:, ::2], "tied": whole,
        "parameter": torch.nn.Parameter(whole.clone()), "scalar": torch.tensor(0.25),
        "empty": torch.zeros(0, 3), "steps": torch.arange(3), "repeated": whole[:1].expand(4, 6),
    }  # fmt: skip
    wrapped = {
        "model_state_dict": tensors, "step": 2**40, "rates": [0.1, -3], "shape": (1, 2, 3, 4),
        "none": None, "flag": True, "nested": {"list": [[], (), {}]},
    }  # fmt: skip
    torch.save(wrapped, RECORDED / "types.pth")


if __name__ == "__main__":
    main()
