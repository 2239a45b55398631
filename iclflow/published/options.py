"""The options of the published code, with its names and its defaults."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

MODELS = ("attnM", "attnS", "mlp")


@dataclasses.dataclass(frozen=True)
class Options:
    """One run of the published code; a field is a flag of it, and has the flag's default.

    `seq_len` counts tokens, the query included: N = seq_len - 1 labelled pairs. `icl` is the
    portion of RANDOM task vectors; the paper's figures name the portion fixed.
    """

    model: str = "attnM"  # attnM: merged, attnS: separate, mlp: on cubic features
    head_num: int = 1
    rank: int = 1
    init: float = 0.01
    epoch: int = 6001
    lr: float = 0.001
    seed: int = 10
    in_dim: int = 4
    out_dim: int = 1
    seq_len: int = 32
    trainset_size: int = 5000
    testset_size: int = 0
    icl: float = 1.0
    white_cov: bool = False
    softmax: bool = False
    vary_len: bool = False
    cubic_feat: bool = False

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"--model must be one of {', '.join(MODELS)}, got {self.model!r}")
        for name in ("head_num", "rank", "epoch", "in_dim", "trainset_size"):
            _require(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        _require("seq_len", self.seq_len >= 2, "at least 2 (one pair and the query)", self.seq_len)
        _require("testset_size", self.testset_size >= 0, "at least 0", self.testset_size)
        _require("seed", self.seed >= 0, "at least 0", self.seed)
        _require("icl", 0 <= self.icl <= 1, "a portion between 0 and 1", self.icl)
        _require("lr", math.isfinite(self.lr) and self.lr > 0, "above 0", self.lr)
        _require("init", math.isfinite(self.init) and self.init >= 0, "at least 0", self.init)
        if self.out_dim != 1:
            raise ValueError(
                f"--out_dim must be 1, as in every published run, got {self.out_dim}; for several "
                f"outputs use iclflow.Task(tasks=Normal(outputs=...))"
            )
        if self.cubic_feat != (self.model == "mlp"):
            raise ValueError(
                "--cubic_feat and --model mlp belong together: the MLP takes cubic features, "
                "attention takes sequences"
            )
        if self.model == "mlp" and self.vary_len:
            raise ValueError("--vary_len needs attention; the MLP sees only whole sequences")

    @classmethod
    def from_recorded(cls, values: Mapping[str, Any]) -> Self:
        """The options stored in a recording; those it does not name have their defaults."""
        given = {}
        for field in dataclasses.fields(cls):
            if field.name not in values:
                continue
            value, kind = values[field.name], type(field.default)
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            if not (numeric if kind in (int, float) else isinstance(value, kind)):
                raise ValueError(f"the recorded option {field.name!r} is {value!r}")
            given[field.name] = kind(value)
        return cls(**given)

    @property
    def context(self) -> int:
        """The number of labelled pairs N."""
        return self.seq_len - 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Pairs in the prefixes that the training loss averages over."""
        return tuple(range(1, self.seq_len)) if self.vary_len else (self.context,)

    @property
    def factors(self) -> int:
        """How many weights multiply in one term of the prediction: what E8's powers depend on."""
        return 3 if self.model == "attnS" else 2

    @property
    def tolerance(self) -> float:
        """The agreement to expect between single and double precision."""
        return 5e-5 if self.model == "attnS" else 5e-6

    @property
    def stem(self) -> str:
        """The published file name, which leaves out rate, init and most options."""
        return (
            f"{self.model}_head{self.head_num}_D{self.in_dim}_R{self.rank}"
            f"_P{self.trainset_size}_N{self.seq_len}_seed{self.seed}"
        )


def _require(name: str, holds: bool, need: str, got: Any) -> None:
    if not holds:
        raise ValueError(f"--{name} must be {need}, got {got}")
