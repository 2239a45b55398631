"""The documentation site in Chromium: every page at every width, the filter, and paper."""

import subprocess
import sys

import pytest

from tests.helpers.browser import CHROMIUM, Page
from tests.project.test_pages import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

WIDTHS = (1440, 1280, 640, 390, 320)  # 640 is 1280 at 200 %
# What sticks out of the page; formulas that their number lies on; on a desktop what has to scroll.
FAULTS = r"""(() => {
  const wide = innerWidth > 1200, faults = [], page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) faults.push(`page: ${page.scrollWidth}`);
  for (const formula of document.querySelectorAll(".katex-display")) {
    const bases = [...formula.querySelectorAll(".katex-html > .katex-base")]
      .map(base => base.getBoundingClientRect());
    const number = formula.querySelector(".katex-html > .katex-tag > .mord");
    const place = number?.getBoundingClientRect();
    const meets = ({ right, top, bottom }) =>
      right > place.left && bottom > place.top && top < place.bottom;
    if (place && bases.some(meets)) faults.push(`on: ${number.textContent}`);
    const left = Math.min(...bases.map(({ left }) => left)), box = formula.getBoundingClientRect();
    if (left < box.left - 1) faults.push(`out of reach: ${formula.textContent.slice(-60)}`);
  }
  const boxes = "div.arithmatex, .md-typeset__scrollwrap";
  for (const box of wide ? document.querySelectorAll(boxes) : [])
    if (box.scrollWidth > box.clientWidth + 1)
      faults.push(`scrolls: ${box.textContent.slice(0, 60)}`);
  if (document.querySelector(".katex-error")) faults.push("a formula is not read");
  return faults;
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_every_page_fits_at_every_width(page, site):
    found = {}
    paths = sorted(site.rglob("*.html"))
    paths = [path for path in paths if path.name not in ("404.html", "explore.html")]
    assert len(paths) > 50
    for path in paths:
        page.open(path.as_uri(), width=WIDTHS[0])
        for width in WIDTHS:
            page.ask(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
            )  # fmt: skip
            for fault in page.evaluate(FAULTS):
                found.setdefault(str(path.relative_to(site)), []).append((width, fault))
    assert found == {}
    assert page.errors == []
    assert all(url.startswith(("file:", "blob:")) for url in page.requests)


def test_the_index_of_equations_is_filtered(page, site):
    page.open((site / "equations.html").as_uri())
    rows = "[...document.querySelectorAll('article tbody tr')].filter(r => r.clientHeight).length"
    every = page.evaluate(rows)
    page.evaluate(
        "(box => { box.value = '(24) plateau'; box.dispatchEvent(new Event('input')) })"
        "(document.querySelector('#equation-filter input'))"
    )
    assert 0 < page.evaluate(rows) < every / 10


def test_a_live_page_leaves_no_gap_on_paper(page, site):
    page.open((site / "index.html").as_uri())
    shown = "document.querySelector('iframe.explorer').getClientRects().length"
    assert page.evaluate(shown) == 1
    page.ask("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate(shown) == 0
    page.ask("Emulation.setEmulatedMedia", media="")
