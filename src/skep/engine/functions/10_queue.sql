-- Queues and their options; deleting queues, partitions and messages.

-- Creates the queue or changes the options that are given; the others stay. Options are the columns of skep.queues, times in seconds.
CREATE FUNCTION skep.configure_queue(queue text, options jsonb DEFAULT '{}', namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS skep.queues LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    q skep.queues;
    known   text[] := skep.queue_options();
    unknown text;
    place   text;
BEGIN
    PERFORM skep.check_name('queue', configure_queue.queue);
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' THEN
        PERFORM skep.refuse('SK001', format('options are a JSON %s', coalesce(jsonb_typeof(options), 'NULL')), 'Options are a JSON object.');
    END IF;
    SELECT key INTO unknown FROM jsonb_object_keys(options) AS key WHERE key <> ALL (known) LIMIT 1;
    IF FOUND THEN
        PERFORM skep.refuse('SK001', format('unknown queue option "%s"', unknown), 'Options: ' || array_to_string(known, ', ') || '.');
    END IF;
    PERFORM skep.check_option(configure_queue.queue, key, value) FROM jsonb_each(options);
    INSERT INTO skep.queues (name, namespace, task)
    VALUES (configure_queue.queue, split_part(configure_queue.queue, '.', 1), split_part(configure_queue.queue, '.', 2))
    ON CONFLICT DO NOTHING;
    SELECT * INTO q FROM skep.queues WHERE name = configure_queue.queue FOR NO KEY UPDATE;
    q := jsonb_populate_record(q, options);
    UPDATE skep.queues SET
        namespace = coalesce(configure_queue.namespace, q.namespace), task = coalesce(configure_queue.task, q.task),
        semantics = q.semantics, lease_time = q.lease_time, retry_limit = q.retry_limit, retry_delay = q.retry_delay,
        delayed_processing = q.delayed_processing, window_buffer = q.window_buffer, priority = q.priority, max_size = q.max_size,
        max_payload_bytes = q.max_payload_bytes, dedup_window = q.dedup_window, partial_failure = q.partial_failure,
        concurrency = q.concurrency, retention_seconds = q.retention_seconds,
        completed_retention_seconds = q.completed_retention_seconds,
        zero_subscriber_retention_seconds = q.zero_subscriber_retention_seconds,
        block_without_subscribers = q.block_without_subscribers, retain_until_archived = q.retain_until_archived,
        drop_idle_seconds = q.drop_idle_seconds, encryption_enabled = q.encryption_enabled, lease_log_seconds = q.lease_log_seconds
    WHERE id = q.id RETURNING * INTO q;
    IF options ?| ARRAY['delayed_processing', 'window_buffer', 'concurrency'] THEN
        -- Lanes that wait for a time computed from the old options are looked at again.
        UPDATE skep.cursors c SET ready_at = clock_timestamp()
        FROM skep.readers r WHERE r.queue_id = q.id AND c.reader_id = r.id AND c.ready_at > clock_timestamp();
    END IF;
    RETURN q;
EXCEPTION WHEN check_violation OR not_null_violation THEN
    GET STACKED DIAGNOSTICS place = CONSTRAINT_NAME, unknown = COLUMN_NAME;
    PERFORM skep.refuse('SK001', format('queue "%s": %s is out of range', configure_queue.queue,
                            coalesce(substring(place FROM '^queues_(.*)_check$'), nullif(unknown, ''))), SQLERRM);
END $$;

CREATE FUNCTION skep.check_option(queue text, option text, value jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jsonb_populate_record(NULL::skep.queues, jsonb_build_object(option, value));
EXCEPTION WHEN data_exception THEN
    PERFORM skep.refuse('SK001', format('queue "%s": %s cannot be %s', queue, option, left(value::text, 60)), SQLERRM);
END $$;

CREATE FUNCTION skep.queue_options() RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = 'skep.queues'::regclass AND attnum > 0 AND NOT attisdropped
      AND attname <> ALL ('{id,name,namespace,task,created_at,queen_options}')
$$;

CREATE FUNCTION skep.configure_defaults(subscription_mode text DEFAULT NULL, max_poll_interval double precision DEFAULT NULL)
RETURNS skep.settings LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    changed skep.settings;
BEGIN
    UPDATE skep.settings
    SET default_subscription_mode = coalesce(subscription_mode, default_subscription_mode),
        max_poll_interval = coalesce(configure_defaults.max_poll_interval, max_poll_interval)
    RETURNING * INTO changed;
    RETURN changed;
EXCEPTION WHEN check_violation THEN
    PERFORM skep.refuse('SK001', SQLERRM, 'The default mode is all or new; the poll interval is seconds above zero.');
END $$;

-- The lanes of a queue, locked against pushes; waits for those under way.
CREATE FUNCTION skep.lock_for_delete(queue_id integer, partition text) RETURNS bigint[]
LANGUAGE sql AS $$
    SELECT coalesce(array_agg(partition_id), '{}') FROM (
        SELECT l.partition_id FROM skep.partitions p JOIN skep.partition_lookup l ON l.partition_id = p.id
        WHERE p.queue_id = $1 AND p.name = coalesce($2, p.name) ORDER BY l.partition_id FOR UPDATE OF l) lane
$$;

-- What these lanes have counted stays in the totals of the queue and its groups (see 80_sample.sql).
CREATE FUNCTION skep.keep_totals(lanes bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO skep.gone_totals AS t (queue, group_name, total)
    SELECT q.name, '', sum(l.last_offset + 1)
    FROM skep.partition_lookup l JOIN skep.partitions p ON p.id = l.partition_id JOIN skep.queues q ON q.id = p.queue_id
    WHERE l.partition_id = ANY ($1) GROUP BY q.name
    UNION ALL
    SELECT q.name, r.group_name, sum(c.cursor - c.start_offset)
    FROM skep.cursors c JOIN skep.readers r ON r.id = c.reader_id JOIN skep.queues q ON q.id = r.queue_id
    WHERE c.partition_id = ANY ($1) GROUP BY q.name, r.group_name
    ON CONFLICT (queue, group_name) DO UPDATE SET total = t.total + excluded.total
$$;

-- Under the locks of the queue's readers, so that no group meets a lane that is about to go.
CREATE FUNCTION skep.delete_lanes(queue_id integer, lanes bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(x'736b6570'::integer, reader.id)
    FROM (SELECT r.id FROM skep.readers r WHERE r.queue_id = delete_lanes.queue_id ORDER BY r.id) reader;
    PERFORM FROM skep.cursors c WHERE c.partition_id = ANY (lanes) ORDER BY c.partition_id, c.reader_id FOR UPDATE;
    PERFORM skep.keep_totals(lanes);
    DELETE FROM skep.leases s WHERE s.partition_id = ANY (lanes);
    DELETE FROM skep.cursors c WHERE c.partition_id = ANY (lanes);
    DELETE FROM skep.archive_marks a WHERE a.partition_id = ANY (lanes);
    DELETE FROM skep.traces t WHERE t.partition_id = ANY (lanes);
    DELETE FROM skep.stream_state s USING skep.stream_queries q WHERE s.query_id = ANY (ARRAY[q.id]) AND s.partition_id = ANY (lanes);
    DELETE FROM skep.messages m WHERE m.partition_id = ANY (lanes);
    DELETE FROM skep.partition_lookup l WHERE l.partition_id = ANY (lanes);
    DELETE FROM skep.partitions p WHERE p.id = ANY (lanes);
END $$;

-- Everything of the queue but its dead letters, which are copies. False if there was none. A push that waits for this makes the queue anew.
CREATE FUNCTION skep.delete_queue(queue text) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    doomed integer;
BEGIN
    SELECT id INTO doomed FROM skep.queues WHERE name = delete_queue.queue FOR UPDATE;
    DELETE FROM skep.subscriptions WHERE queue = delete_queue.queue;
    IF doomed IS NULL THEN
        RETURN false;
    END IF;
    PERFORM skep.delete_lanes(doomed, skep.lock_for_delete(doomed, NULL));
    DELETE FROM skep.gone_totals WHERE queue = delete_queue.queue;
    DELETE FROM skep.stream_groups WHERE queue = delete_queue.queue;
    DELETE FROM skep.readers WHERE queue_id = doomed;
    DELETE FROM skep.journal WHERE queue_id = doomed;
    DELETE FROM skep.lease_log WHERE queue_id = doomed;
    DELETE FROM skep.queues WHERE id = doomed;
    RETURN true;
END $$;

CREATE FUNCTION skep.delete_partition(queue text, partition text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    queue_id integer := (SELECT q.id FROM skep.queues q WHERE q.name = queue);
    lanes    bigint[];
BEGIN
    lanes := skep.lock_for_delete(queue_id, partition);
    PERFORM skep.delete_lanes(queue_id, lanes);
    DELETE FROM skep.subscriptions s WHERE s.queue = delete_partition.queue AND s.partition = delete_partition.partition;
    RETURN lanes <> '{}';
END $$;

-- Deletes every message of a queue, or of one partition, read or not; lanes, offsets and groups stay. Returns how many that were.
CREATE FUNCTION skep.clear_queue(queue text, partition text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    cleared integer := (SELECT q.id FROM skep.queues q WHERE q.name = clear_queue.queue);
    lanes   bigint[] := skep.lock_for_delete(cleared, clear_queue.partition);
    gone    bigint;
BEGIN
    IF cleared IS NULL THEN
        PERFORM skep.refuse('SK002', format('there is no queue "%s"', clear_queue.queue));
    END IF;
    PERFORM pg_advisory_xact_lock(x'736b6570'::integer, reader.id)
    FROM (SELECT r.id FROM skep.readers r WHERE r.queue_id = cleared ORDER BY r.id) reader;
    PERFORM skep.start_line_anew(array_agg(r.id)) FROM skep.readers r WHERE r.queue_id = cleared;
    PERFORM FROM skep.cursors c WHERE c.partition_id = ANY (lanes) ORDER BY c.partition_id, c.reader_id FOR UPDATE;
    DELETE FROM skep.leases s WHERE s.partition_id = ANY (lanes);
    UPDATE skep.cursors c  -- what is gone was not consumed: totals stay
    SET cursor = l.last_offset + 1, next_offset = l.last_offset + 1, start_offset = l.last_offset + 1 - (c.cursor - c.start_offset),
        leased = 0, returned = 0, ready_at = '-infinity'
    FROM skep.partition_lookup l WHERE l.partition_id = ANY (lanes) AND c.partition_id = l.partition_id;
    DELETE FROM skep.traces t WHERE t.partition_id = ANY (lanes);
    UPDATE skep.partition_lookup l  -- as retain() does, so that a reader that is behind learns of it
    SET first_offset = l.last_offset + 1, deleted_xid = last.xid, deleted_created_at = last.created_at
    FROM unnest(lanes) AS lane (id)
    CROSS JOIN LATERAL (SELECT m.* FROM skep.messages m WHERE m.partition_id = lane.id ORDER BY m."offset" DESC LIMIT 1) last
    WHERE l.partition_id = lane.id;
    DELETE FROM skep.messages m WHERE m.partition_id = ANY (lanes);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Leaves a tombstone: the offset and the transaction id stay, so lag is exact and a repeat of the push is still a duplicate.
CREATE FUNCTION skep.delete_message(id uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE skep.messages SET payload = NULL, headers = NULL
    WHERE partition_id = skep.partition_of(delete_message.id) AND "offset" = skep.offset_of(delete_message.id) AND payload IS NOT NULL;
    RETURN FOUND;
END $$;
