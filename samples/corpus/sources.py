"""Lists the source files of the running Python's standard library: input on every machine.

As a program it prints them, one path a line, which is what `rq-submit` takes:

    python samples/corpus/sources.py asyncio json > files.txt
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path

STDLIB = Path(sysconfig.get_path("stdlib"))
_FOREIGN = {"dist-packages", "site-packages"}


def sources(*packages: str) -> list[str]:
    """Returns paths relative to the standard library, sorted; of all packages or the named."""
    files = (path.relative_to(STDLIB) for path in STDLIB.rglob("*.py"))
    return sorted(
        path.as_posix()
        for path in files
        if not _FOREIGN & set(path.parts) and (not packages or path.parts[0] in packages)
    )


def spread(paths: list[str], most: int | None) -> list[str]:
    """Returns at most `most` of the paths, evenly from all over."""
    if most is None or most >= len(paths):
        return paths
    return [paths[i * len(paths) // most] for i in range(most)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the standard library's source files.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only of these")
    parser.add_argument("--files", type=int, metavar="N", help="at most N, from all over")
    options = parser.parse_args()
    for path in spread(sources(*options.packages), options.files):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
