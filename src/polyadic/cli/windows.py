"""The windows that a command is given: of a store, of arrays, or cut out of recordings as a model asks for it."""

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
    """Whether what a user names has to be cut into windows: it is no store and no file of arrays."""
    from polyadic.data import datasets
    from polyadic.data.store import MANIFEST, WRITING

    if data.is_file():
        return data.suffix.lower() in datasets.ENDINGS
    return not ((data / MANIFEST).exists() or (data / WRITING).exists())


def check_cutting(data: Path, given: dict[str, Any]) -> None:
    """Refuse options that would do nothing."""
    for name, value in given.items():
        if value and not are_recordings(data):
            raise PolyadicError(f"{name} is for recordings, but the windows of {data.name} are cut already")


@contextmanager
def opened(data: Path, cut: Cut, *, shuffle: str = "full", hidden: bool = False) -> Iterator[Windows]:
    """The windows of whatever a user names; those of recordings lie in a store that is gone afterwards.

    Parameters
    ----------
    data : a store, a file of arrays, a recording or a folder of recordings
    cut : for recordings
    shuffle : as for `polyadic.data.WindowStore`
    hidden : without a progress bar
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
                echo(f"skipped {entry['name']}: {entry['reason']}", err=True, colour="yellow")
            yield WindowStore(store.path, shuffle=shuffle).windows  # type: ignore[arg-type]
    elif data.is_dir():
        yield WindowStore(data, shuffle=shuffle).windows  # type: ignore[arg-type]
    else:
        yield open_windows(data, fs=cut.fs)


@contextmanager
def opened_for(
    model: Any, data: Path, *, resample: str | None = None, classes: Sequence[str] = (), hidden: bool = False
) -> Iterator[Windows]:
    """The windows of whatever a user names for a model: of its length, its channels and its sampling rate.

    Parameters
    ----------
    model : loaded
    resample : how to bring channels to the model's rate
    classes : annotations of recordings that are classes
    """
    with opened(data, _cut_for(model, data, resample, classes), hidden=hidden) as windows:
        if model.fs_ is not None and windows.fs is not None and abs(model.fs_ - windows.fs) > 1e-6 * model.fs_:
            raise PolyadicError(
                f"{data.name} must be sampled at {model.fs_:g} Hz as what the model learned from, but is at "
                f"{windows.fs:g} Hz"
            )
        if model.channel_names_ and windows.channels and model.channel_names_ != windows.channels:
            echo(
                f"the channels of {data.name} have other names than those the model learned from: "
                f"{', '.join(windows.channels)}, and not {', '.join(model.channel_names_)}",
                err=True,
                colour="yellow",
            )
        yield windows


def _cut_for(model: Any, data: Path, resample: str | None, classes: Sequence[str]) -> Cut:
    """How to cut recordings into windows of the kind that a model learned from."""
    if not are_recordings(data):
        return Cut(seconds=0.0)
    if model.fs_ is None:
        raise PolyadicError(
            f"{data.name} is read as recordings, but how long a window must be is not known: the model learned from "
            "arrays without a sampling rate. Cut the recordings by polyadic prepare"
        )
    made_up = tuple(f"channel {number + 1}" for number in range(len(model.channel_names_)))
    # A table may have no times; all else says its rate itself.
    tables = any(path.suffix.lower() == ".csv" for path in (data, *data.rglob("*")))
    return Cut(
        seconds=model._sample_shape[-1] / model.fs_,
        channels=None if model.channel_names_ in ((), made_up) else model.channel_names_,
        fs=model.fs_ if tables or resample is not None else None,
        resample=resample,
        classes=classes,
    )
