-- Leases from the queues of a namespace and/or task. They share one ready list per group (group_queues.queue_id 0), so
-- the cost depends on the number of ready runs, not on the number of queues.

-- Returns the group_queues rows to lease from for a namespace and/or task, by priority and then in the order of the
-- ready lists. They are those of the wide list of the group, and those of work queues, which all groups share. It looks
-- at the first runs of the list only, and leaves out those of `tried` rows before it counts them.
CREATE FUNCTION skep._choose_queues(list integer, namespace text, task text, wanted integer, tried integer[])
RETURNS integer[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    RETURN ARRAY(
        SELECT ready.group_queue_id FROM (
            SELECT r.group_queue_id, r.priority, r.ready_at
            FROM (SELECT coalesce(min(d.ready_from), '-infinity') AS at FROM skep.discoveries d
                  WHERE d.list_id = list) ready_from
            CROSS JOIN unnest(skep._priorities(list)) AS one (priority)
            CROSS JOIN LATERAL (
                SELECT r.group_queue_id, r.priority, r.ready_at FROM skep.runs r
                JOIN skep.group_queues g ON g.id = r.group_queue_id
                JOIN skep.queues q ON q.id = g.queue_id
                WHERE r.list_id = list AND r.priority = one.priority AND r.ready_at >= ready_from.at
                  AND r.ready_at <= stamp
                  AND r.lease_id IS NULL AND NOT r.drained AND r.group_queue_id <> ALL (tried)
                  AND q.namespace = coalesce(_choose_queues.namespace, q.namespace)
                  AND q.task = coalesce(_choose_queues.task, q.task)
                  AND EXISTS (SELECT FROM skep.messages m
                              WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                                 AND m.created_at <= stamp - make_interval(secs => q.delayed_processing))
                  AND (q.window_buffer = 0 OR r.attempts IS NOT NULL
                       OR skep._is_quiet(r.partition_id, stamp - make_interval(secs => q.window_buffer)))
                ORDER BY r.ready_at LIMIT wanted + 16
            ) r
            UNION ALL
            SELECT g.id, -q.priority, stamp FROM skep.queues q
            JOIN skep.group_queues g ON g.queue_id = q.id AND g.group_name = '__QUEUE_MODE__'
            WHERE q.semantics = 'queue' AND q.namespace = coalesce(_choose_queues.namespace, q.namespace)
              AND q.task = coalesce(_choose_queues.task, q.task) AND g.id <> ALL (tried)
        ) ready
        GROUP BY ready.group_queue_id ORDER BY min(ready.priority), min(ready.ready_at));
END $$;

-- Leases from the queues of a namespace and/or task.
CREATE FUNCTION skep._lease_wide(
    group_name text, requests integer[], sizes integer[], namespace text, task text, lease_time double precision,
    auto_ack boolean, mode text, start_from text, conflate boolean, autocommit boolean
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    list      integer;
    g         skep.group_state;
    choice    integer[];
    tried     integer[];
    chosen    integer;
    leases    skep.lease[] := '{}';
    left_over record;
    has_grown boolean;
    max_rows  integer := CASE WHEN autocommit THEN 1000000 ELSE cardinality(sizes) END;
BEGIN
    IF NOT skep._ensure_subscribed(NULL, _lease_wide.group_name, NULL, _lease_wide.namespace, _lease_wide.task, mode,
                         start_from) THEN
        RETURN leases;
    END IF;
    list := skep._ensure_wide_list(_lease_wide.group_name);
    PERFORM skep._ensure_group_queues(q.name, '__QUEUE_MODE__') FROM skep.queues q
    WHERE q.semantics = 'queue' AND q.namespace = coalesce(_lease_wide.namespace, q.namespace)
      AND q.task = coalesce(_lease_wide.task, q.task)
      AND NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.queue_id = q.id AND g.group_name = '__QUEUE_MODE__');
    IF EXISTS (SELECT FROM skep.discoveries d
               WHERE d.list_id = list AND num_nonnulls(d.left_over, d.scan_after) > 0) THEN
        PERFORM skep._discover(list, 0, false, max_rows);
    END IF;
    FOR try IN 1 .. 4 LOOP  -- a discovery may add a run, and the next one may move it past deleted messages
        tried := '{}';
        LOOP  -- until one of them gives a lease: a paused queue, or one whose runs are locked, must not hide the others
            choice := skep._choose_queues(list, _lease_wide.namespace, _lease_wide.task, cardinality(sizes), tried);
            FOREACH chosen IN ARRAY choice LOOP
                left_over := skep._slots_left(requests, sizes, leases);
                EXIT WHEN left_over.requests = '{}';
                SELECT o.* INTO g FROM skep.group_queues x JOIN skep.queues q ON q.id = x.queue_id
                CROSS JOIN LATERAL skep._find_group(q.name, x.group_name, _lease_wide.lease_time, autocommit, true) o
                WHERE x.id = chosen;
                CONTINUE WHEN NOT FOUND OR NOT skep._may_read(g);
                IF auto_ack AND (g.is_shared OR g.is_logged) THEN
                    g.deadline := g.stamp + interval '1 hour';
                END IF;
                leases := leases || CASE WHEN g.list_id = list THEN
                    skep._lease_runs(g, NULL, left_over.requests, left_over.sizes,
                                   auto_ack AND NOT g.is_shared AND NOT g.is_logged, conflate)
                    ELSE skep._lease_queue(g, left_over.requests, left_over.sizes,
                                           auto_ack AND NOT g.is_shared AND NOT g.is_logged, conflate) END;
            END LOOP;
            EXIT WHEN cardinality(leases) > 0 OR choice = '{}';
            tried := tried || choice;
        END LOOP;
        EXIT WHEN cardinality(leases) > 0 OR try = 4;
        has_grown := EXISTS (SELECT FROM skep.delayed_messages d WHERE d.due_at <= clock_timestamp())
                     AND skep._append_for_pop(NULL, autocommit);
        EXIT WHEN NOT skep._discover(list, 0, false, max_rows) AND NOT has_grown;
    END LOOP;
    IF cardinality(leases) > 0 AND NOT EXISTS (SELECT FROM skep.discoveries d WHERE d.list_id = list AND d.discovered_at
                                         BETWEEN clock_timestamp()
                                             - interval '250 milliseconds' AND clock_timestamp()) THEN
        -- A transaction that stays open locks no run that it has not leased.
        PERFORM skep._discover(list, 0, true, CASE WHEN autocommit OR transaction_timestamp() = statement_timestamp()
                                                   THEN max_rows ELSE 0 END);
    END IF;
    RETURN leases;
END $$;

-- Returns false if the group has a paused or cancelled subscription to this queue.
CREATE FUNCTION skep._may_read(g skep.group_state) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM skep.queues q
                       CROSS JOIN LATERAL skep._subscription_of(g.group_name, q.name, NULL, q.namespace, q.task) s
                       WHERE q.id = g.queue_id AND s.status IN ('PAUSED', 'CANCELLED'));
END $$;
