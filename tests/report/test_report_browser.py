"""The report in a browser: pictures load, nothing is asked of a network, both themes legible."""

import functools
import http.server
import threading

import pytest

from iclflow.experiments.base import Live
from iclflow.report.build import build
from tests.helpers import small_experiment as small
from tests.helpers.browser import CHROMIUM, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# The smallest contrast between a text and what is behind it (WCAG 2), over all visible texts.
CONTRAST = """
(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = c => {
    const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = c.map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    if (!e.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color).slice(0, 3)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst[0]) worst = [ratio, `${e.tagName}.${e.className}: ${n.data.trim()}`];
  }
  return worst;
})()
"""
BROKEN_IMAGES = (
    "[...document.images].filter(i => !(i.complete && i.naturalWidth > 100)).map(i => i.alt)"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    figures = [small.figure("fig1"), small.figure("fig2", compute=small.HERE.compute_nothing)]
    return build(figures, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser, report):
    browser.errors.clear()
    browser.requests.clear()
    yield browser
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_images_load_and_text_is_legible(page, report, dark, width):
    page.open(report.index.as_uri(), width=width, dark=dark)
    assert page.evaluate("document.images.length") == 1
    assert page.evaluate(BROKEN_IMAGES) == []
    ratio, where = page.evaluate(CONTRAST)
    assert 4.5 <= ratio < 99, where
    assert page.requests == [report.index.as_uri()]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_as_light_or_dark_as_asked(page, report, dark, tmp_path):
    from matplotlib.image import imread

    page.open(report.index.as_uri(), dark=dark)
    brightness = imread(page.screenshot(tmp_path / "page.png"))[..., :3].mean()
    assert brightness < 0.25 if dark else brightness > 0.75
    # Figures too: black ink on white would be a lamp in the dark.
    page.evaluate("document.images[0].scrollIntoView()")
    brightness = imread(page.screenshot(tmp_path / "figure.png"))[..., :3].mean()
    assert brightness < 0.25 if dark else brightness > 0.75


def test_the_button_changes_the_theme_and_it_is_remembered(page, report):
    page.open(report.index.as_uri(), dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    name = "document.getElementById('theme').textContent"
    auto = page.evaluate(paper)
    seen = []
    for _ in range(3):
        page.evaluate("document.getElementById('theme').click()")
        seen.append((page.evaluate(name), page.evaluate(paper)))
    light = seen[0][1]
    assert light != auto
    assert seen == [("Theme: light", light), ("Theme: dark", auto), ("Theme: auto", auto)]
    page.evaluate("document.getElementById('theme').click()")
    for _ in range(10):  # Chromium hands on what is stored a moment after it was stored
        page.open(report.index.as_uri(), dark=True)
        if page.evaluate(paper) == light:
            break
    assert page.evaluate(paper) == light
    page.evaluate("localStorage.clear()")


def test_nothing_is_wider_than_a_phone(page, report):
    page.open(report.index.as_uri(), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    size = page.evaluate(
        "parseFloat(getComputedStyle(document.querySelector('figcaption')).fontSize)"
    )
    assert size >= 14


def test_paper_has_whole_figures_and_the_heads_of_the_table(page, report):
    page.open(report.index.as_uri(), width=717)  # what A4 leaves between its margins
    page.ask("Emulation.setEmulatedMedia", media="print")
    style = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.evaluate(style.format(".paper", "boxShadow")) == "none"
    assert page.evaluate("document.images[0].clientWidth <= document.body.clientWidth")
    assert page.evaluate(style.format(".claims thead button", "display")) != "none"
    assert page.evaluate(style.format("nav", "display")) == "none"
    page.ask("Emulation.setEmulatedMedia", media="")


def test_nothing_sticks_on_a_low_screen(page, report):
    for height, kind in ((900, "sticky"), (360, "static")):
        page.open(report.index.as_uri(), height=height)
        assert page.evaluate("getComputedStyle(document.querySelector('nav')).position") == kind


def test_a_figure_that_goes_on_says_so_and_the_navigation_is_as_wide(page, tmp_path):
    figures = [small.figure("a"), small.figure("b", draw=small.HERE.draw_wide)]
    report = build(figures, tmp_path)
    hints = "[...document.querySelectorAll('.swipe')].map(p => p.getClientRects().length > 0)"
    for width, told in ((360, [False, True]), (1200, [False, False])):
        page.open(report.index.as_uri(), width=width)
        assert page.evaluate(hints) == told
    wide = "document.querySelector('{}').clientWidth"
    assert page.evaluate(wide.format("nav")) >= page.evaluate(wide.format(".paper"))


def test_runs_behind_a_figure_are_live(page, tmp_path):
    runs = {"compute": small.HERE.compute_runs, "claims": small.HERE.no_claims}
    live = (
        Live("loss", "theory", "levels", "drops", title="one", tests=(("theory", "other"),)),
        Live("loss", "theory", "levels", title="two", until="drops", lines="values", runs="seed"),
    )
    report = build([small.figure("live", **runs, live=live), small.figure("plain")], tmp_path)
    page.open(report.index.as_uri(), width=1000)
    words = "document.querySelector('#live-live output').textContent"
    page.until(f"document.querySelector('#live-live output') && {words}")
    said = "Drops of run 0 at 40 (predicted 40). Dashed: predicted from the initial weights."
    assert page.evaluate(words).endswith(said)
    assert page.evaluate("document.querySelectorAll('#live-live .tests path').length") == 1
    to_the_edge = r"/H[\d.]+$/.test(document.querySelector('#live-live .theory').getAttribute('d'))"
    assert page.evaluate(to_the_edge)
    assert page.evaluate("document.querySelectorAll('#live-live .levels line').length") == 2
    page.evaluate("document.querySelector('#live-live [aria-label*=\"run 1\"]').click()")
    assert "Drops of run 1 at 80 (predicted 80)." in page.evaluate(words)
    slide = "(s => { s.value = 3; s.dispatchEvent(new Event('input')) })"
    page.evaluate(f"{slide}(document.querySelector('#live-live input'))")
    assert page.evaluate(words).startswith("t/τ 1.2, loss 1.0000")
    page.evaluate("document.querySelectorAll('#live-live > .chips button')[1].click()")
    assert "Drops of seed 0 at 40. Dashed" in page.evaluate(words)
    assert page.evaluate("document.querySelectorAll('#live-live path.value').length") == 3
    assert not page.evaluate(to_the_edge)  # the theory stops where it is said to
    assert page.evaluate("document.querySelector('#plain-live')") is None
    assert page.evaluate(BROKEN_IMAGES) == []  # the pictures stay, and are what is printed
    page.ask("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.live')).display") == "none"
    page.ask("Emulation.setEmulatedMedia", media="")
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where


def test_the_scorecard_filters_and_sorts_and_leads_to_code_and_control(page, report):
    page.open(report.index.as_uri())
    shown = (
        "[...document.querySelectorAll('#claims tbody tr')].filter(r => !r.hidden).map(r => r.id)"
    )
    assert page.evaluate(shown) == ["claim-last", "claim-small", "claim-never"]
    choose = "(e => { e.value = '%s'; e.dispatchEvent(new Event('input')) })"
    page.evaluate(f"{choose % 'yes'}(document.getElementById('verdict'))")
    assert page.evaluate(shown) == ["claim-last"]
    page.evaluate(f"{choose % ''}(document.getElementById('verdict'))")
    page.evaluate(f"{choose % 'BELOW'}(document.getElementById('find'))")
    assert page.evaluate(shown) == ["claim-small"]
    page.evaluate(f"{choose % ''}(document.getElementById('find'))")
    head = (
        "[...document.querySelectorAll('#claims thead button')].find(b => b.textContent === '{}')"
    )
    page.evaluate(head.format("Tolerance") + ".click()")
    assert page.evaluate(shown) == ["claim-last", "claim-small", "claim-never"]
    page.evaluate(head.format("Tolerance") + ".click()")
    assert page.evaluate(shown) == ["claim-never", "claim-small", "claim-last"]
    lines = []
    for name in ("code", "control"):
        links = "[...document.querySelectorAll('#claim-last a')]"
        page.evaluate(f"{links}.find(a => a.textContent === '{name}').click()")
        page.until("document.querySelector('.anchor:target')?.closest('details').open")
        lines.append(page.evaluate("document.querySelector('.anchor:target').textContent"))
    assert 'near("last"' in lines[0]
    assert '"last": data.assign(loss=2 *' in lines[1]


def test_it_also_works_from_a_server(page, report):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    handler = functools.partial(Quiet, directory=str(report.out))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        page.open(url)
        assert page.evaluate(BROKEN_IMAGES) == []
        assert page.requests == [url]  # no icon, no font, no script
        server.shutdown()
