"""What a model is doing: stages, in-context algorithms and geometry of a run or of checkpoints.

RUN.nc (from `simulate --record loss,weights --out`): one line per stage with the in-context
algorithm. LOSS.csv (columns step, loss): its plateaus, and the theory's levels and next drop.
Anything else, or --hf: a series of checkpoints, safetensors or NumPy, head by head.
"""

import argparse
from pathlib import Path
from typing import Any

from iclflow.cli.console import finite_float, positive_float, positive_int, print_json, progress
from iclflow.cli.simulate import add_model_arguments, add_task_arguments, floats, names

EXAMPLES = """examples:
  iclflow simulate --heads 5 --init 0.05 --steps 30001 --record loss,weights --out run.nc
  iclflow diagnose run.nc --plot run.png
  iclflow diagnose run.nc --test-context 100 --test-scale 2          # on shifted prompts
  iclflow diagnose loss.csv --spectrum 0.4,0.3,0.2,0.1 --context 31 --rate 0.1 --init 0.01
  iclflow diagnose 'checkpoints/step*/model.safetensors' --plot heads.png --keep-going
  iclflow diagnose --hf EleutherAI/pythia-70m --revisions step0,step512,step143000

Checkpoints: GPT-2, GPT-NeoX/Pythia, Llama and TransformerLens names. Pickles are never loaded.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read; then the options of each kind."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="run, curve, or checkpoints")
    parser.add_argument("--out", type=Path, metavar="FILE.nc", help="write the measures")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the figure")
    parser.add_argument("--clock", choices=("log", "linear"), default="log",
                        help="in which plateaus are long (log)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    run = parser.add_argument_group("a run")
    run.add_argument("--seed", type=int, help="which run of the file; of the starts of a curve")
    run.add_argument("--prompts", type=positive_int, default=2000,
                     help="sampled for algorithms not known by moments (2000)")  # fmt: skip
    run.add_argument("--test-context", type=positive_int, metavar="N", help="compare at another N")
    run.add_argument("--test-spectrum", type=floats, help="compare on other eigenvalues")
    run.add_argument("--test-scale", type=positive_float, default=1.0, help="on x times this")
    series = parser.add_argument_group("checkpoints")
    series.add_argument("--hf", metavar="OWNER/MODEL", help="of the Hugging Face Hub")
    series.add_argument("--revisions", type=names, help="of --hf, e.g. step0,step512")
    series.add_argument("--measures", type=names, help="e.g. norm,effective_rank,stable_rank")
    series.add_argument("--subspace", type=positive_int, default=8, help="dimension (8)")
    series.add_argument("--groups", type=positive_int, help="key-value heads, if no config says")
    series.add_argument("--show", help="the measure to draw (the first)")
    series.add_argument("--keep-going", action="store_true", help="leave out broken checkpoints")
    curve = parser.add_argument_group("a loss curve")
    curve.add_argument("--rate", type=positive_float, help="learning rate")
    curve.add_argument("--starts", type=positive_int, default=32, help="drawn starts (32)")
    curve.add_argument("--convention", choices=("iclflow", "published"), default="iclflow",
                       help="whose rate and init these are (published: no 1/N)")  # fmt: skip
    curve.add_argument("--floor", type=finite_float, default=0.0,
                       help="loss to subtract, such as the target noise")  # fmt: skip
    add_task_arguments(parser)
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Dispatch on what the path is."""
    if args.plot is not None and not args.plot.parent.is_dir():
        raise ValueError(f"the folder {args.plot.parent} does not exist; create it first")
    if args.hf is not None:
        if args.paths:
            raise ValueError("give paths or --hf, not both")
        if not args.revisions:
            raise ValueError("--hf needs --revisions, for example --revisions step0,step512")
        return diagnose_checkpoints(args)
    if not args.paths:
        raise ValueError("name a run (.nc), a loss curve (.csv) or checkpoints")
    kinds = {Path(path).suffix.lower() for path in args.paths}
    for suffix, handler in ((".nc", diagnose_a_run), (".csv", diagnose_a_curve)):
        if suffix in kinds:
            if len(args.paths) > 1:
                raise ValueError(f"one {suffix} file at a time, got {len(args.paths)} paths")
            return handler(args)
    return diagnose_checkpoints(args)


def diagnose_a_run(args: argparse.Namespace) -> int:
    """Stages and algorithms of our own run."""
    from iclflow.diagnosis import diagnose_run, run_settings, spells, stage_rows
    from iclflow.diagnostics import Clock
    from iclflow.identify import shifted
    from iclflow.store import load

    path = args.paths[0]
    runs = load(path)
    moved = args.test_context or args.test_spectrum or args.test_scale != 1
    try:
        on = None
        if moved:
            task = run_settings(runs).task()
            on = shifted(
                task, context=args.test_context, spectrum=args.test_spectrum, scale=args.test_scale
            )
        found = diagnose_run(
            runs, seed=args.seed, on=on, clock=Clock(args.clock), sequences=args.prompts
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    summary = {
        "path": str(path),
        "clock": found["time"].attrs["long_name"],
        "stages": stage_rows(found),
        "drops": found["drop_time"].values,
        "algorithms": spells(found),
        "final_distance": dict(
            zip(found["candidate"].values.tolist(), found["distance"].values[-1], strict=True)
        ),
        "levels": found["level_theory"].values,
    }
    finish(args, found, summary, "run_figure")
    if not args.json:
        print(f"{'stage':>5} {'start':>10} {'end':>10} {'loss':>10} {'margin':>7}  algorithm")
        for i, row in enumerate(summary["stages"]):
            times = f"{row['start']:>10.5g} {row['end']:>10.5g} {row['level']:>10.6f}"
            print(f"{i:>5} {times} {row['margin']:>7.3f}  {row['algorithm']}")
        path_taken = " > ".join(f"{s['algorithm']} (until {s['end']:.4g})"
                                for s in summary["algorithms"])  # fmt: skip
        print(f"nearest algorithm over time: {path_taken}")
    return 0


def diagnose_a_curve(args: argparse.Namespace) -> int:
    """Plateaus of somebody's loss curve, and what the theory says comes next."""
    from iclflow.diagnosis import diagnose_curve, read_curve
    from iclflow.diagnostics import Clock

    steps, losses = read_curve(args.paths[0])
    task, starts, rate = theory_of(args)
    found = diagnose_curve(
        steps, losses - args.floor, task=task, starts=starts, rate=rate, clock=Clock(args.clock)
    )
    rows = [
        {name: found[name].values[i].item()
         for name in ("start", "end", "level", "confidence", "plateau_number", "gap")
         if name in found}
        for i in range(found.sizes["stage"])
    ]  # fmt: skip
    summary = {
        "path": str(args.paths[0]),
        "stages": rows,
        "drops": found["drop_time"].values,
        "falling": bool(found.attrs["falling"]),
        "levels": found["level_theory"].values,
        "now": found.attrs.get("now"),
        "next_drop": found["predicted"].values.tolist() if "predicted" in found else None,
    }
    finish(args, found, summary, "curve_figure")
    if not args.json:
        show_curve(found, rows)
    return 0


def theory_of(args: argparse.Namespace) -> tuple[Any, list[Any], float | None]:
    """Task, drawn starts and rate, as far as the options state them."""
    import jax

    from iclflow.cli.simulate import settings_of
    from iclflow.published import InitConvention, Options
    from iclflow.published.weights import PublishedInitialiser, normalised

    if args.spectrum is None:
        for name in ("rate", "init"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} needs the task: give --spectrum and --context")
        return None, [], None
    settings = settings_of(args)
    task = settings.task()
    if args.init is None and args.rate is None:
        return task, [], None
    if args.init is None or args.rate is None:
        raise ValueError("the next drop needs both --rate and --init")
    if settings.model not in ("merged", "separate"):
        raise ValueError(f"drops are predicted for merged and separate, not {settings.model}")
    keys = jax.random.split(jax.random.key(settings.seed), args.starts)
    init, rate = settings.initialiser(task), float(args.rate)
    if args.convention == "published":
        kind = "attnS" if settings.model == "separate" else "attnM"
        options = Options(
            model=kind, head_num=settings.heads, rank=settings.rank, init=settings.init,
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
        if "gap" in row:
            text += f", plateau {row['plateau_number']} of the theory {row['gap']:+.6f}"
        print(text)
    if "now" in found.attrs:
        doing = "falling to" if found.attrs["falling"] else "on"
        print(f"now {doing} plateau {found.attrs['now']} of {found.sizes['plateau'] - 1}")
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
    import json

    from iclflow.diagnostics import checkpoints

    if args.hf is not None:
        series = checkpoints.hub_series(args.hf, args.revisions)
    else:
        series = checkpoints.find_series(*args.paths)
    measures = args.measures or checkpoints.DEFAULT_MEASURES
    if args.show is not None and args.show not in measures:
        raise ValueError(f"--show {args.show} is not measured; there are {', '.join(measures)}")
    with progress("reading checkpoints", quiet=args.json) as report:
        data = checkpoints.measure_series(
            series,
            measures=measures,
            rank=args.subspace,
            heads=args.heads,
            groups=args.groups,
            keep_going=args.keep_going,
            progress=lambda done, total, label: report(done, total),
        )
    data = checkpoints.mark_stages(data)
    problems = json.loads(data.attrs["problems"])
    last = data.isel(step=-1).mean(("layer", "head"))
    summary = {
        "family": data.attrs["family"],
        "steps": data["step"].values,
        "layers": data.sizes["layer"],
        "heads": data.sizes["head"],
        "notes": json.loads(data.attrs["notes"]),
        "problems": problems,
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
    if problems:
        import sys

        for problem in problems:
            print(f"iclflow: {problem}", file=sys.stderr)
        return 2
    return 0


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
    for name, note in summary["notes"].items():
        print(f"{name}: {note}")
    for mark in summary["marks"]:
        print(f"step {mark['step']:.6g}: {mark['source']}")


def finish(
    args: argparse.Namespace, found: Any, summary: dict[str, Any], figure: str, *options: Any
) -> None:
    """Write what was asked for."""
    from iclflow.store import save

    if args.out is not None:
        save(found.assign_attrs(content_key=found.attrs.get("content_key", "")), args.out)
        summary["out"] = str(args.out)
    if args.plot is not None:
        from iclflow.plots import diagnose
        from iclflow.plots.style import save_figure

        save_figure(getattr(diagnose, figure)(found, *options), args.plot)
        summary["plot"] = str(args.plot)
    if args.json:
        print_json(summary)
