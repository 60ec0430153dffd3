"""How to cite polyadic and the method, as in CITATION.cff, for reports."""

from __future__ import annotations

from polyadic._util.version import __version__

__all__ = ["AUTHORS", "TITLE", "VENUE", "YEAR", "bibtex"]

TITLE = "ATD: Augmenting CP Tensor Decomposition by Self Supervision"
YEAR = 2022
VENUE = "Advances in Neural Information Processing Systems 35 (NeurIPS 2022)"
AUTHORS = (
    ("Yang", "Chaoqi"),
    ("Qian", "Cheng"),
    ("Singh", "Navjot"),
    ("Xiao", "Cao"),
    ("Westover", "M Brandon"),
    ("Solomonik", "Edgar"),
    ("Sun", "Jimeng"),
)


def bibtex() -> str:
    """Return BibTeX entries for the paper on the method and for this software.

    Examples
    --------
    >>> bibtex().splitlines()[0]
    '@inproceedings{yang2022atd,'
    """
    names = " and ".join(f"{family}, {given}" for family, given in AUTHORS)
    return (
        f"@inproceedings{{yang{YEAR}atd,\n"
        f"  title     = {{{{{TITLE}}}}},\n"
        f"  author    = {{{names}}},\n"
        f"  booktitle = {{{VENUE}}},\n"
        f"  year      = {{{YEAR}}}\n"
        "}\n\n"
        "@software{polyadic,\n"
        "  title   = {polyadic: augmented tensor decomposition for multichannel recordings},\n"
        "  author  = {{The polyadic developers}},\n"
        f"  version = {{{__version__}}}\n"
        "}"
    )
