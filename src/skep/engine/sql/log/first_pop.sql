-- The work of a pop besides leasing: the first pop of a group subscribes it, later ones are heartbeats.

-- Subscribes the group if needed, and records a heartbeat. Returns false if the group gets nothing: it is paused, or
-- another transaction is subscribing it and is still open. pop calls this only if one of these may be necessary.
CREATE FUNCTION skep._ensure_subscribed(
    queue text, group_name text, partition text, namespace text, task text, mode text, start_from text
)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    stored skep.subscriptions;
BEGIN
    IF mode IS NOT NULL OR start_from IS NOT NULL THEN
        PERFORM skep._parse_start(mode, start_from);  -- the stored mode counts, but an unknown one is still an error
    END IF;
    stored := skep._subscription_for_pop(queue, group_name, partition, namespace, task, mode, start_from);
    IF stored.id IS NULL THEN
        IF NOT skep._try_subscribe(group_name, queue, partition, namespace, task, mode, start_from) THEN
            RETURN false;
        END IF;
        stored := skep._subscription_for_pop(queue, group_name, partition, namespace, task, NULL, NULL);
    END IF;
    IF stored.status = 'CANCELLED' THEN
        IF queue IS NOT NULL THEN
            PERFORM skep._refuse('SK007', format('the subscription of group "%s" to queue "%s" is cancelled',
                                                 group_name, queue), 'Subscribe again to make a new start.');
        END IF;
        RETURN false;
    END IF;
    IF stored.status = 'DEAD' OR stored.last_heartbeat_at NOT BETWEEN
           clock_timestamp() - skep._seconds(stored.heartbeat_interval / 4) AND clock_timestamp() THEN
        PERFORM skep._record_heartbeat(stored.id);
    END IF;
    RETURN stored.status <> 'PAUSED' AND skep._ensure_group_queues(queue, group_name);
END $$;

-- Returns the subscription that covers a pop: the one of exactly its scope, or a wider one if the pop gives no start or
-- repeats the wider one's mode. On a work queue the subscription of queue mode covers every pop.
CREATE FUNCTION skep._subscription_for_pop(
    queue text, group_name text, partition text, namespace text, task text, mode text, start_from text
) RETURNS skep.subscriptions LANGUAGE plpgsql STABLE AS $$
DECLARE
    q      record;
    stored skep.subscriptions := skep._subscription_for(group_name, queue, partition, namespace, task);
BEGIN
    IF stored.id IS NULL AND _subscription_for_pop.queue IS NOT NULL THEN
        SELECT o.namespace, o.task, o.semantics INTO q FROM skep.queues o WHERE o.name = _subscription_for_pop.queue;
        stored := skep._subscription_of(skep._group_of(q.semantics, group_name), queue, partition, q.namespace, q.task);
        IF q.semantics = 'queue' AND stored.id IS NOT NULL OR mode IS NULL AND start_from IS NULL
           OR start_from IS NULL AND stored.mode = (skep._parse_start(mode, NULL)).start_mode THEN
            RETURN stored;
        END IF;
        RETURN NULL;
    END IF;
    RETURN stored;
END $$;

-- This and the next function wait 0.1 s for another first pop of the group, and return false if its transaction stays
-- open.
CREATE FUNCTION skep._try_subscribe(
    group_name text, queue text, partition text, namespace text, task text, mode text, start_from text
)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    PERFORM skep._store_subscription(group_name, queue, partition, namespace, task, mode, start_from);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

CREATE FUNCTION skep._ensure_group_queues(queue text, group_name text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    IF queue IS NULL THEN
        PERFORM skep._ensure_wide_list(group_name);
    ELSE
        PERFORM skep._ensure_group_queue(group_name, queue);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Returns an id for a new row of group_queues. A lease id has room for 2^21 of them, so ids are reused.
CREATE FUNCTION skep._new_group_queue_id() RETURNS integer
LANGUAGE plpgsql AS $$
<<known>>
DECLARE
    id integer;
BEGIN
    FOR try IN 1 .. 2097151 LOOP
        id := nextval(pg_get_serial_sequence('skep.group_queues', 'id'));
        IF NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.id = known.id) THEN
            RETURN id;
        END IF;
    END LOOP;
    PERFORM skep._refuse('SK007', 'there are 2097151 pairs of a group and a queue, which is the limit',
                         'Delete groups that are not used any more with skep.delete_group().');
END $$;

-- Returns the group_queues row of a group on a queue, and creates it if needed; NULL if the queue does not exist.
CREATE FUNCTION skep._ensure_group_queue(group_name text, queue text) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    q               skep.queues;
    effective_group text;
    known           integer;
BEGIN
    FOR try IN 1 .. 2 LOOP
        SELECT * INTO q FROM skep.queues WHERE name = _ensure_group_queue.queue;
        effective_group := skep._group_of(q.semantics, _ensure_group_queue.group_name);
        SELECT id INTO known FROM skep.group_queues WHERE group_name = effective_group AND queue_id = q.id;
        EXIT WHEN known IS NOT NULL OR q.id IS NULL OR try = 2;
        PERFORM FROM skep.queues WHERE id = q.id FOR KEY SHARE;  -- locks out delete_queue()
        CONTINUE WHEN NOT FOUND;
        known := skep._new_group_queue_id();
        INSERT INTO skep.group_queues (id, group_name, queue_id, list_id) OVERRIDING SYSTEM VALUE
        VALUES (known, effective_group, q.id, coalesce(
            (SELECT w.id FROM skep.group_queues w WHERE w.group_name = effective_group AND w.queue_id = 0 AND EXISTS (
                SELECT FROM skep.subscriptions s WHERE s.group_name = effective_group AND s.queue IS NULL
                   AND (s.namespace IS NULL OR s.namespace = q.namespace)
                   AND (s.task IS NULL OR s.task = q.task))), known))
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN known;
END $$;

-- Returns the ready list for all queues that the namespaces and tasks of a group cover, and creates it if needed.
CREATE FUNCTION skep._ensure_wide_list(group_name text) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    list integer := (SELECT id FROM skep.group_queues WHERE group_name = _ensure_wide_list.group_name AND queue_id = 0);
BEGIN
    IF list IS NULL THEN
        list := skep._new_group_queue_id();
        INSERT INTO skep.group_queues (id, group_name, queue_id, list_id) OVERRIDING SYSTEM VALUE
        VALUES (list, _ensure_wide_list.group_name, 0, list)
        ON CONFLICT DO NOTHING;
        SELECT id INTO list FROM skep.group_queues WHERE group_name = _ensure_wide_list.group_name AND queue_id = 0;
    END IF;
    RETURN list;
END $$;

-- Adds the queues that a ready list for namespaces and tasks covers. Queues that the group has read on their own move
-- into it. Returns false if one of them is locked, or if another transaction is changing the namespace or task of a
-- queue: that transaction updates only the lists it can see, and it cannot see this one until commit.
CREATE FUNCTION skep._add_covered_queues(list integer) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
DECLARE
    covering_group text := (SELECT g.group_name FROM skep.group_queues g WHERE g.id = list);
    covered        integer[] := ARRAY(
        SELECT DISTINCT q.id FROM skep.subscriptions s
        JOIN skep.queues q ON (s.namespace IS NULL OR q.namespace = s.namespace) AND (s.task IS NULL OR q.task = s.task)
        WHERE s.group_name = covering_group AND s.queue IS NULL AND q.semantics <> 'queue');
    moved          integer[];
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(x'736b6570'::integer, 0) THEN
        RETURN false;
    END IF;
    moved := ARRAY(SELECT g.id FROM skep.group_queues g
                   WHERE g.group_name = covering_group AND g.queue_id = ANY (covered) AND g.list_id <> list
                   ORDER BY g.id FOR UPDATE);
    UPDATE skep.group_queues g SET list_id = list WHERE g.id = ANY (moved);
    UPDATE skep.runs r SET list_id = list, priority = -q.priority
    FROM skep.group_queues g JOIN skep.queues q ON q.id = g.queue_id
    WHERE g.id = ANY (moved) AND r.group_queue_id = g.id;
    DELETE FROM skep.discoveries d WHERE d.list_id = ANY (moved);
    PERFORM skep._add_group_queues(list, covering_group, covered);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
