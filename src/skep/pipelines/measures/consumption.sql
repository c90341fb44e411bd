-- The messages that each group completed in each step: differences of counters that only grow.
SELECT queue, group_name, bucket, sum(greatest(moved, 0)) AS messages, sum(greatest(moved, 0)) / :step AS per_second
FROM (
    SELECT queue, group_name, timestamp_seconds(unix_seconds(at) DIV :step * :step) AS bucket,
           total - lag(total) OVER (PARTITION BY queue, group_name ORDER BY at) AS moved
    FROM samples WHERE group_name <> ''
)
WHERE moved IS NOT NULL
GROUP BY queue, group_name, bucket
ORDER BY queue, group_name, bucket
