"""The report: its folder, data that are reused, failures, scorecard and page."""

import dataclasses
import html.parser
import json
import re
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import iclflow.experiments
from iclflow.experiments.base import Claim, Module
from iclflow.plots.style import style
from iclflow.report import page
from iclflow.report.build import build, prepare, scorecard
from iclflow.report.figures import FIGURES, PAPERS, choose
from iclflow.report.making import data_key
from iclflow.report.workers import next_work
from iclflow.results.netcdf import load
from iclflow.results.pictures import save_figure
from tests.helpers import small_experiment as small
from tests.helpers.verdicts import unmoved

KEYS = {"id", "claim", "equation", "expected", "measured", "tolerance", "holds"}
FILES = [
    "data/small_experiment.nc",
    "figures/small.pdf",
    "figures/small.png",
    "index.html",
    "manifest.json",
    "scorecard.json",
]


@pytest.fixture(autouse=True)
def _count_from_zero():
    small.COMPUTED.clear()


def broken(name: str):
    return small.figure(name, compute=small.HERE.compute_nothing)


# The folder


def test_a_report_is_these_files(tmp_path):
    report = build([small.figure()], tmp_path / "new" / "report")
    assert small.files(tmp_path / "new" / "report") == FILES
    assert report.index.is_file()
    assert (report.out / "figures/small.pdf").read_bytes().startswith(b"%PDF")
    assert (report.out / "figures/small.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_stops_everything_and_is_kept(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=re.escape(str(path))):
        build([small.figure()], tmp_path)
    assert path.read_text() == "mine"
    assert small.files(tmp_path) == [name]
    assert small.COMPUTED == []


def test_files_beside_the_report_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.nc").write_text("mine")
    for _ in range(2):
        build([small.figure()], tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "data" / "mine.nc").read_text() == "mine"
    assert small.files(tmp_path) == sorted([*FILES, "notes.txt", "data/mine.nc"])


def test_out_must_be_a_folder(tmp_path):
    (tmp_path / "report").write_text("a file")
    with pytest.raises(FileExistsError, match="is a file"):
        build([small.figure()], tmp_path / "report")
    (tmp_path / "index.html").mkdir()
    with pytest.raises(FileExistsError, match=r"index\.html"):
        build([small.figure()], tmp_path)


def test_a_run_killed_after_its_first_file_can_be_repeated(tmp_path):
    prepare(tmp_path, ["index.html", "scorecard.json"])
    (tmp_path / "index.html").write_text("half")  # as the killed run left it
    prepare(tmp_path, ["index.html"])
    assert "scorecard.json" in (tmp_path / "manifest.json").read_text()


# Data


def test_the_second_run_reuses_data(tmp_path):
    first = build([small.figure()], tmp_path)
    second = build([small.figure()], tmp_path)
    assert [first.outcomes["small"].status, second.outcomes["small"].status] == [
        "computed",
        "reused",
    ]
    assert len(small.COMPUTED) == 1
    assert second.rows == first.rows
    assert second.outcomes["small"].computing == first.outcomes["small"].computing
    assert "already finished" in second.index.read_text()
    assert "already finished" not in page.render(first, [small.figure()])


def test_figures_of_one_experiment_share_data(tmp_path):
    report = build([small.figure("a"), small.figure("b")], tmp_path)
    assert len(small.COMPUTED) == 1
    assert [row["figure"] for row in report.rows] == ["a"] * 3
    assert (tmp_path / "figures/b.pdf").is_file()
    alone = build([small.figure("b")], tmp_path)
    assert [row["figure"] for row in alone.rows] == ["b"] * 3


def test_quick_data_do_not_replace_those_at_paper_scale(tmp_path):
    build([small.figure()], tmp_path)
    build([small.figure()], tmp_path, quick=True)
    third = build([small.figure()], tmp_path)
    assert len(small.COMPUTED) == 2
    assert third.outcomes["small"].status == "reused"
    assert load(tmp_path / "data/small_experiment.nc").sizes["time"] == 200
    assert load(tmp_path / "data/small_experiment-quick.nc").sizes["time"] == 20


def test_the_key_follows_scale_experiment_and_code(monkeypatch):
    source = small.figure().source
    keys = {data_key(source, False), data_key(source, True)}
    keys.add(data_key(broken("b").source, False))
    monkeypatch.setattr("iclflow.report.making.code_key", lambda module: "other code")
    keys.add(data_key(source, False))
    assert len(keys) == 4


@pytest.mark.parametrize("damage", [b"", b"not NetCDF"])
def test_damaged_data_are_made_again(tmp_path, damage):
    build([small.figure()], tmp_path)
    (tmp_path / "data/small_experiment.nc").write_bytes(damage)
    report = build([small.figure()], tmp_path)
    assert report.outcomes["small"].status == "computed"
    assert load(tmp_path / "data/small_experiment.nc").sizes["time"] == 200


# Failure


def test_a_figure_that_fails_does_not_stop_the_others(tmp_path):
    figures = [
        broken("a"),
        dataclasses.replace(small.figure("c"), draw=small.HERE.draw_badly),
        small.figure("b"),
        small.figure("d", compute=Module("no_such_experiment").compute),
    ]
    report = build(figures, tmp_path)
    assert report.failed == ["a", "c", "d"]
    errors = {name: found.error for name, found in report.outcomes.items()}
    assert errors["a"].startswith("FloatingPointError: the loss is not a number (small_experiment")
    assert "no ink" in errors["c"]
    assert "no_such_experiment" in errors["d"]
    text = report.index.read_text()
    assert "3 of 4 figures could not be made" in text
    assert "no ink" in text
    assert {row["figure"] for row in report.rows} == {"c"}  # claims need no ink
    assert (tmp_path / "figures/b.pdf").is_file()


@pytest.mark.long
def test_processes_do_the_same_and_one_may_die(tmp_path):
    figures = [
        small.figure("a"),
        small.figure("b", compute=small.HERE.compute_and_die),
        broken("c"),
    ]
    seen = []
    report = build(figures, tmp_path, jobs=2, watch=lambda *event: seen.append(event))
    assert report.failed == ["b", "c"]
    assert "code 9" in report.outcomes["b"].error
    assert report.outcomes["c"].error == build([broken("c")], tmp_path).outcomes["c"].error
    assert len(report.rows) == 3
    assert {name for name, _, found in seen if found is not None} == {"a", "b", "c"}
    assert {name for name, done, found in seen if found is None and done == 0.0} == {"a", "b", "c"}


@pytest.mark.long
def test_processes_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("NPROC", "7")
    figures = [small.figure("a", compute=small.HERE.compute_cores), small.figure("b")]
    report = build(figures, tmp_path, jobs=2)
    assert report.outcomes["a"].attributes["cores"] == "3"


@pytest.mark.parametrize(
    ("waiting", "last", "elsewhere", "chosen"),
    [
        (["a", "b", "b"], None, [], 0),
        (["a", "b", "b"], "b", ["a"], 1),  # the data are here
        (["a", "b"], "c", ["a"], 1),  # the data are there
        (["a", "a"], "c", ["a"], 0),  # better than to wait
    ],
)
def test_experiments_go_where_their_data_are(waiting, last, elsewhere, chosen):
    assert next_work(waiting, last, elsewhere) == chosen


# Scorecard


def test_scorecard_is_a_list_of_claims(tmp_path):
    report = build([small.figure()], tmp_path)
    found = json.loads((tmp_path / "scorecard.json").read_text())
    assert found == report.rows
    assert all(set(row) >= KEYS for row in found)
    assert [row["holds"] for row in found] == [True, False, False]
    assert found[2]["measured"] is None  # not a number
    assert found[0]["figure"] == "small"


def test_numbers_of_a_claim_become_plain():
    claim = Claim("a", "b", "(1)", np.float64(1.0), float("nan"), float("inf"), False)
    (row,) = scorecard({"fig": [claim]})
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert (row["expected"], row["measured"], row["tolerance"]) == (1.0, None, None)


def test_a_claim_whose_verdict_nothing_turns_round_is_named():
    data = small.compute()
    assert unmoved(data, small.claims, small.controls) == ["never"]  # it has no control
    same = {claim.id: data for claim in small.claims(data)}
    assert unmoved(data, small.claims, lambda _: same) == ["last", "small", "never"]


# Page


class Reader(html.parser.HTMLParser):
    """Collects what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        if tag in ("a", "link"):
            self.links.append(found["href"])
        if tag == "img":
            self.images.append(found)
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_its_links_lead_somewhere(tmp_path):
    report = build([small.figure("a"), broken("b")], tmp_path)
    text = report.index.read_text()
    reader = read(text)
    assert len(reader.ids) == len(set(reader.ids))
    for link in reader.links:
        if link.startswith("#"):
            assert link[1:] in reader.ids
        elif not link.startswith(("https://arxiv.org/", "data:")):
            assert (tmp_path / link).is_file(), link
    assert [image["alt"] for image in reader.images] == ["A curve that falls."]
    assert all(image["src"].startswith("data:image/png;base64,") for image in reader.images)
    assert not re.search(r"<(script|iframe|object)[^>]*\ssrc=|@import|url\(", text)
    assert "A caption with β &amp; &lt;β&gt;." in text
    assert "The loss is &lt;small&gt; &amp; below 10⁻⁹" in text
    assert "iclflow reproduce a" in text
    assert "80,000" in text  # a setting
    assert "1<small> of 3</small>" in text


def test_the_page_begins_with_a_cover_and_captions_count_their_data(tmp_path):
    given = {"caption": "A curve of {points} points.", "cover_caption": "{points} of them."}
    plain = small.figure("plain")
    covered = small.figure("covered", words=small.HERE.words, cover=small.HERE.draw_wide, **given)
    for quick, points in ((False, 200), (True, 20)):
        report = build([plain, covered], tmp_path / str(quick), quick=quick)
        text = report.index.read_text()
        read(text)
        assert f"A curve of {points} points." in text
        assert f'{points} of them. <a href="#covered">' in text
        assert text.index('class="cover"') < text.index("The title of plain")
    assert 'class="cover"' not in build([plain], tmp_path / "plain").index.read_text()


def test_a_picture_is_as_wide_as_its_inches_whatever_their_dots(tmp_path):
    for dpi in (100, 150, 300):
        with style():
            drawn = small.draw_wide(small.compute())
        picture = save_figure(drawn, tmp_path / f"{dpi}.png", dpi=dpi)
        width, height = page.shown_size(picture.read_bytes())
        assert (width, height) == (pytest.approx(9 * 144, abs=4), pytest.approx(2 * 144, abs=4))


def test_the_claims_of_a_figure_are_listed_once(tmp_path):
    text = build([small.figure()], tmp_path).index.read_text()
    assert text.count("The last loss is e⁻⁴") == 1  # the scorecard
    assert "1 of 3" in text


def test_the_page_opens_with_what_does_not_hold(tmp_path):
    text = build([small.figure()], tmp_path).index.read_text()
    assert text.index("What does not hold") < text.index("The title of small")
    assert (
        "No claim belongs"
        in build([small.figure(claims=small.HERE.no_claims)], tmp_path).index.read_text()
    )


def test_quick_says_so(tmp_path):
    assert "Quick form" in build([small.figure()], tmp_path, quick=True).index.read_text()
    assert "Quick form" not in build([small.figure()], tmp_path).index.read_text()


def test_times_are_compared_where_both_are_known(tmp_path):
    made = [small.figure("fig1"), small.figure("fig5"), broken("fig4")]
    report = build(made, tmp_path)
    (row,) = page.comparisons(made, report.outcomes)
    assert (row["label"], row["published"]) == ("Fig. 1", 26 * 60)
    found = report.outcomes["fig1"]
    assert row["ours"] == found.computing + found.drawing
    assert row["ratio"] == row["published"] / row["ours"]
    both = [small.figure("fig5"), small.figure("fig10")]
    outcomes = build(both, tmp_path).outcomes
    (row,) = page.comparisons(both, outcomes)  # one experiment, drawn twice
    drawing = sum(found.drawing for found in outcomes.values())
    assert row["ours"] == pytest.approx(outcomes["fig5"].computing + drawing)
    assert row["ratio"] is None  # another problem: no ratio
    assert "not alike" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.2, "59 s"),
        (60, "1 min"),
        (151, "2 min 31 s"),
        (26 * 60, "26 min"),
        (3.4 * 3600, "3.4 hours"),
        (2.9 * 86400, "2.9 days"),
        (142 * 86400, "142 days"),
    ],
)
def test_durations_in_words(seconds, text):
    assert page.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.5, "−0.5"),
        (1e-12, "10⁻¹²"),
        (-2.5e-7, "−2.5 × 10⁻⁷"),
        (1234567.0, "1.235 × 10⁶"),
        (None, "not a number"),
        ("D drops", "D drops"),
        (4, "4"),
    ],
)
def test_numbers_in_words(value, text):
    assert page.number(value) == text


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("L(M_m) at x_qᵀ", "L(M<sub>m</sub>) at x<sub>q</sub>ᵀ"),
        ("key_labels < P^(-1/2)", "key_labels &lt; P<sup>−1/2</sup>"),
        ("slope -0.5, well-known", "slope −0.5, well-known"),
        ("at w = 1e-3, 2.5e6 steps, 1e", "at w = 0.001, 2.5 × 10⁶ steps, 1e"),
        ("4e+07 epochs, E2 of App. E.1", '4 × 10⁷ epochs, <a href="#E2">E2</a> of App. E.1'),
    ],
)
def test_mathematics_in_prose(text, html):
    assert page.prose(text) == html


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("over all seeds", "Over all seeds."),
        ("a count", "A count."),
        ("w² over the size", "w² over the size."),
        ("relative; it stays", "Relative; it stays."),
        ("P = 80,000.", "P = 80,000."),
        ("|cos| of two", "|cos| of two."),
    ],
)
def test_notes_become_sentences(text, whole):
    assert page.sentence(text) == whole


def test_settings_are_words():
    attributes = {
        "settings": '{"kind": "fast", "sequences": 80000, "rates": [0.5, 1e-7], "missing": null}',
        "scale": 0.07,
        "content_key": "abc",
        "quick": 0,
    }
    assert page.settings(attributes) == [
        ("kind", "fast"),
        ("sequences", "80,000"),
        ("rates", "0.5, 1e-07"),
        ("scale", "0.07"),
    ]
    assert page.settings({"settings": "as in the paper"}) == [("as stated", "as in the paper")]


@pytest.mark.parametrize(
    ("measured", "expected", "text"),
    [
        (0.9999981795, 1.0, "0.99999818"),
        (0.95, 1.0, "0.95"),
        (1.0, 1.0, "1"),
        (1e-16, 0.0, "10⁻¹⁶"),
        (2.0, "two", "2"),
        (None, 1.0, "not a number"),
    ],
)
def test_measured_numbers_show_where_they_differ(measured, expected, text):
    assert page.beside(measured, expected) == text


# The table of figures


def test_the_table_names_every_figure_of_the_paper():
    wanted = [f"fig{i}" for i in range(1, 11)] + ["fixed-points", "plateau-alignment"]
    wanted += ["v2-softmax", "v2-init", "v2-length", "zero-blocks"]
    wanted += [*(f"depth-fig{i}" for i in range(1, 7)), "softmax-fig1"]
    wanted += [*(f"lt-fig{i}" for i in range(1, 5)), "lt-blocks", "lt-fig5", "lt-fig6", "lt-fig7"]
    wanted += ["diversity-fig1", "diversity-published"]
    groups = ("staircase", "pools", "shifted", "tokens", "spins", "softmax", "depth", "curves")
    wanted += [f"field-{group}" for group in groups]
    assert list(FIGURES) == wanted
    assert all(figure.name == name for name, figure in FIGURES.items())
    timed = {name for paper in PAPERS for entry in paper.published for name in entry.figures}
    assert timed <= set(FIGURES)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_the_table_points_at_functions_there_are(figure):
    source = figure.source
    for function in (source.compute, source.claims, source.controls, figure.draw):
        assert callable(function.resolve())
    # The functions have the same names in every experiment, in a folder or in one file.
    home, dot, _ = source.module.rpartition(".data")
    parts = ("data", "claims", "claims", "figure") if dot else [""] * 4
    functions = (source.compute, source.claims, source.controls, figure.draw)
    names = ("compute", "claims", "controls", "draw")
    for part, name, function in zip(parts, names, functions, strict=True):
        assert function.module == (f"{home}.{part}" if part else source.module)
        assert function.name.partition("_")[0] == name
    assert figure.alt.endswith(".")
    assert figure.caption.endswith(".")
    fields = [name for _, name, _, _ in string.Formatter().parse(figure.caption) if name]
    assert bool(fields) == (figure.words is not None)
    for function in filter(None, (figure.words, figure.cover)):
        assert callable(function.resolve())
    assert bool(figure.cover_caption) == (figure.cover is not None)


def test_an_experiment_is_a_file_or_a_folder_with_data_claims_and_figure():
    room = Path(iclflow.experiments.__file__).parent
    homes = {f.source.module.removeprefix("iclflow.experiments.") for f in FIGURES.values()}
    assert homes >= {"saddle_to_saddle.data", "grokking.data", "zero_blocks"}
    for home in homes:
        name, folder, _ = home.partition(".data")
        if folder:
            names = sorted(path.name for path in (room / name).glob("*.py"))
            assert names == ["__init__.py", "claims.py", "data.py", "figure.py"], name
        else:
            assert (room / f"{name}.py").is_file(), name


def test_the_table_of_figures_imports_no_science():
    code = (
        "import sys; import iclflow.report.figures, iclflow.report.workers; "
        "print([m for m in ('jax', 'numpy', 'xarray', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_choosing_figures():
    assert choose([]) == choose(["all"]) == choose(["fig3", "all"])
    nonlinear = choose(["nonlinear"])
    assert [figure.name for figure in nonlinear] == ["lt-fig5", "lt-fig6", "lt-fig7"]
    assert all(figure.source.resumes for figure in nonlinear)
    field = choose(["field"])
    assert {figure.group for figure in field} == {"field"}
    diversity = choose(["diversity", "diversity-published"])
    everything = [*choose([]), *nonlinear, *diversity, *field]
    groups = ["nonlinear", "field", "diversity", "diversity-published", "all"]
    assert choose(groups) == everything == list(FIGURES.values())
    assert [figure.name for figure in choose(["fig10", "fig2", "fig10"])] == ["fig2", "fig10"]
    with pytest.raises(ValueError, match=r"unknown figure 'fig33'; did you mean 'fig3'\?"):
        choose(["fig1", "fig33"])


def test_a_page_names_the_papers_whose_figures_it_has():
    zhang, mainali = "2501.16265", "2504.12916"
    for names, wanted in (
        (["fig3"], [zhang]),
        (["nonlinear"], [mainali]),
        (["lt-fig1", "fig1"], [zhang, mainali]),
        (["depth-fig1"], [""]),  # results of our own
    ):
        assert [paper.arxiv for paper in page.papers(choose(names))] == wanted
