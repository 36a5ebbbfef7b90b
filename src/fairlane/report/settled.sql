-- What was settled, by window and priority, or by bands or all of them. Percentiles are exact.
WITH merged AS (
    SELECT $window AS "window", $priority AS priority, count(*) AS finished,
        count(*) FILTER (status = 'dead') AS dead,
        sum(greatest(attempt - 1, 0))::BIGINT AS retries,
        max(waited_ms) AS waited_max_ms, sum(ran_ms) AS busy_ms,
        count(target_ms) AS aimed,
        count(*) FILTER (status = 'done' AND total_ms <= target_ms) AS met,
        if(count(target_ms) = count(*) AND min(target_ms) = max(target_ms), min(target_ms), NULL) AS one,
        count(*) FILTER (status = 'done' AND total_ms <= 1_000) AS within_1s,
        count(*) FILTER (status = 'done' AND total_ms <= 10_000) AS within_10s,
        count(*) FILTER (status = 'done' AND total_ms <= 60_000) AS within_1m,
        count(*) FILTER (status = 'done' AND total_ms <= 600_000) AS within_10m,
        quantile_disc(waited_us, [0.5, 0.95, 0.99]) AS waited,
        quantile_disc(ran_us, [0.5, 0.95, 0.99]) AS ran,
        quantile_disc(total_us, [0.5, 0.95, 0.99]) AS total
    FROM results GROUP BY ALL
)
SELECT * EXCLUDE (one, waited, ran, total),
    if(priority IS NULL, NULL, one) AS target_ms,
    moment(begin_of("window", getvariable('width_us'))) AS "at",
    waited[1] / 1000 AS waited_p50_ms, waited[2] / 1000 AS waited_p95_ms, waited[3] / 1000 AS waited_p99_ms,
    ran[1] / 1000 AS ran_p50_ms, ran[2] / 1000 AS ran_p95_ms, ran[3] / 1000 AS ran_p99_ms,
    total[1] / 1000 AS total_p50_ms, total[2] / 1000 AS total_p95_ms, total[3] / 1000 AS total_p99_ms
FROM merged WHERE finished > 0
