"""A real browser for the tests of pages: the system's Chromium, driven through playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

OVERLAPS = """
() => {
  const clipped = (rect, node) => {
    let { left, top, right, bottom } = rect;
    for (let at = node; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const box = at.getBoundingClientRect();
      left = Math.max(left, box.left); right = Math.min(right, box.right);
      top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
    }
    return { left, top, right, bottom };
  };
  const shown = document.querySelector("dialog[open]") || document.body;
  const walker = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  const boxes = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    const text = node.textContent.trim();
    if (!text || parent.closest("script, style, .hidden, [hidden], option, .skip, header.bar, .dialog-bar")) continue;
    const style = getComputedStyle(parent);
    if (style.visibility === "hidden" || style.opacity === "0") continue;
    const turn = parent.getScreenCTM?.();
    const slanted = turn ? Math.abs(turn.a * turn.b) > 0.1 : false;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = clipped(rect, parent);
      const [width, height] = [box.right - box.left, box.bottom - box.top];
      // Lines of text may touch; their letters may not.
      if (width > 2 && height > 2) boxes.push({ node, slanted, text, left: box.left + 1, right: box.right - 1,
        top: box.top + 0.2 * height, bottom: box.bottom - 0.2 * height });
    }
  }
  boxes.sort((a, b) => a.top - b.top);
  const found = [];
  boxes.forEach((a, i) => {
    for (const b of boxes.slice(i + 1)) {
      if (b.top >= a.bottom) break;
      // Boxes of slanted labels overlap though their letters are side by side; a shortened text has two boxes.
      if (a.node === b.node || (a.slanted && b.slanted)) continue;
      if (Math.min(a.right, b.right) > Math.max(a.left, b.left)) found.push(`${a.text} | ${b.text}`);
    }
  });
  return found;
}
"""


def find_browser() -> str:
    """The path of a browser, or skip the test and say why."""
    named = os.environ.get("POLYADIC_BROWSER")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium or Chrome is installed (POLYADIC_BROWSER names one elsewhere): pages are not tested")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = find_browser()
    with sync_playwright() as playwright:
        # In containers Chromium's own sandbox has no rights; the page is ours.
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield running
        finally:
            running.close()


class Page:
    """An open page, with everything it complained about or asked for."""

    def __init__(self, running: Any, path: Path, width: int = 1600, scheme: str = "light") -> None:
        self.context = running.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.resolve().as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def draw_all(self) -> None:
        """Scroll through the page with all sections open, so that every figure is drawn."""
        self.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        for figure in self.page.locator("section .figure").all():
            figure.scroll_into_view_if_needed()
            figure.locator(".main-svg").first.wait_for()
        self.page.evaluate("window.scrollTo(0, 0)")
        self.page.wait_for_timeout(100)

    def overlaps(self) -> list[str]:
        return list(self.page.evaluate(OVERLAPS))

    def open_component(self, number: int = 0) -> None:
        self.page.locator("button.open").nth(number).click()
        self.page.locator("#detail .figure .main-svg").first.wait_for()
        self.page.wait_for_timeout(200)
