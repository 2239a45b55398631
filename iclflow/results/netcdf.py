"""Datasets on disk: NetCDF, written whole or not at all, never over a different run."""

import gc
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr
from xarray.backends import H5NetCDFStore

from iclflow.results.files import replacing, require_path, require_regular
from iclflow.results.provenance import with_present_names


def check_free(path: Path | str, key: str) -> None:
    """Raise `FileExistsError` if `path` holds anything but the run with this content key."""
    path = Path(path)
    if not path.exists():
        if not path.parent.is_dir():
            raise FileNotFoundError(f"the folder {path.parent} does not exist; create it first")
        return
    try:
        found = load(path).attrs.get("content_key")
    except (OSError, ValueError):
        found = None
    if found != key:
        raise FileExistsError(
            f"{path} exists and holds something else; choose another name or move it away"
        )


def save(dataset: Any, path: Path | str) -> Path:
    """Write a Dataset to NetCDF, unless the file there holds another run.

    - `dataset`: the runs, as `sweep` returns them, or what has a `to_dataset()`: the `Trajectory`
      of `simulate`, a `Prediction`.
    - `path`: the file, which ends in `.nc`: another ending would promise another format.

    >>> import tempfile, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     icl.save(runs, f"{folder}/runs.nc").name
    'runs.nc'
    """
    if hasattr(dataset, "to_dataset") and not isinstance(dataset, xr.DataArray | xr.DataTree):
        dataset = dataset.to_dataset()
    if not isinstance(dataset, xr.Dataset):
        raise ValueError(
            f"save writes a Dataset, as sweep returns it, got {type(dataset).__name__}"
        )
    if require_path("path", path).suffix.lower() != ".nc":
        raise ValueError(
            f"{path} would be NetCDF; give it the ending .nc (or, for a table, "
            f"runs.to_dataframe().to_csv)"
        )
    check_free(path, str(dataset.attrs.get("content_key")))
    return replace(dataset, path)


def replace(dataset: xr.Dataset, path: Path | str) -> Path:
    """Write a Dataset to NetCDF in place of whatever the file there holds."""
    path = Path(path)
    encoding = {
        name: {"zlib": True, "complevel": 4} for name, v in dataset.items() if v.size > 1000
    }
    dataset = dataset.assign_attrs({"Conventions": "CF-1.11"} | dataset.attrs)
    # The file is laid out in memory, because HDF5 ends the process when the disk is full. The store
    # is made here rather than by `to_netcdf`, which imports Dask's scheduler to look for its locks:
    # a third of a second at every start. Nobody else knows this buffer, so it needs no lock.
    buffer = io.BytesIO()
    store = H5NetCDFStore.open(buffer, mode="w", lock=False)
    try:
        dataset.compute().dump_to_store(store, encoding=encoding)
    finally:
        store.close()
    with replacing(path) as partial:
        partial.write_bytes(buffer.getbuffer())
    return path


def load(path: Path | str) -> xr.Dataset:
    """Read a Dataset, or raise `ValueError` with a reason in one line.

    - `path`: a file that `save`, `iclflow simulate` or another program wrote. Names of earlier
      versions become those of this one.

    >>> import tempfile, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = icl.load(icl.save(runs, f"{folder}/runs.nc"))
    >>> again.sizes == runs.sizes
    True
    """
    with opened(path) as dataset:
        return dataset.load()


@contextmanager
def opened(path: Path | str) -> Iterator[xr.Dataset]:
    """A Dataset that is not read yet; what goes wrong inside the block is the file's fault."""
    path = require_regular(path)
    failure, hook = "", sys.unraisablehook
    try:
        with xr.open_dataset(path, engine="h5netcdf") as dataset:
            yield with_present_names(dataset)
    except MemoryError:
        raise
    except Exception as error:  # damaged bytes raise almost anything
        # The object of a file that could not be read complains when it is deleted: unheard.
        sys.unraisablehook = lambda _: None
        failure = " ".join(str(error).split())
        if not (isinstance(error, ValueError) and str(path) in failure):
            failure = f"{path} is not a readable NetCDF file ({failure[:120]})"
    if failure:
        gc.collect()
        sys.unraisablehook = hook
        raise ValueError(failure)
