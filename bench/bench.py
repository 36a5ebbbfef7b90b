"""Runs every measurement; each writes its table into docs/benchmarks/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    for name in ("throughput", "urgent", "memory"):
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
