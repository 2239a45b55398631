"""What a model is doing: stages, in-context algorithms and geometry of a run or of checkpoints.

RUN.nc (from `simulate --out`): one line per stage with the in-context algorithm. A log of losses
(CSV, trainer_state.json, TensorBoard, W&B, MLflow): its plateaus, and the theory's levels and next
drop. Anything else, or --hf: a series of checkpoints, head by head, with the loss of the log that
lies in the same folder.
"""

import argparse
from pathlib import Path
from typing import Any

from iclflow.cli.diagnose_checkpoints import diagnose_checkpoints
from iclflow.cli.diagnose_curve import diagnose_a_curve
from iclflow.cli.diagnose_output import require_free
from iclflow.cli.diagnose_runs import diagnose_our_runs
from iclflow.cli.options import above_zero, add_settings, floats, names, positive, seed, typed
from iclflow.cli.outputs import add_force
from iclflow.study.fields import MODEL, TASK, described

EXAMPLES = """examples:
  iclflow simulate --heads 5 --scale 0.05 --out run.nc
  iclflow diagnose run.nc --plot run.png
  iclflow diagnose run.nc --test-context 100 --test-scale 2          # on shifted prompts
  iclflow diagnose loss.csv --spectrum 0.4,0.3,0.2,0.1 --context 31 --rate 0.1 --scale 0.01
  iclflow diagnose runs/events.out.tfevents.1 --column train/loss
  iclflow diagnose trainer_output --plot run.png                     # weights, loss and stages
  iclflow diagnose 'checkpoints/step*/model.safetensors' --plot heads.png --keep-going
  iclflow diagnose --hf EleutherAI/pythia-70m --revisions step0,step512,step143000

Checkpoints: safetensors or NumPy, 22 families of names. Pickles are never loaded.
"""


# Options that concern one kind of input alone, and what they are where they are not given.
RUN = {"prompts": 2000, "test_context": None, "test_spectrum": None, "test_scale": 1.0}
SERIES = {"hf": None, "revisions": None, "measures": None, "subspace": 8, "stack": None}
SERIES |= {"show": None, "keep_going": False, "log": None, "column": None}
CURVE = {"rate": None, "starts": 32, "convention": "iclflow", "floor": 0.0, "column": None}
THEORY = {name: None for name, (_, about) in described().items() if about.group in (TASK, MODEL)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read; then the options of each kind."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="run, curve, or checkpoints")
    parser.add_argument("--out", type=Path, metavar="FILE.nc", help="write the measures")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the figure")
    parser.add_argument("--clock", choices=("log", "linear"), default="log",
                        help="in which plateaus are long (log)")  # fmt: skip
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    run = parser.add_argument_group("a run")
    run.add_argument("--seed", type=seed, help="only this run of the file; starts of a curve")
    run.add_argument("--prompts", type=positive,
                     help="sampled for algorithms not known by moments (2000)")  # fmt: skip
    run.add_argument("--test-context", type=positive, metavar="N", help="compare at another N")
    run.add_argument("--test-spectrum", type=floats, help="compare on other eigenvalues")
    run.add_argument("--test-scale", type=above_zero, help="on x times this")
    series = parser.add_argument_group("checkpoints")
    series.add_argument("--hf", metavar="OWNER/MODEL", help="of the Hugging Face Hub")
    series.add_argument("--revisions", type=names, help="of --hf, e.g. step0,step512")
    series.add_argument("--measures", type=names, help="e.g. norm,effective_rank,stable_rank")
    series.add_argument("--subspace", type=positive, help="dimension (8)")
    series.add_argument("--stack", help="which layers, where there are several stacks: encoder")
    series.add_argument("--log", help="of the losses, if it is not in the folder")
    series.add_argument("--show", help="the measure to draw (the first)")
    series.add_argument("--keep-going", action="store_const", const=True,
                        help="leave out broken checkpoints (then exit code 1)")  # fmt: skip
    curve = parser.add_argument_group("a loss curve")
    curve.add_argument("--column", help="the loss among the columns or tags of a log")
    curve.add_argument("--rate", type=above_zero, help="learning rate")
    curve.add_argument("--starts", type=typed(int, least=1, most=4096), help="drawn starts (32)")
    curve.add_argument("--convention", choices=("iclflow", "published"),
                       help="whose rate and scale these are (published: no 1/N)")  # fmt: skip
    curve.add_argument("--floor", type=typed(float),
                       help="loss to subtract, such as the target noise")  # fmt: skip
    add_settings(parser, TASK, MODEL)


def prepare(args: argparse.Namespace, kind: str, *mine: dict[str, Any]) -> None:
    """Refuse options that say nothing about this kind of input, and files that are taken."""
    for options in (RUN, SERIES, CURVE, THEORY):
        for name, default in options.items():
            given = getattr(args, name) is not None
            if given and not any(name in used for used in mine):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} says nothing about {kind}; leave it out")
            if not given:
                setattr(args, name, default)
    require_free(args)


def run(args: argparse.Namespace) -> int:
    """Dispatch on what the path is."""
    if args.hf is not None:
        if args.paths:
            raise ValueError("give paths or --hf, not both")
        if not args.revisions:
            raise ValueError("--hf needs --revisions, for example --revisions step0,step512")
        prepare(args, "checkpoints", SERIES, {"heads": None})
        return diagnose_checkpoints(args)
    if not args.paths:
        raise ValueError("name a run (.nc), a log of losses or checkpoints")
    for belongs, handler, kind, mine in (
        (lambda path: path.suffix.lower() == ".nc", diagnose_our_runs, "a run", (RUN,)),
        (holds_losses_alone, diagnose_a_curve, "a loss curve", (CURVE, THEORY)),
    ):
        if any(belongs(Path(path)) for path in args.paths):
            if len(args.paths) > 1:
                raise ValueError(f"{kind}: one file at a time, got {len(args.paths)} paths")
            prepare(args, kind, *mine)
            return handler(args)
    prepare(args, "checkpoints", SERIES, {"heads": None})
    return diagnose_checkpoints(args)


def holds_losses_alone(path: Path) -> bool:
    """A log, or a folder with a log and no weights."""
    from iclflow.checkpoints.series import has_checkpoints
    from iclflow.diagnosis.logs import find_log, is_log

    if path.is_dir():
        return not has_checkpoints(path) and find_log(path) is not None
    return is_log(path)
