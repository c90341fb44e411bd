-- Delayed messages: stored apart until they are due, then appended to their partition.
--
--   push, outbox > delayed_messages > append_delayed(), by upkeep once a second, or a pop of the queue > messages
--                                   > cancel_delayed(), clear_queue(), delete_queue(), delete_partition() > deleted
--
-- Each of these holds the lock of the partition until it commits. So a message is appended once, and its transaction id
-- is a duplicate at every moment between the push and the end of the dedup window. Sessions that append messages skip
-- partitions that another session has locked, and so share the work. They read the due messages after they have the
-- lock, so the messages of a partition are appended in order of due time.

-- Returns when a message is due, or NULL if it has no delay. Refuses an invalid delay.
CREATE FUNCTION skep._due_time(ord bigint, delay double precision, deliver_at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    item text := format('item %s: ', ord - 1);
BEGIN
    IF num_nonnulls(delay, deliver_at) = 2 THEN
        PERFORM skep._refuse('SK001', item || 'delay and deliver_at are both given', 'Give one of them.');
    ELSIF delay NOT BETWEEN 0 AND 315360000 THEN
        PERFORM skep._refuse('SK001', format('%sdelay must be between 0 and 315360000 seconds, got %s', item, delay),
                            'Use deliver_at for a point in time.');
    ELSIF NOT isfinite(deliver_at) OR deliver_at >= '9999-01-01 00:00:00Z' THEN  -- clients cannot represent later times
        PERFORM skep._refuse('SK001', format('%sdeliver_at must be a point in time before the year 9999, got %s', item,
                                             deliver_at));
    END IF;
    RETURN coalesce(deliver_at, clock_timestamp() + skep._seconds(delay));
END $$;

-- Returns the due times of messages in JSON.
CREATE FUNCTION skep._due_times(messages jsonb) RETURNS timestamptz[]
LANGUAGE plpgsql AS $$
DECLARE
    wrong record;
BEGIN
    RETURN (SELECT array_agg(CASE WHEN value ?| '{delay,deliver_at}' THEN skep._due_time(
                       n, (value ->> 'delay')::double precision, (value ->> 'deliver_at')::timestamptz) END ORDER BY n)
            FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n));
EXCEPTION WHEN data_exception THEN
    FOR wrong IN SELECT value ->> 'deliver_at' AS deliver_at, n
        FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n) LOOP
        BEGIN
            PERFORM wrong.deliver_at::timestamptz;
        EXCEPTION WHEN data_exception THEN
            PERFORM skep._refuse('SK001', format('item %s: deliver_at must be a time such as 2030-01-31T12:00:00Z, '
                                                 'got "%s"', wrong.n - 1, left(wrong.deliver_at, 80)));
        END;
    END LOOP;
    RAISE;
END $$;

-- Returns the message that a duplicate push repeats: a delayed message, or the last one that is stored.
CREATE FUNCTION skep._find_original(partition_id bigint, transaction_id text)
RETURNS TABLE ("offset" bigint, created_at timestamptz, delayed_id uuid, due_at timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT found."offset", found.created_at, found.id, found.due_at FROM (
        SELECT NULL::bigint AS "offset", d.created_at, d.id, d.due_at FROM skep.delayed_messages d
        WHERE d.partition_id = $1 AND d.transaction_id = $2
        UNION ALL
        (SELECT m."offset", m.created_at, NULL, NULL FROM skep.messages m
         WHERE m.partition_id = $1 AND m.transaction_id = $2 ORDER BY m.created_at DESC LIMIT 1)
    ) found LIMIT 1
$$;

-- push_many() for messages of which some are delayed. Messages that are due already are pushed by push_many().
CREATE FUNCTION skep._push_delayed(
    queues text[], partitions text[], payloads jsonb[], transaction_ids text[], headers jsonb[], trace_ids uuid[],
        producers text[],
    due_times timestamptz[]
) RETURNS TABLE (ord bigint, status text, partition_id bigint, "offset" bigint, created_at timestamptz, delayed_id uuid,
    due_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    slots record := skep._lock_partitions(_push_delayed.queues, _push_delayed.partitions);
    stamp timestamptz := clock_timestamp();
    fresh boolean[];
    now   record;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM skep._check_heads(slots.partition_ids, slots.next_offsets);
    END IF;
    fresh := skep._find_new(slots.slot_of, slots.partition_ids, slots.dedup_since, _push_delayed.transaction_ids);
    PERFORM skep._check_item(item.ord, item.payload, slots.payload_limits[item.slot], item.transaction_id,
        item.headers),
            skep._due_time(item.ord, NULL, item.due_at)
    FROM unnest(slots.slot_of, _push_delayed.payloads, _push_delayed.transaction_ids, _push_delayed.headers, due_times)
         WITH ORDINALITY AS item (slot, payload, transaction_id, headers, due_at, ord);

    RETURN QUERY
    WITH later AS MATERIALIZED (
        SELECT item.*, gen_random_uuid() AS id
        FROM unnest(slots.slot_of, fresh, _push_delayed.payloads, _push_delayed.transaction_ids, _push_delayed.headers,
                    _push_delayed.trace_ids, _push_delayed.producers, due_times)
             WITH ORDINALITY AS item (slot, fresh, payload, transaction_id, headers, trace_id, producer, due_at, ord)
        WHERE fresh AND due_at > stamp
    ), stored AS (
        INSERT INTO skep.delayed_messages (id, queue_id, partition_id, due_at, created_at, payload, headers,
            transaction_id, trace_id, producer)
        SELECT id, slots.queue_ids[slot], slots.partition_ids[slot], due_at, stamp, payload, headers, transaction_id,
            trace_id, producer
        FROM later ORDER BY ord
    )
    SELECT ord, 'delayed', slots.partition_ids[slot], NULL::bigint, stamp, id, due_at FROM later;

    SELECT array_agg(item.ord ORDER BY item.ord) AS ords, array_agg(item.queue ORDER BY item.ord) AS queues,
           array_agg(item.partition ORDER BY item.ord) AS partitions,
           array_agg(item.payload ORDER BY item.ord) AS payloads,
           array_agg(item.transaction_id ORDER BY item.ord) AS transaction_ids,
           array_agg(item.headers ORDER BY item.ord) AS headers,
           array_agg(item.trace_id ORDER BY item.ord) AS trace_ids,
           array_agg(item.producer ORDER BY item.ord) AS producers INTO now
    FROM unnest(_push_delayed.queues, _push_delayed.partitions, _push_delayed.payloads, _push_delayed.transaction_ids,
        _push_delayed.headers,
                _push_delayed.trace_ids, _push_delayed.producers, due_times)
         WITH ORDINALITY AS item (queue, partition, payload, transaction_id, headers, trace_id, producer, due_at, ord)
    WHERE (item.due_at > stamp) IS NOT TRUE;
    IF now.ords IS NOT NULL THEN
        RETURN QUERY SELECT now.ords[p.ord], p.status, p.partition_id, p."offset", p.created_at, p.delayed_id, p.due_at
        FROM skep.push_many(now.queues, now.partitions, now.payloads, now.transaction_ids, now.headers, now.trace_ids,
            now.producers) p;
    END IF;

    RETURN QUERY  -- last, because a message can repeat one of this push
    SELECT item.ord, 'duplicate', slots.partition_ids[slot], first."offset", first.created_at, first.delayed_id,
        first.due_at
    FROM unnest(slots.slot_of, fresh, _push_delayed.transaction_ids, due_times) WITH ORDINALITY AS item (slot, fresh,
        transaction_id, due_at, ord)
    CROSS JOIN LATERAL skep._find_original(slots.partition_ids[slot], item.transaction_id) first
    WHERE NOT item.fresh AND item.due_at > stamp;
EXCEPTION WHEN unique_violation THEN  -- under REPEATABLE READ a delayed message may not be visible
    RAISE EXCEPTION USING ERRCODE = '40001',
        MESSAGE = 'the partition has delayed messages that this transaction cannot see',
        HINT = 'Push under READ COMMITTED, INSERT INTO skep.outbox, or try the transaction again.';
END $$;

-- Locks partitions with messages that are due, those that have waited longest first, and skips partitions that another
-- session has locked. Returns how many due messages of each it has read: the caller appends no more, so the work of a
-- call is bounded.
CREATE FUNCTION skep._lock_due(queue_id integer, max_rows integer, stamp timestamptz, OUT partition_ids bigint[],
    OUT counts bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    IF queue_id IS NULL THEN
        SELECT array_agg(due.partition_id), array_agg(due.messages) INTO partition_ids, counts FROM (
            SELECT due.partition_id, count(*) AS messages FROM (
                SELECT d.partition_id FROM skep.delayed_messages d
                CROSS JOIN LATERAL (SELECT FROM skep.partitions p
                    WHERE p.id = d.partition_id FOR NO KEY UPDATE SKIP LOCKED) p
                WHERE d.due_at <= stamp ORDER BY d.due_at, d.seq LIMIT max_rows) due
            GROUP BY due.partition_id) due;
    ELSE
        SELECT array_agg(due.partition_id), array_agg(due.messages) INTO partition_ids, counts FROM (
            SELECT due.partition_id, count(*) AS messages FROM (
                SELECT d.partition_id FROM skep.delayed_messages d
                CROSS JOIN LATERAL (SELECT FROM skep.partitions p
                    WHERE p.id = d.partition_id FOR NO KEY UPDATE SKIP LOCKED) p
                WHERE d.queue_id = _lock_due.queue_id AND d.due_at <= stamp ORDER BY d.due_at, d.seq LIMIT max_rows) due
            GROUP BY due.partition_id) due;
    END IF;
END $$;

-- Appends due messages, of one queue or of all, and returns how many, and the queues they were appended to. The due
-- messages are read again after the lock, by a statement that sees messages that other sessions have appended
-- meanwhile.
CREATE FUNCTION skep._append_due(queue_id integer, max_rows integer, OUT messages bigint, OUT queue_ids integer[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp  timestamptz := clock_timestamp();
    locked record := skep._lock_due(_append_due.queue_id, max_rows, stamp);
    heads  record;
BEGIN
    messages := 0;
    queue_ids := '{}';
    IF locked.partition_ids IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(head.next_offset ORDER BY n) AS next_offsets,
           array_agg(greatest(head.last_time, clock_timestamp()) ORDER BY n) AS times INTO heads
    FROM unnest(locked.partition_ids) WITH ORDINALITY AS p (id, n) CROSS JOIN LATERAL skep._head_of(p.id) head;
    WITH deleted AS (
        DELETE FROM skep.delayed_messages d
        USING unnest(locked.partition_ids, locked.counts, heads.next_offsets, heads.times) AS p (id, messages,
            next_offset, time)
        CROSS JOIN LATERAL (SELECT d.ctid AS row_id FROM skep.delayed_messages d WHERE d.partition_id = p.id
            AND d.due_at <= stamp
                            ORDER BY d.due_at, d.seq LIMIT p.messages) due
        WHERE d.ctid = due.row_id
        RETURNING d.*, p.next_offset, p.time
    ), placed AS MATERIALIZED (
        SELECT deleted.*,
               next_offset - 1 + row_number() OVER (PARTITION BY partition_id ORDER BY due_at, seq) AS "offset"
        FROM deleted
    ), journaled AS (
        INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
        SELECT queue_id, array_agg(partition_id), array_agg(first), array_agg(last)
        FROM (SELECT queue_id, partition_id, min("offset") AS first, max("offset") AS last FROM placed
            GROUP BY 1, 2) grown GROUP BY 1
        RETURNING queue_id
    ), stored AS (
        INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, transaction_id, trace_id,
            producer)
        SELECT partition_id, "offset", time, payload, headers, transaction_id, trace_id, producer FROM placed
    )
    SELECT (SELECT count(*) FROM placed), ARRAY(SELECT queue_id FROM journaled) INTO messages, queue_ids;
END $$;

-- Appends due messages for a pop, and returns true if there were any. A pop inside a longer transaction appends
-- nothing, because it would block pushes to these partitions until it ends. (The first statement of a transaction
-- counts as the only one. That recognises psql, which does not pass autocommit.) Notifies other consumers that wait for
-- these messages, because upkeep will find nothing left to append.
CREATE FUNCTION skep._append_for_pop(queue_id integer, autocommit boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    appended record;
    names    text[];
    message  text;
BEGIN
    IF NOT autocommit AND transaction_timestamp() <> statement_timestamp() THEN
        RETURN false;
    END IF;
    appended := skep._append_due(queue_id, 1000);
    IF appended.messages = 0 THEN
        RETURN false;
    END IF;
    names := ARRAY(SELECT q.name FROM skep.queues q WHERE q.id = ANY (appended.queue_ids));
    message := jsonb_build_object('origin', '', 'queues', names);
    PERFORM pg_notify('skep', CASE WHEN octet_length(message) < 8000 THEN message ELSE '{"origin": ""}' END);
    RETURN true;
END $$;

-- Appends at most max_rows due messages, and returns how many, and the queues they were appended to. Any number of
-- callers may run at once.
CREATE FUNCTION skep.append_delayed(max_rows integer DEFAULT 10000, queue text DEFAULT NULL, OUT messages bigint,
    OUT queues text[])
LANGUAGE plpgsql AS $$
DECLARE
    found    integer;
    appended record;
BEGIN
    PERFORM skep._require_read_committed('append_delayed');
    IF (max_rows BETWEEN 1 AND 100000) IS NOT TRUE THEN
        PERFORM skep._refuse('SK001', format('max_rows must be between 1 and 100000, got %s',
            coalesce(max_rows::text, 'NULL')));
    END IF;
    IF queue IS NOT NULL THEN
        SELECT q.id INTO found FROM skep.queues q WHERE q.name = append_delayed.queue;
        IF found IS NULL THEN
            PERFORM skep._refuse('SK002', format('there is no queue "%s"', queue));
        END IF;
    END IF;
    appended := skep._append_due(found, max_rows);
    messages := appended.messages;
    queues := ARRAY(SELECT q.name FROM skep.queues q WHERE q.id = ANY (appended.queue_ids) ORDER BY q.name);
END $$;
COMMENT ON FUNCTION skep.append_delayed IS
    'Appends delayed messages that are due to their partitions. Upkeep calls it once a second.';
CALL skep._allow('skep_producer', 'append_delayed');

-- Cancels a delayed message by the id that its push returned. Returns false if it was appended or cancelled already.
CREATE FUNCTION skep.cancel_delayed(id uuid) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM FROM skep.partitions p
    WHERE p.id = (SELECT d.partition_id FROM skep.delayed_messages d WHERE d.id = cancel_delayed.id) FOR NO KEY UPDATE;
    DELETE FROM skep.delayed_messages d WHERE d.id = cancel_delayed.id;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse('55P03', format('the partition of delayed message %s is locked by another transaction', id),
                        'Nothing was changed. Try again; pg_stat_activity shows open transactions.');
END $$;
COMMENT ON FUNCTION skep.cancel_delayed IS
    'Deletes a delayed message before it is due. Returns false if it is no longer waiting.';
CALL skep._allow('skep_producer', 'cancel_delayed');

CREATE FUNCTION skep.list_delayed(queue text DEFAULT NULL, partition text DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS TABLE (id uuid, queue text, partition text, due_at timestamptz, payload jsonb, headers jsonb,
    transaction_id text, trace_id uuid,
               producer text, created_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT d.id, q.name, p.name, d.due_at, d.payload, d.headers, d.transaction_id, d.trace_id, d.producer, d.created_at
    FROM (
        (SELECT d.* FROM skep.delayed_messages d WHERE $1 IS NULL AND $2 IS NULL ORDER BY d.due_at, d.seq LIMIT $3)
        UNION ALL
        (SELECT d.* FROM skep.delayed_messages d WHERE $2 IS NULL AND d.queue_id = (SELECT q.id FROM skep.queues q
            WHERE q.name = $1)
         ORDER BY d.due_at, d.seq LIMIT $3)
        UNION ALL
        (SELECT d.* FROM skep.delayed_messages d
         WHERE d.partition_id = (SELECT p.id FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
             WHERE q.name = $1 AND p.name = $2)
         ORDER BY d.due_at, d.seq LIMIT $3)
    ) d
    CROSS JOIN LATERAL (SELECT p.name FROM skep.partitions p WHERE p.id = d.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT q.name FROM skep.queues q WHERE q.id = d.queue_id LIMIT 1) q
    ORDER BY d.due_at, d.seq
$$;
COMMENT ON FUNCTION skep.list_delayed IS 'Returns delayed messages that are not due yet, the next one first.';
CALL skep._allow('skep_admin', 'list_delayed');
