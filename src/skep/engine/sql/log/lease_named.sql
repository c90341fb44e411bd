-- Leases of named partitions: many requests, each for one partition, in one call.

-- Leases from named partitions in one statement, as _lease_next() does, with one request for each name. The requests
-- that it returns no lease for need _lease(): their partition is new to the group, leased or empty, or has redriven
-- dead letters, which come first.
CREATE FUNCTION skep._lease_next_named(queue text, group_name text, names text[], batches integer[])
RETURNS skep.lease[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leases skep.lease[];
BEGIN
    WITH leased AS (
        UPDATE skep.runs r
        SET lease_id = skep._lease_id(r.partition_id, r.group_queue_id, r.first_offset), leased_to = ready.leased_to,
            expires_at = ready.deadline, ready_at = ready.deadline, served_at = ready.stamp, drained = false,
            is_logged = false
        FROM (
            SELECT named.n, run.row_id, ends.last + 1 AS leased_to, p.queue_id, p.stamp, p.deadline
            FROM unnest(_lease_next_named.names, _lease_next_named.batches) WITH ORDINALITY AS named (name, batch, n)
            CROSS JOIN LATERAL skep._find_plain_partition(_lease_next_named.queue, _lease_next_named.group_name,
                named.name) p
            CROSS JOIN LATERAL (SELECT r.first_offset FROM skep.runs r
                                WHERE r.partition_id = p.id AND r.group_queue_id = p.group_queue_id
                                ORDER BY r.first_offset DESC LIMIT 1) newest
            CROSS JOIN LATERAL (
                SELECT r.ctid AS row_id, r.first_offset, r.cuts[1] AS cut FROM skep.runs r
                WHERE r.partition_id = p.id AND r.group_queue_id = p.group_queue_id
                  AND r.first_offset = newest.first_offset
                  AND r.lease_id IS NULL AND coalesce(r.ready_at, p.stamp) <= p.stamp
                FOR NO KEY UPDATE SKIP LOCKED) run
            CROSS JOIN LATERAL (SELECT m."offset" AS last FROM skep.messages m
                                WHERE m.partition_id = p.id AND m."offset" >= run.first_offset
                                  AND m."offset" < least(run.cut, run.first_offset + named.batch)
                                  AND m.payload IS NOT NULL
                                ORDER BY m."offset" DESC LIMIT 1) ends
        ) ready
        WHERE r.ctid = ready.row_id AND r.done IS NULL
        RETURNING ROW(ready.n, ready.queue_id, _lease_next_named.queue, r.group_queue_id, r.partition_id,
                      r.first_offset, r.leased_to,
                      r.lease_id, r.expires_at, coalesce(r.attempts[1], 1), NULL)::skep.lease AS lease
    )
    SELECT coalesce(array_agg(lease), '{}') INTO leases FROM leased;
    RETURN leases;
END $$;

-- Returns a partition and a group for _lease_next_named(), or no row if a pop of it needs more than that. Every
-- subscription that covers the partition must be ACTIVE, and the most specific one must not need a heartbeat.
CREATE FUNCTION skep._find_plain_partition(queue text, group_name text, partition text)
RETURNS TABLE (id bigint, group_queue_id integer, queue_id integer, stamp timestamptz, deadline timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT p.id, g.id, q.id, now.stamp, now.stamp + make_interval(secs => q.lease_time)
    FROM (SELECT clock_timestamp() AS stamp OFFSET 0) now
    CROSS JOIN skep.queues q
    JOIN skep.group_queues g ON g.group_name = $2 AND g.queue_id = q.id
    JOIN skep.partitions p ON p.queue_id = q.id AND p.name = $3
    LEFT JOIN skep.subscriptions own ON own.group_name = $2 AND coalesce(own.queue, '') = $1
        AND coalesce(own.partition, '') = $3
                                    AND coalesce(own.namespace, '') = '' AND coalesce(own.task, '') = ''
    LEFT JOIN skep.subscriptions s ON s.group_name = $2 AND coalesce(s.queue, '') = $1
        AND coalesce(s.partition, '') = ''
                                  AND coalesce(s.namespace, '') = '' AND coalesce(s.task, '') = ''
    WHERE q.name = $1 AND q.concurrency = 1 AND NOT q.was_shared AND q.lease_log_seconds IS NULL
      AND q.delayed_processing = 0
      AND q.window_buffer = 0 AND (q.semantics <> 'queue' OR $2 = '__QUEUE_MODE__') AND p.only_group IS NULL
      AND coalesce(own.status, s.status) = 'ACTIVE' AND coalesce(s.status, 'ACTIVE') = 'ACTIVE'
      AND coalesce(own.last_heartbeat_at, s.last_heartbeat_at)
          BETWEEN now.stamp - make_interval(secs => coalesce(own.heartbeat_interval,
              s.heartbeat_interval) / 4) AND now.stamp
      AND NOT EXISTS (SELECT FROM skep.partitions redriven
                      WHERE redriven.queue_id = q.id AND redriven.name = skep._redrive_partition($2, $3))
$$;

-- Leases from named partitions in strict order, one lease for each slot. The conditions are checked before the lock is
-- taken: a pop that gets nothing must not lock a run that another session has leased.
CREATE FUNCTION skep._lease_named(
    g skep.group_state, partition_ids bigint[], requests integer[], sizes integer[], auto_ack boolean, conflate boolean
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leases   skep.lease[];
BEGIN
    WITH ready AS (
        SELECT r.row_id, CASE WHEN conflate THEN ends.last ELSE r.first_offset END AS first_offset, r.attempt, r.done,
               requests[named.slot] AS request,
               skep._cut(r.first_offset, ends.last + 1, r.done, sizes[named.slot]) AS leased_to,
               auto_ack AND r.done IS NULL AND r.attempt IS NULL AS is_done  -- as in _lease_ready()
        FROM unnest(_lease_named.partition_ids) WITH ORDINALITY AS named (id, slot)
        CROSS JOIN LATERAL (SELECT r.first_offset FROM skep.runs r
                            WHERE r.partition_id = named.id AND r.group_queue_id = g.id
                            ORDER BY r.first_offset DESC LIMIT 1) newest
        CROSS JOIN LATERAL (
            SELECT r.ctid AS row_id, r.first_offset, r.cuts[1] AS cut, r.attempts[1] AS attempt, r.done FROM skep.runs r
            WHERE r.partition_id = named.id AND r.group_queue_id = g.id AND r.first_offset = newest.first_offset
              AND r.lease_id IS NULL
              AND coalesce(r.ready_at, g.stamp) <= g.stamp AND r.leases = 0 AND r.end_offset IS NULL
            FOR NO KEY UPDATE SKIP LOCKED) r
        CROSS JOIN LATERAL (SELECT m."offset" AS last FROM skep.messages m
                            WHERE m.partition_id = named.id AND m."offset" >= r.first_offset
                              AND m."offset" < least(r.cut, r.first_offset + sizes[named.slot]
                                                     + skep._done_count(r.done))
                              AND m.payload IS NOT NULL AND m.created_at <= g.visible_until
                              AND (r.done IS NULL OR NOT r.done @> m."offset")
                            ORDER BY m."offset" DESC LIMIT 1) ends
        WHERE g.quiet_since IS NULL OR r.attempt IS NOT NULL OR skep._is_quiet(named.id, g.quiet_since)
    ), leased AS (
    UPDATE skep.runs r
    SET lease_id = CASE WHEN NOT ready.is_done
        THEN skep._lease_id(r.partition_id, r.group_queue_id, ready.first_offset) END,
        first_offset = CASE WHEN ready.is_done THEN ready.leased_to ELSE ready.first_offset END,
        leased_to = CASE WHEN NOT ready.is_done THEN ready.leased_to END,
        expires_at = CASE WHEN ready.is_done THEN NULL WHEN auto_ack THEN g.stamp + interval '1 hour'
            ELSE g.deadline END,
        ready_at = CASE WHEN ready.is_done THEN g.stamp ELSE g.deadline END, served_at = g.stamp, drained = g.crowded,
        is_logged = g.is_logged
    FROM ready WHERE r.ctid = ready.row_id
      AND (ready.done IS NULL OR skep._first_message(r, ready.leased_to) < ready.leased_to)  -- as in _lease_ready()
    RETURNING ROW(ready.request, g.queue_id, g.queue, r.group_queue_id, r.partition_id, ready.first_offset,
                  ready.leased_to, r.lease_id, g.deadline,
                  coalesce(ready.attempt, 1), ready.done)::skep.lease AS lease
    )
    SELECT coalesce(array_agg(lease), '{}') INTO leases FROM leased;
    RETURN leases;
END $$;

-- Prepares the runs of named partitions for a lease: adds missing runs, ends expired leases, and moves runs past
-- deleted messages. Returns true if something changed.
CREATE FUNCTION skep._prepare_named(g skep.group_state, partition_ids bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    stamp   timestamptz := clock_timestamp();
    unknown bigint[];
    late    record;
    changed boolean := false;
BEGIN
    unknown := ARRAY(SELECT DISTINCT named.id FROM unnest(partition_ids) AS named (id)
                     WHERE NOT EXISTS (SELECT FROM skep.starts s
                                       WHERE s.partition_id = named.id AND s.group_queue_id = g.id));
    IF unknown <> '{}' THEN
        changed := (skep._add_runs(g.id, unknown, cardinality(unknown), stamp)).added IS NOT NULL;
    END IF;
    FOR late IN
        SELECT r.ctid AS row_id, r AS run FROM (SELECT DISTINCT id FROM unnest(partition_ids) AS named (id)) named
        JOIN skep.runs r ON r.partition_id = named.id AND r.group_queue_id = g.id
        WHERE r.expires_at <= stamp
        ORDER BY r.partition_id, r.first_offset FOR NO KEY UPDATE OF r SKIP LOCKED
    LOOP
        changed := skep._end_lease(late.row_id, late.run, 'expired') OR changed;
    END LOOP;
    FOR late IN
        SELECT r.ctid AS row_id, skep._move_run(r, alive."offset") AS run
        FROM (SELECT DISTINCT id FROM unnest(partition_ids) AS named (id)) named
        CROSS JOIN LATERAL (SELECT r.first_offset FROM skep.runs r
                            WHERE r.partition_id = named.id AND r.group_queue_id = g.id
                            ORDER BY r.first_offset DESC LIMIT 1) newest
        CROSS JOIN LATERAL (SELECT m."offset" FROM skep.messages m
                            WHERE m.partition_id = named.id AND m."offset" >= newest.first_offset
                               AND m.payload IS NOT NULL ORDER BY m."offset" LIMIT 1) alive
        JOIN skep.runs r ON r.partition_id = named.id AND r.group_queue_id = g.id
            AND r.first_offset = newest.first_offset
        WHERE alive."offset" > newest.first_offset AND r.expires_at IS NULL
        FOR NO KEY UPDATE OF r SKIP LOCKED
    LOOP
        UPDATE skep.runs r
        SET first_offset = (late.run).first_offset, cuts = (late.run).cuts, attempts = (late.run).attempts,
            done = (late.run).done
        WHERE r.ctid = late.row_id;
        changed := true;
    END LOOP;
    IF g.is_shared THEN
        DELETE FROM skep.runs r
        WHERE r.ctid = ANY (ARRAY(SELECT skep._find_empty_runs(g.id, partition_ids)));
    END IF;
    RETURN changed;
END $$;

-- Returns the returned runs of shared partitions that have nothing left to deliver. No consumer could lease them, and
-- so end them.
CREATE FUNCTION skep._find_empty_runs(group_queue_id integer, partition_ids bigint[]) RETURNS SETOF tid
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT r.ctid FROM skep.runs r
    WHERE r.partition_id = ANY (partition_ids) AND r.group_queue_id = _find_empty_runs.group_queue_id
      AND r.end_offset IS NOT NULL AND r.lease_id IS NULL AND skep._first_message(r, r.end_offset) >= r.end_offset
    FOR UPDATE SKIP LOCKED;
END $$;

-- Returns the partitions of requests by name. Redriven dead letters of a partition come first, if some can be leased.
CREATE FUNCTION skep._find_named(g skep.group_state, names text[], redriven boolean) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT array_agg(p.id ORDER BY named.n) FROM unnest(names) WITH ORDINALITY AS named (name, n)
            LEFT JOIN LATERAL (SELECT p.id FROM skep.partitions p WHERE p.queue_id = g.queue_id
                                  AND p.name = CASE WHEN redriven
                                      THEN skep._redrive_partition(g.group_name, named.name) ELSE named.name END
                                  AND (NOT redriven OR p.only_group = g.group_name) LIMIT 1) p ON true);
END $$;

-- Returns the name of the partition in which a group gets its redriven dead letters of a partition. Only this group
-- reads it. Their order is kept.
CREATE FUNCTION skep._redrive_partition(group_name text, partition text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN right($2, length(suffix)) = suffix THEN $2 ELSE left($2 || suffix, 255) END
    FROM format(' (redriven for %s)', $1) AS suffix
$$;

-- Returns the partition to which a dead letter was pushed before any redrive. (It cannot be known if the name was cut.)
CREATE FUNCTION skep._origin_partition(group_name text, partition text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length($2) > length(suffix) AND right($2, length(suffix)) = suffix THEN left($2, -length(suffix))
                ELSE $2 END
    FROM format(' (redriven for %s)', $1) AS suffix
$$;

-- Leases from named partitions: first directly and, if requests are left, again after _prepare_named() and after the
-- append of due delayed messages.
CREATE FUNCTION skep._lease_by_name(
    g skep.group_state, names text[], requests integer[], sizes integer[], auto_ack boolean, conflate boolean
)
RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    ids    bigint[];
    leases skep.lease[] := '{}';
    open   integer[];
    is_redriven boolean;
    has_grown   boolean;
BEGIN
    FOREACH is_redriven IN ARRAY ARRAY[true, false] LOOP
        ids := skep._find_named(g, names, is_redriven);
        FOR try IN 1 .. 2 LOOP
            open := ARRAY(SELECT n FROM unnest(ids) WITH ORDINALITY AS named (id, n)
                          WHERE id IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(leases) l
                              WHERE l.request = requests[n]));
            EXIT WHEN open = '{}';
            IF try = 2 THEN
                has_grown := NOT is_redriven
                             AND EXISTS (SELECT FROM skep.delayed_messages d
                                         WHERE d.queue_id = g.queue_id AND d.due_at <= clock_timestamp())
                             AND skep._append_for_pop(g.queue_id, g.is_autocommit);
                EXIT WHEN NOT skep._prepare_named(g, ARRAY(SELECT ids[n] FROM unnest(open) AS n)) AND NOT has_grown;
            END IF;
            g := skep._with_current_time(g);  -- prepared runs are ready at this time
            leases := leases || skep._lease_runs(g, ARRAY(SELECT ids[n] FROM unnest(open) AS n),
                                               ARRAY(SELECT requests[n] FROM unnest(open) AS n),
                                               ARRAY(SELECT sizes[n] FROM unnest(open) AS n), auto_ack, conflate);
        END LOOP;
    END LOOP;
    RETURN leases;
END $$;

-- Runs _ensure_subscribed() for each named partition. Returns the names, with NULL for partitions that get nothing.
CREATE FUNCTION skep._ensure_subscribed_by_name(queue text, group_name text, names text[], mode text, start_from text)
RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    refused text[] := ARRAY(SELECT wanted.name
                            FROM (SELECT DISTINCT name FROM unnest(names) AS name ORDER BY name) wanted
                            WHERE NOT skep._ensure_subscribed(queue, group_name, wanted.name, NULL, NULL, mode,
                                                              start_from));
BEGIN
    RETURN ARRAY(SELECT CASE WHEN name <> ALL (refused) THEN name END FROM unnest(names)
                 WITH ORDINALITY AS wanted (name, n) ORDER BY n);
END $$;
