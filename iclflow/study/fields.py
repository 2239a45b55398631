"""The options of one experiment in plain values: what each may be, and which fit together.

An `Option` says what a setting may be, and how it is read from text and checked. `Fields` are the
settings of an experiment. Nothing heavy is imported here: `iclflow COMMAND --help` is made from it.
"""

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar

from iclflow.results.messages import require_choice

MANY = 1_000_000  # values in a list


@dataclasses.dataclass(frozen=True)
class Option:
    """What may be said about an option, besides its name, type and default.

    The shell, settings files, the flags of the published code and the page are all made from it.

    - `group`, `help`, `metavar`: where and how `--help` shows it.
    - `least`, `above`, `most`: bounds of a number, or of every number of a list.
    - `choices`: the words it may be.
    - `needs`: another option, and values of it, without which this one does nothing. With no
      values named, the other option must differ from its default.
    - `aliases`: other names of it.
    - `page`: the least and the largest value on the page of `iclflow explore`; None if the page
      does not have this option.
    """

    group: str
    help: str
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    page: tuple[float, float] | None = None

    repeats: ClassVar[bool] = False  # whether the shell gives its values one at a time

    def check(self, name: str, kind: Any, value: Any) -> Any:
        """The value as the type of its field, or `ValueError` in one line.

        - `name`: what messages call the option.
        - `kind`: the type of its field.
        - `value`: what was given.
        """
        if value is None and types.NoneType in typing.get_args(kind):
            return None
        kinds = kinds_of(kind)
        if isinstance(value, str) and str in kinds:
            if self.choices:
                require_choice(name.replace("_", " "), value, self.choices)
            return value
        lists = [typing.get_args(one)[0] for one in kinds if typing.get_origin(one) is tuple]
        if lists and isinstance(value, list | tuple):
            if not 0 < len(value) <= MANY:
                got = "an empty list" if not value else f"{len(value)}"
                raise ValueError(f"{name} needs 1 to {MANY} values, got {got}")
            return tuple(self._one(name, lists[0], item) for item in value)
        return self._one(name, next((k for k in kinds if k in _NEEDED), kinds[0]), value)

    def _one(self, name: str, kind: Any, value: Any) -> Any:
        fits = {
            bool: isinstance(value, bool),
            str: isinstance(value, str),
            int: isinstance(value, numbers.Integral) and not isinstance(value, bool),
            float: isinstance(value, numbers.Real) and not isinstance(value, bool),
        }
        if not fits.get(kind, False):
            raise ValueError(f"{name} needs {_NEEDED.get(kind, 'a list')}, got {short(value)}")
        if kind in (bool, str):
            return value
        if kind is float and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
        value = kind(value)
        if self.least is not None and value < self.least:
            raise ValueError(f"{name} must be at least {self.least:g}, got {short(value)}")
        if self.above is not None and value <= self.above:
            raise ValueError(f"{name} must be above {self.above:g}, got {short(value)}")
        if self.most is not None and value > self.most:
            raise ValueError(f"{name} must be at most {self.most:g}, got {short(value)}")
        return value

    def read(self, name: str, kind: Any, text: str) -> Any:
        """The value that a text of the shell states.

        - `name`: what messages call the option.
        - `kind`: the type of its field.
        - `text`: one word of the shell; a list is separated by commas.
        """
        kinds = kinds_of(kind)
        if str in kinds and not (len(kinds) > 1 and ("," in text or not text[:1].isalpha())):
            return self.check(name, kind, text)
        for one in kinds:
            if typing.get_origin(one) is tuple:
                return self.check(name, kind, _items(name, typing.get_args(one)[0], text))
        return self.check(name, kind, _number(name, kinds[0], text))


_NEEDED = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}


def option(default: Any, group: str, help: str, kind: type[Option] = Option, **about: Any) -> Any:
    """A field of settings with its description.

    - `default`: its value where nothing is said.
    - `group`, `help`, `about`: the fields of `Option`.
    - `kind`: a class of `Option` that reads or checks values in its own way.
    """
    return dataclasses.field(default=default, metadata={"option": kind(group, help, **about)})


@functools.cache
def described(fields: type) -> dict[str, tuple[Any, Option]]:
    """The type and the description of every option, by name.

    - `fields`: a dataclass whose fields were made by `option`.
    """
    hints = typing.get_type_hints(fields)
    return {f.name: (hints[f.name], f.metadata["option"]) for f in dataclasses.fields(fields)}


def check_all(settings: Any, prefix: str = "") -> None:
    """Check every option of settings in place, or raise `ValueError` in one line.

    - `settings`: a frozen dataclass whose fields were made by `option`.
    - `prefix`: before the names in messages: `--` where they are flags of the shell.
    """
    for name, (kind, about) in described(type(settings)).items():
        value = about.check(f"{prefix}{name}", kind, getattr(settings, name))
        object.__setattr__(settings, name, value)


def short(value: Any) -> str:
    """A value in a message, not longer than a line."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, a list in a list in a …
        shown = f"one too long to show ({type(value).__name__})"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """The types that a field may have, besides None."""
    parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return tuple(part for part in parts if part is not types.NoneType)


def _items(name: str, kind: Any, text: str) -> list[Any]:
    """The parts of a list `a,b,c`. Whole numbers may also be stated as `FIRST-LAST`.

    - `name`: what messages call the option.
    - `kind`: the type of one part.
    - `text`: what was given.
    """
    first, dash, last = text.partition("-")
    if kind is int and dash:
        try:
            ends = int(first), int(last)
        except ValueError:
            raise ValueError(f"{name} needs FIRST-LAST or a list, got {short(text)}") from None
        if not 0 <= ends[1] - ends[0] < MANY:
            raise ValueError(f"{name} needs 1 to {MANY} values, got {short(text)}")
        return list(range(ends[0], ends[1] + 1))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return parts if kind is str else [_number(name, kind, part) for part in parts]


def _number(name: str, kind: Any, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        comma = "; separate numbers by commas" if len(text.split()) > 1 else ""
        raise ValueError(f"{name} needs {_NEEDED[kind]}, got {short(text)}{comma}") from None


TASK, MODEL, DATA = "task", "model", "data and level of exactness"
DYNAMICS, RUNS = "dynamics", "runs"
LAYERS = ("merged", "separate", "softmax-merged", "softmax-separate")
DEEP = {"merged": "layers-merged", "separate": "layers-separate"}
STACKED = (*DEEP.values(), "steps")
HEADED = (*LAYERS, "mlp", "conv", *DEEP.values(), "transformer")
RANKED = ("separate", "softmax-separate", "conv", "layers-separate")
SEEDS = 2**32  # seeds are whole numbers below
LONGEST = 10**12  # steps
OF_PROMPTS = ("lengths", "normaliser")  # what may be said of a task that has given prompts
# What is said of prompts that are drawn, and of other tasks than that of the training.
DRAWN = ("sequences", "match", "average", "fresh", "data_seed", "eigen_seed")
DRAWN += ("test", "test_context", "change")
OF_TASKS = ("draws", "large-context", "population")  # levels that know a task, not prompts
EIGEN_SEED = 2  # of eigenvectors, pool and w*, unless another is given
SMALLEST = 1e-100  # init scale besides 0, whose third power is a normal number


@dataclasses.dataclass(frozen=True)
class Variants(Option):
    """A list of variants of the settings, `NAME: FIELD=VALUE; FIELD=VALUE` (see `variant`).

    The shell gives one at a time, a settings file has a table for each.
    """

    repeats = True

    def check(self, name: str, kind: Any, value: Any) -> Any:
        return None if value is None else _variants(name, value)

    def read(self, name: str, kind: Any, text: str) -> Any:
        variant(name, text)
        return text


@dataclasses.dataclass(frozen=True)
class Fields:
    """Task, model, level of exactness and dynamics; each field an option of the shell and TOML."""

    spectrum: tuple[float, ...] | str = option(
        (0.4, 0.3, 0.2, 0.1),
        TASK,
        "variances of the inputs; or white, linear, power:ALPHA with --dim",
        metavar="LIST",
        page=(0.005, 2),
    )
    dim: int | None = option(
        None, TASK, "number of inputs, of a named spectrum", metavar="D", least=1
    )
    trace: float | None = option(
        None, TASK, "sum of the variances (1 of a named spectrum)", above=0
    )
    context: int = option(
        31, TASK, "labelled pairs in a prompt", metavar="N", least=1, most=10**15, page=(1, 1000)
    )
    lengths: tuple[int, ...] | None = option(
        None, TASK, "average the loss over these context lengths, e.g. 1-31 or 8,16", least=1
    )
    normaliser: str = option(
        "pairs", TASK, "what attention divides by", choices=("pairs", "tokens", "context", "none")
    )
    inputs: str = option(
        "gaussian", TASK, "law of the inputs: gaussian, sphere, rademacher or student:DEGREES"
    )
    noise: float = option(
        0.0, TASK, "standard deviation of the noise on context labels", least=0, page=(0, 3)
    )
    target_noise: float = option(
        0.0, TASK, "standard deviation of the noise on the target", least=0
    )
    task_covariance: tuple[float, ...] | None = option(
        None,
        TASK,
        "variances of the task vector w, one per eigenvector",
        metavar="LIST",
        least=0,
        page=(0.1, 8),
    )
    task_mean: tuple[float, ...] | None = option(
        None, TASK, "mean of the task vector w", metavar="LIST"
    )
    pool: int | None = option(None, TASK, "draw the tasks from a pool of M", metavar="M", least=1)
    nonzero: int | None = option(
        None, TASK, "task vectors with S entries N(0, 1) at random places, the others zero",
        metavar="S", least=1,
    )  # fmt: skip
    fixed_fraction: float = option(
        0.0, TASK, "share of the prompts that have one fixed task w*", metavar="SHARE", page=(0, 1)
    )
    in_weight_test: str = option(
        "task", TASK, "context labels of the test on w*", choices=("task", "noise"),
        needs=("fixed_fraction",),
    )  # fmt: skip
    rotate: bool = option(False, TASK, "draw the eigenvectors at random (--eigen-seed)")
    model: str = option(
        "separate", MODEL, "the model (linear-transformer has D outputs, and --scale is p = q; of "
        "steps and label-row --scale is the standard deviation of every weight)",
        choices=(*HEADED, "steps", "label-row", "linear-transformer"),
    )  # fmt: skip
    layers: int | None = option(
        None, MODEL, "number of layers of linear attention or of a transformer (2 of the models "
        "layers-…, steps and transformer)",
        metavar="L", least=1, most=1000, needs=("model", *STACKED, "transformer"), page=(1, 2),
    )  # fmt: skip
    tied: bool = option(False, MODEL, "all layers share their weights", needs=("model", *STACKED))
    heads: int = option(
        5, MODEL, "number of heads", metavar="H", least=1, needs=("model", *HEADED), page=(1, 16)
    )
    rank: int = option(
        1,
        MODEL,
        "rank of keys and queries",
        metavar="R",
        least=1,
        needs=("model", *RANKED),
        page=(1, 8),
    )
    width: int | None = option(
        None, MODEL, "width of a transformer, a multiple of the number of heads (8 H)", metavar="d",
        least=1, needs=("model", "transformer"),
    )  # fmt: skip
    mlp: int = option(
        0, MODEL, "hidden units of the MLPs of a transformer, in widths; 0 for no MLPs", least=0,
        needs=("model", "transformer"),
    )  # fmt: skip
    no_norm: bool = option(
        False, MODEL, "leave out the layer norms of a transformer", needs=("model", "transformer")
    )
    causal: bool = option(
        False, MODEL, "a transformer reads x and y as separate tokens that attend to those before "
        "them; otherwise its tokens are pairs", needs=("model", "transformer"),
    )  # fmt: skip
    scale: float = option(
        0.01,
        MODEL,
        "init scale: norm of each layer at the start; of a transformer, a factor on the usual "
        "weights",
        metavar="W",
        least=0,
        aliases=("init",),
        page=(1e-6, 3),
    )
    blocks: str = option(
        "auto", MODEL, "whether to train the zero blocks (auto: on finite data)",
        choices=("auto", "full", "frozen"), needs=("model", *LAYERS, "linear-transformer"),
    )  # fmt: skip
    prompts: str | None = option(
        None, DATA, "train on your own prompts: x [P, N+1, D] and y [P, N+1] in an .npz or .nc "
        "file, or in x.npy,y.npy", metavar="FILE",
    )  # fmt: skip
    prompts_digest: str | None = option(None, "", "of the file, by which a run knows it again")
    sequences: int | None = option(
        None,
        DATA,
        "number of training prompts (infinitely many if omitted)",
        metavar="P",
        least=1,
        page=(0, 80_000),
    )
    match: bool = option(
        False,
        DATA,
        "whiten the task vectors and centre the inputs of the sample",
        needs=("sequences",),
    )
    average: bool = option(
        False,
        DATA,
        "take the mean over tasks exactly, so that fewer sequences suffice",
        needs=("sequences",),
    )
    loss: str = option(
        "auto", DATA, "level of exactness (auto: the cheapest exact one)",
        choices=(
            "auto", "sequences", "features", "statistics", "moments", "draws", "large-context",
            "population",
        ),
    )  # fmt: skip
    batch: int | None = option(
        None, DATA, "train on minibatches of B sequences", metavar="B", least=1,
        needs=("dynamics", "descent"),
    )  # fmt: skip
    fresh: bool = option(False, DATA, "draw new sequences for every batch")
    dynamics: str = option(
        "descent",
        DYNAMICS,
        "gradient descent in steps, or gradient flow",
        choices=("descent", "flow"),
    )
    optimiser: str = option(
        "gd", DYNAMICS, "update rule of descent", choices=("gd", "momentum", "adam"),
        needs=("dynamics", "descent"),
    )  # fmt: skip
    momentum: float | None = option(
        None,
        DYNAMICS,
        "decay of the momentum (0.9)",
        least=0,
        most=1,
        needs=("optimiser", "momentum"),
    )
    rate: float | None = option(
        None, DYNAMICS, "learning rate (a quarter of the stability limit; 0.001 for Adam)", above=0,
        needs=("dynamics", "descent"), page=(0, 20),
    )  # fmt: skip
    steps: int | None = option(
        None, DYNAMICS, "training steps (past the predicted drops; 10001 if none is predicted)",
        least=1, most=LONGEST,
        needs=("dynamics", "descent"), page=(0, 1e6),
    )  # fmt: skip
    time: float | None = option(
        None, DYNAMICS, "end of training as t/tau = 2 * rate * steps, instead of --steps", above=0
    )
    tolerance: float | None = option(
        None, DYNAMICS, "tolerance of the flow (1e-9)", above=0, most=1, needs=("dynamics", "flow")
    )
    seeds: int = option(
        1, RUNS, "number of runs, each from its own seed", least=1, most=SEEDS, page=(1, 100)
    )
    seed: int = option(0, RUNS, "the first seed", least=0, most=SEEDS - 1, page=(0, SEEDS - 101))
    vary: str = option("weights", RUNS, "what the seeds change", choices=("weights", "data", "all"))
    data_seed: int = option(
        1,
        RUNS,
        "seed of the training prompts",
        least=0,
        most=SEEDS - 1,
        needs=("sequences",),
        page=(0, SEEDS - 1),
    )
    eigen_seed: int = option(
        EIGEN_SEED,
        RUNS,
        "seed of the eigenvectors, of the pool and of w*",
        least=0,
        most=SEEDS - 1,
        page=(0, SEEDS - 1),
    )
    save: str = option(
        "auto:400", RUNS, "when to record: log:COUNT, linear:COUNT, mixed:COUNT, auto:COUNT "
        "(dense at drops), all, or a list of steps", metavar="WHEN",
    )  # fmt: skip
    record: tuple[str, ...] | None = option(
        None,
        RUNS,
        "what to record (loss, values, and the weights while they are small)",
        metavar="NAMES",
    )
    change: tuple[str, ...] | None = option(
        None, DYNAMICS, "change the task at a step (flow: time), e.g. '3000: noise=0.5'; may be "
        "repeated", metavar="STEP:FIELD=VALUE", kind=Variants,
    )  # fmt: skip
    test: tuple[str, ...] | None = option(
        None, RUNS, "test on another task too, e.g. 'turned: spectrum=0.1,0.2,0.3,0.4'; may be "
        "repeated", metavar="NAME:FIELD=VALUE", kind=Variants,
    )  # fmt: skip
    test_context: tuple[int, ...] | None = option(
        None, RUNS, "test at these context lengths, e.g. 8,31,100", metavar="LIST", least=1
    )

    def __post_init__(self) -> None:
        check_all(self)
        if self.layers is not None:  # a depth makes one layer the first of several
            object.__setattr__(self, "model", DEEP.get(self.model, self.model))
        if self.dynamics == "flow" and self.time is None:
            raise ValueError("the flow needs an end time t/τ; give time, for example 4000")
        self._require_useful()
        self._require_own_prompts()
        if self.steps is not None and self.time is not None:
            raise ValueError("steps and time both say when the run ends; give one of them")
        if self.eigen_seed != EIGEN_SEED and not (self.rotate or self.pool or self.fixed_fraction):
            raise ValueError(
                "eigen_seed does nothing without rotate, a pool or a fixed task; give rotate to "
                "draw the eigenvectors, or leave eigen_seed out"
            )
        if 0 < self.scale < SMALLEST:
            raise ValueError(
                f"a scale of {self.scale:g} is lost in rounding, since products of three weights "
                f"fall below the smallest number; give 0, or at least {SMALLEST:g}"
            )
        if self.fresh and self.batch is None:
            raise ValueError("fresh data need a batch size; give batch, for example 512")
        if self.batch is not None and not self.finite and not self.fresh:
            raise ValueError("batches of what? give a number of sequences, or fresh")
        if self.vary == "data" and self.sequences is None and not self.fresh:
            raise ValueError(
                "vary data: the population has no data to vary, all runs would be equal; give a "
                "number of sequences, or vary weights"
            )
        if (self.test or self.test_context) and self.vary == "all":
            raise ValueError("a test is of one task, and vary all has one per seed; vary weights")
        if self.change and self.steps is None and self.time is None:
            raise ValueError("a run whose task changes needs an end; give steps, or time")
        end = self.time if self.dynamics == "flow" else self.steps
        for item in self.change or ():
            step, _ = variant("change", item)
            if end is not None and float(step) >= end:
                raise ValueError(
                    f"the change at {step} comes after the end of the run at {end:g}, so that it "
                    f"does nothing; leave it out"
                )
        if self.change and self.fixed_fraction > 0:
            raise ValueError("change does not go with fixed_fraction; leave one of them out")
        for name in ("seed", "data_seed", "eigen_seed"):
            if getattr(self, name) + self.seeds > SEEDS:
                raise ValueError(f"{name} and seeds together must be at most 2^32")

    @property
    def finite(self) -> bool:
        """Whether training is on finitely many prompts, drawn or given."""
        return self.sequences is not None or self.prompts is not None

    def _require_own_prompts(self) -> None:
        """Refuse what would say again, or otherwise, what a file of prompts says itself."""
        if self.prompts is None:
            if self.prompts_digest is not None:
                raise ValueError("prompts_digest does nothing without prompts; leave it out")
            return
        default = {field.name: field.default for field in dataclasses.fields(self)}
        for name, (_, about) in FIELDS.items():
            said = about.group == TASK and name not in OF_PROMPTS
            if (said or name in DRAWN) and getattr(self, name) != default[name]:
                raise ValueError(
                    f"{name} does nothing with prompts: {self.prompts} says what is trained on; "
                    f"leave one of them out"
                )
        if self.vary != "weights":
            raise ValueError(f"vary {self.vary}: the prompts are given; vary weights")
        if self.loss in OF_TASKS:
            raise ValueError(f"given prompts have no {self.loss}; leave loss out")
        if self.prompts_digest is None:
            from iclflow.results.files import digest  # NumPy: only when there is a file

            object.__setattr__(self, "prompts_digest", digest(self.prompts.split(",")))

    def _require_useful(self) -> None:
        """Refuse what was set and would do nothing."""
        default = {field.name: field.default for field in dataclasses.fields(self)}
        for name, (_, about) in FIELDS.items():
            if not about.needs or getattr(self, name) == default[name]:
                continue
            other, *values = about.needs
            found = getattr(self, other)
            if found == default[other] if not values else found not in values:
                how = f"with {other} {found}" if values else f"without {other}"
                raise ValueError(f"{name} does nothing {how}; leave it out")


FIELDS = described(Fields)


# What the variants of an option are called, and an example of one.
VARIANTS = {"test": ("NAME", "long: context=200"), "change": ("STEP", "3000: noise=0.5")}


def variant(name: str, item: str) -> tuple[str, dict[str, Any]]:
    """The name of one of the variants `NAME: FIELD=VALUE; FIELD=VALUE`, and what it changes.

    A test without a name is called by what it changes. The name of a change is its step.

    - `name`: the option, `test` or `change`.
    - `item`: the variant.

    >>> from iclflow.study.fields import variant
    >>> variant("test", "long: context=200; noise=0.5")
    ('long', {'context': 200, 'noise': 0.5})
    >>> variant("test", "context=200")
    ('context=200', {'context': 200})
    """
    called, colon, rest = item.partition(":")
    if not colon or "=" in called:
        called, rest = item, item
    allowed = [field for field, (_, about) in FIELDS.items() if about.group == TASK]
    allowed += [] if name == "test" else ["sequences", "data_seed"]
    fields: dict[str, Any] = {}
    for part in filter(str.strip, rest.split(";")):
        said, equals, text = (one.strip() for one in part.partition("="))
        field = said.replace("-", "_")
        if not equals or not text:
            raise ValueError(
                f"{name} needs {VARIANTS[name][0]}: FIELD=VALUE, got {short(item)}; for example "
                f"{VARIANTS[name][1]}"
            )
        require_choice(f"field of {name}", field, allowed)
        kind, about = FIELDS[field]
        plain = {"true": True, "false": False}.get(text, text)
        fields[field] = (
            about.check(field, kind, plain) if kind is bool else about.read(field, kind, text)
        )
    called = called.strip()
    if name == "change":
        try:
            step = float(called)
        except ValueError:
            step = math.nan
        if not 0 < step < math.inf or not fields:
            raise ValueError(
                f"change needs STEP: FIELD=VALUE, got {short(item)}; for example 3000: noise=0.5"
            )
        called = str(int(step)) if step == int(step) else repr(step)  # 3e3 is the step 3000
    return called, fields


def _variants(name: str, value: Any) -> tuple[str, ...]:
    """The variants of a text, a list of texts, or tables by name, each checked and as a text."""
    if isinstance(value, Mapping):
        if not all(isinstance(table, Mapping) for table in value.values()):
            raise ValueError(f"{name} needs a table for each of its names, got {short(value)}")
        rows = [
            f"{called}: " + "; ".join(f"{field}={_text(v)}" for field, v in table.items())
            for called, table in value.items()
        ]
    else:
        rows = [value] if isinstance(value, str) else value
    if not isinstance(rows, list | tuple) or not rows:
        raise ValueError(f"{name} needs {VARIANTS[name][0]}: FIELD=VALUE, got {short(value)}")
    found = {}
    for row in rows:
        if not isinstance(row, str):
            raise ValueError(f"{name} needs {VARIANTS[name][0]}: FIELD=VALUE, got {short(row)}")
        called, _ = variant(name, row)
        if called in found:
            raise ValueError(f"{name} states {called} twice; leave one of them out")
        found[called] = row.strip()
    return tuple(found.values())


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_names(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a file states, by the names of the fields; `ValueError` for a name there is not."""
    names = {alias: name for name, (_, about) in FIELDS.items() for alias in about.aliases}
    given = {}
    for said, value in found.items():
        name = names.get(said.replace("-", "_"), said.replace("-", "_"))
        require_choice(f"setting in {where}", name, list(FIELDS))
        if name in given:
            raise ValueError(f"{where} states {name} twice, once as {said}; leave one of them out")
        kind, about = FIELDS[name]
        given[name] = about.check(name, kind, value)
    return given
