"""A few damaged files of every kind; `python tests/mutations.py --each 1000` tests more."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import mutations
import pytest
from command_line import python

HERE = Path(__file__).parent
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")


@linux
@pytest.mark.parametrize("each", [8, pytest.param(25, marks=pytest.mark.long)])
def test_damaged_files_of_every_kind_are_refused_or_read_soundly(each: int) -> None:
    found = json.loads(python("import mutations; mutations.main()", "--each", each, "--seed", "1", cwd=HERE).stdout)
    found.pop("seed")
    assert len(found) >= 8
    for name, counts in found.items():
        assert counts["wrong"] == [], name
        assert counts["mutations"] == counts["refused"] + counts["read"] == each, name
        assert counts["refused"] > each / 5, name


BAD = """
import os, sys, time
import mutations, torch
from mutations import Target
torch.set_num_threads(1)
held = []
def make(folder): (folder / "file").write_bytes(b"sound")
def read(folder, only_bytes):
    if (folder / "file").read_bytes() == b"sound":
        return
    {fault}
found = mutations.attack("bad", Target(make, read), 3, 0)
print(found["mutations"], len(found["wrong"]))
print(found["wrong"][0])
"""
FAULTS = {
    "crash": ("os.abort()", "crashed"),
    "hang": ("mutations.LONGEST < 1 or time.sleep(60)", "hung"),
    "hog": ("held.append(bytearray(150 * 2**20))", "took 1"),
    "hoarder": ("bytearray(2**40)", "MemoryError"),
    "foreign error": ("raise KeyError('no such thing')", "KeyError"),
    "shell": ("os.system('true')", "did what it must not"),
    "writer": ("open('/dev/null', 'w').close()", "did what it must not"),
    "wrong result": ("assert False, 'not sound'", "not sound"),
}


@linux
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ("crash", "foreign error") else pytest.mark.long) for kind in FAULTS],
)
def test_faults_of_a_reader_are_detected(kind: str, tmp_path: Path) -> None:
    fault, message = FAULTS[kind]
    script = BAD.format(fault=fault)
    if kind == "hang":
        script = script.replace("held = []", "mutations.LONGEST = 1.0")
    done = python(script, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == "3 3", done.stderr
    assert message in lines[1]


def test_the_same_seed_gives_the_same_damage(tmp_path: Path) -> None:
    (tmp_path / "sound").mkdir()
    (tmp_path / "sound" / "file").write_bytes(bytes(range(256)))
    target = mutations.Target(lambda folder: None, lambda folder, only: None)

    def damaged(seed: str) -> bytes:
        mutations.mutated(target, tmp_path / "sound", tmp_path / "damaged", seed)
        return (tmp_path / "damaged" / "file").read_bytes()

    assert damaged("a 0 1") == damaged("a 0 1")
    assert len({damaged(f"a 0 {number}") for number in range(20)}) > 10


def test_damage_reaches_every_place_of_a_header() -> None:
    chance, reached = random.Random(0), set()
    for _ in range(300):
        content = {"a": [1, {"b": "text"}], "c": {"d": 2.5}}
        reached.add(mutations.damage_json(content, chance).split(")")[0])
    assert {"('a',", "('a', 1", "('a', 1, 'b'", "('c', 'd'"} <= reached
