"""Makes an archive of any size, as `fairlane archive` would write it.

Workers take the most urgent request that may be taken, in turns within a priority, and run its
slices of up to five sub-requests. Of a hundred takes one is careless: it takes the least urgent. Of
a hundred sub-requests one is tried again, of a thousand one is dead.
"""

from __future__ import annotations

import heapq
import random
import tempfile
from collections import deque
from pathlib import Path

import duckdb
import pyarrow as pa

from fairlane.archive.archiver import Files
from fairlane.archive.manifest import Position, open_archive
from fairlane.archive.rows import SCHEMAS

T0_US = 1_795_200_000_000_000
WORKERS = 16
SLICE = 5
CARELESS = 0.01
# Of each class of requests: priority, limit, sub-requests, time of one, and its share of all.
CLASSES = (
    *((0, 4, 20, 4_000, 0.15), (5, 8, 200, 12_000, 0.35), (20, 2, 80, 20_000, 0.2)),
    *((50, 6, 600, 9_000, 0.2), (90, 3, 1500, 15_000, 0.1)),
)


def write_archive(folder: Path, results: int, seed: int = 7) -> None:
    """Writes the tables `requests`, `results` and `dead` of about so many results."""
    requests, slices = _play(results, random.Random(seed))
    with tempfile.TemporaryDirectory() as scratch, duckdb.connect() as db:
        db.execute("SET enable_progress_bar = false")
        for name, rows in (("requests", requests), ("slices", slices)):
            file = Path(scratch) / f"{name}.csv"
            file.write_text("\n".join(",".join(map(str, row)) for row in rows))
            db.execute(f"CREATE TABLE {name}_made AS FROM read_csv('{file}', header = false)")
        db.execute(f"SET temp_directory = '{scratch}'")
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"SELECT setseed({seed / 100})")
        db.execute(_SQL)
        with open_archive(folder, "bench") as made:
            files = Files(made, "req")
            for table, schema in SCHEMAS.items():
                names = ", ".join(f'"{name}"' for name in schema.names)
                for (date,) in db.table(table).project("date").distinct().fetchall():
                    rows = f"SELECT {names} FROM {table} WHERE date = '{date}'"  # noqa: S608
                    for batch in db.sql(rows).to_arrow_reader(100_000):
                        files.put(table, date, pa.Table.from_batches([batch]).cast(schema))
            made.commit(0, added=files.close("1-0", "2-0"), queues={"req": Position("2-0", 0)})


def _play(results: int, dice: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the requests and their slices, in the order in which they were taken."""
    requests, coming = _submitted(results, dice)
    waiting: dict[int, deque[int]] = {kind[0]: deque() for kind in CLASSES}
    free = [(T0_US, worker) for worker in range(WORKERS)]
    ends: list[tuple[int, int]] = []
    left = [row[3] for row in requests]
    held = [0] * len(requests)
    slices: list[list[int]] = []
    while free:
        now, worker = heapq.heappop(free)
        while ends and ends[0][0] <= now:
            held[heapq.heappop(ends)[1]] -= 1
        while coming and requests[coming[0]][4] <= now:
            one = coming.popleft()
            waiting[requests[one][1]].append(one)
        order = sorted(waiting, reverse=dice.random() < CARELESS)
        chosen = _next(order, waiting, requests, held)
        if chosen is None:
            later = [requests[coming[0]][4]] if coming else []
            later += [ends[0][0]] if ends else []
            if later:
                heapq.heappush(free, (max(now + 1000, min(later)), worker))
            continue
        count = min(SLICE, left[chosen], max(1, left[chosen] // requests[chosen][2]))
        spent = [int(requests[chosen][5] * dice.lognormvariate(0, 0.5)) for _ in range(count)]
        first = requests[chosen][3] - left[chosen]
        end = now + -(-sum(spent) // 1000) * 1000
        begun = end - sum(spent)  # Redis counts back from the moment of the settlement
        for at, ran in enumerate(spent):
            slices.append([chosen, first + at, worker, now, begun, ran, end])
            begun += ran
        left[chosen] -= count
        held[chosen] += 1
        heapq.heappush(ends, (end, chosen))
        heapq.heappush(free, (end + 1000, worker))
        if left[chosen]:
            waiting[requests[chosen][1]].append(chosen)
        else:
            requests[chosen][6] = end
    return requests, slices


def _submitted(results: int, dice: random.Random) -> tuple[list[list[int]], deque[int]]:
    rows: list[list[int]] = []
    load_us = 0.0
    total = 0
    while total < results:
        (kind,) = dice.choices(CLASSES, [one[4] / one[2] for one in CLASSES])
        priority, limit, usual, ran, _ = kind
        count = max(1, int(usual * dice.lognormvariate(0, 0.6)))
        at = T0_US + int(load_us / WORKERS / 1000 * dice.uniform(0.9, 1.1)) * 1000
        rows.append([len(rows), priority, limit, count, at, ran, 0])
        load_us += count * ran * 1.25  # about nine tenths of what the workers can do
        total += count
    return rows, deque(sorted(range(len(rows)), key=lambda one: rows[one][4]))


def _next(
    order: list[int], waiting: dict[int, deque[int]], requests: list[list[int]], held: list[int]
) -> int | None:
    for priority in order:
        line = waiting[priority]
        for _ in range(len(line)):
            one = line.popleft()
            if held[one] < requests[one][2]:
                return one
            line.append(one)
    return None


_SQL = """
CREATE MACRO day(us) AS strftime(make_timestamp(us), '%Y-%m-%d');
CREATE MACRO moment(us) AS make_timestamp(us)::TIMESTAMPTZ;
CREATE TABLE made AS
SELECT 'r' || lpad(column0::VARCHAR, 19, '0') AS id, column1::INTEGER AS priority,
    column2::INTEGER AS "limit", column3::BIGINT AS total, column4::BIGINT AS born_us,
    column6::BIGINT AS ended_us, column0 AS n
FROM requests_made;
CREATE TABLE ran AS
SELECT made.id AS request, made.priority, column1::BIGINT AS "index",
    'worker:' || (7000 + column2) AS worker, column3 AS taken_us, column4 AS started_us,
    column5 AS ran_us, column6 AS settled_us, born_us,
    random() < 0.01 AS again, random() < 0.001 AS died
FROM slices_made JOIN made ON made.n = column0;
CREATE VIEW results AS
SELECT request, priority, "index", if(died, 'dead', 'done') AS status,
    encode(if(died, NULL, rpad(md5(request || "index"), 100, 'x'))) AS result,
    (1 + again::INTEGER + 4 * died::INTEGER)::INTEGER AS attempt, worker,
    ((taken_us - born_us) // 1000)::BIGINT AS waited_ms, ran_us / 1000 AS ran_ms,
    (taken_us - born_us) // 1000 + (started_us - taken_us + ran_us) / 1000 AS total_ms,
    if(died, 'ValueError: no such page ' || "index", NULL) AS error,
    moment(started_us) AS started, moment(settled_us) AS settled, day(settled_us) AS date,
    moment(born_us) AS submitted, NULL::VARCHAR AS key
FROM ran;
CREATE VIEW dead AS
SELECT request, "index", if("index" % 3 = 0, 'rejected', 'attempts') AS reason,
    'ValueError: no such page ' || "index" AS error,
    left(md5(("index" % 3)::VARCHAR), 10) AS fingerprint,
    5::INTEGER AS attempt, worker, encode('') AS body, moment(settled_us) AS died, priority,
    day(settled_us) AS date, moment(born_us) AS submitted
FROM ran WHERE ran.died;
CREATE VIEW requests AS
SELECT (ended_us // 1000) || '-' || n AS log_id, id, 'done' AS state, priority, total,
    total - coalesce(lost, 0) AS done, coalesce(lost, 0)::BIGINT AS dead, 0::BIGINT AS cancelled,
    moment(born_us) AS submitted, moment(ended_us) AS ended, '' AS reason,
    moment(ended_us) AS logged, "limit", total AS results, day(ended_us) AS date
FROM made LEFT JOIN (SELECT request, count(*) AS lost FROM ran WHERE died GROUP BY 1)
    ON request = id;
"""
