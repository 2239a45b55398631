"""Settings of `iclflow simulate` as an address of the page, refused where it has no such thing.

`python -m iclflow.explorer.address` writes what the page knows of the options of `simulate`, its
file `web/page/options.js`; a test holds the two together.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iclflow.results.files import write_text
from iclflow.study.fields import FIELDS, from_names, kinds_of
from iclflow.study.study import Settings, Study

MODELS = ("separate", "merged", "linear-transformer", "softmax-separate", "softmax-merged")
MIXED = ("separate", "merged")  # those that have a fixed task
DEEP = "layers-separate"  # two layers of it, under the name of one
COMPONENTS = 8
DEEP_COMPONENTS = 4  # of two layers

# Name -> least and largest value on the page.
BOUNDS = {name: about.page for name, (_, about) in FIELDS.items() if about.page is not None}
_OF_FILES = {"save", "record"}  # when and what a file records: the page keeps what it shows
INSTEAD = "iclflow simulate --plot draws it"


def address(given: Mapping[str, Any]) -> str:
    """The part after # of a page with these settings; refuses what the page does not support."""
    settings = require_page(Settings(**from_names(given, "the settings")))
    fields = {name: getattr(settings, name) for name in (*BOUNDS, "model", "rotate")}
    if settings.model == DEEP:
        fields |= {"model": "separate", "layers": settings.layers or 2}
    fields["spectrum"] = tuple(settings.task().spectrum.tolist())
    if settings.time is not None:
        fields["steps"] = Study.of(settings).until
    changed = {k: v for k, v in fields.items() if v not in (None, getattr(Settings, k))}
    return "&".join(f"{name}={_text(value)}" for name, value in changed.items()) or "seeds=1"


def require_page(settings: Settings) -> Settings:
    """The settings, refused unless the page can train them."""
    if settings.model == DEEP:
        _require_two_layers(settings)
    elif settings.model not in MODELS:
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
    size, most = settings.task().size, DEEP_COMPONENTS if settings.model == DEEP else COMPONENTS
    if size > most:
        layers = " with two layers" if settings.model == DEEP else ""
        raise ValueError(f"the page has up to {most} components{layers}, got {size}; {INSTEAD}")
    for name, (low, high) in BOUNDS.items():
        found = settings.task().spectrum.tolist() if name == "spectrum" else getattr(settings, name)
        for value in found if isinstance(found, list | tuple) else [found]:
            if value is not None and not low <= value <= high:
                raise ValueError(
                    f"{name} of the page is {low:g} to {high:g}, got {value:g}; {INSTEAD}"
                )
    return settings


def _require_two_layers(settings: Settings) -> None:
    """Two layers are trained with heads of rank one, in the population."""
    if settings.rank > 1 or settings.sequences is not None or settings.fixed_fraction > 0:
        raise ValueError(
            f"two layers of the page have heads of rank one and infinitely many prompts; leave "
            f"rank, sequences and fixed_fraction out; {INSTEAD}"
        )


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


def options() -> str:
    """The page's module with models, defaults, bounds and whole numbers of `simulate`.

    The page has a number where `simulate` leaves one out: one layer, 0 sequences for the
    population, the rate and the steps 0 where the page chooses them, and a variance of 1 for every
    component.
    """
    spectrum = Settings.spectrum
    defaults = {name: getattr(Settings, name) for name in ("model", *BOUNDS, "rotate")}
    defaults = {name: 0 if value is None else value for name, value in defaults.items()}
    defaults |= {"task_covariance": [1] * len(spectrum), "layers": 1}
    whole = [name for name in BOUNDS if int in kinds_of(FIELDS[name][0])]
    parts = {
        "MODELS": ("The models of the page.", list(MODELS)),
        "COMPONENTS": ("Components at most.", COMPONENTS),
        "DEEP_COMPONENTS": ("The same of two layers.", DEEP_COMPONENTS),
        "DEFAULTS": ("What `iclflow simulate` takes where nothing is said.", defaults),
        "BOUNDS": ("Least and largest value. @type {Record<string, [number, number]>}", BOUNDS),
        "WHOLE": ("Those that are whole numbers.", whole),
    }
    lines = ["// Options of `iclflow simulate`: written by `python -m iclflow.explorer.address`."]
    for name, (about, value) in parts.items():
        lines += ["", f"/** {about} */", f"export const {name} = {_script(value)};"]
    return "\n".join(lines) + "\n"


def _script(value: Any) -> str:
    """A value as JavaScript, laid out as the page's other modules are."""
    if isinstance(value, dict):
        rows = "".join(f"  {name}: {_script(one)},\n" for name, one in value.items())
        return f"{{\n{rows}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_script, value))}]"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-").removesuffix(".0")
    return json.dumps(value)


if __name__ == "__main__":
    print(write_text(Path(__file__).parent / "web" / "page" / "options.js", options()))
