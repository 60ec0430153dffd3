"""Run tests with the oldest versions that pyproject.toml allows, to check its version ranges.

`make lower-bounds` runs this script. It needs only Python 3.11 and a package index. Torch has the version of
requirements.lock, because older builds install gigabytes of CUDA libraries; `--torch 2.11.0` selects another version.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import tomllib
from pathlib import Path

from environments import ROOT, environment, install, run, say

EXTRAS = ("dask", "edf", "label", "mne", "onnx", "report", "wfdb")
"""All extras but `paper`, whose packages need a newer numpy than the rest, and the extras for development."""
TOOLS = ("hypothesis", "pytest", "pytest-xdist")
TESTS = (
    "test_estimators.py",
    "test_nonnegative.py",
    "test_tensorize.py",
    "test_spectral.py",
    "test_persist.py",
    "test_manual.py",
    "test_edf.py",
    "test_wfdb.py",
    "test_mne.py",
    "test_interop.py",
    "test_onnx.py",
    "test_exports.py",
    "test_plot.py",
    "test_commands.py",
    "test_dask.py",
    "test_predict_outputs.py",
    "test_report.py",
    "test_windows.py",
)
"""Test files that together use every package."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--torch", default=locked("torch"), metavar="VERSION", help="default: the version in requirements.lock"
    )
    parser.add_argument(
        "tests",
        nargs="*",
        default=TESTS,
        help="files under tests/ to run; default: files that together use every package",
    )
    words = parser.parse_args()
    oldest = {**lower_bounds(), "torch": words.torch}
    say(", ".join(f"{name} {version}" for name, version in oldest.items()))
    with tempfile.TemporaryDirectory(prefix="polyadic-oldest-") as name:
        python = environment(Path(name) / "oldest")
        pins = [f"{name}=={version}" for name, version in oldest.items()]
        install(python, *pins, *(f"{tool}=={locked(tool)}" for tool in TOOLS))
        run(python, "-m", "pip", "check")
        say("tests")
        # Ignore warnings of old versions in new Pythons; in `make test`, warnings are errors.
        chosen = [f"tests/{test}" for test in words.tests]
        options = ("--numprocesses", "auto", "-p", "no:cacheprovider", "-o", "filterwarnings=", "-m", "not long")
        run(python, "-m", "pytest", *options, *chosen, PYTHONPATH=str(ROOT / "src"))
    say("the oldest versions work")


def lower_bounds() -> dict[str, str]:
    """Return the oldest allowed version of each package that polyadic and the extras need, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    return {one.partition(">=")[0]: one.partition(">=")[2] for one in needed}


def locked(name: str) -> str:
    """Return the version of a package in requirements.lock."""
    found = re.search(rf"^{name}==([^;\s]+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"{name} is not in requirements.lock"
    return found[1]


if __name__ == "__main__":
    main()
