"""What all tests share: the devices at hand, and the real data where POLYADIC_DATA points to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

# Everything here is small: threads would only get in each other's way, and badly so on a busy machine.
torch.set_num_threads(1)

# Triton looks at it when it is imported for the first time, by whichever test that is.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's job in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device there is: a test that asks for it runs once on each."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real recordings."""
    folder = os.environ.get("POLYADIC_DATA")
    if not folder:
        pytest.skip("POLYADIC_DATA is not set: tests on real recordings are left out")
    return Path(folder)


_LONG = {
    "test_distributed",
    "test_stopping",
    "test_kernels",
    "test_reliability",
    "test_report_browser",
    "test_side_by_side",
    "test_checkpoints",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first, so that no process is left with one of them at the end."""
    items.sort(key=lambda item: item.path.stem not in _LONG)
