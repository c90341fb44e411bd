-- Who is well, who lags, who holds back what. Everything is computed from cursors: nothing is stored, so nothing can drift.

-- Groups and the queues they have met or subscribed to.
CREATE FUNCTION skep.group_status(group_name text DEFAULT NULL, queue text DEFAULT NULL)
RETURNS TABLE (group_name text, queue text, status text, mode text, partitions bigint, lag bigint, leased bigint, processed bigint,
               dead_letters bigint, missed bigint, last_consumed_at timestamptz, last_heartbeat_at timestamptz, misses integer,
               oldest_pending_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT g.group_name, g.queue, coalesce(s.status, 'ACTIVE'), s.mode, lane.partitions, lane.lag, lane.leased, lane.processed,
           (SELECT count(*) FROM skep.dead_letters d WHERE d.queue = g.queue AND d.group_name = g.group_name),
           (SELECT coalesce(sum(m.messages), 0)::bigint FROM skep.missed m WHERE m.queue = g.queue AND m.group_name = g.group_name),
           lane.last_consumed_at, greatest(s.last_heartbeat_at, lane.seen_at),
           CASE WHEN s.status = 'ACTIVE' THEN skep.misses(extract(epoch FROM clock_timestamp() - greatest(s.last_heartbeat_at, lane.seen_at))
                ::double precision - s.heartbeat_timeout, s.heartbeat_interval) ELSE 0 END,
           lane.oldest_pending_at
    FROM (
        SELECT r.group_name, q.name AS queue, q.namespace, q.task FROM skep.readers r JOIN skep.queues q ON q.id = r.queue_id
        UNION
        SELECT s.group_name, s.queue, coalesce(q.namespace, ''), coalesce(q.task, '')
        FROM skep.subscriptions s LEFT JOIN skep.queues q ON q.name = s.queue
        WHERE s.queue IS NOT NULL AND (q.semantics IS DISTINCT FROM 'queue' OR s.group_name = '__QUEUE_MODE__')
        UNION
        SELECT s.group_name, q.name, q.namespace, q.task FROM skep.subscriptions s
        JOIN skep.queues q ON (s.namespace IS NULL OR q.namespace = s.namespace) AND (s.task IS NULL OR q.task = s.task)
        WHERE s.queue IS NULL AND q.semantics <> 'queue'
    ) g
    LEFT JOIN LATERAL skep.subscription_of(g.group_name, g.queue, NULL, g.namespace, g.task) s ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS partitions, coalesce(sum(l.lag), 0)::bigint AS lag, coalesce(sum(l.leased), 0) AS leased,
               max(l.last_consumed_at) AS last_consumed_at, coalesce(sum(c.cursor - c.start_offset), 0)::bigint AS processed,
               max(CASE WHEN c.leased > 0 AND EXISTS (  -- as detect_dead_groups sees it
                            SELECT FROM skep.leases x WHERE x.partition_id = c.partition_id AND x.reader_id = c.reader_id
                                                        AND x.expires_at > clock_timestamp()) THEN clock_timestamp()
                        ELSE greatest(c.last_consumed_at, c.touched_at) END) AS seen_at,
               min(m.created_at) AS oldest_pending_at
        FROM skep.lag(g.group_name, g.queue) l
        LEFT JOIN LATERAL (SELECT p.id FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
                           WHERE q.name = g.queue AND p.name = l.partition LIMIT 1) p ON true
        LEFT JOIN LATERAL (SELECT c.* FROM skep.queues q JOIN skep.readers r ON r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, g.group_name)
                           JOIN skep.cursors c ON c.partition_id = p.id AND c.reader_id = r.id WHERE q.name = g.queue ORDER BY c.next_offset DESC LIMIT 1) c ON true
        LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE l.lag > 0 AND m.partition_id = p.id AND m."offset" >= l.cursor
                           ORDER BY m."offset" LIMIT 1) m ON true
    ) lane
    WHERE ($1 IS NULL OR g.group_name = $1) AND ($2 IS NULL OR g.queue = $2)
$$;

-- Each group that a message is for, and whether it has completed it. state: completed, leased, waiting (to come again), pending, released
-- (nothing is owed to a group that is dead or cancelled).
CREATE FUNCTION skep.message_groups(id uuid) RETURNS TABLE (group_name text, status text, required boolean, completed boolean, state text)
LANGUAGE sql STABLE AS $$
    SELECT o.group_name, o.status, o.status IN ('ACTIVE', 'PAUSED') AND (at.o >= o.owed_from OR done.completed), done.completed,
           CASE WHEN done.completed THEN 'completed' WHEN run.token IS NOT NULL THEN 'leased' WHEN run.first_offset IS NOT NULL THEN 'waiting'
                WHEN o.status IN ('DEAD', 'CANCELLED') THEN 'released' ELSE 'pending' END
    FROM (SELECT skep.partition_of($1) AS lane, skep.offset_of($1) AS o) at
    CROSS JOIN LATERAL skep.obligations(ARRAY[at.lane]) o
    LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = at.lane AND c.reader_id = o.reader_id ORDER BY c.next_offset DESC LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.leases s WHERE s.partition_id = at.lane AND s.reader_id = o.reader_id
                                                     AND s.first_offset <= at.o AND at.o < s.end_offset LIMIT 1) run ON true
    CROSS JOIN LATERAL (
        SELECT at.o < coalesce(c.next_offset, o."position") AND (run.first_offset IS NULL OR run.done @> at.o) AS completed) done
    WHERE at.o >= coalesce(c.start_offset, o."position")
$$;

-- The fan-out of messages of a lane: how many groups each is required by, how many have completed it, and who still owes it.
CREATE FUNCTION skep.fanout_of(id uuid, OUT required_consumer_groups bigint, OUT completed_consumer_groups bigint, OUT owing text[])
LANGUAGE sql STABLE AS $$
    SELECT count(*) FILTER (WHERE g.required OR g.completed), count(*) FILTER (WHERE g.completed),
           coalesce(array_agg(g.group_name ORDER BY g.group_name) FILTER (WHERE g.required AND NOT g.completed), '{}')
    FROM skep.message_groups($1) g
$$;

-- For people: ask for a queue and a partition, and better for offsets too. It is computed for each row that is asked for.
CREATE VIEW skep.fanout AS
    SELECT q.name AS queue, p.name AS partition, m."offset", id.id, m.created_at, f.*
    FROM skep.queues q
    JOIN skep.partitions p ON p.queue_id = q.id
    JOIN skep.messages m ON m.partition_id = p.id
    CROSS JOIN LATERAL (SELECT skep.message_id(m.partition_id, m."offset") AS id) id
    CROSS JOIN LATERAL skep.fanout_of(id.id) f;

CREATE FUNCTION skep.message_status(queue text, partition text, first_offset bigint DEFAULT 0, max_rows integer DEFAULT 100)
RETURNS TABLE ("offset" bigint, id uuid, created_at timestamptz, required_consumer_groups bigint, completed_consumer_groups bigint, owing text[])
LANGUAGE sql STABLE AS $$
    SELECT m."offset", id.id, m.created_at, f.*
    FROM skep.queues q
    JOIN skep.partitions p ON p.queue_id = q.id AND p.name = $2
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" >= $3 ORDER BY m."offset" LIMIT $4) m
    CROSS JOIN LATERAL (SELECT skep.message_id(m.partition_id, m."offset") AS id) id
    CROSS JOIN LATERAL skep.fanout_of(id.id) f
    WHERE q.name = $1 ORDER BY m."offset"
$$;

-- Where every group is in these lanes, met or not: what is for it begins at start_offset, is done below cursor, and is owed from owed_from on if
-- the group is active or paused.
CREATE FUNCTION skep.group_progress(lanes bigint[])
RETURNS TABLE (partition_id bigint, group_name text, status text, start_offset bigint, cursor bigint, owed_from bigint)
LANGUAGE sql STABLE AS $$
    SELECT o.partition_id, o.group_name, o.status, coalesce(c.start_offset, o."position"), o."position", o.owed_from
    FROM skep.obligations($1) o
    LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = o.partition_id AND c.reader_id = o.reader_id ORDER BY c.next_offset DESC LIMIT 1) c ON true
$$;

-- Who holds back what: for each lane the floor below which every group is done, and the groups that stand on it. Dead groups are listed
-- with what they would be owed if they came back.
CREATE FUNCTION skep.blocked(queue text DEFAULT NULL)
RETURNS TABLE (queue text, partition text, group_name text, status text, "position" bigint, pending bigint, leased bigint, oldest_pending_at timestamptz,
               is_floor boolean)
LANGUAGE sql STABLE AS $$
    SELECT lane.queue, lane.partition, o.group_name, o.status, o.owed_from, l.last_offset + 1 - o.owed_from, coalesce(c.leased, 0)::bigint, m.created_at,
           o.status IN ('ACTIVE', 'PAUSED') AND o.owed_from = min(o.owed_from) FILTER (WHERE o.status IN ('ACTIVE', 'PAUSED')) OVER (PARTITION BY lane.id)
    FROM (SELECT q.name AS queue, p.name AS partition, p.id FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
          WHERE $1 IS NULL OR q.name = $1) lane
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = lane.id ORDER BY l.generation DESC LIMIT 1) l
    CROSS JOIN LATERAL skep.obligations(ARRAY[lane.id]) o
    LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = lane.id AND c.reader_id = o.reader_id ORDER BY c.next_offset DESC LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = lane.id AND m."offset" >= o.owed_from
                       ORDER BY m."offset" LIMIT 1) m ON true
    WHERE o.owed_from <= l.last_offset AND o.status <> 'CANCELLED'
$$;

-- For orphans: what is older than this counts as done by the group; nothing leased is touched. Returns how many messages that were.
CREATE FUNCTION skep.force_complete(group_name text, queue text, older_than interval) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    reader   integer := skep.hold_reader(group_name, queue);
    finished bigint := 0;
    lane     record;
BEGIN
    IF reader IS NULL THEN
        PERFORM skep.refuse('SK002', format('there is no queue "%s"', queue));
    ELSIF older_than IS NULL OR older_than < interval '0' THEN
        PERFORM skep.refuse('SK001', 'older_than is a positive interval');
    ELSIF NOT EXISTS (
        SELECT FROM skep.readers r JOIN skep.queues q ON q.id = r.queue_id
        WHERE r.id = reader AND (q.semantics = 'queue' OR EXISTS (
            SELECT FROM skep.subscriptions s WHERE s.group_name = r.group_name AND (s.queue = q.name OR s.queue IS NULL
                AND (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task))))) THEN
        PERFORM skep.refuse('SK002', format('group "%s" has no subscription to queue "%s"', group_name, queue), 'Subscribe first.');
    END IF;
    FOR lane IN
        SELECT p.id, skep.offset_at(p.id, clock_timestamp() - older_than) AS cut, o."position", p.name
        FROM skep.readers r JOIN skep.partitions p ON p.queue_id = r.queue_id
        CROSS JOIN LATERAL skep.obligations(ARRAY[p.id]) o
        WHERE r.id = reader AND o.reader_id = reader ORDER BY p.id
    LOOP
        INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
        SELECT lane.id, reader, lane."position", lane."position", lane."position", '-infinity'
        WHERE NOT EXISTS (SELECT FROM skep.cursors c WHERE c.partition_id = lane.id AND c.reader_id = reader);
        CONTINUE WHEN NOT skep.lock_cursors(lane.id);
        lane.cut := least(lane.cut, (SELECT s.first_offset FROM skep.leases s WHERE s.partition_id = lane.id AND s.reader_id = reader
                                     AND s.token IS NOT NULL ORDER BY s.first_offset LIMIT 1));
        CONTINUE WHEN lane.cut <= lane."position";
        finished := finished + skep.undone(lane.id, reader, lane."position", lane.cut);
        PERFORM skep.advance(lane.id, lane.cut, reader);
    END LOOP;
    PERFORM skep.start_line_anew(ARRAY[reader]);
    RETURN finished;
END $$;
