-- The start of a group in a partition that it has not read yet. Its subscription decides, never the current time.

-- Returns the first offset of a partition that is not old: not before the instant, or not visible in the snapshot.
-- Binary search on the key works because created_at never decreases in a partition, and a snapshot sees a prefix of it.
CREATE FUNCTION skep._offset_at(partition_id bigint, instant timestamptz, snapshot pg_snapshot DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    low    bigint;  -- first possible result
    high   bigint;  -- no message from here on is old
    middle bigint;
    is_old boolean;
BEGIN
    SELECT f.first_offset, head.next_offset, head.next_offset - 1 INTO low, high, middle
    FROM skep.partition_floors f CROSS JOIN LATERAL skep._head_of(f.partition_id) head
    WHERE f.partition_id = _offset_at.partition_id;
    WHILE low < high LOOP  -- the last message first, because it often decides
        SELECT m.created_at < instant AND (snapshot IS NULL OR pg_visible_in_snapshot(m.xid, snapshot)) INTO is_old
        FROM skep.messages m WHERE m.partition_id = _offset_at.partition_id AND m."offset" = middle;
        -- A missing row was deleted, so it was older.
        IF is_old IS NOT FALSE THEN low := middle + 1; ELSE high := middle; END IF;
        middle := low + (high - low) / 2;
    END LOOP;
    RETURN low;
END $$;

-- Returns the most specific subscription of a group: partition, then queue, then namespace, then task.
CREATE FUNCTION skep._subscription_of(group_name text, queue text, partition text, namespace text, task text)
RETURNS skep.subscriptions
LANGUAGE sql STABLE AS $$
    SELECT s FROM skep.subscriptions s
    WHERE s.group_name = _subscription_of.group_name
      AND (s.queue = _subscription_of.queue AND (s.partition IS NULL OR s.partition = _subscription_of.partition)
           OR s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = _subscription_of.namespace)
           AND (s.task IS NULL OR s.task = _subscription_of.task))
    ORDER BY s.partition IS NOT NULL DESC, s.queue IS NOT NULL DESC, s.namespace IS NOT NULL DESC,
        s.task IS NOT NULL DESC
    LIMIT 1
$$;

-- Returns the start of a group in these partitions of a queue; no row for a partition with redriven dead letters of
-- another group. An offset is limited to the end of the partition at the time of the subscription: a later partition
-- starts at its beginning, and so do redriven dead letters. The subscription to the whole queue is looked up once.
CREATE FUNCTION skep._starting_offsets(group_name text, queue_id integer, partition_ids bigint[])
RETURNS TABLE (partition_id bigint, start_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT p.id, CASE WHEN s.mode = 'offset' AND p.only_group IS NULL THEN
                           least(greatest(s.start_offset, f.first_offset),
                                 skep._offset_at(p.id, 'infinity', s.start_snapshot))
                      WHEN s.mode IN ('timestamp', 'new') THEN skep._offset_at(p.id, s.start_at, s.start_snapshot)
                      ELSE f.first_offset END
    FROM skep.queues q
    LEFT JOIN LATERAL skep._subscription_of($1, q.name, NULL, q.namespace, q.task) wide ON true
    CROSS JOIN unnest($3) AS requested (id)
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = requested.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = requested.id LIMIT 1) f
    LEFT JOIN LATERAL (SELECT * FROM skep.subscriptions own
                       WHERE own.group_name = $1 AND coalesce(own.queue, '') = q.name
                          AND coalesce(own.partition, '') = p.name LIMIT 1) own ON true
    CROSS JOIN LATERAL (
        SELECT own.mode, own.start_at, own.start_offset, own.start_snapshot WHERE own.id IS NOT NULL
        UNION ALL
        SELECT wide.mode, wide.start_at, wide.start_offset, wide.start_snapshot WHERE own.id IS NULL) s
    WHERE q.id = $2 AND (p.only_group IS NULL OR p.only_group = $1)
$$;

-- Returns the current snapshot for later comparisons: it lists our own transaction, which pg_current_snapshot() does
-- not, as running.
CREATE FUNCTION skep._current_snapshot() RETURNS pg_snapshot
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN own < pg_snapshot_xmax(snapshot) THEN
                format('%s:%s:%s', CASE WHEN own < pg_snapshot_xmin(snapshot) THEN own
                       ELSE pg_snapshot_xmin(snapshot) END, pg_snapshot_xmax(snapshot),
                       (SELECT string_agg(running::text, ',' ORDER BY running)
                        FROM (SELECT pg_snapshot_xip(snapshot) AS running UNION SELECT own) r))::pg_snapshot
                ELSE snapshot END
    FROM pg_current_snapshot() AS snapshot, pg_current_xact_id_if_assigned() AS own
$$;

-- Returns the group whose cursor counts: all consumers of a queue with semantics 'queue' share one.
CREATE FUNCTION skep._group_of(semantics text, group_name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN $1 = 'queue' THEN '__QUEUE_MODE__' ELSE $2 END $$;
