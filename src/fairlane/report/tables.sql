-- The tables of the report. Before this, tables.py makes the views of the archive
-- (`archived_requests`, `results`, `archived_dead`) and the variables that are read here.

CREATE MACRO band(priority) AS priority - priority % getvariable('band');
CREATE MACRO moment(us) AS make_timestamp(us::BIGINT)::TIMESTAMPTZ;
CREATE MACRO window_of(us, width) AS floor((us - getvariable('start_us')) / width)::BIGINT;
CREATE MACRO begin_of(w, width) AS getvariable('start_us') + w * width;

-- Requests whose results are in the archive: a request may hold `limit` slices in its life.
CREATE VIEW lives AS
SELECT id AS request, submitted, priority, "limit", epoch_us(submitted) AS begin_us, epoch_us(ended) AS end_us
FROM archived_requests WHERE "limit" IS NOT NULL AND results > 0;

CREATE VIEW runs AS
SELECT request, submitted, priority, started_us AS begin_us, started_us + ran_us AS end_us
FROM results WHERE ran_us > 0;

-- Each row once for each window of [begin_us, end_us), with how long it is there.
CREATE MACRO spread(name, width, most) AS TABLE
SELECT *, least(end_us, begin_of("window", width) + width)
    - greatest(begin_us, begin_of("window", width)) AS overlap_us
FROM (SELECT *, unnest(range(
    greatest(window_of(begin_us, width), 0),
    least(window_of(greatest(end_us - 1, begin_us), width), most - 1) + 1
))::INTEGER AS "window" FROM query_table(name));

CREATE TABLE tokens AS
WITH allowances AS (
    SELECT "window", priority, sum(overlap_us * "limit") / getvariable('width_us') AS allowed
    FROM spread('lives', getvariable('width_us'), getvariable('windows')) GROUP BY ALL
), uses AS (
    SELECT "window", priority, sum(overlap_us) / getvariable('width_us') AS used
    FROM spread('runs', getvariable('width_us'), getvariable('windows'))
    SEMI JOIN lives USING (request, submitted) GROUP BY ALL
)
SELECT "window", priority, allowed, coalesce(used, 0) AS used,
    moment(begin_of("window", getvariable('width_us'))) AS "at",
    coalesce(used, 0) / nullif(allowed, 0) AS use
FROM allowances LEFT JOIN uses USING ("window", priority) ORDER BY "window", priority;

-- Jain's index of requests that were there for a whole window, each by the share of its limit.
CREATE TABLE fairness AS
WITH busy AS (
    SELECT request, submitted, "window", sum(overlap_us) AS busy_us
    FROM spread('runs', getvariable('even_us'), getvariable('evens')) GROUP BY ALL
), shares AS (
    SELECT "window", priority, coalesce(busy_us, 0) / "limit" AS share
    FROM spread('lives', getvariable('even_us'), getvariable('evens'))
    LEFT JOIN busy USING (request, submitted, "window") WHERE overlap_us = getvariable('even_us')
)
SELECT "window", priority, count(*) AS requests,
    sum(share) * sum(share) / (count(*) * sum(share * share)) AS jain,
    moment(begin_of("window", getvariable('even_us'))) AS "at"
FROM shares GROUP BY "window", priority HAVING count(*) > 1 AND sum(share * share) > 0
ORDER BY "window", priority;

-- A worker takes a slice: some sub-requests of one request, at one moment.
CREATE TABLE takes AS
SELECT request, submitted, results.priority, "limit", worker, taken_us, max(settled_us) AS settled_us,
    count(*) AS sub_requests
FROM results JOIN lives USING (request, submitted)
WHERE worker <> '-' AND taken_us IS NOT NULL GROUP BY ALL;

-- When a request was open to workers for longer than the grace: one of its sub-requests waited for
-- its first attempt, and it held fewer slices than its limit.
CREATE TABLE open_times AS
WITH first_takes AS (
    SELECT request, submitted, results.priority, "limit", taken_us, waited_us
    FROM results JOIN lives USING (request, submitted)
    WHERE taken_us IS NOT NULL AND (attempt = 0 OR attempt = 1 AND worker <> '-')
), events AS (
    SELECT request, submitted, priority, "limit", t, sum(waiting) AS waiting, sum(held) AS held FROM (
        SELECT request, submitted, priority, "limit", taken_us - waited_us AS t, 1 AS waiting, 0 AS held
        FROM first_takes
        UNION ALL SELECT request, submitted, priority, "limit", taken_us, -1, 0 FROM first_takes
        UNION ALL SELECT request, submitted, priority, "limit", taken_us, 0, 1 FROM takes
        UNION ALL SELECT request, submitted, priority, "limit", settled_us, 0, -1 FROM takes
    ) GROUP BY ALL
), steps AS (
    SELECT request, submitted, priority, t, lead(t) OVER in_order AS until,
        sum(waiting) OVER in_order > 0 AND sum(held) OVER in_order < "limit" AS is_open
    FROM events WINDOW in_order AS (PARTITION BY request, submitted ORDER BY t)
), numbered AS (
    SELECT *, count(*) FILTER (NOT is_open) OVER (PARTITION BY request, submitted ORDER BY t) AS closed
    FROM steps WHERE until IS NOT NULL
)
SELECT request, priority, min(t) AS begin_us, max(until) AS end_us FROM numbered WHERE is_open
GROUP BY request, submitted, priority, closed HAVING max(until) - min(t) > getvariable('grace_us');

-- The takes with `other`: a more urgent request that was open from the grace before until after.
-- Of all times that began before, the one that ends last decides: a running maximum.
CREATE TABLE judged AS
WITH starts AS (
    SELECT level, begin_us + getvariable('grace_us') AS t,
        max({'end_us': end_us, 'begin_us': begin_us, 'request': request, 'priority': priority}) AS other
    FROM open_times JOIN (SELECT DISTINCT priority AS level FROM takes) ON priority < level GROUP BY ALL
), latest AS (SELECT level, t, max(other) OVER (PARTITION BY level ORDER BY t) AS other FROM starts)
SELECT takes.*, if(other.end_us > taken_us, other, NULL) AS other
FROM takes ASOF LEFT JOIN latest ON takes.priority = level AND taken_us >= t;

CREATE TABLE inversions AS
SELECT priority, count(*) AS takes, count(other.request) AS inverted,
    coalesce(sum(sub_requests) FILTER (other.request IS NOT NULL), 0)::BIGINT AS sub_requests
FROM judged GROUP BY priority ORDER BY priority;

CREATE TABLE inverted AS
SELECT moment(taken_us) AS taken, request, priority, worker, sub_requests,
    other.request AS waiting_request, other.priority AS waiting_priority,
    (taken_us - other.begin_us) / 1000 AS waiting_ms
FROM judged WHERE other.request IS NOT NULL ORDER BY waiting_ms DESC, taken, request LIMIT 20;

CREATE TABLE longest_waits AS
SELECT priority, unnest(longest) FROM (
    SELECT priority, max({
        'waited_ms': waited_ms, 'request': request, 'index': "index", 'started': moment(started_us)
    }) AS longest FROM results GROUP BY priority
) ORDER BY priority;

CREATE TABLE workers AS
SELECT worker, count(*) AS finished, sum(ran_ms) AS busy_ms, moment(min(started_us)) AS "first",
    moment(max(settled_us)) AS "last"
FROM results WHERE worker <> '-' GROUP BY worker ORDER BY finished DESC, worker;

CREATE TABLE dead AS
SELECT priority, reason, fingerprint, count(*) AS count, count(DISTINCT request) AS requests,
    min(error) AS error, min(died) AS "first", max(died) AS "last"
FROM archived_dead GROUP BY ALL ORDER BY count DESC, fingerprint, priority;

CREATE TABLE states AS
SELECT state, outcome, count(*) AS requests, sum(total)::BIGINT AS total, sum(done)::BIGINT AS done,
    sum(dead)::BIGINT AS dead, sum(cancelled)::BIGINT AS cancelled, sum(results)::BIGINT AS results
FROM archived_requests GROUP BY ALL ORDER BY state, outcome;

CREATE TABLE requests AS
WITH busy AS (
    SELECT request AS id, submitted, sum(ran_ms) AS busy_ms, moment(min(started_us)) AS first_started
    FROM results GROUP BY ALL
)
SELECT archived_requests.*, epoch_ms(ended) - epoch_ms(submitted) AS duration_ms, busy_ms, first_started,
    busy_ms / "limit" / greatest(duration_ms, 1) AS use
FROM archived_requests LEFT JOIN busy USING (id, submitted) ORDER BY log_id;
