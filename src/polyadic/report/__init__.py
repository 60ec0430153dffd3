"""The report: one HTML file with the result, the components, the samples, the probe, the training and where it is from.

from polyadic import report
report.write("report.html", model, windows)
"""

from __future__ import annotations

from polyadic.report.page import write

__all__ = ["write"]
