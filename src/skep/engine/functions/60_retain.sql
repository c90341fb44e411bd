-- What each lane still owes to whom, and what may be deleted.
--
-- A message is required by a group if the group's subscription is ACTIVE or PAUSED and starts at or below it; it is completed by the
-- group if the group's cursor is past it. Both are computed, never stored: nothing to drift, and publishing costs nothing per group.
--
--   first_offset ........ floor ........ last_offset
--   completed by all      required by the group that is furthest behind

-- Every group that a lane is for, and where it is. A work queue is always owed to somebody, also before the first consumer came.
CREATE FUNCTION skep.obligations(lanes bigint[])
RETURNS TABLE (partition_id bigint, group_name text, status text, reader_id integer, "position" bigint, owed_from bigint)
LANGUAGE sql STABLE AS $$
    SELECT lane.id, lane.group_name, lane.status, lane.reader_id, lane.at,
           greatest(lane.at, CASE WHEN NOT lane.backfill THEN skep.offset_at(lane.id, lane.subscribed_at) END)
    FROM (
        SELECT p.id, g.group_name, coalesce(s.status, 'ACTIVE') AS status, r.id AS reader_id, s.backfill, s.created_at AS subscribed_at,
               greatest(coalesce(c.cursor, st.start_offset), l.first_offset) AS at
        FROM unnest($1) AS lane (id)
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = lane.id ORDER BY l.generation DESC LIMIT 1) l
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        CROSS JOIN LATERAL (
            SELECT s.group_name FROM skep.subscriptions s WHERE s.queue = q.name AND q.semantics <> 'queue'
            UNION
            SELECT s.group_name FROM skep.subscriptions s
            WHERE s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task)
              AND q.semantics <> 'queue'
            UNION
            SELECT '__QUEUE_MODE__' WHERE q.semantics = 'queue'
        ) g
        LEFT JOIN LATERAL skep.subscription_of(g.group_name, q.name, p.name, q.namespace, q.task) s ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.readers r WHERE r.queue_id = q.id AND r.group_name = g.group_name LIMIT 1) r ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = r.id ORDER BY c.next_offset DESC LIMIT 1) c ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.starts(g.group_name, q.id, ARRAY[p.id]) WHERE c.reader_id IS NULL) st ON true
        WHERE (p.only_group IS NULL OR p.only_group = g.group_name) AND (s.id IS NOT NULL OR q.semantics = 'queue' OR p.only_group IS NOT NULL)
    ) lane
$$;

-- Up to which offset each lane may be emptied, and by which rule. Lanes with nothing to delete are not listed. A leased message is
-- never taken.
CREATE FUNCTION skep.retainable(lanes bigint[])
RETURNS TABLE (queue text, partition text, partition_id bigint, first_offset bigint, cut bigint, rule text)
LANGUAGE sql STABLE AS $$
    SELECT verdict.queue, verdict.partition, verdict.partition_id, verdict.first_offset, verdict.cut, verdict.rule
    FROM (
        SELECT q.name AS queue, p.name AS partition, p.id AS partition_id, l.first_offset, choice.rule,
               least(choice.cut, l.last_offset + 1, CASE WHEN q.retain_until_archived THEN coalesce(a.end_offset, 0) END, (
                   SELECT s.first_offset FROM (SELECT * FROM skep.leases s WHERE s.partition_id = p.id OFFSET 0) s
                   WHERE s.token IS NOT NULL ORDER BY s.first_offset LIMIT 1)) AS cut
        FROM unnest($1) AS lane (id)
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = lane.id ORDER BY l.generation DESC LIMIT 1) l
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        LEFT JOIN LATERAL (SELECT * FROM skep.archive_marks a WHERE a.partition_id = p.id LIMIT 1) a ON true
        CROSS JOIN LATERAL (
            SELECT count(*) AS groups, min(o.owed_from) AS floor FROM skep.obligations(ARRAY[p.id]) o
            WHERE o.status IN ('ACTIVE', 'PAUSED')
        ) owed
        CROSS JOIN LATERAL (
            SELECT candidate.rule, candidate.cut FROM (VALUES
                ('retention_seconds', CASE WHEN q.retention_seconds IS NOT NULL THEN
                    skep.offset_at(p.id, clock_timestamp() - skep.seconds(q.retention_seconds)) END),
                ('max_size', CASE WHEN q.max_size IS NOT NULL THEN l.last_offset + 1 - q.max_size END),
                ('completed_retention_seconds', CASE WHEN q.completed_retention_seconds IS NOT NULL AND owed.groups > 0 THEN
                    least(owed.floor, skep.offset_at(p.id, clock_timestamp() - skep.seconds(q.completed_retention_seconds))) END),
                ('zero_subscriber_retention_seconds', CASE WHEN q.zero_subscriber_retention_seconds IS NOT NULL AND owed.groups = 0 THEN
                    skep.offset_at(p.id, clock_timestamp() - skep.seconds(q.zero_subscriber_retention_seconds)) END)
            ) AS candidate (rule, cut)
            WHERE candidate.cut IS NOT NULL ORDER BY candidate.cut DESC LIMIT 1
        ) choice
        WHERE l.first_offset <= l.last_offset
          AND num_nonnulls(q.retention_seconds, q.max_size, q.completed_retention_seconds, q.zero_subscriber_retention_seconds) > 0
    ) verdict
    WHERE verdict.cut > verdict.first_offset
$$;

-- How many messages of [first_offset, end_offset) a group has not done and nobody deleted.
CREATE FUNCTION skep.undone(partition_id bigint, reader_id integer, first_offset bigint, end_offset bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT greatest($4 - $3, 0) - skep.count_offsets(int8multirange(int8range($3, greatest($4, $3))) * (
        skep.deleted_in($1, $3, $4) + coalesce((
            SELECT range_agg(piece) FROM (SELECT s.done FROM skep.leases s WHERE s.partition_id = $1 AND s.reader_id = $2 OFFSET 0) run
            CROSS JOIN LATERAL unnest(run.done) AS piece), '{}')))  -- range_agg of multiranges came with PostgreSQL 15
$$;

-- Moves a group, or all, of a lane up to this offset, past everything that waits below it. The caller holds the cursors; nothing
-- below is leased.
CREATE FUNCTION skep.advance(lane bigint, cut bigint, reader integer) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM skep.leases s
    WHERE s.partition_id = lane AND s.token IS NULL AND s.end_offset <= advance.cut AND (reader IS NULL OR s.reader_id = reader);
    UPDATE skep.leases s SET first_offset = advance.cut, done = s.done * int8multirange(int8range(advance.cut, s.end_offset))
    WHERE s.partition_id = lane AND s.token IS NULL AND s.first_offset < advance.cut AND (reader IS NULL OR s.reader_id = reader);
    UPDATE skep.cursors c
    SET returned = run.returned, next_offset = greatest(c.next_offset, advance.cut),
        cursor = coalesce(run.lowest, greatest(c.next_offset, advance.cut))
    FROM (
        SELECT c.reader_id, count(s.first_offset) FILTER (WHERE s.token IS NULL) AS returned, min(s.first_offset) AS lowest
        FROM skep.cursors c LEFT JOIN LATERAL (
            SELECT * FROM skep.leases s WHERE s.partition_id = lane AND s.reader_id = c.reader_id OFFSET 0) s ON true
        WHERE c.partition_id = lane AND c.cursor < advance.cut AND (reader IS NULL OR c.reader_id = reader) GROUP BY c.reader_id
    ) run
    WHERE c.partition_id = lane AND c.reader_id = run.reader_id;
END $$;

-- Moves groups that a deletion overtakes to where messages begin again, and writes down exactly what each of them missed.
CREATE FUNCTION skep.overtake(lane bigint, cut bigint, rule text) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    missed bigint;
BEGIN
    WITH behind AS (
        SELECT o.group_name, q.name AS queue, p.name AS partition, o."position",
               skep.undone(lane, o.reader_id, o.owed_from, overtake.cut) AS messages
        FROM skep.obligations(ARRAY[lane]) o
        JOIN skep.partitions p ON p.id = lane JOIN skep.queues q ON q.id = p.queue_id
        WHERE o."position" < overtake.cut AND o.status <> 'CANCELLED'
    ), noted AS (
        INSERT INTO skep.missed (group_name, queue, partition, partition_id, first_offset, end_offset, messages, rule)
        SELECT group_name, queue, partition, lane, "position", overtake.cut, messages, overtake.rule FROM behind WHERE messages > 0
        RETURNING messages
    )
    SELECT coalesce(sum(messages), 0) INTO missed FROM noted;

    PERFORM skep.advance(lane, overtake.cut, NULL);
    RETURN missed;
END $$;

-- Deletes what the rules allow, at most so many messages of each lane: all of them, or a page (see lanes_after). Safe to run anywhere, any
-- number of times at once, and to kill. The lane's lock is taken last and held for the commit alone, so pushes hardly wait.
CREATE FUNCTION skep.retain(lanes bigint[] DEFAULT NULL, max_messages integer DEFAULT 10000, dry_run boolean DEFAULT false)
RETURNS TABLE (queue text, partition text, partition_id bigint, rule text, first_offset bigint, end_offset bigint, missed bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    due     record;
    lost    bigint;
    emptied bigint[] := '{}';
    stops   bigint[] := '{}';
    xids    xid8[] := '{}';         -- of the last message that each lane loses
    times   timestamptz[] := '{}';
BEGIN
    FOR due IN
        SELECT r.*, least(r.cut, r.first_offset + retain.max_messages) AS stop
        FROM skep.retainable(coalesce(retain.lanes, skep.lanes_after(0, NULL))) r
        WHERE retain.dry_run OR pg_try_advisory_xact_lock(x'736b6571'::integer, (r.partition_id % 2147483647)::integer)
        ORDER BY r.partition_id
    LOOP
        SELECT count(*) INTO lost FROM skep.obligations(ARRAY[due.partition_id]) o
        WHERE o."position" < due.stop AND o.status <> 'CANCELLED';
        IF retain.dry_run THEN
            SELECT coalesce(sum(skep.undone(due.partition_id, o.reader_id, o.owed_from, due.cut)), 0) INTO lost
            FROM skep.obligations(ARRAY[due.partition_id]) o WHERE o."position" < due.cut AND o.status <> 'CANCELLED';
            due.stop := due.cut;
        ELSIF lost > 0 THEN
            CONTINUE WHEN NOT skep.lock_cursors(due.partition_id);  -- consumers are busy there: next time
            SELECT least(r.cut, due.stop) INTO due.stop FROM skep.retainable(ARRAY[due.partition_id]) r;
            CONTINUE WHEN NOT FOUND;
            lost := skep.overtake(due.partition_id, due.stop, due.rule);
        END IF;
        IF NOT retain.dry_run THEN
            SELECT array_append(xids, max(m.xid::text)::xid8), array_append(times, max(m.created_at)) INTO xids, times
            FROM skep.messages m WHERE m.partition_id = due.partition_id AND m."offset" = due.stop - 1;
            -- From first_offset: what was deleted before may still be in the index, as long as somebody holds an old snapshot.
            DELETE FROM skep.messages m WHERE m.partition_id = due.partition_id AND m."offset" >= due.first_offset AND m."offset" < due.stop;
            emptied := emptied || due.partition_id;
            stops := stops || due.stop;
        END IF;
        queue := due.queue; partition := due.partition; partition_id := due.partition_id; rule := due.rule;
        first_offset := due.first_offset; end_offset := due.stop; missed := lost;
        RETURN NEXT;
    END LOOP;
    UPDATE skep.partition_lookup l
    SET first_offset = greatest(l.first_offset, emptied.stop), deleted_xid = emptied.xid, deleted_created_at = emptied.created_at
    FROM (SELECT lane.*, k.generation FROM unnest(emptied, stops, xids, times) AS lane (id, stop, xid, created_at)
          CROSS JOIN LATERAL (SELECT k.generation FROM skep.partition_lookup k WHERE k.partition_id = lane.id
                              ORDER BY k.generation DESC LIMIT 1 FOR NO KEY UPDATE) k) emptied
    WHERE l.partition_id = ANY (ARRAY[emptied.id]) AND l.generation >= emptied.generation;
END $$;

-- False if somebody has one of them in hand.
CREATE FUNCTION skep.lock_cursors(lane bigint) RETURNS boolean
LANGUAGE sql AS $$
    SELECT count(*) = (SELECT count(*) FROM skep.cursors c WHERE c.partition_id = $1)
    FROM (SELECT FROM skep.cursors c WHERE c.partition_id = $1 ORDER BY c.reader_id FOR NO KEY UPDATE SKIP LOCKED) mine
$$;

-- A page of lanes, for duties that visit all of them in small steps.
CREATE FUNCTION skep.lanes_after(lane bigint, max_lanes integer) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(id), '{}') FROM (SELECT p.id FROM skep.partitions p WHERE p.id > $1 ORDER BY p.id LIMIT $2) page
$$;

-- The hook of the archive: everything below this offset is stored elsewhere. Never goes back.
CREATE FUNCTION skep.mark_archived(partition_id bigint, end_offset bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO skep.archive_marks AS a (partition_id, end_offset) VALUES ($1, $2)
    ON CONFLICT (partition_id) DO UPDATE SET end_offset = greatest(a.end_offset, excluded.end_offset), marked_at = clock_timestamp()
$$;

-- Drops lanes that are empty and have been idle for the queue's drop_idle_seconds. A push that waits for this makes the lane anew.
CREATE FUNCTION skep.drop_idle_partitions(max_lanes integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    idle    record;
    dropped bigint := 0;
BEGIN
    FOR idle IN
        SELECT lane.queue_id, lane.queue, array_agg(lane.partition_id ORDER BY lane.partition_id) AS lanes FROM (
            SELECT q.id AS queue_id, q.name AS queue, l.partition_id
            FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
            CROSS JOIN LATERAL (
                SELECT * FROM skep.partition_lookup l
                WHERE l.partition_id = p.id AND l.first_offset > l.last_offset AND greatest(l.last_created_at, p.created_at)
                      < clock_timestamp() - skep.seconds(q.drop_idle_seconds) FOR UPDATE SKIP LOCKED) l
            WHERE q.drop_idle_seconds IS NOT NULL
              AND NOT EXISTS (SELECT FROM skep.leases s WHERE s.partition_id = p.id)
              -- A new lane of that name begins at 0: who was told to start at an offset would miss what comes below it.
              AND NOT EXISTS (SELECT FROM skep.subscriptions s WHERE s.mode = 'offset' AND coalesce(s.queue, q.name) = q.name
                                                                 AND coalesce(s.partition, p.name) = p.name)
            ORDER BY l.partition_id LIMIT max_lanes
        ) lane GROUP BY lane.queue_id, lane.queue ORDER BY lane.queue_id
    LOOP
        PERFORM skep.delete_lanes(idle.queue_id, idle.lanes);
        dropped := dropped + cardinality(idle.lanes);
    END LOOP;
    RETURN dropped;
END $$;
