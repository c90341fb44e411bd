-- The messages that were pushed in each step: completed by all groups, pending in at least one, and read by no group.
-- The groups of a deleted partition are not known: its messages are counted as gone.
WITH partitions AS (
    SELECT partition_id, min(start_offset) FILTER (WHERE status IN ('ACTIVE', 'PAUSED')) AS wanted_from,
           min(pending_from) FILTER (WHERE status IN ('ACTIVE', 'PAUSED')) AS pending_from
    FROM progress
    GROUP BY partition_id
)
SELECT r.queue, r.bucket, sum(r.end_offset - r.first_offset) AS messages,
       sum(CASE WHEN l.pending_from IS NULL THEN 0
                ELSE greatest(least(r.end_offset, l.pending_from) - greatest(r.first_offset, l.wanted_from), 0) END) AS done_by_all,
       sum(CASE WHEN l.pending_from IS NULL THEN 0 ELSE greatest(r.end_offset - greatest(r.first_offset, l.pending_from), 0) END) AS owed,
       sum(CASE WHEN l.partition_id IS NULL THEN 0
                WHEN l.pending_from IS NULL THEN r.end_offset - r.first_offset
                ELSE greatest(least(r.end_offset, l.wanted_from) - r.first_offset, 0) END) AS for_nobody,
       sum(CASE WHEN l.partition_id IS NULL THEN r.end_offset - r.first_offset ELSE 0 END) AS gone
FROM runs r
LEFT JOIN partitions l ON l.partition_id = r.partition_id
GROUP BY r.queue, r.bucket
ORDER BY r.queue, r.bucket
