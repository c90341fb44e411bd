-- The transactional outbox: INSERT INTO skep.outbox locks no partition; the rows move into the log when the caller
-- commits.
--
--   isolation level                     the messages are appended by
--   READ COMMITTED                      the caller's own COMMIT
--   REPEATABLE READ, SERIALIZABLE       move_committed_outbox(), which upkeep calls once a second. The COMMIT itself
--                                       cannot do it: its snapshot does not show messages that others have pushed
--                                       since, and so not where the partition ends.
--
-- There is one deferred event per transaction, not per row: the statement trigger inserts one row into
-- outbox_transactions, whose deferred constraint trigger fires at COMMIT and appends all messages at once, in lock
-- order.

CREATE FUNCTION skep._record_outbox_transaction() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO skep.outbox_transactions (xid) VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CALL skep._pin('_record_outbox_transaction');
CREATE TRIGGER record_outbox_transaction AFTER INSERT ON skep.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION skep._record_outbox_transaction();

-- Refuses rows that push would refuse, as far as this transaction can see.
CREATE FUNCTION skep._check_outbox(written_by xid8) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._check_item(o.ord, o.payload, o.max_payload_bytes, o.transaction_id, o.headers)
    FROM (SELECT o.*, coalesce(q.max_payload_bytes, 16777216) AS max_payload_bytes,
                 row_number() OVER (ORDER BY o.id) AS ord
          FROM skep.outbox o LEFT JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = o.queue LIMIT 1) q ON true
          WHERE o.xid = written_by) o
    WHERE skep._exceeds(o.payload, o.max_payload_bytes);
    PERFORM skep._refuse_blocked(q.name) FROM (SELECT DISTINCT o.queue FROM skep.outbox o WHERE o.xid = written_by) o
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = o.queue LIMIT 1) q
    WHERE CASE WHEN q.block_without_subscribers THEN skep._has_no_subscriber(q) ELSE false END;
END $$;

-- Deletes the row of this transaction, so that a row inserted by another deferred trigger after this one gets a new
-- event.
CREATE FUNCTION skep._move_outbox() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    m record;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM skep._check_outbox(NEW.xid);
    ELSE
        WITH moved AS (
            DELETE FROM skep.outbox o WHERE o.xid = NEW.xid RETURNING o.*
        )
        SELECT array_agg(queue ORDER BY id) AS queues, array_agg(partition ORDER BY id) AS partitions,
               array_agg(payload ORDER BY id) AS payloads, array_agg(transaction_id ORDER BY id) AS transaction_ids,
               array_agg(headers ORDER BY id) AS headers, array_agg(trace_id ORDER BY id) AS trace_ids,
               array_agg(producer ORDER BY id) AS producers,
               count(*) FILTER (WHERE num_nonnulls(delay, deliver_at) > 0) AS delayed,
               array_agg(CASE WHEN num_nonnulls(delay, deliver_at) > 0 THEN skep._due_time(1, delay, deliver_at) END
                         ORDER BY id) AS due_times
        INTO m FROM moved;
        IF m.queues IS NOT NULL THEN
            PERFORM skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids,
                                   m.producers,
                                   CASE WHEN m.delayed > 0 THEN m.due_times END);
        END IF;
    END IF;
    DELETE FROM skep.outbox_transactions t WHERE t.xid = NEW.xid;
    RETURN NULL;
END $$;
CALL skep._pin('_move_outbox');
CREATE CONSTRAINT TRIGGER move_outbox AFTER INSERT ON skep.outbox_transactions DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION skep._move_outbox();

-- Creates partitions. Returns false if another transaction that stays open is creating one of them or deleting its
-- queue.
CREATE FUNCTION skep._try_create_partitions(queues text[], partitions text[]) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
BEGIN
    PERFORM skep._create_partitions(queues, partitions);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Returns the maximum size in memory of a stored value without reading it: compression saves at most a factor of 255.
CREATE FUNCTION skep._unpacked_bytes(size integer, compression text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(CASE WHEN $2 IS NULL THEN $1 ELSE $1::bigint * 255 END, 0) $$;

-- Locks committed rows of the outbox after a position that can be appended now, oldest transaction first. A partition
-- is left for later if another session has locked it, or if an earlier row of it was skipped: so the order is kept, and
-- nothing waits. Every visible row is committed, except the caller's own. last_xid and last_id are the position of the
-- last row that was read; NULL if there are no more. _append_outbox() puts the rows into arrays, whose limit is 1 GB,
-- so this stops after 256 MB.
CREATE FUNCTION skep._lock_outbox(
    max_rows integer, after_xid xid8, after_id bigint, OUT xids xid8[], OUT ids bigint[], OUT queues text[],
    OUT partitions text[], OUT last_xid xid8, OUT last_id bigint
) LANGUAGE plpgsql AS $$
DECLARE
    stamp   timestamptz := clock_timestamp();
    locked  record;
    missing record;  -- partitions to create: as in push, none is locked before all of them exist
BEGIN
    SELECT array_agg(o.xid) FILTER (WHERE before < 268435456) AS xids,
           array_agg(o.id) FILTER (WHERE before < 268435456) AS ids,
           array_agg(o.queue) FILTER (WHERE before < 268435456) AS queues,
           array_agg(o.partition) FILTER (WHERE before < 268435456) AS partitions,
           count(*) = max_rows OR max(before) >= 268435456 AS has_more INTO locked
    FROM (SELECT o.*, sum(o.bytes) OVER (ORDER BY o.xid, o.id ROWS UNBOUNDED PRECEDING) - o.bytes AS before
          FROM (SELECT o.xid, o.id, o.queue, o.partition,
                       skep._unpacked_bytes(pg_column_size(o.payload), pg_column_compression(o.payload))
                       + skep._unpacked_bytes(pg_column_size(o.headers), pg_column_compression(o.headers))
                       + skep._unpacked_bytes(pg_column_size(o.producer), pg_column_compression(o.producer)) AS bytes
                FROM skep.outbox o
                WHERE o.xid IS DISTINCT FROM pg_current_xact_id_if_assigned() AND (o.xid, o.id) > (after_xid, after_id)
                ORDER BY o.xid, o.id LIMIT max_rows FOR UPDATE SKIP LOCKED) o) o;
    IF locked.ids IS NULL THEN
        RETURN;
    ELSIF locked.has_more THEN
        last_xid := locked.xids[cardinality(locked.xids)];
        last_id := locked.ids[cardinality(locked.ids)];
    END IF;
    SELECT array_agg(mine.queue) AS queues, array_agg(mine.partition) AS partitions INTO missing
    FROM (SELECT DISTINCT mine.queue, mine.partition
          FROM unnest(locked.queues, locked.partitions) AS mine (queue, partition)) mine
    WHERE NOT EXISTS (SELECT FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
                      WHERE q.name = mine.queue AND p.name = mine.partition);
    IF missing.queues IS NOT NULL AND NOT skep._try_create_partitions(missing.queues, missing.partitions) THEN
        -- One by one. Those that were not tried within half a second are tried the next time, in another order.
        PERFORM skep._try_create_partitions(ARRAY[one.queue], ARRAY[one.partition])
        FROM (SELECT * FROM unnest(missing.queues, missing.partitions) AS one (queue, partition)
              ORDER BY random() OFFSET 0) one
        WHERE clock_timestamp() < stamp + interval '500 milliseconds';
    END IF;
    WITH busy AS MATERIALIZED (
        SELECT DISTINCT o.queue, o.partition FROM (
            SELECT o.xid, o.id FROM skep.outbox o
            WHERE o.xid IS DISTINCT FROM pg_current_xact_id_if_assigned()
              AND (o.xid, o.id) <= (locked.xids[cardinality(locked.xids)], locked.ids[cardinality(locked.ids)])
            EXCEPT SELECT mine.xid, mine.id FROM unnest(locked.xids, locked.ids) AS mine (xid, id)) passed
        CROSS JOIN LATERAL (SELECT * FROM skep.outbox o WHERE o.xid = passed.xid AND o.id = passed.id LIMIT 1) o
    ), free AS MATERIALIZED (
        SELECT named.queue, named.partition
        FROM (SELECT DISTINCT mine.queue, mine.partition
              FROM unnest(locked.queues, locked.partitions) AS mine (queue, partition)) named
        CROSS JOIN LATERAL (SELECT q.id FROM skep.queues q WHERE q.name = named.queue LIMIT 1) q
        CROSS JOIN LATERAL (SELECT FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = named.partition
                            FOR NO KEY UPDATE SKIP LOCKED) p
        WHERE NOT EXISTS (SELECT FROM busy WHERE busy.queue = named.queue AND busy.partition = named.partition)
    )
    SELECT array_agg(mine.xid ORDER BY mine.n), array_agg(mine.id ORDER BY mine.n),
           array_agg(mine.queue ORDER BY mine.n), array_agg(mine.partition ORDER BY mine.n)
               INTO xids, ids, queues, partitions
    FROM unnest(locked.xids, locked.ids, locked.queues, locked.partitions)
    WITH ORDINALITY AS mine (xid, id, queue, partition, n)
    WHERE (mine.queue, mine.partition) IN (SELECT free.queue, free.partition FROM free);
END $$;

-- Moves these rows of the outbox into the log, in order, and returns the number of new messages.
CREATE FUNCTION skep._append_outbox(xids xid8[], ids bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    m record;
BEGIN
    WITH moved AS (
        DELETE FROM skep.outbox o USING unnest(_append_outbox.xids, _append_outbox.ids) AS own (xid, id)
        WHERE o.xid = ANY (ARRAY[own.xid]) AND o.id = own.id RETURNING o.*
    )
    SELECT array_agg(o.queue ORDER BY o.xid, o.id) AS queues, array_agg(o.partition ORDER BY o.xid, o.id) AS partitions,
           array_agg(o.payload ORDER BY o.xid, o.id) AS payloads,
           array_agg(o.transaction_id ORDER BY o.xid, o.id) AS transaction_ids,
           array_agg(o.headers ORDER BY o.xid, o.id) AS headers,
           array_agg(o.trace_id ORDER BY o.xid, o.id) AS trace_ids,
           array_agg(o.producer ORDER BY o.xid, o.id) AS producers,
           count(*) FILTER (WHERE num_nonnulls(o.delay, o.deliver_at) > 0) AS delayed,
           array_agg(CASE WHEN num_nonnulls(o.delay, o.deliver_at) > 0 THEN skep._due_time(1, o.delay, o.deliver_at) END
                     ORDER BY o.xid, o.id) AS due_times INTO m FROM moved o;
    RETURN (SELECT count(*) FILTER (WHERE p.status <> 'duplicate')
            FROM skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids,
                                m.producers,
                                CASE WHEN m.delayed > 0 THEN m.due_times END) p);
END $$;

-- Appends rows of the outbox that _lock_outbox() has locked. If they are refused, it appends the rows of each partition
-- separately. queues: the queues of the appended rows.
CREATE FUNCTION skep._publish_outbox(
    xids xid8[], ids bigint[], partition_queues text[], partitions text[],
    OUT messages bigint, OUT refused bigint, OUT queues text[]
) LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    refused := 0;
    BEGIN
        messages := skep._append_outbox(xids, ids);
        queues := partition_queues;
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        IF SQLSTATE NOT LIKE 'SK%' THEN
            RAISE;
        END IF;
    END;
    messages := 0;
    queues := '{}';
    FOR one IN
        SELECT item.queue, array_agg(item.xid ORDER BY item.n) AS xids, array_agg(item.id ORDER BY item.n) AS ids
        FROM unnest(partition_queues, partitions, xids, ids)
        WITH ORDINALITY AS item (queue, partition, xid, id, n)
        GROUP BY item.queue, item.partition ORDER BY item.queue, item.partition
    LOOP
        BEGIN
            messages := messages + skep._append_outbox(one.xids, one.ids);
            queues := queues || one.queue;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE NOT LIKE 'SK%' THEN
                RAISE;
            END IF;
            refused := refused + cardinality(one.ids);
        END;
    END LOOP;
END $$;

-- Appends rows that were committed under REPEATABLE READ or SERIALIZABLE, or while triggers were off. Returns the
-- number of new messages, the number of refused rows, and the queues of the messages. Any number of callers may run at
-- once: each row is appended once, and the rows of a partition in the order of their transactions. Rows are refused if
-- the options of their queue have changed since they were committed: they and the later rows of their partition stay in
-- the outbox. However many stay, a call skips them until it has appended some rows.
CREATE FUNCTION skep.move_committed_outbox(
    max_rows integer DEFAULT 10000, OUT messages bigint, OUT refused bigint, OUT queues text[]
)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    mine record;
    done record;
BEGIN
    messages := 0;
    refused := 0;
    queues := '{}';
    SELECT xid8 '0' AS last_xid, 0::bigint AS last_id INTO mine;
    LOOP
        mine := skep._lock_outbox(max_rows, mine.last_xid, mine.last_id);
        IF mine.ids IS NOT NULL THEN
            done := skep._publish_outbox(mine.xids, mine.ids, mine.queues, mine.partitions);
            messages := done.messages;
            refused := refused + done.refused;
            queues := ARRAY(SELECT DISTINCT queue FROM unnest(done.queues) AS queue ORDER BY queue);
        END IF;
        EXIT WHEN queues <> '{}' OR mine.last_id IS NULL;
    END LOOP;
END $$;
COMMENT ON FUNCTION skep.move_committed_outbox IS
    'Publishes outbox rows that were committed under REPEATABLE READ or SERIALIZABLE; upkeep calls it every second. '
    'Returns the number of new messages, the number of refused rows, and the queues of the new messages.';
CALL skep._allow('skep_producer', 'move_committed_outbox');

CREATE FUNCTION skep.push_to_outbox(messages jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (SELECT bool_and(skep._is_message(value)) FROM jsonb_array_elements(messages) AS value) THEN
        PERFORM skep._check_messages(messages);
        PERFORM skep._due_times(messages);
    END IF;
    INSERT INTO skep.outbox (queue, partition, payload, headers, transaction_id, trace_id, producer, delay, deliver_at)
    SELECT value ->> 'queue', coalesce(value ->> 'partition', 'Default'), coalesce(value -> 'payload', 'null'),
           nullif(value -> 'headers', 'null'), value ->> 'transaction_id', (value ->> 'trace_id')::uuid,
           value ->> 'producer', (value ->> 'delay')::double precision, (value ->> 'deliver_at')::timestamptz
    FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n) ORDER BY n;
EXCEPTION WHEN check_violation OR not_null_violation OR invalid_text_representation OR invalid_parameter_value THEN
    PERFORM skep._check_messages(messages);  -- raises the error that names the item
    RAISE;
END $$;
COMMENT ON FUNCTION skep.push_to_outbox IS
    'Writes messages, in the form of push(messages), to the outbox: they are published when your transaction '
    'commits.';
CALL skep._allow('skep_producer', 'push_to_outbox');

-- The rows of an open transaction are invisible to others, but its lock on the table is not.
CREATE FUNCTION skep.outbox_status(OUT transactions bigint, OUT oldest_seconds double precision, OUT waiting bigint)
LANGUAGE sql STABLE AS $$
    SELECT count(*), max(extract(epoch FROM clock_timestamp() - a.xact_start))::double precision,
           (SELECT count(*) FROM (SELECT FROM skep.outbox o
                                  WHERE o.xid IS DISTINCT FROM pg_current_xact_id_if_assigned() LIMIT 10000) o)
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.relation = 'skep.outbox'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
      AND a.datname = current_database() AND l.pid <> pg_backend_pid()
$$;
COMMENT ON FUNCTION skep.outbox_status IS
    'Returns the number of open transactions that have written to the outbox, the age of the oldest in seconds, and '
    'the number of committed rows that are not published yet (at most 10,000).';
CALL skep._allow('skep_admin', 'outbox_status');
