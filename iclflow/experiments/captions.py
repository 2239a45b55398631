"""What a caption takes from the data of its figure: field of the caption -> words.

A quick figure has fewer runs than one at paper scale, and its numbers are others; so a caption that
names them is filled in when the figure is drawn.
"""

from collections.abc import Iterable

import numpy as np
import xarray as xr

_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(number: int, what: str = "") -> str:
    """A number in words up to ten, with the noun that it counts.

    >>> from iclflow.experiments.captions import count
    >>> count(6, "seed"), count(1, "run"), count(32)
    ('six seeds', 'one run', '32')
    """
    word = _COUNTS[number] if number < len(_COUNTS) else f"{number:,}"
    if not what:
        return word
    return f"{word} {what}{'' if number == 1 else 's'}"


def listed(values: Iterable[int]) -> str:
    """Numbers in a sentence.

    >>> from iclflow.experiments.captions import listed
    >>> listed([1, 2, 4])
    '1, 2 and 4'
    """
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}" if others else last


def share(value: float) -> str:
    """A share in per cent, with two digits at most."""
    return f"{100 * value:.2g}%"


def staircase(data: xr.Dataset) -> dict[str, str]:
    """Figures 3 and 7: how many starts, and how far the two predictions are off."""
    data = data.sel(source="sequences")
    measured, predicted = data["drop_time"].values, data["staircase_time"].values
    lasted = np.diff(measured, axis=1, prepend=0.0)
    paper = data["paper_duration"].values / lasted
    ours = np.abs(np.diff(predicted, axis=1, prepend=0.0) / lasted - 1)
    return {
        "starts": count(data.sizes["seed"], "initialisation").capitalize(),
        "runs": count(data.sizes["seed"], "training run").capitalize(),
        "prompts": f"{int(data.attrs['sequences']):,}",
        "paper": f"{float(np.nanmedian(paper)):.2g}",
        "ours": share(float(np.nanmedian(ours))),
    }


def ranks(data: xr.Dataset) -> dict[str, str]:
    """Figures 4, 8 and 9: the inputs, the ranks, and how many starts."""
    inputs = data.sizes["drop_number"]
    return {
        "inputs": count(inputs, "input dimension").capitalize(),
        "ranks": listed(data["rank"].values.tolist()),
        "starts": count(data.sizes["seed"], "initialisation"),
        "plateaus": count(inputs),
    }


def portions(data: xr.Dataset) -> dict[str, str]:
    """Figures 5 and 10: which portion is shown, and how many there are."""
    fixed = data["portion"].values
    return {
        "shown": f"{float(data.attrs['shown']):.0%}",
        "portions": count(len(fixed), "portion"),
        "from": f"{float(fixed.min()):.0%}",
        "to": f"{float(fixed.max()):.0%}",
    }


def fixed_points(data: xr.Dataset) -> dict[str, str]:
    """How many fixed points there are."""
    return {"points": f"{data.sizes['point']}"}


def alignment(data: xr.Dataset) -> dict[str, str]:
    """How many seeds there are."""
    return {"seeds": count(data.sizes["seed"], "seed")}


def softmax(data: xr.Dataset) -> dict[str, str]:
    """How many of its drops linear attention makes in the time shown, where it was trained too."""
    if "separate_linear" not in data:
        return {"linear": ""}
    levels, losses = data["separate_levels"].values, data["separate_linear"].values
    middles = (levels[1:] + levels[:-1]) / 2
    made = np.sum(losses[:, -1:] < middles[None], axis=1)
    low, high = int(made.min()), int(made.max())
    many = count(low) if low == high else f"{count(low)} to {count(high)}"
    return {
        "linear": f": in the time shown linear attention, from the same start on the same data "
        f"(dashed), makes {many} of its {count(len(middles))} drops"
    }


def datasets(data: xr.Dataset) -> dict[str, str]:
    """How many datasets there are of each size."""
    return {"datasets": count(data.sizes["dataset"], "dataset")}


def scales(data: xr.Dataset) -> dict[str, str]:
    """The smallest and the largest init scale."""
    found = data["merged_scale"].values
    return {"smallest": f"{found.min():.0e}", "largest": f"{found.max():g}"}


def modes(data: xr.Dataset) -> dict[str, str]:
    """How many modes there are."""
    return {"modes": count(data.sizes["mode"], "time scale").capitalize()}
