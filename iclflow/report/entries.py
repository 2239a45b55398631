"""What the tables of figures are made of. Imports no science."""

import dataclasses

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@dataclasses.dataclass(frozen=True)
class Source:
    """Where data and claims come from: functions of an experiment.

    `claims` is `module:function`, Dataset -> claims. Figures may share a source; its claims are
    then listed with the first of them in a report.
    """

    module: str
    compute: str = "compute"
    claims: str | None = None
    data: str = ""  # experiments with the same word here share training data or programs
    resumes: bool = False  # `compute` takes a `folder`, and goes on from the checkpoints in it

    @property
    def shares(self) -> str:
        """A name for the training data; that of the module if nothing else was said."""
        return self.data or self.module

    @property
    def name(self) -> str:
        """A name for files."""
        last = self.module.removesuffix(".data").rpartition(".")[2]
        part = self.compute.removeprefix("compute").lstrip("_")
        return f"{last}-{part}" if part else last

    def file(self, quick: bool) -> str:
        """Where its data go in a report; quick data never replace those at paper scale."""
        return f"data/{self.name}{'-quick' if quick else ''}.nc"

    def checkpoints(self, quick: bool) -> str:
        """Where its checkpoints go in a report."""
        return f"checkpoints/{self.name}{'-quick' if quick else ''}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure of the report.

    `draw` is `module:function`, Dataset -> matplotlib figure.
    """

    name: str
    label: str  # as the paper calls it
    title: str
    source: Source
    draw: str
    caption: str
    alt: str
    group: str = ""  # figures that `all` leaves out are asked for by this name


@dataclasses.dataclass(frozen=True)
class Paper:
    """The paper that a table of figures is of."""

    title: str
    byline: str  # authors, place and year
    arxiv: str


@dataclasses.dataclass(frozen=True)
class Published:
    """What the published code needs for a figure on 2 CPU cores, in seconds.

    `note` says how our computation differs; where it is another problem than the published one
    (`alike` false) the two times stand side by side without a ratio.
    """

    label: str
    figures: tuple[str, ...]
    seconds: float
    note: str = ""
    alike: bool = True


def figure(
    name: str, label: str, title: str, experiment: str, draw: str, caption: str, alt: str,
    *, compute: str = "compute", claims: str | None = "claims", data: str = "",
    group: str = "", resumes: bool = False,
) -> Figure:  # fmt: skip
    """A figure by the names of its experiment, its drawing and, if they differ, its functions."""
    home = "iclflow.experiments."
    if claims is not None:
        claims = home + (claims if ":" in claims else f"{experiment}.data:{claims}")
    source = Source(f"{home}{experiment}.data", compute, claims, data, resumes)
    drawing = home + draw.replace(":", ".figure:")
    caption, alt = " ".join(caption.split()), " ".join(alt.split())
    return Figure(name, label, title, source, drawing, caption, alt, group)
