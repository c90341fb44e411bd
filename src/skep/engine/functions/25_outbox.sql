-- The transactional outbox: INSERT INTO skep.outbox takes no lane lock; the rows move into the log when the caller commits.
-- One deferred event per transaction, not per row: the statement trigger leaves one row in outbox_transactions, whose
-- deferred constraint trigger fires at COMMIT and appends everything at once, in lock order.

CREATE FUNCTION skep.note_outbox() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO skep.outbox_transactions (xid) VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER note_outbox AFTER INSERT ON skep.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION skep.note_outbox();

-- Deletes its own note, so that a row inserted by another deferred trigger after this one gets a new event.
CREATE FUNCTION skep.move_outbox() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    appended bigint;
BEGIN
    WITH moved AS (
        DELETE FROM skep.outbox WHERE xid = NEW.xid RETURNING *
    ), arrays AS (
        SELECT array_agg(queue ORDER BY id) AS queues, array_agg(partition ORDER BY id) AS partitions,
               array_agg(payload ORDER BY id) AS payloads, array_agg(transaction_id ORDER BY id) AS transaction_ids,
               array_agg(headers ORDER BY id) AS headers, array_agg(trace_id ORDER BY id) AS trace_ids,
               array_agg(producer ORDER BY id) AS producers
        FROM moved HAVING count(*) > 0
    )
    SELECT count(*) INTO appended FROM arrays a CROSS JOIN LATERAL
        skep.push_many(a.queues, a.partitions, a.payloads, a.transaction_ids, a.headers, a.trace_ids, a.producers);
    DELETE FROM skep.outbox_transactions WHERE xid = pg_current_xact_id();
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER move_outbox AFTER INSERT ON skep.outbox_transactions DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION skep.move_outbox();

-- For clients: the messages of push(messages), published when the caller's transaction commits.
CREATE FUNCTION skep.push_to_outbox(messages jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT bool_and(skep.is_message(value)) FROM jsonb_array_elements(messages) AS value) THEN
        INSERT INTO skep.outbox (queue, partition, payload, headers, transaction_id, trace_id, producer)
        SELECT value ->> 'queue', coalesce(value ->> 'partition', 'Default'), coalesce(value -> 'payload', 'null'),
               nullif(value -> 'headers', 'null'), value ->> 'transaction_id', (value ->> 'trace_id')::uuid, value ->> 'producer'
        FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n) ORDER BY n;
    ELSE
        PERFORM skep.check_messages(messages);
    END IF;
EXCEPTION WHEN check_violation OR not_null_violation OR invalid_text_representation OR invalid_parameter_value THEN
    PERFORM skep.check_messages(messages);  -- says what is wrong
    RAISE;
END $$;

-- What is in the outbox and not in the log. The rows of an open transaction nobody else sees; its lock on the table everybody does.
-- waiting: rows that were committed and not moved, counted up to 10,000. There are none unless they came while triggers were off, as they
-- do by logical replication: nothing moves those.
CREATE FUNCTION skep.outbox_status(OUT transactions bigint, OUT oldest_seconds double precision, OUT waiting bigint)
LANGUAGE sql STABLE AS $$
    SELECT count(*), max(extract(epoch FROM clock_timestamp() - a.xact_start))::double precision,
           (SELECT count(*) FROM (SELECT FROM skep.outbox o WHERE o.xid IS DISTINCT FROM pg_current_xact_id_if_assigned() LIMIT 10000) o)
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.relation = 'skep.outbox'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
      AND a.datname = current_database() AND l.pid <> pg_backend_pid()
$$;
