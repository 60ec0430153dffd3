"""The report: one HTML file with the result, components, samples, probe and provenance.

from polyadic import report
report.write("report.html", model, windows)
"""

from __future__ import annotations

from polyadic.report.page import add_to_mne, render, write

__all__ = ["add_to_mne", "render", "write"]
