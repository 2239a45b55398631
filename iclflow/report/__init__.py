"""The report: figures and the scorecard of claims, as one page.

`iclflow.report.build.build` makes one; `iclflow.report.figures` has the table of figures.
"""
