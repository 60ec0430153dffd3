"""Every Python block of the README and the pages runs, page by page in order.

Blocks below `<!-- run -->` also run when the pages are built, and stop the build if they fail; so do the examples of
the gallery. `make lint` checks tables, figures and quoted messages.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest

from polyadic import estimators
from polyadic.core.solve import Settings
from polyadic.data import synthetic

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from executed import execute  # noqa: E402

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WINDOWS = """
import numpy as np
from polyadic import ATD, SALS
from polyadic.data import Windows, synthetic
from polyadic.spectral import STFT
rng = np.random.default_rng(0)
"""
"""What stands before the first block of some pages, so that names a reader has at hand are there."""

BEFORE = {
    "commands.md": """
        from polyadic.evaluate import WindowClassifier
        X = synthetic(80)
        WindowClassifier(SALS(rank=3, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2)).fit(X).save("model.safetensors")
        """,
    "deploy.md": """
        from polyadic.evaluate import WindowClassifier
        X = rng.normal(size=(40, 9, 128)).astype(np.float32)
        window = X[0]
        features = SALS(rank=3, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2)
        model = WindowClassifier(features).fit(X, np.arange(40) % 2)
        """,
    "which-tool.md": """
        import mne
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler
        from tensorly.decomposition import parafac
        X = Windows(rng.normal(size=(30, 2, 400)), 100, channels=["Fpz-Cz", "Pz-Oz"])
        T = rng.normal(size=(12, 4, 5, 6))
        model = SALS(rank=3, tensorize=STFT(64, 32, parts="log_amplitude"), max_sweeps=2).fit(X)
        info = mne.create_info(["Fz", "Cz", "Pz", "Oz"], 100.0, "eeg")
        info.set_montage("standard_1020")
        raw = mne.io.RawArray(rng.normal(size=(4, 12000)), info, verbose=False)
        events = np.column_stack([np.arange(0, 11000, 500), np.zeros(22, int), 1 + np.arange(22) % 2])
        epochs = mne.Epochs(raw, events, tmin=0, tmax=3.99, baseline=None, preload=True, verbose=False)
        """,
    "missing.md": """
        from polyadic.evaluate import WindowClassifier
        signals = synthetic(120)
        X = np.array(signals.X)
        X_new = X[100:].copy()
        X_new[:, 3] = np.nan
        classifier = WindowClassifier(SALS(rank=3, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2)).fit(signals)
        """,
    "rank.md": """
        windows = synthetic(60, n_channels=2)
        """,
    "large-data.md": """
        import sys, types
        from distributed import LocalCluster
        from polyadic.data.store import write_windows
        store = write_windows(synthetic(80), "sleep.store")
        for name in ("north", "south"):
            write_windows(synthetic(80), f"{name}.store")

        class SLURMCluster(LocalCluster):
            def __init__(self, cores, processes, memory, walltime):
                super().__init__(1, processes=False, dashboard_address=None)

            def scale(self, n=0, jobs=0):
                super().scale(1 if jobs else n)

        sys.modules["dask_jobqueue"] = types.SimpleNamespace(SLURMCluster=SLURMCluster)
        model = SALS(rank=3, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2)
        """,
    "from-yasa.md": """
        import pathlib, people
        people.sleep(pathlib.Path("nights"), epoch_seconds=30)
        """,
    "start.md": """
        import pathlib, people
        people.sleep(pathlib.Path("sleep"))
        people.wearables(pathlib.Path("wearables"))
        """,
}


def blocks(path: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page with their first lines."""
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(text)]


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if blocks(path)]


def short_fit(**settings):
    """Settings of a fit that ends after some sweeps: what the pages show does not depend on more of them."""
    return Settings(**settings | {"max_sweeps": min(settings["max_sweeps"], 5)})


def small(n_windows, **settings):
    """Signals of fewer channels and samples than by default: sums of each subject are much smaller."""
    return synthetic(n_windows, **{"n_channels": 4, "length": 128} | settings)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_blocks_of_a_page_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimators.cpd, "Settings", short_fit)
    monkeypatch.setattr("polyadic.data.synthetic", small)
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages, and of fits that are stopped early
        if path.name in BEFORE:
            before = "\n".join(line.removeprefix(" " * 8) for line in BEFORE[path.name].splitlines())
            exec(WINDOWS + before, names)
        for line, code in blocks(path):
            execute("\n" * line + code, names, str(path))
