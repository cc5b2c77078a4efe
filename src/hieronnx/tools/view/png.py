"""The picture of one call as PNG: a browser that is there draws the SVG."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from hieronnx.errors import HieronnxError

_NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
_OPTIONS = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
)
_PAGE = (
    "<!doctype html><meta charset='utf-8'>"
    "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    "<style>body{margin:0;background:white}svg{display:block}</style>"
)
"""What comes before the picture: a browser's own style for bare pictures has no say."""
_SHARP = 2
"""Pixels of the file for each of the picture, as on screens of today."""
_LARGEST = 16_000
"""Of pixels in one direction: browsers draw no more."""
_SECONDS = 120


def find_browser() -> str:
    """Return the browser that `CHROME_PATH` names, or else the first that is there.

    Raises:
        HieronnxError: If there is none.
    """
    named = os.environ.get("CHROME_PATH")
    found = next(filter(None, map(shutil.which, [named] if named else _NAMES)), None)
    if found is None:
        where = f"there is none at '{named}', which CHROME_PATH names" if named else "none was found"
        raise HieronnxError(
            f"a browser draws PNG pictures, and {where}; install Chromium or Chrome ('apt-get install chromium'), name "
            "one in CHROME_PATH, or ask for SVG"
        )
    return found


def make_png(svg: str) -> bytes:
    """Draw an SVG picture.

    Raises:
        HieronnxError: If there is no browser, or it does not draw.
    """
    browser = find_browser()
    size = re.match(r'<svg [^>]*width="(\d+)" height="(\d+)"', svg)
    assert size is not None  # every picture begins so
    width, height = max(int(size[1]), 1), max(int(size[2]), 1)
    scale = min(_SHARP, _LARGEST / max(width, height))
    with tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        source, made = Path(folder, "picture.html"), Path(folder, "picture.png")
        source.write_text(_PAGE + svg, encoding="utf-8")
        command = [browser, *_OPTIONS, f"--force-device-scale-factor={scale:g}", f"--window-size={width},{height}"]
        command += [f"--user-data-dir={Path(folder, 'profile')}", f"--screenshot={made}", source.as_uri()]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium has no sandbox for root
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HieronnxError(f"'{browser}' did not draw the picture ({error}); ask for SVG") from error
        if not made.is_file():
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
            raise HieronnxError(f"'{browser}' did not draw the picture ({said[-1]}); ask for SVG")
        return made.read_bytes()
