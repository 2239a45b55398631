"""What an experiment would take, from its sizes alone, before anything is drawn or compiled."""

from iclflow.losses.memory import require_memory
from iclflow.runs.cost import COPIES
from iclflow.study.fields import Fields

DRAWN = 10**12  # numbers that can be sampled in hours
SMALL = 2**26  # bytes of weights that are recorded without being asked for


def task_size(fields: Fields) -> int:
    """D."""
    named = isinstance(fields.spectrum, str)
    return (fields.dim or 1) if named else len(fields.spectrum)


def weight_count(fields: Fields) -> int:
    """The weights of one model, roughly."""
    token = task_size(fields) + 1
    layers = 1 if fields.tied else fields.layers or 1
    return layers * fields.heads * token * (token + 2 * fields.rank)


def save_count(fields: Fields) -> int:
    """How many times a run records, at most."""
    kind, _, argument = fields.save.partition(":")
    if kind == "all":
        return (fields.steps or 0) + 1
    if argument.isdigit() and len(argument) < 20:
        return 3 * int(argument)
    return fields.save.count(",") + 1


def require_room(fields: Fields) -> None:
    """Raise `ValueError` with what would be needed where memory or a day would not do."""
    size, weights = task_size(fields), weight_count(fields)
    points = fields.seeds * save_count(fields)
    require_memory(8 * 30 * size**2, f"inputs of {size} dimensions", "give fewer (dim)")
    if fields.fixed_fraction > 0 or fields.blocks == "full":
        features = size * (size + 1) * (size + 2) // 2
        if fields.sequences is None:
            require_memory(80 * features**2, f"moments of {features} features", "give fewer (dim)")
    require_memory(
        8 * COPIES * weights, f"{fields.heads} heads of rank {fields.rank}", "give fewer"
    )
    require_memory(32 * (fields.pool or 0) * size, "the tasks of the pool", "give a smaller pool")
    recorded = 4 + fields.heads + (weights if "weights" in (fields.record or ()) else 0)
    require_memory(
        8 * points * recorded,
        f"{points:.3g} recorded points of {fields.heads} heads",
        "give fewer seeds, or fewer times to save",
    )
    drawn = (fields.sequences or 0) * (fields.context + 1) * size
    if drawn > DRAWN:
        raise ValueError(
            f"{fields.sequences} sequences of {fields.context} pairs are {drawn:.1e} numbers to "
            f"draw, and {DRAWN:.0e} take hours; give fewer sequences, or none: the population"
        )
    require_memory(
        32 * (fields.batch or 0) * (fields.context + 1) * (size + 1),
        f"batches of {fields.batch} sequences",
        "give a smaller batch",
    )
