"""A video of the weights over training, from a run that recorded them.

The loss with a moving marker, the keys and queries of the heads as they turn onto the
eigenvectors of the inputs, and the effective weights of the layer. Time passes evenly.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from iclflow.cli.options import add_force, check_outputs, print_json, seed, typed
from iclflow.results.messages import progress_bar

EXAMPLES = """examples:
  iclflow simulate --heads 5 --scale 0.07 --save linear:300 --out run.nc
  iclflow animate run.nc                           # run.mp4; run.gif where there is no ffmpeg
  iclflow animate run.nc --out film.gif --seconds 6 --fps 15

MP4 needs ffmpeg: the system's, or the extra iclflow[video].
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and the film."""
    parser.add_argument("run", type=Path, metavar="RUN.nc", help="a run that recorded weights")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the video, .mp4 or .gif (beside the run)"
    )
    parser.add_argument("--seed", type=seed, help="which run, where the file has several")
    parser.add_argument(
        "--seconds",
        type=typed(float, above=0, most=600),
        default=10.0,
        help="length of the video (10)",
    )
    parser.add_argument(
        "--fps", type=typed(int, least=1, most=120), help="pictures per second (30; 15 for a GIF)"
    )
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Draw the film and say what it shows."""
    from iclflow.diagnosis.film import animate
    from iclflow.results import pictures
    from iclflow.study.study import load_runs

    began = time.perf_counter()
    out = args.out = args.out or args.run.with_suffix(".mp4" if pictures.ffmpeg() else ".gif")
    check_outputs(args, pictures.FILMS, [args.run])
    runs = load_runs(args.run)
    how = {"seed": args.seed, "seconds": args.seconds, "fps": args.fps}
    try:
        with progress_bar("drawing", False if args.json else None) as report:
            film = animate(runs, out, **how, progress=report)
    except ValueError as error:
        raise ValueError(f"{args.run}: {error}") from None
    found = {
        "out": str(out),
        "frames": len(film.frames),
        "fps": film.fps,
        "recorded_points": len(set(film.frames.tolist())),
        "basis": film.basis,
        "seconds": round(time.perf_counter() - began, 3),
    }
    if args.json:
        print_json(found)
    else:
        show(found)
    return 0


def show(found: dict[str, Any]) -> None:
    """What was written, on stdout."""
    print(f"wrote {found['out']}: {found['frames']} frames at {found['fps']} per second")
    print(f"weights in the {found['basis']}; {found['seconds']:.1f} s")
    if found["recorded_points"] < found["frames"] / 2:
        print(
            f"only {found['recorded_points']} recorded points fall on these frames; "
            "for a smoother film, simulate with --save linear:300"
        )
