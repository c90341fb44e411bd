-- Where a group starts. The first contact stores it, once; later calls and changed defaults do not change it. Only seek does.

-- mode: all, from_beginning | new, new-only, now, from_now | timestamp (start_from: a time) | offset, message_id (start_from: a number or an id).
-- start_from alone: "now", a time, or a number.
CREATE FUNCTION skep.parse_start(
    mode text, start_from text, OUT start_mode text, OUT start_at timestamptz, OUT start_offset bigint, OUT start_id uuid
) LANGUAGE plpgsql AS $$
DECLARE
    word text := lower(coalesce(mode, CASE WHEN start_from ~ '^\d+$' THEN 'offset' WHEN lower(start_from) = 'now' THEN 'new'
                                           WHEN start_from <> '' THEN 'timestamp' END,
                                (SELECT default_subscription_mode FROM skep.settings)));
BEGIN
    IF lower(mode) IN ('all', 'from_beginning', 'new', 'new-only', 'now', 'from_now') AND start_from <> '' AND lower(start_from) <> 'now' THEN
        word := 'timestamp';  -- Queen clients send a mode beside the time: the time is the more exact wish
    END IF;
    IF word IN ('all', 'from_beginning') THEN
        start_mode := 'all';
    ELSIF word IN ('new', 'new-only', 'now', 'from_now') THEN
        start_mode := 'new';
        start_at := clock_timestamp() - 2 * skep.seconds((SELECT max_poll_interval FROM skep.settings));
    ELSIF word = 'timestamp' THEN
        start_mode := 'timestamp';
        start_at := start_from::timestamptz;
    ELSIF word IN ('offset', 'message_id') THEN
        start_mode := 'offset';
        start_id := CASE WHEN start_from !~ '^\d+$' THEN start_from::uuid END;
        start_offset := CASE WHEN start_id IS NULL THEN start_from::bigint ELSE skep.offset_of(start_id) END;
    ELSE
        PERFORM skep.refuse('SK001', format('unknown subscription mode "%s"', mode), 'Modes: all, new, timestamp, offset, message_id.');
    END IF;
    IF start_mode = 'timestamp' AND start_at IS NULL OR start_mode = 'offset' AND start_offset IS NULL THEN
        PERFORM skep.refuse('SK001', format('mode "%s" needs a place to start from', word), 'Give start_from.');
    END IF;
EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR invalid_parameter_value OR invalid_text_representation
               OR numeric_value_out_of_range THEN
    PERFORM skep.refuse('SK001', format('cannot read "%s" as a place to start from', start_from),
                        'Give a time such as 2026-01-31T12:00:00Z, an offset, or a message id.');
END $$;

-- The lane of a message that a group wants to start from, and the group's reader, locked (as seek does: before the subscription), but for
-- queues where groups do not decide where to start.
CREATE FUNCTION skep.find_start(
    id uuid, group_name text, queue text, namespace text, task text,
    OUT lane bigint, OUT partition text, OUT created_at timestamptz, OUT reader integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    place record;
BEGIN
    SELECT p.id, p.name, m.created_at, q.name AS queue, q.semantics INTO place
    FROM (SELECT * FROM skep.messages m
          WHERE m.partition_id = skep.partition_of(find_start.id) AND m."offset" = skep.offset_of(find_start.id) LIMIT 1) m
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = m.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    WHERE (p.only_group IS NULL OR p.only_group = find_start.group_name)
      AND (q.name = find_start.queue OR find_start.queue IS NULL AND q.namespace = coalesce(find_start.namespace, q.namespace)
                                        AND q.task = coalesce(find_start.task, q.task));
    IF NOT FOUND THEN
        PERFORM skep.refuse('SK002', format('there is no message %s in %s', find_start.id, coalesce(
                                format('queue "%s"', find_start.queue), 'the queues of the subscription')),
                            'Give the id of a message that is still there, or a time.');
    END IF;
    lane := place.id; partition := place.name; created_at := place.created_at;
    reader := CASE WHEN place.semantics <> 'queue' THEN skep.hold_reader(find_start.group_name, place.queue) END;
END $$;

-- The group meets one lane now, unless it has before.
CREATE FUNCTION skep.meet_lane(reader integer, lane bigint, at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
    SELECT lane, reader, at, at, at, '-infinity'
    WHERE reader IS NOT NULL AND NOT EXISTS (SELECT FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader);
    PERFORM skep.start_line_anew(ARRAY[reader]);
END $$;

CREATE FUNCTION skep.subscription_for(group_name text, queue text, partition text, namespace text, task text) RETURNS skep.subscriptions
LANGUAGE sql STABLE AS $$
    SELECT s FROM skep.subscriptions s
    WHERE s.group_name = $1 AND coalesce(s.queue, '') = coalesce($2, '') AND coalesce(s.partition, '') = coalesce($3, '')
      AND coalesce(s.namespace, '') = coalesce($4, '') AND coalesce(s.task, '') = coalesce($5, '')
$$;

-- Stores the subscription unless there is one for exactly this scope, and returns what is there.
CREATE FUNCTION skep.store_subscription(
    group_name text, queue text, partition text, namespace text, task text, mode text, start_from text,
    backfill boolean DEFAULT NULL, heartbeat_interval double precision DEFAULT NULL, heartbeat_timeout double precision DEFAULT NULL,
    miss_threshold integer DEFAULT NULL
) RETURNS skep.subscriptions LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    who    text := coalesce((SELECT skep.group_on(q.semantics, store_subscription.group_name) FROM skep.queues q
                             WHERE q.name = store_subscription.queue), store_subscription.group_name);
    start  record;
    own    record;  -- the lane of the message to start from
    stored skep.subscriptions;
    place  text;
BEGIN
    start := skep.parse_start(store_subscription.mode, store_subscription.start_from);
    IF who = '__QUEUE_MODE__' THEN  -- it belongs to nobody in particular: it always starts at the beginning
        start := skep.parse_start('all', NULL);
    ELSIF start.start_id IS NOT NULL THEN
        stored := skep.subscription_for(who, queue, partition, namespace, task);
        IF stored.id IS NOT NULL THEN
            RETURN stored;  -- the message may be gone by now
        END IF;
        own := skep.find_start(start.start_id, who, queue, namespace, task);
        IF own.partition IS DISTINCT FROM store_subscription.partition THEN
            start.start_mode := 'timestamp';
            start.start_at := own.created_at;
            start.start_offset := NULL;
        END IF;
    END IF;
    INSERT INTO skep.subscriptions (group_name, queue, partition, namespace, task, mode, start_at, start_offset, backfill,
                                    heartbeat_interval, heartbeat_timeout, miss_threshold)
    VALUES (who, store_subscription.queue, store_subscription.partition, store_subscription.namespace,
            store_subscription.task, start.start_mode, start.start_at, start.start_offset,
            coalesce(store_subscription.backfill, start.start_mode <> 'new'), coalesce(store_subscription.heartbeat_interval, 60),
            coalesce(store_subscription.heartbeat_timeout, 300), coalesce(store_subscription.miss_threshold, 3))
    ON CONFLICT DO NOTHING;
    IF FOUND AND start.start_id IS NOT NULL AND store_subscription.partition IS NULL THEN
        -- The time says where other lanes start. Here it does not: messages that were pushed together have the same.
        PERFORM skep.meet_lane(own.reader, own.lane, skep.offset_of(start.start_id));
    END IF;
    RETURN skep.subscription_for(who, queue, partition, namespace, task);
EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS place = CONSTRAINT_NAME;
    PERFORM skep.refuse('SK001', format('subscription of group "%s": %s is out of range', store_subscription.group_name,
                            replace(substring(place FROM '^subscriptions_(.*)_check\d*$'), 'timeout', 'heartbeat_timeout')),
                        'heartbeat_interval > 0, heartbeat_timeout > heartbeat_interval, miss_threshold >= 1.');
END $$;

-- Creates if absent: an existing subscription keeps its start and its options. One that is dead lives again at its cursor; one that was
-- cancelled begins a new life.
CREATE FUNCTION skep.subscribe(
    group_name text, queue text DEFAULT NULL, partition text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL,
    mode text DEFAULT NULL, start_from text DEFAULT NULL, backfill boolean DEFAULT NULL, heartbeat_interval double precision DEFAULT NULL,
    heartbeat_timeout double precision DEFAULT NULL, miss_threshold integer DEFAULT NULL
) RETURNS skep.subscriptions LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stored skep.subscriptions;
    ended  bigint[];
BEGIN
    PERFORM skep.check_pop(queue, group_name, partition, namespace, task, 1, 1, NULL);
    stored := skep.store_subscription(group_name, queue, partition, namespace, task, mode, start_from, backfill, heartbeat_interval,
                                      heartbeat_timeout, miss_threshold);
    IF stored.status = 'CANCELLED' THEN
        -- With those of its partitions, as cancel() does: or their lanes would have no part in the new life.
        SELECT array_agg(s.id) INTO ended FROM skep.subscriptions s
        WHERE s.group_name = stored.group_name AND s.status = 'CANCELLED'
          AND (s.id = stored.id OR stored.partition IS NULL AND s.queue = stored.queue);
        PERFORM skep.forget_progress(s) FROM skep.subscriptions s WHERE s.id = ANY (ended);
        DELETE FROM skep.subscriptions s WHERE s.id = ANY (ended) AND s.status = 'CANCELLED';
        stored := skep.store_subscription(group_name, queue, partition, namespace, task, mode, start_from, backfill, heartbeat_interval,
                                          heartbeat_timeout, miss_threshold);
    ELSIF stored.status = 'DEAD' THEN
        PERFORM skep.beat(stored.id);
        SELECT * INTO stored FROM skep.subscriptions s WHERE s.id = stored.id;
    END IF;
    RETURN stored;
END $$;
