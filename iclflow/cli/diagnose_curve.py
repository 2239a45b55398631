"""`iclflow diagnose LOSS.csv`: plateaus of somebody's loss curve, and what comes next."""

import argparse
from math import isfinite
from typing import Any

from iclflow.cli.diagnose_output import finish
from iclflow.study.fields import described


def diagnose_a_curve(args: argparse.Namespace) -> int:
    """Plateaus of somebody's loss curve, and what the theory says comes next."""
    from iclflow.diagnosis import diagnose_curve, read_curve
    from iclflow.measures import Clock

    steps, losses = read_curve(args.paths[0], args.column)
    task, starts, rate = theory_of(args)
    found = diagnose_curve(
        steps, losses - args.floor, task=task, starts=starts, rate=rate, clock=Clock(args.clock)
    )
    return report_curve(args, found)


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


def theory_of(args: argparse.Namespace) -> tuple[Any, list[Any], float | None]:
    """Task, drawn starts and rate, as far as the options state them."""
    import jax

    from iclflow.cli.options import settings_of
    from iclflow.published import InitConvention, Options
    from iclflow.published.weights import PublishedInitialiser, normalised

    if args.spectrum is None:
        for name in described():
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
