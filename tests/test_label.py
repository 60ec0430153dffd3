"""Labelling without a browser: questions, answers, the estimate, the file, the server, and `fit --labels`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import polyadic
from starlette.testclient import TestClient

from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import probe
from polyadic.label import Journal, Questions, Session, apply_labels
from polyadic.label.journal import COLUMNS, Row, read_rows
from polyadic.label.server import build_app
from polyadic.label.session import ConflictError

SUBJECTS, EACH, LENGTH = 6, 60, 8


def people(seed: int = 0) -> tuple[Windows, np.ndarray, np.ndarray]:
    """Windows of six subjects, features in three clusters with an offset by subject, and the class of each."""
    rng = np.random.default_rng(seed)
    count = SUBJECTS * EACH
    subject, truth = np.repeat(np.arange(SUBJECTS), EACH), rng.integers(0, 3, count)
    Z = rng.normal(size=(count, 4)) + 5 * np.eye(4)[truth] + rng.normal(size=(SUBJECTS, 4))[subject]
    windows = Windows(
        rng.normal(size=(count, 2, LENGTH)),
        4.0,
        subject=[f"S{number}" for number in subject],
        recording=[f"night {number}" for number in subject],
        start=np.tile(np.arange(EACH) * LENGTH, SUBJECTS),
        channels=["<b>C3</b>", "EMG"],
        units=["uV", "mV"],
    )
    return windows, Z, np.array(["rest", "walk", "run"])[truth]


@pytest.fixture
def begin(tmp_path):
    """A function that starts a session on some windows, as after a restart if there was one on that file."""
    opened: dict[str, Journal] = {}

    def start(name: str = "labels.csv", rows: slice = slice(None)) -> tuple[Session, np.ndarray]:
        if name in opened:
            opened.pop(name).close()
        windows, Z, truth = people()
        opened[name] = Journal(tmp_path / name)
        return Session(windows[rows], Z[rows], opened[name], who="me"), truth[rows]

    yield start
    for journal in opened.values():
        journal.close()


def label(session: Session, truth: np.ndarray, count: int, tab: str = "tab") -> list[tuple[int, str]]:
    asked = []
    for _ in range(count):
        question = session.question(tab)
        session.answer(tab, question.row, truth[question.row], session.stamp(question.row))
        asked.append(tuple(question))
    return asked


# ------------------------------------------------------------------------------------------------ questions


def test_the_first_window_is_typical_and_the_next_are_the_farthest_from_all_before_among_new_subjects():
    windows, Z, _ = people()
    questions = Questions(Z, windows.subject)
    seen: list[int] = []
    for number in range(4):
        row = questions.cover(seen)
        if not seen:
            assert row == np.linalg.norm(Z - Z.mean(axis=0), axis=1).argmin()
        else:
            distance = np.min([np.linalg.norm(Z - Z[old], axis=1) for old in seen], axis=0)
            new = ~np.isin(windows.subject, windows.subject[seen])
            assert distance[row] == pytest.approx(distance[new].max(), rel=1e-5)
        seen.append(row)
        assert len(set(windows.subject[seen])) == number + 1


def test_every_fifth_window_is_drawn_at_random_and_uncertainty_counts_after_ten(begin):
    session, truth = begin()
    asked = label(session, truth, 10)
    session.refit()
    asked += label(session, truth, 20)
    kinds = [kind for _, kind in asked]
    assert [number for number, kind in enumerate(kinds, 1) if kind == "random"] == [5, 10, 15, 20, 25, 30]
    assert kinds[:4] == ["cover"] * 4
    assert kinds[10] == "unsure"
    drawn = [row for row, kind in asked if kind == "random"]
    assert drawn == session.questions.order[:6].tolist()  # from all windows, those with a label included


def test_the_most_uncertain_window_is_asked_or_an_uncertain_one_that_is_far():
    questions = Questions(np.array([[0.0], [1.0], [9.0], [20.0]]), np.zeros(4))
    probabilities = np.array([[1, 0], [0.5, 0.5], [0.6, 0.4], [1, 0]])
    assert questions.unsure([0], probabilities, far=False) == 1  # margins 0, 1, 0.8, 0
    assert questions.unsure([0], probabilities, far=True) == 2  # times distances 0, 1, 9, 20
    assert questions.unsure([0, 2], probabilities, far=True) == 1


# ------------------------------------------------------------------------------------------------- estimate


def test_the_estimate_uses_only_random_windows_predicted_by_probes_that_did_not_train_on_their_subject(
    begin, monkeypatch
):
    session, truth = begin()
    asked = label(session, truth, 60)
    for row in (3, 100, 200):
        session.pick("tab", row)
        session.answer("tab", row, "walk", session.stamp(row))
    seen = []
    train = probe._train

    def spy(data, *rest):
        seen.append(data.Z[data.codes >= 0])
        return train(data, *rest)

    monkeypatch.setattr(probe, "_train", spy)
    found = session.refit().estimate
    random = sorted({row for row, kind in asked if kind == "random"})
    assert found["count"] == len(random) == 12
    # The slow way: for each random window, which training sets have no window of its subject? Some must.
    rows = {session.Z[row].tobytes(): row for row in range(len(session.Z))}
    sets = [{session.groups[rows[line.tobytes()]] for line in Z} for Z in seen]
    for row in random:
        assert any(session.groups[row] not in subjects for subjects in sets)
    for end in found["interval"]:  # Wilson's equation
        spread = np.sqrt(end * (1 - end) / found["count"])
        assert abs(found["accuracy"] - end) == pytest.approx(1.959964 * spread) or end == 1


# -------------------------------------------------------------------------------------------------- the file


def test_a_restarted_session_knows_everything(begin):
    session, truth = begin()
    label(session, truth, 23)
    row = session.question("tab").row
    session.answer("tab", row, "", session.stamp(row))  # skipped
    session.rename("run", "sprint")
    before = (session.labels, session.classes, session.answers, session.counts(), session.question("tab"))
    session, _ = begin()
    assert (session.labels, session.classes, session.answers, session.counts()) == before[:-1]
    assert session.question("tab") == before[-1]
    assert session.question("tab").row != row


def test_a_last_line_that_was_cut_off_is_removed_and_all_others_stay(begin, tmp_path):
    session, truth = begin()
    label(session, truth, 5)
    session.journal.close()
    path = tmp_path / "labels.csv"
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert [row.label for row in read_rows(path)] == [row.label for row in session.journal.rows[:4]]
        journal = Journal(path)
        journal.append([Row("night 0", 0.0, 2.0, "rest")])
        journal.close()
        assert path.read_bytes().splitlines()[:5] == whole.splitlines()[:5]
        assert read_rows(path)[4].label == "rest"


def test_a_label_is_synced_before_it_counts_and_a_full_disk_changes_nothing(begin, monkeypatch):
    session, truth = begin()
    label(session, truth, 2)
    content = session.journal.path.read_bytes()
    question = session.question("tab")

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        session.answer("tab", question.row, "rest", 0)
    assert session.labels[question.row] == ""
    assert session.journal.path.read_bytes() == content


def test_two_servers_cannot_write_one_file_and_other_tables_are_refused(tmp_path):
    journal = Journal(tmp_path / "labels.csv")
    with pytest.raises(PolyadicError, match="another polyadic label"):
        Journal(tmp_path / "labels.csv")
    journal.close()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PolyadicError, match="not written by polyadic label"):
        Journal(tmp_path / "other.csv")


def test_the_file_has_the_columns_and_labels_of_other_windows_are_refused(begin, tmp_path):
    session, truth = begin()
    ((row, _),) = label(session, truth, 1)
    line = next(csv.DictReader((tmp_path / "labels.csv").read_text().splitlines()))
    assert tuple(line) == COLUMNS
    assert (line["recording"], float(line["start"]), float(line["duration"])) == (
        f"night {row // EACH}",
        row % EACH * 2.0,
        2.0,
    )
    assert (line["label"], line["who"]) == (truth[row], "me")
    with pytest.raises(PolyadicError, match="labels of other windows"):
        begin(rows=slice(EACH, None) if row < EACH else slice(EACH))


# ---------------------------------------------------------------------------------------------------- labels


def test_the_last_row_of_a_window_counts_and_rows_without_a_window_are_named(tmp_path):
    windows, _, _ = people()
    path = tmp_path / "labels.csv"
    path.write_text(
        "recording,start,duration,label\nnight 0,2,2,rest\nnight 0,2,2,walk\nnight 1,4,2,rest\nnight 1,4,2,\n"
        "night 2,0,2,rest\nnight 9,0,2,rest\n"
    )
    found, note = apply_labels(path, windows)
    assert np.flatnonzero(found.label >= 0).tolist() == [1, 2 * EACH]
    assert [found.classes[code] for code in found.label[[1, 2 * EACH]]] == ["walk", "rest"]
    assert "1 of 6 rows match no window, such as night 9 at 0 s" in note
    path.write_text("recording,start,duration,label\nnight 0,2,2, rest \n")
    assert apply_labels(path, windows)[0].classes == ("rest",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "recording,start,duration,label\nnight 0,2,30,rest\n",
            "1 of 1 rows match no window, .* cut by the same --seconds",
        ),
        ("recording,start,duration,label\nnight0.csv,2,2,rest\n", r"are called 'night 0', 'night 1', 'night 2', … \("),
        ("recording,start,duration,label\n", r"^labels\.csv has no labels: rows of recording, start, duration, label$"),
        ("", r"^labels\.csv has no labels"),
        ("recording,start,duration,label\nnight 0,2\n", r"^labels\.csv, line 2: start and duration must be seconds"),
        (
            "recording;start;duration;label\n",
            "no column 'recording', but 'recording;start;duration;label': .* by commas",
        ),
        ("recording,start,label\nnight 0,2,rest\n", r"^labels\.csv has no column 'duration'"),
    ],
)
def test_tables_of_labels_that_cannot_be_used_are_refused(text, message, tmp_path):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(PolyadicError, match=message):
        apply_labels(tmp_path / "labels.csv", people()[0])


def write_recordings(folder: Path) -> None:
    """Three CSV recordings of 40 windows of one second; odd windows are faster than even ones."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(3):
        time = np.arange(40 * 64) / 64
        wave = np.sin(2 * np.pi * np.where(time.astype(int) % 2, 14, 4) * time)
        rows = np.column_stack([time, wave + 0.1 * rng.normal(size=len(time)), 0.2 * rng.normal(size=len(time))])
        text = "\n".join(",".join(f"{value:.7f}" for value in row) for row in rows)
        (folder / f"p{number}.csv").write_text(f"time [s],a [uV],b [uV]\n{text}\n")


def test_fit_reads_the_labels_and_export_writes_events(tmp_path):
    write_recordings(tmp_path / "recordings")
    lines = ["recording,start,duration,label,who,time,asked"]
    lines += [f"p{n},{s},1,{'fast' if s % 2 else 'slow'},me,,random" for n in range(3) for s in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    words = ["recordings", "--seconds", "1"]
    fitted = polyadic(
        "fit", *words, "--labels", "labels.csv", "--probe", "--rank", "4", "--sweeps", "5", "--json", cwd=tmp_path
    )
    result = json.loads(fitted.stdout)
    assert (result["classes"], result["labelled"]) == (["fast", "slow"], 36)
    plain = polyadic("fit", *words, "--labels", "labels.csv", "--probe", "--rank", "4", "--force", cwd=tmp_path).stdout
    hint = plain[plain.index("polyadic evaluate") :].split()[1:]
    assert hint == ["evaluate", "model.safetensors", "recordings", "--labels", "labels.csv"]
    scored = json.loads(polyadic(*hint, "--json", cwd=tmp_path).stdout)
    assert (scored["windows"], scored["subjects"]) == (36, 3)
    assert scored["balanced_accuracy"] > 0.9
    polyadic("report", "model.safetensors", "--data", "recordings", "--labels", "labels.csv", cwd=tmp_path)
    assert "on subjects it was not trained" in " ".join((tmp_path / "report.html").read_text("utf-8").split())
    polyadic("predict", "model.safetensors", "recordings", "-o", "predicted.csv", cwd=tmp_path)
    rows = list(csv.DictReader((tmp_path / "predicted.csv").read_text().splitlines()))
    right = [row["label"] == ("fast" if float(row["start"]) % 2 else "slow") for row in rows]
    assert np.mean(right) > 0.9
    polyadic("label", *words, "-o", "labels.csv", "--export", "tsv", cwd=tmp_path)
    events = (tmp_path / "labels-events" / "p1_events.tsv").read_text().splitlines()
    assert events[0].startswith("onset\tduration\ttrial_type")
    assert [line.split("\t")[:3] for line in events[1:3]] == [["0", "1", "slow"], ["1", "1", "fast"]]
    failed = polyadic("fit", *words, "--labels", "labels.csv", "-o", "m.safetensors", cwd=tmp_path, code=1)
    assert "--labels needs --probe" in failed.stderr
    failed = polyadic("report", "model.safetensors", "--labels", "labels.csv", "-o", "r.html", cwd=tmp_path, code=1)
    assert "--labels needs the windows" in failed.stderr
    lines = [line.replace("slow", "Fast") for line in lines]
    (tmp_path / "capitals.csv").write_text("\n".join(lines) + "\n")
    words = ("model.safetensors", "recordings", "--label", "a", "--labels", "capitals.csv")
    told = polyadic("evaluate", *words, "--folds", "3", cwd=tmp_path).stderr
    assert "capitals.csv replaces the labels of the recordings" in told
    assert "Classes differ only in capitals: 'Fast', 'fast'." in told
    words = ("model.safetensors", "recordings", "--own-probe", "--labels")
    scored = json.loads(polyadic("evaluate", *words, "labels.csv", "--json", cwd=tmp_path).stdout)
    assert scored["tested"] == 36
    assert min(scored["balanced_accuracy"], scored["along"]["balanced_accuracy"]) > 0.9
    (tmp_path / "others.csv").write_text("recording,start,duration,label\np0,0,1,walk\np1,0,1,rest\n")
    failed = polyadic("evaluate", *words, "others.csv", cwd=tmp_path, code=1)
    assert "the model knows the classes 'fast', 'slow', but the windows have 'rest', 'walk'" in failed.stderr
    told = ("--data", "recordings", "--labels", "labels.csv")
    polyadic("export", "model.safetensors", "-o", "card/", *told, cwd=tmp_path)
    assert "Balanced accuracy" in (tmp_path / "card" / "README.md").read_text("utf-8").replace("balanced", "Balanced")
    failed = polyadic("evaluate", "model.safetensors", "recordings", cwd=tmp_path, code=1)
    assert "recordings has none: give those of polyadic label with --labels" in failed.stderr


def test_export_writes_events_of_each_person_of_one_table(tmp_path):
    rows = "".join(f"{second / 4},{second % 7},{who}\n" for who in ("anna", "ben") for second in range(40))
    (tmp_path / "all.csv").write_text(f"time,x,who\n{rows}")
    (tmp_path / "labels.csv").write_text("recording,start,duration,label\nall/anna,0,2,rest\nall/ben,2,2,walk\n")
    options = ("--seconds", "2", "--subject", "who", "-o", "labels.csv", "--export", "tsv")
    polyadic("label", "all.csv", *options, cwd=tmp_path)
    written = {path.name: path.read_text().split()[3:] for path in (tmp_path / "labels-events").iterdir()}
    assert written == {"all_anna_events.tsv": ["0", "2", "rest"], "all_ben_events.tsv": ["2", "2", "walk"]}


# ---------------------------------------------------------------------------------------------------- server


@pytest.fixture
def client(begin):
    session, _ = begin()
    app = build_app(session, "secret")
    with TestClient(app, base_url="http://127.0.0.1:8000") as opened:
        opened.session = session
        yield opened


POST = {"origin": "http://127.0.0.1:8000", "content-type": "application/json"}


def test_everything_is_below_the_token(client):
    assert client.get("/secret/").status_code == 200
    for path in ("/", "/page.js", "/wrong/", "/wrong/api/start", "/api/start", "/secre/"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("host", ["evil.example:8000", "127.0.0.1.evil.example:8000", ""])
def test_other_hosts_are_refused(client, host):
    assert client.get("/secret/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_answers_from_other_pages_are_refused_and_change_nothing(client, headers):
    body = json.dumps({"tab": "t", "row": 0, "label": "x", "stamp": 0})
    assert client.post("/secret/api/answer", content=body, headers={**POST, **headers}).status_code == 403
    without = {"content-type": "application/json"}
    assert client.post("/secret/api/answer", content=body, headers=without).status_code == 403
    assert not client.session.journal.rows


def test_every_answer_has_a_policy_without_other_sources_and_no_cross_origin_header(client):
    for path in ("/secret/", "/secret/page.js", "/secret/api/start", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'; script-src 'self';" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert not [name for name in headers if name.startswith("access-control")]
    page = client.get("/secret/").text
    assert "http" not in page.replace("http-equiv", "")
    script = client.get("/secret/page.js").text
    assert "innerHTML" not in script
    assert "insertAdjacentHTML" not in script


def test_a_label_is_saved_by_the_page_and_the_next_question_comes(client):
    question = client.get("/secret/api/question?tab=t").json()
    body = {"tab": "t", "row": question["row"], "label": "rest", "stamp": question["stamp"]}
    assert client.post("/secret/api/answer", json=body, headers=POST).json() == 1
    assert read_rows(client.session.journal.path)[0].label == "rest"
    assert client.get("/secret/api/question?tab=t").json()["row"] != question["row"]
    assert client.post("/secret/api/answer", json=body, headers=POST).status_code == 409
    for wrong in ({}, {**body, "row": 10**6}, {**body, "row": "x"}, {**body, "label": "=1"}):
        assert client.post("/secret/api/answer", json=wrong, headers=POST).status_code in (400, 409)
    assert len(client.session.journal.rows) == 1


def test_earlier_windows_return_and_self_consistency_is_counted(begin):
    session, truth = begin()
    asked = label(session, truth, 30)
    again = [(row, number) for number, (row, kind) in enumerate(asked) if kind == "again"]
    assert [number + 1 for _, number in again] == [12, 24]
    assert all(row in [earlier for earlier, _ in asked[: number - 5]] for row, number in again)
    counts = session.counts()
    assert counts["repeated"] >= 2
    assert counts["same"] == counts["repeated"]
    while session.question("tab").asked != "again":
        label(session, truth, 1)
    row = session.question("tab").row
    session.answer("tab", row, "other", session.stamp(row))
    after = session.counts()
    assert after["repeated"] - after["same"] == 1


def test_a_sample_of_many_windows_is_compared_and_all_are_drawn_from():
    rng = np.random.default_rng(0)
    questions = Questions(rng.normal(size=(9000, 2)), np.arange(9000) % 3)
    assert len(questions.sample) == 3500
    assert sorted(questions.order) == list(range(9000))


def test_all_windows_can_be_labelled(begin):
    session, truth = begin(rows=slice(7))
    for _ in range(40):
        label(session, truth, 1)
    assert all(session.labels)


def test_labels_that_no_feature_can_predict_give_an_accuracy_near_chance(begin):
    session, truth = begin()
    noise = np.random.default_rng(1).choice(["a", "b", "c"], len(truth))
    label(session, noise, 200)
    found = session.refit().estimate
    assert found["count"] >= 35
    assert found["interval"][0] < 0.45


def test_it_is_too_early_to_say_with_few_random_windows_one_class_or_one_subject(begin):
    session, truth = begin()
    label(session, truth, 45)
    assert session.refit().estimate["too_early"] == "9 of 10 randomly drawn windows"
    label(session, truth, 5)
    assert "too_early" not in session.refit().estimate
    single, truth = begin("one.csv", slice(EACH))
    label(single, truth, 55)
    assert single.refit().estimate["too_early"] == "labels of two subjects are needed"
    same, truth = begin("same.csv")
    label(same, np.full(len(truth), "rest"), 55)
    assert same.refit().estimate["too_early"] == "labels of two classes are needed"


def test_the_timeline_has_the_windows_of_the_recording_in_order_and_their_predictions(begin):
    session, truth = begin()
    label(session, truth, 30)
    session.refit()
    session.learn_order()
    rows, names = session.timeline(2 * EACH + 5)
    assert rows.tolist() == list(range(2 * EACH, 3 * EACH))
    assert (names == truth[rows]).mean() > 0.8


def test_undo_appends_a_row_with_the_label_before_and_asks_again(begin):
    session, truth = begin()
    first, second = label(session, truth, 2)
    session.undo("tab", second[0], 1)
    assert session.question("tab") == second
    session.undo("tab", first[0], 1)
    assert session.question("tab") == first
    assert not any(session.labels)
    assert [row.asked for row in session.journal.rows] == ["cover", "cover", "undo", "undo"]
    session.pick("tab", first[0])
    session.answer("tab", first[0], "a", session.stamp(first[0]))
    session.pick("tab", first[0])
    session.answer("tab", first[0], "b", session.stamp(first[0]))
    session.undo("tab", first[0], session.stamp(first[0]))
    assert session.labels[first[0]] == "a"


def test_renaming_keeps_the_key_and_the_name_of_another_class_merges_both(begin):
    session, truth = begin()
    label(session, truth, 20)
    place = session.classes.index("walk")
    session.rename("walk", "stroll")
    assert session.classes[place] == "stroll"
    assert "walk" not in session.labels
    total = session.labels.count("stroll") + session.labels.count("rest")
    session.rename("stroll", "rest")
    assert session.labels.count("rest") == total
    assert sorted(session.classes) == ["rest", "run"]
    lines = read_rows(session.journal.path)
    last = {(row.recording, row.start): row.label for row in lines}
    assert "stroll" not in last.values()
    assert begin()[0].classes == session.classes


def test_a_window_answered_in_another_tab_is_not_overwritten(begin):
    session, _ = begin()
    one, two = session.question("one"), session.question("two")
    assert one.row != two.row
    session.pick("two", one.row)
    session.answer("two", one.row, "rest", 0)
    with pytest.raises(ConflictError, match="another tab"):
        session.answer("one", one.row, "walk", 0)
    with pytest.raises(ConflictError):
        session.undo("one", one.row, 0)
    assert session.labels[one.row] == "rest"


def test_a_picked_window_leaves_the_question_open_and_skipping_it_keeps_its_label(begin):
    session, truth = begin()
    (row, _), *_ = label(session, truth, 3)
    question, rows = session.question("tab"), len(session.journal.rows)
    session.pick("tab", row)
    session.answer("tab", row, "", session.stamp(row))
    assert session.labels[row] == truth[row]
    assert len(session.journal.rows) == rows
    assert session.question("tab") == question


@pytest.mark.parametrize("name", ["", " ", "x" * 61, "=1+1", "-1", "a\x07b", "@x"])
def test_names_that_are_no_classes_are_refused(begin, name):
    session, _ = begin()
    row = session.question("tab").row
    if name.strip():
        with pytest.raises(PolyadicError, match="name of a class"):
            session.answer("tab", row, name, 0)
    session.answer("tab", row, "rest", 0)
    with pytest.raises(PolyadicError, match="name of a class"):
        session.rename("rest", name)


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_this_machine_may_be_addressed_by_its_names(client, host):
    assert client.get("/secret/", headers={"host": host}).status_code == 200


def test_signals_have_their_context_and_gaps_are_not_a_number(client):
    import base64

    found = client.get("/secret/api/window?row=0&first=-8&last=16").json()
    values = np.frombuffer(base64.b64decode(found["values"]), "<f4").reshape(2, 24, 2)
    X = client.session.windows.X
    assert np.isnan(values[:, :8]).all()
    np.testing.assert_allclose(values[:, 8:, 0], np.hstack([X[0], X[1]]), rtol=1e-6)
    assert client.get("/secret/api/window?row=0&first=0&last=99999").status_code == 400


def test_suggestions_come_only_if_asked_for_and_never_for_random_or_repeated_windows(client):
    session, (_, _, truth) = client.session, people()
    label(session, truth, 20)
    session.refit()
    kinds = set()
    for _ in range(30):
        asked = session.question("t").asked
        kinds.add(asked)
        assert client.get("/secret/api/question?tab=t").json()["suggestion"] == ""
        shown = client.get("/secret/api/question?tab=t&suggest=1").json()
        assert bool(shown["suggestion"]) == (asked not in ("random", "again"))
        assert shown["asked"] != "again"  # whoever knows that it is repeated remembers
        assert shown["label"] == ""
        label(session, truth, 1, tab="t")
    assert {"random", "again", "unsure"} <= kinds
