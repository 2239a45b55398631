"""The report: figures and the scorecard of claims, as one page."""

from iclflow.report.build import Outcome, Report, build
from iclflow.report.entries import Figure
from iclflow.report.figures import FIGURES, choose

__all__ = ["FIGURES", "Figure", "Outcome", "Report", "build", "choose"]
