"""The estimators and augmentations that commands name: `--method atd`, `--augment jitter:0.05`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.augment import Augmentation
    from polyadic.estimators import CPD
    from polyadic.presets import Preset

__all__ = ["Method", "Solver", "build_estimator", "parse_augmentation"]


class Method(StrEnum):
    """The estimators."""

    CPD = "cpd"
    ATD = "atd"
    SALS = "sals"
    GRSALS = "gr-sals"


class Solver(StrEnum):
    """How a mini-batch moves the bases."""

    BLEND = "blend"
    MEMORY = "memory"


_OF_ATD = ("augment", "beta", "gamma", "rounds")


def build_estimator(method: Method, settings: Preset, **parameters: Any) -> CPD:
    """Build an unfitted estimator from settings and the options of a command.

    Parameters
    ----------
    settings : from `polyadic.presets`; of its parameters, the estimator gets those it has
    parameters : arguments of the estimator that override the settings, unless None

    Raises
    ------
    PolyadicError : if the estimator does not have one of the parameters

    Examples
    --------
    >>> from polyadic.presets import preset
    >>> build_estimator(Method.SALS, preset("har"), rank=8).learning_rate
    0.002
    """
    from polyadic import estimators

    kind = {Method.CPD: "CPD", Method.ATD: "ATD", Method.SALS: "SALS", Method.GRSALS: "GRSALS"}[method]
    known = getattr(estimators, kind)._get_param_names()
    given = {name: value for name, value in parameters.items() if value is not None}
    for name in given:
        if name not in known:
            others = "atd" if name in _OF_ATD else "atd, sals or gr-sals"
            raise PolyadicError(f"--{name.replace('_', '-')} is not an option of --method {method}: use {others}")
    presets = {"tensorize": settings.tensorize, **settings.parameters}
    if settings.augment != "auto":
        presets["augment"] = settings.augment
    estimator: CPD = getattr(estimators, kind)(**{n: v for n, v in (presets | given).items() if n in known})
    return estimator


def parse_augmentation(text: str, fs: float | None) -> Augmentation | None:
    """Return the augmentation that a text describes: names with a value, joined by "+"; None for "none".

    Parameters
    ----------
    text : such as "jitter:0.05", "bandpass:1-20,5-24" or "jitter:0.05+scale:1.25"
    fs : sampling rate in Hz, for bandpass

    Examples
    --------
    >>> parse_augmentation("jitter:0.05", None)
    Jitter(degree=0.05)
    >>> parse_augmentation("jitter:0.05+bandpass:1-20,5-24", 50.0)
    Compose(steps=(Jitter(degree=0.05), Bandpass(bands=((1.0, 20.0), (5.0, 24.0)), fs=50.0)))
    """
    from polyadic.augment import Bandpass, Compose, DropChannels, Jitter, Neighbour, Scale, Shift

    def bandpass(value: str) -> Augmentation:
        if fs is None:
            raise PolyadicError("--augment bandpass needs the sampling rate: pass --fs")
        bands = [tuple(float(edge) for edge in band.split("-")) for band in value.split(",")]
        return Bandpass([(low, high) for low, high in bands], fs)

    kinds: dict[str, Callable[[str], Augmentation]] = {
        "jitter": lambda value: Jitter(float(value)),
        "bandpass": bandpass,
        "scale": lambda value: Scale(float(value)),
        "shift": lambda value: Shift(float(value)),
        "drop": lambda value: DropChannels(float(value)),
        "neighbour": lambda value: Neighbour(float(value)),
    }
    if text == "none":
        return None
    steps = []
    for part in text.split("+"):
        name, _, value = part.partition(":")
        if name not in kinds:
            raise PolyadicError(f"--augment must name {', '.join(kinds)} or none, but has {name!r}")
        try:
            steps.append(kinds[name](value))
        except ValueError as error:
            example = "bandpass:1-20,5-24" if name == "bandpass" else f"{name}:0.1"
            raise PolyadicError(f"--augment {part!r} is not valid: write it like {example}") from error
    return steps[0] if len(steps) == 1 else Compose(steps)
