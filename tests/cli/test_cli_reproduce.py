"""`iclflow reproduce`: exit codes, JSON, progress, reuse, errors."""

import json

import pytest

from iclflow.cli import main
from iclflow.cli.reproduce import Remaining
from iclflow.report import figures
from tests.helpers import small_experiment as small


@pytest.fixture(autouse=True)
def _small_table(monkeypatch):
    table = {
        "small": small.figure("small"),
        "broken": small.figure("broken", compute=small.HERE.compute_nothing),
    }
    monkeypatch.setattr(figures, "FIGURES", table)
    small.COMPUTED.clear()


def reproduce(*arguments) -> int:
    return main(["reproduce", *(str(argument) for argument in arguments)])


def test_a_claim_that_does_not_hold_is_a_result(tmp_path, capsys):
    assert reproduce("small", "--out", tmp_path / "report") == 0
    streams = capsys.readouterr()
    assert "1 of 3 claims hold" in streams.out
    assert "does not hold: small, never" in streams.out
    assert "index.html" in streams.out
    assert "small: computed" in streams.err  # progress
    assert [p.name for p in (tmp_path / "report").rglob("index.html")] == ["index.html"]
    assert (tmp_path / "report" / "scorecard.json").is_file()


def test_a_second_run_says_that_it_reuses(tmp_path, capsys):
    reproduce("small", "--out", tmp_path)
    assert reproduce("small", "--out", tmp_path) == 0
    streams = capsys.readouterr()
    assert "1 of 1 figures reuse finished data" in streams.out
    assert "small: reused" in streams.err
    assert len(small.COMPUTED) == 1


def test_json_and_nothing_else_on_stdout(tmp_path, capsys):
    assert reproduce("small", "--quick", "--json", "--out", tmp_path) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out)
    assert streams.err == ""
    assert (found["claims"], found["claims_that_hold"], found["quick"]) == (3, 1, True)
    assert found["does_not_hold"] == ["small", "never"]
    assert found["index"] == str(tmp_path / "index.html")
    assert [row["name"] for row in found["figures"]] == ["small"]
    assert found["figures"][0]["error"] is None
    assert found["seconds"] > 0


@pytest.mark.parametrize("names", [[], ["all"], ["broken", "small"]])
def test_a_figure_that_fails_gives_exit_code_1(tmp_path, capsys, names):
    assert reproduce(*names, "--out", tmp_path, "--jobs", 1) == 1
    out = capsys.readouterr().out
    assert "broken failed: FloatingPointError: the loss is not a number" in " ".join(out.split())
    assert (tmp_path / "figures" / "small.pdf").is_file()


def test_each_scale_has_a_default_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, scale in (("report", []), ("report-quick", ["--quick"])):
        assert reproduce("small", "--json", *scale) == 0
        assert json.loads(capsys.readouterr().out)["index"] == f"{folder}/index.html"
        assert (tmp_path / folder / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["smal"], "unknown figure 'smal'; did you mean 'small'?; there are small, broken, all"),
        (["small", "--jobs", "0"], "must be at least 1"),
        (["small", "--seeds", "3"], "unrecognized arguments"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as stop:
        reproduce(*arguments, "--out", tmp_path / "report")
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_a_foreign_page_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "index.html").write_text("my site")
    with pytest.raises(SystemExit) as stop:
        reproduce("small", "--out", tmp_path)
    assert stop.value.code == 2
    assert "was not written by an earlier report" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "my site"


def test_interruption_keeps_what_is_finished(tmp_path, capsys, monkeypatch):
    table = {
        "small": small.figure("small"),
        "stopped": small.figure("stopped", compute=small.HERE.compute_and_be_interrupted),
    }
    monkeypatch.setattr(figures, "FIGURES", table)
    assert reproduce("all", "--jobs", 1, "--out", tmp_path) == 130
    assert "interrupted; finished data are kept" in capsys.readouterr().err
    assert (tmp_path / "data" / "small_experiment.nc").is_file()
    assert not (tmp_path / "index.html").exists()


def test_the_time_that_is_left_counts_from_where_this_process_began():
    rest = Remaining()
    assert rest.words(0.0, 7.0) == "computing"
    assert rest.words(0.5, 100.0) == "computing, 50.0%"  # what an earlier process has done
    assert rest.words(0.6, 110.0) == "computing, 60.0%"  # too early to tell
    assert rest.words(0.6, 140.0) == "computing, 60.0%, about 2 min 40 s left"
    assert Remaining().words(1.0, 5.0) == "computing, 100.0%"


def test_one_more_figure_keeps_the_rest_of_the_report(tmp_path, capsys, monkeypatch):
    """The page and the scorecard are those of all figures in the folder."""
    table = {"small": small.figure("small"), "other": small.figure("other")}
    monkeypatch.setattr(figures, "FIGURES", table)
    assert reproduce("small", "--out", tmp_path) == 0
    before = (tmp_path / "scorecard.json").read_text()
    assert reproduce("other", "--out", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in found["figures"]] == ["small", "other"]
    assert (tmp_path / "scorecard.json").read_text() == before  # they share their claims
    page = (tmp_path / "index.html").read_text()
    with pytest.raises(SystemExit):
        reproduce("small", "--quick", "--out", tmp_path)
    err = capsys.readouterr().err
    assert "a report at paper scale" in err
    assert err.count("\n") == 1
    assert (tmp_path / "index.html").read_text() == page
    assert reproduce("small", "--quick", "--force", "--out", tmp_path) == 0
