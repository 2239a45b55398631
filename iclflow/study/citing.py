"""What to cite for a result: the software, and the papers whose theory or method it rests on."""

from collections.abc import Iterator
from typing import Any

import xarray as xr

import iclflow
from iclflow.measures import LearningCoefficient
from iclflow.models import LinearTransformerInitialiser
from iclflow.results.messages import printable

SOFTWARE = "iclflow"
ATTENTION, TRANSFORMER = "zhang2025training", "mainali2025exact"
SAMPLED, EXACT = "lau2023local", "aoyagi2005stochastic"

# Name -> kind of entry, and its fields. `CITATION.cff` states the first three (a test compares).
ENTRIES: dict[str, tuple[str, dict[str, str]]] = {
    SOFTWARE: ("software", {
        "title": "{iclflow}: training dynamics of in-context learning",
        "author": "{The iclflow developers}",
        "version": iclflow.__version__,
        "license": "MIT",
    }),
    ATTENTION: ("inproceedings", {
        "title": "Training Dynamics of In-Context Learning in Linear Attention",
        "author": "Zhang, Yedi and Singh, Aaditya K. and Latham, Peter E. and Saxe, Andrew M.",
        "booktitle": "Proceedings of the 42nd International Conference on Machine Learning",
        "volume": "267",
        "pages": "76047--76087",
        "year": "2025",
        "publisher": "PMLR",
        "eprint": "2501.16265",
        "archiveprefix": "arXiv",
    }),
    TRANSFORMER: ("article", {
        "title": "Exact Learning Dynamics of In-Context Learning in Linear Transformers and Its "
                 "Application to Non-Linear Transformers",
        "author": "Mainali, Nischal and Teixeira, Lucas",
        "journal": "arXiv preprint arXiv:2504.12916",
        "year": "2025",
        "eprint": "2504.12916",
        "archiveprefix": "arXiv",
    }),
    SAMPLED: ("article", {
        "title": "The Local Learning Coefficient: A Singularity-Aware Complexity Measure",
        "author": "Lau, Edmund and Furman, Zach and Wang, George and Murfet, Daniel and Wei, Susan",
        "journal": "arXiv preprint arXiv:2308.12108",
        "year": "2023",
        "eprint": "2308.12108",
        "archiveprefix": "arXiv",
    }),
    EXACT: ("article", {
        "title": "Stochastic complexities of reduced rank regression in {B}ayesian estimation",
        "author": "Aoyagi, Miki and Watanabe, Sumio",
        "journal": "Neural Networks",
        "volume": "18",
        "number": "7",
        "pages": "924--933",
        "year": "2005",
    }),
}  # fmt: skip


def cite(*things: Any) -> str:
    r"""Write BibTeX entries: the software, and the papers behind what was used.

    - `things`: what you use of the library's results: Datasets of runs, predictions, fits, learning
      coefficients, initialisers or models. Without any, the software and the two papers whose
      theory it implements.

    The version is that of the installed package, which is also in the attributes of every Dataset
    that it wrote: cite the version that made your numbers.

    >>> import iclflow as icl
    >>> print(icl.cite().splitlines()[0])
    @software{iclflow,
    >>> task = icl.Task([0.6, 0.3], context=15)
    >>> init = icl.Merged.initialiser(task, heads=2, scale=0.1)
    >>> [line for line in icl.cite(init).splitlines() if line.startswith("@")]
    ['@software{iclflow,', '@inproceedings{zhang2025training,']
    """
    names = [SOFTWARE, *([ATTENTION, TRANSFORMER] if not things else [])]
    versions = []
    for thing in things:
        names += _behind(thing)
        if isinstance(thing, xr.Dataset) and "iclflow_version" in thing.attrs:
            versions.append(printable(thing.attrs["iclflow_version"]))
    said = ", ".join(sorted(set(versions))) or iclflow.__version__
    return "\n".join(_entry(name, said) for name in dict.fromkeys(names))


def _behind(thing: Any) -> Iterator[str]:
    """The papers behind one result."""
    if isinstance(thing, LearningCoefficient):
        yield SAMPLED
        return
    if type(thing).__name__ == "ExactCoefficient":
        yield EXACT
        return
    settings = ""
    if isinstance(thing, xr.Dataset):
        settings = str(thing.attrs.get("settings", ""))
        if any("learning_coefficient" in str(name) for name in thing.variables):
            yield SAMPLED
    second = isinstance(thing, LinearTransformerInitialiser)
    second |= '"linear-transformer"' in settings or '"LinearTransformerInitialiser"' in settings
    second |= (type(thing).__module__ or "").startswith("iclflow.theory.linear_transformer")
    if not second and not isinstance(thing, xr.Dataset):
        module = (type(thing).__module__ or "").partition(".")[0]
        if module != SOFTWARE and not _is_ours(thing):
            raise ValueError(
                f"nothing is known to cite for {type(thing).__name__}; give a Dataset of runs, a "
                f"prediction, a fit, a model or an initialiser of iclflow, or nothing"
            )
    yield TRANSFORMER if second else ATTENTION


def _is_ours(thing: Any) -> bool:
    """Whether a class extends one of the package, as own models and tasks do."""
    return any((kind.__module__ or "").startswith(f"{SOFTWARE}.") for kind in type(thing).__mro__)


def _entry(name: str, version: str) -> str:
    kind, fields = ENTRIES[name]
    shown = {**fields, **({"version": version} if "version" in fields else {})}
    wide = max(map(len, shown))
    lines = [f"  {field:{wide}} = {{{value}}}," for field, value in shown.items()]
    return "\n".join([f"@{kind}{{{name},", *lines, "}", ""])
