-- Subscriptions: where a group starts. The first pop or subscribe stores it, once. Later calls and changed defaults do
-- not change it; only seek does.

-- mode: all, from_beginning | new, new-only, now, from_now | timestamp (start_from: a time)
--       | offset, message_id (start_from: a number or an id)
-- start_from alone: "now", a time, or a number.
CREATE FUNCTION skep._parse_start(
    mode text, start_from text, OUT start_mode text, OUT start_at timestamptz, OUT start_offset bigint,
    OUT start_id uuid
) LANGUAGE plpgsql AS $$
DECLARE
    word text := lower(coalesce(mode, CASE WHEN start_from ~ '^\d+$' THEN 'offset'
                                WHEN lower(start_from) = 'now' THEN 'new'
                                           WHEN start_from <> '' THEN 'timestamp' END,
                                (SELECT default_subscription_mode FROM skep.settings)));
BEGIN
    IF lower(mode) IN ('all', 'from_beginning', 'new', 'new-only', 'now', 'from_now')
       AND start_from <> '' AND lower(start_from) <> 'now' THEN
        word := 'timestamp';  -- Queen clients send a mode with the time: the time is more exact
    END IF;
    IF word IN ('all', 'from_beginning') THEN
        start_mode := 'all';
    ELSIF word IN ('new', 'new-only', 'now', 'from_now') THEN
        start_mode := 'new';
        start_at := clock_timestamp() - 2 * skep._seconds((SELECT max_poll_interval FROM skep.settings));
    ELSIF word = 'timestamp' THEN
        start_mode := 'timestamp';
        start_at := start_from::timestamptz;
        -- A time that clients cannot represent would make every list of subscriptions fail.
        IF start_at NOT BETWEEN '0001-01-02 00:00:00Z' AND '9999-01-01 00:00:00Z' THEN
            RAISE datetime_field_overflow;
        END IF;
    ELSIF word IN ('offset', 'message_id') THEN
        start_mode := 'offset';
        start_id := CASE WHEN start_from !~ '^\d+$' THEN start_from::uuid END;
        start_offset := CASE WHEN start_id IS NULL THEN start_from::bigint ELSE skep.offset_of(start_id) END;
    ELSE
        PERFORM skep._refuse('SK001', format('unknown subscription mode "%s"', mode),
                             'Modes: all, new, timestamp, offset, message_id.');
    END IF;
    IF start_mode = 'timestamp' AND start_at IS NULL OR start_mode = 'offset' AND start_offset IS NULL THEN
        PERFORM skep._refuse('SK001', format('mode "%s" needs start_from', word),
                             'Give the time, the offset or the message id to start from.');
    END IF;
EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR invalid_parameter_value
    OR invalid_text_representation
               OR numeric_value_out_of_range THEN
    PERFORM skep._refuse('SK001', format('start_from must be a time, an offset or a message id, got "%s"', start_from),
                        'A time has the form 2026-01-31T12:00:00Z.');
END $$;

-- Returns the subscription of exactly this scope.
CREATE FUNCTION skep._subscription_for(group_name text, queue text, partition text, namespace text, task text)
RETURNS skep.subscriptions
LANGUAGE sql STABLE AS $$
    SELECT s FROM skep.subscriptions s
    WHERE s.group_name = $1 AND coalesce(s.queue, '') = coalesce($2, '')
      AND coalesce(s.partition, '') = coalesce($3, '')
      AND coalesce(s.namespace, '') = coalesce($4, '') AND coalesce(s.task, '') = coalesce($5, '')
$$;

-- Returns the subscription that covers a scope now, its own or a wider one. A queue that does not exist yet has the
-- namespace and task of its name, because the first push gives it those.
CREATE FUNCTION skep._covering_subscription(group_name text, queue text, partition text, namespace text, task text)
RETURNS skep.subscriptions LANGUAGE plpgsql STABLE AS $$
DECLARE
    q record;
BEGIN
    IF queue IS NOT NULL THEN
        SELECT o.namespace, o.task INTO q FROM skep.queues o WHERE o.name = _covering_subscription.queue;
        namespace := CASE WHEN FOUND THEN q.namespace ELSE split_part(queue, '.', 1) END;
        task := CASE WHEN FOUND THEN q.task ELSE split_part(queue, '.', 2) END;
    END IF;
    RETURN skep._subscription_of(group_name, queue, partition, namespace, task);
END $$;

-- Finds the message that a group starts from. Returns its partition, and the group's row of group_queues, which stays
-- locked so that no seek comes between; NULL for a work queue, where groups do not choose their start.
CREATE FUNCTION skep._find_start(
    id uuid, group_name text, queue text, namespace text, task text,
    OUT partition_id bigint, OUT partition text, OUT created_at timestamptz, OUT group_queue_id integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    message record;
BEGIN
    SELECT p.id, p.name, m.created_at, q.name AS queue, q.semantics INTO message
    FROM (SELECT * FROM skep.messages m
          WHERE m.partition_id = skep.partition_of(_find_start.id) AND m."offset" = skep.offset_of(_find_start.id)
          LIMIT 1) m
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = m.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    WHERE (p.only_group IS NULL OR p.only_group = _find_start.group_name)
      AND (q.name = _find_start.queue OR _find_start.queue IS NULL
           AND q.namespace = coalesce(_find_start.namespace, q.namespace)
                                         AND q.task = coalesce(_find_start.task, q.task));
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK002', format('there is no message %s in %s', _find_start.id, coalesce(
                                'queue "' || _find_start.queue || '"', 'the queues of the subscription')),
                            'Give the id of a message that still exists, or a time.');
    END IF;
    partition_id := message.id; partition := message.name; created_at := message.created_at;
    IF message.semantics <> 'queue' THEN
        group_queue_id := skep._ensure_group_queue(_find_start.group_name, message.queue);
        PERFORM FROM skep.group_queues g WHERE g.id = group_queue_id FOR KEY SHARE;
    END IF;
END $$;

-- Adds a run of a group in one partition, unless it has one. The caller holds the row of group_queues FOR KEY SHARE.
-- It takes the locks of _lock_starts() before it inserts: a pop tries these, and would wait for the inserted row.
CREATE FUNCTION skep._start_at_message(partition_id bigint, group_queue_id integer, first_offset bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    floor bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(x'736b6570'::integer, _start_at_message.group_queue_id);
    PERFORM pg_advisory_xact_lock(x'73'::bigint << 56 | _start_at_message.group_queue_id::bigint << 35
                                  | _start_at_message.partition_id);
    SELECT f.first_offset INTO floor FROM skep.partition_floors f WHERE f.partition_id = _start_at_message.partition_id
    FOR KEY SHARE;
    IF NOT FOUND THEN  -- deleted meanwhile
        RETURN;
    END IF;
    WITH started AS (
        INSERT INTO skep.starts (partition_id, group_queue_id, start_offset)
        SELECT _start_at_message.partition_id, g.id, greatest(_start_at_message.first_offset, floor)
        FROM skep.group_queues g WHERE g.id = _start_at_message.group_queue_id
        ON CONFLICT DO NOTHING
        RETURNING start_offset
    )
    INSERT INTO skep.runs (partition_id, group_queue_id, list_id, first_offset, ready_at, priority)
    SELECT _start_at_message.partition_id, g.id, g.list_id, s.start_offset, skep._ready_time(NULL, clock_timestamp()),
           CASE WHEN g.list_id = g.id THEN 0 ELSE -q.priority END
    FROM started s JOIN skep.group_queues g ON g.id = _start_at_message.group_queue_id
    JOIN skep.queues q ON q.id = g.queue_id;
END $$;

-- Makes the next discovery of a list check every partition. It inserts a row instead of deleting the existing ones,
-- because a running discovery in an open transaction has locked those, and would save a snapshot from before this
-- change. A list that is being deleted gets no row.
CREATE FUNCTION skep._request_discovery(list_ids integer[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO skep.discoveries (list_id, snapshot, discovered_at, server_started, ready_from, scan_at)
    SELECT list.id, pg_current_snapshot(), timestamptz 'epoch', timestamptz '-infinity', timestamptz '-infinity',
           timestamptz 'epoch'
    FROM (SELECT g.id FROM skep.group_queues g WHERE g.id = ANY ($1) ORDER BY g.id FOR KEY SHARE) list
$$;

-- Inserts a subscription unless its scope has one, and returns true if it did. A column that is NULL gets its default.
-- start_snapshot is for 'new' and 'offset': a message that is not visible in it was committed later.
CREATE FUNCTION skep._insert_subscription(s skep.subscriptions) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.subscriptions (
        group_name, queue, partition, namespace, task, mode, start_at, start_offset, start_snapshot, created_at,
        status, backfill, heartbeat_interval, heartbeat_timeout, miss_threshold, last_heartbeat_at, status_changed_at,
        conflation, retry_limit, retry_delay, max_retry_delay, retry_jitter)
    VALUES (s.group_name, s.queue, s.partition, s.namespace, s.task, s.mode, s.start_at, s.start_offset,
            CASE WHEN s.mode IN ('new', 'offset') THEN coalesce(s.start_snapshot, skep._current_snapshot()) END,
            coalesce(s.created_at, clock_timestamp()), coalesce(s.status, 'ACTIVE'),
            coalesce(s.backfill, s.mode <> 'new'),
            coalesce(s.heartbeat_interval, 60), coalesce(s.heartbeat_timeout, 300), coalesce(s.miss_threshold, 3),
            coalesce(s.last_heartbeat_at, clock_timestamp()), coalesce(s.status_changed_at, clock_timestamp()),
            coalesce(s.conflation, false), s.retry_limit, s.retry_delay, s.max_retry_delay, s.retry_jitter)
    ON CONFLICT DO NOTHING;
    IF FOUND AND s.queue IS NULL THEN  -- discovery must find the queues that it covers, also a running discovery
        PERFORM skep._request_discovery(ARRAY[skep._ensure_wide_list(s.group_name)]);
        RETURN true;
    END IF;
    RETURN FOUND;
END $$;

-- Returns the subscription with the start of a wider one that covers its scope, if that has the same mode, or if
-- any_mode is true. So the first start wins for everything that a wide subscription covers.
CREATE FUNCTION skep._inherit_start(s skep.subscriptions, any_mode boolean) RETURNS skep.subscriptions
LANGUAGE plpgsql STABLE AS $$
DECLARE
    wider skep.subscriptions := skep._covering_subscription(s.group_name, s.queue, s.partition, s.namespace, s.task);
BEGIN
    IF wider.status <> 'CANCELLED' AND (any_mode OR wider.mode = s.mode) THEN
        s.mode := wider.mode; s.start_at := wider.start_at; s.start_offset := wider.start_offset;
        s.start_snapshot := wider.start_snapshot;
        s.created_at := wider.created_at;  -- retention keeps messages for it from then on
        s.backfill := coalesce(s.backfill, wider.backfill);
    END IF;
    RETURN s;
END $$;

-- Stores the subscription unless its scope has one, and returns the stored one. inherits: see _inherit_start(). retry:
-- its retry options.
CREATE FUNCTION skep._store_subscription(
    group_name text, queue text, partition text, namespace text, task text, mode text, start_from text,
    backfill boolean DEFAULT NULL, heartbeat_interval double precision DEFAULT NULL,
    heartbeat_timeout double precision DEFAULT NULL, miss_threshold integer DEFAULT NULL,
    inherits boolean DEFAULT true, retry jsonb DEFAULT '{}'
) RETURNS skep.subscriptions LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    start  record := skep._parse_start(mode, start_from);
    origin record;  -- the partition of the message to start from
    wanted skep.subscriptions := jsonb_populate_record(NULL::skep.subscriptions, retry);
    stored skep.subscriptions;
    violated  text;
BEGIN
    wanted.group_name := coalesce((SELECT skep._group_of(q.semantics, _store_subscription.group_name) FROM skep.queues q
                                   WHERE q.name = _store_subscription.queue), _store_subscription.group_name);
    wanted.queue := queue; wanted.partition := partition; wanted.namespace := namespace; wanted.task := task;
    wanted.backfill := backfill; wanted.heartbeat_interval := heartbeat_interval;
    wanted.heartbeat_timeout := heartbeat_timeout;
    wanted.miss_threshold := miss_threshold; wanted.mode := start.start_mode; wanted.start_at := start.start_at;
    wanted.start_offset := start.start_offset;
    IF wanted.group_name = '__QUEUE_MODE__' THEN  -- all consumers share it: it always starts at the beginning
        wanted.mode := 'all'; wanted.start_at := NULL; wanted.start_offset := NULL;
    ELSIF start.start_id IS NULL THEN
        IF inherits AND lower(coalesce(start_from, '')) IN ('', 'now') THEN
            wanted := skep._inherit_start(wanted, mode IS NULL AND coalesce(start_from, '') = '');
        END IF;
    ELSE
        stored := skep._subscription_for(wanted.group_name, queue, partition, namespace, task);
        IF stored.id IS NOT NULL THEN
            RETURN stored;  -- the message may have been deleted
        END IF;
        origin := skep._find_start(start.start_id, wanted.group_name, queue, namespace, task);
        wanted.mode := CASE WHEN origin.partition = _store_subscription.partition THEN 'offset' ELSE 'timestamp' END;
        wanted.start_offset := CASE WHEN wanted.mode = 'offset' THEN start.start_offset END;
        wanted.start_at := CASE WHEN wanted.mode = 'timestamp' THEN origin.created_at END;
    END IF;
    IF skep._insert_subscription(wanted) AND start.start_id IS NOT NULL AND wanted.mode = 'timestamp'
        AND wanted.partition IS NULL THEN
        -- Other partitions start by time. In this one the time is not exact: messages that were pushed together have
        -- the same time.
        PERFORM skep._start_at_message(origin.partition_id, origin.group_queue_id, start.start_offset);
    END IF;
    RETURN skep._subscription_for(wanted.group_name, queue, partition, namespace, task);
EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
    PERFORM skep._refuse_retry_option(_store_subscription.group_name, violated, retry);
    PERFORM skep._refuse('SK001', format('subscription of group "%s": %s is out of range',
                                         _store_subscription.group_name,
                                         replace(substring(violated FROM '^subscriptions_(.*)_check\d*$'), 'timeout',
                                                 'heartbeat_timeout')),
                         'heartbeat_interval >= 0.001, heartbeat_timeout > heartbeat_interval, miss_threshold >= 1.');
END $$;

-- Refuses a retry option whose CHECK has failed; does nothing for other constraints.
CREATE FUNCTION skep._refuse_retry_option(group_name text, constraint_name text, options jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    option text := substring(constraint_name FROM '^subscriptions_(.*retry.*)_check$');
BEGIN
    IF option IS NOT NULL THEN
        PERFORM skep._refuse('SK001', format('group "%s": %s must be %s, got %s', group_name, option,
                                            skep._allowed_values(option), options ->> option),
                            'NULL uses the option of the queue.');
    END IF;
END $$;

CREATE FUNCTION skep.subscribe(
    group_name text, queue text DEFAULT NULL, partition text DEFAULT NULL, namespace text DEFAULT NULL,
    task text DEFAULT NULL, mode text DEFAULT NULL, start_from text DEFAULT NULL, backfill boolean DEFAULT NULL,
    heartbeat_interval double precision DEFAULT NULL, heartbeat_timeout double precision DEFAULT NULL,
    miss_threshold integer DEFAULT NULL, retry_limit integer DEFAULT NULL, retry_delay double precision DEFAULT NULL,
    max_retry_delay double precision DEFAULT NULL, retry_jitter double precision DEFAULT NULL
) RETURNS skep.subscriptions LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    retry  jsonb := jsonb_build_object('retry_limit', retry_limit, 'retry_delay', retry_delay,
                                       'max_retry_delay', max_retry_delay, 'retry_jitter', retry_jitter);
    stored skep.subscriptions;
BEGIN
    PERFORM skep._check_pop(queue, group_name, partition, namespace, task, 1, 1, NULL);
    stored := skep._store_subscription(group_name, queue, partition, namespace, task, mode, start_from, backfill,
                                       heartbeat_interval, heartbeat_timeout, miss_threshold, retry => retry);
    IF stored.status = 'CANCELLED' THEN
        PERFORM skep._forget_cancelled(stored);
        stored := skep._store_subscription(group_name, queue, partition, namespace, task, mode, start_from, backfill,
                                           heartbeat_interval, heartbeat_timeout, miss_threshold, inherits => false,
                                           retry => retry);
    ELSIF stored.status = 'DEAD' THEN
        PERFORM skep._record_heartbeat(stored.id);
        SELECT * INTO stored FROM skep.subscriptions s WHERE s.id = stored.id;
    END IF;
    RETURN stored;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(subscribe.group_name);
END $$;
COMMENT ON FUNCTION skep.subscribe IS
    'Stores the start, the heartbeat settings and the retry policy of a group, and returns the subscription. An '
    'existing subscription is kept as it is; a dead one continues at its cursor; a cancelled one starts again.';
CALL skep._allow('skep_consumer', 'subscribe');

-- Returns a subscription that will be copied to this scope. If the scope is narrower, its retry policy is left out:
-- that of the wider subscription applies there anyway, also after a change.
CREATE FUNCTION skep._without_wider_policy(s skep.subscriptions, queue text, partition text) RETURNS skep.subscriptions
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (s.queue, s.partition) IS DISTINCT FROM (_without_wider_policy.queue, _without_wider_policy.partition) THEN
        s.retry_limit := NULL; s.retry_delay := NULL; s.max_retry_delay := NULL; s.retry_jitter := NULL;
    END IF;
    RETURN s;
END $$;

CREATE FUNCTION skep.configure_group(
    group_name text, options jsonb, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL
) RETURNS SETOF skep.subscriptions LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := '{retry_limit,retry_delay,max_retry_delay,retry_jitter}';
    wrong text;
    ids   bigint[];
    given skep.subscriptions;
BEGIN
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' THEN
        PERFORM skep._refuse('SK001', format('options must be a JSON object, got %s',
                                            coalesce('a JSON ' || jsonb_typeof(options), 'NULL')),
                            'Options: ' || array_to_string(known, ', ') || '.');
    END IF;
    SELECT key INTO wrong FROM jsonb_object_keys(options) AS key WHERE key <> ALL (known) LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK001', format('unknown group option "%s"', wrong),
                            'Options: ' || array_to_string(known, ', ') || '.');
    END IF;
    PERFORM skep._check_group_option(configure_group.group_name, key, value) FROM jsonb_each(options);
    ids := skep._lock_open_subscriptions(configure_group.group_name, configure_group.queue, configure_group.namespace,
                                         configure_group.task);
    given := jsonb_populate_record(NULL::skep.subscriptions, options);
    RETURN QUERY
    UPDATE skep.subscriptions s
    SET retry_limit = CASE WHEN options ? 'retry_limit' THEN given.retry_limit ELSE s.retry_limit END,
        retry_delay = CASE WHEN options ? 'retry_delay' THEN given.retry_delay ELSE s.retry_delay END,
        max_retry_delay = CASE WHEN options ? 'max_retry_delay' THEN given.max_retry_delay ELSE s.max_retry_delay END,
        retry_jitter = CASE WHEN options ? 'retry_jitter' THEN given.retry_jitter ELSE s.retry_jitter END
    WHERE s.id = ANY (ids) RETURNING s.*;
EXCEPTION WHEN check_violation THEN
    GET STACKED DIAGNOSTICS wrong = CONSTRAINT_NAME;
    PERFORM skep._refuse_retry_option(configure_group.group_name, wrong, options);
WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(configure_group.group_name);
END $$;
COMMENT ON FUNCTION skep.configure_group IS
    'Changes the given retry options of a group: retry_limit, retry_delay, max_retry_delay and retry_jitter; '
    'null uses the option of the queue. Applies to its subscriptions to a queue with its partitions, to a namespace '
    'and/or task, or to all of them. Returns the changed subscriptions.';
CALL skep._allow('skep_consumer', 'configure_group');

CREATE FUNCTION skep._check_group_option(group_name text, option text, value jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jsonb_populate_record(NULL::skep.subscriptions, jsonb_build_object(option, value));
EXCEPTION WHEN data_exception THEN
    PERFORM skep._refuse('SK001', format('group "%s": invalid %s: %s', group_name, option, left(value::text, 60)),
                         SQLERRM);
END $$;
