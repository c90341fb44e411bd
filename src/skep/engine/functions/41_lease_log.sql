-- The log of finished leases, of queues that have the option lease_log_seconds. complete() and judge() write a row as they end a lease, in its
-- transaction: the log is exactly as true as the cursors are. What is dropped (seek, delete) was not finished and is not logged.

-- When the first and the last message of a run were pushed.
CREATE FUNCTION skep.pushed_between(partition_id bigint, first_offset bigint, end_offset bigint)
RETURNS TABLE (first_at timestamptz, last_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" = $2),
           (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" = $3 - 1)
$$;

CREATE FUNCTION skep.log_completed(leases skep.leases[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.lease_log
    SELECT q.id, r.group_name, s.partition_id, s.first_offset, s.end_offset, s.attempt, 'completed', '{}', edge.*, s.leased_at, clock_timestamp()
    FROM unnest(log_completed.leases) s
    JOIN skep.readers r ON r.id = s.reader_id
    JOIN skep.queues q ON q.id = r.queue_id
    CROSS JOIN LATERAL skep.pushed_between(s.partition_id, s.first_offset, s.end_offset) edge
    WHERE q.lease_log_seconds IS NOT NULL;
END $$;

-- Forgets what is older than its queue wants it, and the log of queues that want none any more: some at a time, to be called again.
CREATE FUNCTION skep.prune_lease_log(max_rows integer DEFAULT 100000) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    queue  record;
    pruned bigint := 0;
    gone   bigint;
BEGIN
    FOR queue IN
        SELECT q.id, clock_timestamp() - skep.seconds(coalesce(q.lease_log_seconds, 0)) AS oldest FROM skep.queues q
        WHERE EXISTS (SELECT FROM skep.lease_log g WHERE g.queue_id = q.id)
    LOOP
        DELETE FROM skep.lease_log WHERE ctid = ANY (ARRAY(
            SELECT g.ctid FROM skep.lease_log g WHERE g.queue_id = queue.id AND g.finished_at < queue.oldest
            ORDER BY g.finished_at LIMIT max_rows - pruned FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS gone = ROW_COUNT;
        pruned := pruned + gone;
    END LOOP;
    RETURN pruned;
END $$;
