"""`polyadic label` in a real browser: forty windows by keyboard, a reload, undo, a killed server, two tabs."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from browser import OVERLAPS, browser
from command_line import Piped, polyadic
from test_label import write_recordings

from polyadic.label.journal import read_rows

CONTRASTS = """
() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return /rgba\\(.*, 0\\)/.test(colour) ? ground(node.parentElement) : colour;
  };
  const texts = "h1, h1 span, h2, p, span.name, span.number, button, kbd, label, figcaption span, dd, dt, code";
  const found = [];
  for (const node of document.querySelectorAll(texts)) {
    if (!node.textContent.trim() || node.matches(":disabled")) continue;
    const value = ratio(getComputedStyle(node).color, ground(node));
    if (value < 4.5) found.push(`${node.tagName} ${node.textContent.slice(0, 20)} ${value.toFixed(2)}`);
  }
  for (const node of document.querySelectorAll(".swatch")) {
    const value = ratio(getComputedStyle(node).backgroundColor, ground(node.parentElement));
    if (value < 3) found.push(`swatch ${value.toFixed(2)}`);
  }
  return found;
}
"""


HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def running():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("label")
    write_recordings(folder / "recordings")
    (folder / "recordings" / "p2.csv").rename(folder / "recordings" / f"{HOSTILE.replace('/', '')}.csv")
    polyadic("fit", "recordings", "--seconds", 1, "--rank", 4, "--sweeps", 5, "--quiet", cwd=folder)
    return folder


class Server:
    """The command in a process that can be killed."""

    def __init__(self, folder: Path, out: Path) -> None:
        words = ["label", "recordings", "--seconds", "1", "--model", "model.safetensors", "--no-browser", "--quiet"]
        self.process = Piped([*words, "-o", out, "--who", "tester"], folder)
        self.address = next(
            found[0] for line in self.process.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+/\S+", line))
        )

    def stop(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate(30)


@pytest.fixture
def serve(model, tmp_path):
    servers = []

    def start() -> Server:
        servers.append(Server(model, tmp_path / "labels.csv"))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop()


class Typist:
    """A person at the keyboard of one tab, who keeps a list of what was answered."""

    def __init__(self, running, address: str, context=None, **words) -> None:
        self.context = context or running.new_context(viewport={"width": 1280, "height": 860}, **words)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.answers: list[tuple[str, float, str]] = []
        self.open(address)

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)

    def window(self) -> tuple[str, float]:
        found = self.page.evaluate("[question.recording, question.start]")
        return found[0], float(found[1])

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.ready()

    def name(self, name: str) -> None:
        """Answer with a new class."""
        where = self.window()
        self.page.keyboard.press("n")
        self.page.keyboard.type(name)
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(
            "name => document.getElementById('status').textContent === `Saved: ${name}`", arg=name
        )
        self.ready()
        self.answers.append((*where, name))

    def label(self) -> None:
        """Answer with what the window is, by its number key."""
        where = self.window()
        name = "fast" if where[1] % 2 else "slow"
        key = self.page.locator("#classes .name").all_inner_texts().index(name) + 1
        self.press(str(key))
        assert self.page.locator("#status").inner_text() == f"Saved: {name}"
        self.answers.append((*where, name))


def on_disk(path: Path) -> list[tuple[str, float, str]]:
    return [(row.recording, row.start, row.label) for row in read_rows(path)]


def test_forty_windows_by_keyboard_with_a_reload_an_undo_and_a_killed_server(running, serve, tmp_path):
    server, path = serve(), tmp_path / "labels.csv"
    person = Typist(running, server.address)
    person.name("fast")
    person.name("slow")
    while len(person.answers) < 8:
        person.label()
        assert on_disk(path) == person.answers  # saved when the page says so
    before = person.window()
    person.page.reload()
    person.ready()
    assert person.window() == before
    person.press("u")  # also after the reload
    undone = person.answers[-1][:2]
    assert person.window() == undone
    person.answers.append((*undone, ""))
    person.press("s")
    person.answers.append((*undone, ""))
    assert on_disk(path) == person.answers
    while len(person.answers) < 14:
        person.label()
    server.stop()
    person.page.keyboard.press("1")
    person.page.locator("#alarm").wait_for()
    assert "nothing was saved" in person.page.locator("#alarm").inner_text()
    assert on_disk(path) == person.answers
    with path.open("ab") as file:
        file.write(b"p0,12,1,fa")  # as a kill in the middle of a write leaves it
    server = serve()
    person.open(server.address)
    person.complaints.clear()  # about the server that was gone
    assert person.page.locator("#counts .number").all_inner_texts() == counts(person.answers)
    while len(person.answers) < 42:
        person.label()
    person.page.wait_for_function("() => state.follows === state.version", timeout=60_000)
    assert on_disk(path) == person.answers
    assert person.page.locator("#accuracy").inner_text() == "Too early to say"
    assert {row.who for row in read_rows(path)} == {"tester"}
    assert person.complaints == []
    server.stop(signal.SIGINT)
    assert server.process.returncode in (0, 130)


def counts(answers: list[tuple[str, float, str]]) -> list[str]:
    last = {answer[:2]: answer[2] for answer in answers}
    names = list(dict.fromkeys(answer[2] for answer in answers if answer[2]))
    return [str(list(last.values()).count(name)) for name in names]


def test_two_tabs_get_different_windows_and_do_not_overwrite_each_other(running, serve, tmp_path):
    server = serve()
    one = Typist(running, server.address)
    two = Typist(running, server.address, one.context)
    assert one.window() != two.window()
    one.name("fast")
    first = one.answers[0]
    place = one.page.evaluate("state.marks[0][0]")
    two.page.evaluate("row => pick(row)", place)
    two.page.wait_for_function("row => question.row === row", arg=place)
    two.ready()
    one.page.evaluate("row => pick(row)", place)
    one.page.wait_for_function("row => question.row === row", arg=place)
    one.ready()
    one.name("slow")
    two.press("1")
    assert "answered in another tab" in two.page.locator("#alarm").inner_text()
    assert on_disk(tmp_path / "labels.csv") == [first, (*first[:2], "slow")]


def test_names_are_shown_as_text_and_nothing_is_loaded_from_elsewhere(running, serve):
    server = serve()
    person = Typist(running, server.address)
    requests: list[str] = []
    person.page.on("request", lambda request: requests.append(request.url))
    person.name(HOSTILE)
    person.name("fast")
    person.page.evaluate("row => pick(row)", 0)  # of the recording with the hostile name
    person.page.wait_for_function("() => question.row === 0")
    person.ready()
    assert person.page.locator("#classes .name").first.inner_text() == HOSTILE
    assert "<img" in person.page.locator("#where").inner_text()
    assert person.page.locator("img").count() == 0
    assert all(url.startswith((server.address, "data:")) for url in requests)
    person.page.keyboard.press("r")
    person.page.locator("#edit-old").select_option("fast")
    person.page.locator("#edit-new").fill(HOSTILE)
    assert "cannot be undone" in person.page.locator("#edit-note").inner_text()
    person.page.keyboard.press("Enter")
    person.page.wait_for_function("() => state.classes.length === 1")
    assert person.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_and_do_not_overlap_on_desktop_and_tablets(running, serve, scheme):
    person = Typist(running, serve().address, color_scheme=scheme)
    person.name("fast")
    person.name("slow")
    for _ in range(3):
        person.label()
    for width, height in ((1440, 900), (1024, 768), (820, 1180), (390, 844)):
        person.page.set_viewport_size({"width": width, "height": height})
        person.page.wait_for_timeout(200)
        assert person.page.evaluate(OVERLAPS) == []
        assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    low = person.page.evaluate(CONTRASTS)
    assert low == []
