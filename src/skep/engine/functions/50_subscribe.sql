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

CREATE FUNCTION skep.subscribe(
    group_name text, queue text DEFAULT NULL, partition text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL,
    mode text DEFAULT NULL, start_from text DEFAULT NULL
) RETURNS skep.subscriptions LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    start  record;
    stored skep.subscriptions;
BEGIN
    PERFORM skep.check_pop(queue, group_name, partition, namespace, task, 1, 1, NULL);
    IF subscribe.group_name = '__QUEUE_MODE__' THEN
        start := skep.parse_start('all', NULL);  -- queue mode belongs to nobody in particular: it always starts at the beginning
    ELSE
        start := skep.parse_start(subscribe.mode, subscribe.start_from);
    END IF;
    INSERT INTO skep.subscriptions (group_name, queue, partition, namespace, task, mode, start_at, start_offset)
    VALUES (subscribe.group_name, subscribe.queue, subscribe.partition, subscribe.namespace, subscribe.task, start.start_mode,
            start.start_at, start.start_offset)
    ON CONFLICT DO NOTHING;
    SELECT * INTO stored FROM skep.subscriptions s
    WHERE s.group_name = subscribe.group_name AND coalesce(s.queue, '') = coalesce(subscribe.queue, '')
      AND coalesce(s.partition, '') = coalesce(subscribe.partition, '')
      AND coalesce(s.namespace, '') = coalesce(subscribe.namespace, '') AND coalesce(s.task, '') = coalesce(subscribe.task, '');
    RETURN stored;
END $$;
