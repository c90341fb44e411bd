-- Retention: which messages each group still requires, and which may be deleted.
--
-- A message is required by a group if the group's start is at or below it and its subscription is ACTIVE, PAUSED, or
-- DEAD for less than the queue's dead_group_grace_seconds. It is completed by the group if the group's cursor is past
-- it. Both are computed, never stored.
--
--   first_offset ............ completed ............ next_offset
--   completed by all groups   required by the group with the lowest cursor
--
-- Why retention never deletes a leased message, not even one that is leased between its decision and its delete:
--  1. It locks the partition's row of partition_floors FOR UPDATE before it decides. A group that starts or seeks in
--     the partition holds that row FOR KEY SHARE until it commits. So either retention skips the partition, or it sees
--     where the group starts, or the group tries again later and starts at the new floor.
--  2. After that it reads the runs. A run at or above the cut can only move up: no lease of it reaches below the cut.
--  3. Runs below the cut are locked if they have no lease: a pop skips them until retention has moved them up to the
--     cut and committed. A run that is leased, or that another transaction has locked, lowers the cut to its start.
--  4. Messages below the cut are deleted, and the floor is written, in the same transaction.
-- Nothing here is meant to wait for a lock: retention skips locked rows until its next visit. lock_timeout bounds
-- unexpected waits.

-- Returns the offsets of a range whose message was deleted by delete_message().
CREATE FUNCTION skep._tombstones_in(partition_id bigint, first_offset bigint, end_offset bigint) RETURNS int8multirange
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(range_agg(int8range(m."offset", m."offset" + 1)), '{}') FROM skep.messages m
            WHERE m.partition_id = _tombstones_in.partition_id AND m.payload IS NULL
              AND m."offset" >= _tombstones_in.first_offset AND m."offset" < _tombstones_in.end_offset);
END $$;

-- Returns the offsets of [first_offset, end_offset) that belong to this run and are not done.
CREATE FUNCTION skep._undone_of(r skep.runs, first_offset bigint, end_offset bigint) RETURNS int8multirange
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN greatest($1.first_offset, $2) >= least($1.end_offset, $3) THEN '{}'::int8multirange
                ELSE int8multirange(int8range(greatest($1.first_offset, $2), least($1.end_offset, $3)))
                    - coalesce($1.done, '{}') END
$$;

-- Returns the number of messages in [first_offset, end_offset) that a group has not done and that are not deleted.
CREATE FUNCTION skep._count_undone(partition_id bigint, group_queue_id integer, first_offset bigint, end_offset bigint)
RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
DECLARE
    tombstones int8multirange := skep._tombstones_in(partition_id, first_offset, end_offset);
BEGIN
    RETURN (SELECT coalesce(sum(skep._count_offsets(skep._undone_of(r, first_offset, end_offset) - tombstones)),
                            skep._count_offsets(int8multirange(int8range(first_offset,
                                greatest(first_offset, end_offset))) - tombstones))
            FROM skep.runs r WHERE r.partition_id = _count_undone.partition_id
                AND r.group_queue_id = _count_undone.group_queue_id);
END $$;

-- Locks the runs below this offset that have no lease, of one group or of all. Returns them, and the offset up to which
-- they can be moved: the start of the first run that is leased or that another session has locked. Closed runs that
-- were split from an open run after the first statement began are seen by the second one, and no run is split while the
-- open run is locked.
CREATE FUNCTION skep._lock_runs_below(partition_id bigint, cut bigint, group_queue integer,
                                      OUT row_ids tid[], OUT runs skep.runs[], OUT stop bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(array_agg(locked.row_id), '{}'), coalesce(array_agg(locked.run), '{}') INTO row_ids, runs
    FROM (SELECT r.ctid AS row_id, r AS run FROM skep.runs r
          JOIN skep.starts s ON s.partition_id = r.partition_id AND s.group_queue_id = r.group_queue_id
          WHERE r.partition_id = _lock_runs_below.partition_id AND r.first_offset < cut AND r.lease_id IS NULL
            AND (group_queue IS NULL OR r.group_queue_id = group_queue)
          FOR NO KEY UPDATE OF r, s SKIP LOCKED) locked;
    stop := least(cut, (SELECT min(r.first_offset) FROM skep.runs r
                        WHERE r.partition_id = _lock_runs_below.partition_id AND r.first_offset < cut
                          AND r.ctid <> ALL (row_ids)
                          AND (group_queue IS NULL OR r.group_queue_id = group_queue)));
END $$;

-- Moves runs that the caller has locked up to this offset. Messages below it that are not done count as skipped.
CREATE FUNCTION skep._move_runs_up(partition_id bigint, row_ids tid[], runs skep.runs[], stop bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    moved skep.runs;
BEGIN
    UPDATE skep.starts s SET skipped = s.skipped + skip.messages
    FROM (SELECT r.group_queue_id, sum(skep._count_offsets(skep._undone_of(r, 0, stop))) AS messages FROM unnest(runs) r
          GROUP BY r.group_queue_id) skip
    WHERE s.partition_id = _move_runs_up.partition_id AND s.group_queue_id = skip.group_queue_id AND skip.messages > 0;
    FOR n IN 1 .. cardinality(row_ids) LOOP
        CONTINUE WHEN runs[n].first_offset >= stop;
        moved := skep._move_run(runs[n], stop);
        -- the message to be retried was deleted
        IF runs[n].attempts IS NOT NULL AND moved.attempts IS NULL AND moved.ready_at > stamp THEN
            moved.ready_at := skep._ready_time(moved.served_at, stamp);
        END IF;
        PERFORM skep._write_run(row_ids[n], moved);
    END LOOP;
END $$;

-- Moves the runs of a group without a lease up to this offset in a partition. With concurrency > 1 these may be behind
-- a leased run, which stays as it is: no message is deleted here, so nothing below the offset has to be done.
CREATE FUNCTION skep._advance_cursor(partition_id bigint, cut bigint, group_queue_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    locked record := skep._lock_runs_below(partition_id, cut, group_queue_id);
BEGIN
    PERFORM skep._move_runs_up(partition_id, locked.row_ids, locked.runs, cut);
END $$;

-- Moves groups whose cursor is below a deletion up to the first message that is kept, and records the messages that
-- each of them missed. Returns the offset that the deletion can reach, and the number of missed messages.
CREATE FUNCTION skep._advance_groups_behind(
    partition_id bigint, first_offset bigint, cut bigint, rule text, OUT stop bigint, OUT missed bigint
)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    locked record := skep._lock_runs_below(partition_id, cut, NULL);
    tombstones   int8multirange;
BEGIN
    stop := locked.stop;
    missed := 0;
    IF stop <= first_offset THEN
        RETURN;
    END IF;
    tombstones := skep._tombstones_in(partition_id, first_offset, stop);
    WITH recorded AS (
        INSERT INTO skep.missed_messages
            AS m (group_name, queue, partition, partition_id, first_offset, end_offset, messages, rule)
        SELECT behind.group_name, q.name, p.name, p.id, behind."position", stop, behind.messages, rule
        FROM (SELECT o.group_name, o."position", coalesce(
                         (SELECT sum(skep._count_offsets(skep._undone_of(r, o.pending_from, stop) - tombstones))
                          FROM unnest(locked.runs) r WHERE r.group_queue_id = o.group_queue_id),
                         skep._count_offsets(int8multirange(int8range(least(o.pending_from, stop), stop)) - tombstones))
                             AS messages
              FROM skep._group_cursors(ARRAY[partition_id]) o
              WHERE o."position" < stop AND o.status <> 'CANCELLED') behind
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = _advance_groups_behind.partition_id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        WHERE behind.messages > 0
        RETURNING m.messages
    )
    SELECT coalesce(sum(recorded.messages), 0) INTO missed FROM recorded;
    PERFORM skep._move_runs_up(partition_id, locked.row_ids, locked.runs, stop);
END $$;

-- Divides max_messages among partitions by the number of messages to delete: equal quotas, and a partition that needs
-- less leaves the rest to the others. A quota is at least a hundredth, so that a call does not visit thousands of
-- partitions for one message each.
CREATE FUNCTION skep._assign_quotas(
    partition_ids bigint[], sizes bigint[], max_messages bigint, OUT ids bigint[], OUT quotas bigint[]
)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    left_over  bigint := max_messages;
    partitions bigint := cardinality(partition_ids);
    quota      bigint;
    due        record;
BEGIN
    FOR due IN SELECT d.id, d.size FROM unnest(partition_ids, sizes) AS d (id, size) ORDER BY d.size, d.id LOOP
        EXIT WHEN left_over <= 0;
        quota := least(due.size, left_over, greatest(left_over / partitions, max_messages / 100, 1));
        ids := ids || due.id;
        quotas := quotas || quota;
        left_over := left_over - quota;
        partitions := partitions - 1;
    END LOOP;
END $$;

-- Writes the samples of these partitions, except locked ones.
CREATE FUNCTION skep._sample_completed(partition_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    mine bigint[] := ARRAY(
        SELECT f.partition_id FROM unnest(partition_ids) AS due (id)
        CROSS JOIN LATERAL (SELECT f.partition_id FROM skep.partition_floors f WHERE f.partition_id = due.id
                            FOR NO KEY UPDATE SKIP LOCKED) f);
BEGIN
    UPDATE skep.partition_floors f SET completed_offsets = r.sample_offsets, completed_times = r.sample_times
    FROM unnest(mine) AS due (id) CROSS JOIN LATERAL skep._retention_of(ARRAY[due.id]) r
    WHERE f.partition_id = ANY (ARRAY[due.id]) AND NOT r.is_sampled;
END $$;

-- Deletes the messages of [first_offset, stop), and writes the new floors. deleted_xid is the transaction of the last
-- deleted message: a reader that has not seen it has lost messages.
CREATE FUNCTION skep._delete_messages(partition_ids bigint[], first_offsets bigint[], stops bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE skep.partition_floors f
    SET first_offset = due.stop, deleted_xid = last.xid, deleted_created_at = last.created_at,
        (completed_offsets, completed_times) = (
            SELECT array_agg(s."offset" ORDER BY s.at), array_agg(s.at ORDER BY s.at)
            FROM unnest(f.completed_offsets, f.completed_times) AS s ("offset", at) WHERE s."offset" > due.stop)
    FROM unnest(partition_ids, stops) AS due (id, stop)
    CROSS JOIN LATERAL (SELECT m.xid, m.created_at FROM skep.messages m
                        WHERE m.partition_id = due.id AND m."offset" = due.stop - 1 LIMIT 1) last
    WHERE f.partition_id = ANY (ARRAY[due.id]);
    -- From the old floor on: index entries of messages that were deleted earlier stay as long as a transaction may see
    -- them.
    DELETE FROM skep.messages m USING unnest(partition_ids, first_offsets, stops) AS due (id, first, stop)
    WHERE m.partition_id = ANY (ARRAY[due.id]) AND m."offset" >= due.first AND m."offset" < due.stop;
    PERFORM skep._request_count(ARRAY(SELECT DISTINCT p.queue_id FROM skep.partitions p
                                    WHERE p.id = ANY (partition_ids)));
END $$;

-- Deletes the messages of these partitions that the rules allow, up to the quota of each.
CREATE FUNCTION skep._retain(partition_ids bigint[], quotas bigint[])
RETURNS TABLE (queue text, partition text, partition_id bigint, rule text, first_offset bigint, end_offset bigint,
               missed bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine     record;
    due      record;
    advanced record;
    ids      bigint[] := '{}';
    firsts   bigint[] := '{}';
    stops    bigint[] := '{}';
BEGIN
    SELECT array_agg(f.partition_id) AS ids, array_agg(chosen.quota) AS quotas INTO mine
    FROM unnest(_retain.partition_ids, _retain.quotas) AS chosen (id, quota)
    CROSS JOIN LATERAL (SELECT f.partition_id FROM skep.partition_floors f WHERE f.partition_id = chosen.id
                        FOR UPDATE SKIP LOCKED) f;
    FOR due IN  -- a new statement: it sees the state that the locks protect
        SELECT r.*, least(r.cut, r.first_offset + chosen.quota) AS stop
        FROM unnest(mine.ids, mine.quotas) AS chosen (id, quota)
        CROSS JOIN LATERAL skep._retention_of(ARRAY[chosen.id]) r
        WHERE r.cut > r.first_offset ORDER BY r.partition_id
    LOOP
        missed := 0;
        IF due.lowest < due.stop THEN
            advanced := skep._advance_groups_behind(due.partition_id, due.first_offset, due.stop, due.rule);
            due.stop := advanced.stop;
            missed := advanced.missed;
            CONTINUE WHEN due.stop <= due.first_offset;
        END IF;
        ids := ids || due.partition_id;
        firsts := firsts || due.first_offset;
        stops := stops || due.stop;
        queue := due.queue; partition := due.partition; partition_id := due.partition_id; rule := due.rule;
        first_offset := due.first_offset; end_offset := due.stop;
        RETURN NEXT;
    END LOOP;
    PERFORM skep._delete_messages(ids, firsts, stops);
END $$;

-- Call it again while it deletes max_messages. It is safe to run any number of times at once, anywhere, and to kill.
CREATE FUNCTION skep.retain(
    partition_ids bigint[] DEFAULT NULL, max_messages integer DEFAULT 10000, dry_run boolean DEFAULT false
)
RETURNS TABLE (queue text, partition text, partition_id bigint, rule text, first_offset bigint, end_offset bigint,
               missed bigint)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    visit  record;
    chosen record;
BEGIN
    partition_ids := coalesce(partition_ids, skep._partitions_to_retain(0, NULL));
    IF dry_run THEN
        RETURN QUERY
        SELECT r.queue, r.partition, r.partition_id, r.rule, r.first_offset, r.cut, (
                   SELECT coalesce(sum(skep._count_undone(o.partition_id, o.group_queue_id, o.pending_from, r.cut)),
                                   0)::bigint
                   FROM skep._group_cursors(ARRAY[r.partition_id]) o
                   WHERE o."position" < r.cut AND o.status <> 'CANCELLED')
        FROM skep._retainable(partition_ids) r ORDER BY r.partition_id;
        RETURN;
    END IF;
    PERFORM skep._require_read_committed('retain');
    SELECT array_agg(r.partition_id) FILTER (WHERE r.cut > r.first_offset) AS ids,
           array_agg(r.cut - r.first_offset) FILTER (WHERE r.cut > r.first_offset) AS sizes,
           array_agg(r.partition_id) FILTER (WHERE NOT r.is_sampled) AS unsampled
    INTO visit FROM skep._retention_of(partition_ids) r;
    IF visit.unsampled IS NOT NULL THEN
        PERFORM skep._sample_completed(visit.unsampled);
    END IF;
    IF visit.ids IS NOT NULL THEN
        chosen := skep._assign_quotas(visit.ids, visit.sizes, max_messages);
        RETURN QUERY SELECT * FROM skep._retain(chosen.ids, chosen.quotas);
    END IF;
END $$;
COMMENT ON FUNCTION skep.retain IS
    'Deletes messages that the retention rules of their queues no longer keep, at most max_messages in a call. Returns '
    'the deleted offsets of each partition; dry_run only returns them.';
CALL skep._allow('skep_admin', 'retain');

-- Returns the next partitions of queues with a retention rule, in order of id, so that a caller can visit all of them
-- in small steps.
CREATE FUNCTION skep._partitions_to_retain(after bigint, max_partitions integer) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(page.id), '{}') FROM (
        SELECT p.id FROM skep.partitions p
        CROSS JOIN LATERAL (SELECT FROM skep.queues q WHERE q.id = p.queue_id AND skep._has_retention(q) LIMIT 1) q
        WHERE p.id > $1 AND EXISTS (SELECT FROM skep.queues q WHERE skep._has_retention(q))
        ORDER BY p.id LIMIT $2) page
$$;
CALL skep._allow('skep_admin', '_partitions_to_retain');

-- Records that every message below this offset is in the archive; the mark never moves back. The floor is locked so
-- that upkeep, which never waits, does not drop the partition while this transaction is open.
CREATE FUNCTION skep._mark_archived(partition_id bigint, end_offset bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO skep.archive_marks AS a (partition_id, end_offset)
    SELECT f.partition_id, $2 FROM (SELECT f.partition_id FROM skep.partition_floors f WHERE f.partition_id = $1
                                    FOR KEY SHARE) f
    ON CONFLICT (partition_id) DO UPDATE SET end_offset = greatest(a.end_offset, excluded.end_offset),
        marked_at = clock_timestamp()
$$;
CALL skep._allow('skep_admin', '_mark_archived');

-- Locks partitions against pushes, starts, seeks and pops, and skips those that another session has locked. Returns the
-- ones that are still empty and idle, and whose runs are all locked and without a lease.
CREATE FUNCTION skep._lock_idle(partition_ids bigint[], idle_seconds double precision) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    mine record;
BEGIN
    SELECT array_agg(requested.id) AS ids, array_agg(r.number) AS runs INTO mine
    FROM unnest(partition_ids) AS requested (id)
    CROSS JOIN LATERAL (SELECT FROM skep.partition_floors f WHERE f.partition_id = requested.id
                        FOR UPDATE SKIP LOCKED) f
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (SELECT FROM skep.runs r
            JOIN skep.starts s ON s.partition_id = r.partition_id AND s.group_queue_id = r.group_queue_id
            WHERE r.partition_id = requested.id FOR UPDATE OF r, s SKIP LOCKED) locked) r
    CROSS JOIN LATERAL (SELECT FROM skep.partitions p WHERE p.id = requested.id FOR UPDATE SKIP LOCKED) p;
    RETURN ARRAY(
        SELECT p.id FROM unnest(mine.ids, mine.runs) AS locked (id, runs)
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = locked.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT count(*) AS number, count(r.lease_id) AS leases FROM skep.runs r
                            WHERE r.partition_id = locked.id) r
        WHERE r.number = locked.runs AND r.leases = 0 AND skep._is_idle(p, idle_seconds));
END $$;

-- Returns true if a partition is empty, has no delayed messages, and its last message is older than this.
CREATE FUNCTION skep._is_idle(p skep.partitions, idle_seconds double precision) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT head.next_offset = f.first_offset
                   AND greatest(head.last_time, p.created_at) < clock_timestamp() - skep._seconds(idle_seconds)
                   AND NOT EXISTS (SELECT FROM skep.delayed_messages d WHERE d.partition_id = p.id)
            FROM skep.partition_floors f CROSS JOIN LATERAL skep._head_of(f.partition_id) head
            WHERE f.partition_id = p.id);
END $$;

-- A push that waits for this creates the partition again, with a new id: every group starts at its beginning. The queue
-- is locked because totals are kept by queue (see _save_deleted_totals). partition_ids: only these partitions.
CREATE FUNCTION skep.drop_idle_partitions(max_partitions integer DEFAULT 1000, partition_ids bigint[] DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    q       record;
    idle    bigint[];
    dropped bigint := 0;
BEGIN
    PERFORM skep._require_read_committed('drop_idle_partitions');
    FOR q IN SELECT o.id, o.drop_idle_seconds FROM skep.queues o WHERE o.drop_idle_seconds IS NOT NULL
        ORDER BY o.id LOOP
        EXIT WHEN dropped >= max_partitions;
        idle := ARRAY(SELECT p.id FROM skep.partitions p
                      WHERE p.queue_id = q.id AND (partition_ids IS NULL OR p.id = ANY (partition_ids))
                        AND skep._is_idle(p, q.drop_idle_seconds)
                      ORDER BY p.id LIMIT max_partitions - dropped);
        CONTINUE WHEN idle = '{}';
        PERFORM FROM skep.queues o WHERE o.id = q.id FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        idle := skep._lock_idle(idle, q.drop_idle_seconds);
        PERFORM skep._save_deleted_totals(idle);
        PERFORM skep._delete_partitions(idle);
        dropped := dropped + cardinality(idle);
    END LOOP;
    RETURN dropped;
END $$;
COMMENT ON FUNCTION skep.drop_idle_partitions IS
    'Drops partitions that are empty and have been idle for the drop_idle_seconds of their queue, and returns their '
    'number.';
CALL skep._allow('skep_admin', 'drop_idle_partitions');
