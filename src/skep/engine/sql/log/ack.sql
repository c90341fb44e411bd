-- Acks, and the verdict on a lease. The verdict is due when every message of the lease has an ack, when the lease
-- expires, and when it is released.
--
--   acks                                verdict
--   all completed                       the run is done
--   some completed, some failed         failed -> dead letters (partial_failure = 'retry', or a failure with
--                                       retry_after: they are retried)
--   all failed                          the run is retried after retry_delay; past retry_limit -> dead letters
--   failed alone                        each failed message is retried by itself, attempt + 1; past retry_limit ->
--                                       dead letters. Messages without an ack are delivered again, at the same
--                                       attempt, in their order
--   failed at once (Queen's nack)       the lease ends; messages that are not completed are retried; past retry_limit
--                                       the failed ones -> dead letters
--   some without ack, lease expired     these are retried in two halves, attempt + 1;
--                                       a single one past retry_limit -> dead letters
--   the same for a stream               these are delivered again, at the same attempt: a stream leaves messages
--                                       without an ack to get them again later
--   released                            messages that are not completed are delivered again, at the same attempt,
--                                       after the delay if one was given
--
-- The retry options (retry_limit, retry_delay, max_retry_delay, retry_jitter) are those of the group, or else of the
-- queue: see _retry_policy(). retry_after of a failure replaces the computed delay. After an expired lease there is no
-- delay: the lease time has already passed.
--
-- An offset whose message was deleted counts as done. A lease is part of its run, and only a session that has locked
-- the run changes it. In a shared partition the open run is locked before the closed one.

-- Completes whole leases that have no acks yet and were never returned, which is the usual case: one statement, by the
-- key in the lease id. completed has the acknowledged offsets of each lease; NULL means all. Returns the completed
-- leases, sorted. The other leases are stale, or need _ack_lease(). A lease id does not contain the upper bits of an
-- offset, so every lease beyond offset 2^32 needs it. IS NOT DISTINCT FROM, here and below: with = the planner may scan
-- all of runs_leased.
CREATE FUNCTION skep._ack_leases(leases uuid[], completed int8multirange[] DEFAULT NULL) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    acked uuid[];
    quiet integer[];
BEGIN
    WITH acked AS (
        UPDATE skep.runs r
        SET first_offset = r.leased_to, lease_id = NULL, leased_to = NULL, expires_at = NULL,
            ready_at = skep._ready_time(r.served_at, stamp),
            drained = r.drained AND NOT EXISTS (SELECT FROM skep.messages m
                                                WHERE m.partition_id = r.partition_id AND m."offset" >= r.leased_to)
        FROM (SELECT lease, run, packed >> 21 AS partition_id, (packed & 2097151)::integer AS group_queue_id,
                     first_offset
              FROM (SELECT lease, run, ('x00' || left(replace(lease::text, '-', ''), 14))::bit(64)::bigint AS packed,
                           ('x' || substr(replace(lease::text, '-', ''), 15, 8))::bit(32)::bigint AS first_offset
                    FROM unnest(leases, completed) AS item (lease, run)) lease
              ORDER BY 3, 4, 5) lease
        -- ANY (ARRAY[…]): otherwise the planner may scan all runs and search the lease of each.
        WHERE r.partition_id = ANY (ARRAY[lease.partition_id]) AND r.group_queue_id = lease.group_queue_id
          AND r.first_offset = lease.first_offset
          AND r.lease_id IS NOT DISTINCT FROM lease.lease AND r.expires_at > stamp AND r.end_offset IS NULL
          AND NOT r.is_logged
          AND r.failed IS NULL AND r.done IS NULL AND r.cuts IS NULL
          AND (lease.run IS NULL OR lease.run = int8multirange(int8range(r.first_offset, r.leased_to)))
        RETURNING lease.lease, r.group_queue_id, r.served_at
    )
    SELECT array_agg(a.lease ORDER BY a.lease),
           array_agg(DISTINCT a.group_queue_id) FILTER (WHERE a.served_at < stamp - interval '10 seconds')
    INTO acked, quiet FROM acked a;
    acked := coalesce(acked, '{}');
    IF cardinality(acked) < cardinality(leases) THEN
        acked := ARRAY(SELECT lease FROM unnest(acked || skep._ack_closed(leases, completed)) AS lease ORDER BY lease);
    END IF;
    IF quiet IS NOT NULL THEN
        PERFORM skep._record_activity(one.id) FROM unnest(quiet) AS one (id);
    END IF;
    RETURN acked;
END $$;

CREATE FUNCTION skep._count_offsets(offsets int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(sum(upper(range) - lower(range)), 0)::bigint FROM unnest($1) AS range $$;

-- Returns the offset after the first n of these offsets.
CREATE FUNCTION skep._cut_after(offsets int8multirange, n bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT o + 1 FROM unnest($1) AS range CROSS JOIN generate_series(lower(range), upper(range) - 1) AS o ORDER BY o
    OFFSET $2 - 1 LIMIT 1
$$;

-- Returns the offsets of a run that have a message.
CREATE FUNCTION skep._messages_in(partition_id bigint, first_offset bigint, end_offset bigint) RETURNS int8multirange
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(range_agg(int8range(m."offset", m."offset" + 1)), '{}') FROM skep.messages m
            WHERE m.partition_id = _messages_in.partition_id AND m."offset" >= first_offset AND m."offset" < end_offset
              AND m.payload IS NOT NULL);
END $$;

-- Returns the options that decide a verdict, and the names that dead letters and the log need.
CREATE FUNCTION skep._policy_of(partition_id bigint, group_queue_id integer)
RETURNS SETOF skep.policy LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT q.id, q.name, p.name, g.group_name, q.retry_limit, q.retry_delay, q.max_retry_delay, q.retry_jitter,
           q.partial_failure, q.lease_log_seconds IS NOT NULL,
           coalesce((SELECT true FROM skep.stream_groups s WHERE s.group_name = g.group_name AND s.queue = q.name
                     LIMIT 1), false)
    FROM skep.group_queues g
    JOIN skep.queues q ON q.id = g.queue_id
    JOIN skep.partitions p ON p.id = $1
    WHERE g.id = $2
$$;

CREATE FUNCTION skep._write_dead_letters(
    r skep.runs, policy skep.policy, dead int8multirange, attempt integer, reason text
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.dead_letters (group_name, queue, partition, partition_id, "offset", created_at, payload, headers,
                                   transaction_id, trace_id, producer, error, attempts)
    SELECT policy.group_name, policy.queue, policy.partition, m.partition_id, m."offset", m.created_at, m.payload,
           m.headers, m.transaction_id, m.trace_id, m.producer,
           coalesce(r.errors ->> m."offset"::text, r.errors ->> '*', reason), attempt
    FROM skep.messages m
    WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset AND m."offset" < r.leased_to
      AND dead @> m."offset"
      AND m.payload IS NOT NULL
    ORDER BY m."offset";
END $$;

-- Ends a lease with its verdict, and returns its run with the messages that are left. reason is one of completed,
-- failed, failed_at_once, failed_alone, expired, released. release_delay is the number of seconds that a released run
-- waits.
CREATE FUNCTION skep._apply_verdict(
    r skep.runs, policy skep.policy, reason text, stamp timestamptz, release_delay double precision DEFAULT NULL
) RETURNS skep.runs LANGUAGE plpgsql AS $$
DECLARE
    attempt   integer := coalesce(r.attempts[1], 1);
    failed    int8multirange := coalesce(r.failed, '{}') - coalesce(r.done, '{}');
    dead      int8multirange := '{}';
    back      int8multirange := '{}';  -- delivered again
    n         bigint := 0;
    ends_lease boolean := reason IN ('failed_at_once', 'failed_alone');  -- a failure has ended the lease
    exhausted boolean;
    ends      bigint[];
    delay     double precision := 0;
    next_attempt integer := attempt + 1;
BEGIN
    IF reason <> 'completed' THEN
        IF reason <> 'released' THEN
            policy := skep._retry_policy(policy);
        END IF;
        back := skep._messages_in(r.partition_id, r.first_offset, r.leased_to) - coalesce(r.done, '{}')
                - CASE WHEN r.succeeded AND policy.partial_failure = 'dead_letter' AND r.retry_after IS NULL
                            AND NOT ends_lease THEN failed ELSE '{}' END;
        n := skep._count_offsets(back);
        exhausted := n > 0 AND reason <> 'released' AND attempt > policy.retry_limit
                     AND (reason = 'failed' OR ends_lease OR n = 1);
        dead := CASE WHEN NOT exhausted THEN failed - back WHEN ends_lease THEN failed ELSE failed + back END;
        back := CASE WHEN NOT exhausted THEN back WHEN ends_lease THEN back - failed ELSE '{}' END;
        next_attempt := CASE WHEN reason = 'released' THEN attempt WHEN exhausted THEN 1 ELSE attempt + 1 END;
        IF reason = 'released' AND back <> '{}' THEN
            delay := greatest(release_delay, CASE WHEN back && failed THEN r.retry_after END, 0);
        ELSIF back && failed AND reason <> 'expired'
              OR back <> '{}' AND reason = 'failed_at_once' AND NOT exhausted THEN
            delay := coalesce(r.retry_after, skep._retry_seconds(policy, attempt));
        END IF;
        IF dead <> '{}' THEN
            PERFORM skep._write_dead_letters(r, policy, dead, attempt,
                                             CASE WHEN reason = 'expired' THEN 'lease expired' ELSE 'failed' END);
        END IF;
    END IF;
    IF r.is_logged AND policy.is_logged THEN
        PERFORM skep._log_lease(r, policy, reason, back, attempt, stamp);
    END IF;
    IF back = '{}' THEN
        r := skep._move_run(r, r.leased_to);
    ELSE
        IF r.cuts[1] <= r.leased_to THEN
            r.cuts := r.cuts[2:];
            r.attempts := r.attempts[2:];
        END IF;
        IF reason = 'failed_alone' THEN
            r := skep._cut_around(r, back, back * failed, attempt);
        ELSE
            ends := ARRAY[r.leased_to];
            IF reason = 'expired' AND n > 1 THEN  -- a batch that kills its consumers is delivered in ever smaller runs
                ends := skep._cut_after(back, (n + 1) / 2) || ends;
            END IF;
            r.cuts := ends || r.cuts;
            r.attempts := array_fill(next_attempt, ARRAY[cardinality(ends)]) || r.attempts;
        END IF;
        r.done := (int8multirange(int8range(lower(back), r.leased_to)) - back)
                  + coalesce(r.done, '{}') * int8multirange(int8range(r.leased_to, NULL));
        r := skep._move_run(r, lower(back));
    END IF;
    -- A closed run that is returned is delivered before new messages of its partition.
    r.ready_at := CASE WHEN delay > 0 THEN stamp + skep._seconds(delay)
                       WHEN r.end_offset IS NULL THEN skep._ready_time(r.served_at, stamp)
                       ELSE stamp - interval '100 milliseconds' END;
    r.lease_id := NULL; r.leased_to := NULL; r.expires_at := NULL; r.failed := NULL; r.errors := NULL;
    r.retry_after := NULL; r.succeeded := false; r.drained := false;
    RETURN r;
END $$;

-- Ends a lease whose run the caller has locked. Locks the open run of a shared partition first; returns false if
-- another session has locked that one.
CREATE FUNCTION skep._end_lease(row_id tid, r skep.runs, reason text, release_delay double precision DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    stamp  timestamptz := clock_timestamp();
    policy skep.policy;
BEGIN
    IF r.end_offset IS NOT NULL THEN
        PERFORM FROM skep.runs o WHERE o.partition_id = r.partition_id AND o.group_queue_id = r.group_queue_id
            AND o.end_offset IS NULL
        ORDER BY o.first_offset DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    SELECT * INTO policy FROM skep._policy_of(r.partition_id, r.group_queue_id);
    r := skep._apply_verdict(r, policy, CASE WHEN reason = 'expired' AND policy.is_stream THEN 'released'
                                             ELSE reason END, stamp, release_delay);
    IF r.end_offset IS NOT NULL AND reason = 'failed_alone' THEN
        PERFORM skep._write_parts(row_id, r, stamp);
    ELSE
        PERFORM skep._write_run(row_id, r);
    END IF;
    IF r.end_offset IS NOT NULL THEN
        PERFORM skep._decrement_leases(r.partition_id, r.group_queue_id, stamp);
    END IF;
    RETURN true;
END $$;

-- Stores a run, or deletes it if it is closed and done.
CREATE FUNCTION skep._write_run(row_id tid, r skep.runs) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF r.end_offset <= r.first_offset THEN
        DELETE FROM skep.runs o WHERE o.ctid = row_id;
    ELSE
        UPDATE skep.runs o
        SET first_offset = r.first_offset, ready_at = r.ready_at, lease_id = r.lease_id, leased_to = r.leased_to,
            expires_at = r.expires_at, drained = r.drained, succeeded = r.succeeded, cuts = nullif(r.cuts, '{}'),
            attempts = nullif(r.attempts, '{}'), done = nullif(r.done, '{}'), failed = nullif(r.failed, '{}'),
            errors = r.errors, end_offset = r.end_offset, retry_after = r.retry_after
        WHERE o.ctid = row_id;
    END IF;
END $$;

-- Locks the run of a lease and returns it; returns NULL if the lease is stale. It waits 5 seconds at most, as
-- _ack_closed() does.
CREATE FUNCTION skep._lock_lease(lease uuid, OUT row_id tid, OUT run skep.runs)
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    packed bigint := ('x00' || left(replace(lease::text, '-', ''), 14))::bit(64)::bigint;
    locked record;
BEGIN
    PERFORM FROM skep.runs r WHERE r.partition_id = packed >> 21 AND r.group_queue_id = (packed & 2097151)::integer
        AND r.lease_id IS NOT DISTINCT FROM lease
       AND r.end_offset IS NOT NULL;
    IF FOUND THEN  -- a closed run: lock the open one first
        PERFORM FROM skep.runs r WHERE r.partition_id = packed >> 21 AND r.group_queue_id = (packed & 2097151)::integer
            AND r.end_offset IS NULL
        ORDER BY r.first_offset DESC LIMIT 1 FOR NO KEY UPDATE;
    END IF;
    SELECT r.ctid AS row_id, r AS run INTO locked FROM skep.runs r
    WHERE r.partition_id = packed >> 21 AND r.group_queue_id = (packed & 2097151)::integer
      AND r.lease_id IS NOT DISTINCT FROM lease
      AND r.expires_at > clock_timestamp() FOR NO KEY UPDATE;
    row_id := locked.row_id;
    run := locked.run;
END $$;

-- Applies the acks of one lease.
CREATE FUNCTION skep._ack_lease(row_id tid, r skep.runs, acks skep.lease_acks) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    whole  int8multirange := int8multirange(int8range(r.first_offset, r.leased_to));
    failed int8multirange := coalesce(r.failed, '{}') + acks.failed * whole;
    dead   int8multirange;
    acked  int8multirange;   -- completed by these acks
    policy skep.policy;
BEGIN
    r.errors := CASE WHEN acks.errors IS NULL THEN r.errors ELSE coalesce(r.errors, '{}') || acks.errors END;
    acked := (acks.completed + CASE WHEN acks.rest_completed THEN whole - failed - acks.dead ELSE '{}' END) * whole;
    dead := (acks.dead * whole + CASE WHEN acks.rest_dead THEN whole - failed ELSE '{}' END) - coalesce(r.done, '{}')
        - acks.completed;
    IF dead <> '{}' THEN
        SELECT * INTO policy FROM skep._policy_of(r.partition_id, r.group_queue_id);
        PERFORM skep._write_dead_letters(r, policy, dead, coalesce(r.attempts[1], 1), 'dead-lettered');
    END IF;
    acked := acked - coalesce(r.done, '{}');
    failed := failed + CASE WHEN acks.rest_failed THEN whole
        ELSE '{}' END - coalesce(r.done, '{}') - acks.completed - acks.dead;
    r.done := coalesce(r.done, '{}') + acked + dead;
    r.failed := failed;
    -- An offset whose message was deleted is done without a success. If all offsets are done, the value is not used.
    r.succeeded := r.succeeded OR acked <> '{}' AND NOT r.done @> whole
        AND acked * skep._messages_in(r.partition_id, lower(acked), upper(acked)) <> '{}';
    r.retry_after := CASE WHEN failed <> '{}' THEN greatest(r.retry_after, acks.retry_after) END;
    PERFORM skep._end_or_save_lease(row_id, r, whole, acks);
END $$;

-- Ends the lease if its verdict is due, or stores the acks.
CREATE FUNCTION skep._end_or_save_lease(row_id tid, r skep.runs, whole int8multirange, acks skep.lease_acks)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    open   int8multirange := whole - r.done - r.failed;
    reason text;
BEGIN
    IF open <> '{}' THEN  -- offsets whose message was deleted count as done
        open := open * skep._messages_in(r.partition_id, lower(open), upper(open));
    END IF;
    reason := CASE WHEN open = '{}' AND r.failed = '{}' THEN 'completed'
                   WHEN acks.failed_alone && r.failed THEN 'failed_alone'
                   WHEN acks.failed_at_once && whole AND r.failed <> '{}' THEN 'failed_at_once'
                   WHEN open = '{}' THEN 'failed'
                   WHEN acks.rest_released OR acks.released && whole THEN 'released' END;
    IF reason IS NULL THEN
        PERFORM skep._write_run(row_id, r);
    ELSIF NOT skep._end_lease(row_id, r, reason, CASE WHEN reason = 'released' THEN acks.release_delay END) THEN
        -- The run was closed after the check in _lock_lease(), because concurrency was raised. Its open run is not
        -- locked.
        RAISE EXCEPTION USING ERRCODE = '40001', HINT = 'Nothing was changed. Try again.',
            MESSAGE = format('the run of lease %s changed during the ack', r.lease_id);
    END IF;
END $$;

-- Returns true if a lease id belongs to this partition, or if the partition is NULL (the ack does not name one).
CREATE FUNCTION skep._is_lease_of(lease uuid, partition_id bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce($2
                                             = ('x00' || left(replace($1::text, '-', ''), 14))::bit(64)::bigint >> 21,
                                             true) $$;

-- Applies acks; every ack goes through this function. Each ack names a lease and, unless it is for the whole lease, a
-- message (partition, offset). status is one of completed, failed, failed_at_once (the lease ends), failed_alone (the
-- lease ends, and only the attempts of the failed messages grow), dead_letter, release. delays are the seconds of
-- failures and releases. A stale ack does not affect the others.
CREATE FUNCTION skep._apply_acks(
    leases uuid[], partition_ids bigint[], offsets bigint[], statuses text[], errors text[],
    delays double precision[] DEFAULT NULL
) RETURNS TABLE (ord bigint, applied boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    acks  skep.lease_acks;
    done  uuid[];
    run   record;
    live  boolean[] := array_fill(false, ARRAY[cardinality(leases)]);
    next  integer := 1;  -- both are sorted by lease
    n     bigint;
BEGIN
    IF 'completed' = ALL (statuses) THEN  -- the usual case: every message of a lease in one call
        SELECT skep._ack_leases(array_agg(lease), array_agg(run)) INTO done FROM (
            SELECT item.lease, CASE WHEN count(*) = count(item."offset")
                THEN range_agg(int8range(item."offset", item."offset" + 1)) END AS run
            FROM unnest(_apply_acks.leases, _apply_acks.partition_ids, _apply_acks.offsets)
                AS item (lease, partition_id, "offset")
            WHERE item.lease IS NOT NULL AND skep._is_lease_of(item.lease, item.partition_id) GROUP BY item.lease) item;
    END IF;
    FOR acks IN
        SELECT item.lease, array_agg(item.ord) AS ords, array_agg(item."offset") AS offsets,
               coalesce(range_agg(one) FILTER (WHERE status = 'completed'), '{}') AS completed,
               coalesce(range_agg(one) FILTER (WHERE status IN ('failed', 'failed_at_once', 'failed_alone')),
                        '{}') AS failed,
               coalesce(range_agg(one) FILTER (WHERE status = 'failed_at_once'), '{}') AS failed_at_once,
               coalesce(range_agg(one) FILTER (WHERE status = 'failed_alone'), '{}') AS failed_alone,
               coalesce(range_agg(one) FILTER (WHERE status = 'dead_letter'), '{}') AS dead,
               coalesce(range_agg(one) FILTER (WHERE status = 'release'), '{}') AS released,
               bool_or(status = 'completed' AND "offset" IS NULL) AS rest_completed,
               bool_or(status = 'failed' AND "offset" IS NULL) AS rest_failed,
               bool_or(status = 'dead_letter' AND "offset" IS NULL) AS rest_dead,
               bool_or(status = 'release' AND "offset" IS NULL) AS rest_released,
               jsonb_object_agg(coalesce("offset"::text, '*'), error)
                   FILTER (WHERE status NOT IN ('completed', 'release') AND error IS NOT NULL) AS errors,
               max(delay) FILTER (WHERE status IN ('failed', 'failed_alone')) AS retry_after,
               max(delay) FILTER (WHERE status = 'release') AS release_delay
        FROM (SELECT item.*, CASE WHEN item."offset" IS NOT NULL THEN int8range(item."offset", item."offset" + 1) END
                     AS one
              FROM unnest(_apply_acks.leases, _apply_acks.partition_ids, _apply_acks.offsets, _apply_acks.statuses,
                          _apply_acks.errors, _apply_acks.delays)
                   WITH ORDINALITY AS item (lease, partition_id, "offset", status, error, delay, ord)) item
        WHERE item.lease IS NOT NULL AND skep._is_lease_of(item.lease, item.partition_id)
        GROUP BY item.lease ORDER BY item.lease
    LOOP
        IF acks.lease = done[next] THEN
            next := next + 1;
            FOREACH n IN ARRAY acks.ords LOOP live[n] := true; END LOOP;
            CONTINUE;
        END IF;
        SELECT * INTO run FROM skep._lock_lease(acks.lease);
        CONTINUE WHEN run.row_id IS NULL;
        FOR i IN 1 .. cardinality(acks.ords) LOOP
            live[acks.ords[i]] := coalesce(acks.offsets[i] >= (run.run).first_offset
                                           AND acks.offsets[i] < (run.run).leased_to, true);
        END LOOP;
        PERFORM skep._ack_lease(run.row_id, run.run, acks);
        IF (run.run).served_at < clock_timestamp() - interval '10 seconds' THEN
            PERFORM skep._record_activity((run.run).group_queue_id);
        END IF;
    END LOOP;
    RETURN QUERY SELECT item.n, item.applied FROM unnest(live) WITH ORDINALITY AS item (applied, n);
END $$;
