-- The lag of each group in each step: at its end, its maximum, and the maximum age of the oldest message.
SELECT queue, group_name, timestamp_seconds(unix_seconds(at) DIV :step * :step) AS bucket, max_by(lag, at) AS messages, max(lag) AS most,
       max(CASE WHEN lag > 0 THEN (unix_micros(at) - unix_micros(oldest_at)) / 1e6 ELSE 0 END) AS oldest_seconds
FROM samples
WHERE group_name <> ''
GROUP BY ALL
ORDER BY queue, group_name, bucket
