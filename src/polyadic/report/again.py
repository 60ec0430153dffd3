"""A script that refits the model of a report, to copy from the page and run."""

from __future__ import annotations

import re
from typing import Any

from polyadic import augment
from polyadic._util.immutable import complete_repr
from polyadic.data.splits import PROTOCOLS
from polyadic.data.windows import Windows
from polyadic.evaluate.scoring import own_split

__all__ = ["fit_script"]

_MODULES = {
    "polyadic": ("ATD", "SALS", "GRSALS"),
    "polyadic.augment": tuple(augment.__all__),
    "polyadic.readout": ("Readout",),
    "polyadic.spectral": ("STFT",),
}


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
        made = model.__repr__(N_CHAR_MAX=10**6)
    read = source or 'open_windows("windows.npz")  # a store or file with the windows of this report'
    protocol = None if windows is None else _own_protocol(model, windows)
    names = {module: [name for name in known if re.search(rf"\b{name}\(", made)] for module, known in _MODULES.items()}
    if protocol is not None:
        names["polyadic.data"] = ["split"]
    names["polyadic.data"] = sorted([*names.get("polyadic.data", []), read.partition("(")[0]])
    lines = [f"# {', '.join(f'{name} {version}' for name, version in (versions or {}).items() if version)}"]
    lines += [f"from {module} import {', '.join(found)}" for module, found in sorted(names.items()) if found]
    lines += ["", f"windows = {read}"]
    if protocol is not None:
        lines.append(f'windows, _, _ = split(windows, "{protocol}", seed={model.seed_})  # {model.split_}')
    elif model.split_:
        lines.append(f"# The model was fitted to part of another split: {model.split_}")
    return "\n".join([*lines, f"model = {made}", "model.fit(windows)", 'model.save("model.safetensors")'])


def _own_protocol(model: Any, windows: Windows) -> str | None:
    """Return the protocol of the split whose unlabelled part the model was fitted to, or None."""
    found = (name for name in PROTOCOLS if own_split(model, windows, [name]) is not None)
    return next(found, None)
