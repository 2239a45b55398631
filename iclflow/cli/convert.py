"""Rate, init and clock of a run in the words of another code: iclflow, the published one, PyTorch.

For plain gradient descent on linear attention of one fixed length, where conventions are rescalings
of one another and a converted run has the same loss at every step. Numbers only: files of PyTorch
become safetensors by `python -m iclflow.checkpoints.convert FILE`.
"""

import argparse
from typing import Any

from iclflow.cli.options import above_zero, positive, print_json, typed

EXAMPLES = """examples:
  # the published command for Fig. 3, here
  iclflow convert --convention published --heads 5 --rate 0.02 --init 0.01 --steps 10001
  # what an init scale is in each code, and how many steps t/tau = 4000 takes
  iclflow convert --model merged --heads 8 --dim 4 --scale 1e-3 --rate 0.1 --time 4000
  # PyTorch's defaults on a loss with 1/2
  iclflow convert --convention torch --heads 4 --dim 8 --rate 0.01 --loss-factor 0.5 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sizes, and the numbers as one code states them."""
    sizes = parser.add_argument_group("model")
    sizes.add_argument("--model", choices=("separate", "merged"), default="separate")
    sizes.add_argument("--heads", type=positive, default=5, metavar="H")
    sizes.add_argument(
        "--rank", type=positive, default=1, metavar="R", help="rank of keys and queries (1)"
    )
    sizes.add_argument("--dim", type=positive, default=4, metavar="D", help="number of inputs (4)")
    sizes.add_argument(
        "--context",
        type=positive,
        default=31,
        metavar="N",
        help="labelled pairs, without the query (31)",
    )
    said = parser.add_argument_group("as a code says it")
    names = ("iclflow", "published", "published-newest", "torch", "entries")
    said.add_argument(
        "--convention", choices=names, default="iclflow",
        help="what init means: norm of each layer, the flag of the published code (when its "
        "figures were made, or now), multiples of torch.nn.Linear's default, or the standard "
        "deviation of every entry",
    )  # fmt: skip
    said.add_argument(
        "--rate", type=above_zero, default=0.1, help="learning rate of gradient descent (0.1)"
    )
    said.add_argument(
        "--scale", "--init", dest="scale", type=typed(float, least=0), metavar="W",
        help="init scale (0.01; torch: 1)",
    )  # fmt: skip
    said.add_argument(
        "--normaliser", choices=("pairs", "tokens", "context", "none"),
        help="what attention divides by: N, N + 1, N, 1; that of the convention if omitted",
    )  # fmt: skip
    said.add_argument(
        "--loss-factor", type=above_zero, default=1.0, metavar="C",
        help="factor C of the loss C E(y - y')^2, often 0.5 (1)",
    )  # fmt: skip
    ends = said.add_mutually_exclusive_group()
    ends.add_argument("--steps", type=positive, help="give this number of steps as t/tau")
    ends.add_argument("--time", type=above_zero, help="give this time t/tau in steps")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Convert into every convention and report."""
    from iclflow.published import Convention, Shape, Stated
    from iclflow.tasks.base import Normaliser

    convention = Convention(args.convention)
    default = 1.0 if convention is Convention.TORCH else 0.01
    init = default if args.scale is None else args.scale
    given = Stated(
        Shape(args.model, args.heads, args.rank, args.dim, args.context),
        convention,
        args.rate,
        (init, init),
        None if args.normaliser is None else Normaliser(args.normaliser),
        args.loss_factor,
    )
    steps = args.steps if args.time is None else args.time / given.clock
    found: dict[str, Any] = {
        "clock": given.clock,
        "steps": steps,
        "time": None if steps is None else steps * given.clock,
        "given": described(given),
        "conventions": {one.value: described(given.to(one)) for one in Convention},
    }
    if args.json:
        print_json(found)
    else:
        show(found)
    return 0


def described(stated: Any) -> dict[str, Any]:
    """A run in plain values."""
    values, others = stated.deviations
    return {
        "divides_by": stated.divisor,
        "loss_factor": stated.loss_factor,
        "rate": stated.rate,
        "init_values": stated.init[0],
        "init_others": stated.init[1],
        "deviation_values": values,
        "deviation_others": others,
    }


def show(found: dict[str, Any]) -> None:
    """A line for each convention."""
    line = "{:<17} {:>4} {:>9}  {:<22} {:<22}"
    head = ("convention", "F", "rate", "init (values, others)", "std (values, others)")
    print(line.format(*head).rstrip())
    for name, row in {"as given": found["given"], **found["conventions"]}.items():
        pairs = [
            ", ".join(f"{row[f'{what}_{layer}']:.5g}" for layer in ("values", "others"))
            for what in ("init", "deviation")
        ]
        print(line.format(name, row["divides_by"], f"{row['rate']:.5g}", *pairs).rstrip())
    print("attention is divided by F; others: keys and queries, or the merged matrix")
    print(f"one step is t/τ = {found['clock']:.6g}")
    if found["given"]["loss_factor"] != 1:
        print("the rates but that given are for a loss without a factor")
    if found["steps"] is not None:
        print(f"{found['steps']:.6g} steps are t/τ = {found['time']:.6g}")
