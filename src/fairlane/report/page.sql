-- What the page shows: plots have the series of bands of priorities.
CREATE VIEW plot_windows AS FROM band_windows;
CREATE VIEW plot_tokens AS
SELECT "window", "at", band(priority) AS priority, sum(used) AS used, sum(allowed) AS allowed
FROM tokens GROUP BY ALL;
CREATE VIEW plot_fairness AS
SELECT "window", "at", band(priority) AS priority, sum(jain * requests) / sum(requests) AS jain
FROM fairness GROUP BY ALL;
CREATE VIEW plot_requests AS
FROM requests WHERE duration_ms IS NOT NULL ORDER BY duration_ms DESC LIMIT 30;
CREATE VIEW plot_dead AS
SELECT reason, band(priority) AS priority, sum(count)::BIGINT AS count FROM dead GROUP BY ALL;

-- Tables have a column's heading as its name. It ends with _ms, _share or _at for its kind.
CREATE MACRO latency(name) AS TABLE
SELECT priority, finished AS settled, COLUMNS('^(waited|ran|total)_(p[0-9]+)_ms$') AS '\1 \2_ms',
    retries, dead FROM query_table(name);
CREATE MACRO aims(name) AS TABLE
SELECT priority, target_ms, met / nullif(aimed, 0) AS met_share,
    within_1s / finished AS "within 1 s_share", within_10s / finished AS "within 10 s_share",
    within_1m / finished AS "within 1 min_share", within_10m / finished AS "within 10 min_share"
FROM query_table(name);
CREATE VIEW shown AS  -- one priority is the whole
FROM bands WHERE priority IS NOT NULL OR (SELECT count(*) FROM bands) > 2;
CREATE VIEW table_latency AS SELECT priority AS band, * EXCLUDE (priority) FROM latency('shown');
CREATE VIEW table_latency_each AS FROM latency('priorities') WHERE priority IS NOT NULL;
CREATE VIEW table_targets AS SELECT priority AS band, * EXCLUDE (priority) FROM aims('shown');
CREATE VIEW table_targets_each AS FROM aims('priorities') WHERE priority IS NOT NULL;
CREATE VIEW table_requests AS  -- the outcome in the words of outcome_words (model.py)
SELECT id AS request, priority, "limit",
    if(outcome = 'partly_failed', format('done, {:,} dead', dead), outcome) AS outcome, total AS "sub-requests", dead,
    duration_ms AS took_ms, busy_ms AS "in handlers_ms", use AS "token use_share"
FROM requests ORDER BY total DESC, log_id;
CREATE VIEW table_tokens AS
SELECT worker, finished AS settled, busy_ms AS "in handlers_ms",
    busy_ms / greatest(epoch_ms("last") - epoch_ms("first"), 1) AS "parallel handlers"
FROM workers;
CREATE VIEW table_inversions AS
SELECT band(priority) AS band, sum(takes)::BIGINT AS takes, sum(inverted)::BIGINT AS inverted,
    sum(inverted) / sum(takes) AS share_share, sum(sub_requests)::BIGINT AS "sub-requests"
FROM inversions GROUP BY ALL ORDER BY band;
CREATE VIEW table_inverted AS
SELECT taken AS taken_at, request, priority, waiting_request AS "while this one waited",
    waiting_priority AS "its priority", waiting_ms AS for_ms
FROM inverted;
CREATE VIEW table_waits AS
SELECT priority, waited_ms AS "longest wait_ms", request, "index", started AS started_at
FROM longest_waits
QUALIFY row_number() OVER (PARTITION BY band(priority) ORDER BY waited_ms DESC) = 1
ORDER BY priority;
CREATE VIEW table_dead AS
SELECT reason, min(error) AS "with", band(priority) AS band, sum(count)::BIGINT AS "sub-requests",
    sum(requests)::BIGINT AS requests, max("last") AS last_at
FROM dead GROUP BY reason, fingerprint, band(priority) ORDER BY sum(count) DESC, fingerprint, band;

-- The numbers at the head of the page. Windows without work do not count in the rates.
CREATE VIEW summary AS
WITH settled AS (SELECT "window", sum(finished) AS finished FROM windows GROUP BY ALL),
busy AS (SELECT "window" FROM settled UNION SELECT "window" FROM tokens WHERE used > 0),
counts AS (
    SELECT count(*) AS requests, count(*) FILTER (state = 'cancelled') AS cancelled_requests,
        count(*) FILTER (state = 'lost') AS lost_requests,
        coalesce(sum(done), 0)::BIGINT AS done, coalesce(sum(dead), 0)::BIGINT AS dead,
        coalesce(sum(cancelled), 0)::BIGINT AS cancelled, coalesce(sum(results), 0)::BIGINT AS results
    FROM archived_requests
), times AS (
    SELECT (SELECT sum(finished) FROM settled) / ((SELECT count(*) FROM busy) * width_s) AS per_s,
        (SELECT max(finished) FROM settled) / width_s AS peak_per_s,
        finished, retries, COLUMNS('_p[0-9]+_ms$'), waited_max_ms AS longest_wait_ms,
        (SELECT sum(met) / sum(finished) FROM priorities WHERE target_ms IS NOT NULL) AS attainment,
        (SELECT sum(jain * requests) / sum(requests) FROM fairness) AS jain,
        (SELECT min(jain) FROM fairness) AS jain_worst,
        (SELECT sum(used) / nullif(sum(allowed), 0) FROM tokens) AS token_use,
        (SELECT coalesce(sum(takes), 0)::BIGINT FROM inversions) AS takes,
        (SELECT coalesce(sum(inverted), 0)::BIGINT FROM inversions) AS inverted_takes,
        (SELECT count(*) FROM workers) AS workers
    FROM priorities, (SELECT getvariable('width_us') / 1e6 AS width_s) WHERE priority IS NULL
)
FROM counts LEFT JOIN times ON true;
