"""The explorer: a page that trains attention as you watch, and the library's numbers to hold it to.

`explore` writes the page; `web` holds its modules, plain JavaScript that needs no build.
"""

from iclflow.explorer.page import explore as explore
