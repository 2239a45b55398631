"""The explorer page in Chromium: opening, slider to picture, scrubbing, size.

Uses the debugging client of the tests. Other work on the machine shows in all times but the CPU
time of the page's main thread.
"""

import gzip
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from iclflow.explorer.page import bundle
from tests.helpers.browser import CHROMIUM, Page

EIGHT = "spectrum=0.368,0.184,0.123,0.092,0.074,0.061,0.053,0.046&heads=9&scale=0.1&seeds=6"
SIZES = {"D = 4, H = 5, six seeds": "scale=0.07&rate=0.2&seeds=6", "D = 8, H = 9, six seeds": EIGHT}
OPENINGS, CHANGES, PAUSE = 5, 40, 0.35
DONE = """(() => {
  const { setup, runs, next } = explorer.trainer;
  const done = [...runs.values()].filter(r => r.setup === setup && r.done);
  return !next && !!setup && done.length === setup.settings.seeds;
})()"""
SLIDE = """(async () => {
  const slider = document.getElementById("scale"), before = explorer.latencies.length;
  slider.value = Number(slider.value) + %g;
  slider.dispatchEvent(new Event("input"));
  while (explorer.latencies.length === before) await new Promise(next => setTimeout(next, 1));
  return explorer.latencies.at(-1);
})()"""
SCRUB = """(async () => {
  const slider = document.getElementById("time"), last = Number(slider.max), gaps = [];
  let before = performance.now();
  for (let i = 0; i < 180; i++) {
    slider.value = Math.round(last * (0.5 + 0.49 * Math.sin(i / 14)));
    slider.dispatchEvent(new Event("input"));
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - before);
    before = now;
  }
  return gaps.slice(1);
})()"""
FIRST = "performance.getEntriesByName('run drawn')[0]?.startTime"


def settle(page: Page, patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not page.evaluate(DONE) and time.monotonic() < end:
        time.sleep(0.05)


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{statistics.median(ordered):.0f} ms, {high:.0f} ms"


def cpu(page: Page) -> float:
    """Seconds that the page's main thread has computed."""
    found = page.ask("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in found if one["name"] == "TaskDuration")


def measure(page: Page, address: str) -> dict[str, str]:
    openings = []
    for _ in range(OPENINGS):
        page.open("about:blank")
        page.open(address, width=1280)
        settle(page)
        openings.append(page.evaluate(FIRST))
    page.evaluate("explorer.timeline.stop()")
    changes = []
    page.ask("Performance.enable", timeDomain="threadTicks")
    before = cpu(page)
    for number in range(CHANGES + 10):
        changes.append(page.evaluate(SLIDE % (0.05 if number % 2 else -0.05)))
        time.sleep(PAUSE)
    settle(page)
    busy = 1000 * (cpu(page) - before) / len(changes)
    page.ask("Performance.disable")
    gaps = page.evaluate(SCRUB)
    return {
        "first curve after opening: median, p95": spread(openings),
        "slider to picture: median, p95": spread(changes[10:]),
        "CPU time of the main thread for a change, all views and runs": f"{busy:.0f} ms",
        "scrubbing, frames per second": f"{1000 * len(gaps) / sum(gaps):.0f}",
    }


def main() -> None:
    if CHROMIUM is None:
        raise SystemExit("Chromium is not installed")
    page_text = bundle()
    print(f"size: {len(page_text.encode()) / 1e3:.0f} kB, ", end="")
    print(f"gzipped {len(gzip.compress(page_text.encode(), 9)) / 1e3:.0f} kB")
    with tempfile.TemporaryDirectory() as folder, Page(Path(folder) / "profile") as page:
        path = Path(folder) / "explorer.html"
        path.write_text(page_text, encoding="utf-8")
        for name, fragment in SIZES.items():
            load = os.getloadavg()[0]
            for what, value in measure(page, f"{path.as_uri()}#{fragment}").items():
                print(f"{name}: {what}: {value}")
            print(f"{name}: load of the machine {load:.1f} to {os.getloadavg()[0]:.1f}")
        print("console errors:", page.errors or "none")


if __name__ == "__main__":
    main()
