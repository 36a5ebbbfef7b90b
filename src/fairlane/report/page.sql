-- What the page shows: the series of bands of priorities, and the first rows of long tables.
CREATE VIEW page_tokens AS
SELECT "window", "at", band(priority) AS priority, sum(used) AS used, sum(allowed) AS allowed
FROM tokens GROUP BY ALL;
CREATE VIEW page_fairness AS
SELECT "window", "at", band(priority) AS priority, sum(jain * requests) / sum(requests) AS jain
FROM fairness GROUP BY ALL;
CREATE VIEW page_inversions AS
SELECT band(priority) AS priority, sum(takes)::BIGINT AS takes, sum(inverted)::BIGINT AS inverted,
    sum(sub_requests)::BIGINT AS sub_requests, sum(inverted) / sum(takes) AS share
FROM inversions GROUP BY ALL ORDER BY priority;
CREATE VIEW page_waits AS
FROM longest_waits
QUALIFY row_number() OVER (PARTITION BY band(priority) ORDER BY waited_ms DESC) = 1 ORDER BY priority;
CREATE VIEW page_dead AS
SELECT band(priority) AS priority, reason, fingerprint, sum(count)::BIGINT AS count,
    sum(requests)::BIGINT AS requests, min(error) AS error, max("last") AS "last"
FROM dead GROUP BY ALL ORDER BY count DESC, fingerprint, priority LIMIT getvariable('most');
CREATE VIEW page_reasons AS
SELECT reason, band(priority) AS priority, sum(count)::BIGINT AS count FROM dead GROUP BY ALL;
CREATE VIEW page_workers AS
SELECT *, busy_ms / greatest(epoch_ms("last") - epoch_ms("first"), 1) AS use FROM workers
LIMIT getvariable('most');
CREATE VIEW page_requests AS FROM requests ORDER BY total DESC, log_id LIMIT getvariable('most');
CREATE VIEW page_longest AS
FROM requests WHERE duration_ms IS NOT NULL ORDER BY duration_ms DESC LIMIT getvariable('bars');
CREATE VIEW page_priorities AS FROM priorities;
CREATE VIEW page_inverted AS FROM inverted LIMIT 10;

-- The numbers at the head of the page. Windows without work do not count in the rates.
CREATE VIEW summary AS
WITH settled AS (SELECT "window", sum(finished) AS finished FROM windows GROUP BY ALL),
busy AS (SELECT "window" FROM settled UNION SELECT "window" FROM tokens WHERE used > 0),
counts AS (
    SELECT count(*) AS requests, count(*) FILTER (state = 'cancelled') AS cancelled_requests,
        count(*) FILTER (state = 'lost') AS lost_requests,
        coalesce(sum(done), 0)::BIGINT AS done, coalesce(sum(dead), 0)::BIGINT AS dead,
        coalesce(sum(cancelled), 0)::BIGINT AS cancelled, coalesce(sum(results), 0)::BIGINT AS results,
        (SELECT count(DISTINCT (reason, fingerprint)) FROM archived_dead) AS failures
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
