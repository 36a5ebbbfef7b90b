"""Measures the report of an archive: seconds, processor time and the most memory.

`python -m bench.report.make_report [results]`, 2,000,000 by default. The archive is made first, in
a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.report.archives import write_archive

from fairlane import report

RESULTS = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        maker = multiprocessing.get_context("spawn").Process(
            target=write_archive, args=(archive, RESULTS)
        )
        maker.start()
        maker.join()
        begun = time.monotonic()
        made = report.make(archive, Path(folder) / "report", targets="0:200ms,20s")
        seconds = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"results         {made.summary['finished']:,}")
    print(f"seconds         {seconds:.1f}")
    print(f"processor time  {used.ru_utime + used.ru_stime:.1f} s")
    print(f"most memory     {used.ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
