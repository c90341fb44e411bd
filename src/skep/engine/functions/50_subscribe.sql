-- Where a group starts. The first contact stores it, once; later calls and changed defaults do not change it. Only seek does.

-- mode: all, from_beginning | new, new-only, now | timestamp (start_from: a time) | offset, message_id (start_from: a number or an id).
-- start_from alone: "now", a time, or a number.
CREATE FUNCTION skep.parse_start(mode text, start_from text, OUT start_mode text, OUT start_at timestamptz, OUT start_offset bigint)
LANGUAGE plpgsql AS $$
DECLARE
    word text := lower(coalesce(mode, CASE WHEN start_from ~ '^\d+$' THEN 'offset' WHEN lower(start_from) = 'now' THEN 'new'
                                           WHEN start_from <> '' THEN 'timestamp' END,
                                (SELECT default_subscription_mode FROM skep.settings)));
BEGIN
    IF mode IN ('all', 'from_beginning', 'new', 'new-only', 'now') AND start_from <> '' AND lower(start_from) <> 'now' THEN
        word := 'timestamp';  -- Queen clients send a mode beside the time: the time is the more exact wish
    END IF;
    IF word IN ('all', 'from_beginning') THEN
        start_mode := 'all';
    ELSIF word IN ('new', 'new-only', 'now') THEN
        start_mode := 'new';
        start_at := clock_timestamp() - 2 * skep.seconds((SELECT max_poll_interval FROM skep.settings));
    ELSIF word = 'timestamp' THEN
        start_mode := 'timestamp';
        start_at := start_from::timestamptz;
    ELSIF word IN ('offset', 'message_id') THEN
        start_mode := 'offset';
        start_offset := CASE WHEN start_from ~ '^\d+$' THEN start_from::bigint ELSE skep.offset_of(start_from::uuid) END;
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
    stored skep.subscriptions;
    place  text;
BEGIN
    start := skep.parse_start(store_subscription.mode, store_subscription.start_from);
    IF who = '__QUEUE_MODE__' THEN  -- it belongs to nobody in particular: it always starts at the beginning
        start := skep.parse_start('all', NULL);
    END IF;
    INSERT INTO skep.subscriptions (group_name, queue, partition, namespace, task, mode, start_at, start_offset, backfill,
                                    heartbeat_interval, heartbeat_timeout, miss_threshold)
    VALUES (who, store_subscription.queue, store_subscription.partition, store_subscription.namespace,
            store_subscription.task, start.start_mode, start.start_at, start.start_offset,
            coalesce(store_subscription.backfill, start.start_mode <> 'new'), coalesce(store_subscription.heartbeat_interval, 60),
            coalesce(store_subscription.heartbeat_timeout, 300), coalesce(store_subscription.miss_threshold, 3))
    ON CONFLICT DO NOTHING;
    SELECT * INTO stored FROM skep.subscriptions s
    WHERE s.group_name = who AND coalesce(s.queue, '') = coalesce(store_subscription.queue, '')
      AND coalesce(s.partition, '') = coalesce(store_subscription.partition, '')
      AND coalesce(s.namespace, '') = coalesce(store_subscription.namespace, '') AND coalesce(s.task, '') = coalesce(store_subscription.task, '');
    RETURN stored;
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
BEGIN
    PERFORM skep.check_pop(queue, group_name, partition, namespace, task, 1, 1, NULL);
    stored := skep.store_subscription(group_name, queue, partition, namespace, task, mode, start_from, backfill, heartbeat_interval,
                                      heartbeat_timeout, miss_threshold);
    IF stored.status = 'CANCELLED' THEN
        IF stored.partition IS NULL THEN
            DELETE FROM skep.subscriptions s WHERE s.group_name = stored.group_name AND s.queue = stored.queue AND s.partition IS NOT NULL
                AND s.status = 'CANCELLED';
        END IF;
        PERFORM skep.forget_progress(stored);
        DELETE FROM skep.subscriptions s WHERE s.id = stored.id AND s.status = 'CANCELLED';
        stored := skep.store_subscription(group_name, queue, partition, namespace, task, mode, start_from, backfill, heartbeat_interval,
                                          heartbeat_timeout, miss_threshold);
    ELSIF stored.status = 'DEAD' THEN
        PERFORM skep.beat(stored.id);
        SELECT * INTO stored FROM skep.subscriptions s WHERE s.id = stored.id;
    END IF;
    RETURN stored;
END $$;
