"""A small project: pictures are resized, and their owners get a message."""

from __future__ import annotations

from dataclasses import dataclass

from fairlane import App, Context, Reject, Retry

app = App("images")
sent: list[str] = []  # stands for a mail server


@dataclass
class Size:
    """The size of a picture in pixels."""

    width: int
    height: int


@app.task(attempts=3, backoff="1m..1h")
def resize(path: str, width: int = 200) -> Size:
    """Resizes a picture; only these formats can be read."""
    if not path.endswith((".png", ".jpg")):
        raise Reject(f"{path} is no picture")
    return Size(width, width // 2)


@app.task(attempts=3, deadline="1h")
def notify(owner: str, ctx: Context) -> None:
    """Sends a message; the mail server refuses the first attempt."""
    if ctx.attempt == 1:
        raise Retry(after=600)
    sent.append(owner)


def publish(paths: list[str], owner: str) -> list[Size]:
    """The program's own code: submits calls, and uses their results."""
    sizes = list(resize.map(paths))
    notify.submit(owner)
    return sizes
