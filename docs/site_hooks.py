"""What MkDocs runs for each page: links to files outside docs/ lead to the project's source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ARCHITECTURE = "architecture.md"  # the page of the site for the file at the top
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_NOT_FILES = ("http://", "https://", "mailto:", "#")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page's text with links that work on the site."""
    source = page.file.src_uri
    if source == ARCHITECTURE:
        markdown = (ROOT / "ARCHITECTURE.md").read_text()
        return _LINK.sub(lambda link: _rewritten(link, ROOT, source), markdown)
    folder = (DOCS / source).parent
    return _LINK.sub(lambda link: _rewritten(link, folder, source), markdown)


def _rewritten(link: re.Match[str], folder: Path, source: str) -> str:
    """Returns a link as the site needs it; `folder` is what it is relative to."""
    target = link[2]
    if target.startswith(_NOT_FILES):
        return link[0]
    name, anchor = urldefrag(target)
    path = (folder / name).resolve()
    up = "../" * source.count("/")
    if path == ROOT / "ARCHITECTURE.md":
        return f"]({up}{ARCHITECTURE}{'#' + anchor if anchor else ''})"
    if path.is_relative_to(DOCS) and path.is_file() and path.suffix in {".md", ".svg", ".png"}:
        inside = path.relative_to(DOCS).as_posix()
        return f"]({up}{inside}{'#' + anchor if anchor else ''})"
    return f"]({_source_url()}{path.relative_to(ROOT).as_posix()})"


def _source_url() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    url: str = project["urls"]["Source"]
    return url
