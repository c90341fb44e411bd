-- pop: lease the next messages of the partitions that have waited longest.
--
--   pop > _lease_next                                                         the usual case, in one statement
--       > _lease > _lease_queue > _lease_ready | _lease_shared                every other case
--                               > _lease_more > _discover                     if that yields too little
--                > _lease_by_name > _lease_named | _lease_shared              named partitions
--                > _lease_wide                                                namespaces and tasks
--
-- A request is {batch, partitions}: at most `batch` messages from at most `partitions` partitions. One call serves all
-- requests that differ in nothing else. A slot is one partition of a request: the n-th leased partition is for
-- slots[n].

-- Leases from the ready list in strict order: one lease per partition and group. most: the largest of the sizes. The
-- scan locks the rows one by one, and skips those that another session has locked. A run without messages stays in the
-- list until discovery removes it. auto_ack moves first_offset at once; a returned run has more to update, so it is
-- leased, and _complete_leases() completes it.
CREATE FUNCTION skep._lease_ready(
    g skep.group_state, requests integer[], sizes integer[], most integer, auto_ack boolean, conflate boolean
)
RETURNS skep.lease[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leases skep.lease[];
BEGIN
    WITH ready AS (
        SELECT found.*, row_number() OVER () AS slot,
               found.ends - found.first_offset - CASE WHEN found.done IS NULL THEN 0 ELSE skep._count_offsets(
                   found.done * int8multirange(int8range(found.first_offset, found.ends))) END AS size
        FROM (SELECT r.ctid AS row_id, CASE WHEN conflate THEN ends.last ELSE r.first_offset END AS first_offset,
                     ends.last + 1 AS ends, r.attempts[1] AS attempt, r.done
              FROM skep.runs r
              CROSS JOIN LATERAL (SELECT m."offset" AS last FROM skep.messages m
                                  WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                                    AND m."offset" < least(r.cuts[1], r.first_offset + most + skep._done_count(r.done))
                                    AND m.payload IS NOT NULL AND m.created_at <= g.visible_until
                                    AND (r.done IS NULL OR NOT r.done @> m."offset")
                                  ORDER BY m."offset" DESC LIMIT 1) ends
              WHERE r.list_id = g.list_id AND r.priority = g.priority
                AND r.ready_at >= g.ready_from AND r.ready_at <= g.stamp AND r.lease_id IS NULL AND NOT r.drained
                AND r.group_queue_id = g.id AND r.leases = 0 AND r.end_offset IS NULL
                AND ends.last >= r.first_offset  -- checked again for the locked row, which may have moved
                AND (g.quiet_since IS NULL OR r.attempts IS NOT NULL OR skep._is_quiet(r.partition_id, g.quiet_since))
              ORDER BY r.ready_at LIMIT cardinality(sizes)
              FOR NO KEY UPDATE OF r SKIP LOCKED) found
    ), sized AS (
        SELECT ready.*, requests[ready.slot] AS request,
               auto_ack AND ready.done IS NULL AND ready.attempt IS NULL AS is_done,
               skep._cut(ready.first_offset, ready.ends, ready.done, sizes[ready.slot] - coalesce(
                   sum(ready.size) OVER (PARTITION BY requests[ready.slot]
                                         ORDER BY ready.slot ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
                   0)::bigint) AS leased_to
        FROM ready
    ), leased AS (
        UPDATE skep.runs r
        SET lease_id = CASE WHEN NOT sized.is_done THEN
                            skep._lease_id(r.partition_id, r.group_queue_id, sized.first_offset) END,
            first_offset = CASE WHEN sized.is_done THEN sized.leased_to ELSE sized.first_offset END,
            leased_to = CASE WHEN NOT sized.is_done THEN sized.leased_to END,
            expires_at = CASE WHEN sized.is_done THEN NULL WHEN auto_ack THEN g.stamp + interval '1 hour'
                              ELSE g.deadline END,
            ready_at = CASE WHEN sized.is_done THEN g.stamp ELSE g.deadline END, served_at = g.stamp,
            drained = g.crowded, is_logged = g.is_logged
        FROM sized WHERE r.ctid = sized.row_id AND sized.leased_to > sized.first_offset
          -- No lease of deleted messages alone: no consumer would get it, and end it.
          AND (sized.leased_to = sized.ends OR skep._first_message(r, sized.leased_to) < sized.leased_to)
        RETURNING ROW(sized.request, g.queue_id, g.queue, r.group_queue_id, r.partition_id, sized.first_offset,
                      sized.leased_to, r.lease_id, g.deadline, coalesce(sized.attempt, 1), sized.done
                     )::skep.lease AS lease
    )
    SELECT coalesce(array_agg(lease), '{}') INTO leases FROM leased;
    RETURN leases;
END $$;

-- Returns true if a partition has no message after this time (window_buffer).
CREATE FUNCTION skep._is_quiet(partition_id bigint, since timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT m.created_at <= since FROM skep.messages m WHERE m.partition_id = _is_quiet.partition_id
            ORDER BY m."offset" DESC LIMIT 1);
END $$;

-- Leases runs in one of the three ways. visited: partitions that this pop has already leased from.
CREATE FUNCTION skep._lease_runs(
    g skep.group_state, partition_ids bigint[], requests integer[], sizes integer[], auto_ack boolean,
    conflate boolean, visited bigint[] DEFAULT '{}'
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    leases skep.lease[];
BEGIN
    IF g.is_shared THEN
        IF sizes[2] IS NULL AND partition_ids IS NULL AND visited = '{}' AND g.concurrency > 1 AND g.quiet_since IS NULL
           AND g.visible_until = 'infinity' AND NOT (conflate OR g.is_logged) THEN
            leases := skep._lease_from_open(g, sizes[1]);
            IF leases IS NOT NULL THEN
                RETURN leases;
            END IF;
        END IF;
        RETURN skep._lease_shared(g, partition_ids, requests, sizes, conflate, visited);
    ELSIF partition_ids IS NOT NULL THEN
        RETURN skep._lease_named(g, partition_ids, requests, sizes, auto_ack, conflate);
    END IF;
    RETURN skep._lease_ready(g, requests, sizes, (SELECT max(size) FROM unnest(sizes) AS size), auto_ack, conflate);
END $$;

-- Runs discovery if the first leases were not enough and the last discovery is some time ago (20 ms if consumers wait,
-- 250 ms if they are busy), and leases the rest. A pop inside a longer transaction locks no more partitions than it
-- leases, because they are hidden from others until it commits.
CREATE FUNCTION skep._lease_more(
    g skep.group_state, requests integer[], sizes integer[], leases skep.lease[], auto_ack boolean, conflate boolean
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    left_over  record;
    stamp      timestamptz := clock_timestamp();
    since      interval := stamp - g.discovered_at;
    max_rows   integer := CASE WHEN g.is_autocommit THEN 1000000
                               WHEN transaction_timestamp() = statement_timestamp() THEN cardinality(sizes)
                               ELSE cardinality((skep._slots_left(requests, sizes, leases)).requests) END;
    give_up_at timestamptz := stamp + interval '250 milliseconds';
BEGIN
    IF since BETWEEN '0 seconds' AND '250 milliseconds' AND cardinality(leases) = cardinality(sizes)
       OR since BETWEEN '0 seconds' AND '20 milliseconds' AND cardinality(leases) > 0 THEN
        RETURN leases;
    END IF;
    g.is_behind := EXISTS (SELECT FROM skep.delayed_messages d WHERE d.queue_id = g.queue_id AND d.due_at <= stamp)
                   AND skep._append_for_pop(g.queue_id, g.is_autocommit) OR g.is_behind;
    LOOP
        EXIT WHEN NOT skep._discover(g.list_id, g.list_queue_id, cardinality(leases) > 0, max_rows) AND NOT g.is_behind;
        g.is_behind := false;
        left_over := skep._slots_left(requests, sizes, leases);
        EXIT WHEN left_over.requests = '{}';
        SELECT d.ready_from, d.crowded INTO g.ready_from, g.crowded FROM skep.discoveries d WHERE d.list_id = g.list_id
        ORDER BY d.id DESC LIMIT 1;
        g := skep._with_current_time(g);
        leases := leases || skep._lease_runs(g, NULL, left_over.requests, left_over.sizes, auto_ack, conflate,
                                           ARRAY(SELECT l.partition_id FROM unnest(leases) l));
        EXIT WHEN cardinality(leases) > 0 OR clock_timestamp() > give_up_at;
    END LOOP;
    IF cardinality(leases) = 0 AND skep._wait_for_run(g) THEN
        leases := skep._lease_runs(skep._with_current_time(g), NULL, requests, sizes, auto_ack, conflate);
    END IF;
    RETURN leases;
END $$;

-- Waits up to 0.1 s for a run with messages that another consumer has locked and may soon release. Returns false if
-- there is none, or if it stays locked.
CREATE FUNCTION skep._wait_for_run(g skep.group_state) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    PERFORM FROM skep.runs r
    WHERE r.list_id = g.list_id AND r.priority = g.priority AND r.ready_at >= g.ready_from
      AND r.ready_at <= clock_timestamp()
      AND r.lease_id IS NULL AND NOT r.drained AND r.group_queue_id = g.id AND r.leases < g.concurrency
      AND EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                     AND m.payload IS NOT NULL AND m.created_at <= g.visible_until)
    ORDER BY r.ready_at LIMIT 1 FOR NO KEY UPDATE;
    RETURN FOUND;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

CREATE FUNCTION skep._lease_queue(
    g skep.group_state, requests integer[], sizes integer[], auto_ack boolean, conflate boolean
)
RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    leases skep.lease[] := '{}';
BEGIN
    -- Otherwise partitions that were left over come first, or those in the list would be served again and again.
    IF NOT g.is_behind THEN
        leases := skep._lease_runs(g, NULL, requests, sizes, auto_ack, conflate);
    END IF;
    RETURN skep._lease_more(g, requests, sizes, leases, auto_ack, conflate);
END $$;

-- Returns the group state with its times moved to now.
CREATE FUNCTION skep._with_current_time(g skep.group_state) RETURNS skep.group_state
LANGUAGE plpgsql AS $$
DECLARE
    passed interval := clock_timestamp() - g.stamp;
BEGIN
    g.stamp := g.stamp + passed; g.deadline := g.deadline + passed; g.visible_until := g.visible_until + passed;
    g.quiet_since := g.quiet_since + passed;
    RETURN g;
END $$;

-- Returns the state of a group on a queue for pop. Returns no row if the group has not read from the queue yet, or if
-- _ensure_subscribed() must run first: the group has no subscription to the whole queue, one that is not ACTIVE, or one
-- that needs a heartbeat.
CREATE FUNCTION skep._find_group(
    queue text, group_name text, lease_time double precision, autocommit boolean, any_status boolean
)
RETURNS SETOF skep.group_state LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT g.id, g.list_id, CASE WHEN g.list_id = g.id THEN q.id ELSE 0 END, CASE WHEN g.list_id = g.id THEN 0
        ELSE -q.priority END,
           g.group_name, q.id, q.name, q.concurrency, q.concurrency > 1 OR q.was_shared,
           q.lease_log_seconds IS NOT NULL, now.stamp,
           now.stamp + make_interval(secs => coalesce(_find_group.lease_time, q.lease_time)),
           CASE WHEN q.delayed_processing > 0 THEN now.stamp - make_interval(secs => q.delayed_processing)
               ELSE 'infinity' END,
           CASE WHEN q.window_buffer > 0 THEN now.stamp - make_interval(secs => q.window_buffer) END,
           d.discovered_at, coalesce(d.ready_from, '-infinity'), coalesce(d.crowded, false),
           num_nonnulls(d.left_over, d.scan_after) > 0, autocommit
    FROM (SELECT clock_timestamp() AS stamp OFFSET 0) now
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = _find_group.queue LIMIT 1) q
    CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g
                        WHERE g.group_name = CASE WHEN q.semantics = 'queue' THEN '__QUEUE_MODE__'
                        ELSE _find_group.group_name END
                                                            AND g.queue_id = q.id LIMIT 1) g
    LEFT JOIN LATERAL (SELECT * FROM skep.subscriptions s
                       WHERE s.group_name = g.group_name AND coalesce(s.queue, '') = q.name
                          AND coalesce(s.partition, '') = '' AND coalesce(s.namespace, '') = ''
                          AND coalesce(s.task, '') = '' LIMIT 1) s ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.discoveries d WHERE d.list_id = g.list_id ORDER BY d.id DESC LIMIT 1) d
        ON true
    WHERE any_status OR s.status = 'ACTIVE'
      AND s.last_heartbeat_at BETWEEN now.stamp - make_interval(secs => s.heartbeat_interval / 4) AND now.stamp
$$;

-- Leases the next messages of one partition in one statement: the usual pop of a group that has popped recently.
-- Returns NULL if nothing was found, or if this is not the usual case, and _lease() takes over: the queue has options
-- that need more than this, the group is not ACTIVE or needs a heartbeat, discovery is due, or the run has acknowledged
-- messages inside (done). One statement with as few expressions as possible: starting a statement costs more than
-- running this one.
CREATE FUNCTION skep._lease_next(queue text, group_name text, batch integer) RETURNS skep.lease[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leases skep.lease[];
BEGIN
    WITH leased AS (
        UPDATE skep.runs r
        SET lease_id = skep._lease_id(r.partition_id, r.group_queue_id, r.first_offset), leased_to = ready.leased_to,
            expires_at = ready.deadline, ready_at = ready.deadline, served_at = ready.stamp, drained = ready.crowded,
            is_logged = false
        FROM (
            SELECT run.row_id, run.leased_to, g.*
            FROM skep._find_plain_group(_lease_next.queue, _lease_next.group_name) g
            CROSS JOIN LATERAL (
                SELECT r.ctid AS row_id, ends.last + 1 AS leased_to FROM skep.runs r
                CROSS JOIN LATERAL (SELECT m."offset" AS last FROM skep.messages m
                                    WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                                      AND m."offset" < least(r.cuts[1], r.first_offset + _lease_next.batch)
                                      AND m.payload IS NOT NULL
                                    ORDER BY m."offset" DESC LIMIT 1) ends
                WHERE r.list_id = g.id AND r.priority = 0 AND r.ready_at >= g.ready_from AND r.ready_at <= g.stamp
                  AND r.lease_id IS NULL AND NOT r.drained
                  AND ends.last >= r.first_offset  -- checked again for the locked row, which may have moved
                ORDER BY r.ready_at LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED) run
        ) ready
        WHERE r.ctid = ready.row_id AND r.done IS NULL
        RETURNING ROW(1, ready.queue_id, _lease_next.queue, r.group_queue_id, r.partition_id, r.first_offset,
                      r.leased_to, r.lease_id,
                      r.expires_at, coalesce(r.attempts[1], 1), NULL)::skep.lease AS lease
    )
    SELECT array_agg(lease) INTO leases FROM leased;
    RETURN leases;
END $$;

-- Returns a group on a queue for _lease_next(), or no row if a pop of it needs more than that. Joins by unique keys
-- have only one sensible plan.
CREATE FUNCTION skep._find_plain_group(queue text, group_name text)
RETURNS TABLE (id integer, queue_id integer, stamp timestamptz, deadline timestamptz, ready_from timestamptz,
               crowded boolean)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT g.id, q.id, now.stamp, now.stamp + make_interval(secs => q.lease_time), d.ready_from, d.crowded
    FROM (SELECT clock_timestamp() AS stamp OFFSET 0) now
    CROSS JOIN skep.queues q
    JOIN skep.group_queues g ON g.group_name = $2 AND g.queue_id = q.id
    JOIN skep.subscriptions s ON s.group_name = $2 AND coalesce(s.queue, '') = $1 AND coalesce(s.partition, '') = ''
                             AND coalesce(s.namespace, '') = '' AND coalesce(s.task, '') = ''
    CROSS JOIN LATERAL (SELECT * FROM skep.discoveries d WHERE d.list_id = g.list_id ORDER BY d.id DESC LIMIT 1) d
    WHERE q.name = $1 AND q.concurrency = 1 AND NOT q.was_shared AND q.lease_log_seconds IS NULL
      AND q.delayed_processing = 0
      AND q.window_buffer = 0 AND (q.semantics <> 'queue' OR $2 = '__QUEUE_MODE__') AND g.list_id = g.id
      AND s.status = 'ACTIVE' AND s.last_heartbeat_at BETWEEN now.stamp
          - make_interval(secs => s.heartbeat_interval / 4) AND now.stamp
      AND d.discovered_at BETWEEN now.stamp - interval '250 milliseconds' AND now.stamp AND d.left_over IS NULL
      AND d.scan_after IS NULL
$$;

-- Leases for requests that differ only in size. names: the partition of each request, or NULL for any.
CREATE FUNCTION skep._lease(
    queue text, group_name text, batches integer[], partitions integer[], names text[], namespace text, task text,
    lease_time double precision, auto_ack boolean, mode text, start_from text, conflate boolean,
    autocommit boolean DEFAULT true
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    g     skep.group_state;
    slots record;
BEGIN
    PERFORM skep._check_pop(queue, group_name, name, namespace, task, b, p, lease_time)
    FROM (SELECT DISTINCT b, p, name
          FROM unnest(batches, partitions, coalesce(names, '{}')) AS request (b, p, name)) request;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM skep._refuse('SK001', 'pop needs READ COMMITTED',
                             'Begin the transaction with ISOLATION LEVEL READ COMMITTED.');
    END IF;
    slots := skep._slots(batches, partitions);
    IF queue IS NULL THEN
        RETURN skep._lease_wide(_lease.group_name, slots.requests, slots.sizes, _lease.namespace, _lease.task,
                                _lease.lease_time, auto_ack, mode, start_from, conflate, autocommit);
    END IF;
    SELECT * INTO g FROM skep._find_group(_lease.queue, _lease.group_name, _lease.lease_time, autocommit, false);
    IF NOT FOUND OR mode IS NOT NULL OR start_from IS NOT NULL THEN
        IF names IS NULL AND NOT skep._ensure_subscribed(queue, group_name, NULL, NULL, NULL, mode, start_from) THEN
            RETURN '{}';
        ELSIF names IS NOT NULL THEN
            names := skep._ensure_subscribed_by_name(queue, group_name, names, mode, start_from);
        END IF;
        SELECT * INTO g FROM skep._find_group(_lease.queue, _lease.group_name, _lease.lease_time, autocommit, true);
        IF NOT FOUND THEN
            RETURN '{}';  -- the queue does not exist yet
        END IF;
    END IF;
    IF auto_ack AND (g.is_shared OR g.is_logged) THEN
        auto_ack := false;  -- _complete_leases() does it
        g.deadline := g.stamp + interval '1 hour';
    END IF;
    IF names IS NOT NULL THEN
        RETURN skep._lease_by_name(g, names, slots.requests, slots.sizes, auto_ack, conflate);
    END IF;
    RETURN skep._lease_queue(g, slots.requests, slots.sizes, auto_ack, conflate);
END $$;

-- Returns the messages of leases, partition by partition, in order. It is a separate statement, which sees all messages
-- that the leases have seen.
CREATE FUNCTION skep._deliver(leases skep.lease[]) RETURNS SETOF skep.delivery
LANGUAGE sql STABLE AS $$
    SELECT l.queue, p.name, m."offset", skep.message_id(m.partition_id, m."offset"), m.payload, m.headers,
           m.transaction_id, m.trace_id, m.producer, m.created_at, l.attempt, l.partition_id, l.lease_id, l.expires_at
    FROM unnest($1) l
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = l.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = l.partition_id AND m."offset" >= l.first_offset AND m."offset" < l.leased_to
        ORDER BY m."offset"
    ) m
    WHERE m.payload IS NOT NULL AND (l.done IS NULL OR NOT l.done @> m."offset")
$$;

-- Completes leases for auto_ack on shared or logged queues: these leases end like those of any consumer.
CREATE FUNCTION skep._complete_leases(leases skep.lease[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[] := ARRAY(SELECT l.lease_id FROM unnest(leases) l WHERE l.lease_id IS NOT NULL);
BEGIN
    IF ids <> '{}' THEN
        PERFORM skep._apply_acks(ids, NULL, NULL, array_fill('completed'::text, ARRAY[cardinality(ids)]), NULL);
    END IF;
END $$;

-- autocommit: the transaction ends with this call, so it may do work for its whole group: discovery checks all
-- partitions, not only as many as this call leases.
CREATE FUNCTION skep.pop(
    queue text DEFAULT NULL, group_name text DEFAULT '__QUEUE_MODE__', batch integer DEFAULT 1,
    partitions integer DEFAULT 1, partition text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL,
    lease_time double precision DEFAULT NULL, auto_ack boolean DEFAULT false, subscription_mode text DEFAULT NULL,
    subscription_from text DEFAULT NULL, autocommit boolean DEFAULT false
) RETURNS SETOF skep.delivery LANGUAGE plpgsql AS $$
DECLARE
    leases skep.lease[];
BEGIN
    IF partitions = 1 AND batch BETWEEN 1 AND 100000 AND NOT auto_ack
        AND num_nonnulls(lease_time, subscription_mode, subscription_from) = 0
       AND current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        leases := CASE WHEN partition IS NULL THEN skep._lease_next(queue, group_name, batch)
                       ELSE skep._lease_next_named(queue, group_name, ARRAY[partition], ARRAY[batch]) END;
    END IF;
    IF coalesce(leases, '{}') = '{}' THEN
        leases := skep._lease(queue, group_name, ARRAY[batch], ARRAY[partitions], CASE
                              WHEN partition IS NOT NULL THEN ARRAY[partition] END, namespace, task, lease_time,
                              auto_ack, subscription_mode, subscription_from, false, autocommit);
    END IF;
    IF leases <> '{}' THEN
        RETURN QUERY SELECT * FROM skep._deliver(leases);
        IF auto_ack THEN
            PERFORM skep._complete_leases(leases);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION skep.pop IS
    'Leases up to batch messages from up to partitions partitions, and returns them: of a queue, of one partition, '
    'or of every queue of a namespace or task. autocommit tells that your transaction ends with this call, so that it '
    'may run discovery for its whole group.';
CALL skep._allow('skep_consumer', 'pop');
