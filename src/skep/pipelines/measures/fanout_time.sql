-- Seconds from push until the last group completed a message, for messages that all their groups have completed.
WITH wanted AS (
    SELECT partition_id, collect_list(start_offset) AS starts, collect_list(group_name) AS names
    FROM progress WHERE status IN ('ACTIVE', 'PAUSED')
    GROUP BY partition_id
), last AS (
    SELECT d.queue, d.partition_id, d.`offset`, max(d.total) AS total, count(*) AS groups,
           any_value(size(filter(w.starts, start -> start <= d.`offset`))) AS wanted
    FROM done d
    JOIN wanted w ON w.partition_id = d.partition_id AND array_contains(w.names, d.group_name)
    GROUP BY d.queue, d.partition_id, d.`offset`
)
SELECT queue, messages, total[0] / 1e6 AS p50, total[1] / 1e6 AS p95, total[2] / 1e6 AS p99
FROM (
    SELECT queue, count(*) AS messages, percentile_approx(total, array(0.5, 0.95, 0.99), 10000) AS total
    FROM last
    WHERE groups >= wanted
    GROUP BY queue
)
ORDER BY queue
