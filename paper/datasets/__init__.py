"""The paper's four data sets as published (section 4.1, appendix D.1): download them, and write stores of windows."""

from __future__ import annotations

from paper.datasets.har import har
from paper.datasets.recordings import mgh, ptb_xl, sleep_edf

__all__ = ["har", "mgh", "ptb_xl", "sleep_edf"]
