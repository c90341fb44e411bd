-- meet: the first contact of a group with what it pops from, and a sign of life at every later one.

-- The readers a pop is about, subscribed and created at first contact, even to a queue that does not exist yet. None that are paused.
CREATE FUNCTION skep.meet(queue text, group_name text, partition text, namespace text, task text, mode text, start_from text)
RETURNS integer[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp     timestamptz := clock_timestamp();
    readers   integer[];
    missing   boolean;
    cancelled boolean;
    quiet     bigint[];  -- subscriptions that gave no sign of life lately: this pop is one
BEGIN
    IF NOT EXISTS (
        SELECT FROM skep.subscriptions s
        WHERE s.group_name = meet.group_name AND coalesce(s.queue, '') = coalesce(meet.queue, '')
          AND coalesce(s.partition, '') = coalesce(meet.partition, '') AND coalesce(s.namespace, '') = coalesce(meet.namespace, '')
          AND coalesce(s.task, '') = coalesce(meet.task, '')) AND NOT (
        -- A wider subscription covers a call that does not ask for a start of its own, and that of queue mode any call.
        meet.queue IS NOT NULL AND EXISTS (
            SELECT FROM (SELECT q.namespace, q.task, q.semantics FROM skep.queues q WHERE q.name = meet.queue
                         UNION ALL SELECT NULL, NULL, NULL LIMIT 1) q
            CROSS JOIN LATERAL skep.subscription_of(skep.group_on(q.semantics, meet.group_name), meet.queue, meet.partition, q.namespace, q.task) s
            WHERE s.id IS NOT NULL AND (q.semantics = 'queue' OR meet.mode IS NULL AND meet.start_from IS NULL))) THEN
        IF NOT skep.first_contact(meet.group_name, meet.queue, meet.partition, meet.namespace, meet.task, meet.mode, meet.start_from) THEN
            RETURN NULL;
        END IF;
    ELSIF meet.mode IS NOT NULL OR meet.start_from IS NOT NULL THEN
        PERFORM skep.parse_start(meet.mode, meet.start_from);  -- the first mode stays, but a wrong word is still an error
    END IF;
    FOR try IN 1 .. 2 LOOP
        SELECT array_agg(r.id) FILTER (WHERE r.status IN ('ACTIVE', 'DEAD')), bool_or(r.id IS NULL), bool_or(r.status = 'CANCELLED'),
               array_agg(r.subscription_id) FILTER (WHERE r.quiet AND r.status <> 'CANCELLED')
        INTO readers, missing, cancelled, quiet
        FROM skep.queues_of(meet.queue, meet.namespace, meet.task) q
        CROSS JOIN LATERAL (SELECT skep.group_on(q.semantics, meet.group_name) AS name) g
        LEFT JOIN LATERAL (
            SELECT r.id, coalesce(s.status, 'ACTIVE') AS status, s.id AS subscription_id,
                   s.status = 'DEAD' OR s.last_heartbeat_at NOT BETWEEN stamp - skep.seconds(s.heartbeat_interval / 4) AND stamp AS quiet
            FROM skep.readers r
            LEFT JOIN LATERAL skep.subscription_of(g.name, q.name, meet.partition, q.namespace, q.task) s ON true
            WHERE r.queue_id = q.id AND r.group_name = g.name LIMIT 1) r ON true;
        EXIT WHEN NOT missing OR try = 2 OR NOT skep.add_readers(meet.queue, meet.group_name, meet.namespace, meet.task);
    END LOOP;
    IF cancelled AND meet.queue IS NOT NULL THEN
        PERFORM skep.refuse('SK007', format('the subscription of group "%s" to queue "%s" is cancelled', meet.group_name, meet.queue),
                            'Subscribe again to begin anew.');
    END IF;
    IF missing IS NULL OR meet.queue IS NULL THEN  -- no queue yet, or each has a subscription of its own: the wide one is alive too
        quiet := quiet || skep.quiet_in(meet.group_name, meet.queue, meet.partition, meet.namespace, meet.task);
    END IF;
    IF quiet IS NOT NULL THEN
        PERFORM skep.beat(id) FROM unnest(quiet) AS id;
    END IF;
    RETURN array_remove(readers, NULL);
END $$;

-- Both wait, but not long, for another first contact of the group: false if that one stays in an open transaction.
CREATE FUNCTION skep.first_contact(group_name text, queue text, partition text, namespace text, task text, mode text, start_from text)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    PERFORM skep.store_subscription(group_name, queue, partition, namespace, task, mode, start_from);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

CREATE FUNCTION skep.add_readers(queue text, group_name text, namespace text, task text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
BEGIN
    WITH created AS (
        INSERT INTO skep.readers (group_name, queue_id)
        SELECT skep.group_on(q.semantics, add_readers.group_name), q.id
        FROM skep.queues_of(add_readers.queue, add_readers.namespace, add_readers.task) named
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = named.id FOR KEY SHARE) q
        ORDER BY q.id
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    INSERT INTO skep.looks (reader_id) SELECT id FROM created;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- A statement for each filter: one for all would have no index.
CREATE FUNCTION skep.queues_of(queue text, namespace text, task text) RETURNS SETOF skep.queues
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF queue IS NOT NULL THEN
        RETURN QUERY SELECT * FROM skep.queues q WHERE q.name = queues_of.queue;
    ELSIF namespace IS NULL THEN
        RETURN QUERY SELECT * FROM skep.queues q WHERE q.task = queues_of.task;
    ELSIF task IS NULL THEN
        RETURN QUERY SELECT * FROM skep.queues q WHERE q.namespace = queues_of.namespace;
    ELSE
        RETURN QUERY SELECT * FROM skep.queues q WHERE q.namespace = queues_of.namespace AND q.task = queues_of.task;
    END IF;
END $$;

-- On a queue with semantics 'queue' every consumer, whatever its group, shares one cursor.
CREATE FUNCTION skep.group_on(semantics text, group_name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN $1 = 'queue' THEN '__QUEUE_MODE__' ELSE $2 END $$;

-- The subscriptions of exactly this scope that gave no sign of life lately.
CREATE FUNCTION skep.quiet_in(group_name text, queue text, partition text, namespace text, task text) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(s.id) FROM skep.subscriptions s
    WHERE s.group_name = $1 AND coalesce(s.queue, '') = coalesce($2, '') AND coalesce(s.partition, '') = coalesce($3, '')
      AND coalesce(s.namespace, '') = coalesce($4, '') AND coalesce(s.task, '') = coalesce($5, '')
      AND (s.status = 'DEAD' OR s.last_heartbeat_at NOT BETWEEN clock_timestamp() - skep.seconds(s.heartbeat_interval / 4) AND clock_timestamp())
$$;
