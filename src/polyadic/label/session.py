"""A labelling session: the answers so far, the next question, and what the labels predict.

The answers are the rows of a `Journal`, and everything else follows from them, so a session that is killed goes on
where it stopped. Predictions are refitted in the background (`refit`); questions never wait for them.
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
from polyadic.evaluate import Probe, WindowClassifier
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
    classes: NDArray[Any] = np.empty(0, "<U1")  # (K,), names
    probabilities: NDArray[np.float64] | None = None  # (N, K)
    classifier: WindowClassifier | None = None  # knows the order of classes, if that helps


class _Features:
    """Features that are known already, as an estimator for `WindowClassifier`."""

    def __init__(self, windows: Windows, Z: NDArray[np.float64], readout: Any) -> None:
        self._place = {int(row): place for place, row in enumerate(windows.source(np.arange(len(windows))))}
        self._Z, self.readout_ = Z, readout

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, windows: Windows) -> NDArray[np.float64]:
        places = [self._place[int(row)] for row in windows.source(np.arange(len(windows)))]
        found: NDArray[np.float64] = self._Z[places]
        return found


class Session:
    """Answers, questions and predictions; every method may be called from any thread.

    Parameters
    ----------
    windows : the windows, with recording and start
    Z : (N, F), their features
    journal : the file of answers, old ones included
    readout : the readout of the model, which knows which features are statistics
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
    ...     session.answer("tab", question.row, "rest", session.stamp(question.row))
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
        readout: Any = None,
        who: str = "",
        random_state: int = 0,
    ) -> None:
        self.windows, self.Z, self.journal, self.who = windows, np.asarray(Z, np.float64), journal, who
        self.groups = windows.subject if (windows.subject != "").any() else windows.recording
        self._statistics = [] if readout is None else list(range(readout.rank, readout.n_features))
        self._features = _Features(windows, self.Z, readout)
        self.questions = Questions(self.Z, self.groups, self._statistics, random_state)
        self._random = np.random.default_rng(random_state)
        self.labels: list[str] = [""] * len(windows)
        self.answers: list[Answer] = []
        self.classes: list[str] = []
        self.predictions = Predictions(-1, {})
        self._stamps: Counter[int] = Counter()
        self._pending: dict[str, Question] = {}
        self._picked: dict[str, Question] = {}
        self._lock = RLock()
        self.changed = Condition(self._lock)
        places = place_rows(journal.rows, windows)
        if -1 in places:
            row = journal.rows[places.index(-1)]
            raise PolyadicError(
                f"{journal.path.name} has labels of other windows, such as {row.recording} at {row.start:g} s, "
                f"{row.duration:g} s long: use the same folder and --seconds, or another file (-o)"
            )
        for place, row in zip(places, journal.rows, strict=True):
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
        before = self.labels[row]
        self.labels[row] = label
        self._stamps[row] += 1
        if asked == "undo":
            place = next((n for n in reversed(range(len(self.answers))) if self.answers[n].row == row), None)
            if place is not None:
                del self.answers[place]
        elif asked == "rename":
            self._replace_class(before, label)
        else:
            self.answers.append(Answer(row, before, label, asked))
        if label and label not in self.classes:
            self.classes.append(label)

    def _replace_class(self, old: str, new: str) -> None:
        if old not in self.classes or old == new:
            return
        if new in self.classes:
            self.classes.remove(old)
        else:
            self.classes[self.classes.index(old)] = new
        self.answers = [
            Answer(row, new if before == old else before, new if label == old else label, asked)
            for row, before, label, asked in self.answers
        ]

    def _write(self, changes: list[tuple[int, str, str]]) -> None:
        """Write rows, labels and reasons to the disk, and only then to memory."""
        fs, length = self.windows.fs or 1.0, self.windows.shape[2]
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        who, names, starts = harmless(self.who), self.windows.recording, self.windows.start
        self.journal.append(
            [
                Row(harmless(str(names[row])), float(starts[row]) / fs, length / fs, label, who, now, asked)
                for row, label, asked in changes
            ]
        )
        for row, label, asked in changes:
            self._apply(row, label, asked)
        self.changed.notify_all()

    def answer(self, tab: str, row: int, label: str, stamp: int) -> None:
        """Save the answer of a tab; "" skips the question, which takes a label back, or leaves a picked window alone.

        Raises
        ------
        ConflictError : if the label of the window was set since the page saw it, as the stamp says
        """
        label = check_name(label) if label else ""
        with self._lock:
            self._check_stamp(row, stamp)
            picked, pending = self._picked.pop(tab, None), self._pending.get(tab) or self.question(tab)
            asked = pending.asked if pending.row == row and picked is None else "picked"
            if label or asked != "picked":
                self._write([(row, label, asked)])
            if asked != "picked":
                self._pending.pop(tab, None)

    def undo(self, tab: str, row: int, stamp: int) -> None:
        """Take back the last answer about a window, and ask the tab about it again; raises like `answer`."""
        with self._lock:
            self._check_stamp(row, stamp)
            last = next((answer for answer in reversed(self.answers) if answer.row == row), None)
            if last is None:
                raise PolyadicError("There is nothing to undo for this window.")
            self._write([(row, last.before, "undo")])
            (self._picked if last.asked == "picked" else self._pending)[tab] = Question(row, last.asked)

    def rename(self, old: str, new: str) -> None:
        """Rename a class; the name of another class merges both."""
        new = check_name(new)
        with self._lock:
            if old not in self.classes:
                raise PolyadicError(f"There is no class {old!r}.")
            rows = [row for row, label in enumerate(self.labels) if label == old]
            if rows:
                self._write([(row, new, "rename") for row in rows])
            else:
                self._replace_class(old, new)

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
        """Return what a tab is asked now: the window it picked, else its open question, else the next one."""
        with self._lock:
            if tab in self._picked:
                return self._picked[tab]
            if tab not in self._pending:
                self._pending[tab] = self._next({question.row for question in self._pending.values()})
            return self._pending[tab]

    def pick(self, tab: str, row: int) -> Question:
        """Let a tab answer about a window of its choice; its open question stays open."""
        with self._lock:
            self._picked[tab] = Question(row, "picked")
            return self._picked[tab]

    def _next(self, taken: set[int]) -> Question:
        asked = [answer for answer in self.answers if answer.asked != "picked"]
        number = len(asked) + len(taken)
        if (number + 1) % AGAIN == 0 and (number + 1) % EVERY:
            early = [answer.row for answer in self.answers[:-_PAUSE] if self.labels[answer.row]]
            again = {answer.row for answer in self.answers if answer.asked == "again"} | taken
            rows = sorted(set(early) - again)
            if rows:
                return Question(int(self._random.choice(rows)), "again")
        drawn = sum(answer.asked == "random" for answer in asked)
        drawn += sum(question.asked == "random" for question in self._pending.values())
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
            words = self.Z[rows], labels[rows], self.groups[rows]
            probe = Probe().fit(*words, self._statistics)
            likelihoods, fold = probe.left_out_likelihoods(*words, np.ones(len(rows), bool), self._statistics)
            drawn = np.isin(rows, random) & (fold >= 0)
            right = (probe.classes_[likelihoods.argmax(axis=1)] == labels[rows])[drawn].tolist()
            order = self.predictions.classifier  # of earlier labels, until `learn_order`
            order = order if order is not None and np.array_equal(order.classes_, probe.classes_) else None
            result = Predictions(version, self._estimate(right), probe.classes_, probe.predict_proba(self.Z), order)
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
        return {"count": count, "right": sum(right), "accuracy": sum(right) / count, "interval": [ends.low, ends.high]}

    def learn_order(self) -> None:
        """Learn the order of classes along recordings for the timeline, if it helps on subjects left out."""
        with self._lock:
            labels, predictions = np.array(self.labels), self.predictions
        if predictions.probabilities is None:
            return
        index = self.windows.index
        sizes = np.bincount(index.recording)
        labelled = np.unique(index.recording[labels != ""])
        chosen = labelled[np.cumsum(sizes[labelled]) <= _MOST_ALONG]
        rows = np.flatnonzero(np.isin(index.recording, chosen))
        classifier = None
        if set(labels[rows].tolist()) - {""} == set(predictions.classes.tolist()):
            found = WindowClassifier(self._features).fit(self.windows[rows], labels[rows], self.groups[rows])
            classifier = found if found.chain_ is not None and found.chain_.is_default else None
        with self._lock:
            if self.predictions is predictions:
                self.predictions = predictions._replace(classifier=classifier)

    def timeline(self, row: int) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the windows of a window's recording in order of time, and their predicted classes ("" if none)."""
        index, predictions = self.windows.index, self.predictions
        rows = np.flatnonzero(index.recording == index.recording[row])
        rows = rows[np.argsort(index.start[rows], kind="stable")]
        if predictions.probabilities is None:
            return rows, np.full(len(rows), "")
        probabilities = predictions.probabilities[rows]
        if predictions.classifier is not None:
            return rows, predictions.classifier.label_sequence(probabilities, self.windows[rows])[0]
        return rows, predictions.classes[probabilities.argmax(axis=1)]

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


def check_name(name: str) -> str:
    """Return the name of a class without outer spaces, or raise if it cannot be one."""
    name = " ".join(name.split())
    if not name or len(name) > _LONGEST_NAME:
        raise PolyadicError(f"The name of a class must have 1 to {_LONGEST_NAME} characters.")
    if re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", name) or harmless(name) != name or name == "-1":
        raise PolyadicError("The name of a class must not begin with =, +, -, @, or have control characters.")
    return name


def follow(session: Session, on_error: Callable[[str], None]) -> Thread:
    """Start a thread that refits the predictions whenever there are new answers."""

    def run() -> None:
        while True:
            with session.changed:
                session.changed.wait_for(lambda: session.predictions.version != session.version)
            try:
                session.refit()
                with session.changed:
                    idle = not session.changed.wait_for(
                        lambda: session.predictions.version != session.version, timeout=1.0
                    )
                if idle:
                    session.learn_order()
            except Exception as error:
                on_error(f"predictions failed: {error}")
                return

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread
