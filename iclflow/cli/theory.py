"""What the theory says of a task: plateau levels, drops, stability, and losses of algorithms.

Only --spectrum and --context are needed. With --scale it also predicts, from the initial weights
that `simulate` would draw, when each drop comes and which head makes it. Times are t/tau, and with
--rate training steps too: t/tau = 2 * rate * step.
"""

import argparse
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from iclflow.cli.options import (
    above_zero,
    add_file,
    add_force,
    add_settings,
    check_outputs,
    print_json,
    settings_of,
    typed,
)
from iclflow.results.messages import progress_bar
from iclflow.study.fields import DEEP, MODEL, TASK

EXAMPLES = """examples:
  iclflow theory --spectrum 0.4,0.3,0.2,0.1 --context 31
  iclflow theory --spectrum 0.4,0.3,0.2,0.1 --context 31 --scale 0.01 --rate 0.2 --plot stairs.png
  iclflow theory --from run.nc --verbose                   # of a saved run, with all columns
  iclflow theory --spectrum power:1 --dim 8 --context 31 --rank 2 --heads 9 --scale 1e-3 --json
  iclflow theory --spectrum 1,0.5 --context 200 --task-covariance 1,3 --noise 0.1
  iclflow theory --spectrum 0.4,0.3,0.2,0.1 --context 31 --layers 2
  # your own prompts: np.savez("mine.npz", x=x, y=y) with x [P, N+1, D] and y [P, N+1]
  iclflow theory --prompts mine.npz --scale 0.05 --plot mine.png
  iclflow theory --model linear-transformer --spectrum 1.7,1.4,1.1,1 --context 200 --scale 0.01
"""

ROWS = 16  # of a table; the rest is in --json
ROUNDING = 1e-12  # of the loss at zero: a smaller standard error is none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task and model options of `simulate`."""
    add_settings(parser, TASK, MODEL, only=("prompts", "seed", "eigen_seed"))
    add_linear_transformer(parser)
    start = parser.add_argument_group("dynamics")
    start.add_argument(
        "--rate", type=above_zero, help="learning rate: the drops are given in steps too"
    )
    out = parser.add_argument_group("output")
    add_file(out)
    out.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the levels and the predicted staircase"
    )
    add_force(out)
    out.add_argument(
        "--verbose", action="store_true",
        help="more columns: stability of the plateaus, condition of the times, the paper's times",
    )  # fmt: skip
    out.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Evaluate the formulas, report, draw."""
    settings = settings_of(args)
    read = [name for name in (args.file, args.prompts) if name is not None]
    check_outputs(args, (), read)
    if args.rate is not None and not has_start(args, settings):
        raise ValueError("--rate turns the times of drops into steps; give the --scale too")
    if settings.prompts is not None:
        return run_prompts(args, settings)
    if settings.model == "linear-transformer":
        return run_linear_transformer(args, settings)
    refuse_options(args)
    if settings.model in DEEP.values():
        return run_depth(args, settings)
    import jax

    from iclflow.theory.predict import predict
    from iclflow.theory.summary import start_summary, task_summary

    task = settings.task()
    found = task_summary(task, settings.heads, settings.rank) | {"notes": not_covered(settings)}
    prediction = None
    if has_start(args, settings):
        model = settings.initialiser(task)(jax.random.key(settings.seed))
        prediction = predict(task, model)
        found |= start_summary(prediction, task, settings.scale)
        found |= in_steps(settings, found["drop_times"])
    if args.plot is not None:
        draw(found, prediction, args.plot)
    if args.json:
        print_json(found)
    else:
        show(found, verbose=args.verbose)
    return 0


def has_start(args: argparse.Namespace, settings: Any) -> bool:
    """Whether initial weights are stated, from which drops can be predicted."""
    stated = args.scale is not None or args.query_init is not None
    return stated or (args.file is not None and settings.scale > 0)


def in_steps(settings: Any, times: Any) -> dict[str, Any]:
    """The drops in training steps of plain descent; nothing where no rate is stated."""
    if settings.rate is None or settings.dynamics == "flow" or settings.optimiser != "gd":
        return {}
    from iclflow.dynamics import Descent

    steps = [int(Descent(settings.rate).steps(t)) if isfinite(t) else None for t in times]
    return {"rate": settings.rate, "drop_steps": steps}


def run_prompts(args: argparse.Namespace, settings: Any) -> int:
    """The theory of given prompts: what their moments say, and the drops of one start."""
    import jax

    from iclflow.losses import Moments, ReducedFeatures
    from iclflow.theory.drops.quadratic import not_quadratic
    from iclflow.theory.predict import predict
    from iclflow.theory.summary import prompts_summary, start_summary

    if settings.model in (*DEEP.values(), "linear-transformer"):
        raise ValueError(
            f"the theory of given prompts covers one layer of attention with one output, not "
            f"of {settings.model}; leave --layers and --model out"
        )
    source = settings.source()
    refuse_options(args)
    with progress_bar("reading", False if args.json else None) as report:
        loss = Moments.of(source, features=ReducedFeatures(), progress=report)
    reason = not_quadratic(loss)
    if reason is not None:
        raise ValueError(f"{settings.prompts}: {reason}")
    sizes = {"sequences": source.count, "context": source.context, "inputs": source.size}
    found = {"prompts": settings.prompts, **sizes}
    with progress_bar("theory", False if args.json else None):
        found |= prompts_summary(loss)
        prediction = None
        if has_start(args, settings):
            model = settings.initialiser(source)(jax.random.key(settings.seed))
            prediction = predict(loss, model)
            found |= start_summary(prediction, loss, settings.scale)
            found |= in_steps(settings, found["drop_times"])
    found["notes"] = not_covered(settings) + ([] if prediction is None else [*prediction.notes])
    if args.plot is not None:
        draw(found, prediction, args.plot)
    if args.json:
        print_json(found)
    else:
        show_prompts(found, verbose=args.verbose)
    return 0


def show_prompts(found: dict[str, Any], *, verbose: bool) -> None:
    """Tables on stdout, for given prompts."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{found['prompts']}: {found['sequences']:,} prompts of {found['context']} pairs, D = "
        f"{found['inputs']}", markup=False, highlight=False,
    )  # fmt: skip
    table = Table("plateau", "loss", "falls by", title="plateaus of linear attention")
    for m, level in enumerate(found["plateau_losses"][:ROWS]):
        drop = f"{found['drop_sizes'][m]:.6f}" if m < len(found["drop_sizes"]) else ""
        table.add_row(str(m), f"{level:.6f}", drop)
    console.print(table)
    console.print(
        f"one gradient step in context at its best rate: {found['gradient_step_loss']:.6f}; the "
        f"best that linear attention can do: {found['least_squares_loss']:.6f}", highlight=False,
    )  # fmt: skip
    if "drop_times" in found:
        show_drops(console, found, verbose=verbose)
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False, highlight=False)


def not_covered(settings: Any) -> list[str]:
    """What of the settings these levels do not know of, in words."""
    found = []
    if settings.model.startswith("softmax"):
        found.append(f"the levels are those of linear attention; no theory covers {settings.model}")
    if settings.model in ("merged", "mlp"):
        found.append("merged key and query visit the first and the last of these levels only")
    if settings.fixed_fraction > 0:
        found.append(
            "with a fixed task the zero blocks learn it: the levels are those of weights that "
            "leave them zero, and runs go lower"
        )
    return found


def draw(found: dict[str, Any], prediction: Any, path: Path) -> None:
    """The predicted loss, with the levels; the levels alone without initial weights."""
    from iclflow.plots.theory import theory_figure
    from iclflow.results.pictures import save_figure

    curve = None if prediction is None else prediction.curve(prediction.time)
    save_figure(
        theory_figure(found["plateau_losses"], curve=curve, drops=found.get("drop_times")), path
    )


def uses(count: int, total: int) -> str:
    """What the model uses on the plateau where it has learned so many of all components."""
    if count == 0:
        return "nothing"
    if count == total:
        return "all: least squares"
    return "component 1" if count == 1 else f"components 1–{count}"


def show(found: dict[str, Any], *, verbose: bool) -> None:
    """Tables on stdout, each with a line that explains its columns."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("plateau", "the model uses", "loss", "falls by", title="plateaus visited")
    for title in ("order", "index", "gain") if verbose else ():
        table.add_column(title)
    drops = [*found["drop_sizes"], None]
    for m, saddle in enumerate(found["saddles"][:ROWS]):
        drop = "" if drops[m] is None else f"{drops[m]:.6f}"
        cells = [str(m), uses(len(saddle["modes"]), len(drops) - 1), f"{saddle['loss']:.6f}", drop]
        if verbose:
            cells += [str(saddle["order"]), str(saddle["index"]), f"{saddle['cubic_gain']:.4g}"]
        table.add_row(*cells)
    console.print(table)
    if len(found["saddles"]) > ROWS:
        console.print(f"({len(found['saddles']) - ROWS} more; --json has them all)")
    explain(console, "Components are counted in the order in which they are learned.")
    if verbose:
        explain(
            console,
            "Order 3: the plateau is left by a blow-up, after t/τ = 1/(gain · weight). Order 2: "
            "it is left exponentially. Index: negative eigenvalues of the Hessian. There are "
            f"{found['fixed_points']} fixed points in all.",
        )
    table = Table("in-context algorithm", "population loss", "by", title="algorithms")
    for name, label in (
        ("zero", "zero"),
        ("gradient_step", "one gradient step, best rate"),
        ("least_squares", "least squares (16) = PCR-D"),
        ("ordinary_least_squares", "ordinary least squares"),
        ("ridge", "ridge, ρ = σ²"),
        ("bayes", "Bayes-optimal"),
    ):
        loss, error = found[f"{name}_loss"], found.get(f"{name}_error")
        table.add_row(label, f"{loss:.6f}", source_of(error, found))
    console.print(table)
    explain(
        console,
        "Least squares (16) is the best of linear attention: one matrix M for all prompts. "
        "Ordinary least squares inverts the second moment of each prompt.",
    )
    if "drop_times" in found:
        show_drops(console, found, verbose=verbose)
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)


def source_of(error: float | None, found: dict[str, Any]) -> str:
    """Where the loss of an algorithm comes from, in words."""
    if error is None:
        return "closed form"
    if isnan(error):
        return "too long to sample"
    count = f"{found['sampled_sequences']:,} prompts"
    exact = error <= ROUNDING * found["zero_loss"]  # the same loss on each prompt
    return count if exact else f"{count}, ± {error:.2g}"


def explain(console: Any, text: str) -> None:
    """A line below a table."""
    console.print(text, markup=False, highlight=False)


def show_drops(console: Any, found: dict[str, Any], *, verbose: bool) -> None:
    """The predicted drops of one start."""
    from rich.table import Table

    steps = found.get("drop_steps")
    table = Table("drop", title="drops predicted from the initial weights")
    for title in (*(("step",) if steps else ()), "t/τ", "head"):
        table.add_column(title)
    for title in ("condition", "duration", "paper's (51)(68)(73)") if verbose else ():
        table.add_column(title)
    durations = found.get("durations") or found["drop_times"]
    for i, time in enumerate(found["drop_times"][:ROWS]):
        cells = [str(i + 1)]
        if steps:
            cells.append("–" if steps[i] is None else str(steps[i]))
        cells += [f"{time:.6g}", "all" if found["heads"] is None else str(found["heads"][i])]
        if verbose:
            paper = found["paper_durations"][i]
            cells.append("" if found["condition"] is None else f"{found['condition'][i]:.2g}")
            cells += [f"{durations[i]:.5g}", "–" if isnan(paper) else f"{paper:.5g}"]
        table.add_row(*cells)
    console.print(table)
    explain(console, f"A drop is where the loss is halfway down. {clock_of(found)}")
    if verbose:
        explain(
            console,
            "Condition: the relative change of the time for a relative change of the initial "
            "weights. Duration: t/τ since the drop before; beside it the paper's estimate.",
        )


def clock_of(found: dict[str, Any]) -> str:
    """How t/τ and training steps belong together, in a sentence."""
    if "drop_steps" in found:
        return f"t/τ = 2 · rate · step, here at rate {found['rate']:g}."
    return "t/τ = 2 · rate · step; --rate gives steps."


def run_depth(args: argparse.Namespace, settings: Any) -> int:
    """Evaluate the formulas, predict the drops of given initial weights, report, draw."""
    from iclflow.theory.depth import depth_summary

    given = has_start(args, settings)
    if args.plot is not None and not given:
        raise ValueError("the picture of several layers shows one start; give its --scale")
    task = settings.task()
    found = depth_summary(task, settings.layers or 2)
    found["notes"] = notes_of(settings, given)
    if found["isotropic_tied_loss"] is None:
        found["notes"].append(
            "layers proportional to the inverse of Λ and the limit of large D and N are known for "
            "one context length and no noise on the labels of the context"
        )
    if given and predicted(settings):
        import jax

        from iclflow.theory.predict import predict

        with progress_bar("predicting the drops", None):
            model = settings.initialiser(task)(jax.random.key(settings.seed))
            prediction = predict(task, model, probes=0)
        found |= deep_start(prediction, settings.heads)
        found |= in_steps(settings, found["drop_times"])
        if args.plot is not None:
            draw(found | {"plateau_losses": found["levels"]}, prediction, args.plot)
    elif args.plot is not None:
        raise ValueError("drops are predicted for two layers with separate key and query only")
    if args.json:
        print_json(found)
    else:
        show_depth(found)
    return 0


def predicted(settings: Any) -> bool:
    """Whether the drops of such layers are predicted from their initial weights."""
    return settings.model == DEEP["separate"] and settings.layers == 2


def deep_start(prediction: Any, heads: int) -> dict[str, Any]:
    """When the drops of several layers come, and which head of which layer makes each."""
    return {
        "drop_times": prediction.times.tolist(),
        "drop_layers": (prediction.heads // heads).tolist(),
        "drop_heads": (prediction.heads % heads).tolist(),
        "levels": prediction.levels.tolist(),
        "engine": type(prediction.engine).__name__,
        "assumes": prediction.assumes,
    }


def notes_of(settings: Any, given: bool) -> list[str]:
    """What these numbers do not say, in words."""
    found = []
    if not given:
        found.append("with --scale the drops of a start are predicted, which takes some seconds")
    elif not predicted(settings):
        found.append("drops are predicted for two layers with separate key and query only")
    if settings.fixed_fraction > 0:
        found.append("with a fixed task only its second moment is known here")
    return found


def show_depth(found: dict[str, Any]) -> None:
    """Tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("loss", "tied", "untied", title=f"{found['layers']} layers: least losses")
    untied = ", ".join(f"{x:.6f}" for x in found["untied_losses"])
    table.add_row(found["covers"], f"{found['tied_loss']:.6f}", untied)
    rows = {"layers proportional to the inverse of Λ": "isotropic", "D, N → ∞": "asymptotic"}
    family = found["isotropic_tied_loss"] is not None
    for title, name in rows.items() if family else ():
        tied, best = (found[f"{name}_{kind}_loss"] for kind in ("tied", "untied"))
        table.add_row(title, f"{tied:.6f}", f"{best:.6f}")
    console.print(table)
    if family:
        steps = ", ".join(f"{x:.4f}" for x in found["isotropic_untied_steps"])
        tied = f"tied {found['isotropic_tied_step']:.4f}"
        console.print(f"steps of layers proportional to the inverse of Λ: {tied}; untied {steps}")
    if found["plateau_table"] is not None:
        size = len(found["plateau_table"])
        table = Table("r₀ \\ r₁", *map(str, range(size)), title="plateaus of two layers")
        for rank, row in enumerate(found["plateau_table"]):
            table.add_row(str(rank), *(f"{x:.5f}" for x in row))
        console.print(table)
        explain(console, "Rows: components that the first layer has learned, columns: the second.")
        levels = ", ".join(f"{x:.6f}" for x in found["tied_levels"])
        console.print(f"tied layers, 0 … {size - 1} heads: {levels}")
    if found["second_drop_rates"] is not None:
        first, second = found["second_drop_rates"]
        console.print(
            f"rate of an idle layer at the one-layer optimum: {first:.4g} (the first layer), "
            f"{second:.4g} (the second)"
        )
    if "drop_times" in found:
        steps = found.get("drop_steps")
        titles = (*(("step",) if steps else ()), "t/τ", "layer", "head", "loss before", "after")
        table = Table("drop", *titles, title="drops predicted from the initial weights")
        rows = zip(found["drop_times"], found["drop_layers"], found["drop_heads"], strict=True)
        for number, (time, layer, head) in enumerate(rows):
            before, after = found["levels"][number : number + 2]
            cells = [str(steps[number])] if steps else []
            cells += [f"{time:.6g}", str(layer), str(head), f"{before:.6f}", f"{after:.6f}"]
            table.add_row(str(number + 1), *cells)
        console.print(table)
        explain(console, f"A drop is where the loss is halfway down. {clock_of(found)}")
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)


LINEAR_TRANSFORMER = ("query_init", "epoch_rate")


def add_linear_transformer(parser: argparse.ArgumentParser) -> None:
    """Options that only the linear transformer has."""
    group = parser.add_argument_group("linear-transformer")
    group.add_argument(
        "--query-init",
        type=typed(float),
        metavar="Q",
        help="start of the second weights, q1 = Q * I (default: --scale)",
    )
    group.add_argument(
        "--epoch-rate", type=above_zero, metavar="ETA_P",
        help="rate times tasks per epoch; times are then epochs (default 1: t/tau)",
    )  # fmt: skip


def refuse_options(args: argparse.Namespace) -> None:
    """Raise `ValueError` if one of these options was given for another model."""
    for name in LINEAR_TRANSFORMER:
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} needs --model linear-transformer")


def run_linear_transformer(args: argparse.Namespace, settings: Any) -> int:
    """Evaluate both theories, report, draw."""
    from iclflow.theory.linear_transformer import (
        TransformerModes,
        transformer_curves,
        transformer_summary,
    )

    modes = TransformerModes.of(settings.task())
    start = None
    if has_start(args, settings):
        second = settings.scale if args.query_init is None else args.query_init
        start = (settings.scale, second)
    if args.rate is not None and args.epoch_rate is not None:
        raise ValueError(
            "--rate gives training steps and --epoch-rate epochs; leave one of them out"
        )
    rate = 1.0 if args.epoch_rate is None else args.epoch_rate
    found = transformer_summary(modes, start, epoch_rate=rate)
    if start is not None and args.epoch_rate is None:
        found |= in_steps(settings, found["exact_half_times"])
    if args.plot is not None:
        if start is None:
            raise ValueError("a plot over time needs a start; give --scale, for example 0.01")
        draw_linear_transformer(found, transformer_curves(modes, start), args.plot)
    if args.json:
        print_json(found)
    else:
        show_linear_transformer(found, verbose=args.verbose)
    return 0


def draw_linear_transformer(found: dict[str, Any], curves: dict[str, Any], path: Path) -> None:
    """a(t) and loss of both theories."""
    import xarray as xr

    from iclflow.plots.theory import transformer_figure
    from iclflow.results.pictures import save_figure

    dims = {1: ("time",), 2: ("time", "mode")}
    data = xr.Dataset(
        {name: (dims[values.ndim], values) for name, values in curves.items() if name != "time"},
        {"time": curves["time"], "eigenvalue": ("mode", found["eigenvalues"])},
    )
    data["a_optimum"] = ("mode", found["a_optimum"])
    data["optimum_loss"] = found["optimum_loss"]
    save_figure(transformer_figure(data.assign_attrs(epoch_rate=found["epoch_rate"])), path)


def show_linear_transformer(found: dict[str, Any], *, verbose: bool) -> None:
    """Tables on stdout, each with a line that explains its columns."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    clock = "t/τ" if found["epoch_rate"] == 1 else "epochs"
    main = {
        "s": "eigenvalues",
        "a∞ (11)": "a_infinity",
        "a best": "a_optimum",
        "t½ (13)": "paper_half_times",
        "t½ exact": "exact_half_times",
        "step ½": "drop_steps",
    }
    more = {"τ_α": "timescales", "a first": "overshoot", "t*": "escape_times"}
    console.print(table_of(found, main, f"the paper's theory and the exact one; times in {clock}"))
    started = "exact_half_times" in found
    explain(
        console,
        "s: eigenvalue. a: how strongly the mode is used, at the end of training by the paper "
        "(a∞) and at the least loss."
        + (" t½: when a reaches a∞/2, by the paper (13) and by the exact flow." if started else "")
        + (f" step ½: the same at rate {found['rate']:g}." if "drop_steps" in found else ""),
    )
    if verbose:
        console.print(table_of(found, more, "on the way"))
        explain(
            console,
            "τ_α: the paper's time scale of the mode. a first: what it goes to when it is learned, "
            "before later modes push it down."
            + (" t*: when it leaves zero, by the paper." if started else ""),
        )
    table = Table("loss (with ½)", "value")
    for title, name in (
        ("at zero weights", "initial_loss"),
        ("paper's final loss (14)", "paper_final_loss"),
        ("least loss, exact", "optimum_loss"),
    ):
        table.add_row(title, f"{found[name]:.6f}")
    console.print(table)
    inactive = found["active"].count(False)
    explain(
        console,
        f"a∞ differs from the best a by up to {found['fixed_point_error']:.2%}. The slowest drift "
        f"takes {found['drift_time']:.4g} {clock}."
        + (f" {inactive} modes are not worth learning." if inactive else ""),
    )
    if "paper_error" in found:
        explain(
            console,
            f"(13) differs from the exact a(t) by up to {found['paper_error']:.2%} of a∞ on the "
            f"way.",
        )


def table_of(found: dict[str, Any], columns: dict[str, str], title: str) -> Any:
    """A row per mode, of those columns that are known."""
    from rich.table import Table

    shown = {name: found[field] for name, field in columns.items() if field in found}
    table = Table("mode", *shown, title=title)
    for i, row in enumerate(zip(*shown.values(), strict=True)):
        cells = ("–" if x is None else str(x) if isinstance(x, int) else f"{x:.4g}" for x in row)
        table.add_row(str(i + 1), *cells)
    return table
