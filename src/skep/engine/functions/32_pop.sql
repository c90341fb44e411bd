-- pop: lease the next run of the lanes that have waited longest.

-- The lanes to serve, locked: at the front of the line and with something ready; priority between queues comes first.
-- Two steps, because locking inside the first would lock lanes of every queue. Rows locked by others are being served: skipped,
-- which is why there are more candidates than wanted.
CREATE FUNCTION skep.choose_lanes(readers integer[], wanted integer, OUT reader_ids integer[], OUT lane_ids bigint[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    SELECT array_agg(reader_id), array_agg(partition_id) INTO reader_ids, lane_ids
    FROM (
        SELECT c.reader_id, c.partition_id
        FROM (
            SELECT c.reader_id, c.partition_id, c.ready_at, q.priority
            FROM unnest(readers) AS id
            JOIN skep.readers r ON r.id = id.id
            JOIN skep.queues q ON q.id = r.queue_id
            CROSS JOIN LATERAL (
                SELECT c.reader_id, c.partition_id, c.ready_at
                FROM skep.cursors c
                JOIN skep.partition_lookup l ON l.partition_id = c.partition_id
                WHERE c.reader_id = r.id AND c.ready_at <= stamp AND c.leased < q.concurrency
                  AND (c.returned > 0 AND EXISTS (
                           SELECT FROM skep.leases s WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id
                                                       AND s.token IS NULL AND s.retry_at <= stamp)
                       OR (c.returned = 0 OR q.concurrency > 1) AND c.next_offset <= l.last_offset
                          AND l.last_created_at <= stamp - skep.seconds(q.window_buffer)
                          AND (q.delayed_processing = 0 OR EXISTS (
                               SELECT FROM skep.messages m WHERE m.partition_id = c.partition_id AND m."offset" = c.next_offset
                                                             AND m.created_at <= stamp - skep.seconds(q.delayed_processing))))
                ORDER BY c.ready_at, c.partition_id
                LIMIT wanted + 24
            ) c
            ORDER BY q.priority DESC, c.ready_at, c.partition_id
            LIMIT wanted + 24
        ) candidate
        JOIN skep.cursors c ON c.partition_id = candidate.partition_id AND c.reader_id = candidate.reader_id
        ORDER BY candidate.priority DESC, candidate.ready_at, candidate.partition_id
        LIMIT wanted
        FOR NO KEY UPDATE OF c SKIP LOCKED
    ) c;
END $$;

-- One lane by name: met now if it was not, and locked.
CREATE FUNCTION skep.choose_lane(reader integer, lane bigint, OUT reader_ids integer[], OUT lane_ids bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    SELECT ARRAY[c.reader_id], ARRAY[c.partition_id] INTO reader_ids, lane_ids
    FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader FOR NO KEY UPDATE SKIP LOCKED;
    IF lane_ids IS NULL AND NOT EXISTS (SELECT FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader) THEN
        PERFORM pg_advisory_xact_lock(x'736b6570'::integer, reader);  -- against a seek under way: see 52_seek.sql
        INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
        SELECT s.partition_id, reader, s.start_offset, s.start_offset, s.start_offset, '-infinity'
        FROM skep.starts(reader, ARRAY[lane]) s
        ON CONFLICT DO NOTHING
        RETURNING ARRAY[cursors.reader_id], ARRAY[cursors.partition_id] INTO reader_ids, lane_ids;
    END IF;
END $$;

-- The offset behind the first n of a run that are not done.
CREATE FUNCTION skep.cut_after(first_offset bigint, end_offset bigint, done int8multirange, n bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(
        (SELECT o + 1 FROM unnest(int8multirange(int8range($1, $2)) - $3) AS piece
         CROSS JOIN generate_series(lower(piece), upper(piece) - 1) AS o ORDER BY o OFFSET $4 - 1 LIMIT 1), $2)
$$;

CREATE FUNCTION skep.count_offsets(offsets int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(sum(upper(piece) - lower(piece)), 0)::bigint FROM unnest($1) AS piece $$;

-- Leases the next run of each chosen lane: the lowest returned run if there is one, else new messages. The caller holds the locks on
-- the cursors rows since an earlier statement, so what this one reads of heads and leases is current.
CREATE FUNCTION skep.claim(reader_ids integer[], lane_ids bigint[], batch integer, token uuid, lease_time double precision,
                           OUT some_deleted boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    WITH lane AS (
        SELECT chosen.ord, c.*, q.concurrency, coalesce(claim.lease_time, q.lease_time) AS lease_time,
               CASE WHEN l.last_created_at > stamp - skep.seconds(q.window_buffer) THEN c.next_offset
                    ELSE least(c.next_offset + claim.batch, l.last_offset + 1,
                               CASE WHEN q.delayed_processing > 0 THEN
                                    (SELECT m."offset" FROM skep.messages m
                                     WHERE m.partition_id = c.partition_id AND m."offset" >= c.next_offset
                                       AND m."offset" < c.next_offset + claim.batch
                                       AND m.created_at > stamp - skep.seconds(q.delayed_processing)
                                     ORDER BY m."offset" LIMIT 1) END) END AS fresh_end
        FROM unnest(claim.reader_ids, claim.lane_ids) WITH ORDINALITY AS chosen (reader_id, partition_id, ord)
        CROSS JOIN LATERAL (
            SELECT * FROM skep.cursors c WHERE c.partition_id = chosen.partition_id AND c.reader_id = chosen.reader_id LIMIT 1
        ) c
        JOIN skep.partition_lookup l ON l.partition_id = chosen.partition_id
        JOIN skep.readers r ON r.id = chosen.reader_id
        JOIN skep.queues q ON q.id = r.queue_id
        WHERE c.leased < q.concurrency
    ), offer AS (
        SELECT lane.*, back.first_offset AS back_first, back.end_offset AS back_end, back.attempt,
               coalesce(back.first_offset, lane.next_offset) AS first_offset,
               coalesce(back.end_offset, lane.fresh_end) AS end_offset,
               coalesce(back.done, '{}') AS done
        FROM lane
        LEFT JOIN LATERAL (
            SELECT * FROM skep.leases s
            WHERE s.partition_id = lane.partition_id AND s.reader_id = lane.reader_id AND s.token IS NULL
              AND (s.retry_at <= stamp OR lane.concurrency = 1)
            ORDER BY s.first_offset LIMIT 1
        ) back ON lane.returned > 0
        WHERE back.retry_at <= stamp OR back.retry_at IS NULL AND (lane.returned = 0 OR lane.concurrency > 1)
    ), sized AS (
        SELECT offer.*, size, sum(size) OVER (ORDER BY ord)::bigint AS total
        FROM offer
        CROSS JOIN LATERAL (
            SELECT end_offset - first_offset - CASE WHEN done = '{}' THEN 0 ELSE skep.count_offsets(done) END AS size) s
        WHERE end_offset > first_offset
    ), taken AS MATERIALIZED (
        SELECT sized.*, stamp + skep.seconds(lease_time) AS expires_at,
               CASE WHEN total <= claim.batch THEN end_offset
                    WHEN done = '{}' THEN end_offset - (total - claim.batch)
                    ELSE skep.cut_after(first_offset, end_offset, done, claim.batch - (total - size)) END AS cut
        FROM sized WHERE total - size < claim.batch
    ), deleted AS MATERIALIZED (
        SELECT taken.ord, (SELECT range_agg(int8range(m."offset", m."offset" + 1)) FROM skep.messages m
                           WHERE m.partition_id = taken.partition_id AND m."offset" >= taken.first_offset AND m."offset" < taken.cut
                             AND m.payload IS NULL) AS offsets
        FROM taken
    ), fresh AS (
        INSERT INTO skep.leases (partition_id, reader_id, first_offset, end_offset, token, expires_at, done)
        SELECT partition_id, reader_id, first_offset, cut, claim.token, expires_at, coalesce(deleted.offsets, '{}')
        FROM taken JOIN deleted ON deleted.ord = taken.ord WHERE back_first IS NULL
    ), again AS (
        UPDATE skep.leases s
        SET token = claim.token, expires_at = taken.expires_at, retry_at = NULL, end_offset = cut, succeeded = false,
            failed = '{}', errors = '{}',
            done = s.done * int8multirange(int8range(taken.first_offset, cut)) + coalesce(deleted.offsets, '{}')
        FROM taken JOIN deleted ON deleted.ord = taken.ord
        WHERE s.partition_id = taken.partition_id AND s.reader_id = taken.reader_id AND s.first_offset = taken.back_first
    ), rest AS (
        INSERT INTO skep.leases (partition_id, reader_id, first_offset, end_offset, attempt, retry_at, done)
        SELECT partition_id, reader_id, cut, back_end, attempt, stamp, done * int8multirange(int8range(cut, back_end))
        FROM taken WHERE cut < back_end
    ), moved AS (
        UPDATE skep.cursors c
        SET leased = c.leased + 1,
            returned = c.returned - CASE WHEN back_first IS NULL OR cut < back_end THEN 0 ELSE 1 END,
            next_offset = CASE WHEN back_first IS NULL THEN cut ELSE c.next_offset END,
            last_consumed_at = stamp,
            ready_at = CASE WHEN c.leased + 1 < taken.concurrency THEN stamp
                            ELSE least(taken.expires_at, (SELECT min(s.expires_at) FROM skep.leases s
                                                          WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id)) END
        FROM taken
        WHERE c.partition_id = taken.partition_id AND c.reader_id = taken.reader_id
    )
    SELECT coalesce(bool_or(offsets IS NOT NULL), false) INTO some_deleted FROM deleted;
END $$;

-- The readers a pop is about, subscribed and created at first contact, even to a queue that does not exist yet.
CREATE FUNCTION skep.meet(queue text, group_name text, partition text, namespace text, task text, mode text, start_from text)
RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    readers integer[];
    missing boolean;
BEGIN
    IF NOT EXISTS (
        SELECT FROM skep.subscriptions s
        WHERE s.group_name = meet.group_name AND coalesce(s.queue, '') = coalesce(meet.queue, '')
          AND coalesce(s.partition, '') = coalesce(meet.partition, '') AND coalesce(s.namespace, '') = coalesce(meet.namespace, '')
          AND coalesce(s.task, '') = coalesce(meet.task, '')) THEN
        PERFORM skep.subscribe(meet.group_name, meet.queue, meet.partition, meet.namespace, meet.task, meet.mode, meet.start_from);
    ELSIF meet.mode IS NOT NULL OR meet.start_from IS NOT NULL THEN
        PERFORM skep.parse_start(meet.mode, meet.start_from);  -- the first mode stays, but a wrong word is still an error
    END IF;
    FOR try IN 1 .. 2 LOOP
        IF meet.queue IS NOT NULL THEN
            SELECT array_agg(r.id), bool_or(r.id IS NULL) INTO readers, missing
            FROM skep.queues q LEFT JOIN LATERAL (
                SELECT r.id FROM skep.readers r
                WHERE r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, meet.group_name) LIMIT 1) r ON true
            WHERE q.name = meet.queue;
        ELSE
            SELECT array_agg(r.id), bool_or(r.id IS NULL) INTO readers, missing
            FROM skep.queues q LEFT JOIN LATERAL (
                SELECT r.id FROM skep.readers r
                WHERE r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, meet.group_name) LIMIT 1) r ON true
            WHERE (meet.namespace IS NULL OR q.namespace = meet.namespace) AND (meet.task IS NULL OR q.task = meet.task);
        END IF;
        EXIT WHEN NOT missing OR readers IS NULL;
        INSERT INTO skep.readers (group_name, queue_id)
        SELECT skep.group_on(q.semantics, meet.group_name), q.id FROM skep.queues q
        WHERE CASE WHEN meet.queue IS NOT NULL THEN q.name = meet.queue
                   ELSE (meet.namespace IS NULL OR q.namespace = meet.namespace) AND (meet.task IS NULL OR q.task = meet.task) END
        ORDER BY q.id
        FOR KEY SHARE
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN readers;
END $$;

-- On a queue with semantics 'queue' every consumer, whatever its group, shares one cursor.
CREATE FUNCTION skep.group_on(semantics text, group_name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN $1 = 'queue' THEN '__QUEUE_MODE__' ELSE $2 END $$;

-- Waits, but not long, for another pop of this group to finish its look, or for a lane that is locked and may be free in a moment.
-- False if the wait was in vain: someone pops inside a long transaction.
CREATE FUNCTION skep.wait_turn(readers integer[]) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(x'736b6570'::integer, id) FROM (SELECT unnest(readers) AS id ORDER BY 1) r;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;

-- The messages of a lease, lanes in the order they were chosen.
CREATE FUNCTION skep.deliver(token uuid, lane_ids bigint[]) RETURNS SETOF skep.delivery
LANGUAGE sql AS $$
    SELECT q.name, p.name, m."offset", skep.message_id(m.partition_id, m."offset"), m.payload, m.headers, m.transaction_id,
           m.trace_id, m.producer, m.created_at, s.attempt, s.partition_id, s.token, s.expires_at
    FROM unnest($2) WITH ORDINALITY AS chosen (lane, ord)
    CROSS JOIN LATERAL (SELECT * FROM skep.leases s WHERE s.token = $1 AND s.partition_id = lane LIMIT 1) s
    JOIN skep.partitions p ON p.id = lane
    JOIN skep.queues q ON q.id = p.queue_id
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = lane AND m."offset" >= s.first_offset AND m."offset" < s.end_offset
        ORDER BY m."offset"
    ) m
    WHERE m.payload IS NOT NULL AND (s.done = '{}' OR NOT s.done @> m."offset")
    ORDER BY ord, m."offset"
$$;

CREATE FUNCTION skep.check_pop(queue text, group_name text, partition text, namespace text, task text, batch integer,
                               partitions integer, lease_time double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF queue IS NULL THEN
        IF namespace IS NULL AND task IS NULL OR partition IS NOT NULL THEN
            PERFORM skep.refuse('SK001', 'pop needs a queue, or a namespace and/or a task', 'A partition belongs to a queue.');
        END IF;
    ELSE
        PERFORM skep.check_name('queue', queue);
        IF namespace IS NOT NULL OR task IS NOT NULL THEN
            PERFORM skep.refuse('SK001', 'pop takes a queue or a namespace/task, not both');
        END IF;
    END IF;
    PERFORM skep.check_name('group', group_name);
    IF batch IS NULL OR batch NOT BETWEEN 1 AND 100000 THEN
        PERFORM skep.refuse('SK001', format('batch is %s', coalesce(batch::text, 'NULL')), 'Batch is 1 to 100000.');
    ELSIF partitions IS NULL OR partitions NOT BETWEEN 1 AND 10000 THEN
        PERFORM skep.refuse('SK001', format('partitions is %s', coalesce(partitions::text, 'NULL')), 'Partitions is 1 to 10000.');
    ELSIF lease_time NOT BETWEEN 0.001 AND 604800 THEN
        PERFORM skep.refuse('SK001', format('lease_time is %s seconds', lease_time), 'Lease time is up to 604800 seconds.');
    END IF;
END $$;

CREATE FUNCTION skep.pop(
    queue text DEFAULT NULL, group_name text DEFAULT '__QUEUE_MODE__', batch integer DEFAULT 1, partitions integer DEFAULT 1,
    partition text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL, lease_time double precision DEFAULT NULL,
    auto_ack boolean DEFAULT false, subscription_mode text DEFAULT NULL, subscription_from text DEFAULT NULL
) RETURNS SETOF skep.delivery LANGUAGE plpgsql AS $$
DECLARE
    readers integer[];
    locked  integer[] := '{}';
    chosen  record;
    lane    bigint;
    token   uuid := gen_random_uuid();
    delivered bigint;
BEGIN
    PERFORM skep.check_pop(queue, group_name, partition, namespace, task, batch, partitions, lease_time);
    readers := skep.meet(queue, group_name, partition, namespace, task, subscription_mode, subscription_from);
    IF partition IS NOT NULL THEN
        SELECT p.id INTO lane FROM skep.partitions p JOIN skep.readers r ON r.queue_id = p.queue_id
        WHERE r.id = readers[1] AND p.name = pop.partition;
    END IF;
    IF readers IS NULL OR partition IS NOT NULL AND lane IS NULL THEN
        RETURN;
    END IF;
    FOR try IN 1 .. 3 LOOP
        PERFORM skep.return_expired(readers);
        IF lane IS NOT NULL THEN
            chosen := skep.choose_lane(readers[1], lane);
        ELSE
            locked := skep.lock_readers(readers);
            PERFORM skep.look(locked);
            chosen := skep.choose_lanes(readers, partitions);
        END IF;
        IF chosen.lane_ids IS NOT NULL THEN
            IF skep.claim(chosen.reader_ids, chosen.lane_ids, batch, token, lease_time) THEN  -- some messages are deleted: maybe all of a lane
                PERFORM skep.complete(array_fill(token, ARRAY[cardinality(chosen.lane_ids)]), chosen.lane_ids);
            END IF;
            RETURN QUERY SELECT * FROM skep.deliver(token, chosen.lane_ids);
            GET DIAGNOSTICS delivered = ROW_COUNT;
            IF delivered > 0 THEN
                IF auto_ack THEN
                    PERFORM skep.answer(ARRAY[token], ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY['completed'], ARRAY[NULL::text]);
                END IF;
                RETURN;
            END IF;
        ELSE
            EXIT WHEN lane IS NOT NULL OR NOT skep.wait_turn(readers);
        END IF;
    END LOOP;
END $$;
