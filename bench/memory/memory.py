"""Measures the peak memory of a process that submits 2,000,000 lines of a generator.

`python -m bench.memory.memory [lines]`
"""

from __future__ import annotations

import subprocess
import sys

from bench.harness import support

LINES = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
SUBMITTER = """
import resource, sys
from fairlane import Queue
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = (b"line %0100d" % i for i in range(int(sys.argv[2])))
request = Queue.from_url(sys.argv[1]).submit_request(lines, limit=3)
assert request.progress().total == int(sys.argv[2])
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    with support.server() as url:
        command = [sys.executable, "-c", SUBMITTER, url, str(LINES)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    unit = 1024 if sys.platform != "darwin" else 1024 * 1024
    before, peak = (int(part) / unit for part in out.split())
    lines = [
        f"A process submits {LINES:,} lines of about 100 bytes from a generator.",
        "",
        "| | MiB |",
        "|---|---:|",
        f"| the process before it submits | {before:.0f} |",
        f"| its peak | {peak:.0f} |",
    ]
    support.write("memory", "Memory of a lazy submission", lines)


if __name__ == "__main__":
    main()
