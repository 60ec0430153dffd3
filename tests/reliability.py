"""Reliability tests with many repetitions: kills, damaged files, long runs. `make test-all` injects faults.

    python tests/reliability.py docs/results/reliability.json

(`make reliability`; some two hours: one of them for a soak, which `--seconds 60` makes shorter, and at the end a fit of
12 GiB, which `--gib 0` leaves out.) Each part runs in a process of its own and tells how far it is. The file has what
was done and what was lost; the exit status is 0 if that is nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from polyadic._util.files import write_atomically
from polyadic._util.provenance import provenance

HERE = Path(__file__).parent
MOST_MEMORY = 2 * 2**30
"""Bytes that a fit may take for itself, whatever the size of its store."""


def say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def told(script: Path, *options: Any) -> Any:
    """Run a script of the tests, and return its standard output; its progress is shown."""
    words = [sys.executable, str(script), *map(str, options)]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=surroundings)
    if not done.stdout.strip():
        raise SystemExit(f"{script.name} ended with {done.returncode} and told nothing")
    return json.loads(done.stdout)


def kills(count: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    found = told(HERE / "killed_fits.py", "--kills", count, "--seed", seed)
    lost = [] if found["same to the bit"] == found["kills"] == count else [f"fits that were killed: {found}"]
    return found, lost


def mutations(each: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    found = told(HERE / "mutations.py", "--each", each, "--seed", seed)
    found.pop("seed")
    total = sum(counts["mutations"] for counts in found.values())
    wrong = [text for counts in found.values() for text in counts.pop("wrong")]
    return {"seed": seed, "mutations": total, "kinds": found}, wrong


def endurance(fits: int, seconds: float) -> tuple[dict[str, Any], list[str]]:
    found = told(HERE / "endurance.py", "--fits", fits, "--seconds", seconds)
    grown = [kind for kind in ("fits", "soak") if found[kind]["grew_bytes"] > found["allowed_bytes"]]
    return found, [f"memory grew over {kind}: {found[kind]}" for kind in grown]


def large(gib: float) -> tuple[dict[str, Any], list[str]]:
    found = told(HERE / "large_fits.py", "--gib", gib, "--hop", 256, "--flip")
    return found, [] if found["own_bytes"] < MOST_MEMORY else [f"memory of the large fit: {found}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=100, help="half of them while a checkpoint is written")
    parser.add_argument("--each", type=int, default=1000, help="damaged files of each kind")
    parser.add_argument("--fits", type=int, default=200, help="fits one after the other")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of sweeps in one fit")
    parser.add_argument("--gib", type=float, default=12.0, help="size of the large store; 0 for none")
    given = parser.parse_args()
    parts = {
        "kills": lambda: kills(given.kills, given.seed),
        "mutations": lambda: mutations(given.each, given.seed),
        "endurance": lambda: endurance(given.fits, given.seconds),
        "large": (lambda: large(given.gib)) if given.gib else None,
    }
    found: dict[str, Any] = provenance("cpu")
    lost: list[str] = []
    for number, (name, part) in enumerate(parts.items(), start=1):
        if part is None:
            found[name] = None
            continue
        say(f"{number} of {len(parts)}: {name}")
        begun = time.monotonic()
        found[name], more = part()
        found[name]["took_seconds"] = round(time.monotonic() - begun, 1)
        lost += more
        say(f"{name}: {len(more)} lost, {time.monotonic() - begun:.0f} s")
    found["lost"] = lost
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, (json.dumps(found, indent=1) + "\n").encode())
    say(f"{given.out.name}: {len(lost)} lost")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
