-- The partitions with the most messages, their share of the queue, and their busiest step.
WITH sizes AS (
    SELECT queue, partition, sum(end_offset - first_offset) AS messages, max(end_offset - first_offset) / :step AS busiest_per_second,
           max_by(bucket, end_offset - first_offset) AS busiest_at
    FROM runs
    GROUP BY queue, partition
), ranked AS (
    SELECT *, messages / sum(messages) OVER (PARTITION BY queue) AS share,
           row_number() OVER (PARTITION BY queue ORDER BY messages DESC, partition) AS rank
    FROM sizes
)
SELECT queue, rank, partition, messages, share, busiest_per_second, busiest_at
FROM ranked
WHERE rank <= 20
ORDER BY queue, rank
