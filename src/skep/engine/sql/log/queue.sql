-- Queues and their options; deletion of queues, partitions and messages.
--
-- Every deletion takes locks in the order of the whole engine: queues > group_queues > subscriptions > partition_floors
-- > runs > partitions. People run these commands, so they wait at most 5 seconds for a lock: a forgotten transaction
-- must not block other sessions through them.

-- A work queue serves many workers at once: semantics 'queue' sets concurrency to 64, unless it is set or given.
CREATE FUNCTION skep.configure_queue(
    queue text, options jsonb DEFAULT '{}', namespace text DEFAULT NULL, task text DEFAULT NULL
) RETURNS skep.queues LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    old   skep.queues;
    q     skep.queues;
    wrong text;
    rule  text;
    is_new boolean;
BEGIN
    PERFORM skep._check_name('queue', queue);
    PERFORM skep._check_name(label, name) FROM (VALUES ('namespace', namespace), ('task', task)) AS v (label, name)
    WHERE name <> '';
    PERFORM skep._check_options(queue, options);
    INSERT INTO skep.queues (name, namespace, task) VALUES (queue, split_part(queue, '.', 1), split_part(queue, '.', 2))
    ON CONFLICT DO NOTHING;
    is_new := FOUND;
    SELECT * INTO old FROM skep.queues o WHERE o.name = configure_queue.queue FOR NO KEY UPDATE;
    IF options ->> 'semantics' = 'queue' AND NOT options ? 'concurrency' AND old.concurrency = 1 THEN
        options := options || '{"concurrency": 64}';
    END IF;
    q := skep._write_options(old, options
                             || jsonb_strip_nulls(jsonb_build_object('namespace', namespace, 'task', task)));
    IF NOT is_new AND (q.priority, q.concurrency, q.delayed_processing, q.window_buffer)
       <> (old.priority, old.concurrency, old.delayed_processing, old.window_buffer) THEN
        -- Runs that this snapshot does not show would keep values derived from the old options.
        PERFORM skep._require_read_committed('changing priority, concurrency, delayed_processing or window_buffer');
    END IF;
    PERFORM skep._apply_options(old, q);
    RETURN q;
EXCEPTION WHEN check_violation OR not_null_violation THEN
    GET STACKED DIAGNOSTICS rule = CONSTRAINT_NAME, wrong = COLUMN_NAME;
    wrong := coalesce(substring(rule FROM '^queues_(.*)_check$'), nullif(wrong, ''));
    PERFORM skep._refuse('SK001', format('queue "%s": %s must be %s, got %s', queue, wrong, skep._allowed_values(wrong),
                                        coalesce(options ->> wrong, 'null')));
WHEN lock_not_available THEN
    PERFORM skep._refuse_locked(queue);
END $$;
COMMENT ON FUNCTION skep.configure_queue IS
    'Creates a queue, or changes the given options and keeps the others. Returns the queue. Options are the columns '
    'of skep.queues; times are seconds.';
CALL skep._allow('skep_admin', 'configure_queue');

CREATE FUNCTION skep._check_options(queue text, options jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known   text[] := skep._queue_options();
    unknown text;
BEGIN
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' THEN
        PERFORM skep._refuse('SK001', format('options must be a JSON object, got %s',
                                             coalesce('a JSON ' || jsonb_typeof(options), 'NULL')),
                                             'Options: ' || array_to_string(known, ', ') || '.');
    END IF;
    SELECT key INTO unknown FROM jsonb_object_keys(options) AS key WHERE key <> ALL (known) LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK001', format('unknown queue option "%s"', unknown),
                             'Options: ' || array_to_string(known, ', ') || '.');
    END IF;
    PERFORM skep._check_option(queue, key, value) FROM jsonb_each(options);
END $$;

CREATE FUNCTION skep._check_option(queue text, option text, value jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jsonb_populate_record(NULL::skep.queues, jsonb_build_object(option, value));
EXCEPTION WHEN data_exception THEN
    PERFORM skep._refuse('SK001', format('queue "%s": %s must be %s, got %s', queue, option,
                                         CASE format_type(a.atttypid, NULL) WHEN 'boolean' THEN 'true or false'
                                             WHEN 'integer' THEN 'a whole number up to 2147483647'
                                             WHEN 'bigint' THEN 'a whole number' ELSE 'a number' END,
                                         left(value::text, 60)))
    FROM pg_attribute a WHERE a.attrelid = 'skep.queues'::regclass AND a.attname = option;
END $$;

CREATE FUNCTION skep._queue_options() RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = 'skep.queues'::regclass AND attnum > 0 AND NOT attisdropped
      AND attname <> ALL ('{id,name,namespace,task,created_at,queen_options,was_shared}')
$$;

-- Returns the values that the CHECK of an option allows, in words.
CREATE FUNCTION skep._allowed_values(option text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN words <> '{}' THEN 'one of ' || array_to_string(words, ', ')
                WHEN low IS NULL THEN 'a value'
                WHEN high IS NULL THEN CASE bound WHEN '>' THEN 'above ' ELSE 'at least ' END || low
                WHEN bound = '>' THEN format('above %s and at most %s', low, high)
                ELSE format('between %s and %s', low, high) END
    FROM (SELECT regexp_replace(pg_get_constraintdef(oid), '[()]|::[a-z ]+', '', 'g') AS rule FROM pg_constraint
          WHERE conrelid = 'skep.queues'::regclass AND conname = format('queues_%s_check', $1)
          UNION ALL SELECT '' LIMIT 1) rule
    CROSS JOIN LATERAL (
        SELECT ARRAY(SELECT found[1] FROM regexp_matches(rule, '''(\w+)''', 'g') AS found) AS words,
               substring(rule FROM '(>=?) [0-9.]') AS bound,
               substring(rule FROM '>=? ([0-9.]+)') AS low, substring(rule FROM '<= ([0-9.]+)') AS high) parts
$$;

-- Stores the given columns, whichever they are: a new option needs no change here.
CREATE FUNCTION skep._write_options(q skep.queues, given jsonb) RETURNS skep.queues
LANGUAGE plpgsql AS $$
BEGIN
    q := jsonb_populate_record(q, given);
    q.was_shared := q.was_shared OR q.concurrency > 1;
    EXECUTE (SELECT format('UPDATE skep.queues o SET (%1$s) = (SELECT %1$s FROM (SELECT ($1).*) n) '
                           'WHERE o.id = ($1).id RETURNING o.*',
                           string_agg(quote_ident(name), ', '))
             FROM (SELECT jsonb_object_keys(given) AS name UNION SELECT 'was_shared') changed) INTO q USING q;
    RETURN q;
END $$;

-- Updates the values derived from the old options: the lists that the queue is in, and when its runs are ready.
CREATE FUNCTION skep._apply_options(old skep.queues, q skep.queues) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stamp   timestamptz := clock_timestamp();
    changed tid[];
BEGIN
    IF (q.namespace, q.task) <> (old.namespace, old.task) THEN
        -- Groups that read namespaces and tasks must find their queues again. The lock waits for groups whose first pop
        -- is still open: see _add_covered_queues().
        PERFORM pg_advisory_xact_lock(x'736b6570'::integer, 0);
        PERFORM skep._request_discovery(ARRAY(SELECT g.id FROM skep.group_queues g WHERE g.queue_id = 0));
    END IF;
    IF q.priority <> old.priority THEN
        -- Wait for transactions that are adding runs with the old priority.
        PERFORM FROM skep.group_queues g WHERE g.queue_id = q.id ORDER BY g.id FOR UPDATE;
        changed := ARRAY(
            SELECT r.ctid FROM skep.group_queues g JOIN skep.partitions p ON p.queue_id = g.queue_id
            JOIN skep.runs r ON r.partition_id = p.id AND r.group_queue_id = g.id
            WHERE g.queue_id = q.id AND g.list_id <> g.id
            ORDER BY r.partition_id, r.group_queue_id, r.first_offset FOR NO KEY UPDATE OF r);
        UPDATE skep.runs r SET priority = -q.priority WHERE r.ctid = ANY (changed);
    END IF;
    IF q.was_shared AND NOT old.was_shared THEN
        PERFORM skep._close_leased_runs(q.id);
    END IF;
    IF (q.delayed_processing, q.window_buffer, q.concurrency)
        <> (old.delayed_processing, old.window_buffer, old.concurrency) THEN
        -- Make runs ready that wait for a time computed from the old options; pop applies the new ones.
        changed := ARRAY(
            SELECT r.ctid FROM skep.group_queues g JOIN skep.runs r ON r.list_id = g.list_id AND r.group_queue_id = g.id
            WHERE g.queue_id = q.id AND r.ready_at > stamp AND r.lease_id IS NULL AND NOT r.drained
              AND r.attempts IS NULL
            ORDER BY r.partition_id, r.group_queue_id, r.first_offset FOR NO KEY UPDATE OF r);
        UPDATE skep.runs r SET ready_at = stamp WHERE r.ctid = ANY (changed);
    END IF;
END $$;

CREATE FUNCTION skep.configure_defaults(
    subscription_mode text DEFAULT NULL, max_poll_interval double precision DEFAULT NULL
)
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
    IF subscription_mode NOT IN ('all', 'new') THEN
        PERFORM skep._refuse('SK001', format('subscription_mode must be all or new, got "%s"', subscription_mode));
    END IF;
    PERFORM skep._refuse('SK001', format('max_poll_interval must be above 0 and at most 86400 seconds, got %s',
                                         configure_defaults.max_poll_interval));
END $$;
COMMENT ON FUNCTION skep.configure_defaults IS
    'Sets the default start of new groups (all or new), and max_poll_interval: a group that starts at new gets the '
    'messages of the last two intervals. NULL keeps a value. Returns the settings.';
CALL skep._allow('skep_admin', 'configure_defaults');

-- Under REPEATABLE READ a call would decide by an old snapshot: it would delete messages of newer groups, or leave
-- newer messages behind.
CREATE FUNCTION skep._require_read_committed(function text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM skep._refuse('SK001', function || ' needs READ COMMITTED',
                            'Begin the transaction with ISOLATION LEVEL READ COMMITTED.');
    END IF;
END $$;

CREATE FUNCTION skep._refuse_locked(queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._refuse('55P03', format('queue "%s" is locked by another transaction', queue),
                        'Nothing was changed. Try again; pg_stat_activity shows open transactions.');
END $$;

-- Locks partitions for deletion, in the order of the engine: waits for groups that start or seek there, for pops and
-- acks, and last for running pushes.
CREATE FUNCTION skep._lock_for_delete(partition_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = ANY (partition_ids) ORDER BY f.partition_id FOR UPDATE;
    PERFORM FROM skep.runs r WHERE r.partition_id = ANY (partition_ids)
    ORDER BY r.partition_id, r.group_queue_id, r.end_offset IS NOT NULL, r.first_offset FOR UPDATE;
    PERFORM FROM skep.partitions p WHERE p.id = ANY (partition_ids) ORDER BY p.id FOR UPDATE;
END $$;

-- Adds the counts of these partitions to the totals of the queue and its groups (see sample.sql). The caller has locked
-- the queue.
CREATE FUNCTION skep._save_deleted_totals(partition_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO skep.deleted_totals AS t (queue, group_name, total)
    SELECT q.name, '', sum(head.next_offset)
    FROM unnest($1) AS deleted (id)
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = deleted.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL skep._head_of(deleted.id) head
    GROUP BY q.name
    UNION ALL
    SELECT q.name, g.group_name, sum(c.cursor - c.start_offset - c.skipped)
    FROM unnest($1) AS deleted (id)
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_consumers c WHERE c.partition_id = deleted.id OFFSET 0) c
    CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g WHERE g.id = c.group_queue_id LIMIT 1) g
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = g.queue_id LIMIT 1) q
    GROUP BY q.name, g.group_name
    ON CONFLICT (queue, group_name) DO UPDATE SET total = t.total + excluded.total
$$;

-- Deletes partitions that the caller has locked, with everything that belongs to them.
CREATE FUNCTION skep._delete_partitions(partition_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._request_count(ARRAY(SELECT DISTINCT p.queue_id FROM skep.partitions p
                                    WHERE p.id = ANY (partition_ids)));
    DELETE FROM skep.runs r WHERE r.partition_id = ANY (partition_ids);
    DELETE FROM skep.starts s WHERE s.partition_id = ANY (partition_ids);
    DELETE FROM skep.archive_marks a WHERE a.partition_id = ANY (partition_ids);
    DELETE FROM skep.traces t WHERE t.partition_id = ANY (partition_ids);
    DELETE FROM skep.stream_state s USING skep.stream_queries q
    WHERE s.query_id = ANY (ARRAY[q.id]) AND s.partition_id = ANY (partition_ids);
    DELETE FROM skep.messages m WHERE m.partition_id = ANY (partition_ids);
    DELETE FROM skep.delayed_messages d WHERE d.partition_id = ANY (partition_ids);
    DELETE FROM skep.partition_floors f WHERE f.partition_id = ANY (partition_ids);
    DELETE FROM skep.partitions p WHERE p.id = ANY (partition_ids);
END $$;

-- A push that waits for this creates the queue again.
CREATE FUNCTION skep.delete_queue(queue text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    target_id integer;
    groups integer[];
    ids    bigint[];
BEGIN
    PERFORM skep._require_read_committed('delete_queue');
    -- First, because run_schedules() locks them before it pushes.
    PERFORM FROM skep.schedules s WHERE s.queue = delete_queue.queue ORDER BY s.name FOR UPDATE;
    DELETE FROM skep.schedules s WHERE s.queue = delete_queue.queue;
    SELECT q.id INTO target_id FROM skep.queues q WHERE q.name = delete_queue.queue FOR UPDATE;
    groups := ARRAY(SELECT g.id FROM skep.group_queues g WHERE g.queue_id = target_id ORDER BY g.id FOR UPDATE);
    PERFORM FROM skep.subscriptions s WHERE s.queue = delete_queue.queue ORDER BY s.id FOR UPDATE;
    DELETE FROM skep.subscriptions s WHERE s.queue = delete_queue.queue;
    IF target_id IS NULL THEN
        RETURN false;
    END IF;
    ids := ARRAY(SELECT p.id FROM skep.partitions p WHERE p.queue_id = target_id);
    PERFORM skep._lock_for_delete(ids);
    PERFORM skep._delete_partitions(ids);
    DELETE FROM skep.discoveries d WHERE d.list_id = ANY (groups);
    DELETE FROM skep.group_queues g WHERE g.id = ANY (groups);
    DELETE FROM skep.deleted_totals t WHERE t.queue = delete_queue.queue;
    DELETE FROM skep.stream_groups s WHERE s.queue = delete_queue.queue;
    DELETE FROM skep.journal j WHERE j.queue_id = target_id;
    DELETE FROM skep.lease_log l WHERE l.queue_id = target_id;
    DELETE FROM skep.queues q WHERE q.id = target_id;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_locked(queue);
END $$;
COMMENT ON FUNCTION skep.delete_queue IS
    'Deletes a queue with its messages, partitions and subscriptions. Dead letters stay. Returns false if the queue '
    'does not exist.';
CALL skep._allow('skep_admin', 'delete_queue');

CREATE FUNCTION skep.delete_partition(queue text, partition text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    found integer;
    ids   bigint[];
BEGIN
    PERFORM skep._require_read_committed('delete_partition');
    SELECT q.id INTO found FROM skep.queues q WHERE q.name = delete_partition.queue FOR NO KEY UPDATE;
    PERFORM FROM skep.subscriptions s
    WHERE s.queue = delete_partition.queue AND s.partition = delete_partition.partition
    ORDER BY s.id FOR UPDATE;
    DELETE FROM skep.subscriptions s
    WHERE s.queue = delete_partition.queue AND s.partition = delete_partition.partition;
    ids := ARRAY(SELECT p.id FROM skep.partitions p WHERE p.queue_id = found AND p.name = delete_partition.partition);
    PERFORM skep._lock_for_delete(ids);
    PERFORM skep._save_deleted_totals(ids);
    PERFORM skep._delete_partitions(ids);
    RETURN ids <> '{}';
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_locked(queue);
END $$;
COMMENT ON FUNCTION skep.delete_partition IS
    'Deletes a partition with its messages. Dead letters stay. Returns false if it does not exist.';
CALL skep._allow('skep_admin', 'delete_partition');

-- Pushes do not wait for it, except to partitions with delayed messages, which are locked so that none is appended
-- meanwhile. A message that commits later is kept.
CREATE FUNCTION skep.clear_queue(queue text, partition text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    found   integer;
    ids     bigint[];
    heads   bigint[];
    cleared bigint;
    delayed bigint;
BEGIN
    PERFORM skep._require_read_committed('clear_queue');
    SELECT q.id INTO found FROM skep.queues q WHERE q.name = clear_queue.queue FOR KEY SHARE;
    IF found IS NULL THEN
        PERFORM skep._refuse('SK002', format('there is no queue "%s"', queue));
    END IF;
    ids := ARRAY(SELECT p.id FROM skep.partitions p
                 WHERE p.queue_id = found AND p.name = coalesce(clear_queue.partition, p.name) ORDER BY p.id);
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = ANY (ids) ORDER BY f.partition_id FOR UPDATE;
    PERFORM FROM skep.runs r WHERE r.partition_id = ANY (ids)
    ORDER BY r.partition_id, r.group_queue_id, r.end_offset IS NOT NULL, r.first_offset FOR UPDATE;
    PERFORM FROM skep.partitions p
    WHERE p.id = ANY (ids) AND EXISTS (SELECT FROM skep.delayed_messages d WHERE d.partition_id = p.id)
    ORDER BY p.id FOR NO KEY UPDATE;
    DELETE FROM skep.delayed_messages d WHERE d.partition_id = ANY (ids);
    GET DIAGNOSTICS delayed = ROW_COUNT;
    SELECT array_agg(p.id), array_agg(head.next_offset) INTO ids, heads
    FROM unnest(ids) AS p (id) CROSS JOIN LATERAL skep._head_of(p.id) head;
    PERFORM skep._clear_runs(ids, heads);
    PERFORM skep._request_count(ARRAY[found]);
    DELETE FROM skep.traces t USING unnest(ids, heads) AS p (id, head)
    WHERE t.partition_id = ANY (ARRAY[p.id]) AND t."offset" < p.head;
    UPDATE skep.partition_floors f  -- as retention does, so that a reader that is behind notices it
    SET first_offset = p.head, deleted_xid = last.xid, deleted_created_at = last.created_at, completed_offsets = NULL,
        completed_times = NULL
    FROM unnest(ids, heads) AS p (id, head)
    CROSS JOIN LATERAL (SELECT m.xid, m.created_at FROM skep.messages m
                        WHERE m.partition_id = p.id AND m."offset" = p.head - 1 LIMIT 1) last
    WHERE f.partition_id = ANY (ARRAY[p.id]);
    DELETE FROM skep.messages m USING unnest(ids, heads) AS p (id, head)
    WHERE m.partition_id = ANY (ARRAY[p.id]) AND m."offset" < p.head;
    GET DIAGNOSTICS cleared = ROW_COUNT;
    RETURN cleared + delayed;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_locked(queue);
END $$;
COMMENT ON FUNCTION skep.clear_queue IS
    'Deletes all messages currently in a queue, or in one partition of it, including delayed ones, and returns their '
    'number. The queue, its options, its groups and their offsets stay. Leases end.';
CALL skep._allow('skep_admin', 'clear_queue');

-- Ends all leases of these partitions and moves every group to the head. Messages that are not done count as skipped.
CREATE FUNCTION skep._clear_runs(partition_ids bigint[], heads bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE skep.starts s SET skipped = s.skipped + undone.messages
    FROM (SELECT r.partition_id, r.group_queue_id, sum(skep._count_offsets(skep._undone_of(r, 0, p.head))) AS messages
          FROM unnest(partition_ids, heads) AS p (id, head)
          CROSS JOIN LATERAL (SELECT * FROM skep.runs r WHERE r.partition_id = p.id OFFSET 0) r
          GROUP BY r.partition_id, r.group_queue_id) undone
    WHERE s.partition_id = ANY (ARRAY[undone.partition_id]) AND s.group_queue_id = undone.group_queue_id;
    DELETE FROM skep.runs r WHERE r.partition_id = ANY (partition_ids) AND r.end_offset IS NOT NULL;
    UPDATE skep.runs r
    SET first_offset = p.head, lease_id = NULL, leased_to = NULL, expires_at = NULL, leases = 0, drained = false,
        succeeded = false, cuts = NULL, attempts = NULL, done = NULL, failed = NULL, errors = NULL, retry_after = NULL,
        ready_at = CASE WHEN r.ready_at IS NOT NULL THEN skep._ready_time(r.served_at, clock_timestamp()) END
    FROM unnest(partition_ids, heads) AS p (id, head) WHERE r.partition_id = ANY (ARRAY[p.id]);
END $$;

-- Leaves a tombstone: the offset and the transaction id stay, so lag is exact and a repeat of the push is still a
-- duplicate. The floor is locked so that retention, which never waits, skips the partition while this transaction is
-- open.
CREATE FUNCTION skep.delete_message(id uuid) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = skep.partition_of(id) FOR KEY SHARE;
    UPDATE skep.messages m SET payload = NULL, headers = NULL
    WHERE m.partition_id = skep.partition_of(id) AND m."offset" = skep.offset_of(id) AND m.payload IS NOT NULL;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse('55P03', format('the partition of message %s is locked by another transaction', id),
                        'Nothing was changed. Try again; pg_stat_activity shows open transactions.');
END $$;
COMMENT ON FUNCTION skep.delete_message IS
    'Deletes the payload of a message. Returns false if the message does not exist. Its offset stays, and a repeat of '
    'its push is still a duplicate.';
CALL skep._allow('skep_admin', 'delete_message');
