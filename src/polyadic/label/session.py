"""A labelling session: the answers so far, the next question, and what the labels predict.

The answers are the rows of a `Journal`, and everything else follows from them, so a session that is killed goes on
where it stopped. Predictions are refitted in the background (`follow`); questions never wait for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Condition, RLock, Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from polyadic._util.files import harmless
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe
from polyadic.evaluate.classifier import learn_chain
from polyadic.evaluate.sequences import Chain, rows_along
from polyadic.label.journal import Journal, Row, place_rows
from polyadic.label.questions import EVERY, Question, Questions

__all__ = ["Answer", "ConflictError", "Predictions", "Session", "follow"]

FEWEST_RANDOM = 10
"""Minimum number of randomly drawn windows for an estimate of the accuracy."""
AGAIN, _PAUSE = 12, 6
"""One question in this many repeats an earlier one, which was answered at least this many answers ago."""
_LONGEST_NAME = 60
_MOST_ALONG = 3000
"""Maximum number of windows from which the order of classes is learned."""


class ConflictError(PolyadicError):
    """The window was answered elsewhere, after the page had shown it."""


class Answer(NamedTuple):
    """An answer that was not taken back: the window, its label before and after, and why it was asked."""

    row: int
    before: str
    label: str
    asked: str


class Predictions(NamedTuple):
    """What the labels say about all windows."""

    version: int  # number of journal rows that it is based on
    estimate: dict[str, Any]  # accuracy on randomly drawn windows and its interval, or why it is too early to say
    probe: Probe | None = None
    classes: NDArray[Any] = np.empty(0, "<U1")  # (K,), names
    probabilities: NDArray[np.float64] | None = None  # (N, K)
    chain: Chain | None = None  # the order of classes, if it helps


class Session:
    """Answers, questions and predictions; every method may be called from any thread.

    Parameters
    ----------
    windows : the windows, with recording and start
    Z : (N, F), their features
    journal : the file of answers, old ones included
    statistics : the columns of Z that are statistics
    who : the name of the person, for the file
    random_state : of the random windows

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from polyadic.data import synthetic
    >>> windows = synthetic(40)
    >>> windows = Windows(windows.X, windows.fs, recording=windows.subject, start=np.arange(40) * 256)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     session = Session(windows, windows.X.std(axis=2), Journal(Path(folder) / "labels.csv"))
    ...     question = session.question("tab")
    ...     stamp = session.answer("tab", question.row, "rest", session.stamp(question.row))
    ...     session.journal.close()
    ...     session.labels[question.row], session.classes
    ('rest', ['rest'])
    """

    def __init__(
        self,
        windows: Windows,
        Z: NDArray[Any],
        journal: Journal,
        *,
        statistics: Any = (),
        who: str = "",
        random_state: int = 0,
    ) -> None:
        self.windows, self.Z, self.journal, self.who = windows, np.asarray(Z, np.float64), journal, who
        self.groups = windows.subject if (windows.subject != "").any() else windows.recording
        self._statistics = np.array(statistics, np.intp)
        self.questions = Questions(self.Z, self.groups, self._statistics, random_state)
        self._random = np.random.default_rng(random_state)
        self.labels: list[str] = [""] * len(windows)
        self.answers: list[Answer] = []
        self.classes: list[str] = []
        self.predictions = Predictions(-1, {})
        self._stamps: Counter[int] = Counter()
        self._open: dict[str, Question] = {}  # of each tab
        self._lock = RLock()
        self.changed = Condition(self._lock)
        for place, row in zip(place_rows(journal.rows, windows), journal.rows, strict=True):
            if place < 0:
                raise PolyadicError(
                    f"{journal.path.name} has labels of other windows, such as {row.recording} at {row.start:g} s, "
                    f"{row.duration:g} s long: use the same folder and --seconds, or another file (-o)"
                )
            self._apply(place, row.label, row.asked)

    # ------------------------------------------------------------------------------------------ answers

    @property
    def version(self) -> int:
        """The number of rows in the journal."""
        return len(self.journal.rows)

    def stamp(self, row: int) -> int:
        """Return the number of times that the label of a window was set: a page that saw another number is outdated."""
        return self._stamps[row]

    def _apply(self, row: int, label: str, asked: str) -> None:
        """Update everything by one row of the journal."""
        before, self.labels[row] = self.labels[row], label
        self._stamps[row] += 1
        if asked == "undo":
            del self.answers[max(place for place, answer in enumerate(self.answers) if answer.row == row)]
        elif asked == "rename":
            self._replace_class(before, label)
        else:
            self.answers.append(Answer(row, before, label, asked))
        if label and label not in self.classes:
            self.classes.append(label)

    def _replace_class(self, old: str, new: str) -> None:
        """Rename a class, which keeps its place, or merge it into another one."""
        if old not in self.classes:
            return
        if new in self.classes:
            self.classes.remove(old)
        else:
            self.classes[self.classes.index(old)] = new
        names = {old: new}
        self.answers = [
            Answer(row, names.get(before, before), names.get(label, label), asked)
            for row, before, label, asked in self.answers
        ]

    def _write(self, changes: list[tuple[int, str, str]]) -> None:
        """Write rows, labels and reasons to the disk, and only then to memory."""
        fs, length = self.windows.fs or 1.0, self.windows.shape[2]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        rows = []
        for row, label, asked in changes:
            name, start = harmless(str(self.windows.recording[row])), float(self.windows.start[row]) / fs
            rows.append(Row(name, start, length / fs, label, harmless(self.who), now, asked))
        self.journal.append(rows)
        for change in changes:
            self._apply(*change)
        self.changed.notify_all()

    def answer(self, tab: str, row: int, label: str, stamp: int) -> int:
        """Save the answer of a tab and return the new stamp of the window, when the answer is on the disk.

        "" skips the question, which takes a label back, or leaves a picked window alone.

        Raises
        ------
        ConflictError : if the label of the window was set since the page saw it, as the stamp says
        """
        label = _check_name(label) if label else ""
        with self._lock:
            self._check_stamp(row, stamp)
            question = self._open.pop(tab, None)
            asked = question.asked if question is not None and question.row == row else "picked"
            if label or asked != "picked":
                self._write([(row, label, asked)])
            return self.stamp(row)

    def undo(self, tab: str, row: int, stamp: int) -> None:
        """Take back the last answer about a window, and ask the tab about it again; raises like `answer`."""
        with self._lock:
            self._check_stamp(row, stamp)
            last = next((answer for answer in reversed(self.answers) if answer.row == row), None)
            if last is None:
                raise PolyadicError("There is nothing to undo for this window.")
            self._write([(row, last.before, "undo")])
            self._open[tab] = Question(row, last.asked)

    def rename(self, old: str, new: str) -> None:
        """Rename a class; the name of another class merges both."""
        new = _check_name(new)
        with self._lock:
            if old not in self.classes:
                raise PolyadicError(f"There is no class {old!r}.")
            self._write([(row, new, "rename") for row, label in enumerate(self.labels) if label == old])
            self._replace_class(old, new)  # also a class that no window has now

    def _check_stamp(self, row: int, stamp: int) -> None:
        if not 0 <= row < len(self.windows):
            raise PolyadicError(f"There is no window {row}.")
        if self._stamps[row] != stamp:
            label = self.labels[row] or "no label"
            raise ConflictError(
                f"This window was answered in another tab meanwhile: it has {label}. Nothing was changed."
            )

    # ---------------------------------------------------------------------------------------- questions

    def question(self, tab: str) -> Question:
        """Return what a tab is asked now: its open question, else the next one."""
        with self._lock:
            if tab not in self._open:
                self._open[tab] = self._next()
            return self._open[tab]

    def pick(self, tab: str, row: int) -> None:
        """Let a tab answer about a window of its choice instead of its open question."""
        if not 0 <= row < len(self.windows):
            raise PolyadicError(f"There is no window {row}.")
        with self._lock:
            self._open[tab] = Question(row, "picked")

    def _next(self) -> Question:
        others = [question for question in self._open.values() if question.asked != "picked"]
        asked, taken = [answer.asked for answer in self.answers if answer.asked != "picked"], {row for row, _ in others}
        number = len(asked) + len(others)
        if (number + 1) % AGAIN == 0 and (number + 1) % EVERY:
            early = {answer.row for answer in self.answers[:-_PAUSE] if self.labels[answer.row]}
            rows = sorted(early - taken - {answer.row for answer in self.answers if answer.asked == "again"})
            if rows:
                return Question(int(self._random.choice(rows)), "again")
        drawn = [*asked, *(question.asked for question in others)].count("random")
        seen = list(dict.fromkeys([answer.row for answer in self.answers] + sorted(taken)))
        found = self.predictions.probabilities
        sample = None if found is None else found[self.questions.sample]
        return self.questions.next(seen, drawn, sample, number)

    # -------------------------------------------------------------------------------------- predictions

    def refit(self) -> Predictions:
        """Train on the labels so far, predict all windows, estimate the accuracy, and publish the result."""
        with self._lock:
            version, labels = self.version, np.array(self.labels)
            random = sorted({answer.row for answer in self.answers if answer.asked == "random" and labels[answer.row]})
        known = labels != ""
        if len(set(labels[known].tolist())) < 2:
            result = Predictions(version, {"count": len(random), "too_early": "labels of two classes are needed"})
        else:
            rows = np.union1d(self.questions.sample, np.flatnonzero(known))
            probe = Probe().fit(self.Z[rows], labels[rows], self.groups[rows], self._statistics)
            likelihoods, fold = probe.left_out_likelihoods(self.Z[rows], self.groups[rows])
            drawn = np.isin(rows, random) & (fold >= 0)
            right = (probe.classes_[likelihoods.argmax(axis=1)] == labels[rows])[drawn].tolist()
            same = np.array_equal(self.predictions.classes, probe.classes_)
            chain = self.predictions.chain if same else None  # of earlier labels, until `learn_order`
            found = probe.predict_proba(self.Z)
            result = Predictions(version, self._estimate(right), probe, probe.classes_, found, chain)
        with self._lock:
            self.predictions = result
        return result

    def _estimate(self, right: list[bool]) -> dict[str, Any]:
        """Return the accuracy on randomly drawn windows with Wilson's 95 % interval, or why it is too early to say.

        `right` tells of each whether a probe that did not train on its subject was right.
        """
        count, subjects = len(right), len({self.groups[answer.row] for answer in self.answers if answer.label})
        if count < FEWEST_RANDOM:
            drawn = f"{count} of {FEWEST_RANDOM} randomly drawn windows"
            return {"count": count, "too_early": drawn if subjects > 1 else "labels of two subjects are needed"}
        ends = binomtest(sum(right), count).proportion_ci(method="wilson")
        return {"count": count, "accuracy": sum(right) / count, "interval": [ends.low, ends.high]}

    def learn_order(self) -> None:
        """Learn the order of classes along recordings for the timeline, if it helps on subjects left out."""
        with self._lock:
            labels, predictions = np.array(self.labels), self.predictions
        rows = rows_along(self.windows, labels != "")
        recordings, sizes = np.unique(self.windows.index.recording[rows], return_counts=True)
        rows = rows[np.isin(self.windows.index.recording[rows], recordings[np.cumsum(sizes) <= _MOST_ALONG])]
        if predictions.probe is None or set(labels[rows].tolist()) - {""} != set(predictions.classes.tolist()):
            return
        chain = learn_chain(predictions.probe, self.Z[rows], labels[rows], self.groups[rows], self.windows[rows])
        with self._lock:
            if self.predictions is predictions:
                self.predictions = predictions._replace(chain=chain if chain is not None and chain.is_default else None)

    def timeline(self, row: int) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the windows of a window's recording in order of time, and their predicted classes ("" if none)."""
        index, predictions = self.windows.index, self.predictions
        rows = np.flatnonzero(index.recording == index.recording[row])
        rows = rows[np.argsort(index.start[rows], kind="stable")]
        if predictions.probe is None or predictions.probabilities is None:
            return rows, np.full(len(rows), "")
        codes = predictions.probabilities[rows].argmax(axis=1)
        if predictions.chain is not None:
            codes = predictions.chain.path(predictions.probe.log_likelihoods(self.Z[rows]), self.windows[rows])
        return rows, predictions.classes[codes]

    # ------------------------------------------------------------------------------------------- counts

    def counts(self) -> dict[str, Any]:
        """Return the labels of each class and subject, and how often a repeated window got the same label."""
        with self._lock:
            known = [(label, str(self.groups[row])) for row, label in enumerate(self.labels) if label]
            repeated = [answer for answer in self.answers if answer.asked in ("again", "random") and answer.before]
            classes, subjects = Counter(label for label, _ in known), Counter(subject for _, subject in known)
            return {
                "labelled": len(known),
                "classes": [[name, classes[name]] for name in self.classes],
                "subjects": sorted(subjects.items(), key=lambda item: (-item[1], item[0])),
                "all_subjects": len(np.unique(self.groups)),
                "same": sum(answer.before == answer.label for answer in repeated),
                "repeated": len(repeated),
            }


def _check_name(name: str) -> str:
    """Return the name of a class without outer spaces, or raise if it cannot be one."""
    name = " ".join(name.split())
    if not 0 < len(name) <= _LONGEST_NAME:
        raise PolyadicError(f"The name of a class must have 1 to {_LONGEST_NAME} characters.")
    if re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", name) or harmless(name) != name:
        raise PolyadicError("The name of a class must not begin with =, +, -, @, or have control characters.")
    return name


def follow(session: Session, on_error: Callable[[str], None]) -> Thread:
    """Start a thread that refits the predictions whenever there are new answers."""

    def is_behind() -> bool:
        return session.predictions.version != session.version

    def run() -> None:
        try:
            while True:
                with session.changed:
                    session.changed.wait_for(is_behind)
                session.refit()
                with session.changed:
                    behind = session.changed.wait_for(is_behind, timeout=1.0)
                if not behind:
                    session.learn_order()
        except Exception as error:
            on_error(f"predictions failed: {error}")

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread
