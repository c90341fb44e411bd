-- The other work of discovery on its lists: expired leases, drained runs, deleted messages, a clock that was set back.

-- Ends expired leases with their verdict, and moves extended leases to their new deadline. Returns how many have ended.
-- The open run of a shared partition is locked first, here and not in _end_lease(), so that leases whose open run is
-- locked by others do not count for max_rows. In other partitions the leased run is the open one.
-- is_held, here and below: the transaction of the caller stays open. Then an extended lease is left alone, because its
-- ack would wait for the caller.
CREATE FUNCTION skep._expire_leases(
    list integer, after timestamptz, max_rows integer, stamp timestamptz, is_held boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    late  record;
    ended bigint := 0;
BEGIN
    FOR late IN
        SELECT expired.* FROM (
            SELECT r.ctid AS row_id, r AS run, r.ready_at, r.expires_at > stamp AS is_extended FROM skep.runs r
            CROSS JOIN LATERAL (SELECT o.ctid AS row_id FROM skep.runs o
                                WHERE o.partition_id = r.partition_id AND o.group_queue_id = r.group_queue_id
                                  AND o.end_offset IS NULL
                                ORDER BY o.first_offset DESC LIMIT 1) last
            JOIN skep.runs open ON open.ctid = last.row_id
            WHERE r.list_id = list AND r.ready_at >= after AND r.ready_at <= stamp AND r.lease_id IS NOT NULL
              AND (NOT is_held OR r.expires_at <= stamp)
            ORDER BY r.ready_at LIMIT max_rows FOR NO KEY UPDATE OF open, r SKIP LOCKED
        ) expired ORDER BY expired.ready_at  -- sorted, so that all are locked before the loop changes an open run
    LOOP
        IF late.is_extended THEN
            UPDATE skep.runs r SET ready_at = r.expires_at WHERE r.ctid = late.row_id;
        ELSIF skep._end_lease(late.row_id, late.run, 'expired') THEN
            ended := ended + 1;
        END IF;
    END LOOP;
    RETURN ended;
END $$;

-- Decides about at most max_rows probably drained runs: those with messages become ready, the others become drained,
-- unless is_held: a push would find them locked. Returns how many are ready. The caller saves a snapshot that is older
-- than this.
CREATE FUNCTION skep._recheck_drained_runs(
    list integer, after timestamptz, max_rows integer, is_held boolean, stamp timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    ready bigint;
BEGIN
    WITH suspect AS (
        SELECT r.ctid AS row_id, EXISTS (SELECT FROM skep.messages m
                                         WHERE m.partition_id = r.partition_id
                                           AND m."offset" >= r.first_offset) AS has_more
        FROM skep.runs r
        WHERE r.list_id = list AND r.ready_at >= after AND r.ready_at IS NOT NULL AND r.lease_id IS NULL AND r.drained
          AND (NOT is_held OR EXISTS (SELECT FROM skep.messages m
                                      WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset))
        ORDER BY r.ready_at LIMIT max_rows FOR NO KEY UPDATE OF r SKIP LOCKED
    ), decided AS (
        UPDATE skep.runs r SET drained = false, ready_at = CASE
            WHEN s.has_more THEN skep._ready_time(r.served_at, stamp) END
        FROM suspect s WHERE r.ctid = s.row_id RETURNING s.has_more
    )
    SELECT count(*) FILTER (WHERE has_more) INTO ready FROM decided;
    RETURN ready;
END $$;

-- Moves runs at the front of the ready list that cannot be leased: past deleted messages; to the time when their next
-- message is due; and, if is_saving, out of the list if they are drained. In that case the caller saves a snapshot that
-- is older than this. If is_held, it moves only runs that can be leased then. Returns how many are ready.
CREATE FUNCTION skep._clean_ready_list(
    list integer, priority integer, after timestamptz, max_rows integer, is_saving boolean, is_held boolean,
    stamp timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    front record;
    ready bigint := 0;
BEGIN
    FOR front IN
        SELECT r.ctid AS row_id, r AS run, alive."offset" AS alive_at, head.next_offset, due.at AS due_at
        FROM (SELECT r.ctid AS row_id, r.partition_id, r.group_queue_id, r.first_offset, r.end_offset FROM skep.runs r
              WHERE r.list_id = list AND r.priority = _clean_ready_list.priority AND r.ready_at >= after
                AND r.ready_at <= stamp
                AND r.ready_at IS NOT NULL AND r.lease_id IS NULL AND NOT r.drained
              ORDER BY r.ready_at LIMIT CASE WHEN is_held THEN 64 ELSE max_rows END) at_front
        CROSS JOIN LATERAL skep._head_of(at_front.partition_id) head
        CROSS JOIN LATERAL (SELECT q.delayed_processing, q.window_buffer FROM skep.group_queues g
                            JOIN skep.queues q ON q.id = g.queue_id
                            WHERE g.id = at_front.group_queue_id LIMIT 1) q
        LEFT JOIN LATERAL (SELECT m."offset" FROM skep.messages m
                           WHERE m.partition_id = at_front.partition_id AND m."offset" >= at_front.first_offset
                              AND m."offset" < coalesce(at_front.end_offset, 9223372036854775807)
                              AND m.payload IS NOT NULL ORDER BY m."offset" LIMIT 1) alive ON true
        CROSS JOIN LATERAL (SELECT skep._due_at(at_front.partition_id, at_front.first_offset, q.delayed_processing,
                                                q.window_buffer) AS at) due
        JOIN skep.runs r ON r.ctid = at_front.row_id
        WHERE r.lease_id IS NULL AND r.first_offset = at_front.first_offset
          AND CASE WHEN is_held THEN alive."offset" > at_front.first_offset AND (due.at > stamp) IS NOT TRUE
                   WHEN head.next_offset <= at_front.first_offset THEN is_saving
                   ELSE alive."offset" IS DISTINCT FROM at_front.first_offset OR due.at > stamp
                       AND r.attempts IS NULL END
        LIMIT max_rows FOR NO KEY UPDATE OF r SKIP LOCKED
    LOOP
        IF front.alive_at IS DISTINCT FROM (front.run).first_offset THEN  -- deleted, or no message
            front.run := skep._move_run(front.run, coalesce(front.alive_at, (front.run).end_offset, front.next_offset));
            IF (front.run).end_offset <= (front.run).first_offset THEN  -- a returned run of a shared partition
                DELETE FROM skep.runs r WHERE r.ctid = front.row_id;
                CONTINUE;
            END IF;
            UPDATE skep.runs r
            SET first_offset = (front.run).first_offset, cuts = (front.run).cuts, attempts = (front.run).attempts,
                done = (front.run).done,
                ready_at = CASE WHEN front.alive_at IS NOT NULL OR NOT is_saving THEN r.ready_at END
            WHERE r.ctid = front.row_id;
            ready := ready + (front.alive_at IS NOT NULL)::integer;
        ELSE
            UPDATE skep.runs r SET ready_at = front.due_at WHERE r.ctid = front.row_id;
        END IF;
    END LOOP;
    RETURN ready;
END $$;

-- Returns a run that begins at this offset or, if that is done, at the next one that is not. Attempts and done offsets
-- below it are dropped.
CREATE FUNCTION skep._move_run(r skep.runs, to_offset bigint) RETURNS skep.runs
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    r.first_offset := CASE WHEN r.done IS NULL THEN to_offset ELSE skep._first_undone(to_offset, r.done) END;
    WHILE r.cuts[1] <= r.first_offset LOOP
        r.cuts := nullif(r.cuts[2:], '{}');
        r.attempts := nullif(r.attempts[2:], '{}');
    END LOOP;
    r.done := nullif(r.done * int8multirange(int8range(r.first_offset, NULL)), '{}');
    RETURN r;
END $$;

-- Returns the first offset at or after this one that is not done.
CREATE FUNCTION skep._first_undone("offset" bigint, done int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce((SELECT upper(range) FROM unnest($2) AS range WHERE range @> $1), $1) $$;

-- Corrects the times of runs after the clock was set back: otherwise they would wait for leases and retries until it
-- has caught up. The difference is known from the time when each run was last served, which is in the future.
CREATE FUNCTION skep._correct_future_times(list integer, stamp timestamptz) RETURNS void
LANGUAGE sql AS $$
    UPDATE skep.runs r
    SET ready_at = CASE WHEN r.lease_id IS NULL
        AND r.attempts IS NULL THEN least(r.ready_at, $2) ELSE r.ready_at - ahead.by END,
        expires_at = r.expires_at - ahead.by, served_at = least(r.served_at, $2)
    FROM (SELECT r.ctid AS row_id, greatest(r.served_at - $2, '0 seconds') AS by FROM skep.runs r
          WHERE r.list_id = $1 AND (r.ready_at > $2 OR r.served_at > $2)
          FOR NO KEY UPDATE SKIP LOCKED) ahead
    WHERE r.ctid = ahead.row_id
$$;
