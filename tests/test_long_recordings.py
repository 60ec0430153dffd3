"""Long recordings take no more memory than short ones, and many files no more than a few open at a time."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import edfio
import numpy as np
import pytest
from command_line import python

from polyadic import SALS
from polyadic.data import folder
from polyadic.evaluate import WindowClassifier

FS, MINUTE = 100, 6000
PROGRAM = """
import json, sys, threading, time
peak = 0
def watch():  # memory of the process itself; the system can reclaim pages of mapped files at any time
    global peak
    while True:
        with open("/proc/self/status") as status:
            peak = max(peak, *(int(line.split()[1]) for line in status if line.startswith("RssAnon")))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
import polyadic.cli.files, polyadic.data.store, polyadic.estimators.base
polyadic.cli.files._STEP_BYTES = polyadic.data.store._WRITTEN_BYTES = 2**21
polyadic.estimators.base._BATCH_BYTES = 2**21
from polyadic.cli import main  # with parts so small that a short recording has many
try:
    main()
except SystemExit as ended:
    print(json.dumps({"code": ended.code, "peak": peak * 1024}))
"""


def record(path: Path, minutes: int) -> None:
    digits = np.random.default_rng(0).integers(-2000, 2000, (2, minutes * MINUTE), np.int16)
    signals = [
        edfio.EdfSignal.from_digital(row, FS, label=label, physical_range=(-500, 500), digital_range=(-2048, 2047))
        for label, row in zip("AB", digits, strict=True)
    ]
    edfio.Edf(signals).write(path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to look at the memory")
def test_predict_and_transform_take_no_more_memory_for_a_recording_that_is_six_times_as_long(tmp_path):
    record(tmp_path / "short.edf", 250)
    record(tmp_path / "long.edf", 1500)
    windows = folder(tmp_path / "short.edf", tmp_path / "s", seconds=30).windows[:100]
    model = SALS(rank=2, max_sweeps=1, device="cpu", random_state=0)
    WindowClassifier(model).fit(windows, np.tile(["a", "b"], 50)).save(tmp_path / "m.safetensors")
    peaks = {}
    for name in ("short", "long"):
        for command, ending in (("predict", "csv"), ("transform", "npy")):
            words = (command, "m.safetensors", f"{name}.edf", "-o", f"{name}.{ending}", "--quiet")
            found = json.loads(python(PROGRAM, *words, cwd=tmp_path).stdout.splitlines()[-1])
            assert found["code"] in (0, None)
            peaks[command, name] = found["peak"]
    # The recording grows by 30 MB, its values in float32 by 60 MB; how much freed memory is kept varies.
    assert peaks["predict", "long"] - peaks["predict", "short"] < 16 * 2**20
    assert peaks["transform", "long"] - peaks["transform", "short"] < 16 * 2**20


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to count open files")
def test_a_folder_of_many_recordings_keeps_few_files_open(tmp_path):
    note = edfio.EdfAnnotation(0, 60, "rest")
    for number in range(60):
        (tmp_path / "in").mkdir(exist_ok=True)
        signal = edfio.EdfSignal(np.random.default_rng(number).normal(size=MINUTE), FS, label="A")
        edfio.Edf([signal], annotations=[note]).write(tmp_path / "in" / f"p{number:02d}.edf")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 30, limits[1]))
    try:
        store = folder(tmp_path / "in", tmp_path / "s", seconds=30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert store.classes == ("rest",)
    assert len(store) == 120
