"""Laws fitted to labelled runs, each with an interval, and beside it what the theory says."""

from iclflow.fit.escape import EscapeFit as EscapeFit
from iclflow.fit.escape import EscapeLaw as EscapeLaw
from iclflow.fit.escape import escape as escape
