-- Moving and forgetting groups. Both hold the reader's lock, so that no lane is met at the old place meanwhile.

-- The reader of a group on a queue, created if need be, locked; NULL if the queue does not exist.
CREATE FUNCTION skep.hold_reader(group_name text, queue text) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    reader integer;
BEGIN
    WITH created AS (
        INSERT INTO skep.readers (group_name, queue_id)
        SELECT skep.group_on(semantics, hold_reader.group_name), id FROM skep.queues WHERE name = hold_reader.queue FOR KEY SHARE
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    INSERT INTO skep.looks (reader_id) SELECT id FROM created;
    SELECT r.id INTO reader FROM skep.queues q JOIN skep.readers r ON r.queue_id = q.id
    WHERE q.name = hold_reader.queue AND r.group_name = skep.group_on(q.semantics, hold_reader.group_name);
    PERFORM pg_advisory_xact_lock(x'736b6570'::integer, reader);
    RETURN reader;
END $$;

-- Where a seek leads: beginning, end, a time, or an offset.
CREATE FUNCTION skep.parse_position("position" text, OUT start_mode text, OUT start_at timestamptz, OUT start_offset bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce("position", '') = '' THEN
        PERFORM skep.refuse('SK001', 'seek needs a position', 'Give beginning, end, a time, or an offset.');
    END IF;
    -- The end of lanes that do not exist yet is the birth of a group: a push under way may be about to make one.
    SELECT * INTO start_mode, start_at, start_offset
    FROM skep.parse_start(CASE lower("position") WHEN 'beginning' THEN 'all' WHEN 'end' THEN 'new' END,
                          CASE WHEN lower("position") NOT IN ('beginning', 'end') THEN "position" END);
END $$;

-- Changes where a subscription starts, and nothing else of it; what the group reads from there on is owed to it. A queue or a partition that
-- has none of its own gets what it was under.
CREATE FUNCTION skep.restart_subscription(group_name text, queue text, partition text, start record) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    old skep.subscriptions;
BEGIN
    SELECT s.* INTO old
    FROM (SELECT q.namespace, q.task FROM skep.queues q WHERE q.name = restart_subscription.queue UNION ALL SELECT NULL, NULL LIMIT 1) q
    CROSS JOIN LATERAL skep.subscription_of(restart_subscription.group_name, restart_subscription.queue, restart_subscription.partition,
                                            q.namespace, q.task) s;
    IF old.status = 'CANCELLED' THEN
        PERFORM skep.refuse('SK007', format('the subscription of group "%s" to queue "%s" is cancelled', group_name, queue),
                            'Subscribe again to begin anew.');
    END IF;
    DELETE FROM skep.subscriptions s WHERE s.group_name = restart_subscription.group_name AND s.queue = restart_subscription.queue
        AND (restart_subscription.partition IS NULL OR s.partition = restart_subscription.partition);
    INSERT INTO skep.subscriptions (group_name, queue, partition, mode, start_at, start_offset, status, heartbeat_interval, heartbeat_timeout,
                                    miss_threshold, last_heartbeat_at, status_changed_at, conflation)
    VALUES (group_name, queue, partition, start.start_mode, start.start_at, start.start_offset, coalesce(old.status, 'ACTIVE'),
            coalesce(old.heartbeat_interval, 60), coalesce(old.heartbeat_timeout, 300), coalesce(old.miss_threshold, 3),
            coalesce(old.last_heartbeat_at, clock_timestamp()), coalesce(old.status_changed_at, clock_timestamp()), coalesce(old.conflation, false));
END $$;

-- For all queues of the group, one, or one partition; met or not, existing or not. Drops leases. Returns how many lanes of the group moved.
CREATE FUNCTION skep.seek(group_name text, queue text, "position" text, partition text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    reader integer;
    who    text;  -- on a queue with semantics 'queue' whoever seeks moves the one cursor
    start  record;
    lanes  bigint[];
    moved  bigint;
    to_end boolean := lower("position") = 'end';
BEGIN
    IF seek.queue IS NULL AND seek.partition IS NULL THEN
        RETURN skep.seek_everywhere(seek.group_name, seek."position");
    END IF;
    PERFORM skep.check_pop(seek.queue, seek.group_name, seek.partition, NULL, NULL, 1, 1, NULL);
    start := skep.parse_position("position");
    reader := skep.hold_reader(seek.group_name, seek.queue);
    who := coalesce((SELECT r.group_name FROM skep.readers r WHERE r.id = reader), seek.group_name);
    PERFORM skep.restart_subscription(who, seek.queue, seek.partition, start);

    SELECT array_agg(p.id ORDER BY p.id) INTO lanes FROM skep.readers r JOIN skep.partitions p ON p.queue_id = r.queue_id
    WHERE r.id = reader AND p.name = coalesce(seek.partition, p.name)
      AND (p.only_group IS NULL OR p.only_group = r.group_name AND start.start_mode <> 'offset');  -- which means nothing among dead letters
    PERFORM FROM skep.cursors c WHERE c.partition_id = ANY (lanes) AND c.reader_id = reader
    ORDER BY c.partition_id FOR NO KEY UPDATE;
    DELETE FROM skep.leases s WHERE s.partition_id = ANY (lanes) AND s.reader_id = reader;
    -- Every lane that exists gets its row now, so that "end" is the end of this moment in each.
    WITH goal AS MATERIALIZED (
        SELECT s.partition_id, CASE WHEN to_end THEN l.last_offset + 1 ELSE s.start_offset END AS at
        FROM skep.readers r
        CROSS JOIN LATERAL skep.starts(r.group_name, r.queue_id, lanes) s
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = s.partition_id ORDER BY l.generation DESC LIMIT 1) l
        WHERE r.id = reader
    ), met AS (
        UPDATE skep.cursors c
        SET start_offset = goal.at, cursor = goal.at, next_offset = goal.at, leased = 0, returned = 0,
            ready_at = coalesce(c.last_consumed_at, '-infinity')
        FROM goal WHERE c.partition_id = ANY (ARRAY[goal.partition_id]) AND c.reader_id = reader
        RETURNING c.partition_id
    ), unmet AS (
        INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
        SELECT goal.partition_id, reader, goal.at, goal.at, goal.at, '-infinity'
        FROM goal WHERE NOT EXISTS (SELECT FROM met WHERE met.partition_id = goal.partition_id)
    )
    SELECT count(*) INTO moved FROM goal;
    PERFORM skep.start_line_anew(ARRAY[reader]);
    RETURN moved;
END $$;

-- Every queue that the group has met or is subscribed to, and those to come that its wide subscriptions are for.
CREATE FUNCTION skep.seek_everywhere(group_name text, "position" text) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    start record;
    place record;
    moved bigint := 0;
BEGIN
    PERFORM skep.check_name('group', group_name);
    start := skep.parse_position("position");
    UPDATE skep.subscriptions s SET mode = start.start_mode, start_at = start.start_at, start_offset = start.start_offset, backfill = true
    WHERE s.group_name = seek_everywhere.group_name AND s.queue IS NULL AND s.status <> 'CANCELLED';
    FOR place IN
        SELECT q.name FROM skep.readers r JOIN skep.queues q ON q.id = r.queue_id
        CROSS JOIN LATERAL skep.subscription_of(r.group_name, q.name, NULL, q.namespace, q.task) s
        WHERE r.group_name = seek_everywhere.group_name AND s.status IS DISTINCT FROM 'CANCELLED'
        UNION
        SELECT s.queue FROM skep.subscriptions s
        WHERE s.group_name = seek_everywhere.group_name AND s.queue IS NOT NULL AND s.status <> 'CANCELLED'
        ORDER BY 1
    LOOP
        moved := moved + skep.seek(seek_everywhere.group_name, place.name, seek_everywhere."position");
    END LOOP;
    RETURN moved;
END $$;

-- Forgets what the group has done, in one queue or everywhere. Keeping the subscription, it starts again where it was born.
CREATE FUNCTION skep.delete_group(group_name text, queue text DEFAULT NULL, keep_subscription boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    doomed integer[];
    forgotten bigint;
BEGIN
    SELECT array_agg(r.id ORDER BY r.id) INTO doomed FROM skep.readers r JOIN skep.queues q ON q.id = r.queue_id
    WHERE r.group_name = delete_group.group_name AND q.name = coalesce(delete_group.queue, q.name);
    PERFORM pg_advisory_xact_lock(x'736b6570'::integer, reader) FROM unnest(doomed) AS reader;
    PERFORM FROM skep.cursors c WHERE c.reader_id = ANY (doomed) ORDER BY c.partition_id, c.reader_id FOR UPDATE;
    DELETE FROM skep.leases s WHERE s.reader_id = ANY (doomed);
    DELETE FROM skep.cursors c WHERE c.reader_id = ANY (doomed);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    DELETE FROM skep.readers r WHERE r.id = ANY (doomed);
    IF NOT keep_subscription THEN
        DELETE FROM skep.subscriptions s WHERE s.group_name = delete_group.group_name
            AND (delete_group.queue IS NULL OR s.queue = delete_group.queue);
    END IF;
    RETURN forgotten;
END $$;
