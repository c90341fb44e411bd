-- The messages that were pushed in each step.
SELECT queue, bucket, sum(end_offset - first_offset) AS messages, sum(end_offset - first_offset) / :step AS per_second,
       count(DISTINCT partition_id) AS partitions
FROM runs
GROUP BY queue, bucket
ORDER BY queue, bucket
