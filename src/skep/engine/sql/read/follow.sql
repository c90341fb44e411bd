-- A group that follows an outside reader, such as a Spark stream: its cursors are set to the position of that reader,
-- so that lag and retention see it. The reader decides: cursors move back as well as forward, and leases are dropped,
-- as by a seek.

-- Locks the group on the queues of these partitions against seek, delete_group and discovery, and records a heartbeat.
-- Returns the group_queues rows.
CREATE FUNCTION skep._lock_follower(group_name text, partition_ids bigint[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    ids integer[] := skep._lock_group_queues(group_name, ARRAY(
        SELECT DISTINCT q.name FROM unnest(partition_ids) AS requested (id)
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = requested.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q));
BEGIN
    PERFORM skep._record_activity(id) FROM unnest(ids) AS id;
    RETURN ids;
END $$;

-- Returns the new cursors of the group as arrays: a join would be planned for ten partitions and be quadratic for
-- 10,000. Partitions that no longer exist are left out.
CREATE FUNCTION skep._follow_targets(
    group_queues integer[], read_partitions bigint[], start_offsets bigint[], offsets bigint[],
    OUT partition_ids bigint[], OUT group_queue_ids integer[], OUT list_ids integer[], OUT priorities integer[],
    OUT starts bigint[], OUT cursors bigint[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(p.id), array_agg(g.id), array_agg(g.list_id),
           array_agg(CASE WHEN g.list_id = g.id THEN 0 ELSE -q.priority END),
           array_agg(least(read.first, at.cursor)), array_agg(at.cursor)
    FROM (SELECT id, min(first) AS first, max(ends) AS ends
          FROM unnest(read_partitions, start_offsets, _follow_targets.offsets) AS read (id, first, ends)
          GROUP BY id ORDER BY id) read
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = read.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = read.id LIMIT 1) f
    CROSS JOIN LATERAL skep._head_of(read.id) head
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g WHERE g.id = ANY (group_queues) AND g.queue_id = p.queue_id
                        LIMIT 1) g
    CROSS JOIN LATERAL (SELECT least(greatest(read.ends, f.first_offset), head.next_offset) AS cursor) at
$$;

-- Moves a group to the position of a reader, which has read offsets [start_offsets[n], offsets[n]) of the n-th
-- partition since the last call. Returns the newest subscription of the group. If it has changed, there was a seek, and
-- the caller has to move every partition.
CREATE FUNCTION skep._move_group(group_name text, partition_ids bigint[], start_offsets bigint[], offsets bigint[])
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    ids   integer[] := skep._lock_follower(group_name, partition_ids);
    to_be record;
BEGIN
    -- Lock out retention, then pops and acks. In a shared partition the open run is locked first, so no more runs are
    -- split from it.
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = ANY (partition_ids) ORDER BY f.partition_id
    FOR KEY SHARE;
    PERFORM FROM skep.runs r WHERE r.partition_id = ANY (partition_ids) AND r.group_queue_id = ANY (ids)
        AND r.end_offset IS NULL
    ORDER BY r.partition_id, r.group_queue_id FOR UPDATE;
    DELETE FROM skep.runs r WHERE r.partition_id = ANY (partition_ids) AND r.group_queue_id = ANY (ids)
        AND r.end_offset IS NOT NULL;

    to_be := skep._follow_targets(ids, partition_ids, start_offsets, offsets);
    INSERT INTO skep.starts AS s (partition_id, group_queue_id, start_offset)
    SELECT t.id, t.group_queue_id, t.start
    FROM unnest(to_be.partition_ids, to_be.group_queue_ids, to_be.starts) AS t (id, group_queue_id, start)
    ON CONFLICT (partition_id, group_queue_id) DO UPDATE
    SET start_offset = least(s.start_offset, excluded.start_offset);
    -- The number of processed messages must not become negative.
    UPDATE skep.starts s SET skipped = least(s.skipped, t.cursor - s.start_offset)
    FROM unnest(to_be.partition_ids, to_be.group_queue_ids, to_be.cursors) AS t (id, group_queue_id, cursor)
    WHERE s.partition_id = ANY (ARRAY[t.id]) AND s.group_queue_id = t.group_queue_id
      AND s.skipped > t.cursor - s.start_offset;

    UPDATE skep.runs r
    SET first_offset = t.cursor, lease_id = NULL, leased_to = NULL, expires_at = NULL, leases = 0, succeeded = false,
        is_logged = false, cuts = NULL, attempts = NULL, done = NULL, failed = NULL, errors = NULL, retry_after = NULL,
        served_at = stamp, ready_at = skep._ready_time(stamp, stamp), drained = false
    FROM unnest(to_be.partition_ids, to_be.group_queue_ids, to_be.cursors) AS t (id, group_queue_id, cursor)
    WHERE r.partition_id = ANY (ARRAY[t.id]) AND r.group_queue_id = t.group_queue_id AND r.end_offset IS NULL;
    INSERT INTO skep.runs (partition_id, group_queue_id, list_id, first_offset, ready_at, served_at, priority)
    SELECT t.id, t.group_queue_id, t.list_id, t.cursor, skep._ready_time(stamp, stamp), stamp, t.priority
    FROM unnest(to_be.partition_ids, to_be.group_queue_ids, to_be.list_ids, to_be.cursors, to_be.priorities)
         AS t (id, group_queue_id, list_id, cursor, priority)
    WHERE NOT EXISTS (SELECT FROM skep.runs r
                      WHERE r.partition_id = t.id AND r.group_queue_id = t.group_queue_id AND r.end_offset IS NULL);
    RETURN (SELECT max(s.id) FROM skep.subscriptions s WHERE s.group_name = _move_group.group_name);
END $$;
CALL skep._allow('skep_consumer', '_move_group');
