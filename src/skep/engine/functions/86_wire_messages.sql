-- Messages as an administrator sees them, in Queen's shapes. `visible` is the queues the caller may see; NULL: all.

-- The names that rights are asked for: queues, those that are only subscribed to, and those that only left dead letters behind.
CREATE FUNCTION skep.wire_queue_names() RETURNS text[]
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE dead (queue) AS (
        (SELECT d.queue FROM skep.dead_letters d ORDER BY d.queue, d.group_name, d.id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.queue FROM skep.dead_letters d WHERE d.queue > dead.queue ORDER BY d.queue, d.group_name, d.id LIMIT 1)
        FROM dead WHERE dead.queue IS NOT NULL
    )
    SELECT array_agg(name) FROM (
        SELECT q.name FROM skep.queues q
        UNION SELECT s.queue FROM skep.subscriptions s WHERE s.queue IS NOT NULL
        UNION SELECT dead.queue FROM dead WHERE dead.queue IS NOT NULL) known
$$;

-- The last message of a lane with this transaction id, or with this id.
CREATE FUNCTION skep.find_message(lane bigint, transaction_id text) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT m."offset" FROM (
        SELECT m."offset" FROM skep.messages m WHERE m.partition_id = $1 AND m.transaction_id = $2
        UNION ALL
        SELECT skep.offset_of(given.id) FROM (
            SELECT CASE WHEN $2 ~ '^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' THEN $2::uuid END AS id) given
        WHERE skep.partition_of(given.id) = $1
    ) named
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" = named."offset" LIMIT 1) m
    WHERE m.payload IS NOT NULL ORDER BY m."offset" DESC LIMIT 1
$$;

-- The groups that a lane is for, and their cursors if they have met it: otherwise a subscription must cover it, and position is its start.
CREATE FUNCTION skep.wire_lane_readers(p skep.partitions)
RETURNS TABLE (reader_id integer, group_name text, met boolean, cursor bigint, next_offset bigint, start_offset bigint, runs integer)
LANGUAGE sql STABLE AS $$
    SELECT r.id, r.group_name, c.reader_id IS NOT NULL, coalesce(c.cursor, s.start_offset), coalesce(c.next_offset, s.start_offset),
           coalesce(c.start_offset, s.start_offset), coalesce(c.leased + c.returned, 0)
    FROM skep.queues q
    JOIN skep.readers r ON r.queue_id = q.id AND ($1.only_group IS NULL OR $1.only_group = r.group_name)
    LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = $1.id AND c.reader_id = r.id ORDER BY c.next_offset DESC LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.starts(r.group_name, q.id, ARRAY[$1.id]) WHERE c.reader_id IS NULL) s ON true
    WHERE q.id = $1.queue_id AND (c.reader_id IS NOT NULL OR q.semantics = 'queue'
                                  OR (skep.subscription_of(r.group_name, q.name, $1.name, q.namespace, q.task)).id IS NOT NULL)
$$;

-- How far each group of a lane is with a message. started: it has met the lane.
CREATE FUNCTION skep.wire_readers_of(lane bigint, "offset" bigint)
RETURNS TABLE (group_name text, started boolean, consumed boolean, lease_expires_at timestamptz, attempt integer)
LANGUAGE sql STABLE AS $$
    SELECT r.group_name, r.met, $2 < r.next_offset AND (run.end_offset <= $2 OR run.done @> $2) IS NOT FALSE,
           CASE WHEN run.end_offset > $2 AND NOT run.done @> $2 AND run.expires_at > clock_timestamp() THEN run.expires_at END,
           CASE WHEN run.end_offset > $2 THEN run.attempt END
    FROM skep.partitions p
    CROSS JOIN LATERAL skep.wire_lane_readers(p) r
    LEFT JOIN LATERAL (SELECT * FROM skep.leases run WHERE run.partition_id = p.id AND run.reader_id = r.reader_id AND run.first_offset <= $2
                       ORDER BY run.first_offset DESC LIMIT 1) run ON true
    WHERE p.id = $1
$$;

-- Queen's words: queue_status is about queue mode alone; in a lane that only groups read, what all of them are past is completed.
CREATE FUNCTION skep.wire_state(lane bigint, "offset" bigint)
RETURNS TABLE (status text, queue_status text, groups bigint, consumed_by bigint, lease_expires_at timestamptz, retries integer)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN NOT dead.found AND NOT r.queue_mode AND r.groups > 0 THEN
                     CASE WHEN r.groups = r.consumed THEN 'completed' ELSE 'pending' END
                ELSE state.word END,
           state.word, r.groups, r.consumed, r.lease_expires_at, r.retries
    FROM (
        SELECT coalesce(bool_or(r.started) FILTER (WHERE r.group_name = '__QUEUE_MODE__'), false) AS queue_mode,
               coalesce(bool_or(r.consumed) FILTER (WHERE r.group_name = '__QUEUE_MODE__'), false) AS completed,
               coalesce(bool_or(r.lease_expires_at IS NOT NULL) FILTER (WHERE r.group_name = '__QUEUE_MODE__'), false) AS leased,
               count(*) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS groups,
               count(*) FILTER (WHERE r.group_name <> '__QUEUE_MODE__' AND r.consumed) AS consumed,
               min(r.lease_expires_at) AS lease_expires_at, coalesce(max(r.attempt) - 1, 0) AS retries
        FROM skep.wire_readers_of($1, $2) r
    ) r
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM skep.dead_letters d WHERE d.partition_id = $1 AND d."offset" = $2) AS found) dead
    CROSS JOIN LATERAL (SELECT CASE WHEN dead.found THEN 'dead_letter' WHEN r.completed THEN 'completed' WHEN r.leased THEN 'processing'
                                    ELSE 'pending' END AS word) state
$$;

-- Where in a lane messages of this state can be: a list of them reads no others.
CREATE FUNCTION skep.wire_bounds(p skep.partitions, state text) RETURNS TABLE (low bigint, high bigint)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN $2 IN ('pending', 'processing') THEN coalesce(r.own_cursor, r.cursor) END,
           CASE $2 WHEN 'completed' THEN coalesce(r.own_next, r.next_offset, 0) WHEN 'processing' THEN coalesce(r.own_next, 0) END
    FROM (
        SELECT min(r.cursor) FILTER (WHERE r.group_name = '__QUEUE_MODE__' AND r.met) AS own_cursor,
               min(r.next_offset) FILTER (WHERE r.group_name = '__QUEUE_MODE__' AND r.met) AS own_next,
               min(r.cursor) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS cursor,
               min(r.next_offset) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS next_offset
        FROM skep.wire_lane_readers($1) r
    ) r
$$;

-- The newest messages of a stretch of a lane, of one state or any, as far as they are not older than `since`.
CREATE FUNCTION skep.wire_newest(lane bigint, low bigint, high bigint, state text, since timestamptz, max_rows integer)
RETURNS TABLE ("offset" bigint, created_at timestamptz) LANGUAGE sql STABLE AS $$
    SELECT m."offset", m.created_at FROM (
    (SELECT m."offset", m.created_at FROM skep.messages m
     WHERE m.partition_id = $1 AND m."offset" >= $2 AND m."offset" < $3 AND m.payload IS NOT NULL AND $4 IS DISTINCT FROM 'dead_letter'
       AND ($4 IS NULL OR EXISTS (SELECT FROM skep.wire_state($1, m."offset") s WHERE s.status = $4))
     ORDER BY m."offset" DESC LIMIT $6)
    UNION ALL
    (SELECT m."offset", m.created_at
     FROM (SELECT DISTINCT d."offset" FROM skep.dead_letters d
           WHERE $4 = 'dead_letter' AND d.partition_id = $1 AND d."offset" >= $2 AND d."offset" < $3 ORDER BY d."offset" DESC) d
     CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" = d."offset" LIMIT 1) m
     WHERE m.payload IS NOT NULL ORDER BY d."offset" DESC LIMIT $6)
    ) m WHERE m.created_at >= $5
$$;

-- The lanes in which something of the list can be, those with the newest messages first, and which stretch of each. The first n messages of
-- all lanes are in the n lanes whose heads are first in the same order.
CREATE FUNCTION skep.wire_stretches(
    queue text, partition text, namespace text, task text, state text, since timestamptz, until timestamptz, visible text[], max_lanes integer,
    OUT lanes bigint[], OUT lows bigint[], OUT highs bigint[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(lane.id), array_agg(lane.low), array_agg(lane.high)
    FROM (
        SELECT p.id, stretch.low, stretch.high, coalesce(head.created_at, l.last_created_at) AS head
        FROM skep.queues q
        JOIN skep.partitions p ON p.queue_id = q.id AND ($2 IS NULL OR p.name = $2)
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id ORDER BY l.generation DESC LIMIT 1) l
        LEFT JOIN LATERAL skep.wire_bounds(p, $5) b ON $5 IN ('pending', 'processing', 'completed')
        CROSS JOIN LATERAL (
            SELECT greatest(l.first_offset, b.low) AS low,
                   least(b.high, CASE WHEN l.last_created_at < $7 THEN l.last_offset + 1 ELSE skep.offset_at(p.id, $7) END) AS high) stretch
        LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE stretch.high <= l.last_offset AND m.partition_id = p.id
                                                                      AND m."offset" = stretch.high - 1 LIMIT 1) head ON true
        WHERE ($1 IS NULL OR q.name = $1) AND ($3 IS NULL OR q.namespace = $3) AND ($4 IS NULL OR q.task = $4)
          AND ($8 IS NULL OR q.name = ANY ($8)) AND l.last_created_at >= $6 AND stretch.low < stretch.high
        ORDER BY head DESC, p.id DESC LIMIT $9
    ) lane
$$;

-- The newest so many messages of all lanes together, in order: each lane is read a little, and those that turn out to be dense again, four
-- times as deep. What is read is proportional to the lanes and the rows, however the rows are spread.
CREATE FUNCTION skep.wire_merge(lanes bigint[], lows bigint[], highs bigint[], state text, since timestamptz, max_rows integer, OUT ids bigint[], OUT offsets bigint[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
    depths integer[] := array_fill(1 + 2 * max_rows / greatest(cardinality(lanes), 1), ARRAY[coalesce(cardinality(lanes), 0)]);
    dense  integer[];
    number integer;
BEGIN
    LOOP
        WITH fetched AS MATERIALIZED (
            SELECT lane.n, lane.id, lane.depth, m."offset", m.created_at
            FROM unnest(lanes, lows, highs, depths) WITH ORDINALITY AS lane (id, low, high, depth, n)
            CROSS JOIN LATERAL skep.wire_newest(lane.id, lane.low, lane.high, state, since, lane.depth) m
        ), page AS MATERIALIZED (
            SELECT f.id, f."offset", f.created_at FROM fetched f ORDER BY f.created_at DESC, f.id DESC, f."offset" DESC LIMIT max_rows
        ), oldest AS (
            SELECT CASE WHEN count(*) = max_rows THEN min(p.created_at) ELSE '-infinity' END AS at FROM page p
        )
        SELECT (SELECT array_agg(p.id ORDER BY p.created_at DESC, p.id DESC, p."offset" DESC) FROM page p),
               (SELECT array_agg(p."offset" ORDER BY p.created_at DESC, p.id DESC, p."offset" DESC) FROM page p),
               (SELECT array_agg(d.n) FROM (
                   SELECT f.n FROM fetched f GROUP BY f.n, f.depth
                   HAVING count(*) = f.depth AND f.depth < max_rows AND min(f.created_at) >= (SELECT at FROM oldest)) d)
        INTO ids, offsets, dense;
        EXIT WHEN dense IS NULL;
        FOREACH number IN ARRAY dense LOOP
            depths[number] := least(depths[number] * 4, max_rows);
        END LOOP;
    END LOOP;
END $$;

CREATE FUNCTION skep.wire_mode(queue_mode boolean, groups bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN $1 AND $2 > 0 THEN 'hybrid' WHEN $1 THEN 'queue' WHEN $2 > 0 THEN 'bus' ELSE 'none' END
$$;

CREATE FUNCTION skep.wire_messages(
    queue text, partition text, namespace text, task text, state text, since timestamptz, until timestamptz, visible text[],
    max_rows integer, skip integer
) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('messages', coalesce((
        SELECT json_agg(json_build_object(
            'id', skep.message_id(m.partition_id, m."offset"),
            'transactionId', coalesce(m.transaction_id, skep.message_id(m.partition_id, m."offset")::text),
            'partitionId', skep.partition_uuid(m.partition_id), 'queuePath', q.name || '/' || p.name, 'queue', q.name, 'partition', p.name,
            'namespace', q.namespace, 'task', q.task, 'status', s.status, 'queueStatus', s.queue_status,
            'busStatus', json_build_object('consumedBy', s.consumed_by, 'totalGroups', s.groups), 'traceId', m.trace_id,
            'producerSub', m.producer, 'queuePriority', q.priority, 'createdAt', skep.wire_time(m.created_at),
            'leaseExpiresAt', skep.wire_time(s.lease_expires_at), 'offset', m."offset") ORDER BY page.n)
        -- Twice as many lanes as rows: heads may be deleted. Dead letters are not where the heads are.
        FROM skep.wire_stretches($1, $2, $3, $4, $5, $6, $7, $8, CASE WHEN $5 = 'dead_letter' THEN 10000 ELSE 2 * ($9 + $10) + 100 END) lane
        CROSS JOIN LATERAL skep.wire_merge(lane.lanes, lane.lows, lane.highs, $5, $6, $9 + $10) merged
        CROSS JOIN LATERAL unnest(merged.ids, merged.offsets) WITH ORDINALITY AS page (lane, "offset", n)
        CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = page.lane AND m."offset" = page."offset" LIMIT 1) m
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = page.lane LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        CROSS JOIN LATERAL skep.wire_state(page.lane, page."offset") s
        WHERE page.n > $10), '[]'),
        'mode', (SELECT json_build_object('hasQueueMode', g.queue_mode, 'busGroupsCount', g.groups, 'type', skep.wire_mode(g.queue_mode, g.groups))
                 FROM (SELECT coalesce(bool_or(r.group_name = '__QUEUE_MODE__'), false) AS queue_mode,
                              count(DISTINCT r.group_name) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS groups
                       FROM skep.queues q JOIN skep.readers r ON r.queue_id = q.id
                       WHERE ($1 IS NULL OR q.name = $1) AND ($3 IS NULL OR q.namespace = $3) AND ($4 IS NULL OR q.task = $4)
                         AND ($8 IS NULL OR q.name = ANY ($8))) g))
$$;

-- One message with its payload, or NULL.
CREATE FUNCTION skep.wire_message(partition_id uuid, transaction_id text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', skep.message_id(m.partition_id, m."offset"),
        'transactionId', coalesce(m.transaction_id, skep.message_id(m.partition_id, m."offset")::text),
        'partitionId', skep.partition_uuid(p.id), 'queuePath', q.name || '/' || p.name, 'queue', q.name, 'partition', p.name,
        'namespace', q.namespace, 'task', q.task, 'status', s.status, 'payload', m.payload, 'isEncrypted', coalesce(m.headers ? 'skep-sealed', false),
        'traceId', m.trace_id, 'producerSub', m.producer, 'createdAt', skep.wire_time(m.created_at), 'errorMessage', dead.error,
        'retryCount', greatest(coalesce(dead.attempts - 1, s.retries), 0), 'leaseExpiresAt', skep.wire_time(s.lease_expires_at),
        'queueConfig', json_build_object('leaseTime', q.lease_time, 'retryLimit', q.retry_limit, 'retryDelay', q.retry_delay * 1000,
                                         'ttl', coalesce(q.queen_options -> 'ttl', '3600'), 'priority', q.priority),
        'mode', json_build_object('hasQueueMode', g.queue_mode, 'busGroupsCount', s.groups, 'consumedByGroups', s.consumed_by,
                                  'type', skep.wire_mode(g.queue_mode, s.groups)),
        'consumerGroups', g.groups, 'offset', m."offset", 'headers', m.headers)
    FROM (SELECT skep.partition_of($1) AS lane) asked
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = asked.lane LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" = skep.find_message(p.id, $2) LIMIT 1) m
    CROSS JOIN LATERAL skep.wire_state(p.id, m."offset") s
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(r.group_name = '__QUEUE_MODE__'), false) AS queue_mode,
               coalesce(json_agg(json_build_object('name', r.group_name, 'consumed', r.consumed, 'leaseExpiresAt', skep.wire_time(r.lease_expires_at))
                                 ORDER BY r.group_name) FILTER (WHERE r.group_name <> '__QUEUE_MODE__'), '[]') AS groups
        FROM skep.wire_readers_of(p.id, m."offset") r) g
    LEFT JOIN LATERAL (SELECT d.error, d.attempts FROM skep.dead_letters d WHERE d.partition_id = p.id AND d."offset" = m."offset"
                       ORDER BY d.id DESC LIMIT 1) dead ON true
$$;

CREATE FUNCTION skep.wire_delete_message(partition_id uuid, transaction_id text) RETURNS boolean
LANGUAGE sql AS $$
    SELECT coalesce(skep.delete_message(skep.message_id(skep.partition_of($1), skep.find_message(skep.partition_of($1), $2))), false)
$$;

-- Takes a message out of its lane: each group that is not done with it gets it as a dead letter, and nobody gets it otherwise. Returns how
-- many dead letters that made, NULL if there is no such message. Consumers that hold it now lose it.
CREATE FUNCTION skep.wire_bury(partition_id uuid, transaction_id text, reason text) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lane   bigint := skep.partition_of(wire_bury.partition_id);
    place  bigint;
    held   uuid[];
    owed   text[];
    buried bigint;
BEGIN
    -- Whoever holds the message may hold other lanes by the same lease: all are locked in their order, or we could deadlock with his answer.
    PERFORM FROM (
        SELECT c.partition_id, c.reader_id FROM skep.cursors c WHERE c.partition_id = lane
        UNION
        SELECT s.partition_id, s.reader_id FROM skep.leases mine JOIN skep.leases s ON s.token = mine.token WHERE mine.partition_id = lane
        ORDER BY 1, 2) busy
    CROSS JOIN LATERAL (SELECT FROM skep.cursors c WHERE c.partition_id = busy.partition_id AND c.reader_id = busy.reader_id
                        FOR NO KEY UPDATE) c;
    place := skep.find_message(lane, wire_bury.transaction_id);
    IF place IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(s.token) INTO held FROM skep.leases s
    WHERE s.partition_id = lane AND s.first_offset <= place AND s.end_offset > place AND s.expires_at > clock_timestamp() AND NOT s.done @> place;
    SELECT count(*) INTO buried FROM unnest(held) AS token
    CROSS JOIN LATERAL skep.answer(ARRAY[token], ARRAY[lane], ARRAY[place], ARRAY['dlq'], ARRAY[wire_bury.reason]) a WHERE a.applied;
    SELECT array_agg(g.group_name) INTO owed FROM skep.message_groups(skep.message_id(lane, place)) g
    WHERE NOT g.completed AND g.status <> 'CANCELLED';
    IF owed IS NULL AND buried = 0 THEN
        IF EXISTS (SELECT FROM skep.wire_readers_of(lane, place)) THEN
            PERFORM skep.refuse('SK007', 'every group is done with this message');
        END IF;
        owed := ARRAY['__QUEUE_MODE__'];
    END IF;
    INSERT INTO skep.dead_letters (group_name, queue, partition, partition_id, "offset", created_at, payload, headers, transaction_id, trace_id,
                                   producer, error, attempts)
    SELECT owing, q.name, p.name, m.partition_id, m."offset", m.created_at, m.payload, m.headers, m.transaction_id, m.trace_id, m.producer,
           wire_bury.reason, 0
    FROM unnest(owed) AS owing
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = lane AND m."offset" = place LIMIT 1) m
    JOIN skep.partitions p ON p.id = lane JOIN skep.queues q ON q.id = p.queue_id;
    PERFORM skep.delete_message(skep.message_id(lane, place));
    RETURN buried + coalesce(cardinality(owed), 0);
END $$;
