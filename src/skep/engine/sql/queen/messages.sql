-- Messages for administrators, in Queen's shapes. `visible` has the queues that the caller may see; NULL means all.

-- Returns the last message of a partition with this transaction id, or the one with this id. If the text is both, the
-- message without a transaction id counts, as in an ack.
CREATE FUNCTION skep._find_message(partition_id bigint, transaction_id text) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT m."offset" FROM (
        SELECT m."offset" FROM skep.messages m WHERE m.partition_id = $1 AND m.transaction_id = $2
        UNION ALL
        SELECT skep._offset_in(skep._partition_uuid($1), $2)
    ) named
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" = named."offset"
                        LIMIT 1) m
    WHERE m.payload IS NOT NULL
    ORDER BY m.transaction_id IS NULL DESC, m.transaction_id = $2 DESC, m."offset" DESC LIMIT 1
$$;

-- Returns the groups that read a partition, and their progress. A group that has not read from it yet (has_read is
-- false) needs a subscription that covers it, and is at its start.
CREATE FUNCTION skep._partition_groups(p skep.partitions)
RETURNS TABLE (group_queue_id integer, group_name text, has_read boolean, cursor bigint, next_offset bigint,
               start_offset bigint, skipped bigint)
LANGUAGE sql STABLE AS $$
    SELECT g.id, g.group_name, c.partition_id IS NOT NULL, coalesce(c.cursor, s.start_offset),
           coalesce(c.next_offset, s.start_offset),
           coalesce(c.start_offset, s.start_offset), coalesce(c.skipped, 0)
    FROM skep.queues q
    JOIN skep.group_queues g ON g.queue_id = q.id AND ($1.only_group IS NULL OR $1.only_group = g.group_name)
    LEFT JOIN LATERAL (SELECT * FROM skep.partition_consumers c
                       WHERE c.partition_id = $1.id AND c.group_queue_id = g.id LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT * FROM skep._starting_offsets(g.group_name, q.id, ARRAY[$1.id])
                       WHERE c.partition_id IS NULL) s ON true
    WHERE q.id = $1.queue_id AND (c.partition_id IS NOT NULL OR q.semantics = 'queue'
                                  OR (skep._subscription_of(g.group_name, q.name, $1.name, q.namespace, q.task)).id
                                      IS NOT NULL)
$$;

-- Returns the progress of each group of a partition with a message. started: it has read from the partition. attempt:
-- the number of its current or next delivery.
CREATE FUNCTION skep._message_progress(partition_id bigint, "offset" bigint)
RETURNS TABLE (group_name text, started boolean, consumed boolean, lease_expires_at timestamptz, attempt integer)
LANGUAGE sql STABLE AS $$
    SELECT g.group_name, g.has_read, o.consumed,
           CASE WHEN NOT o.consumed AND $2 < run.leased_to
               AND run.expires_at > clock_timestamp() THEN run.expires_at END,
           CASE WHEN NOT o.consumed THEN coalesce(run.attempts[1 + width_bucket($2, run.cuts)], CASE
                                                  WHEN $2 < run.leased_to THEN 1 END) END
    FROM skep.partitions p
    CROSS JOIN LATERAL skep._partition_groups(p) g
    LEFT JOIN LATERAL (SELECT * FROM skep.runs r
                       WHERE r.partition_id = p.id AND r.group_queue_id = g.group_queue_id AND r.first_offset <= $2
                       ORDER BY r.first_offset DESC LIMIT 1) run ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN run.first_offset IS NULL THEN $2 < g.next_offset
                    ELSE coalesce(run.end_offset <= $2, false) OR coalesce(run.done @> $2, false) END AS consumed) o
    WHERE p.id = $1
$$;

-- Returns the state of a message in Queen's words. queue_status is about queue mode alone. In a partition that only
-- groups read, a message that all of them have completed is completed.
CREATE FUNCTION skep._queen_state(partition_id bigint, "offset" bigint)
RETURNS TABLE (status text, queue_status text, groups bigint, consumed_by bigint, lease_expires_at timestamptz,
               retries integer)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN NOT dead.found AND NOT r.queue_mode AND r.groups > 0 THEN
                     CASE WHEN r.groups = r.consumed THEN 'completed' ELSE 'pending' END
                ELSE state.word END,
           state.word, r.groups, r.consumed, r.lease_expires_at, r.retries
    FROM (
        SELECT coalesce(bool_or(r.started) FILTER (WHERE r.group_name = '__QUEUE_MODE__'), false) AS queue_mode,
               coalesce(bool_or(r.consumed) FILTER (WHERE r.group_name = '__QUEUE_MODE__'), false) AS completed,
               coalesce(bool_or(r.lease_expires_at IS NOT NULL) FILTER (WHERE r.group_name = '__QUEUE_MODE__'), false)
                   AS leased, count(*) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS groups,
               count(*) FILTER (WHERE r.group_name <> '__QUEUE_MODE__' AND r.consumed) AS consumed,
               min(r.lease_expires_at) AS lease_expires_at, coalesce(max(r.attempt) - 1, 0) AS retries
        FROM skep._message_progress($1, $2) r
    ) r
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM skep.dead_letters d WHERE d.partition_id = $1 AND d."offset" = $2)
                               AS found) dead
    CROSS JOIN LATERAL (SELECT CASE WHEN dead.found THEN 'dead_letter' WHEN r.completed THEN 'completed'
                               WHEN r.leased THEN 'processing'
                                    ELSE 'pending' END AS word) state
$$;

-- Returns the bounds of the offsets in a partition that may have this state, so that a list reads no others.
CREATE FUNCTION skep._state_bounds(p skep.partitions, state text) RETURNS TABLE (low bigint, high bigint)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN $2 IN ('pending', 'processing') THEN coalesce(r.own_cursor, r.cursor) END,
           CASE $2 WHEN 'completed' THEN coalesce(r.own_next, r.next_offset, 0)
               WHEN 'processing' THEN coalesce(r.own_next, 0) END
    FROM (
        SELECT min(r.cursor) FILTER (WHERE r.group_name = '__QUEUE_MODE__' AND r.has_read) AS own_cursor,
               min(r.next_offset) FILTER (WHERE r.group_name = '__QUEUE_MODE__' AND r.has_read) AS own_next,
               min(r.cursor) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS cursor,
               min(r.next_offset) FILTER (WHERE r.group_name <> '__QUEUE_MODE__') AS next_offset
        FROM skep._partition_groups($1) r
    ) r
$$;

-- Returns the newest messages of a run of a partition, of one state or any, that are not older than `since`.
CREATE FUNCTION skep._newest_messages(
    partition_id bigint, low bigint, high bigint, state text, since timestamptz, max_rows integer
)
RETURNS TABLE ("offset" bigint, created_at timestamptz) LANGUAGE sql STABLE AS $$
    SELECT m."offset", m.created_at FROM (
    (SELECT m."offset", m.created_at FROM skep.messages m
     WHERE m.partition_id = _newest_messages.partition_id AND m."offset" >= _newest_messages.low
       AND m."offset" < _newest_messages.high AND m.payload IS NOT NULL AND _newest_messages.state IS DISTINCT
           FROM 'dead_letter'
       AND (_newest_messages.state IS NULL
            OR EXISTS (SELECT FROM skep._queen_state(_newest_messages.partition_id, m."offset") s
                       WHERE s.status = _newest_messages.state))
     ORDER BY m."offset" DESC LIMIT max_rows)
    UNION ALL
    (SELECT m."offset", m.created_at
     FROM (SELECT DISTINCT d."offset" FROM skep.dead_letters d
           WHERE _newest_messages.state = 'dead_letter' AND d.partition_id = _newest_messages.partition_id
             AND d."offset" >= _newest_messages.low AND d."offset" < _newest_messages.high ORDER BY d."offset" DESC) d
     CROSS JOIN LATERAL (SELECT * FROM skep.messages m
                         WHERE m.partition_id = _newest_messages.partition_id AND m."offset" = d."offset" LIMIT 1) m
     WHERE m.payload IS NOT NULL ORDER BY d."offset" DESC LIMIT max_rows)
    ) m WHERE m.created_at >= since
$$;

-- Returns the partitions that may have messages for a list, those with the newest messages first, and the run of each.
-- The first n messages of all partitions are in the n partitions whose heads come first in the same order.
CREATE FUNCTION skep._runs_to_list(
    queue text, partition text, namespace text, task text, state text, since timestamptz, until timestamptz,
        visible text[], max_partitions integer, OUT partition_ids bigint[], OUT lows bigint[], OUT highs bigint[]
) LANGUAGE sql STABLE AS $$
    SELECT array_agg(listed.id), array_agg(listed.low), array_agg(listed.high)
    FROM (
        SELECT p.id, run.low, run.high, coalesce(head.created_at, l.last_created_at) AS head
        FROM skep.queues q
        JOIN skep.partitions p ON p.queue_id = q.id
            AND (_runs_to_list.partition IS NULL OR p.name = _runs_to_list.partition)
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id LIMIT 1) l
        LEFT JOIN LATERAL skep._state_bounds(p, _runs_to_list.state) b
            ON _runs_to_list.state IN ('pending', 'processing', 'completed')
        CROSS JOIN LATERAL (
            SELECT greatest(l.first_offset, b.low) AS low,
                   least(b.high, CASE WHEN l.last_created_at < _runs_to_list.until THEN l.last_offset + 1
                         ELSE skep._offset_at(p.id, _runs_to_list.until) END) AS high) run
        LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m
                           WHERE run.high <= l.last_offset AND m.partition_id = p.id AND m."offset" = run.high - 1
                           LIMIT 1) head ON true
        WHERE (_runs_to_list.queue IS NULL OR q.name = _runs_to_list.queue)
          AND (_runs_to_list.namespace IS NULL OR q.namespace = _runs_to_list.namespace)
          AND (_runs_to_list.task IS NULL OR q.task = _runs_to_list.task)
          AND (visible IS NULL OR q.name = ANY (visible)) AND l.last_created_at >= since AND run.low < run.high
        ORDER BY head DESC, p.id DESC LIMIT max_partitions
    ) listed
$$;

-- Returns the newest max_rows messages of all partitions together, in order. It reads a few messages of each partition,
-- and reads the partitions with many new messages again, four times as deep. The cost depends on the number of
-- partitions and rows, however the rows are distributed.
CREATE FUNCTION skep._merge_newest(
    partition_ids bigint[], lows bigint[], highs bigint[], state text, since timestamptz, max_rows integer,
    OUT ids bigint[], OUT offsets bigint[]
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    count  integer := coalesce(cardinality(partition_ids), 0);
    depths integer[] := array_fill(1 + 2 * max_rows / greatest(count, 1), ARRAY[count]);
    dense  integer[];
    number integer;
BEGIN
    LOOP
        WITH fetched AS MATERIALIZED (
            SELECT listed.n, listed.id, listed.depth, m."offset", m.created_at
            FROM unnest(partition_ids, lows, highs, depths) WITH ORDINALITY AS listed (id, low, high, depth, n)
            CROSS JOIN LATERAL skep._newest_messages(listed.id, listed.low, listed.high, state, since, listed.depth) m
        ), page AS MATERIALIZED (
            SELECT f.id, f."offset", f.created_at FROM fetched f ORDER BY f.created_at DESC, f.id DESC, f."offset" DESC
            LIMIT max_rows
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

CREATE FUNCTION skep._queen_mode(queue_mode boolean, groups bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN $1 AND $2 > 0 THEN 'hybrid' WHEN $1 THEN 'queue' WHEN $2 > 0 THEN 'bus' ELSE 'none' END
$$;

CREATE FUNCTION skep._queen_messages(
    queue text, partition text, namespace text, task text, state text, since timestamptz, until timestamptz,
        visible text[], max_rows integer, skip integer
) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('messages', coalesce((
        SELECT json_agg(json_build_object(
            'id', skep.message_id(m.partition_id, m."offset"),
            'transactionId', coalesce(m.transaction_id, skep.message_id(m.partition_id, m."offset")::text),
            'partitionId', skep._partition_uuid(m.partition_id), 'queuePath', q.name || '/' || p.name, 'queue', q.name,
            'partition', p.name, 'namespace', q.namespace, 'task', q.task, 'status', s.status,
            'queueStatus', s.queue_status,
            'busStatus', json_build_object('consumedBy', s.consumed_by, 'totalGroups', s.groups), 'traceId', m.trace_id,
            'producerSub', m.producer, 'queuePriority', q.priority, 'createdAt', skep._queen_time(m.created_at),
            'leaseExpiresAt', skep._queen_time(s.lease_expires_at), 'offset', m."offset") ORDER BY page.n)
        -- Twice as many partitions as rows, because heads may be deleted. Dead letters may be anywhere, not near the
        -- heads.
        FROM skep._runs_to_list(_queen_messages.queue, _queen_messages.partition, _queen_messages.namespace,
                                _queen_messages.task, _queen_messages.state, since, _queen_messages.until, visible,
                                CASE WHEN _queen_messages.state = 'dead_letter' THEN 10000
                                ELSE 2 * (max_rows + skip) + 100 END) l
        CROSS JOIN LATERAL skep._merge_newest(l.partition_ids, l.lows, l.highs, _queen_messages.state, since,
                                              max_rows + skip) merged
        CROSS JOIN LATERAL unnest(merged.ids, merged.offsets) WITH ORDINALITY AS page (id, "offset", n)
        CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = page.id AND m."offset" = page."offset"
                            LIMIT 1) m
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = page.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        CROSS JOIN LATERAL skep._queen_state(page.id, page."offset") s
        WHERE page.n > skip), '[]'),
        'mode', (SELECT json_build_object('hasQueueMode', g.queue_mode, 'busGroupsCount', g.groups,
                                          'type', skep._queen_mode(g.queue_mode, g.groups))
                 FROM (SELECT coalesce(bool_or(g.group_name = '__QUEUE_MODE__'), false) AS queue_mode,
                              count(DISTINCT g.group_name) FILTER (WHERE g.group_name <> '__QUEUE_MODE__') AS groups
                       FROM skep.queues q JOIN skep.group_queues g ON g.queue_id = q.id
                       WHERE (_queen_messages.queue IS NULL OR q.name = _queen_messages.queue)
                         AND (_queen_messages.namespace IS NULL OR q.namespace = _queen_messages.namespace)
                         AND (_queen_messages.task IS NULL OR q.task = _queen_messages.task)
                         AND (visible IS NULL OR q.name = ANY (visible))) g))
$$;
CALL skep._allow('skep_admin', '_queen_messages');

-- Returns one message with its payload, or NULL.
CREATE FUNCTION skep._queen_message(partition_id uuid, transaction_id text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', skep.message_id(m.partition_id, m."offset"),
        'transactionId', coalesce(m.transaction_id, skep.message_id(m.partition_id, m."offset")::text),
        'partitionId', skep._partition_uuid(p.id), 'queuePath', q.name || '/' || p.name, 'queue', q.name,
        'partition', p.name, 'namespace', q.namespace, 'task', q.task, 'status', s.status, 'payload', m.payload,
        'isEncrypted', coalesce(m.headers ? 'skep-sealed', false),
        'traceId', m.trace_id, 'producerSub', m.producer, 'createdAt', skep._queen_time(m.created_at),
        'errorMessage', dead.error, 'retryCount', greatest(coalesce(dead.attempts - 1, s.retries), 0),
        'leaseExpiresAt', skep._queen_time(s.lease_expires_at),
        'queueConfig', json_build_object('leaseTime', q.lease_time, 'retryLimit', q.retry_limit,
                                         'retryDelay', q.retry_delay * 1000,
                                         'ttl', coalesce(q.queen_options -> 'ttl', '3600'), 'priority', q.priority),
        'mode', json_build_object('hasQueueMode', g.queue_mode, 'busGroupsCount', s.groups,
                                  'consumedByGroups', s.consumed_by, 'type', skep._queen_mode(g.queue_mode, s.groups)),
        'consumerGroups', g.groups, 'offset', m."offset", 'headers', m.headers)
    FROM (SELECT * FROM skep.partitions p WHERE p.id = skep.partition_of($1) LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m
                        WHERE m.partition_id = p.id AND m."offset" = skep._find_message(p.id, $2) LIMIT 1) m
    CROSS JOIN LATERAL skep._queen_state(p.id, m."offset") s
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(r.group_name = '__QUEUE_MODE__'), false) AS queue_mode,
               coalesce(json_agg(json_build_object('name', r.group_name, 'consumed', r.consumed,
                                                   'leaseExpiresAt', skep._queen_time(r.lease_expires_at))
                                 ORDER BY r.group_name) FILTER (WHERE r.group_name <> '__QUEUE_MODE__'), '[]') AS groups
        FROM skep._message_progress(p.id, m."offset") r) g
    LEFT JOIN LATERAL (SELECT d.error, d.attempts FROM skep.dead_letters d
                       WHERE d.partition_id = p.id AND d."offset" = m."offset"
                       ORDER BY d.id DESC LIMIT 1) dead ON true
$$;
CALL skep._allow('skep_admin', '_queen_message');

CREATE FUNCTION skep._queen_delete_message(partition_id uuid, transaction_id text) RETURNS boolean
LANGUAGE sql AS $$
    SELECT coalesce(skep.delete_message(
        skep.message_id(skep.partition_of($1), skep._find_message(skep.partition_of($1), $2))), false)
$$;
CALL skep._allow('skep_admin', '_queen_delete_message');

-- Takes a message out of its partition: each group that has not completed it gets it as a dead letter instead.
-- Returns the number of dead letters; NULL if there is no such message. Leases of the message end.
-- The runs of the partition are locked as acks lock them: the open one before the closed ones.
CREATE FUNCTION skep._queen_dead_letter(partition_id uuid, transaction_id text, reason text) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    source         bigint := skep.partition_of(_queen_dead_letter.partition_id);
    message_offset bigint;
    leases         uuid[];
    pending        text[];
    dead_lettered  bigint := 0;
BEGIN
    PERFORM FROM skep.runs r WHERE r.partition_id = source ORDER BY r.group_queue_id, r.first_offset DESC
    FOR NO KEY UPDATE;
    message_offset := skep._find_message(source, _queen_dead_letter.transaction_id);
    IF message_offset IS NULL THEN
        RETURN NULL;
    END IF;
    leases := ARRAY(SELECT r.lease_id FROM skep.runs r
                    WHERE r.partition_id = source AND r.first_offset <= message_offset AND r.leased_to > message_offset
                      AND r.expires_at > clock_timestamp()
                      AND (r.done IS NULL OR NOT r.done @> message_offset) ORDER BY r.lease_id);
    IF leases <> '{}' THEN
        SELECT count(*) INTO dead_lettered FROM (SELECT cardinality(leases) AS n) counted
        CROSS JOIN LATERAL skep._apply_acks(leases, array_fill(source, ARRAY[n]), array_fill(message_offset, ARRAY[n]),
                                            array_fill('dead_letter'::text, ARRAY[n]),
                                            array_fill(_queen_dead_letter.reason, ARRAY[n])) a WHERE a.applied;
    END IF;
    SELECT array_agg(g.group_name) INTO pending FROM skep.message_groups(skep.message_id(source, message_offset)) g
    WHERE NOT g.completed AND g.status <> 'CANCELLED';
    IF pending IS NULL AND dead_lettered = 0 THEN
        IF EXISTS (SELECT FROM skep._message_progress(source, message_offset)) THEN
            PERFORM skep._refuse('SK007', 'every group has completed this message');
        END IF;
        pending := ARRAY['__QUEUE_MODE__'];
    END IF;
    INSERT INTO skep.dead_letters (group_name, queue, partition, partition_id, "offset", created_at, payload, headers,
                                   transaction_id, trace_id, producer, error, attempts)
    SELECT waiting, q.name, p.name, m.partition_id, m."offset", m.created_at, m.payload, m.headers, m.transaction_id,
           m.trace_id, m.producer, _queen_dead_letter.reason, 0
    FROM unnest(pending) AS waiting
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = source AND m."offset" = message_offset
                        LIMIT 1) m
    JOIN skep.partitions p ON p.id = source JOIN skep.queues q ON q.id = p.queue_id;
    PERFORM skep.delete_message(skep.message_id(source, message_offset));
    RETURN dead_lettered + coalesce(cardinality(pending), 0);
END $$;
CALL skep._allow('skep_admin', '_queen_dead_letter');
