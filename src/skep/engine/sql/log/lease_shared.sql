-- Leases of partitions with concurrency > 1: without order, up to `concurrency` leases of one partition and group at
-- once, each of a disjoint run.
--
-- For each lease a closed run is split from the open run, which counts the closed runs that are leased. A closed run
-- that is returned waits in the ready list on its own. A closed run that is done is deleted. Lock order: the open run,
-- then the closed one.

-- Leases the next messages of one partition in one statement, which is the usual case: moves the open run and adds a
-- closed one. Returns NULL if the first run in the ready list is closed, or if its cuts or done offsets need more than
-- this.
CREATE FUNCTION skep._lease_from_open(g skep.group_state, batch integer) RETURNS skep.lease[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leases skep.lease[];
BEGIN
    WITH ready AS (
        SELECT r.ctid AS row_id, r.first_offset, ends.last + 1 AS leased_to FROM skep.runs r
        CROSS JOIN LATERAL (SELECT m."offset" AS last FROM skep.messages m
                            WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                              AND m."offset" < least(r.end_offset, r.first_offset + _lease_from_open.batch)
                              AND m.payload IS NOT NULL
                            ORDER BY m."offset" DESC LIMIT 1) ends
        WHERE r.list_id = g.list_id AND r.priority = g.priority AND r.ready_at >= g.ready_from AND r.ready_at <= g.stamp
          AND r.lease_id IS NULL AND NOT r.drained AND r.group_queue_id = g.id AND r.leases < g.concurrency
          AND ends.last >= r.first_offset
        ORDER BY r.ready_at LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED
    ), moved AS (
        UPDATE skep.runs r
        SET first_offset = ready.leased_to, leases = r.leases + 1, served_at = g.stamp,
            ready_at = CASE WHEN r.leases + 1 < g.concurrency THEN g.stamp ELSE g.deadline END
        FROM ready WHERE r.ctid = ready.row_id AND r.end_offset IS NULL AND r.cuts IS NULL AND r.done IS NULL
        RETURNING r.partition_id, r.list_id, r.priority, ready.first_offset, ready.leased_to
    ), leased AS (
        INSERT INTO skep.runs AS r (partition_id, group_queue_id, list_id, priority, first_offset, end_offset,
                                    lease_id, leased_to, expires_at, ready_at, served_at)
        SELECT m.partition_id, g.id, m.list_id, m.priority, m.first_offset, m.leased_to,
               skep._lease_id(m.partition_id, g.id, m.first_offset), m.leased_to, g.deadline, g.deadline, g.stamp
        FROM moved m
        RETURNING ROW(1, g.queue_id, g.queue, g.id, r.partition_id, r.first_offset, r.leased_to, r.lease_id,
                      g.deadline, 1, NULL)::skep.lease
                  AS lease
    )
    SELECT array_agg(lease) INTO leases FROM leased;
    RETURN leases;
END $$;

-- Completes leases of closed runs, as _ack_leases() does with open ones. The open runs are locked first, in a statement
-- of their own, so the next statement sees their current state. Another transaction may have locked an open run by a
-- pop or an ack, and stay open: then the ack fails after 5 seconds, and can be tried again.
CREATE FUNCTION skep._ack_closed(leases uuid[], completed int8multirange[]) RETURNS uuid[]
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    keys  record;
    acked uuid[];
    quiet integer[];  -- groups whose last pop was more than 10 seconds ago
BEGIN
    SELECT array_agg(l.lease) AS leases, array_agg(l.run) AS runs, array_agg(l.partition_id) AS partition_ids,
           array_agg(l.group_queue_id) AS group_queue_ids, array_agg(r.first_offset) AS first_offsets
    INTO keys
    FROM (SELECT lease, run, skep._partition_of_lease(lease) AS partition_id,
                 skep._group_queue_of_lease(lease) AS group_queue_id,
                 ('x' || substr(replace(lease::text, '-', ''), 15, 8))::bit(32)::bigint AS first_offset
          FROM unnest(_ack_closed.leases, completed) AS item (lease, run) ORDER BY lease) l
    CROSS JOIN LATERAL (SELECT r.first_offset, r.lease_id, r.end_offset FROM skep.runs r
                        WHERE r.partition_id = l.partition_id AND r.group_queue_id = l.group_queue_id
                          AND r.first_offset = l.first_offset
                        LIMIT 1) r
    CROSS JOIN LATERAL (SELECT FROM skep.runs o
                        WHERE o.partition_id = l.partition_id AND o.group_queue_id = l.group_queue_id
                                                  AND o.end_offset IS NULL
                        ORDER BY o.first_offset DESC LIMIT 1 FOR NO KEY UPDATE) open
    WHERE r.lease_id = l.lease AND r.end_offset IS NOT NULL;
    IF keys.leases IS NULL THEN
        RETURN '{}';
    END IF;
    WITH deleted AS (
        DELETE FROM skep.runs r
        USING unnest(keys.leases, keys.runs, keys.partition_ids, keys.group_queue_ids, keys.first_offsets)
              AS l (lease, run, partition_id, group_queue_id, first_offset)
        WHERE r.partition_id = ANY (ARRAY[l.partition_id]) AND r.group_queue_id = l.group_queue_id
          AND r.first_offset = l.first_offset
          AND r.lease_id IS NOT DISTINCT FROM l.lease AND r.expires_at > stamp AND r.end_offset = r.leased_to
          AND NOT r.is_logged
          AND r.failed IS NULL AND r.done IS NULL
          AND (l.run IS NULL OR l.run = int8multirange(int8range(r.first_offset, r.leased_to)))
        RETURNING l.lease, r.partition_id, r.group_queue_id, r.served_at
    ), freed AS (
        UPDATE skep.runs o
        SET leases = greatest(o.leases - deleted.number, 0), ready_at = skep._ready_time(o.served_at, stamp),
            drained = false
        FROM (SELECT partition_id, group_queue_id, count(*)::integer AS number FROM deleted GROUP BY 1, 2) deleted
        WHERE o.partition_id = ANY (ARRAY[deleted.partition_id]) AND o.group_queue_id = deleted.group_queue_id
          AND o.end_offset IS NULL
    )
    SELECT array_agg(lease ORDER BY lease),
           array_agg(DISTINCT group_queue_id) FILTER (WHERE served_at < stamp - interval '10 seconds')
    INTO acked, quiet FROM deleted;
    IF quiet IS NOT NULL THEN
        PERFORM skep._record_activity(one.id) FROM unnest(quiet) AS one (id);
    END IF;
    RETURN coalesce(acked, '{}');
END $$;

-- Returns the runs that can be leased, locked: open ones with messages and closed ones that were returned, if their
-- partition has room for another lease. Runs of `visited` partitions are left out.
CREATE FUNCTION skep._shared_candidates(
    g skep.group_state, partition_ids bigint[], visited bigint[], max_rows integer, most bigint, stamp timestamptz
)
RETURNS TABLE (row_id tid, run skep.runs, ends bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF partition_ids IS NOT NULL THEN
        RETURN QUERY
        SELECT r.ctid, r, last."offset" + 1 FROM skep.runs r
        CROSS JOIN LATERAL (SELECT m."offset" FROM skep.messages m
                            WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                               AND m."offset" < least(r.end_offset, r.first_offset + most) AND m.payload IS NOT NULL
                               AND m.created_at <= g.visible_until
                            ORDER BY m."offset" DESC LIMIT 1) last
        WHERE r.partition_id = ANY (partition_ids) AND r.group_queue_id = g.id AND last."offset" >= r.first_offset
          AND r.lease_id IS NULL AND coalesce(r.ready_at, stamp) <= stamp AND r.partition_id <> ALL (visited)
          AND skep._has_room(r, g.concurrency)
          AND (g.quiet_since IS NULL OR skep._is_quiet(r.partition_id, g.quiet_since))
        ORDER BY r.first_offset LIMIT max_rows FOR NO KEY UPDATE OF r SKIP LOCKED;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT r.ctid, r, last."offset" + 1 FROM skep.runs r
    CROSS JOIN LATERAL (SELECT m."offset" FROM skep.messages m
                        WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                           AND m."offset" < least(r.end_offset, r.first_offset + most) AND m.payload IS NOT NULL
                           AND m.created_at <= g.visible_until
                        ORDER BY m."offset" DESC LIMIT 1) last
    WHERE r.list_id = g.list_id AND r.priority = g.priority AND r.ready_at >= g.ready_from AND r.ready_at <= stamp
      AND r.lease_id IS NULL
      AND NOT r.drained AND r.group_queue_id = g.id AND last."offset" >= r.first_offset
      AND r.partition_id <> ALL (visited)
      AND skep._has_room(r, g.concurrency)
      AND (g.quiet_since IS NULL OR skep._is_quiet(r.partition_id, g.quiet_since))
    ORDER BY r.ready_at LIMIT max_rows FOR NO KEY UPDATE OF r SKIP LOCKED;
END $$;

-- Returns true if the partition of a run has room for another lease. If the concurrency of a queue was lowered to 1,
-- its order is strict again: only the lowest run can be leased.
CREATE FUNCTION skep._has_room(run skep.runs, concurrency integer) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT r.leases < concurrency FROM skep.runs r
            WHERE r.partition_id = run.partition_id AND r.group_queue_id = run.group_queue_id AND r.end_offset IS NULL
            ORDER BY r.first_offset DESC LIMIT 1)
       AND (concurrency > 1 OR NOT EXISTS (
            SELECT FROM skep.runs r WHERE r.partition_id = run.partition_id AND r.group_queue_id = run.group_queue_id
                                      AND r.first_offset < run.first_offset));
END $$;

-- Leases runs of shared partitions, one lease for each request. partition_ids: the partition of each slot, or NULL for
-- any.
CREATE FUNCTION skep._lease_shared(
    g skep.group_state, partition_ids bigint[], requests integer[], sizes integer[], conflate boolean, visited bigint[]
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    next    record;
    slot    record;
    open    record;
    leases  skep.lease[] := '{}';
    given   skep.lease[];
    is_used boolean;  -- a candidate gave nothing
BEGIN
    SELECT _lease_shared.requests, _lease_shared.sizes INTO open;
    LOOP  -- again, as long as the candidates give nothing, because they are done or their open run is locked
        is_used := false;
        FOR next IN SELECT * FROM skep._shared_candidates(g, partition_ids, visited, cardinality(sizes),
                                                          (SELECT sum(size) FROM unnest(sizes) AS size), g.stamp) LOOP
            CONTINUE WHEN (next.run).partition_id = ANY (visited);  -- its open run was changed in this loop: next time
            SELECT array_agg(s.request ORDER BY s.n) AS requests, array_agg(s.size ORDER BY s.n) AS sizes INTO slot
            FROM (SELECT DISTINCT ON (s.request) s.* FROM unnest(open.requests, open.sizes, partition_ids)
                  WITH ORDINALITY AS s (request, size, wanted, n)
                  WHERE s.request IS NOT NULL AND (partition_ids IS NULL OR s.wanted = (next.run).partition_id)
                    AND NOT EXISTS (SELECT FROM unnest(leases) l
                                    WHERE partition_ids IS NOT NULL AND l.request = s.request)
                  ORDER BY s.request, s.n) s;
            CONTINUE WHEN slot.requests IS NULL;
            given := CASE WHEN (next.run).end_offset IS NULL THEN
                         skep._split_open_run(g, next.row_id, next.run, next.ends, slot.requests, slot.sizes, conflate,
                                              g.stamp, g.deadline)
                         ELSE skep._lease_returned_run(g, next.row_id, next.run, next.ends, slot.requests[1],
                                                       slot.sizes[1], conflate, g.stamp, g.deadline) END;
            is_used := is_used OR given IS NULL OR given = '{}';
            CONTINUE WHEN given IS NULL;
            visited := visited || (next.run).partition_id;
            leases := leases || given;
            IF partition_ids IS NULL THEN
                open := skep._slots_left(open.requests, open.sizes, given);
                EXIT WHEN open.requests = '{}';
            END IF;
        END LOOP;
        EXIT WHEN NOT is_used OR leases <> '{}';
    END LOOP;
    RETURN leases;
END $$;

-- Returns the offset of the first message before `ends` that a run still has to deliver, or `ends` if there is none.
-- A lease starts at that offset, so it is never empty.
CREATE FUNCTION skep._first_message(r skep.runs, ends bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT m."offset" FROM skep.messages m
                     WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset AND m."offset" < ends
                       AND m.payload IS NOT NULL AND (r.done IS NULL OR NOT r.done @> m."offset")
                     ORDER BY m."offset" LIMIT 1), ends);
END $$;

-- Splits closed runs from an open run and leases them, one for each slot, as far as its messages and the concurrency
-- allow.
CREATE FUNCTION skep._split_open_run(
    g skep.group_state, row_id tid, open skep.runs, ends bigint, requests integer[], sizes integer[], conflate boolean,
    stamp timestamptz, deadline timestamptz
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    leases skep.lease[] := '{}';
    given  skep.lease;
    slot   integer := 1;
BEGIN
    LOOP
        open := skep._move_run(open, skep._first_message(open, ends));
        EXIT WHEN slot > cardinality(sizes) OR open.leases >= g.concurrency OR open.first_offset >= ends;
        given := ROW(requests[slot], g.queue_id, g.queue, g.id, open.partition_id, open.first_offset,
                     least(ends, open.first_offset + sizes[slot], open.cuts[1]), NULL, deadline,
                     coalesce(open.attempts[1], 1), NULL)::skep.lease;
        given.first_offset := CASE WHEN conflate THEN given.leased_to - 1 ELSE given.first_offset END;
        given.lease_id := skep._lease_id(open.partition_id, g.id, given.first_offset);
        given.done := nullif(open.done * int8multirange(int8range(given.first_offset, given.leased_to)), '{}');
        leases := leases || given;
        open := skep._move_run(open, given.leased_to);
        open.leases := open.leases + 1;
        slot := slot + 1;
    END LOOP;
    UPDATE skep.runs r
    SET first_offset = open.first_offset, leases = open.leases, cuts = open.cuts, attempts = open.attempts,
        done = open.done, served_at = stamp,
        ready_at = CASE WHEN open.leases < g.concurrency THEN stamp ELSE deadline END, drained = false
    WHERE r.ctid = row_id;
    INSERT INTO skep.runs (partition_id, group_queue_id, list_id, priority, first_offset, end_offset, lease_id,
                           leased_to, expires_at, ready_at, served_at, is_logged, done, cuts, attempts)
    SELECT l.partition_id, g.id, open.list_id, open.priority, l.first_offset, l.leased_to, l.lease_id, l.leased_to,
           deadline, deadline, stamp, g.is_logged, l.done,
           CASE WHEN l.attempt > 1 THEN ARRAY[l.leased_to] END, CASE WHEN l.attempt > 1 THEN ARRAY[l.attempt] END
    FROM unnest(leases) l;
    RETURN leases;
END $$;

-- Leases a returned run, if its partition still has room, which is certain only after its open run is locked. Returns
-- NULL and deletes the run if nothing is left of it.
CREATE FUNCTION skep._lease_returned_run(
    g skep.group_state, row_id tid, closed skep.runs, ends bigint, request integer, size integer, conflate boolean,
    stamp timestamptz, deadline timestamptz
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    open_row tid;
    given    skep.lease;
    rest     skep.runs;
BEGIN
    SELECT r.ctid INTO open_row FROM skep.runs r
    WHERE r.partition_id = closed.partition_id AND r.group_queue_id = g.id AND r.end_offset IS NULL
      AND r.leases < g.concurrency
    ORDER BY r.first_offset DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    closed := skep._move_run(closed, skep._first_message(closed, closed.end_offset));
    IF closed.first_offset >= closed.end_offset THEN  -- its messages were completed or deleted meanwhile
        DELETE FROM skep.runs r WHERE r.ctid = row_id;
        RETURN NULL;
    END IF;
    ends := greatest(ends, closed.first_offset + 1);
    UPDATE skep.runs r SET leases = r.leases + 1 WHERE r.ctid = open_row;
    given := ROW(request, g.queue_id, g.queue, g.id, closed.partition_id, closed.first_offset,
                 least(ends, closed.first_offset + size, closed.cuts[1]), NULL, deadline,
                 coalesce(closed.attempts[1], 1), closed.done)::skep.lease;
    given.first_offset := CASE WHEN conflate THEN given.leased_to - 1 ELSE given.first_offset END;
    given.lease_id := skep._lease_id(closed.partition_id, g.id, given.first_offset);
    UPDATE skep.runs r
    SET lease_id = given.lease_id, first_offset = given.first_offset, leased_to = given.leased_to,
        expires_at = deadline, ready_at = deadline, served_at = stamp, is_logged = g.is_logged,
        end_offset = given.leased_to,
        cuts = CASE WHEN r.cuts IS NOT NULL THEN ARRAY[given.leased_to] END, attempts = CASE
            WHEN r.cuts IS NOT NULL THEN r.attempts[:1] END,
            done = nullif(r.done * int8multirange(int8range(given.first_offset, given.leased_to)), '{}')
    WHERE r.ctid = row_id;
    IF given.leased_to < closed.end_offset THEN  -- the rest becomes another run, which another consumer may lease
        rest := skep._move_run(closed, given.leased_to);
        INSERT INTO skep.runs (partition_id, group_queue_id, list_id, priority, first_offset, end_offset, ready_at,
                               served_at, done, cuts, attempts)
        SELECT rest.partition_id, rest.group_queue_id, rest.list_id, rest.priority, rest.first_offset, rest.end_offset,
               stamp, rest.served_at, rest.done, rest.cuts, rest.attempts
        WHERE rest.first_offset < rest.end_offset;
    END IF;
    RETURN ARRAY[given];
END $$;

-- Counts one lease less in the open run of a shared partition. The caller has locked the open run.
CREATE FUNCTION skep._decrement_leases(partition_id bigint, group_queue_id integer, stamp timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE skep.runs r SET leases = greatest(r.leases - 1, 0), ready_at = skep._ready_time(r.served_at, stamp),
        drained = false
    FROM (SELECT o.ctid AS row_id FROM skep.runs o
          WHERE o.partition_id = _decrement_leases.partition_id AND o.group_queue_id = _decrement_leases.group_queue_id
            AND o.end_offset IS NULL
          ORDER BY o.first_offset DESC LIMIT 1) open
    WHERE r.ctid = open.row_id;
END $$;

-- Turns the leased runs of a queue into closed runs, because its concurrency was raised above 1. Each gets a new open
-- run after it.
CREATE FUNCTION skep._close_leased_runs(queue_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    leased record;
BEGIN
    FOR leased IN
        SELECT r.ctid AS row_id, r AS run, skep._move_run(r, r.leased_to) AS rest
        FROM skep.group_queues g JOIN skep.runs r ON r.list_id = g.list_id AND r.group_queue_id = g.id
            AND r.lease_id IS NOT NULL AND r.end_offset IS NULL
        WHERE g.queue_id = _close_leased_runs.queue_id ORDER BY r.partition_id, r.group_queue_id FOR NO KEY UPDATE OF r
    LOOP
        UPDATE skep.runs r
        SET end_offset = r.leased_to,
            done = nullif(r.done * int8multirange(int8range(r.first_offset, r.leased_to)), '{}'),
            cuts = CASE WHEN r.cuts IS NOT NULL THEN ARRAY[r.leased_to] END,
            attempts = CASE WHEN r.cuts IS NOT NULL THEN r.attempts[:1] END
        WHERE r.ctid = leased.row_id;
        INSERT INTO skep.runs (partition_id, group_queue_id, list_id, priority, first_offset, ready_at, served_at,
                               leases, cuts, attempts, done)
        SELECT n.partition_id, n.group_queue_id, n.list_id, n.priority, n.first_offset, clock_timestamp(), n.served_at,
               1, n.cuts, n.attempts, n.done
        FROM (SELECT (leased.rest).*) n;
    END LOOP;
END $$;
