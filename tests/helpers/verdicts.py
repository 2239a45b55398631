"""Whether controls turn the verdicts of claims round."""

from collections.abc import Callable
from typing import Any


def unmoved(data: Any, claims: Callable[..., Any], controls: Callable[..., Any]) -> list[str]:
    """The claims whose control does not turn their verdict round.

    A control is data altered so that what is claimed is no longer so, or, where a claim does not
    hold, would be; `controls` gives one or several by claim. A verdict that nothing can turn round
    says nothing.
    """
    altered = controls(data)

    def verdicts(id: str) -> set[bool]:
        found = altered.get(id, ())
        others = found if isinstance(found, tuple) else (found,)
        return {claim.holds for other in others for claim in claims(other) if claim.id == id}

    return [claim.id for claim in claims(data) if (not claim.holds) not in verdicts(claim.id)]
