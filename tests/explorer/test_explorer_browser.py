"""The explorer page in Chromium: controls, presets, links, files, keyboard, and its own test."""

import functools
import http.server
import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import iclflow as icl
from iclflow.explorer.address import BOUNDS
from iclflow.explorer.page import WEB, bundle
from iclflow.study.study import Settings, Study
from tests.helpers.browser import CHROMIUM, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

DONE = """(() => {
  const { setup, runs, next, front } = explorer.trainer;
  if (next || !setup || setup.rough || front?.setup !== setup) return false;
  const known = r => r.drops.length || !setup.theory?.drops.length;
  const done = [...runs.values()].filter(r => r.setup === setup && r.done && known(r));
  return done.length === setup.settings.seeds;
})()"""
STREAMED = """(({ setup, front }) => front?.setup === setup
  && front.losses.at(-1) < front.losses[0] && !document.getElementById("progress").hidden
)(explorer.trainer)"""
STILL = "explorer.timeline.stop()"
INPUT = """(e => {
  e.value = {value};
  e.dispatchEvent(new Event("input"));
  e.dispatchEvent(new Event("change"));
})(document.getElementById("{id}"))"""
NAMES_ON_THE_CURVE = """(() => {
  const path = document.querySelector("#loss .theory"), length = path.getTotalLength();
  const points = [...Array(2000).keys()].map(n => path.getPointAtLength(n / 2000 * length));
  const within = ({ x, y, width, height }, p) =>
    p.x > x && p.x < x + width && p.y > y + 2 && p.y < y + height - 1;
  return [...document.querySelectorAll("#loss .marks .name")]
    .filter(name => points.some(p => within(name.getBBox(), p))).map(name => name.textContent);
})()"""
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    path.write_text(bundle(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser):
    browser.errors.clear()
    browser.requests.clear()
    yield browser
    assert browser.errors == []


def visit(page, file, fragment="", **size):
    page.open("about:blank")
    page.open(file.as_uri() + (f"#{fragment}" if fragment else ""), **size)
    settle(page)


def settle(page):
    page.until(DONE, said="document.getElementById('status').textContent")
    time.sleep(0.2)  # the runs behind are drawn, and words said, some frames later


def setting(page, name):
    return page.evaluate(f"explorer.settings().{name}")


def text(page, name):
    return page.evaluate(f"document.getElementById('{name}').textContent")


def give(page, name, value):
    page.evaluate(INPUT.replace("{value}", json.dumps(value)).replace("{id}", name))


def press(page, key, code=0, text_=""):
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                 **({"text": text_} if text_ and kind == "keyDown" else {}))  # fmt: skip


def test_it_trains_on_arrival_and_draws_theory(page, file):
    visit(page, file)
    assert {url for url in page.requests if not url.startswith("blob:null")} == {file.as_uri()}
    assert setting(page, "scale") == 0.07
    assert re.match(
        r"6 of 6 runs of .+ steps at rate 0.2.*Theory: drop times to 0\.\d+% ",
        text(page, "status"),
    )
    assert page.evaluate("document.querySelectorAll('#loss .predicted').length") == 4
    assert page.evaluate("document.querySelector('#loss .theory').getAttribute('d').length") > 500
    assert "nothing, then component 1, then components 1–2" in page.evaluate(
        "document.querySelector('#strip svg').getAttribute('aria-label')"
    )
    assert page.evaluate("explorer.timeline.playing || explorer.timeline.index > 0")


def test_the_page_tests_itself(page, file):
    visit(page, file)
    found = page.evaluate("explorer.selfTest()")
    assert len(found) > 15
    assert all(one["error"] <= one["tolerance"] for one in found)
    assert "checks of 4 runs passed" in text(page, "selftest-result")


def test_all_references_hold_in_the_browser_as_modules_from_a_server(page):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    handler = functools.partial(Quiet, directory=str(WEB))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        page.open(address)
        settle(page)
        found = page.evaluate("explorer.selfTest()")
        assert len(found) > 100
        assert [one for one in found if not one["error"] <= one["tolerance"]] == []
        assert all(url.startswith((address, "blob:")) for url in page.requests)
        server.shutdown()


def test_every_preset(page, file):
    visit(page, file)
    names = page.evaluate("[...document.querySelectorAll('.pills button')].map(b => b.textContent)")
    assert len(names) == 16
    for number, name in enumerate(names):
        button = f"document.querySelectorAll('.pills button')[{number}]"
        page.evaluate(f"{button}.click()")
        assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "true", name
        if name == "Softmax":  # streamed: it moves, with a progress bar
            page.until(STREAMED)
            continue
        settle(page)
        assert page.evaluate(
            "explorer.trainer.front.losses.at(-1) < explorer.trainer.front.losses[0]"
        ), name
        assert "NaN" not in page.evaluate("document.querySelector('main').innerHTML"), name


def test_two_layers_have_levels_of_their_own_start(page, file):
    visit(page, file, "layers=2&spectrum=0.6,0.3&heads=3&scale=0.05&rate=0.1&seeds=2")
    for run in page.evaluate(
        "[...explorer.trainer.runs.values()].map(({levels, seen, drops}) =>"
        " ({levels, seen, times: drops.map(({time}) => time)}))"
    ):
        assert len(run["levels"]) == 5  # each component is learned once in each layer
        np.testing.assert_allclose(run["seen"], run["times"], rtol=0.1)
    assert "2 + 2 heads" in page.evaluate("document.getElementById('loss').textContent")
    assert page.evaluate(NAMES_ON_THE_CURVE) == []
    assert page.evaluate("document.querySelector('[data-view=strip]').hidden")
    give(page, "field-model", "merged")  # has one layer on the page
    assert setting(page, "layers") == 1
    settle(page)


def test_every_control(page, file):
    visit(page, file, "scale=0.07&seeds=2")
    page.evaluate("document.querySelector('.controls details').open = true")
    give(page, "scale", -1.5)
    assert setting(page, "scale") == pytest.approx(0.0316)
    page.evaluate("document.getElementById('more').click()")
    assert len(setting(page, "spectrum")) == 5
    page.evaluate("document.getElementById('fewer').click()")
    settle(page)
    fields = {"heads": 6, "rank": 2, "context": 20, "noise": 0.3, "sequences": 200, "rate": 0.1,
              "steps": 900, "seeds": 3, "seed": 5, "cloud": "100"}  # fmt: skip
    for name, value in fields.items():
        give(page, f"field-{name}", value)
        assert setting(page, name) == float(value), name
    page.evaluate("document.getElementById('field-rotate').click()")
    assert setting(page, "rotate") is True
    give(page, "field-fixed_fraction", 0.4)
    assert (setting(page, "fixed_fraction"), setting(page, "sequences")) == (0.4, 0)
    assert page.evaluate("document.getElementById('field-sequences').disabled")
    give(page, "field-fixed_fraction", 0)
    give(page, "field-task_covariance", "1, 2, 1, 0.5")
    assert setting(page, "task_covariance") == [1, 2, 1, 0.5]
    settle(page)
    page.evaluate("document.querySelectorAll('#seed-buttons button')[2].click()")
    assert setting(page, "front") == 2
    page.evaluate("document.getElementById('axis-linear').click()")
    page.evaluate("document.getElementById('another').click()")
    for model in ("merged", "linear-transformer", "separate"):
        give(page, "field-model", model)
        settle(page)
        assert page.evaluate("explorer.trainer.setup.settings.model") == model


def test_bars_are_dragged(page, file):
    visit(page, file, "scale=0.07")
    box = page.evaluate(
        "(r => [r.x + r.width / 2, r.y])"
        "(document.querySelector('.bar .grip').getBoundingClientRect())"
    )
    before = setting(page, "spectrum")
    for kind, dy in (("mousePressed", 0), ("mouseMoved", -15), ("mouseReleased", -15)):
        page.ask(
            "Input.dispatchMouseEvent",
            type=kind,
            x=box[0],
            y=box[1] + dy,
            button="left",
            buttons=1,
            clickCount=1,
        )
    after = setting(page, "spectrum")
    assert after[0] > before[0] + 0.02
    assert after[1:] == before[1:]


def test_play_and_scrub(page, file):
    visit(page, file, "scale=0.07&t=1")
    assert page.evaluate("explorer.timeline.playing") is False
    page.evaluate("document.getElementById('play').click()")
    first = page.evaluate("explorer.timeline.index")
    page.until(f"explorer.timeline.index > {first}")
    page.evaluate(STILL)
    give(page, "time", 40)
    page.until("explorer.timeline.index === 40")
    assert page.evaluate("Number(document.querySelector('#values .cursor').getAttribute('x1'))") > 0
    x, y = page.evaluate(
        "(r => [r.x + 0.5 * r.width, r.y + 100])"
        "(document.getElementById('loss').getBoundingClientRect())"
    )
    page.ask(
        "Input.dispatchMouseEvent",
        type="mousePressed",
        x=x,
        y=y,
        button="left",
        buttons=1,
        clickCount=1,
    )
    page.ask(
        "Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1
    )
    cursor = page.evaluate("explorer.trainer.front.times[explorer.timeline.index]")
    assert cursor > page.evaluate("explorer.trainer.front.times[40]")
    assert "loss" in text(page, "readout")


def test_a_link_brings_the_same_page(page, file):
    fragment = "spectrum=0.5,0.3,0.1&task_covariance=1,1.5,2&noise=0.25&heads=4&scale=0.033"
    fragment += "&seeds=2&seed=7&front=1"
    visit(page, file, fragment)
    page.evaluate(STILL)
    losses = page.evaluate("[...explorer.trainer.front.losses]")
    page.evaluate("explorer.change({})")
    page.until("location.hash.includes('&t=')")  # it is kept when nothing changes for a while
    kept = page.evaluate("location.hash")
    visit(page, file, kept.lstrip("#"))
    assert page.evaluate("[...explorer.trainer.front.losses]") == losses
    page.load("Page.reload")
    settle(page)
    assert page.evaluate("[...explorer.trainer.front.losses]") == losses


@pytest.mark.parametrize(
    "fragment",
    [
        "scale=1e999&heads=-5&rank=1e9&spectrum=NaN,0.3",
        "spectrum=" + ",".join(["0.1"] * 500),
        "__proto__=1&constructor=2&toString=3&model=<img src=x onerror=alert(1)>",
        "heads=16&rank=8&spectrum=0.01,0.01,0.01,0.01,0.01,0.01,0.01,0.01&steps=5&seeds=1",
        "t=-5&t=abc&front=99999&seeds=0&context=0&cloud=-1&steps=3&rate=1e-320",
        "%E0%A4%A&=&&&=x&scale=",
        "x" * 5000,
    ],
)
def test_hostile_links_do_no_harm(page, file, fragment):
    visit(page, file, fragment)
    settings = page.evaluate("explorer.settings()")
    assert set(settings) == {*BOUNDS, "model", "rotate", "front", "cloud", "given"}
    assert settings["given"] == 0  # there are no prompts of a file to go back to
    assert 1 <= settings["heads"] <= 16
    assert len(settings["spectrum"]) <= 8
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("({}).polluted") is None


def test_a_link_is_bounded_by_what_all_of_it_costs(page, file):
    page.open("about:blank")
    page.open(file.as_uri() + "#seeds=1e9&steps=1e99&heads=16&rank=8&spectrum=1,1,1,1,1,1,1,1")
    alone = setting(page, "steps")
    assert alone == 10**6  # each number in its bounds
    assert setting(page, "seeds") < 10  # and their product too
    page.open("about:blank")
    page.open(file.as_uri() + "#seeds=100&steps=2000")
    assert (setting(page, "seeds"), setting(page, "steps")) == (100, 2000)  # what is cheap stays


@pytest.mark.parametrize("inside", ["", "AAAA", "not base64!", "eJwDAAAAAAE="])
def test_hostile_runs_are_refused_in_words(page, inside, tmp_path):
    path = tmp_path / "page.html"
    element = f'<script type="text/plain" class="recorded">{inside}</script></head>'
    path.write_text(bundle().replace("</head>", element, 1), encoding="utf-8")
    visit(page, path)
    assert page.evaluate("explorer.trainer.front.done")


def test_recorded_runs_are_shown(page, tmp_path):
    options = {"scale": 0.07, "rate": 0.2, "steps": 4000, "seeds": 2, "sequences": 400}
    runs = Study.of(Settings(**options, save="log:80", record=("loss", "weights"))).run()
    visit(page, icl.explore(runs, out=tmp_path / "page.html", browser=False))
    page.evaluate(STILL)
    assert text(page, "note").startswith("Recorded by the library")
    shown = page.evaluate("[...explorer.trainer.runs.values()].map(r => [...r.losses])")
    assert shown == runs["loss"].values.tolist()
    values = page.evaluate("[...explorer.trainer.front.weights].slice(-45, -40)")
    assert values == pytest.approx(runs["values"].values[0, -1].ravel().tolist(), rel=1e-6)
    give(page, "scale", -1.0)
    settle(page)
    assert page.evaluate("explorer.trainer.front.losses.length") != len(shown[0])


@pytest.mark.parametrize(
    "fragment",
    [
        pytest.param(
            "scale=0.3&seeds=2&seed=4&front=1&noise=0.1&task_covariance=1,1.1,1.2,1.3&steps=600"
            "&rotate=true",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "scale=0.3&sequences=50&data_seed=9&steps=300&rate=0.3&heads=2&context=9",
            marks=pytest.mark.slow,
        ),
        "model=merged&fixed_fraction=0.3&eigen_seed=5&scale=0.1&steps=300&heads=3&noise=0.2"
        "&spectrum=0.5,0.3&task_covariance=1,2&rotate=true",
        pytest.param(
            "layers=2&spectrum=0.6,0.3&heads=2&scale=0.3&steps=400&noise=0.3&rotate=true",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["population", "prompts", "fixed task", "two layers"],
)
def test_copied_settings_and_program_repeat_the_runs(page, file, fragment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    visit(page, file, fragment)
    copied = {}
    for name in ("toml", "python"):
        page.evaluate(f"document.getElementById('{name}').click()")
        copied[name] = text(page, "dialog-code")
        page.evaluate("document.getElementById('dialog-close').click()")
    (tmp_path / "page.toml").write_text(copied["toml"], encoding="utf-8")
    page_runs = page.evaluate(
        "[...explorer.trainer.runs.values()].sort((a, b) => a.index - b.index)"
        ".map(r => [[...r.times].map(t => Math.round(t / 2 / r.setup.rate)), [...r.losses]])"
    )
    steps = sorted({step for marks, _ in page_runs for step in marks})
    settings = Settings.read(tmp_path / "page.toml", {"save": ",".join(map(str, steps))})
    found = Study.of(settings).run()
    for (marks, losses), run in zip(page_runs, found["loss"], strict=True):
        ours = dict(zip(found["step"].values.tolist(), run.values.tolist(), strict=True))
        assert [ours[step] for step in marks] == pytest.approx(losses, abs=1e-12)
    names = {}
    exec(compile(copied["python"], "<copied>", "exec"), names)
    last = names["runs"]["loss"].values[:, -1].tolist()
    assert last == pytest.approx([losses[-1] for _, losses in page_runs], abs=1e-12)
    assert (tmp_path / "run.png").is_file()


def test_a_fixed_task_is_learned_in_weight_first(page, file, tmp_path):
    visit(page, file)
    page.evaluate("[...document.querySelectorAll('.pills button')]"
                  ".find(b => b.textContent.startsWith('In weights first')).click()")  # fmt: skip
    settle(page)
    page.evaluate(STILL)
    halves = page.evaluate(
        "explorer.trainer.front.tests.map(({ losses }) => losses.findIndex(x => x < 0.5))"
    )
    assert halves[1] < halves[0]  # the fixed task, then any task
    assert page.evaluate("document.querySelectorAll('#loss .tests path').length") == 2
    assert page.evaluate("document.querySelectorAll('#loss .predicted').length") == 1
    assert re.search(r"Theory: drop times to \d\.\d%", text(page, "status"))
    assert "the theory says nothing of what follows" in text(page, "loss-words")
    assert page.evaluate("document.querySelector('[data-view=strip]').hidden")
    page.evaluate("document.getElementById('another').click()")
    assert "The task is the fixed one." in text(page, "prompt-words")
    visit(page, file, "fixed_fraction=7&model=softmax-merged&steps=5")  # softmax has no fixed task
    assert setting(page, "fixed_fraction") == 0
    visit(page, file, "fixed_fraction=0.5&scale=0.07&steps=3000&rate=0.09")
    assert "No theory covers this" in text(page, "loss-words")
    assert page.evaluate("document.querySelector('#loss .theory').getAttribute('d')") == ""
    options = {"model": "merged", "spectrum": (0.5, 0.3), "rotate": True, "fixed_fraction": 0.5,
               "heads": 2, "scale": 0.1, "rate": 0.1, "steps": 400, "seeds": 2}  # fmt: skip
    runs = Study.of(Settings(**options, save="log:40", record=("loss", "weights"))).run()
    visit(page, icl.explore(runs, out=tmp_path / "page.html", browser=False))
    shown = page.evaluate("explorer.trainer.front.tests.map(({ losses }) => [...losses])")
    for found, name in zip(shown, ("in_context_loss", "in_weight_loss"), strict=True):
        assert found == pytest.approx(runs[name].values[0].tolist(), abs=1e-6)  # weights as floats
    assert page.evaluate("document.querySelector('[data-view=conserved]').hidden") is False


def test_presets_are_one_row_and_a_menu(page, file):
    visit(page, file, "scale=0.07&seeds=1", width=1280)
    tops = page.evaluate(
        "[...document.querySelectorAll('.presets > .pills button, .menu > summary')]"
        ".map(b => Math.round(b.getBoundingClientRect().top))"
    )
    assert len(tops) == 6
    assert max(tops) - min(tops) <= 2
    page.evaluate("document.getElementById('more-presets').open = true")
    page.evaluate("[...document.querySelectorAll('#breakage button')].find("
                  "b => b.textContent === 'Large start').click()")  # fmt: skip
    assert page.evaluate("document.getElementById('more-presets').open") is False
    assert text(page, "more-name") == "Large start"
    page.evaluate("document.querySelector('#row button').click()")
    assert text(page, "more-name") == "More"


def test_levels_are_said_in_words_and_their_terms_in_tooltips(page, file):
    visit(page, file, "scale=0.07&steps=25000&rate=0.2", width=1280)
    page.evaluate(STILL)
    labels = page.evaluate(
        "[...document.querySelectorAll('#loss .levels text')]"
        ".map(t => [t.firstChild.data, t.querySelector('title')?.textContent])"
    )
    assert [name for name, _ in labels] == [
        "nothing",
        "component 1",
        "components 1–2",
        "components 1–3",
        "least squares",
    ]
    assert "PCR-2" in labels[2][1]
    give(page, "time", 0)
    page.until("document.getElementById('readout').textContent.includes('predicts nothing yet')")


def test_the_story_goes_with_the_drops_and_ends_with_an_invitation(page, file):
    visit(page, file, "model=merged&scale=0.001&seeds=1")
    page.evaluate("document.getElementById('story-start').click()")
    settle(page)
    page.until("document.getElementById('story-count').textContent === '1 of 5'")
    assert setting(page, "model") == "separate"
    at = []
    for number in range(2, 6):
        press(page, "ArrowRight", 39)
        page.until(f"document.getElementById('story-count').textContent === '{number} of 5'")
        page.until("!explorer.timeline.playing")
        at.append(page.evaluate("explorer.trainer.front.losses[explorer.timeline.index]"))
    assert at[0] == pytest.approx(0.64, abs=0.02)  # one component is learned
    assert at[1] == pytest.approx(0.377, abs=0.02)  # two
    assert at[2] == pytest.approx(0.136, abs=0.001)
    assert "change something" in text(page, "story-words")
    press(page, "Escape", 27)
    assert page.evaluate("document.getElementById('story').hidden")
    assert page.evaluate("document.getElementById('note').hidden") is False


def test_nothing_sticks_on_a_low_screen(page, file):
    for height, kind in ((900, "sticky"), (360, "static")):
        visit(page, file, "scale=0.07&seeds=1", width=900, height=height)
        assert page.evaluate("getComputedStyle(document.querySelector('.transport')).position") == (
            kind
        )


def test_two_tabs_do_not_disturb_each_other(page, file, tmp_path):
    visit(page, file, "scale=0.07&seeds=2")
    with Page(tmp_path / "other") as other:
        visit(other, file, "scale=0.2&seeds=2")
        give(other, "scale", -1.0)
        settle(other)
        assert (setting(page, "scale"), setting(other, "scale")) == (0.07, 0.1)
        assert other.errors == []


def test_keyboard_alone_reaches_and_moves_everything(page, file):
    visit(page, file, "scale=0.07")
    page.evaluate(STILL)
    seen = []
    for _ in range(60):
        press(page, "Tab", 9)
        seen.append(
            page.evaluate(
                "(e => e.id || e.getAttribute('aria-label') || e.textContent)"
                "(document.activeElement)"
            )
        )
        if seen[-1] == "time":
            break
    assert {"link", "scale", "eigenvalue 1", "more", "play", "time"} <= set(seen)
    index = page.evaluate("explorer.timeline.index")
    press(page, "ArrowLeft", 37)
    assert page.evaluate("explorer.timeline.index") != index
    page.evaluate("document.querySelector('.bar').focus()")
    before = setting(page, "spectrum")[0]
    press(page, "ArrowUp", 38)
    assert setting(page, "spectrum")[0] == pytest.approx(before + 0.005)
    page.evaluate("document.getElementById('scale').focus()")
    press(page, "ArrowRight", 39)
    assert setting(page, "scale") > 0.07
    page.evaluate("document.activeElement.blur()")
    press(page, " ", 32, " ")
    assert page.evaluate("explorer.timeline.playing")


@pytest.mark.parametrize(
    ("width", "dark", "zoom"), [(1280, False, 1), (390, True, 1), (1280, False, 2), (320, False, 1)]
)
def test_it_fits_and_is_accessible(page, file, width, dark, zoom):
    visit(page, file, "scale=0.07&t=900", width=width // zoom, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width // zoom
    assert page.evaluate(AUDIT) == []


# Chromium stops a page that saves many files at once, so they are looked at before they leave it.
CATCH = """window.saved = {}; window.made = [];
URL.createObjectURL = (blob) => (made.push(blob), "data:,");
HTMLAnchorElement.prototype.click = function () { saved[this.download] = made.at(-1) }"""


def test_views_are_saved(page, file, tmp_path):
    visit(page, file, "scale=0.07&seeds=2")
    page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.evaluate("document.querySelector(`[aria-label='Save times as CSV']`).click()")
    end = time.monotonic() + 20
    while not (tmp_path / "times.csv").exists() and time.monotonic() < end:
        time.sleep(0.05)
    rows = (tmp_path / "times.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "run,drop,head,predicted,seen"
    assert len(rows) == 9
    page.evaluate(CATCH)
    buttons = "[...document.querySelectorAll('.save button')]"
    assert page.evaluate(f"{buttons}.length") == 24
    for number in range(24):
        page.evaluate(f"{buttons}[{number}].click()")
        page.until(f"Object.keys(saved).length === {number + 1}")  # a picture takes a moment
    found = page.evaluate(
        "Promise.all(Object.entries(saved).map("
        "async ([name, blob]) => [name, (await blob.text()).slice(0, 60)]))"
    )
    assert len(found) == 24
    starts = {"png": "PNG", "svg": "<svg xmlns=", "csv": ""}
    for name, text_ in found:
        assert starts[name[-3:]] in text_, name
        assert len(text_) > 20, name


def test_it_is_calm_where_motion_is_not_wanted_and_small_where_embedded(page, file):
    page.open("about:blank")
    page.ask(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-reduced-motion", "value": "reduce"}],
    )
    page.load("Page.navigate", url=f"{file.as_uri()}#embed=1")
    settle(page)
    assert page.evaluate("explorer.timeline.playing") is False
    assert page.evaluate("explorer.timeline.index === explorer.trainer.front.times.length - 1")
    assert page.evaluate("getComputedStyle(document.querySelector('.panels')).display") == "none"
    assert page.evaluate("getComputedStyle(document.getElementById('loss')).display") == "block"
    page.evaluate("postMessage({ theme: 'dark' }, '*')")  # here the page is its own parent
    page.evaluate("new Promise(heard => setTimeout(heard, 50))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_rate_that_diverges_is_said_and_kept(page, file):
    visit(page, file, "scale=0.07&rate=9&steps=2000")
    assert text(page, "status").startswith("Diverged at step")
    assert "too large" in text(page, "status")


def test_own_prompts_are_shown_with_the_theory_of_these_prompts(page, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 9, 2)) * [1.0, 0.6]
    y = np.tanh(np.einsum("pnd,pd->pn", x, rng.normal(size=(300, 2))))
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    given = {"prompts": str(tmp_path / "mine.npz"), "heads": 3, "scale": 0.1, "steps": 300}
    visit(page, icl.explore(settings=given, out=tmp_path / "page.html", browser=False))
    page.evaluate(STILL)
    assert text(page, "note").startswith("Recorded by the library: mine.npz")
    assert text(page, "loss-words").startswith("300 prompts of your own")
    assert page.evaluate("explorer.trainer.setup.modes.levels.length") == 3
    assert page.evaluate("document.querySelector('[data-view=prompt]').hidden")
    give(page, "scale", -1.0)  # something moves, and the page trains a task of its own again
    settle(page)
    assert page.evaluate("explorer.trainer.setup.given") is None
