-- The messages of each group: completed, pending, and behind its cursor. A dead or cancelled group has no pending messages, but it can be
-- behind.
SELECT queue, group_name, sum(completed) AS completed, sum(owed) AS owed, sum(behind) AS behind,
       sum(completed) / nullif(sum(completed) + sum(behind), 0) AS share
FROM (
    SELECT r.queue, p.group_name,
           greatest(least(r.end_offset, p.cursor) - greatest(r.first_offset, p.start_offset), 0) AS completed,
           CASE WHEN p.status IN ('ACTIVE', 'PAUSED') THEN greatest(r.end_offset - greatest(r.first_offset, p.pending_from), 0) ELSE 0 END AS owed,
           greatest(r.end_offset - greatest(r.first_offset, p.cursor), 0) AS behind
    FROM runs r
    JOIN progress p ON p.partition_id = r.partition_id AND p.group_name IS NOT NULL
)
GROUP BY queue, group_name
ORDER BY queue, group_name
