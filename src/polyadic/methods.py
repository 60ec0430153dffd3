"""The paper's tensor methods by name, all with the same settings."""

from __future__ import annotations

from typing import Any

from polyadic.estimators import ATD, GRSALS, SALS
from polyadic.presets import Preset

__all__ = ["paper_methods"]


def paper_methods(settings: Preset, **parameters: Any) -> dict[str, ATD | SALS | GRSALS]:
    """Return the four tensor methods, unfitted and with the same settings, by their names in the paper.

    Parameters
    ----------
    settings : tensorizer, augmentation and parameters
    parameters : arguments of `ATD` that override the settings, unless None; SALS and GR-SALS get those they support

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
