"""Files written with edfio are read digit by digit, and damaged files are errors."""

from __future__ import annotations

import tracemalloc

import edfio
import numpy as np
import pytest

from polyadic.data.readers.edf import EdfFile
from polyadic.data.recordings import Annotation, Segment, Unread, resample_polyphase, window_starts
from polyadic.errors import DataError

UNICODE = "Schläft – 睡眠"
NOTES = (
    Annotation(0.5, 0.0, "lights off"),
    Annotation(0.75, 0.0, "again"),
    Annotation(0.75, 2.5, UNICODE),
    Annotation(4.25, 30.0, "Sleep stage 2"),
)


def read_edf(path, **options):
    return EdfFile(path).read(**options).in_memory()


def annotations_of(path):
    return EdfFile(path).annotations


def edf_signal(digits, fs=40.0, label="A", **settings):
    settings = {"physical_range": (-500, 500), "digital_range": (-2048, 2047), "physical_dimension": "uV"} | settings
    return edfio.EdfSignal.from_digital(np.asarray(digits, np.int16), fs, label=label, **settings)


def bdf_signal(digits, fs=40.0, label="A", **settings):
    settings = {"physical_range": (-262144, 262143), "physical_dimension": "uV"} | settings
    return edfio.BdfSignal.from_digital(np.asarray(digits, np.int32), fs, label=label, **settings)


def some_digits(count, seed=0, highest=2047):
    return np.random.default_rng(seed).integers(-highest - 1, highest + 1, count)


def written(path, signals, notes=None, kind=edfio.Edf, **settings):
    if notes is not None:
        notes = [edfio.EdfAnnotation(note.onset, note.duration or None, note.text) for note in notes]
    kind(signals, annotations=notes, data_record_duration=1 if signals else None, **settings).write(path)
    return path


@pytest.fixture
def plus(tmp_path):
    """An EDF+C file of some 3 kB: two signals of 40 Hz, eight records of a second, and `NOTES`."""
    signals = [edf_signal(some_digits(320, seed), label=label) for seed, label in enumerate("AB")]
    return written(tmp_path / "plus.edf", signals, NOTES)


def patched(path, at, new):
    """Return the file with some bytes overwritten."""
    raw = bytearray(path.read_bytes())
    raw[at : at + len(new)] = new
    path.write_bytes(raw)
    return path


def exchanged(path, old, new):
    """The file with one list of annotations in another's place; zeros fill what is over."""
    end = b"" if old.endswith(b"\x14") else b"\x14"
    raw = path.read_bytes()
    assert raw.count(old + end) == 1
    path.write_bytes(raw.replace(old + end, (new + end).ljust(len(old + end), b"\x00")))
    return path


def field(signals, name, number):
    """Return the position of a signal's field in the header."""
    before = {"label": 0, "unit": 96, "bottom": 104, "top": 112, "low": 120, "high": 128, "samples": 216}[name]
    return 256 + signals * before + number * (16 if name == "label" else 8)


def discontinuous(path, onsets):
    """The file with other onsets of its records, and the header's word that it has gaps."""
    raw = bytearray(path.read_bytes())
    width = 3 if raw[0] == 0xFF else 2
    count = int(raw[252:256])
    lengths = [width * int(raw[(at := field(count, "samples", i)) : at + 8]) for i in range(count)]
    raw[196:197] = b"D"
    for record, onset in enumerate(onsets):
        start = 256 * (count + 1) + record * sum(lengths) + sum(lengths[:-1])
        block = bytes(raw[start : start + lengths[-1]])
        block = f"+{onset}\x14\x14".encode() + block[block.index(b"\x00") :]
        block = block[: lengths[-1]].ljust(lengths[-1], b"\x00")
        assert block.endswith(b"\x00")
        raw[start : start + lengths[-1]] = block
    path.write_bytes(raw)
    return path


# What a good file holds


def test_values_and_names_are_those_of_the_file(tmp_path):
    first, second = some_digits(200), some_digits(200, 1)
    path = written(
        tmp_path / "night.edf",
        [
            edf_signal(first, label="EEG Fpz-Cz"),
            edf_signal(second, label="Temp", physical_range=(34, 40.2), physical_dimension="degC"),
        ],
    )
    recording = read_edf(path)
    expected = [signal.data for signal in edfio.read_edf(path).signals]
    np.testing.assert_allclose(recording.signal, expected, rtol=1e-6, atol=1e-5)
    assert (recording.channels, recording.units) == (("EEG Fpz-Cz", "Temp"), ("uV", "degC"))
    assert (recording.name, recording.subject, recording.fs) == ("night", "night", 40.0)
    assert (recording.annotations, recording.segments) == ((), (Segment(0, 0.0),))


def test_24_bit_samples_of_bdf_are_read_as_values(tmp_path):
    digits = some_digits(200, highest=2**23 - 1)
    digits[:2] = -(2**23), 2**23 - 1
    recording = read_edf(written(tmp_path / "a.bdf", [bdf_signal(digits)], kind=edfio.Bdf))
    expected = np.array([edfio.read_bdf(tmp_path / "a.bdf").signals[0].data])
    assert recording.signal.dtype == np.float32
    np.testing.assert_allclose(recording.signal, expected, rtol=1e-6)
    assert recording.signal[0, :2].tolist() == [-262144.0, 262143.0]


def test_annotations_come_with_durations_and_any_script_and_without_timekeeping(plus):
    assert read_edf(plus).annotations == NOTES
    assert annotations_of(plus) == NOTES


def test_a_hypnogram_of_annotations_only_is_read(tmp_path):
    stages = tuple(Annotation(30.0 * i, 30.0, f"Sleep stage {stage}") for i, stage in enumerate("W12R"))
    path = written(tmp_path / "hypnogram.edf", [], stages)
    assert annotations_of(path) == stages
    with pytest.raises(DataError, match=r"hypnogram\.edf: must have signals, but has only annotations"):
        read_edf(path)


@pytest.mark.parametrize("first", [b"+30\x14\x14\x00", b""])
def test_a_hypnogram_that_begins_late_or_leaves_timekeeping_out_keeps_all_stages_and_their_times(tmp_path, first):
    stages = (Annotation(30.0, 30.0, "Sleep stage W"), Annotation(60.0, 30.0, "Sleep stage 1"))
    path = written(tmp_path / "hypnogram.edf", [], stages)
    exchanged(path, b"+0\x14\x14\x00+30\x1530\x14Sleep stage W", first + b"+30\x1530\x14Stage W")
    assert annotations_of(path) == (Annotation(30.0, 30.0, "Stage W"), stages[1])


def test_labels_and_units_beyond_ascii_are_read_in_utf_8_and_in_latin_1(plus):
    patched(plus, field(3, "unit", 0), b"\xb5V")
    patched(plus, field(3, "unit", 1), "°C".encode())
    patched(plus, field(3, "label", 0), "Größe".encode())
    got = read_edf(plus, channels=["Größe", "B"])
    assert (got.units, got.channels) == (("uV", "°C"), ("Größe", "B"))
    assert got.signal.shape == (2, 320)


# Rates


@pytest.fixture
def mixed(tmp_path):
    """Three signals of 100, 20 and 1 Hz, for 10 s."""
    signals = [edf_signal(some_digits(10 * fs, fs), float(fs), f"S{fs}") for fs in (20, 100, 1)]
    return written(tmp_path / "mixed.edf", signals)


def test_mixed_rates_are_an_error_that_lists_them(mixed):
    with pytest.raises(DataError, match=r"mixed\.edf.*S20 20 Hz, S100 100 Hz, S1 1 Hz.*not at 100 Hz"):
        read_edf(mixed)
    assert read_edf(mixed, channels=["S20"]).fs == 20
    assert read_edf(mixed, channels=["S20"], fs=20).fs == 20


@pytest.mark.parametrize("fs", [None, 200])
def test_hold_repeats_the_samples_of_slow_channels(mixed, fs):
    recording = read_edf(mixed, fs=fs, resample="hold")
    target = fs or 100
    assert (recording.fs, recording.signal.shape) == (target, (3, 10 * target))
    for row, own in enumerate((20, 100, 1)):
        expected = read_edf(mixed, channels=[f"S{own}"]).signal[0]
        assert np.array_equal(recording.signal[row], expected[np.arange(10 * target) * own // target])


def test_polyphase_gives_values_at_any_rate(mixed):
    recording = read_edf(mixed, fs=50, resample="polyphase")
    assert (recording.fs, recording.signal.dtype, recording.signal.shape) == (50, np.float32, (3, 500))
    for row, own in enumerate((20, 100, 1)):
        values = edfio.read_edf(mixed).signals[row].data
        np.testing.assert_allclose(recording.signal[row], resample_polyphase(values, own, 50), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("resample", [{"S20": "hold", "S1": "hold"}, "polyphase"])
@pytest.mark.parametrize("channels", [None, ["S1", "S20"]])
def test_samples_that_are_read_later_are_the_same(mixed, resample, channels):
    whole = read_edf(mixed, channels=channels, resample=resample)
    later = EdfFile(mixed).read(channels, resample=resample)
    assert isinstance(later.signal, Unread)
    assert (later.signal.dtype, later.segments) == (whole.signal.dtype, whole.segments)
    np.testing.assert_array_equal(later.in_memory().signal, whole.signal)
    for size in (7, 64, 1000):
        count = later.signal.shape[1]
        parts = [later.read(first, min(first + size, count)) for first in range(0, count, size)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole.signal)


# Gaps

ONSETS = [0, 1, 2, 10, 11, 20.5, 21.5, 40]
GAPS = ((0, 0.0), (3, 10.0), (5, 20.5), (7, 40.0))


@pytest.mark.parametrize("kind", ["edf", "bdf"])
def test_a_discontinuous_file_has_a_segment_for_each_unbroken_stretch(tmp_path, kind):
    make, file = {"edf": (edf_signal, edfio.Edf), "bdf": (bdf_signal, edfio.Bdf)}[kind]
    notes = (*NOTES, Annotation(20.75, 1.0, "after two gaps"))
    path = written(tmp_path / f"a.{kind}", [make(some_digits(320))], notes, kind=file)
    digits = read_edf(path).signal
    recording = read_edf(discontinuous(path, ONSETS))
    assert recording.segments == tuple(Segment(40 * record, onset) for record, onset in GAPS)
    assert np.array_equal(recording.signal, digits)
    assert recording.annotations == notes
    assert window_starts(recording, 50).tolist() == [0, 50, 120, 200]


def test_onsets_less_than_half_a_sample_off_make_no_gap_and_more_make_one(plus):
    near = [0, 1.012, 2.0, 3, 4, 5, 6, 7]
    assert len(read_edf(discontinuous(plus, near)).segments) == 1
    far = [0, 1.013, 2.013, 3.013, 4.013, 5.013, 6.013, 7.013]
    assert read_edf(discontinuous(plus, far)).segments == (Segment(0, 0.0), Segment(40, 1.013))


def test_records_that_overlap_are_an_error(plus):
    with pytest.raises(DataError, match=r"data record 4 must begin after .* ends at 3 s, but begins at 2\.5 s"):
        read_edf(discontinuous(plus, [0, 1, 2, 2.5, 4, 5, 6, 7]))


def test_a_discontinuous_file_must_tell_the_onset_of_every_record(plus, tmp_path):
    raw = plus.read_bytes()
    with pytest.raises(DataError, match="must have onsets"):
        read_edf(patched(discontinuous(plus, ONSETS), raw.index(b"+3\x14\x14"), b"\x00" * 16))
    plain = written(tmp_path / "plain.edf", [edf_signal(some_digits(40))])
    with pytest.raises(DataError, match="must have onsets"):
        read_edf(patched(plain, 192, b"EDF+D"))


# Damage

DAMAGE = {
    "no bytes at all": (lambda raw: b"", "must begin with '0'"),
    "no headers of signals": (lambda raw: raw[:600], "damaged or incomplete"),
    "cut by a record": (lambda raw: raw[: -(len(raw) - 1024) // 8], "indicates 8 data records, but file contains 7"),
    "huge records": (lambda raw: put(raw, 236, b"99999999"), "indicates 99999999 data records, but file contains 8"),
    "huge signals": (lambda raw: put(put(raw, 252, b"9999"), 184, b"2560000 "), "damaged or incomplete"),
    "records of nan": (lambda raw: put(raw, 244, b"nan     "), "do not give a valid sampling rate"),
    "values of one value": (lambda raw: put(raw, field(3, "bottom", 1), b"500     "), "ranges of 'B' must be numbers"),
    "onset not a number": (lambda raw: put(raw, raw.index(b"+3\x14"), b"+x"), "annotations of data record 4"),
}


def put(raw, at, new):
    return raw[:at] + new + raw[at + len(new) :]


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_an_error_that_names_it_and_says_what_was_expected(plus, kind):
    change, message = DAMAGE[kind]
    plus.write_bytes(change(plus.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        read_edf(plus)
    assert str(caught.value).startswith("plus.edf: ")
    assert str(plus.parent) not in str(caught.value)


def test_a_header_of_huge_numbers_takes_no_memory(plus):
    whole = plus.read_bytes()
    tracemalloc.start()
    for at, new in ((236, b"99999999"), (field(3, "samples", 0), b"99999999"), (252, b"9999"), (184, b"99999999")):
        plus.write_bytes(put(whole, at, new))
        with pytest.raises(DataError):
            read_edf(plus)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22
