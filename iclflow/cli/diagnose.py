"""What a model is doing: stages, in-context algorithms and geometry of a run or of checkpoints.

RUN.nc (from `simulate --out`): one line per stage with the in-context algorithm. A log of losses
(CSV, trainer_state.json, TensorBoard, W&B, MLflow): its plateaus, and the theory's levels and next
drop. Anything else, or --hf: a series of checkpoints, head by head, with the loss of the log that
lies in the same folder.
"""

import argparse
import dataclasses
import json
import sys
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from iclflow.cli.options import (
    above_zero,
    add_force,
    add_settings,
    check_outputs,
    floats,
    names,
    positive,
    print_json,
    seed,
    typed,
)
from iclflow.results.messages import printable, progress_bar
from iclflow.study.fields import FIELDS, MODEL, TASK

EXAMPLES = """examples:
  iclflow simulate --heads 5 --scale 0.05 --out run.nc
  iclflow diagnose run.nc --plot run.png
  iclflow diagnose run.nc --test-context 100 --test-scale 2          # on shifted prompts
  iclflow diagnose loss.csv --spectrum 0.4,0.3,0.2,0.1 --context 31 --rate 0.1 --scale 0.01
  iclflow diagnose log.csv --early loss_50 --late loss_500           # which drop is in context?
  iclflow diagnose log.csv --positions 'loss_*' --metrics induction --plot drops.png
  iclflow diagnose log.csv --positions 'loss_*' --scores copying/seed-0 --plot drops.png
  iclflow diagnose runs/events.out.tfevents.1 --column train/loss
  iclflow diagnose trainer_output --plot run.png                     # weights, loss and stages
  iclflow diagnose 'checkpoints/step*/model.safetensors' --plot heads.png --keep-going
  iclflow diagnose --hf EleutherAI/pythia-70m --revisions step0,step512,step143000
  iclflow diagnose --hf NeelNanda/Attn_Only_2L512W_C4_Code --files 'checkpoints/*.pth'

Checkpoints: safetensors, PyTorch or NumPy, 22 families of names. Pickles are never loaded.
"""


# Options that concern one kind of input alone, and what they are where they are not given.
RUN = {"samples": 2000, "test_context": None, "test_spectrum": None, "test_scale": 1.0}
SERIES = {"hf": None, "revisions": None, "files": None, "measures": None, "subspace": 8}
SERIES |= {"stack": None, "show": None, "keep_going": False, "log": None, "column": None}
CURVE = {"rate": None, "starts": 32, "convention": "iclflow", "floor": 0.0, "column": None}
CURVE |= {"early": None, "late": None, "positions": None, "metrics": None, "scores": None}
THEORY = {name: None for name, (_, about) in FIELDS.items() if about.group in (TASK, MODEL)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read; then the options of each kind."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="a saved run, a log of losses, or checkpoints"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.nc", help="write what was found")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the figure")
    parser.add_argument("--clock", choices=("log", "linear"), default="log",
                        help="the clock on which plateaus are long (log)")  # fmt: skip
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    run = parser.add_argument_group("a run")
    run.add_argument("--seed", type=seed, help="which run of the file; for a curve, the first seed")
    run.add_argument("--samples", type=positive, metavar="P",
                     help="prompts to sample where moments do not suffice (2000)")  # fmt: skip
    run.add_argument(
        "--test-context",
        type=positive,
        metavar="N",
        help="compare with the algorithms at another context length",
    )
    run.add_argument("--test-spectrum", type=floats, help="compare on inputs of other variances")
    run.add_argument("--test-scale", type=above_zero, help="compare on inputs times this factor")
    series = parser.add_argument_group("checkpoints")
    series.add_argument("--hf", metavar="OWNER/MODEL", help="checkpoints of the Hugging Face Hub")
    series.add_argument("--revisions", type=names, help="which of them, e.g. step0,step512")
    series.add_argument("--files", type=names, metavar="PATTERN",
                        help="or its files in one revision, e.g. 'checkpoints/*.pth'")  # fmt: skip
    series.add_argument(
        "--measures", type=names, help="what to measure, e.g. norm,effective_rank,stable_rank"
    )
    series.add_argument("--subspace", type=positive, help="dimension of the subspaces (8)")
    series.add_argument(
        "--stack", help="which stack of layers, where there are several, e.g. encoder"
    )
    series.add_argument("--log", help="log of the losses, if it is not in the folder")
    series.add_argument("--show", help="the measure to draw (the first one)")
    series.add_argument("--keep-going", action="store_const", const=True,
                        help="leave out checkpoints that cannot be read (exit code 1)")  # fmt: skip
    curve = parser.add_argument_group("a loss curve")
    curve.add_argument("--column", help="which column or tag of the log is the loss")
    curve.add_argument("--rate", type=above_zero, help="learning rate of the run")
    curve.add_argument(
        "--starts",
        type=typed(int, least=1, most=4096),
        help="number of drawn starts behind the forecast (32)",
    )
    curve.add_argument("--convention", choices=("iclflow", "published"),
                       help="conventions of rate and scale (published: no 1/N)")  # fmt: skip
    curve.add_argument("--floor", type=typed(float),
                       help="loss to subtract, such as the target noise")  # fmt: skip
    context = parser.add_argument_group("a loss curve: which drop is in-context learning")
    context.add_argument("--early", metavar="COLUMN", help="the loss early in the context")
    context.add_argument("--late", metavar="COLUMN", help="the loss late in the context")
    context.add_argument("--positions", metavar="PATTERN",
                         help="columns of losses by position, e.g. 'loss_*'")  # fmt: skip
    context.add_argument(
        "--metrics", type=names, help="columns to draw below the loss, e.g. induction"
    )
    context.add_argument("--scores", metavar="PATH",
                         help="checkpoints whose induction scores are drawn below")  # fmt: skip
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
        if not args.revisions and not args.files:
            raise ValueError(
                "--hf needs --revisions, for example --revisions step0,step512, or --files, for "
                "example --files 'checkpoints/*.pth'"
            )
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
    from iclflow.checkpoints.logs import find_log, is_log
    from iclflow.checkpoints.series import has_checkpoints

    if path.is_dir():
        return not has_checkpoints(path) and find_log(path) is not None
    return is_log(path)


COLUMNS = {"in_context_loss": "in-context", "in_weight_loss": "in-weight"}


def diagnose_our_runs(args: argparse.Namespace) -> int:
    """Stages and algorithms of one seed, or of every seed of the file."""
    from iclflow.diagnosis import diagnose
    from iclflow.diagnosis.identify import shifted
    from iclflow.measures import Clock
    from iclflow.runs.record import STEPS
    from iclflow.study.origin import Origin
    from iclflow.study.study import load_runs
    from iclflow.tasks.task import Task

    path = args.paths[0]
    runs = load_runs(path)
    if not weights_recorded(runs):
        return diagnose_losses(args, runs)
    require_room(args, runs)
    moved = args.test_context or args.test_spectrum or args.test_scale != 1
    several = args.seed is None and runs.sizes.get("seed", 1) > 1
    try:
        on = None
        if moved:
            task = Origin.of(runs).source
            if not isinstance(task, Task):
                raise ValueError("a shifted task needs the task, which these runs do not say")
            on = shifted(
                task, context=args.test_context, spectrum=args.test_spectrum, scale=args.test_scale
            )
        options: dict[str, Any] = {
            "on": on, "clock": Clock(args.clock), "sequences": args.samples
        }  # fmt: skip
        found = diagnose(runs, seed=args.seed, **options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    singles = [found.sel(seed=seed) for seed in found["seed"].values] if several else [found]
    if not several and "seed" in runs.dims:
        chosen = runs["seed"].values[0] if args.seed is None else args.seed
        singles = [found.assign_coords(seed=int(chosen))]
    summary = {
        "path": str(path),
        "clock": found["time"].attrs["long_name"],
        "runs": [summarise(single) for single in singles],
        "levels": found["level_theory"].values,
    }
    finish(args, found, summary, "runs_figure" if several else "run_figure")
    if not args.json:
        clock = "step" if summary["clock"] == STEPS else "t/τ"
        for run in summary["runs"]:
            show_run(run, several, clock)
        explain_runs(summary["runs"])
    return 0


def weights_recorded(runs: Any) -> bool:
    """Whether a file of runs has the weights too: those of its model, or of any layer."""
    from iclflow.models import empty_model
    from iclflow.runs.record import LAYERS
    from iclflow.study.origin import Origin

    init = Origin.of(runs).init
    if init is not None:
        return all(name in runs for name in empty_model(init).weights())
    fields = [dataclasses.fields(kind) for kind in LAYERS]
    needed = [[f.name for f in own if f.default is dataclasses.MISSING] for own in fields]
    return any(all(name in runs for name in names) for names in needed)


def require_room(args: argparse.Namespace, runs: Any) -> None:
    """Refuse prompts that would not fit in memory."""
    from iclflow.study.origin import Origin
    from iclflow.tasks.checks import require_memory

    source = Origin.of(runs).source
    pairs = args.test_context or getattr(source, "context", 1)
    needed = 8 * 8 * args.samples * pairs * (getattr(source, "size", 1) + 1)
    require_memory(needed, f"{args.samples} prompts of {pairs} pairs", "give fewer --samples")


def diagnose_losses(args: argparse.Namespace, runs: Any) -> int:
    """What the loss alone can tell, of one seed."""
    from iclflow.diagnosis import diagnose_curve
    from iclflow.diagnosis.runs import select_run
    from iclflow.measures import Clock
    from iclflow.study.origin import Origin
    from iclflow.tasks.task import Task

    run = select_run(runs, args.seed)
    origin = Origin.of(runs)
    known = origin.task_of(run)
    task = known if isinstance(known, Task) else None
    found = diagnose_curve(
        run["step"].values.astype(float), run["loss"].values, task=task, clock=Clock(args.clock)
    )
    again = f"iclflow simulate --from {args.paths[0]} --record loss,weights --out NEW.nc"
    if origin.settings is None:
        again = 'record=["loss", "weights"] in sweep'
    print(
        f"iclflow: {args.paths[0]} has no weights: stages of the loss alone; for the algorithms, "
        f"{again}",
        file=sys.stderr,
    )
    return report_curve(args, found)


def summarise(found: Any) -> dict[str, Any]:
    """One run ready for JSON."""
    from iclflow.diagnosis import spells, stage_rows

    drops = found["drop_time"].values[: int(found["drop_count"])]
    last = int(found["loss"].notnull().values.nonzero()[0][-1])
    known = "candidate" in found  # without the task there is nothing to compare with
    names = found["candidate"].values.tolist() if known else []
    return {
        "seed": int(found["seed"]) if "seed" in found.coords else None,
        "stages": stage_rows(found),
        "drops": drops,
        "algorithms": spells(found) if known else [],
        "final_distance": dict(zip(names, found["distance"].values[last], strict=True))
        if known
        else {},
    }


def show_run(run: dict[str, Any], several: bool, clock: str) -> None:
    """One line per stage, and the nearest algorithm through time."""
    if several:
        print(f"seed {run['seed']}")
    rows = run["stages"]
    tests = [name for name in COLUMNS if rows and name in rows[0]]
    known, stepped = bool(run["algorithms"]), has_steps(run)
    titles = "".join(f" {title:>10}" for title in ("first step", "last step")) if stepped else ""
    titles += "".join(f" {title:>10}" for title in (f"first {clock}", f"last {clock}", "loss"))
    titles += "".join(f" {COLUMNS[name]:>10}" for name in tests)
    print(f"{'stage':>5}{titles}{'  margin  algorithm' if known else ''}")
    for i, row in enumerate(rows):
        cells = [f"{row[name]:.0f}" for name in ("start_step", "end_step") if stepped]
        cells += [f"{row['start']:.5g}", f"{row['end']:.5g}", f"{row['level']:.6f}"]
        cells += [f"{row[name]:.4f}" for name in tests]
        line = f"{i:>5}" + "".join(f" {cell:>10}" for cell in cells)
        if known:
            # Without a candidate of another kind there is nothing to confuse the match with.
            margin = "none" if isnan(row["margin"]) else f"{row['margin']:.3f}"
            line += f" {margin:>7}  {row['algorithm']}"
        print(line)
    if not known:
        print("These runs do not say their task, so no algorithm is compared with them.")
        return
    end, clock = ("end_step", "step") if stepped else ("end", clock)
    path = " > ".join(
        f"{one['algorithm']} (until {one[end]:{'.0f' if stepped else '.5g'}})"
        for one in run["algorithms"]
    )
    print(f"nearest algorithm by {clock}: {path}")


def has_steps(run: dict[str, Any]) -> bool:
    """Whether the stages of a run are known in training steps beside t/τ."""
    return bool(run["stages"]) and "start_step" in run["stages"][0]


def explain_runs(runs: list[dict[str, Any]]) -> None:
    """What the columns mean, once below all tables."""
    if any(has_steps(run) for run in runs):
        print("A stage is a plateau of the loss. t/τ is the clock of the theory: 2 · rate · steps.")
    if any(run["algorithms"] for run in runs):
        print(
            "margin: how much nearer the named algorithm is than the second nearest "
            "(1 is a perfect match, 0 a tie)"
        )


def diagnose_a_curve(args: argparse.Namespace) -> int:
    """Plateaus of somebody's loss curve, and what the theory says comes next."""
    from iclflow.diagnosis import diagnose_curve
    from iclflow.measures import Clock

    steps, losses, sides = curves_of(args)
    task, starts, rate = theory_of(args)
    found = diagnose_curve(
        steps, losses - args.floor, **sides, metrics=metrics_of(args), task=task, starts=starts,
        rate=rate, clock=Clock(args.clock),
    )  # fmt: skip
    return report_curve(args, found)


def curves_of(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """Steps, losses, and the losses early and late in the context where they are asked for."""
    import numpy as np

    from iclflow.checkpoints import read_columns, read_curve
    from iclflow.measures import by_position

    path = args.paths[0]
    if (args.early is None) != (args.late is None):
        missing = "--early" if args.early is None else "--late"
        raise ValueError(f"--early and --late go together; give {missing} too")
    if args.positions is not None:
        if args.early is not None or args.column is not None:
            raise ValueError("--positions stands alone; leave out --early, --late and --column")
        if "*" not in args.positions:
            raise ValueError(f"--positions needs a pattern as 'loss_*', got {args.positions!r}")
        steps, table = read_columns(path, [args.positions])
        loss, early, late = by_position(np.stack(list(table.values()), axis=1))
        return steps, loss, {"early": early, "late": late}
    steps, losses = read_curve(path, args.column or args.late)
    if args.early is None:
        return steps, losses, {}
    sides = {}
    for side in ("early", "late"):
        at, values = read_curve(path, getattr(args, side))
        known = dict(zip(at.tolist(), values.tolist(), strict=True))
        sides[side] = np.array([known.get(step, np.nan) for step in steps.tolist()])
    return steps, losses, sides


def metrics_of(args: argparse.Namespace) -> dict[str, tuple[Any, Any]]:
    """Curves to be drawn below the loss: columns of the log, and scores of checkpoints."""
    found: dict[str, tuple[Any, Any]] = {}
    if args.metrics is not None:
        from iclflow.checkpoints import read_curve

        found |= {name: read_curve(args.paths[0], name) for name in args.metrics}
    if args.scores is not None:
        from iclflow.checkpoints import find_series
        from iclflow.transformers import score_series

        with progress_bar("scoring checkpoints", False if args.json else None) as report:
            scores = score_series(find_series(args.scores), progress=report)
        for name in ("previous_token", "prefix_matching"):
            best = scores[name].max(("layer", "head"))
            found[f"{name}_of_the_best_head"] = scores["step"].values, best.values
    return found


def report_curve(args: argparse.Namespace, found: Any) -> int:
    """The stages of a curve: written, drawn, shown."""
    rows = [
        {name: found[name].values[i].item()
         for name in ("start", "end", "level", "confidence", "rises_to", "plateau_number",
                      "gap", "matches")
         if name in found}
        for i in range(found.sizes["stage"])
    ]  # fmt: skip
    summary = {
        "path": str(args.paths[0]),
        "stages": rows,
        "drops": found["drop_time"].values,
        **({} if "early_loss" not in found else {"in_context": context_rows(found)}),
        "falling": bool(found.attrs["falling"]),
        "rising": bool(found.attrs["rising"]),
        "not_finite": found.attrs["not_finite"],
        "failed_at": found.attrs.get("failed_at"),
        "levels": found["level_theory"].values,
        "now": found.attrs.get("now"),
        "next_drop": found["predicted"].values.tolist() if "predicted" in found else None,
    }
    finish(args, found, summary, "curve_figure")
    if not args.json:
        show_curve(found, rows)
    return 0


def context_rows(found: Any) -> list[dict[str, Any]]:
    """What each drop is by its losses early and late in the context, ready for JSON."""
    fields = ("share", "error", "p_value")
    return [
        {"time": found["drop_time"].values[i].item(),
         **{field: found[f"in_context_{field}"].values[i].item() for field in fields},
         "label": bool(found["in_context_label"].values[i] == 1)}
        for i in range(found.sizes["drop_number"])
    ]  # fmt: skip


def theory_of(args: argparse.Namespace) -> tuple[Any, list[Any], float | None]:
    """Task, drawn starts and rate, as far as the options state them."""
    import jax

    from iclflow.cli.options import settings_of
    from iclflow.published import InitConvention, Options
    from iclflow.published.weights import PublishedInitialiser, normalised

    if args.spectrum is None:
        for name in FIELDS:
            if name != "seed" and getattr(args, name, None) is not None:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} needs the task: give --spectrum and --context")
        return None, [], None
    settings = settings_of(args)
    task = settings.task()
    if args.scale is None and args.rate is None:
        return task, [], None
    if args.scale is None or args.rate is None:
        raise ValueError("the next drop needs both --rate and --scale")
    if settings.model not in ("merged", "separate"):
        raise ValueError(f"drops are predicted for merged and separate, not {settings.model}")
    keys = jax.random.split(jax.random.key(settings.seed), args.starts)
    init, rate = settings.initialiser(task), float(args.rate)
    if args.convention == "published":
        kind = "attnS" if settings.model == "separate" else "attnM"
        options = Options(
            model=kind, head_num=settings.heads, rank=settings.rank, init=settings.scale,
            in_dim=task.size, seq_len=settings.context + 1,
        )  # fmt: skip
        init = PublishedInitialiser(options, InitConvention.FIGURES)
        scaled = [normalised(init(key), rate, settings.context) for key in keys]
        return task, [model.reduce() for model, _ in scaled], scaled[0][1]  # pyright: ignore
    return task, [init(key).reduce() for key in keys], rate  # pyright: ignore


def show_curve(found: Any, rows: list[dict[str, Any]]) -> None:
    """The stages, and the next drop, in lines."""
    for i, row in enumerate(rows):
        text = f"stage {i}: step {row['start']:.5g} to {row['end']:.5g}, loss {row['level']:.6f}"
        if isfinite(row["rises_to"]):
            text += f" and rising to {row['rises_to']:.6f}: no plateau"
        elif "gap" in row:
            near = "" if row["matches"] else "no plateau of the theory, the nearest is "
            text += f", {near}plateau {row['plateau_number']}"
            text += f"{' of the theory' * row['matches']} {row['gap']:+.6f}"
        print(text)
    if "in_context" in found:
        for i, (time, words) in enumerate(
            zip(found["drop_time"].values, found["in_context"].values, strict=True), start=1
        ):
            print(f"drop {i} at step {time:.5g}: {words}")
    if "failed_at" in found.attrs:
        at = f"{found.attrs['failed_at']:.5g}"
        print(f"the loss is not finite from step {at} on: the training failed")
        return
    if found.attrs["not_finite"]:
        print(f"{found.attrs['not_finite']} losses are not finite and were left out")
    if found.attrs["rising"]:
        print("the loss rises at the end: no drop is predicted")
        return
    if "now" in found.attrs:
        doing = "falling to" if found.attrs["falling"] else "on"
        print(f"now {doing} plateau {found.attrs['now']} of {found.sizes['plateau'] - 1}")
    elif "matches" in found:
        print("the last stage is on no plateau of the theory: no drop is predicted")
    if "predicted" not in found:
        return
    if found.sizes["next"] == 0:
        print("the theory has no further drop")
        return
    low, middle, high = found["predicted"].values[0]
    if middle != middle:
        print(f"next drop: later than for every one of {found.attrs['starts']} starts by theory")
    else:
        print(f"next drop: step {middle:.5g} (10-90%: {low:.5g} to {high:.5g})")


def diagnose_checkpoints(args: argparse.Namespace) -> int:
    """Measures of every head over a series of checkpoints."""
    from iclflow import checkpoints

    if args.hf is not None:
        series = checkpoints.hub_series(args.hf, args.revisions or ("main",), files=args.files)
    else:
        series = checkpoints.find_series(*args.paths)
    measures = args.measures or checkpoints.DEFAULT_MEASURES
    if args.show is not None and args.show not in measures:
        raise ValueError(f"--show {args.show} is not measured; there are {', '.join(measures)}")
    with progress_bar("reading checkpoints", False if args.json else None) as report:
        data = checkpoints.measure_series(
            series,
            measures=measures,
            rank=args.subspace,
            heads=args.heads,
            stack=args.stack,
            keep_going=args.keep_going,
            progress=lambda done, total, label: report(done, total),
        )
    losses = losses_beside(args)
    data = checkpoints.mark_stages(data, **losses)
    problems = json.loads(data.attrs["problems"])
    # With NaN: a head whose weights are not finite must not be averaged away.
    last = data[list(measures)].isel(step=-1).mean(("layer", "head"), skipna=False)
    summary = {
        "family": data.attrs["family"],
        "steps": data["step"].values,
        "layers": data.sizes["layer"],
        "heads": data.sizes["head"],
        "notes": json.loads(data.attrs["notes"]),
        "problems": problems,
        "integrity": json.loads(data.attrs["integrity"]),
        "not_finite": json.loads(data.attrs["not_finite"]),
        "stages": json.loads(data.attrs.get("stages", "[]")),
        "log": str(args.log) if losses else None,
        "marks": [
            {"step": float(t), "source": str(s)}
            for t, s in zip(data["mark"].values, data["mark_source"].values, strict=True)
        ],
        "last": {
            name: {str(c): float(last[name].sel(circuit=c)) for c in data["circuit"].values}
            for name in measures
        },
    }
    finish(args, data, summary, "checkpoints_figure", args.show or measures[0])
    if not args.json:
        show_checkpoints(summary)
    for doubt in summary["integrity"]:
        print(f"iclflow: warning: {printable(doubt)}", file=sys.stderr)
    if summary["not_finite"]:
        first, *others = summary["not_finite"]
        more = f" (and {len(others)} more, see --json)" if others else ""
        print(f"iclflow: warning: {printable(first)}{more}", file=sys.stderr)
    for problem in problems:
        print(f"iclflow: {printable(problem)}", file=sys.stderr)
    # As for a report some of whose figures failed: 1 is a result with parts missing, 2 is none.
    return 1 if problems else 0


def losses_beside(args: argparse.Namespace) -> dict[str, Any]:
    """Steps and losses of --log, or of the log in the folder of the checkpoints."""
    from iclflow.checkpoints import find_log, read_curve

    asked = args.log is not None
    if not asked:
        folders = [Path(path) for path in args.paths if Path(path).is_dir()]
        args.log = next((log for log in map(find_log, folders) if log is not None), None)
    if args.log is None:
        return {}
    try:
        steps, losses = read_curve(args.log, args.column)
    except ValueError as error:
        if asked:
            raise
        print(f"iclflow: warning: without a loss: {printable(error)}", file=sys.stderr)
        return {}
    return {"steps": steps, "losses": losses}


def show_checkpoints(summary: dict[str, Any]) -> None:
    """The measures of the last step, the notes and the marks, in lines."""
    steps = summary["steps"]
    print(
        f"{summary['family']} names, {summary['layers']} layers of {summary['heads']} heads, "
        f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    )
    for name, values in summary["last"].items():
        shown = ", ".join(f"{circuit} {value:.4g}" for circuit, value in values.items())
        print(f"{name} at the end, mean over heads: {shown}")
    for line in summary["stages"]:
        print(f"loss, {printable(line)}")
    for name, note in summary["notes"].items():
        print(f"{printable(name)}: {printable(note)}")
    for mark in summary["marks"]:
        print(f"step {mark['step']:.6g}: {mark['source']}")


ELSEWHERE = ("out", "plot", "json", "command", "force")  # options that do not change what is found


def diagnosis_key(args: argparse.Namespace) -> str:
    """A name for what is asked of which files: the same command on the same files, the same key."""
    from iclflow.results.provenance import content_key

    asked = {k: str(v) for k, v in vars(args).items() if k not in ELSEWHERE}
    files = [Path(path) for path in args.paths if Path(path).is_file()]
    states = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return content_key(["diagnose", asked, states])


def require_free(args: argparse.Namespace) -> None:
    """Refuse before any work what could not be written after it."""
    from iclflow.results.netcdf import check_free

    check_outputs(args, (".nc",), args.paths)
    if args.out is not None and not args.force:
        check_free(args.out, diagnosis_key(args))


def finish(
    args: argparse.Namespace, found: Any, summary: dict[str, Any], figure: str, *options: Any
) -> None:
    """Write what was asked for."""
    from iclflow.results.netcdf import replace

    if args.out is not None:
        replace(found.assign_attrs(content_key=diagnosis_key(args)), args.out)
        summary["out"] = str(args.out)
    if args.plot is not None:
        from iclflow.plots import diagnose
        from iclflow.results.pictures import save_figure

        save_figure(getattr(diagnose, figure)(found, *options), args.plot)
        summary["plot"] = str(args.plot)
    if args.json:
        print_json(summary)
