-- Seconds from push to ack in each step, by the time of the ack.
SELECT queue, group_name, bucket, messages, total[0] / 1e6 AS p50, total[1] / 1e6 AS p95, total[2] / 1e6 AS p99
FROM (
    SELECT queue, group_name, timestamp_seconds(unix_seconds(finished_at) DIV :step * :step) AS bucket, count(*) AS messages,
           percentile_approx(total, array(0.5, 0.95, 0.99), 10000) AS total
    FROM done
    GROUP BY ALL
)
ORDER BY queue, group_name, bucket
