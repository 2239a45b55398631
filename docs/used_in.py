"""API pages: below each docstring, the examples of the gallery that use the name."""

import sys
from pathlib import Path
from typing import Any

from griffe import Docstring, Extension, Object

sys.path.insert(0, str(Path(__file__).parent))
import gallery


class UsedIn(Extension):
    """Adds a line of links to the docstrings of classes and functions."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Add the line, where there are such examples."""
        users = gallery.users().get(obj.path, [])
        if not users:
            return
        links = ", ".join(f"[{one.question}][gallery-{one.name}]" for one in users)
        said = obj.docstring.value if obj.docstring is not None else ""
        obj.docstring = Docstring(f"{said}\n\n*In the gallery:* {links}", parent=obj)
