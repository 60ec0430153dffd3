"""Journals: an interrupted process loses at most the line it was writing."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyadic._util.json_lines import append_line, read_lines
from polyadic.errors import PolyadicError

FLOATS = st.floats(allow_nan=False)
VALUES = st.lists(st.one_of(st.integers(), st.text(), st.dictionaries(st.text(), FLOATS)))


@given(values=VALUES, last=st.text())
def test_values_are_read_in_the_order_in_which_they_were_appended(tmp_path_factory, values, last):
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    assert read_lines(path) == []
    for value in [*values, last]:
        append_line(path, value)
    assert read_lines(path) == [*values, last]
    assert path.read_bytes().count(b"\n") == len(values) + 1


def test_after_a_kill_at_any_byte_all_complete_lines_remain_and_the_journal_resumes(tmp_path):
    whole = [{"try": 1, "score": 0.5}, {"try": 2, "words": "a\nb"}, ["é", None]]
    text = b"".join((json.dumps(value) + "\n").encode() for value in whole)
    path = tmp_path / "j.jsonl"
    for size in range(len(text) + 1):
        path.write_bytes(text[:size])
        append_line(path, "new")
        complete = [
            value for number, value in enumerate(whole) if len(b"\n".join(text.split(b"\n")[: number + 1])) <= size
        ]
        assert read_lines(path) == [*complete, "new"], size


def test_paths_that_are_not_regular_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for use in (read_lines, lambda path: append_line(path, 1)):
        with pytest.raises(PolyadicError, match="pipe"):
            use(tmp_path / "pipe")
