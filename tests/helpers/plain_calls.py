"""Evaluates expressions as a user's session does, where no annotation is checked at run time.

The tests check every annotation, so that `Task([1.0], 2.5)` never reaches the library's own
checks there. This program is started as a process of its own. It reads a JSON list of expressions
from standard input, and writes a JSON list of what became of each: `["value", repr]` or
`["error", type, message]`. A line `name = expression` binds a name for those after it.
"""

import json
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

import iclflow as icl

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("error")  # a conversion that only warns is no answer
warnings.filterwarnings("ignore", message="A JAX array is being set as static")  # then we refuse


def main() -> None:
    """Evaluate all of standard input."""
    names = {"icl": icl, "jax": jax, "jnp": jnp, "np": np, "optax": optax}
    exec("from iclflow import *", names)
    found = []
    for text in json.load(sys.stdin):
        name, equals, expression = text.partition(" := ")
        try:
            value = eval(expression if equals else text, names)
            if equals:
                names[name] = value
            found.append(["value", repr(value)[:2000]])
        except Exception as error:
            found.append(["error", type(error).__name__, str(error)])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
