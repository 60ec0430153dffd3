"""The windows that a command works on: from a store, from arrays, or cut from recordings as a model needs them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic.errors import DataError, PolyadicError
from polyadic.terminal import echo

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["Cut", "are_recordings", "check_cutting", "opened", "opened_for"]


@dataclass(frozen=True)
class Cut:
    """How recordings become windows; see `polyadic.data.datasets.folder`."""

    seconds: float
    channels: Sequence[str] | None = None
    fs: float | None = None
    resample: str | None = None
    classes: Sequence[str] = ()
    subject: str | None = None
    on_error: str = "raise"


def are_recordings(data: Path) -> bool:
    """Whether a path leads to recordings, which have to be cut into windows, and not to a store or a file of arrays."""
    from polyadic.data import datasets
    from polyadic.data.store_files import MANIFEST, WRITING

    if not data.is_dir():
        return data.suffix.lower() in datasets.ENDINGS
    return not ((data / MANIFEST).exists() or (data / WRITING).exists())


def check_cutting(data: Path, given: dict[str, Any]) -> None:
    """Refuse options that would do nothing."""
    for name, value in given.items():
        if value and not are_recordings(data):
            raise PolyadicError(f"{name} is for recordings, but the windows of {data.name} are cut already")


@contextmanager
def opened(data: Path, cut: Cut, *, shuffle: str = "full", hidden: bool = False) -> Iterator[Windows]:
    """The windows of a path; those of recordings are kept in a temporary store.

    Parameters
    ----------
    data : a store, a file of arrays, a recording or a folder of recordings
    cut : for recordings
    shuffle : as for `polyadic.data.WindowStore`
    hidden : do not show a progress bar
    """
    from polyadic.data import WindowStore, datasets
    from polyadic.data.loading import open_windows
    from polyadic.progress import file_bar

    if are_recordings(data):
        with tempfile.TemporaryDirectory(prefix="polyadic-") as folder:
            try:
                with file_bar("reading", hidden) as update:
                    store = datasets.folder(data, Path(folder) / "store", progress=update, **vars(cut))
            except DataError as error:
                hint = "\n(--resample hold repeats the samples of slow channels)" if "resample" in str(error) else ""
                raise DataError(f"{data.name} is read as recordings: {error}{hint}") from error
            for entry in store.skipped:
                echo(f"left out {entry['name']}: {entry['reason']}", err=True, colour="yellow")
            yield WindowStore(store.path, shuffle=shuffle).windows  # type: ignore[arg-type]
    elif data.is_dir():
        yield WindowStore(data, shuffle=shuffle).windows  # type: ignore[arg-type]
    else:
        yield open_windows(data, fs=cut.fs)


@contextmanager
def opened_for(
    model: Any, data: Path, *, resample: str | None = None, classes: Sequence[str] = (), hidden: bool = False
) -> Iterator[Windows]:
    """The windows of a path as a model needs them: of its length, its channels in its order, and its sampling rate.

    Parameters
    ----------
    model : loaded
    resample : how to resample channels to the rate of the model
    classes : annotations of recordings that are classes
    """
    from polyadic.data.channels import match_signals

    with opened(data, _cut_for(model, data, resample, classes), hidden=hidden) as windows:
        yield match_signals(windows, model.fs_, model.channel_names_, data.name)


def _cut_for(model: Any, data: Path, resample: str | None, classes: Sequence[str]) -> Cut:
    """How to cut recordings into windows of the kind that a model was fitted to."""
    if not are_recordings(data):
        return Cut(seconds=0.0)
    from polyadic.data import datasets
    from polyadic.data.channels import numbered_channels

    if model.fs_ is None:
        raise PolyadicError(
            f"{data.name} is read as recordings, but the length of a window is unknown: the model was fitted to arrays "
            "without a sampling rate. Cut the recordings by polyadic prepare"
        )
    unnamed = model.channel_names_ in ((), numbered_channels(len(model.channel_names_)))
    # A table may have no times; all other recordings give their rate themselves.
    tables = any(path.suffix.lower() == ".csv" for path in datasets.find_recordings(data).files)
    return Cut(
        seconds=model._sample_shape[-1] / model.fs_,
        channels=None if unnamed else model.channel_names_,
        fs=model.fs_ if tables or resample is not None else None,
        resample=resample,
        classes=classes,
    )
