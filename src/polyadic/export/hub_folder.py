"""A folder for the Hugging Face hub: the model file, `config.json` for machines and a model card for people.

The folder holds no code and no data. `polyadic.load("hf://user/repository")` loads the model from the hub.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jinja2

from polyadic._util.files import write_atomically, write_json
from polyadic._util.version import __version__
from polyadic.errors import PolyadicError
from polyadic.estimators import CPD, MODEL_FILE, describe_fit

__all__ = ["HUB_FILES", "hub"]

HUB_FILES = ("README.md", "config.json", MODEL_FILE)
"""Files of a folder for the hub."""

_TAGS = ["polyadic", "tensor-decomposition", "time-series", "biosignals", "interpretability"]


def hub(model: Any, folder: str | os.PathLike[str], *, data: str = "", scores: Any = None) -> list[Path]:
    """Write a model as a folder that can be uploaded to the Hugging Face hub.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS`, or a `WindowClassifier`
    folder : created if it does not exist; its name is the title of the card. Existing files are replaced
    data : the recordings in a few words: those of the scores or, without scores, those of the fit
    scores : a `polyadic.evaluate.CrossValidation`, whose scores by subject the card then has

    Returns
    -------
    the files: README.md, config.json and model.safetensors

    Examples
    --------
    >>> import tempfile
    >>> from polyadic.data import synthetic
    >>> model = CPD(rank=2, max_sweeps=3).fit(synthetic(40))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in hub(model, folder)]
    ['README.md', 'config.json', 'model.safetensors']
    """
    fitted = model.as_model() if hasattr(model, "as_model") else model
    if not isinstance(fitted, CPD):
        raise PolyadicError(f"model must be a CPD, ATD, SALS, GRSALS or WindowClassifier, but is {model!r}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    described, name = _config(fitted), target.resolve().name
    metadata: dict[str, Any] = {"library_name": "polyadic", "tags": _TAGS}
    if scores is not None:
        measured = [
            {"type": kind, "name": f"{kind.replace('_', ' ')} on left-out subjects", "value": round(value, 4)}
            for kind, value in (("balanced_accuracy", scores.balanced_accuracy), ("accuracy", scores.accuracy))
        ]
        task = {"type": "time-series-classification", "name": "classification of windows"}
        dataset = {"type": "own-recordings", "name": data or "own recordings"}
        metadata["model-index"] = [{"name": name, "results": [{"task": task, "dataset": dataset, "metrics": measured}]}]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("polyadic.export", "."),
        autoescape=False,  # noqa: S701  this is Markdown; names are escaped by `_plain`
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = _plain
    # JSON is YAML, and quotes every name.
    head = {key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()}
    text = environment.get_template("card.md.j2").render(described, metadata=head, name=name, data=data, scores=scores)
    card, config, file = (target / name for name in HUB_FILES)
    write_atomically(card, text.encode())
    write_json(config, described)
    fitted.save(file)
    return [card, config, file]


def _config(model: CPD) -> dict[str, Any]:
    """Return what a program wants to know before it loads the model."""
    probe = getattr(model, "probe_", None)
    channels, length = model._sample_shape if len(model._sample_shape) == 2 else (None, None)
    return {
        "library_name": "polyadic",
        "polyadic_version": __version__,
        "estimator": type(model).__name__,
        "rank": int(model.factors_[0].shape[1]),
        "parameters": model.n_parameters_,
        "windows_of_the_fit": int(model._n_seen),
        "fs": model.fs_,
        "channels": list(model.channel_names_) or channels,
        "units": list(model.units_),
        "samples": length,
        "features": model.get_feature_names_out().tolist(),
        "classes": None if probe is None else [str(label) for label in probe.classes_],
        "summary": describe_fit(model),
    }


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>#|!" else letter for letter in " ".join(text.split()))
