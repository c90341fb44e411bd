-- The log of finished leases, for queues with the option lease_log_seconds. The row is written in the transaction that
-- ends the lease, so the log always agrees with the cursors. A lease that is dropped by a seek or a delete is not
-- finished and not logged.

CREATE FUNCTION skep._log_lease(
    r skep.runs, policy skep.policy, reason text, returned int8multirange, attempt integer, stamp timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.lease_log (queue_id, group_name, partition_id, first_offset, end_offset, attempt, reason, returned,
                                first_pushed_at, last_pushed_at, leased_at, finished_at)
    VALUES (policy.queue_id, policy.group_name, r.partition_id, r.first_offset, r.leased_to, attempt, reason, returned,
            (SELECT m.created_at FROM skep.messages m
             WHERE m.partition_id = r.partition_id AND m."offset" = r.first_offset),
            (SELECT m.created_at FROM skep.messages m
             WHERE m.partition_id = r.partition_id AND m."offset" = r.leased_to - 1), r.served_at, stamp);
END $$;

-- Deletes rows that are older than the queue's lease_log_seconds, and the log of queues that no longer have the option.
-- Deletes at most max_rows rows and returns the number, so that the caller can repeat it.
CREATE FUNCTION skep._prune_lease_log(max_rows integer DEFAULT 100000) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    queue  record;
    pruned bigint := 0;
    deleted   bigint;
BEGIN
    FOR queue IN
        SELECT q.id, clock_timestamp() - skep._seconds(coalesce(q.lease_log_seconds, 0)) AS oldest FROM skep.queues q
        WHERE EXISTS (SELECT FROM skep.lease_log g WHERE g.queue_id = q.id)
    LOOP
        DELETE FROM skep.lease_log WHERE ctid = ANY (ARRAY(
            SELECT g.ctid FROM skep.lease_log g WHERE g.queue_id = queue.id AND g.finished_at < queue.oldest
            ORDER BY g.finished_at LIMIT max_rows - pruned FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS deleted = ROW_COUNT;
        pruned := pruned + deleted;
    END LOOP;
    RETURN pruned;
END $$;
CALL skep._allow('skep_admin', '_prune_lease_log');
