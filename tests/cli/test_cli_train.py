"""`iclflow train`: the published flags, the files it writes, its errors."""

import json
import sys

import numpy as np
import pytest

from iclflow.cli import build_parser, main
from iclflow.cli.options import given
from iclflow.cli.train import open_window
from iclflow.results.netcdf import load
from iclflow.study.flags import Options

SMALL = ["--epoch", "12", "--trainset_size", "40", "--seq_len", "6", "--lr", "0.01"]


def run_json(capsys, *arguments):
    code = main(["train", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def parse(line):
    """The options that a line states, the others as published."""
    return Options(**given(build_parser("train").parse_args(["train", *line.split()]), Options))


# The commands of the published README, after `python train.py`.
README = [
    "--model attnM --head 8 --init 1e-6 --show",
    "--model mlp --cubic_feat --head 8 --init 1e-6 --show",
    "--model attnS --head 5 --init 1e-2 --epoch 10001 --lr 0.02 --show",
    "--model attnS --head 9 --KQ_dim 4 --in_dim 8 --seq_len 32 --init 5e-3 --trainset_size 80000 "
    "--epoch 20001 --lr 0.02",
    "--model attnM --icl 0.4 --head 8 --testset 5000 --init 1e-6 --white_cov --lr 0.0005 "
    "--epoch 4001",
]


@pytest.mark.parametrize("line", README)
def test_readme_commands_are_understood(line):
    args = parse(line)
    assert args.head_num in (5, 8, 9)
    assert args.testset_size == (5000 if "--testset" in line else 0)
    assert args.rank == (4 if "--KQ_dim" in line else 1)


def test_defaults_are_the_published_ones():
    args = parse("")
    found = (args.model, args.head_num, args.rank, args.init, args.epoch, args.lr, args.seed)
    assert found == ("attnM", 1, 1, 0.01, 6001, 0.001, 10)
    found = (args.in_dim, args.out_dim, args.seq_len, args.trainset_size, args.testset_size)
    assert found == (4, 1, 32, 5000, 0)
    assert args.icl == 1.0
    assert build_parser("train").parse_args(["train"]).init_convention == "figures"


def test_files_of_a_plain_run(tmp_path, capsys):
    code, summary = run_json(capsys, *SMALL, "--head", "2", "--out", str(tmp_path / "new"))
    assert code == 0
    table = np.loadtxt(summary["text"])
    assert table.shape == (12,)
    dataset = load(summary["netcdf"])
    np.testing.assert_array_equal(table, dataset["loss"].values)
    assert table[0] == summary["initial_loss"]
    assert table[-1] == summary["final_loss"]
    assert dataset.attrs["content_key"] in summary["text"]
    assert sorted(p.suffix for p in (tmp_path / "new").iterdir()) == [".nc", ".png", ".txt"]
    assert summary["result"] == "finished"
    assert summary["final_test_iwl"] is None


def test_columns_with_test_sets_and_with_value_weights(tmp_path, capsys):
    place = ["--out", str(tmp_path)]
    tests = [*SMALL, *place, "--icl", "0.5", "--testset", "20", "--head", "2"]
    _, summary = run_json(capsys, *tests)
    table, dataset = np.loadtxt(summary["text"]), load(summary["netcdf"])
    assert table.shape == (12, 3)
    np.testing.assert_array_equal(table[:, 1], dataset["in_weight_loss"].values)
    np.testing.assert_array_equal(table[:, 2], dataset["in_context_loss"].values)
    assert table[-1, 1] == summary["final_test_iwl"]
    assert table[-1, 2] == summary["final_test_icl"]
    _, summary = run_json(capsys, *SMALL, *place, "--head", "2", "--track_value")
    table, dataset = np.loadtxt(summary["text"]), load(summary["netcdf"])
    assert table.shape == (12, 3)
    np.testing.assert_array_equal(table[:, 1:], dataset["values"].values)


def test_runs_that_differ_in_anything_have_other_names(tmp_path, capsys):
    """The published names leave out rate, init and most options, so runs overwrite each other."""
    variants = [[], ["--init", "0.02"], ["--lr", "0.02"], ["--init-convention", "newest"]]
    for extra in variants:
        code, _ = run_json(capsys, "--model", "attnS", *SMALL, *extra, "--out", str(tmp_path))
        assert code == 0
    assert len(list(tmp_path.glob("*.txt"))) == len(variants)
    code, _ = run_json(capsys, "--model", "attnS", *SMALL, "--out", str(tmp_path))
    assert code == 0  # the same run again writes the same files
    assert len(list(tmp_path.glob("*.txt"))) == len(variants)


def test_show_without_a_screen_keeps_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    arguments = ["train", *SMALL, "--show", "--out", str(tmp_path)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "no screen" in err
    assert len(list(tmp_path.iterdir())) == 3
    assert "loss" in out


def test_show_with_a_screen_opens_a_window(tmp_path, monkeypatch):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    shown = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(pyplot, "get_backend", lambda: "tkagg")
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.get_fignums()))
    pyplot.switch_backend("agg")
    figure = Figure()
    open_window(figure, tmp_path / "a.png")
    assert shown == [[1]]
    assert pyplot.figure(1).canvas.manager.canvas.figure is figure
    pyplot.close("all")


def test_show_with_a_screen_but_no_window_toolkit(tmp_path, monkeypatch, capsys):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    monkeypatch.setenv("DISPLAY", ":0")
    pyplot.switch_backend("agg")
    open_window(Figure(), tmp_path / "a.png")
    assert "no interactive backend" in capsys.readouterr().err
    pyplot.close("all")


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments])
    err = capsys.readouterr().err
    assert caught.value.code == 2
    assert err.count("\n") == 1
    return err


def test_literal_c_names_the_missing_dollar(capsys):
    """The README's loop writes `--icl c`; the published code says only `invalid float value`."""
    err = fails(capsys, "--model", "attnM", "--icl", "c", "--head", "8")
    assert "--icl $c" in err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--model", "attn"], "attnM, attnS, mlp"),
    (["--model", "mlp"], "belong together"),
    (["--icl", "1.5"], "between 0 and 1"),
    (["--icl", "nan"], "finite"),
    (["--head", "0"], "at least 1"),
    (["--lr", "0"], "above 0"),
    (["--out_dim", "2"], "must be 1"),
    (["--seq_len", "1"], "at least 2"),
    (["--testset", "-3"], "at least 0"),
    (["--trainset_size", "3"], "more sequences"),
    (["--s", "3"], "ambiguous"),
    (["--heads", "3"], "unrecognized"),
])  # fmt: skip
def test_bad_input_is_one_line(arguments, message, capsys, tmp_path):
    assert message in fails(capsys, *arguments, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_folder_that_is_a_file(capsys, tmp_path):
    (tmp_path / "taken").write_text("")
    assert "taken" in fails(capsys, *SMALL, "--out", str(tmp_path / "taken"))


def test_a_rate_that_diverges_keeps_what_was_computed(capsys, tmp_path):
    err = fails(capsys, *SMALL, "--lr", "50", "--init", "2", "--out", str(tmp_path))
    assert "diverged" in err
    assert "--lr 50" in err
    (text,) = tmp_path.glob("*.txt")
    table = np.loadtxt(text)
    assert np.isfinite(table[0])
    assert np.isnan(table[-1])
    again = fails(capsys, *SMALL, "--lr", "50", "--init", "2", "--out", str(tmp_path))
    assert again == err


@pytest.mark.parametrize("arguments", [["--init", "1e200"], ["--init", "1e100", "--lr", "1e300"]])
def test_what_is_not_a_number_is_no_success(capsys, tmp_path, arguments):
    assert "too large" in fails(capsys, *SMALL, *arguments, "--out", str(tmp_path))
    assert len(list(tmp_path.glob("*.nc"))) == 1


@pytest.mark.parametrize("flag", ["--head", "--in_dim", "--trainset_size", "--epoch", "--seq_len"])
def test_sizes_that_do_not_fit_are_refused_before_any_work(capsys, tmp_path, flag):
    line = fails(capsys, *SMALL, flag, "1000000000000", "--out", str(tmp_path))
    assert "free" in line or "take hours" in line
    assert not list(tmp_path.iterdir())
