"""Files of every kind that polyadic reads, damaged at random and on purpose, for the tests and for the command line.

    python tests/mutations.py --each 1000 [--seed 0]

Each damaged file must give an error of polyadic's own or a sound result, within 5 seconds and with little memory,
without a process, a connection or a file outside its folder being opened. They are read in a process of their own,
which may crash or hang: that is counted, too. Half of the damage is done to bytes, half to what they mean, with the
checksums made to fit again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyadic.errors import PolyadicError

LONGEST = 5
"""Seconds a file may take to be read or refused."""

MOST = 96 * 2**20
"""Bytes that reading a small file may take."""

ROOM = 2**30
"""Bytes of addresses that reading may ask for, beyond which memory runs out."""

Mutate = Callable[[Path, random.Random], str]


@dataclass(frozen=True)
class Target:
    """A kind of file: `make` writes a sound one, `read` opens all of it, `meant` changes what it says.

    `read` raises AssertionError where what was read is not sound. It gets True if only bytes were damaged.
    """

    make: Callable[[Path], None]
    read: Callable[[Path, bool], None]
    meant: Mutate | None = None


# ---------------------------------------------------------------------------------- damage to bytes


def flip(content: bytearray, at: int, chance: random.Random) -> None:
    for place in (at, *chance.choices(range(len(content)), k=chance.randint(0, 3))):
        content[place] ^= chance.randint(1, 255)


def cut_short(content: bytearray, at: int, chance: random.Random) -> None:
    del content[at:]


def insert(content: bytearray, at: int, chance: random.Random) -> None:
    nested = chance.choice((b"[", b'{"a":', b"(")) * chance.choice((50, 2000, 100_000))
    content[at:at] = chance.choice((chance.randbytes(chance.choice((1, 7, 4096))), nested))


def overwrite(content: bytearray, at: int, chance: random.Random) -> None:
    """Zeros, or a number of two, four or eight bytes that is as large or as negative as it can be."""
    size = min(chance.choice((2, 4, 8)), len(content) - at)
    largest = 2 ** (8 * size) - 1
    content[at : at + size] = chance.choice((0, largest, largest // 2, largest // 16)).to_bytes(size, "little")


def other_number(content: bytearray, at: int, chance: random.Random) -> None:
    """A number that is written in digits becomes another, sometimes as long as the one before."""
    numbers = list(re.finditer(rb"\d+", content[:4096]))
    if not numbers:
        return flip(content, at, chance)
    begin, end = chance.choice(numbers).span()
    word = chance.choice((b"0", b"-1", b"99999999", b"9" * 30, b"1e308", b"nan", b"inf", b"2147483648"))
    content[begin:end] = word[: end - begin].ljust(end - begin, b"9") if chance.random() < 0.5 else word
    return None


def damage_bytes(folder: Path, chance: random.Random) -> str:
    path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    content = bytearray(path.read_bytes()) or bytearray(1)
    kind = chance.choice((flip, cut_short, insert, overwrite, other_number))
    kind(content, chance.randrange(len(content)), chance)
    path.write_bytes(content)
    return f"{path.name}: {kind.__name__}"


# --------------------------------------------------------------------------------- damage to meaning

NASTY: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**63, 10**40, 1e308, float("nan"), float("inf")),
    *("", "../../etc/passwd", "\0", "__import__('os').system('true')", "9" * 400),
    *([], {}, [[]], {"type": "function", "name": "os.system"}, {"type": "STFT"}, [1] * 5000),
)


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every entry of what JSON holds."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*before, key)
        yield from places(item, (*before, key))


def damage_json(content: Any, chance: random.Random) -> str:
    """Change or drop an entry somewhere in what JSON holds."""
    ways = list(places(content))
    # Long lists would otherwise take all the damage.
    depth = chance.choice(sorted({len(way) for way in ways}))
    way = chance.choice([way for way in ways if len(way) == depth])
    holder = content
    for key in way[:-1]:
        holder = holder[key]
    if chance.random() < 0.1:
        del holder[way[-1]]
        return f"{way} dropped"
    nasty = chance.choice(NASTY)
    if chance.random() < 0.3 and isinstance(holder[way[-1]], int | float):
        nasty = holder[way[-1]] * chance.choice((-1, 2, 1000, 10**9)) + chance.choice((0, 1, -1))
    holder[way[-1]] = nasty
    return f"{way} is {str(nasty)[:30]}"


# ---------------------------------------------------------------------------------------- one case


def memory(name: str) -> int:
    """A line of the system's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class Watch:
    """Records forbidden actions of readers, from Python's audit events."""

    FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class")
    NETWORK = ("socket.connect", "socket.getaddrinfo")

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in self.FORBIDDEN or event in self.NETWORK:
            self.seen.append(event)
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, flags = os.fsdecode(arguments[0]), arguments[2]
            if flags & (os.O_WRONLY | os.O_RDWR) and not os.path.realpath(path).startswith(self.folder):
                self.seen.append(f"open {path}")


def read_damaged(target: Target, folder: Path, only_bytes: bool, watch: Watch) -> str:
    """Read a damaged file, and return "refused", "read", or what went wrong."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before = memory("VmRSS")
    outcome = "read"
    watch.folder, watch.seen = os.path.realpath(folder), []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(folder, only_bytes)
    except PolyadicError as error:
        ran_out = isinstance(error.__cause__, MemoryError)
        outcome = "refused" if str(error).strip() and not ran_out else f"memory ran out, or no word: {error}"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {str(error)[:300]}"
    watch.folder = None
    if watch.seen:
        outcome = f"did what it must not: {watch.seen[:3]}"
    taken = memory("VmHWM") - before
    return outcome if taken <= MOST else f"took {taken / 2**20:.0f} MiB"


def mutated(target: Target, sound: Path, folder: Path, seed: str) -> tuple[str, bool]:
    """A damaged copy of the sound files; what was done to it, and whether it was only to bytes."""
    chance = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    if target.meant is not None and chance.random() < 0.5:
        return target.meant(folder, chance), False
    return damage_bytes(folder, chance), True


def work(target: Target, name: str, sound: Path, each: int, seed: int, log: Path) -> None:
    """The cases one after the other, each with a line in the log; a case that takes too long ends the process."""
    limit = memory("VmSize") + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    watch = Watch()
    folder = sound.parent / "damaged"
    with log.open("w") as file:
        for number in range(each):
            what, only_bytes = mutated(target, sound, folder, f"{name} {seed} {number}")
            signal.alarm(LONGEST)
            outcome = read_damaged(target, folder, only_bytes, watch)
            signal.alarm(0)
            print(json.dumps([f"{name} {number}, {what}", outcome]), file=file, flush=True)


def attack(name: str, target: Target, each: int, seed: int) -> dict[str, Any]:
    """So many damaged files of a kind; how many were refused and read, and all that went wrong."""
    with tempfile.TemporaryDirectory() as place:
        sound, log = Path(place).resolve() / "sound", Path(place) / "log"
        sound.mkdir()
        target.make(sound)
        target.read(sound, True)  # also imports all there is to import, before memory is counted
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(target, name, sound, each, seed, log)
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    outcomes = [outcome for _, outcome in lines]
    wrong = [f"{case}: {outcome}" for case, outcome in lines if outcome not in ("refused", "read")]
    if status:
        wrong.append(f"{name} {len(lines)}: crashed, or took more than {LONGEST} s (status {status})")
    counts = {"refused": outcomes.count("refused"), "read": outcomes.count("read")}
    return {"mutations": len(lines), **counts, "wrong": wrong}


def main() -> None:
    import mutated_files

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=1000, help="damaged files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must have no threads
    found = {}
    for name, target in mutated_files.TARGETS.items():
        found[name] = attack(name, target, given.each, given.seed)
    sys.stdout.write(json.dumps({"seed": given.seed, **found}, indent=1) + "\n")
    if any(each["wrong"] for each in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
