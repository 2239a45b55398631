"""Train with the flags and the conventions of the published code, in seconds."""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from iclflow.cli.options import add_settings, finished, given, print_json, train_into
from iclflow.results.messages import progress_bar
from iclflow.study.flags import DATA, MODEL, TRAINING, Options

EXAMPLES = """examples:
  iclflow train --model attnM --head 8 --init 1e-6 --show
  iclflow train --model mlp --cubic_feat --head 8 --init 1e-6
  iclflow train --model attnS --head 5 --init 1e-2 --epoch 10001 --lr 0.02
  iclflow train --model attnS --head 9 --KQ_dim 2 --in_dim 8 --init 5e-3 --trainset_size 80000 \\
      --epoch 20001 --lr 0.02
  for c in 0 0.2 0.4 0.6 0.8 1; do
    iclflow train --model attnM --icl $c --head 8 --testset 5000 --init 1e-6 --white_cov \\
      --lr 0.0005 --epoch 4001
  done

conventions of the published code, kept here:
  --seq_len counts the query; attention is not divided by N (with --vary_len: by the number of
  tokens); the loss has no factor 1/2; the blocks that start at zero are trained; x is centred
  and, at --icl 1, task vectors are whitened; --icl 0 has noise for context labels.
  Its random numbers are PyTorch's and cannot be repeated: with this package's own, curves agree
  in law, not digit by digit. For that, see iclflow compare.

files, in --out, under names that no other run can have:
  .txt  as the published code writes it, one row per epoch, measured before its update: the
        training loss; with a test set also the in-weight and the in-context test loss; with
        --track_value and no test set also the value weights
  .nc   everything that was recorded, labelled
  .png  the curves
A run that was stopped (Ctrl-C, SIGTERM) goes on when the same command is given again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The published flags with their defaults; unambiguous prefixes work."""
    add_settings(parser, MODEL, DATA, TRAINING, fields=Options, dash="_")
    conventions = parser.add_argument_group("conventions")
    conventions.add_argument(
        "--init-convention", default="figures", choices=("figures", "newest"),
        help="attnS: std init and init/sqrt(R(D+1)) as for the figures (default), or those of the "
        "newest version, with which D=8 runs stay on the first plateau",
    )  # fmt: skip

    output = parser.add_argument_group("output")
    output.add_argument("--show", action="store_true", help="open a window, where there is one")
    output.add_argument("--track_value", action="store_true", help="value weights in text and PNG")
    output.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="folder for the files (this one)"
    )
    output.add_argument("--force", action="store_true", help="train a finished run anew")
    output.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Train, write the files, report."""
    import dataclasses

    from iclflow.published import InitConvention, train
    from iclflow.published.training import stated
    from iclflow.results.provenance import content_key
    from iclflow.runs.record import FAILED, OUTCOMES

    began = time.perf_counter()
    options = Options(**given(args, Options))
    require_room(options)
    if options.init == 0:
        warnings.warn("from zero weights nothing is learned; give an --init", stacklevel=1)
    args.out.mkdir(parents=True, exist_ok=True)
    convention = InitConvention(args.init_convention)
    key = content_key(stated(options, convention))
    text, archive, picture = (
        args.out / f"{options.stem}_{key}.{ending}" for ending in ("txt", "nc", "png")
    )
    dataset = finished(archive, key, force=args.force)
    if dataset is None:
        with progress_bar("sampling and training", False if args.json else None) as told:
            watched = {"sampling": told, "progress": told}
            dataset = train_into(
                archive, lambda store: train(options, convention, store=store, **watched)
            )
    write_text(dataset, text, values=args.track_value)
    figure = draw(dataset, args.track_value, options.stem, picture)
    result, stopped = OUTCOMES[int(dataset["result"])], int(dataset["stopped"])
    losses = {name: dataset[name].values for name in columns(dataset)}
    summary = {
        **dataclasses.asdict(options),
        "init_convention": convention.value,
        "initial_loss": losses["loss"][0],
        "final_loss": losses["loss"][-1],
        "final_test_iwl": losses["in_weight_loss"][-1] if len(losses) > 1 else None,
        "final_test_icl": losses["in_context_loss"][-1] if len(losses) > 1 else None,
        "result": result,
        "stopped": stopped,
        "seconds": round(time.perf_counter() - began, 3),
        "text": str(text),
        "netcdf": str(archive),
        "png": str(picture),
    }
    if args.json:
        print_json(summary)
    else:
        report(summary)
    if args.show:
        open_window(figure, picture)
    if result in FAILED:
        raise ValueError(
            f"{result.replace('_', ' ')} at epoch {stopped}: --lr {options.lr:g} or --init "
            f"{options.init:g} is too large; what was computed is in {text}"
        )
    if result == "interrupted":
        raise KeyboardInterrupt(
            f"what was computed until epoch {stopped} is in {text}, the same command goes on"
        )
    return 0


def require_room(options: Any) -> None:
    """Raise `ValueError` with what would be needed where memory or a day would not do."""
    from iclflow.study.study import DRAWN
    from iclflow.tasks.checks import require_memory

    token = options.in_dim + 1
    weights = options.head_num * token * (token + 2 * options.rank)
    require_memory(64 * weights, f"{options.head_num} heads", "give fewer")
    require_memory(8 * 30 * token**2, f"inputs of {token - 1} dimensions", "give fewer")
    require_memory(
        24 * options.epoch * (3 + options.head_num), f"{options.epoch} epochs", "give fewer"
    )
    drawn = (options.trainset_size + options.testset_size) * options.seq_len * token
    if drawn > DRAWN:
        raise ValueError(f"{drawn:.1e} numbers to draw, and {DRAWN:.0e} take hours; give fewer")


def columns(dataset: Any) -> list[str]:
    """The loss curves of a run, in the order of the text file."""
    known = ("loss", "in_weight_loss", "in_context_loss")
    return [name for name in known if name in dataset]


def write_text(dataset: Any, path: Path, *, values: bool) -> None:
    """One row per epoch: the losses; without test losses, and if asked for, the value weights."""
    import numpy as np

    from iclflow.results.files import replacing

    names = columns(dataset)
    table = np.stack([dataset[name].values for name in names], axis=1)
    if values and len(names) == 1:
        table = np.concatenate([table, dataset["values"].transpose("time", ...).values], axis=1)
    with replacing(path) as partial:
        np.savetxt(partial, table)


def draw(dataset: Any, values: bool, title: str, path: Path) -> Any:
    """The curves over epochs, as a file; gives the figure."""
    from iclflow.plots.epochs import epochs_figure
    from iclflow.results.pictures import save_figure

    figure = epochs_figure(dataset, values=values, title=title)
    save_figure(figure, path)
    return figure


def open_window(figure: Any, picture: Path) -> None:
    """Show the figure; where no window can be opened, say where the picture is."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not (screen or sys.platform in ("win32", "darwin")):
        print(f"no screen for --show; the picture is {picture}", file=sys.stderr)
        return
    from matplotlib import pyplot
    from matplotlib.backends.registry import BackendFilter, backend_registry

    try:
        manager = pyplot.figure().canvas.manager
        if pyplot.get_backend() not in backend_registry.list_builtin(BackendFilter.INTERACTIVE):
            raise RuntimeError("matplotlib has no interactive backend; python3-tk is one")
        assert manager is not None
        manager.canvas.figure = figure
        figure.set_canvas(manager.canvas)
        pyplot.show()
    except (ImportError, RuntimeError) as error:
        print(f"no window: {error}; the picture is {picture}", file=sys.stderr)


def report(summary: dict[str, Any]) -> None:
    """What was trained and written, on stdout."""
    print(f"loss {summary['initial_loss']:.6f} -> {summary['final_loss']:.6f}")
    if summary["final_test_iwl"] is not None:
        print(
            f"test loss at the end: in weight {summary['final_test_iwl']:.6f}, "
            f"in context {summary['final_test_icl']:.6f}"
        )
    for kind in ("text", "netcdf", "png"):
        print(f"wrote {summary[kind]}")
    print(f"{summary['seconds']:.1f} s")
