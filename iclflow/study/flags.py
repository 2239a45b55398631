"""The options of the published code, with its names and its defaults."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from iclflow.study.fields import Option, check_all, option

MODELS = ("attnM", "attnS", "mlp")
MODEL, DATA, TRAINING = "model", "data", "training"


@dataclasses.dataclass(frozen=True)
class Portion(Option):
    """A number between 0 and 1. A bare name is taken for a shell variable without its `$`."""

    def check(self, name: str, kind: Any, value: Any) -> Any:
        value = super().check(name, kind, value)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be a portion between 0 and 1, got {value}")
        return value

    def read(self, name: str, kind: Any, text: str) -> Any:
        if text.isidentifier() and text not in ("nan", "inf", "infinity"):
            raise ValueError(
                f"needs a number between 0 and 1, got {text!r}; if {text} is a shell variable, the "
                f"$ is missing: --icl ${text}"
            )
        return super().read(name, kind, text)


@dataclasses.dataclass(frozen=True)
class Options:
    """One run of the published code; a field is a flag of it, and has the flag's default.

    `seq_len` counts tokens, the query included: N = seq_len - 1 labelled pairs. `icl` is the
    portion of RANDOM task vectors; the paper's figures name the portion fixed.
    """

    model: str = option(
        "attnM", MODEL, "merged key and query, separate, or an MLP on cubic features",
        choices=MODELS,
    )  # fmt: skip
    head_num: int = option(1, MODEL, "number of heads", metavar="H", least=1)
    rank: int = option(
        1, MODEL, "rank of keys and queries", metavar="R", least=1, aliases=("KQ_dim",)
    )
    init: float = option(0.01, MODEL, "scale of the initial weights", metavar="STD", least=0)
    epoch: int = option(6001, TRAINING, "number of updates", metavar="EPOCHS", least=1)
    lr: float = option(0.001, TRAINING, "learning rate", metavar="RATE", above=0)
    seed: int = option(10, TRAINING, "seed of data and weights", least=0)
    in_dim: int = option(4, DATA, "dimension of x", metavar="D", least=1)
    out_dim: int = option(1, DATA, "dimension of y; only 1", metavar="O", least=1)
    seq_len: int = option(32, DATA, "tokens, the query included: N + 1", metavar="TOKENS", least=2)
    trainset_size: int = option(5000, DATA, "training sequences", metavar="P", least=1)
    testset_size: int = option(
        0, DATA, "sequences of each test set, in-weight and in-context (0: no test)", metavar="P",
        least=0,
    )  # fmt: skip
    icl: float = option(
        1.0, DATA, "portion of RANDOM task vectors; the paper names the portion fixed",
        kind=Portion, metavar="PORTION",
    )  # fmt: skip
    white_cov: bool = option(False, DATA, "covariance I/D instead of 1..D")
    softmax: bool = option(False, MODEL, "softmax attention")
    vary_len: bool = option(False, DATA, "average the loss over context lengths")
    cubic_feat: bool = option(False, MODEL, "cubic features, for mlp")

    def __post_init__(self) -> None:
        check_all(self, "--")
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
