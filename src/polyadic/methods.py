"""The tensor methods of the paper by name, with the same settings each."""

from __future__ import annotations

from typing import Any

from polyadic.estimators import ATD, GRSALS, SALS
from polyadic.presets import Preset

__all__ = ["paper_methods"]


def paper_methods(settings: Preset, **parameters: Any) -> dict[str, ATD | SALS | GRSALS]:
    """The four tensor methods with the same settings, unfitted, by their names in the paper.

    Parameters
    ----------
    settings : tensorizer, augmentation and parameters
    parameters : arguments of `ATD` that replace those of the settings, unless None; SALS and GR-SALS
        take those they know

    Examples
    --------
    >>> from polyadic.presets import preset
    >>> list(paper_methods(preset("har"), rank=8))
    ['ATD', 'ATD_ss-', 'GR-SALS', 'SALS']
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    full = {**settings.parameters, **given, "tensorize": settings.tensorize}
    shared = {name: value for name, value in full.items() if name not in ("beta", "gamma", "rounds")}
    return {
        "ATD": ATD(**full, augment=settings.augment),
        "ATD_ss-": ATD(**{**full, "beta": 0.0}, augment=settings.augment),
        "GR-SALS": GRSALS(**shared),
        "SALS": SALS(**shared),
    }
