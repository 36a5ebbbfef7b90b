"""Maps the work of cpu_work.py over dask's processes: `dask_map.py CALLS MOST PROCESSES`.

Prints the calls per second, without the start of the processes.
"""

from __future__ import annotations

import sys
import time

from cpu_work import count_primes
from dask.distributed import Client, LocalCluster


def main() -> None:
    calls, most, processes = map(int, sys.argv[1:])
    cluster = LocalCluster(
        n_workers=processes, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    with cluster, Client(cluster) as client:
        client.gather(client.map(count_primes, [most] * processes, pure=False))
        before = time.perf_counter()
        found = client.gather(client.map(count_primes, [most] * calls, pure=False))
        took = time.perf_counter() - before
    if len(set(found)) != 1:
        raise SystemExit("the results differ")
    print(calls / took)


if __name__ == "__main__":
    main()
