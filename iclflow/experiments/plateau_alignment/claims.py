"""The claims about alignment on plateaus, from the population runs of Fig. 3."""

import xarray as xr

from iclflow.experiments.base import Claim, below


def errors(data: xr.Dataset, theory: str) -> xr.DataArray:
    """|(k, q) - theory|/|(k, q)| late on every plateau, by head; NaN of those that have learned."""
    axes = ("side", "component")
    square = ((data["end"] - data[theory]) ** 2).sum(axes) / (data["end"] ** 2).sum(axes)
    return (square**0.5).where(data["dormant"])


def claims(data: xr.Dataset) -> list[Claim]:
    """The first plateau, the later ones as printed, and with the third term corrected."""
    scale = float(data.attrs["scale"])
    first = errors(data, "theory").isel(plateau=0)
    later, printed, still = (
        errors(data, name).isel(plateau=slice(1, None)) for name in ("theory", "printed", "start")
    )
    frozen = errors(data, "start").isel(plateau=0)
    reason = "(62) leaves out terms of higher order in the size w of small heads; w"
    return [
        below(
            "plateau-alignment",
            "On the first plateau k ± q of every head grow and decay as e^{±λ² ∫v dt} along each "
            "eigenvector", "(62)(63)", float(first.max()), scale, reason,
            f"relative error of (k, q) at four fifths of the plateau from its start, largest over "
            f"{first.count():d} heads of six seeds; if nothing moved "
            f"{float(frozen.max()):.2g}", population=True,
        ),
        below(
            "plateau-alignment-later", "On later plateaus they do so along the unlearned "
            "eigenvectors, and are frozen along the others: median error of the printed form",
            "(70)", float(printed.median()), scale, reason,
            "the third term as printed gives key and query the same components, their sum, along "
            "learned eigenvectors", population=True,
        ),
        below(
            "plateau-alignment-frozen", "each of key and query by itself: median error with "
            "(k·e)[e; 0] + (q·e)[0; e] for the third term", "E6", float(later.median()), scale,
            reason, f"heads that learned nothing before, {later.count():d} of them; largest "
            f"{float(later.max()):.2g}, where two drops nearly coincide; if nothing moved "
            f"{float(still.median()):.2g}", population=True, beyond=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim another theory that turns its verdict round.

    - `plateau-alignment` and `plateau-alignment-frozen`: heads that stay as they were.
    - `plateau-alignment-later`: the corrected form E6 in place of the printed one.
    """
    return {
        "plateau-alignment": data.assign(theory=data["start"]),
        "plateau-alignment-later": data.assign(printed=data["theory"]),
        "plateau-alignment-frozen": data.assign(theory=data["start"]),
    }
