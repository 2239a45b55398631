"""Print the lowest version that `pyproject.toml` allows of every dependency, as pip constraints.

python release/lowest.py > lowest.txt
"""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(project: dict) -> list[str]:
    """`name==version` for every requirement; `ValueError` for one without a lower bound alone."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = []
    for requirement in sorted({line for group in groups for line in group}):
        parts = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement)
        if parts is None:
            raise ValueError(f"{requirement!r} must be a name and a lower bound, name>=version")
        found.append(f"{parts[1]}=={parts[2]}")
    return found


if __name__ == "__main__":
    print("\n".join(lowest(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"])))
