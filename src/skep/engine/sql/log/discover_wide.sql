-- Discovery for groups that read namespaces and tasks: queues that are new to their list, and pushes to them.

-- Adds group_queues rows for queues that are new to a list of namespaces and tasks. A row that another transaction is
-- adding is left out, because the insert would wait until that transaction ends. Wide pops of the group see each other
-- by the locks of _lock_starts(), with queues in the place of partitions. A pop of the queue by its name does not take
-- them, so the timeout bounds that wait.
CREATE FUNCTION skep._add_group_queues(list integer, group_name text, queue_ids integer[]) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    missing bigint[] := ARRAY(
        SELECT q.id FROM skep.queues q
        WHERE q.id = ANY (queue_ids) AND q.semantics <> 'queue'
          AND NOT EXISTS (SELECT FROM skep.group_queues g
                          WHERE g.group_name = _add_group_queues.group_name AND g.queue_id = q.id)
          AND EXISTS (SELECT FROM skep.subscriptions s
                      WHERE s.group_name = _add_group_queues.group_name AND s.queue IS NULL
                        AND (s.namespace IS NULL OR s.namespace = q.namespace)
                        AND (s.task IS NULL OR s.task = q.task))
        ORDER BY q.id);
BEGIN
    IF missing <> '{}' THEN
        missing := skep._lock_starts(list, missing);
        INSERT INTO skep.group_queues (id, group_name, queue_id, list_id) OVERRIDING SYSTEM VALUE
        SELECT skep._new_group_queue_id(), _add_group_queues.group_name, q.id, list FROM skep.queues q
        WHERE q.id = ANY (missing)
          AND NOT EXISTS (SELECT FROM skep.group_queues g
                          WHERE g.group_name = _add_group_queues.group_name AND g.queue_id = q.id)
        ORDER BY q.id FOR KEY SHARE OF q SKIP LOCKED
        ON CONFLICT DO NOTHING;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    NULL;  -- the next discovery tries again
END $$;

-- Returns true if a list of namespaces and tasks covers one of these queues (NULL: any queue) and does not have it yet.
CREATE FUNCTION skep._lacks_queue(list integer, queue_ids integer[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM skep.group_queues w
        JOIN skep.subscriptions s ON s.group_name = w.group_name AND s.queue IS NULL
        JOIN skep.queues q ON (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task)
        WHERE w.id = list AND q.semantics <> 'queue' AND (queue_ids IS NULL OR q.id = ANY (queue_ids))
          AND NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.group_name = w.group_name AND g.queue_id = q.id));
END $$;

-- Returns the partitions of a list of namespaces and tasks with pushes since the snapshot. It reads the pushes to all
-- queues and keeps those of queues that the group reads. 0, which is not a partition, means that a covered queue is
-- locked and was not added, so these pushes must be read again. (delete_queue() has locked it, and may be rolled back;
-- or another pop is adding it.)
CREATE FUNCTION skep._unseen_wide_partitions(list integer, snapshot pg_snapshot) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    pushed record;
BEGIN
    SELECT array_agg(j.queue_id) AS queue_ids, array_agg(j.partition_id) AS partition_ids INTO pushed
    FROM (
        SELECT j.queue_id, unnest(j.partition_ids) AS partition_id FROM skep.journal j
        WHERE j.xid >= pg_snapshot_xmax(_unseen_wide_partitions.snapshot)
        UNION ALL
        SELECT j.queue_id, unnest(j.partition_ids) FROM pg_snapshot_xip(_unseen_wide_partitions.snapshot) AS running
        CROSS JOIN LATERAL (SELECT * FROM skep.journal j WHERE j.xid = running OFFSET 0) j
    ) j;
    IF pushed.queue_ids IS NOT NULL THEN
        PERFORM skep._add_group_queues(list, g.group_name, ARRAY(SELECT DISTINCT unnest(pushed.queue_ids)))
        FROM skep.group_queues g WHERE g.id = list;
        RETURN QUERY
        SELECT pushed.partition_id FROM unnest(pushed.queue_ids, pushed.partition_ids)
            AS pushed (queue_id, partition_id)
        JOIN skep.group_queues w ON w.id = list
        CROSS JOIN LATERAL (SELECT FROM skep.group_queues g
                            WHERE g.group_name = w.group_name AND g.queue_id = pushed.queue_id
                               AND g.list_id = list LIMIT 1) g
        UNION ALL
        SELECT 0 WHERE skep._lacks_queue(list, pushed.queue_ids);
    END IF;
END $$;
