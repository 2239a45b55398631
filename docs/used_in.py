"""API pages: examples of docstrings as code, and the examples of the gallery that use a name."""

import re
import sys
from pathlib import Path
from typing import Any

from griffe import Docstring, Extension, Object

sys.path.insert(0, str(Path(__file__).parent))
import gallery

SESSION = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)  # up to an empty line


class UsedIn(Extension):
    """Fences the examples of docstrings, and adds links to the gallery."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one class or function; without an example it stays."""
        users = gallery.users().get(obj.path, [])
        said = obj.docstring.value if obj.docstring is not None else ""
        # Without a fence Markdown takes >>> for quotations and a printed list for a link.
        text = SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", said)
        if users:
            links = ", ".join(f"[{one.question}][gallery-{one.name}]" for one in users)
            text = f"{text}\n\n*In the gallery:* {links}"
        if text != said:
            obj.docstring = Docstring(text, parent=obj)
