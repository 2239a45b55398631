"""`iclflow compare`: its JSON, its table, its picture, its errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from iclflow.cli import main
from tests.helpers import published_literal as literal

DATA = Path(__file__).parents[1] / "data"


def test_json_has_the_promised_keys(capsys):
    assert main(["compare", str(DATA / "mlp_P1000_H8.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["max_abs_loss"] < 5e-6
    assert 0 < found["max_abs_v"] < 5e-6
    assert found["max_abs_test_icl"] is None
    assert found["max_abs_test_iwl"] is None
    assert found["recorded_seconds"] == pytest.approx(3.124, abs=1e-3)
    assert found["seconds"] >= found["training_seconds"] > 0
    assert found["within_tolerance"] is True
    assert found["epochs"] == 4001


def test_table_and_picture_with_test_sets(capsys, tmp_path):
    path = literal.save(tmp_path / "run.npz", literal.record(icl=0.5, testset_size=10))
    assert main(["compare", str(path), "--plot", str(tmp_path / "both.png")]) == 0
    out = capsys.readouterr().out
    assert "in-weight test loss" in out
    assert "not recorded" not in out
    assert "within 5e-06" in out
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_differences_are_reported_by_name(capsys, tmp_path):
    arrays = literal.record(icl=0.5, testset_size=10)
    arrays["loss_iwl_test"] = arrays["loss_iwl_test"] + 1e-3
    arrays["loss_icl_test"] = arrays["loss_icl_test"] + 2e-3
    path = literal.save(tmp_path / "run.npz", arrays)
    assert main(["compare", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["max_abs_test_iwl"] == pytest.approx(1e-3, abs=1e-12)
    assert found["max_abs_test_icl"] == pytest.approx(2e-3, abs=1e-12)
    assert found["max_abs_loss"] < 1e-12
    assert found["within_tolerance"] is False
    arrays["loss"][-1] = np.inf
    literal.save(tmp_path / "inf.npz", arrays)
    assert main(["compare", str(tmp_path / "inf.npz"), "--json"]) == 1


@pytest.mark.parametrize("case", ["absent", "cut", "no weights", "folder", "picture"])
def test_bad_files_are_one_line(case, capsys, tmp_path):
    path, extra = tmp_path / "run.npz", []
    if case == "cut":
        path.write_bytes((DATA / "mlp_P1000_H8.npz").read_bytes()[:50_000])
    elif case == "no weights":
        with np.load(DATA / "mlp_P1000_H8.npz") as file:
            np.savez(path, **{name: file[name] for name in file.files if name != "init_fc1"})
    elif case == "folder":
        path.mkdir()
    elif case == "picture":
        shutil.copy(DATA / "mlp_P1000_H8.npz", path)
        extra = ["--plot", str(tmp_path / "nowhere" / "a.png")]
    with pytest.raises(SystemExit) as caught:
        main(["compare", str(path), *extra, "--json"])
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert ("nowhere" if extra else "run.npz") in err
