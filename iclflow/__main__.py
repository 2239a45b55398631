"""`python -m iclflow`."""

from iclflow.cli import program

if __name__ == "__main__":
    program()
