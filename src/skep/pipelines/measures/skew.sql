-- The distribution of messages over the partitions of a queue. gini: 0 if it is even, 1 if one partition has all messages.
WITH sizes AS (
    SELECT queue, partition, sum(end_offset - first_offset) AS messages FROM runs GROUP BY queue, partition
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY queue ORDER BY messages, partition) AS rank FROM sizes
)
SELECT queue, count(*) AS partitions, sum(messages) AS messages, avg(messages) AS average, max(messages) AS largest,
       max_by(partition, messages) AS largest_partition, max(messages) / avg(messages) AS skew, max(messages) / sum(messages) AS largest_share,
       2 * sum(rank * messages) / (count(*) * sum(messages)) - (count(*) + 1) / count(*) AS gini
FROM ranked
GROUP BY queue
ORDER BY queue
