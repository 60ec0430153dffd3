"""What each process of a team does in `test_distributed`: `torchrun … teams.py TASK[+TASK …] FOLDER [OPTION=VALUE …]`.

Each process writes what it ended a task with to FOLDER/TASK/NUMBER.npz. `test_nccl` does the same with `device=cuda`.
Without torchrun, `forks=N` makes N processes of one.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from polyadic.core.terms import TERMS
from polyadic.engine import processes
from polyadic.engine.loop import FitProgress
from polyadic.team import Team
from problems import paper

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Jitter
from polyadic.core import step as als
from polyadic.data import WindowStore, batches, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate.scoring import score_splits
from polyadic.scale import checkpoints
from polyadic.spectral import STFT

Model = ATD | GRSALS | SALS
FIXED = {"tensorize": STFT(32, 8, floor="channel"), "max_sweeps": 4, "tol": 0.0, "device": "cpu"}
CENTRED = STFT(32, 8, parts="log_amplitude", mean="auto")
VIEWS = {"augment": Jitter(0.05), "beta": 0.2}
KINDS: dict[str, Callable[[], Model]] = {
    "ATD": lambda: paper(ATD, 4, batch_size=20, **FIXED, **VIEWS),
    "ATD, gamma and rounds": lambda: paper(ATD, 4, batch_size=20, gamma=3.0, rounds=2, **FIXED, **VIEWS),
    "ATD, memory": lambda: paper(ATD, 4, batch_size=20, solver="memory", **FIXED, **VIEWS),
    "ATD, full batch": lambda: paper(ATD, 4, batch_size=None, **FIXED, **VIEWS),
    "SALS": lambda: paper(SALS, 4, batch_size=20, **FIXED),
    "SALS, full batch": lambda: paper(SALS, 4, batch_size=None, **FIXED),
    "default, full batch": lambda: ATD(4, **FIXED | {"tensorize": CENTRED}),
    "non-negative": lambda: SALS(4, batch_size=20, **FIXED | {"tensorize": CENTRED}),
    "SALS, restarts": lambda: paper(SALS, 4, batch_size=61, solver="memory", restarts=3, **FIXED | {"max_sweeps": 1}),
    "SALS, consensus": lambda: SALS(
        4, batch_size=61, restarts=2, consensus=True, **FIXED | {"max_sweeps": 1, "tensorize": CENTRED}
    ),
    "GRSALS": lambda: paper(GRSALS, 4, batch_size=20, graph_weight=1.0, **FIXED),
    "GRSALS, full batch": lambda: paper(GRSALS, 4, batch_size=None, graph_weight=1.0, **FIXED),
}
COUNTED = {"ATD": (2, 2), "ATD, memory": (2, 2), "SALS": (1, 0), "GRSALS": (1, 1)}
"""Kinds whose messages are counted, with the views and the sums of rows in a step of each."""
SIGNALS = synthetic(61, 3, 96)  # batches of 20, 20, 20 and 1: some processes have no window of the last
ORDERS: tuple[Literal["full", "block"], ...] = ("full", "block")
WINDOWS = {"float64": SIGNALS.X.astype(np.float64), "float32": SIGNALS.X.astype(np.float32)}


def outcome(model: Model) -> dict[str, np.ndarray]:
    """Return the results of a fit, by name."""
    found = {f"factor {mode}": factor for mode, factor in enumerate(model.factors_)}
    found |= {f"history {name}": np.array(model.history_[name]) for name in ("loss", *TERMS)}
    if model.readout_ is not None:
        found["features"] = model.transform(WINDOWS[str(model.factors_[0].dtype)][:20])
    if model._memory is not None:
        found |= {"memory Y": model._memory.Y.cpu().numpy(), "memory S": model._memory.S.cpu().numpy()}
    return found


def asked(fit: Callable[[], Any]) -> list[np.ndarray]:
    """The windows that a fit asks its source for, batch after batch."""
    original, seen = batches.WindowSource.batches, []

    def recorded(self: Any, parts: Sequence[torch.Tensor], sweep: int) -> Any:
        seen.extend(np.stack([np.full(len(part), sweep), part.numpy()]) for part in parts)
        return original(self, parts, sweep)

    batches.WindowSource.batches = recorded  # type: ignore[method-assign]
    try:
        fit()
    finally:
        batches.WindowSource.batches = original  # type: ignore[method-assign]
    return seen


def fits(team: Team, folder: Path) -> dict[str, np.ndarray]:
    """Every kind of fit in both types and both ways to exchange sums, and fits from a store in both orders."""
    found = {}
    for shuffle in ORDERS:
        model, store = KINDS["ATD"](), WindowStore(folder / "w.store", shuffle=shuffle)
        seen = asked(lambda model=model, store=store: model.fit(store, team=team))
        parts = outcome(model) | {"seen": np.concatenate(seen, axis=1)}
        found |= {f"{shuffle}; {name}": array for name, array in parts.items()}
    for exchange in ("block", "modes"):
        together = processes.join(exchange)
        for kind, made in KINDS.items():
            for dtype, X in WINDOWS.items():
                model = made()
                seen = asked(lambda model=model, X=X, team=together: model.fit(X, team=team))
                parts = outcome(model) | {"seen": np.concatenate(seen, axis=1)}
                found |= {f"{exchange}; {kind}; {dtype}; {name}": array for name, array in parts.items()}
    return found


def messages(team: Team, folder: Path) -> dict[str, np.ndarray]:
    """Of each message of a step, step by step: how many numbers it has, whether in float64, and whether on a GPU."""
    step, sent, found = als.step, [], {}
    counted = {name: getattr(dist, name) for name in ("all_reduce", "broadcast", "broadcast_object_list", "send")}

    def listening(name: str) -> Callable[..., Any]:
        def call(content: Any, *others: Any, **named: Any) -> Any:
            sums = name == "all_reduce"
            sent.append([content.numel(), content.dtype == torch.float64, content.is_cuda] if sums else [-1, -1, -1])
            return counted[name](content, *others, **named)

        return call

    def recorded(*given: Any, **named: Any) -> torch.Tensor:
        sent.clear()
        terms = step(*given, **named)
        steps.append(list(sent))
        return terms

    als.step = recorded
    for name in counted:
        setattr(dist, name, listening(name))
    for exchange in ("block", "modes"):
        together = processes.join(exchange)
        for kind in COUNTED:
            steps: list[list[list[int]]] = []
            KINDS[kind]().fit(WINDOWS["float32"], team=together)
            found[f"{exchange}; {kind}"] = np.array(steps)
    als.step = step
    for name, call in counted.items():
        setattr(dist, name, call)
    return found


def features(team: Team, folder: Path) -> dict[str, np.ndarray]:
    """Features of all windows into one file, of fewer than there are processes into another, and the score."""
    model = KINDS["ATD"]().fit(WINDOWS["float64"])
    X = WINDOWS["float64"]
    done = [0]
    Z = model.transform(X, out=folder / "features.npy", on_rows=done.append, team=team)
    few = model.transform(X[: max(1, team.size - 1)], out=folder / "few.npy", team=team)
    return {"Z": Z, "few": few, "score": np.array(model.score(X, team=team)), "done": np.array(done[-1])}


def scored(team: Team, folder: Path) -> dict[str, np.ndarray]:
    """Return the result of an evaluation, and the backend used for GPUs."""
    rows = score_splits(KINDS["SALS"]().fit(SIGNALS), SIGNALS, "paper", [0, 1], team=team)
    group = getattr(team, "_group", None)
    backend = "" if group is None else type(group._get_backend(torch.device(FIXED["device"]))).__name__
    return {"rows": np.array(json.dumps(rows)), "backend": np.array(backend)}


def resumed(team: Team, folder: Path, kinds: str, stop: str = "0", kill: str = "0") -> dict[str, np.ndarray]:
    """Fits with checkpoints; each stopped after `stop` of them, or with the second process killed at step `kill`."""
    save, step, count, steps = checkpoints.Checkpoints.save, als.step, 0, 0
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def limited(self: Any, progress: FitProgress, state: als.State) -> None:
        nonlocal count
        save(self, progress, state)
        count += 1
        if count == int(stop):
            raise InterruptedError

    def dying(*arguments: Any, **named: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == int(kill) and team.index == 1 and restarts == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **named)

    checkpoints.Checkpoints.save, als.step = limited, dying  # type: ignore[method-assign]
    found = {"restarts": np.array(int(restarts))}
    for number, kind in enumerate(kinds.split(";")):
        model, count, steps = KINDS[kind](), 0, 0
        place = folder / f"checkpoints {number}"
        try:
            model.fit(WINDOWS["float64"], checkpoint=place, resume=True, checkpoint_every=0, team=team)
        except InterruptedError:
            continue
        found |= {f"{kind}; {name}": array for name, array in outcome(model).items()}
        found[f"{kind}; steps"] = np.array(steps)
    checkpoints.Checkpoints.save, als.step = save, step  # type: ignore[method-assign]
    return found


def refused(team: Team, folder: Path) -> dict[str, np.ndarray]:
    """Try what is not possible with several processes, and write the error of each process."""
    X = WINDOWS["float64"]
    bad = X.copy()
    bad[-1] = np.nan
    model = KINDS["SALS"]().fit(X)
    tries = {
        "data": lambda: KINDS["ATD"]().fit(X + team.index, team=team),
        "settings": lambda: KINDS["ATD"]().set_params(rank=4 + team.index).fit(X, team=team),
        "seed": lambda: KINDS["ATD"]().set_params(random_state=None).fit(X, team=team),
        "graph": lambda: KINDS["GRSALS"]().set_params(graph=np.ones((61, 61))).fit(X, team=team),
        "out": lambda: model.transform(X, team=team),
        "window": lambda: model.transform(bad, out=folder / "bad.npy", team=team),
        "folder": lambda: model.transform(X, out=folder / "absent" / "f.npy", team=team),
        "checkpoint": lambda: KINDS["ATD"]().fit(X, checkpoint=__file__, team=team),
    }
    said = {}
    for name, work in tries.items():
        try:
            work()
        except (PolyadicError, OSError) as error:
            said[name] = np.array(str(error))
    return said


def fork(count: int) -> None:
    """Go on in so many processes with the variables that torchrun sets; this one ends when they have."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for number in range(count):
        if os.fork() == 0:
            os.environ.update(fixed, RANK=str(number), LOCAL_RANK=str(number))
            np.random.seed(number)  # noqa: NPY002  of a fork it is that of all others
            return
    codes = [os.wait()[1] for _ in range(count)]
    sys.exit(any(codes))


def main() -> None:
    tasks, folder, *options = sys.argv[1:]
    given = dict(option.split("=", 1) for option in options)
    if "forks" in given:
        fork(int(given.pop("forks")))
    FIXED["device"] = given.pop("device", "cpu")
    if given.pop("group", "") == "own":
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)  # who makes a group ends it; otherwise its threads may be cut off
    team = processes.join(given.pop("exchange", "auto"))  # type: ignore[arg-type]
    for task in tasks.split("+"):
        place = Path(folder) / task
        place.mkdir(exist_ok=True)
        found = globals()[task](team, place, **given)
        np.savez(place / f"{team.index}.npz", **found)


if __name__ == "__main__":
    main()
