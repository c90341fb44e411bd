-- Every message once: what the log has behind the archive, and of the archive what lies before that.
-- The seam is where the tail of each partition begins, so that an archive which grows meanwhile makes neither a gap nor a double.
WITH seams AS (
    SELECT partition_id, min(`offset`) AS seam FROM tail GROUP BY partition_id
)
SELECT queue, partition, partition_id, `offset`, `timestamp` FROM tail
UNION ALL
SELECT a.queue, a.partition, a.partition_id, a.`offset`, a.`timestamp`
FROM archive a
LEFT JOIN seams s ON s.partition_id = a.partition_id
WHERE s.seam IS NULL OR a.`offset` < s.seam
