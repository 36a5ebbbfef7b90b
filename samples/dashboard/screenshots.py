"""Takes the pictures of the dashboard for the documentation.

It starts an embedded server, workers and `fairlane serve` of its own, and ends them. It needs the
extra `dev`, Chromium and its driver.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from seed import QUEUE
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "docs" / "pictures"
MOST_BYTES = 200_000
COLOURS = 192
WARM_UP_S = 25  # so that the plots have something to show
SUBJECT, DONE_S = "thumbnails-catalog", 600  # the request, and how long 500 of it may take
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)
DESK = (1280, 860)
SHOTS = (  # the picture, its page, what is there as soon as it can be taken, its size, its theme
    ("overview-dark", "#/overview", "h1", DESK, "dark"),
    ("requests-dark", "#/requests", "tbody tr", DESK, "dark"),
    ("request", f"#/requests/{SUBJECT}", ".chart rect.block", DESK, "light"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=TARGET, metavar="DIR")
    parser.add_argument("names", nargs="*", help="the pictures to take; default: all of them")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [shot for shot in SHOTS if not options.names or shot[0] in options.names]
    with tempfile.TemporaryDirectory() as home, demo(home) as url, chromium(home) as driver:
        driver.get(url)
        time.sleep(WARM_UP_S)
        for name, page, selector, size, theme in wanted:
            if SUBJECT in page:
                wait_for_work(url)
            raw = picture(driver, f"{url}/{page}", selector, size, theme)
            save(raw, options.out / f"{name}.png")
    return 0


def wait_for_work(url: str) -> None:
    """Waits until 500 of the request are done, so that its lanes are full on any machine."""
    until = time.monotonic() + DONE_S
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{url}/v1/requests/{SUBJECT}", timeout=30) as answer:  # noqa: S310
            if json.load(answer)["done"] >= 500:
                return
        time.sleep(1)


@contextlib.contextmanager
def demo(home: str) -> Iterator[str]:
    """Runs the server, the workers and the dashboard; yields its address."""
    env = {**os.environ, "FAIRLANE_HOME": str(Path(home) / "fairlane")}
    fairlane = [sys.executable, "-m", "fairlane"]
    work = ("worker", "--queue", QUEUE, "--handler", "work:handle", "--concurrency", "8")
    running: list[subprocess.Popen[str]] = []

    def start(*words: str, out: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*fairlane, *words], cwd=HERE, env=env, stdout=out, stderr=subprocess.DEVNULL, text=True
        )
        running.append(process)
        return process

    try:
        subprocess.run([sys.executable, "seed.py", "4"], cwd=HERE, env=env, check=True)
        for _ in range(2):
            start(*work)
        serve = start("serve", "--queue", QUEUE, "--port", "0", out=subprocess.PIPE)
        assert serve.stdout is not None
        yield serve.stdout.readline().strip()
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)
        subprocess.run([*fairlane, "server", "stop"], env=env, check=False)


@contextlib.contextmanager
def chromium(home: str) -> Iterator[webdriver.Chrome]:
    """Starts the browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={home}/profile"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def picture(
    driver: webdriver.Chrome, url: str, selector: str, size: tuple[int, int], theme: str
) -> bytes:
    """Opens a page at this size and in this theme; returns a PNG of twice its pixels."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get("about:blank")
    driver.get(url)
    WebDriverWait(driver, 30).until(lambda it: it.find_elements("css selector", selector))
    time.sleep(4)  # the second reading of what is live
    return driver.get_screenshot_as_png()


def save(raw: bytes, path: Path) -> None:
    """Writes a PNG with few colours, so that it is small."""
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.name}: {size // 1000} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"{path} has {size:,} bytes: take fewer colours than {COLOURS}")


if __name__ == "__main__":
    sys.exit(main())
