"""`python -m iclflow`."""

import sys

from iclflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
