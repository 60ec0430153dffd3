"""Downloads are complete and correct, or raise an error; existing files are kept and not downloaded again."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
from polyadic.data.download import Source, download, sources

from polyadic.data import download as module
from polyadic.errors import DataError, PolyadicError

FILES = {
    "sleep-cassette/SC4001E0-PSG.edf": bytes(range(256)) * 9000,
    "sleep-cassette/SC4001EC-Hypnogram.edf": b"W 1 2 3",
    "sleep-cassette/SC4002E0-PSG.edf": b"second night" * 5000,
    "sleep-cassette/SC4002EC-Hypnogram.edf": b"W 1 2",
    "sleep-cassette/SC4011E0-PSG.edf": b"another person" * 5000,
    "sleep-cassette/SC4011EH-Hypnogram.edf": b"W R",
}
OTHERS = {"sleep-telemetry/ST7011J0-PSG.edf": b"not of this part", "SC-subjects.xls": b"table"}


class Server:
    """A folder on the web of which single files can be missing, cut off or wrong."""

    def __init__(self, files):
        self.files = dict(files)
        self.cut = set()
        self.asked = Counter()
        handler = type("Handler", (Handler,), {"owner": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}/files/x/1.0/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    owner: Server

    def do_GET(self):
        name = unquote(self.path).removeprefix("/files/x/1.0/")
        self.owner.asked[name] += 1
        content = self.owner.files.get(name)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if name in self.owner.cut else content)

    def log_message(self, *_):
        pass


def sums_of(files):
    return "".join(f"{hashlib.sha256(content).hexdigest()} {name}\n" for name, content in files.items()).encode()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "_PAUSES", (0.0,))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pytest.importorskip("pooch")


@pytest.fixture
def server():
    files = {**FILES, **OTHERS}
    server = Server({**files, "SHA256SUMS.txt": sums_of(files)})
    yield server
    server.close()


def there(root):
    """All files below a folder but the list of checksums: content by path."""
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found.pop("SHA256SUMS.txt", None)
    return found


def test_all_files_of_the_dataset_come_and_no_others(server, tmp_path):
    root = tmp_path / "new" / "folder"
    assert download("sleep_edf", root, base=server.base) == root
    assert there(root) == FILES
    assert server.asked == Counter([*FILES, "SHA256SUMS.txt"])


def test_files_that_are_there_are_not_fetched_again(server, tmp_path):
    download("sleep_edf", tmp_path, base=server.base.rstrip("/"))
    server.asked.clear()
    download("sleep_edf", tmp_path, base=server.base)
    assert server.asked == Counter(["SHA256SUMS.txt"])
    assert there(tmp_path) == FILES


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"\x00" + content[1:], lambda _: b""])
def test_a_damaged_file_is_fetched_again_and_only_that(damage, server, tmp_path):
    download("sleep_edf", tmp_path, base=server.base)
    server.asked.clear()
    name = "sleep-cassette/SC4002E0-PSG.edf"
    (tmp_path / name).write_bytes(damage(FILES[name]))
    download("sleep_edf", tmp_path, base=server.base)
    assert server.asked == Counter([name, "SHA256SUMS.txt"])
    assert there(tmp_path) == FILES


def test_an_interrupted_download_leaves_no_partial_file_and_resumes(server, tmp_path):
    name = "sleep-cassette/SC4001E0-PSG.edf"
    server.cut.add(name)
    with pytest.raises(PolyadicError, match=r"SC4001E0-PSG.edf cannot be fetched.*kept") as caught:
        download("sleep_edf", tmp_path, base=server.base)
    assert server.base in str(caught.value)
    assert server.asked[name] == 2
    kept = there(tmp_path)
    assert name not in kept
    assert all(FILES[each] == content for each, content in kept.items())
    server.cut.clear()
    server.asked.clear()
    download("sleep_edf", tmp_path, base=server.base)
    assert server.asked == Counter([*(FILES.keys() - kept.keys()), "SHA256SUMS.txt"])
    assert there(tmp_path) == FILES


def test_a_connection_that_breaks_once_is_tried_again(server, tmp_path, monkeypatch):
    name = "sleep-cassette/SC4002E0-PSG.edf"
    server.cut.add(name)
    fetch = module._fetch

    def mended(get, address, target, sha, tell):
        try:
            fetch(get, address, target, sha, tell)
        finally:
            if address.endswith(name):
                server.cut.clear()

    monkeypatch.setattr(module, "_fetch", mended)
    download("sleep_edf", tmp_path, base=server.base)
    assert server.asked[name] == 2
    assert there(tmp_path) == FILES


def test_a_file_that_is_wrong_on_the_server_is_not_kept(server, tmp_path):
    name = "sleep-cassette/SC4002E0-PSG.edf"
    server.files[name] = FILES[name].replace(b"second", b"SECOND")
    with pytest.raises(DataError, match=r"SC4002E0-PSG.edf must have SHA-256 [0-9a-f]{64}, but has"):
        download("sleep_edf", tmp_path, base=server.base)
    assert name not in there(tmp_path)
    assert not [path for path in there(tmp_path) if path.endswith(".tmp")]


def test_a_wrong_file_on_the_server_does_not_replace_an_existing_file(server, tmp_path):
    name = "sleep-cassette/SC4002E0-PSG.edf"
    download("sleep_edf", tmp_path, base=server.base)
    (tmp_path / name).write_bytes(b"mine")
    server.files[name] = b"theirs"
    with pytest.raises(DataError, match="was discarded"):
        download("sleep_edf", tmp_path, base=server.base)
    assert (tmp_path / name).read_bytes() == b"mine"


def test_a_file_that_is_listed_but_missing_is_named(server, tmp_path):
    del server.files["sleep-cassette/SC4011EH-Hypnogram.edf"]
    with pytest.raises(PolyadicError, match=r"SC4011EH-Hypnogram.edf cannot be fetched: 404"):
        download("sleep_edf", tmp_path, base=server.base)


def test_without_checksums_nothing_is_fetched(server, tmp_path):
    del server.files["SHA256SUMS.txt"]
    with pytest.raises(PolyadicError, match=r"SHA256SUMS.txt cannot be fetched: 404"):
        download("sleep_edf", tmp_path, base=server.base)
    assert server.asked == Counter(["SHA256SUMS.txt"])
    assert list(tmp_path.iterdir()) == []


def closed_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}/"


def test_offline_is_one_error_that_names_the_address(tmp_path):
    base = closed_port()
    with pytest.raises(PolyadicError, match=r"cannot be fetched.*Finished files are kept") as caught:
        download("sleep_edf", tmp_path, base=base)
    assert base + "SHA256SUMS.txt" in str(caught.value)
    assert not isinstance(caught.value, DataError)
    assert list(tmp_path.iterdir()) == []


def test_complete_downloads_are_verified_offline(server, tmp_path):
    download("sleep_edf", tmp_path, base=server.base)
    base = closed_port()
    assert download("sleep_edf", tmp_path, base=base) == tmp_path
    (tmp_path / "sleep-cassette/SC4002E0-PSG.edf").unlink()
    with pytest.raises(PolyadicError, match=r"SC4002E0-PSG.edf cannot be fetched"):
        download("sleep_edf", tmp_path, base=base)


ESCAPES = [
    "../outside-PSG.edf",
    "sleep-cassette/../../outside-PSG.edf",
    "/outside-PSG.edf",
    "..\\outside-PSG.edf",
    "C:/outside-PSG.edf",
    "sleep-cassette/\x01-PSG.edf",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_paths_that_leave_the_folder_are_refused(name, server, tmp_path):
    root = tmp_path / "a" / "b"
    server.files["SHA256SUMS.txt"] += sums_of({name: b"evil"})
    server.files[name] = b"evil"
    with pytest.raises(DataError, match=r"SHA256SUMS.txt, line 9: paths must stay within the folder"):
        download("sleep_edf", root, base=server.base)
    assert there(tmp_path) == {}
    assert server.asked == Counter(["SHA256SUMS.txt"])


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"abc sleep-cassette/x", b"\xff\xfe" * 50, b"0" * 64])
def test_an_invalid_checksum_list_is_refused_and_the_last_one_stays(content, server, tmp_path):
    download("sleep_edf", tmp_path, base=server.base)
    server.files["SHA256SUMS.txt"] = content
    with pytest.raises(DataError, match=r"SHA256SUMS.txt"):
        download("sleep_edf", tmp_path, base=server.base)
    assert (tmp_path / "SHA256SUMS.txt").read_bytes() == sums_of({**FILES, **OTHERS})


def test_an_endless_list_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SUMS_LARGEST", 100)
    with pytest.raises(DataError, match="at most 100 bytes"):
        download("sleep_edf", tmp_path, base=server.base)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("style", ["{} {}", "{}  {}", "{} *{}", "{}  ./{}"])
def test_lists_of_the_usual_styles_are_read(style, server, tmp_path):
    lines = [style.format(hashlib.sha256(content).hexdigest().upper(), name) for name, content in FILES.items()]
    server.files["SHA256SUMS.txt"] = "\r\n".join([*lines, ""]).encode()
    download("sleep_edf", tmp_path, base=server.base)
    assert there(tmp_path) == FILES


@pytest.mark.parametrize(
    ("files", "count"), [("*/SC4001*", 2), (["*SC4001E0-PSG.edf", "*4011EH*"], 2), ("*Hypnogram.edf", 3)]
)
def test_patterns_choose_among_the_files(files, count, server, tmp_path):
    download("sleep_edf", tmp_path, files=files, base=server.base)
    assert len(there(tmp_path)) == count


def test_a_pattern_that_matches_nothing_is_refused(server, tmp_path):
    for files in ("ST7*", []):
        with pytest.raises(PolyadicError, match=r"no file of .* matches"):
            download("sleep_edf", tmp_path, files=files, base=server.base)


def test_progress_tells_of_every_file_and_of_bytes_on_the_way(server, tmp_path):
    told = []
    download("sleep_edf", tmp_path, base=server.base, progress=lambda *one: told.append(one))
    last = {name: (index, total, count) for name, index, total, count in told}
    assert last == {name: (index, 6, len(content)) for index, (name, content) in enumerate(FILES.items(), start=1)}
    on_the_way = [count for name, _, _, count in told if name == "sleep-cassette/SC4001E0-PSG.edf"]
    assert on_the_way == sorted(on_the_way)
    assert len(on_the_way) == 3
    told.clear()
    download("sleep_edf", tmp_path, base=server.base, progress=lambda *one: told.append(one))
    assert len(told) == 6


def test_an_error_in_progress_ends_the_download_without_half_files(server, tmp_path):
    def stop(name, index, total, count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("sleep_edf", tmp_path, base=server.base, progress=stop)
    assert all(FILES[name] == content for name, content in there(tmp_path).items())


def test_ptb_xl_is_its_tables_and_the_records_at_500_hz(tmp_path):
    wanted = {
        "ptbxl_database.csv": b"ecg_id",
        "scp_statements.csv": b"code",
        "RECORDS": b"records500/00000/00001_hr",
        "records500/00000/00001_hr.dat": b"\x01\x02",
        "records500/00000/00001_hr.hea": b"00001_hr 12 500",
        "records500/21000/21837_hr.dat": b"\x03",
    }
    other = {"records100/00000/00001_lr.dat": b"\x01", "LICENSE.txt": b"free"}
    server = Server({**wanted, **other, "SHA256SUMS.txt": sums_of({**wanted, **other})})
    try:
        download("ptb_xl", tmp_path, base=server.base)
    finally:
        server.close()
    assert there(tmp_path) == wanted


ZIP = "human+activity+recognition+using+smartphones.zip"


def test_har_is_one_file_with_a_recorded_checksum(tmp_path, monkeypatch):
    server = Server({ZIP: b"PK" * 5000})
    try:
        with pytest.raises(DataError, match="must have SHA-256 c00b803081a5c797"):
            download("har", tmp_path, base=server.base)
        assert there(tmp_path) == {}
        monkeypatch.setattr(module, "_HAR", {ZIP: hashlib.sha256(b"PK" * 5000).hexdigest()})
        assert download("har", tmp_path, base=server.base) == tmp_path / ZIP
        assert there(tmp_path) == {ZIP: b"PK" * 5000}
        server.asked.clear()
        download("har", tmp_path, base=server.base)
        assert not server.asked
    finally:
        server.close()


def test_mgh_names_the_contact_and_the_error_for_unknown_names_lists_the_known_ones(tmp_path):
    with pytest.raises(PolyadicError, match=r"Biswal et al.*2018.*physionet.org/content/challenge-2018"):
        download("mgh", tmp_path)
    with pytest.raises(PolyadicError, match="name must be one of sleep_edf, ptb_xl, har, but is 'mnist'"):
        download("mnist", tmp_path)
    with pytest.raises(PolyadicError, match="base must be a URL"):
        download("har", tmp_path, base="file:///data")


def test_sources_have_title_licence_citation_and_size():
    assert [source.name for source in sources()] == ["sleep_edf", "ptb_xl", "har"]
    for source in sources():
        assert isinstance(source, Source)
        assert source.base.startswith("https://")
        assert source.base.endswith("/")
        assert source.bytes > 10**7
        assert all((source.title, source.licence, source.citation))


def test_without_pooch_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(PolyadicError, match=r"pip install 'polyadic\[download\]'"):
        download("har", tmp_path)


@pytest.mark.long
def test_the_module_imports_neither_pooch_nor_requests():
    command = "import sys, polyadic.data.download; sys.exit(bool({'pooch', 'requests'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_nothing_is_written_to_the_terminal(server, tmp_path, capfd):
    download("sleep_edf", tmp_path, base=server.base)
    assert capfd.readouterr() == ("", "")
