"""Files of version 0.2: a run and a store open, and a store that cannot be gone on with says so."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iclflow.results.netcdf import load
from iclflow.study.study import Settings, Study

DATA = Path(__file__).parents[1] / "data"
DESIGN = {
    "spectrum": [0.5, 0.3], "context": 15, "heads": 2, "rate": 0.2, "steps": 400, "seeds": 3,
    "scale": [0.1, 0.3], "save": "log:20", "record": ["loss"],
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    pytest.importorskip("zarr", reason="the extra sweep is not installed")
    with zipfile.ZipFile(DATA / "store_0.2.zip") as packed:
        packed.extractall(tmp_path)
    return tmp_path / "store.zarr"


def test_a_run_of_an_earlier_version_opens_and_its_settings_give_it_again(tmp_path):
    path = Path(shutil.copy(DATA / "run_0.2.nc", tmp_path))
    runs = load(path)
    assert runs.attrs["iclflow_version"] == "0.2.0"
    again = Study.of(Settings.of_run(runs.attrs)).run()
    np.testing.assert_array_equal(again["step"], runs["step"])
    for name in ("time", "loss", "values", "keys", "queries", "result"):
        np.testing.assert_allclose(again[name], runs[name], rtol=1e-9, atol=1e-12)


def test_a_store_of_an_earlier_version_opens_under_the_names_of_this_one(store):
    from iclflow import sweeps

    found = sweeps.load(store)
    assert found.attrs["iclflow_version"] == "0.2.0"
    assert dict(found.sizes) == {"scale": 2, "time": 19, "seed": 3, "drop_number": 2}
    # The cells at scale 0.3 are the runs of the file, which has their first two seeds.
    runs = load(DATA / "run_0.2.nc")
    np.testing.assert_array_equal(found["scale"], [0.1, 0.3])
    np.testing.assert_allclose(
        found["loss"].isel(scale=1, seed=slice(2)).transpose("seed", "time"), runs["loss"],
        rtol=1e-10,
    )  # fmt: skip


def test_a_store_of_an_earlier_version_is_not_gone_on_with_and_says_what_to_do(store):
    from iclflow import sweeps

    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"was written by iclflow 0\.2") as refused:
        sweeps.run(sweeps.Design.of(**DESIGN), store)
    said = str(refused.value)
    assert "icl.sweeps.load" in said
    assert "into a new name" in said
    assert "\n" not in said
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
