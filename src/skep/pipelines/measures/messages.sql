-- Every message once: those of the log that were not archived, and the archived ones before them. The boundary is the first offset that was
-- read from the log of each partition: messages that are archived meanwhile are neither missing nor counted twice.
WITH boundaries AS (
    SELECT partition_id, min(`offset`) AS first_offset FROM tail GROUP BY partition_id
)
SELECT queue, partition, partition_id, `offset`, `timestamp` FROM tail
UNION ALL
SELECT a.queue, a.partition, a.partition_id, a.`offset`, a.`timestamp`
FROM archive a
LEFT JOIN boundaries b ON b.partition_id = a.partition_id
WHERE b.first_offset IS NULL OR a.`offset` < b.first_offset
