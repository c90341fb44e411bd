-- Leases of partitions with concurrency > 1: no order, up to `concurrency` leases of one partition and group at once, each a disjoint run.
--
-- The open run gives closed runs away, one for each lease, and counts those that are leased. A closed run that is returned waits in the ready
-- list by itself. A closed run that is done is deleted. Lock order: the open run, then the closed one.

-- Runs that can be leased: open ones with messages, closed ones that were returned; both only if their partition has room for a lease.
CREATE FUNCTION skep._shared_candidates(g skep.group_state, partition_ids bigint[], max_rows integer, most bigint, stamp timestamptz)
RETURNS TABLE (row_id tid, run skep.runs, ends bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF partition_ids IS NOT NULL THEN
        RETURN QUERY
        SELECT r.ctid, r, last."offset" + 1 FROM skep.runs r
        CROSS JOIN LATERAL (SELECT m."offset" FROM skep.messages m WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                               AND m."offset" < least(r.end_offset, r.first_offset + most) AND m.payload IS NOT NULL AND m.created_at <= g.visible_until
                            ORDER BY m."offset" DESC LIMIT 1) last
        WHERE r.partition_id = ANY (partition_ids) AND r.group_queue_id = g.id AND last."offset" >= r.first_offset AND r.lease_id IS NULL AND coalesce(r.ready_at, stamp) <= stamp
          AND skep._has_room(r, g.concurrency)
          AND (g.quiet_since IS NULL OR skep._is_quiet(r.partition_id, g.quiet_since))
        ORDER BY r.first_offset LIMIT max_rows FOR NO KEY UPDATE OF r SKIP LOCKED;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT r.ctid, r, last."offset" + 1 FROM skep.runs r
    CROSS JOIN LATERAL (SELECT m."offset" FROM skep.messages m WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset
                           AND m."offset" < least(r.end_offset, r.first_offset + most) AND m.payload IS NOT NULL AND m.created_at <= g.visible_until
                        ORDER BY m."offset" DESC LIMIT 1) last
    WHERE r.list_id = g.list_id AND r.priority = g.priority AND r.ready_at >= g.ready_from AND r.ready_at <= stamp AND r.lease_id IS NULL
      AND NOT r.drained AND r.group_queue_id = g.id AND last."offset" >= r.first_offset AND skep._has_room(r, g.concurrency)
      AND (g.quiet_since IS NULL OR skep._is_quiet(r.partition_id, g.quiet_since))
    ORDER BY r.ready_at LIMIT max_rows FOR NO KEY UPDATE OF r SKIP LOCKED;
END $$;

-- Returns true if the partition of a run has room for a lease. A queue whose concurrency was lowered to 1 is in order again: only the lowest
-- run can be leased.
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

-- Leases for requests, one lease of a partition for each. partition_ids: the partition that each slot wants, or NULL for any.
CREATE FUNCTION skep._lease_shared(
    g skep.group_state, partition_ids bigint[], requests integer[], sizes integer[], conflate boolean, visited bigint[]
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    next    record;
    slot    record;
    open    record;
    leases  skep.lease[] := '{}';
    given   skep.lease[];
BEGIN
    SELECT _lease_shared.requests, _lease_shared.sizes INTO open;
    FOR next IN SELECT * FROM skep._shared_candidates(g, partition_ids, cardinality(sizes), (SELECT sum(size) FROM unnest(sizes) AS size), g.stamp) LOOP
        CONTINUE WHEN (next.run).partition_id = ANY (visited);  -- its open run was changed in this loop: next time
        SELECT array_agg(s.request ORDER BY s.n) AS requests, array_agg(s.size ORDER BY s.n) AS sizes INTO slot
        FROM (SELECT DISTINCT ON (s.request) s.* FROM unnest(open.requests, open.sizes, partition_ids) WITH ORDINALITY AS s (request, size, wanted, n)
              WHERE s.request IS NOT NULL AND (partition_ids IS NULL OR s.wanted = (next.run).partition_id)
                AND NOT EXISTS (SELECT FROM unnest(leases) l WHERE partition_ids IS NOT NULL AND l.request = s.request)
              ORDER BY s.request, s.n) s;
        CONTINUE WHEN slot.requests IS NULL;
        given := CASE WHEN (next.run).end_offset IS NULL THEN
                     skep._give_runs(g, next.row_id, next.run, next.ends, slot.requests, slot.sizes, conflate, g.stamp, g.deadline)
                     ELSE skep._lease_closed(g, next.row_id, next.run, next.ends, slot.requests[1], slot.sizes[1], conflate, g.stamp, g.deadline) END;
        visited := visited || (next.run).partition_id;
        leases := leases || given;
        IF partition_ids IS NULL THEN
            open := skep._slots_left(open.requests, open.sizes, given);
            EXIT WHEN open.requests = '{}';
        END IF;
    END LOOP;
    RETURN leases;
END $$;

-- Gives runs away from an open run, one for each slot, as far as its messages and the concurrency go.
CREATE FUNCTION skep._give_runs(
    g skep.group_state, row_id tid, open skep.runs, ends bigint, requests integer[], sizes integer[], conflate boolean, stamp timestamptz, deadline timestamptz
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    leases skep.lease[] := '{}';
    given  skep.lease;
    slot   integer := 1;
BEGIN
    WHILE slot <= cardinality(sizes) AND open.leases < g.concurrency AND open.first_offset < ends LOOP
        given := ROW(requests[slot], g.queue_id, g.queue, g.id, open.partition_id, open.first_offset,
                     least(ends, open.first_offset + sizes[slot], open.cuts[1]), NULL, deadline, coalesce(open.attempts[1], 1), NULL)::skep.lease;
        given.first_offset := CASE WHEN conflate THEN given.leased_to - 1 ELSE given.first_offset END;
        given.lease_id := skep._lease_id(open.partition_id, g.id, given.first_offset);
        given.done := nullif(open.done * int8multirange(int8range(given.first_offset, given.leased_to)), '{}');
        leases := leases || given;
        open := skep._move_run(open, given.leased_to);
        open.leases := open.leases + 1;
        slot := slot + 1;
    END LOOP;
    UPDATE skep.runs r
    SET first_offset = open.first_offset, leases = open.leases, cuts = open.cuts, attempts = open.attempts, done = open.done, served_at = stamp,
        ready_at = CASE WHEN open.leases < g.concurrency THEN stamp ELSE deadline END, drained = false
    WHERE r.ctid = row_id;
    INSERT INTO skep.runs (partition_id, group_queue_id, list_id, priority, first_offset, end_offset, lease_id, leased_to, expires_at, ready_at,
                           served_at, is_logged, done, cuts, attempts)
    SELECT l.partition_id, g.id, open.list_id, open.priority, l.first_offset, l.leased_to, l.lease_id, l.leased_to, deadline, deadline, stamp,
           g.is_logged, l.done,
           CASE WHEN l.attempt > 1 THEN ARRAY[l.leased_to] END, CASE WHEN l.attempt > 1 THEN ARRAY[l.attempt] END
    FROM unnest(leases) l;
    RETURN leases;
END $$;

-- Leases a returned run again, if its partition still has room: its open run must be locked before it counts.
CREATE FUNCTION skep._lease_closed(
    g skep.group_state, row_id tid, closed skep.runs, ends bigint, request integer, size integer, conflate boolean, stamp timestamptz, deadline timestamptz
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    open_row tid;
    given    skep.lease;
    rest     skep.runs;
BEGIN
    SELECT r.ctid INTO open_row FROM skep.runs r
    WHERE r.partition_id = closed.partition_id AND r.group_queue_id = g.id AND r.end_offset IS NULL AND r.leases < g.concurrency
    ORDER BY r.first_offset DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    UPDATE skep.runs r SET leases = r.leases + 1 WHERE r.ctid = open_row;
    given := ROW(request, g.queue_id, g.queue, g.id, closed.partition_id, closed.first_offset, least(ends, closed.first_offset + size, closed.cuts[1]),
                 NULL, deadline, coalesce(closed.attempts[1], 1), closed.done)::skep.lease;
    given.first_offset := CASE WHEN conflate THEN given.leased_to - 1 ELSE given.first_offset END;
    given.lease_id := skep._lease_id(closed.partition_id, g.id, given.first_offset);
    UPDATE skep.runs r
    SET lease_id = given.lease_id, first_offset = given.first_offset, leased_to = given.leased_to, expires_at = deadline, ready_at = deadline,
        served_at = stamp, is_logged = g.is_logged, end_offset = given.leased_to,
        cuts = CASE WHEN r.cuts IS NOT NULL THEN ARRAY[given.leased_to] END, attempts = CASE WHEN r.cuts IS NOT NULL THEN r.attempts[:1] END,
        done = nullif(r.done * int8multirange(int8range(given.first_offset, given.leased_to)), '{}')
    WHERE r.ctid = row_id;
    IF given.leased_to < closed.end_offset THEN  -- the rest is a run of its own, which another may lease
        rest := skep._move_run(closed, given.leased_to);
        INSERT INTO skep.runs (partition_id, group_queue_id, list_id, priority, first_offset, end_offset, ready_at, served_at, done, cuts, attempts)
        SELECT rest.partition_id, rest.group_queue_id, rest.list_id, rest.priority, rest.first_offset, rest.end_offset, stamp, rest.served_at,
               rest.done, rest.cuts, rest.attempts
        WHERE rest.first_offset < rest.end_offset;
    END IF;
    RETURN ARRAY[given];
END $$;

-- A lease of a shared partition has ended: its open run has room again. The caller has locked the open run.
CREATE FUNCTION skep._give_back(partition_id bigint, group_queue_id integer, stamp timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE skep.runs r SET leases = greatest(r.leases - 1, 0), ready_at = skep._ready_place(r.served_at, stamp), drained = false
    FROM (SELECT o.ctid AS row_id FROM skep.runs o
          WHERE o.partition_id = _give_back.partition_id AND o.group_queue_id = _give_back.group_queue_id AND o.end_offset IS NULL
          ORDER BY o.first_offset DESC LIMIT 1) open
    WHERE r.ctid = open.row_id;
END $$;

-- The concurrency of a queue is raised above 1: runs that are leased in strict order become closed runs of an open one.
CREATE FUNCTION skep._share_runs(queue_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    leased record;
BEGIN
    FOR leased IN
        SELECT r.ctid AS row_id, r AS run, skep._move_run(r, r.leased_to) AS rest
        FROM skep.group_queues g JOIN skep.runs r ON r.list_id = g.list_id AND r.group_queue_id = g.id AND r.lease_id IS NOT NULL AND r.end_offset IS NULL
        WHERE g.queue_id = _share_runs.queue_id ORDER BY r.partition_id, r.group_queue_id FOR NO KEY UPDATE OF r
    LOOP
        UPDATE skep.runs r
        SET end_offset = r.leased_to, done = nullif(r.done * int8multirange(int8range(r.first_offset, r.leased_to)), '{}'),
            cuts = CASE WHEN r.cuts IS NOT NULL THEN ARRAY[r.leased_to] END, attempts = CASE WHEN r.cuts IS NOT NULL THEN r.attempts[:1] END
        WHERE r.ctid = leased.row_id;
        INSERT INTO skep.runs (partition_id, group_queue_id, list_id, priority, first_offset, ready_at, served_at, leases, cuts, attempts, done)
        SELECT n.partition_id, n.group_queue_id, n.list_id, n.priority, n.first_offset, clock_timestamp(), n.served_at, 1, n.cuts, n.attempts, n.done
        FROM (SELECT (leased.rest).*) n;
    END LOOP;
END $$;
