"""Thumbnails for the cards of the gallery: the last figure of each page, as drawn by a real browser.

make docs && python docs/thumbnails.py && make docs
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
CHOSEN = {"components": 1, "ecg": 0, "plots": 1}  # pages on which another figure than the last is more informative
SIZE = (480, 300)


def main() -> None:
    browser = next(path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path)
    target = HERE / "_static" / "gallery"
    target.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 520, "height": 1000}, device_scale_factor=1)
        for page in sorted((HERE / "_build" / "html" / "gallery").glob("*.html")):
            if page.stem == "index":
                continue
            tab.goto(page.as_uri())
            figures = tab.locator(".figure, img.picture")
            tab.wait_for_timeout(1000)
            shot = Image.open(io.BytesIO(figures.nth(CHOSEN.get(page.stem, -1)).screenshot())).convert("RGB")
            shot.thumbnail(SIZE)
            card = Image.new("RGB", SIZE, "white")
            card.paste(shot, ((SIZE[0] - shot.width) // 2, (SIZE[1] - shot.height) // 2))
            card.quantize(64).save(target / f"{page.stem}.png", optimize=True)
        chromium.close()


if __name__ == "__main__":
    main()
