-- The maintenance modes of the servers. In push maintenance mode pushes are held here and stored, once and in order,
-- when it ends.
--
-- Advisory locks (class 736b6568). Lock 0: sessions that hold or drain pushes share it, and a session that switches the
-- mode takes it exclusively, so no push is held after the switch. Lock 1: taken to drain, by one session at a time.
-- They are advisory because sessions that share the lock of a row could block the switch for ever.

CREATE FUNCTION skep.maintenance_mode(
    OUT push boolean, OUT pop boolean, OUT held bigint, OUT refused bigint, OUT is_pending boolean
)
LANGUAGE sql STABLE AS $$
    SELECT s.push_maintenance, s.pop_maintenance, h.held, h.refused, h.is_pending
    FROM skep.settings s
    CROSS JOIN LATERAL (SELECT coalesce(sum(h.messages), 0)::bigint AS held, count(h.error) AS refused,
                        coalesce(bool_or(h.error IS NULL), false) AS is_pending
                        FROM skep.held_pushes h) h
$$;
COMMENT ON FUNCTION skep.maintenance_mode IS
    'Returns whether the servers hold back pushes and pops, and the number of held messages.';
CALL skep._allow('skep_admin', 'maintenance_mode');

CREATE FUNCTION skep.set_maintenance_mode(push boolean DEFAULT NULL, pop boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(x'736b6568'::integer, 0);
    UPDATE skep.settings SET push_maintenance = coalesce(push, push_maintenance),
        pop_maintenance = coalesce(pop, pop_maintenance);
END $$;
COMMENT ON FUNCTION skep.set_maintenance_mode IS
    'Turns the push or pop maintenance mode of all servers on or off. NULL keeps the current mode.';
CALL skep._allow('skep_admin', 'set_maintenance_mode');

-- Stores the messages of a request for later; returns false if push maintenance mode is off. Refuses messages that are
-- already known to be invalid.
CREATE FUNCTION skep._hold_push(messages jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    due_times timestamptz[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(x'736b6568'::integer, 0);
    IF NOT (SELECT s.push_maintenance FROM skep.settings s) THEN
        RETURN false;
    END IF;
    PERFORM skep._check_name('queue', item ->> 'queue'), skep._check_name('partition', item ->> 'partition'),
            skep._check_item(n, item -> 'payload', coalesce(q.max_payload_bytes, 16777216), item ->> 'transaction_id',
                             item -> 'headers')
    FROM jsonb_array_elements(messages) WITH ORDINALITY AS e (item, n)
    LEFT JOIN skep.queues q ON q.name = item ->> 'queue';
    due_times := skep._due_times(messages);
    IF num_nonnulls(VARIADIC due_times) > 0 THEN  -- a delay counts from now
        messages := (SELECT jsonb_agg(item - 'delay'
                                      || jsonb_strip_nulls(jsonb_build_object('deliver_at', due_times[n])) ORDER BY n)
                     FROM jsonb_array_elements(messages) WITH ORDINALITY AS e (item, n));
    END IF;
    INSERT INTO skep.held_pushes (items, messages)
    VALUES (_hold_push.messages, jsonb_array_length(_hold_push.messages));
    RETURN true;
END $$;
CALL skep._allow('skep_producer', '_hold_push');

CREATE FUNCTION skep._store_held(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    messages jsonb;
BEGIN
    WITH deleted AS (DELETE FROM skep.held_pushes h WHERE h.id = ANY (ids) RETURNING h.id, h.items)
    SELECT jsonb_agg(item ORDER BY deleted.id, n) INTO messages
    FROM deleted CROSS JOIN LATERAL jsonb_array_elements(deleted.items) WITH ORDINALITY AS e (item, n);
    PERFORM skep._push_messages(messages);
END $$;

-- Returns true for an error that is not caused by the messages, so that a retry may succeed.
CREATE FUNCTION skep._is_transient(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT $1 IN ('40001', '40P01', '55P03')
    OR left($1, 2) IN ('08', '53', '57', '58', 'XX') $$;

-- Stores held pushes, oldest first, about max_messages in one transaction, which deletes them here. Does nothing in
-- push maintenance mode. A request that the database refuses stays with its error, and is skipped unless retry_refused
-- is true. It waits for locked partitions, because the order matters, but not for ever: a session that switches the
-- mode waits for this one, and pushes wait for that session.
CREATE FUNCTION skep._drain_held_pushes(max_messages integer DEFAULT 2000, retry_refused boolean DEFAULT false,
                                       OUT messages bigint, OUT refused bigint, OUT queues text[])
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    chosen bigint[];
    one    bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(x'736b6568'::integer, 1);
    PERFORM pg_advisory_xact_lock_shared(x'736b6568'::integer, 0);
    refused := 0;
    SELECT array_agg(h.id ORDER BY h.id), coalesce(sum(h.messages), 0) INTO chosen, messages
    FROM (SELECT h.id, h.messages, sum(h.messages) OVER (ORDER BY h.id) - h.messages AS before
          FROM (SELECT * FROM skep.held_pushes h WHERE retry_refused OR h.error IS NULL ORDER BY h.id LIMIT 1000) h) h
    WHERE before < max_messages AND NOT (SELECT s.push_maintenance FROM skep.settings s);
    SELECT coalesce(array_agg(DISTINCT item ->> 'queue'), '{}') INTO queues
    FROM skep.held_pushes h CROSS JOIN LATERAL jsonb_array_elements(h.items) AS item WHERE h.id = ANY (chosen);
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM skep._store_held(chosen);
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        IF skep._is_transient(SQLSTATE) THEN
            RAISE;
        END IF;
    END;
    FOREACH one IN ARRAY chosen LOOP
        BEGIN
            PERFORM skep._store_held(ARRAY[one]);
        EXCEPTION WHEN OTHERS THEN
            IF skep._is_transient(SQLSTATE) THEN
                RAISE;
            END IF;
            UPDATE skep.held_pushes h SET error = SQLERRM WHERE h.id = one;
            refused := refused + 1;
            messages := messages - (SELECT h.messages FROM skep.held_pushes h WHERE h.id = one);
        END;
    END LOOP;
END $$;
CALL skep._allow('skep_admin', '_drain_held_pushes');
