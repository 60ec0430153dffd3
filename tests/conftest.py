"""Fixtures of all tests: the available devices, and the real data in the folder POLYADIC_DATA."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples everywhere, however busy the machine is. The device fixture is the same for every example.
settings.register_profile(
    "anywhere",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("anywhere")

# Everything here is small: threads would only get in each other's way, and badly so on a busy machine. Libraries look
# at these when they are loaded, in the processes that tests start, too.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Components for people take longer than all else that a small fit does: tests of them ask for them.
os.environ.setdefault("POLYADIC_COMPONENTS", "0")

# Compiled modules are kept, as by default: the many processes that tests start would compile them all anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

collect_ignore = ["preloaded.py"]  # imports everything, for the process that commands are forked from

import torch  # noqa: E402

torch.set_num_threads(1)

# Triton looks at it when it is imported for the first time, by whichever test that is.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

# Under `nohup`, or in a shell's background job, signals are ignored, also in the processes that tests start and stop. A
# signal that this process handles has its default effect in those; this process still survives a closed terminal.
for name, handler in (("SIGINT", signal.default_int_handler), ("SIGTERM", None), ("SIGHUP", None)):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler or (lambda *_: None))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Start torch's global random numbers anew: a test must not depend on those that ran before it."""
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every available device: a test with this fixture runs once on each."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder with the real recordings."""
    folder = os.environ.get("POLYADIC_DATA")
    if not folder:
        pytest.skip("POLYADIC_DATA is not set: tests on real recordings are left out")
    return Path(folder)


_FIRST = [
    "test_memory",
    "test_stopping",
    "test_side_by_side",
    "test_mutations",
    "test_commands",
    "test_run",
    "test_report_browser",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with the longest tests first, so that no process is left with one of them at the end.

    pytest-xdist begins with a contiguous part for each process, and one that is done takes from the end of another's:
    files stay together, and so do the fixtures that their tests share.
    """
    places = {name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
