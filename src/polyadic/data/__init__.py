"""Windows with subjects and times, stores on disk, subject-wise splits, readers, and synthetic signals.

From a file to windows:

    reading.py      the options: how recordings are read (`Reading`)
    folders.py      which files of a folder are recordings
    loading.py      a file becomes recordings with a subject and labels (`FolderReader`), by a format of readers/
    recordings.py   one recording (`Recording`), and its sampling rates
    cutting.py      recordings become windows, labelled by annotations.py, in a store (`folder`)
    store.py        windows on disk: writing (`StoreWriter`) and reading (`WindowStore`)
    windows.py, splits.py   windows with their index (`Windows`), and parts of them
    batches.py      windows become the tensors of a fit

NaN means missing, from the reader to the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.data.cutting import folder as folder
    from polyadic.data.loading import read_recording as read_recording
    from polyadic.data.readers.arrays import open_windows as open_windows
    from polyadic.data.recordings import Annotation as Annotation
    from polyadic.data.recordings import Recording as Recording
    from polyadic.data.splits import Split as Split
    from polyadic.data.splits import split as split
    from polyadic.data.store import Header as Header
    from polyadic.data.store import StoreWriter as StoreWriter
    from polyadic.data.store import WindowStore as WindowStore
    from polyadic.data.synthesis import synthetic as synthetic
    from polyadic.data.synthesis import synthetic_nights as synthetic_nights
    from polyadic.data.windows import Windows as Windows

_MODULES = {
    **dict.fromkeys(("Annotation", "Recording"), "recordings"),
    **dict.fromkeys(("Header", "StoreWriter", "WindowStore"), "store"),
    **dict.fromkeys(("Split", "split"), "splits"),
    **dict.fromkeys(("synthetic", "synthetic_nights"), "synthesis"),
    "Windows": "windows",
    "folder": "cutting",
    "open_windows": "readers.arrays",
    "read_recording": "loading",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    # The command line reads the options of `Reading`, and its help must not wait for numpy.
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"polyadic.data.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyadic.data' has no attribute {name!r}")
