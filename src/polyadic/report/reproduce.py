"""What a reader of a report needs to reproduce and cite it: a script that refits the model, and BibTeX entries."""

from __future__ import annotations

import re
from typing import Any

from polyadic import augment
from polyadic._util.immutable import complete_repr
from polyadic._util.version import __version__
from polyadic.data.splits import PROTOCOLS
from polyadic.data.windows import Windows
from polyadic.evaluate.scoring import own_split

__all__ = ["BIBTEX", "fit_script"]

_MODULES = {
    "polyadic": ("CPD", "ATD", "SALS", "GRSALS"),
    "polyadic.augment": tuple(augment.__all__),
    "polyadic.readout": ("Readout",),
    "polyadic.spectral": ("STFT",),
}

BIBTEX = f"""\
@inproceedings{{yang2022atd,
  title     = {{{{ATD: Augmenting CP Tensor Decomposition by Self Supervision}}}},
  author    = {{Yang, Chaoqi and Qian, Cheng and Singh, Navjot and Xiao, Cao and Westover, M Brandon and Solomonik, \
Edgar and Sun, Jimeng}},
  booktitle = {{Advances in Neural Information Processing Systems 35 (NeurIPS 2022)}},
  year      = {{2022}}
}}

@software{{polyadic,
  title   = {{polyadic: augmented tensor decomposition for multichannel recordings}},
  author  = {{{{The polyadic developers}}}},
  version = {{{__version__}}}
}}"""
"""Entries for the paper on the method and for this software, as in CITATION.cff."""


def fit_script(model: Any, windows: Windows | None, source: str = "", versions: dict[str, str] | None = None) -> str:
    """Return Python code that reads the data and fits a model with the same settings.

    Parameters
    ----------
    model : fitted
    windows : the data of the report, or None
    source : an expression for the windows, such as `open_windows("sleep.store")`; by default a placeholder file
    versions : versions of Python and packages, for a comment
    """
    with complete_repr():
        constructor = model.__repr__(N_CHAR_MAX=10**6)
    read = source or 'open_windows("windows.npz")  # a store or file with the windows of this report'
    names = {
        module: [name for name in known if re.search(rf"\b{name}\(", constructor)] for module, known in _MODULES.items()
    }
    protocol = None
    if windows is not None:
        protocol = next((name for name in PROTOCOLS if own_split(model, windows, [name]) is not None), None)
    names["polyadic.data"] = sorted([read.partition("(")[0], *["split"] * (protocol is not None)])
    lines = [f"# {', '.join(f'{name} {version}' for name, version in (versions or {}).items() if version)}"]
    lines += [f"from {module} import {', '.join(imported)}" for module, imported in sorted(names.items()) if imported]
    lines += ["", f"windows = {read}"]
    if protocol is not None:
        lines.append(f'windows, _, _ = split(windows, "{protocol}", random_state={model.seed_})  # {model.split_}')
    elif model.split_:
        lines.append(f"# The model was fitted to part of another split: {model.split_}")
    return "\n".join([*lines, f"model = {constructor}", "model.fit(windows)", 'model.save("model.safetensors")'])
