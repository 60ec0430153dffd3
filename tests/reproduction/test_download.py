"""Downloads are complete and correct, or raise an error; finished files are not fetched again."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import trees

from paper.datasets.download import download
from polyadic.errors import DataError, PolyadicError


class Handler(SimpleHTTPRequestHandler):
    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self):
        self.asked[self.path.rpartition("/")[2]] += 1
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The folder of a web server with Sleep-EDF, and its address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "site"
    trees.sleep_edf(folder)
    files = [*sorted((folder / "sleep-cassette").iterdir()), folder / "RECORDS"]
    files[-1].write_text("not of this part")
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.relative_to(folder)}\n" for path in files)
    (folder / "SHA256SUMS.txt").write_text("".join(sums))
    Handler.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_files_of_the_data_set_come_once_and_no_others(site, tmp_path):
    folder, address = site
    wanted = {path.name: path.read_bytes() for path in (folder / "sleep-cassette").iterdir()}
    done = []
    assert download("sleep_edf", tmp_path / "root", base=address, progress=lambda *told: done.append(told)) == (
        tmp_path / "root"
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "root" / "sleep-cassette").iterdir()} == wanted
    assert Handler.asked == Counter([*wanted, "SHA256SUMS.txt"])
    assert [number for number, _, _ in done] == list(range(1, len(wanted) + 1))
    damaged = tmp_path / "root" / "sleep-cassette" / "SC4001E0-PSG.edf"
    damaged.write_bytes(b"damaged")
    Handler.asked.clear()
    download("sleep_edf", tmp_path / "root", base=address)
    assert Handler.asked == Counter([damaged.name, "SHA256SUMS.txt"])
    assert damaged.read_bytes() == wanted[damaged.name]


def test_a_file_with_another_checksum_is_refused_and_not_kept(site, tmp_path):
    folder, address = site
    (folder / "sleep-cassette" / "SC4001E0-PSG.edf").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"SC4001E0-PSG.edf must have SHA-256"):
        download("sleep_edf", tmp_path / "root", base=address)
    assert not (tmp_path / "root" / "sleep-cassette" / "SC4001E0-PSG.edf").exists()


def test_an_address_that_cannot_be_reached_and_paths_outside_the_folder_are_errors(site, tmp_path):
    folder, address = site
    with pytest.raises(PolyadicError, match=r"elsewhere/SHA256SUMS.txt cannot be fetched"):
        download("sleep_edf", tmp_path / "root", base=f"{address}elsewhere")
    (folder / "SHA256SUMS.txt").write_text(f"{'0' * 64} ../sleep-cassette/x-PSG.edf\n")
    with pytest.raises(DataError, match="paths must stay within the folder"):
        download("sleep_edf", tmp_path / "root", base=address)
    with pytest.raises(PolyadicError, match=r"Ask the authors of Biswal et al\."):
        download("mgh", tmp_path)
