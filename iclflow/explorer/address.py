"""Settings of `iclflow simulate` as an address of the page, refused where it has no such thing."""

from collections.abc import Mapping
from typing import Any

from iclflow.study.fields import from_names
from iclflow.study.settings import Settings
from iclflow.study.study import Study

MODELS = ("separate", "merged", "linear-transformer", "softmax-separate", "softmax-merged")
MIXED = ("separate", "merged")  # those that have a fixed task
COMPONENTS = 8

# Name -> least and largest value, those of `web/page/settings.js` (a test compares them).
BOUNDS: dict[str, tuple[float, float]] = {
    "spectrum": (0.005, 2), "task_covariance": (0.1, 8), "context": (1, 1000), "noise": (0, 3),
    "fixed_fraction": (0, 1), "heads": (1, 16), "rank": (1, 8), "scale": (1e-6, 3),
    "eigen_seed": (0, 2**32 - 1), "sequences": (0, 80_000), "data_seed": (0, 2**32 - 1),
    "rate": (0, 20), "steps": (0, 1e6), "seeds": (1, 100), "seed": (0, 2**32 - 101),
}  # fmt: skip
_OF_FILES = {"save", "record"}  # when and what a file records: the page keeps what it shows
INSTEAD = "iclflow simulate --plot draws it"


def address(given: Mapping[str, Any]) -> str:
    """The part after # of a page with these settings; `ValueError` for what the page has not."""
    settings = require_page(Settings(**from_names(given, "the settings")))
    fields = {name: getattr(settings, name) for name in (*BOUNDS, "model", "rotate")}
    fields["spectrum"] = tuple(settings.task().spectrum.tolist())
    if settings.time is not None:
        fields["steps"] = Study.of(settings).until
    changed = {k: v for k, v in fields.items() if v not in (None, getattr(Settings, k))}
    return "&".join(f"{name}={_text(value)}" for name, value in changed.items()) or "seeds=1"


def require_page(settings: Settings) -> Settings:
    """The settings, refused unless the page can train them."""
    if settings.model not in MODELS:
        raise ValueError(f"the page has no model {settings.model!r}; it has {', '.join(MODELS)}")
    known = {*BOUNDS, *_OF_FILES, "model", "rotate", "blocks", "dim", "trace", "time"}
    for name in vars(settings):
        if name not in known and getattr(settings, name) != getattr(Settings, name, None):
            raise ValueError(f"the page has no {name.replace('_', ' ')}; leave it out; {INSTEAD}")
    if settings.fixed_fraction > 0:
        _require_mixture(settings)
    elif settings.blocks == "full":
        raise ValueError(
            "the page trains no zero blocks; leave blocks out, or train them with iclflow simulate "
            "--out run.nc and explore that file"
        )
    spectrum = settings.spectrum
    if not isinstance(spectrum, str) and list(spectrum) != sorted(spectrum, reverse=True):
        raise ValueError(
            "the page has the eigenvalues largest first, and in another order a seed is another "
            "start; give them in that order"
        )
    size = settings.task().size
    if size > COMPONENTS:
        raise ValueError(f"the page has up to {COMPONENTS} components, got {size}; {INSTEAD}")
    for name, (low, high) in BOUNDS.items():
        found = settings.task().spectrum.tolist() if name == "spectrum" else getattr(settings, name)
        for value in found if isinstance(found, list | tuple) else [found]:
            if value is not None and not low <= value <= high:
                raise ValueError(
                    f"{name} of the page is {low:g} to {high:g}, got {value:g}; {INSTEAD}"
                )
    return settings


def _require_mixture(settings: Settings) -> None:
    """A fixed task is trained in the population, with every block."""
    if settings.model not in MIXED:
        raise ValueError(f"with a fixed task the page has {' and '.join(MIXED)}; {INSTEAD}")
    if settings.sequences is not None or settings.blocks == "frozen":
        raise ValueError(
            f"with a fixed task the page trains every block in the population; leave sequences and "
            f"blocks out; {INSTEAD}"
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(repr, value)) if isinstance(value, list | tuple) else str(value)
