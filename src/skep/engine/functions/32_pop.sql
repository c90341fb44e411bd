-- pop: lease the next run of the lanes that have waited longest.

-- The lanes to serve, locked: at the front of the line and with something ready; priority between queues comes first.
-- Two steps, because locking inside the first would lock lanes of every queue. Rows locked by others are being served: skipped,
-- which is why there are more candidates than wanted. locked_reader/locked_lane: a candidate, if all of them were locked.
CREATE FUNCTION skep.choose_lanes(readers integer[], wanted integer, OUT reader_ids integer[], OUT lane_ids bigint[],
                                  OUT locked_reader integer, OUT locked_lane bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    WITH candidate AS MATERIALIZED (
        SELECT c.reader_id, c.partition_id, c.ready_at, c.next_offset, q.priority
        FROM unnest(readers) AS id
        JOIN skep.readers r ON r.id = id.id
        JOIN skep.queues q ON q.id = r.queue_id
        CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = r.id ORDER BY k.generation DESC LIMIT 1) look
        CROSS JOIN LATERAL (
            SELECT c.reader_id, c.partition_id, c.ready_at, c.next_offset
            FROM skep.cursors c
            CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = c.partition_id ORDER BY l.generation DESC LIMIT 1) l
            WHERE c.reader_id = r.id AND c.ready_at >= look.line_start AND c.ready_at <= stamp AND c.leased < q.concurrency
              AND (c.returned > 0 AND CASE WHEN q.concurrency = 1 THEN skep.first_retry(c) <= stamp ELSE EXISTS (
                       SELECT FROM skep.leases s WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id AND s.first_offset >= c.cursor
                                                   AND s.token IS NULL AND s.retry_at <= stamp) END
                   OR (c.returned = 0 OR q.concurrency > 1) AND c.next_offset <= l.last_offset
                      AND (q.window_buffer = 0 OR l.last_created_at <= stamp - skep.seconds(q.window_buffer))
                      AND (q.delayed_processing = 0 OR EXISTS (
                           SELECT FROM skep.messages m WHERE m.partition_id = c.partition_id AND m."offset" = c.next_offset
                                                         AND m.created_at <= stamp - skep.seconds(q.delayed_processing))))
            ORDER BY c.ready_at, c.partition_id
            LIMIT wanted + 16
        ) c
        ORDER BY q.priority DESC, c.ready_at, c.partition_id
        LIMIT wanted + 16
    )
    SELECT array_agg(chosen.reader_id), array_agg(chosen.partition_id),
           (SELECT reader_id FROM candidate LIMIT 1), (SELECT partition_id FROM candidate LIMIT 1)
    INTO reader_ids, lane_ids, locked_reader, locked_lane
    FROM (
        SELECT c.reader_id, c.partition_id
        FROM candidate
        CROSS JOIN LATERAL (
            SELECT c.reader_id, c.partition_id FROM skep.cursors c
            WHERE c.partition_id = candidate.partition_id AND c.reader_id = candidate.reader_id AND c.next_offset >= candidate.next_offset
            FOR NO KEY UPDATE SKIP LOCKED
        ) c
        LIMIT wanted
    ) chosen;
END $$;

-- One lane: met now if it was not, and locked.
CREATE FUNCTION skep.choose_lane(reader integer, lane bigint, OUT reader_ids integer[], OUT lane_ids bigint[],
                                 OUT locked_reader integer, OUT locked_lane bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT ARRAY[c.reader_id], ARRAY[c.partition_id] INTO reader_ids, lane_ids
    FROM (SELECT c.next_offset FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader
          ORDER BY c.next_offset DESC LIMIT 1) met
    CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader AND c.next_offset >= met.next_offset
                        FOR NO KEY UPDATE SKIP LOCKED) c;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT c.reader_id, c.partition_id INTO locked_reader, locked_lane
    FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader ORDER BY c.next_offset DESC LIMIT 1;
    IF NOT FOUND THEN
        IF NOT pg_try_advisory_xact_lock(x'736b6570'::integer, reader) THEN
            locked_reader := reader;  -- a seek or another first contact is under way
            RETURN;
        END IF;
        PERFORM skep.start_line_anew(ARRAY[reader]);
        INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
        SELECT s.partition_id, reader, s.start_offset, s.start_offset, s.start_offset, '-infinity'
        FROM skep.readers r CROSS JOIN LATERAL skep.starts(r.group_name, r.queue_id, ARRAY[lane]) s
        WHERE r.id = reader AND NOT EXISTS (SELECT FROM skep.cursors c WHERE c.partition_id = lane AND c.reader_id = reader)
        RETURNING ARRAY[cursors.reader_id], ARRAY[cursors.partition_id] INTO reader_ids, lane_ids;
    END IF;
END $$;

-- The offset behind the first n of a run that are not done.
CREATE FUNCTION skep.cut_after(first_offset bigint, end_offset bigint, done int8multirange, n bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(
        (SELECT o + 1 FROM unnest(int8multirange(int8range($1, $2)) - $3) AS piece
         CROSS JOIN generate_series(lower(piece), upper(piece) - 1) AS o ORDER BY o OFFSET $4 - 1 LIMIT 1), $2)
$$;

CREATE FUNCTION skep.count_offsets(offsets int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(sum(upper(piece) - lower(piece)), 0)::bigint FROM unnest($1) AS piece $$;

-- Leases the next run of each chosen lane: the lowest returned run if there is one, else new messages. The caller holds the locks on
-- the cursors rows since an earlier statement, so what this one reads of heads and leases is current. tokens and batches are for each
-- lane those of the request that gets it; a batch is the limit of all lanes of a token. conflate: only the last message of a run is
-- delivered, the others count as done.
-- True if deleted messages are among them: a lease may then have nothing left to answer. NULL if there is nothing to lease.
CREATE FUNCTION skep.claim(reader_ids integer[], lane_ids bigint[], tokens uuid[], batches integer[], lease_time double precision,
                           conflate boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
    taken skep.leases[];
    again boolean;
    some_deleted boolean;
BEGIN
    SELECT bool_or(again), bool_or(first_deleted IS NOT NULL),
           array_agg(ROW(partition_id, reader_id, first_offset, cut, attempt, token, stamp + skep.seconds(lease_time), NULL, false,
                         CASE WHEN conflate THEN skep.all_but_last(done * int8multirange(int8range(first_offset, cut))
                                                     + skep.deleted_in(partition_id, first_offset, cut), first_offset, cut)
                              WHEN done = '{}' AND first_deleted IS NULL THEN done
                              ELSE done * int8multirange(int8range(first_offset, cut)) + skep.deleted_in(partition_id, first_offset, cut) END,
                         '{}', '{}', stamp)::skep.leases)
    INTO again, some_deleted, taken
    FROM (
        SELECT offer.*, CASE WHEN total <= batch THEN end_offset
                             WHEN done = '{}' THEN end_offset - (total - batch)
                             ELSE skep.cut_after(first_offset, end_offset, done, batch - (total - size)) END AS cut
        FROM (
            SELECT offer.*, claim.tokens[ord] AS token, claim.batches[ord] AS batch,
                   sum(size) OVER (PARTITION BY claim.tokens[ord] ORDER BY ord)::bigint AS total
            FROM skep.offers(claim.reader_ids, claim.lane_ids, claim.batches, claim.lease_time, stamp) offer
        ) offer
        WHERE total - size < batch
    ) sized
    CROSS JOIN LATERAL (
        SELECT min(m."offset") AS first_deleted FROM skep.messages m
        WHERE m.partition_id = sized.partition_id AND m."offset" >= first_offset AND m."offset" < cut AND m.payload IS NULL
    ) d;
    IF taken IS NULL THEN
        RETURN NULL;
    END IF;

    IF again THEN
        INSERT INTO skep.leases (partition_id, reader_id, first_offset, end_offset, attempt, retry_at, done)
        SELECT old.partition_id, old.reader_id, run.end_offset, old.end_offset, old.attempt, old.retry_at,
               old.done * int8multirange(int8range(run.end_offset, old.end_offset))
        FROM unnest(taken) run
        CROSS JOIN LATERAL (SELECT * FROM skep.leases old WHERE old.partition_id = run.partition_id AND old.reader_id = run.reader_id
                                                            AND old.first_offset = run.first_offset LIMIT 1) old
        WHERE old.end_offset > run.end_offset;
    END IF;

    INSERT INTO skep.leases SELECT run.* FROM unnest(taken) run
    ON CONFLICT (partition_id, reader_id, first_offset) DO UPDATE
    SET end_offset = excluded.end_offset, token = excluded.token, expires_at = excluded.expires_at, retry_at = NULL, done = excluded.done,
        leased_at = excluded.leased_at;

    UPDATE skep.cursors c
    SET leased = c.leased + 1, next_offset = greatest(c.next_offset, run.end_offset), last_consumed_at = stamp,
        returned = CASE WHEN c.returned = 0 THEN 0 ELSE
                   (SELECT count(*) FROM skep.leases s WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id
                                                         AND s.first_offset >= c.cursor AND s.token IS NULL) END,
        ready_at = CASE WHEN c.leased + 1 < q.concurrency THEN stamp
                        WHEN q.concurrency = 1 THEN run.expires_at ELSE skep.first_deadline(c) END
    FROM unnest(taken) run
    JOIN skep.readers r ON r.id = run.reader_id
    JOIN skep.queues q ON q.id = r.queue_id
    WHERE c.partition_id = ANY (ARRAY[run.partition_id]) AND c.reader_id = ANY (ARRAY[run.reader_id]) AND c.next_offset >= run.first_offset;

    RETURN some_deleted;
END $$;

-- Everything before the last offset of a run that is not done.
CREATE FUNCTION skep.all_but_last(done int8multirange, first_offset bigint, end_offset bigint) RETURNS int8multirange
LANGUAGE sql IMMUTABLE AS $$
    SELECT $1 + int8multirange(int8range($2, coalesce(upper(int8multirange(int8range($2, $3)) - $1) - 1, $2)))
$$;

CREATE FUNCTION skep.deleted_in(partition_id bigint, first_offset bigint, end_offset bigint) RETURNS int8multirange
LANGUAGE sql STABLE AS $$
    SELECT coalesce(range_agg(int8range(m."offset", m."offset" + 1)), '{}') FROM skep.messages m
    WHERE m.partition_id = $1 AND m."offset" >= $2 AND m."offset" < $3 AND m.payload IS NULL
$$;

-- What each chosen lane has to offer, in the order chosen: a returned run, or up to a batch of new messages.
CREATE FUNCTION skep.offers(reader_ids integer[], lane_ids bigint[], batches integer[], lease_time double precision, stamp timestamptz)
RETURNS TABLE (ord bigint, partition_id bigint, reader_id integer, first_offset bigint, end_offset bigint, done int8multirange,
               attempt integer, lease_time double precision, again boolean, size bigint)
LANGUAGE sql STABLE AS $$
    SELECT lane.ord, lane.partition_id, lane.reader_id, run.first_offset, run.end_offset, run.done, run.attempt, lane.lease_time,
           run.retry_at <> '-infinity',
           run.end_offset - run.first_offset - CASE WHEN run.done = '{}' THEN 0 ELSE skep.count_offsets(run.done) END
    FROM (
        SELECT chosen.ord, c.*, q.concurrency, coalesce($4, q.lease_time) AS lease_time, alive.first_alive,
               CASE WHEN q.window_buffer > 0 AND l.last_created_at > $5 - skep.seconds(q.window_buffer) THEN c.next_offset
                    ELSE least(alive.first_alive + chosen.batch, l.last_offset + 1,
                               CASE WHEN q.delayed_processing > 0 THEN
                                    (SELECT m."offset" FROM skep.messages m
                                     WHERE m.partition_id = c.partition_id AND m."offset" >= c.next_offset
                                       AND m."offset" < alive.first_alive + chosen.batch AND m.created_at > $5 - skep.seconds(q.delayed_processing)
                                     ORDER BY m."offset" LIMIT 1) END) END AS fresh_end
        FROM unnest($1, $2, $3) WITH ORDINALITY AS chosen (reader_id, partition_id, batch, ord)
        CROSS JOIN LATERAL (
            SELECT * FROM skep.cursors c WHERE c.partition_id = chosen.partition_id AND c.reader_id = chosen.reader_id
            ORDER BY c.next_offset DESC LIMIT 1
        ) c
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = chosen.partition_id ORDER BY l.generation DESC LIMIT 1) l
        JOIN skep.readers r ON r.id = chosen.reader_id
        JOIN skep.queues q ON q.id = r.queue_id
        CROSS JOIN LATERAL (  -- deleted messages at the head are passed at once, however many
            SELECT CASE WHEN c.next_offset < l.first_offset THEN l.first_offset  -- met while retention took what was there
                        WHEN EXISTS (SELECT FROM skep.messages m
                                     WHERE m.partition_id = c.partition_id AND m."offset" = c.next_offset AND m.payload IS NULL) THEN
                        coalesce((SELECT m."offset" FROM skep.messages m
                                  WHERE m.partition_id = c.partition_id AND m."offset" > c.next_offset AND m.payload IS NOT NULL
                                  ORDER BY m."offset" LIMIT 1), l.last_offset + 1)
                        ELSE c.next_offset END AS first_alive
        ) alive
        WHERE c.leased < q.concurrency
    ) lane
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT s.first_offset, s.end_offset, s.done, s.attempt, s.retry_at FROM skep.leases s
            WHERE lane.returned > 0 AND s.partition_id = lane.partition_id AND s.reader_id = lane.reader_id AND s.token IS NULL
              AND s.first_offset >= lane.cursor
              AND (s.retry_at <= $5 OR lane.concurrency = 1)  -- strict order: a lane waits for its lowest run
            ORDER BY s.first_offset LIMIT 1
        ) returned
        UNION ALL
        SELECT lane.next_offset, lane.fresh_end,
               CASE WHEN lane.first_alive = lane.next_offset THEN '{}'
                    ELSE int8multirange(int8range(lane.next_offset, least(lane.first_alive, lane.fresh_end))) END, 1, '-infinity'
        WHERE (lane.returned = 0 OR lane.concurrency > 1) AND lane.fresh_end > lane.next_offset
        LIMIT 1
    ) run
    WHERE run.retry_at <= $5
$$;

-- Waits, but not long, for another pop of this group to finish its look, and for a lane that is locked and may be free in a moment.
-- False if in vain: someone pops or acknowledges inside a long transaction.
CREATE FUNCTION skep.wait_turn(readers integer[], locked_reader integer, locked_lane bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(x'736b6570'::integer, id) FROM (SELECT unnest(readers) AS id ORDER BY 1) r;
    PERFORM FROM skep.cursors c WHERE c.partition_id = locked_lane AND c.reader_id = locked_reader
    ORDER BY c.next_offset DESC LIMIT 1 FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;

CREATE FUNCTION skep.check_pop(queue text, group_name text, partition text, namespace text, task text, batch integer,
                               partitions integer, lease_time double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF queue IS NULL THEN
        IF namespace IS NULL AND task IS NULL OR partition IS NOT NULL THEN
            PERFORM skep.refuse('SK001', 'pop needs a queue, or a namespace and/or a task', 'A partition belongs to a queue.');
        END IF;
    ELSE
        PERFORM skep.check_name('queue', queue);
        IF namespace IS NOT NULL OR task IS NOT NULL THEN
            PERFORM skep.refuse('SK001', 'pop takes a queue or a namespace/task, not both');
        END IF;
    END IF;
    PERFORM skep.check_name('group', group_name);
    PERFORM skep.check_name(label, name) FROM (VALUES ('partition', partition), ('namespace', namespace), ('task', task)) v (label, name)
    WHERE name IS NOT NULL AND (label = 'partition' OR name <> '');
    IF batch IS NULL OR batch NOT BETWEEN 1 AND 100000 THEN
        PERFORM skep.refuse('SK001', format('batch is %s', coalesce(batch::text, 'NULL')), 'Batch is 1 to 100000.');
    ELSIF partitions IS NULL OR partitions NOT BETWEEN 1 AND 10000 THEN
        PERFORM skep.refuse('SK001', format('partitions is %s', coalesce(partitions::text, 'NULL')), 'Partitions is 1 to 10000.');
    ELSIF lease_time NOT BETWEEN 0.001 AND 604800 THEN
        PERFORM skep.refuse('SK001', format('lease_time is %s seconds', lease_time), 'Lease time is up to 604800 seconds.');
    END IF;
END $$;

-- Which request each of n lanes goes to: every request its first lane, then its second, as far as its partitions go.
CREATE FUNCTION skep.deal(tokens uuid[], batches integer[], partitions integer[], n integer, OUT lane_tokens uuid[], OUT lane_batches integer[])
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(token), array_agg(batch)
    FROM (SELECT token, batch FROM unnest($1, $2, $3) WITH ORDINALITY AS request (token, batch, lanes, ord)
          CROSS JOIN LATERAL generate_series(1, least(lanes, $4)) AS turn ORDER BY turn, ord LIMIT $4) dealt
$$;

-- The lane in which a group, and nobody else, gets its dead letters of a lane again, however often. Order among them is kept.
CREATE FUNCTION skep.redrive_lane(group_name text, partition text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN right($2, length(again)) = again THEN $2 ELSE left($2 || again, 255) END FROM format(' (again for %s)', $1) AS again
$$;

-- Whoever pops one partition gets its dead letters that are driven again as well, when they are due.
CREATE FUNCTION skep.lane_named(reader integer, partition text) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT p.id FROM skep.readers r
    CROSS JOIN LATERAL (
        SELECT p.* FROM skep.partitions p
        WHERE p.queue_id = r.queue_id AND p.name = ANY (ARRAY[$2, skep.redrive_lane(r.group_name, $2)]) AND (p.name = $2 OR p.only_group = r.group_name)
    ) p
    WHERE r.id = $1
    ORDER BY p.name <> $2 AND (EXISTS (SELECT FROM skep.offers(ARRAY[$1], ARRAY[p.id], ARRAY[1], NULL, clock_timestamp()))
                               OR NOT EXISTS (SELECT FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = $1)) DESC, p.name = $2 DESC
    LIMIT 1
$$;

-- The lanes that have waited longest, leased to several requests that differ in nothing but their size. Each has a token of its own, which
-- becomes its lease; one that gets nothing is not in the answer. NULL: there is nothing for anyone.
CREATE FUNCTION skep.take(
    queue text, group_name text, tokens uuid[], batches integer[], partitions integer[], partition text, namespace text, task text,
    lease_time double precision, subscription_mode text, subscription_from text, conflate boolean,
    OUT lane_ids bigint[], OUT lane_tokens uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    readers integer[];
    wanted  integer := least((SELECT sum(n) FROM unnest(partitions) AS n), 10000);
    locked  integer[] := '{}';
    chosen  record;
    dealt   record;
    lane    bigint;
    deleted boolean;
    waits   integer := 0;
    swept   boolean := false;
BEGIN
    PERFORM skep.check_pop(queue, group_name, partition, namespace, task, b, p, lease_time)
    FROM (SELECT DISTINCT b, p FROM unnest(batches, partitions) AS request (b, p)) request;
    readers := skep.meet(queue, group_name, partition, namespace, task, subscription_mode, subscription_from);
    IF partition IS NOT NULL THEN
        lane := skep.lane_named(readers[1], partition);
    END IF;
    IF coalesce(readers, '{}') = '{}' OR partition IS NOT NULL AND lane IS NULL THEN
        RETURN;
    END IF;
    LOOP
        PERFORM skep.return_expired(readers);
        IF lane IS NOT NULL THEN
            chosen := skep.choose_lane(readers[1], lane);
        ELSE
            locked := skep.lock_readers(readers);
            PERFORM skep.look(locked, 8 + 2 * wanted);
            chosen := skep.choose_lanes(readers, wanted);
        END IF;
        IF chosen.lane_ids IS NULL THEN
            -- Really nothing, if we looked ourselves. Otherwise another pop is looking, or another consumer has the lane in hand.
            IF lane IS NULL AND locked @> readers AND NOT swept AND skep.find_hidden(readers, NULL) THEN
                swept := true;
                CONTINUE;
            END IF;
            EXIT WHEN waits >= 2 OR chosen.locked_reader IS NULL AND (lane IS NOT NULL OR locked @> readers);
            EXIT WHEN NOT skep.wait_turn(CASE WHEN lane IS NULL OR chosen.locked_lane IS NULL THEN readers END,
                                         chosen.locked_reader, chosen.locked_lane);
            waits := waits + 1;
            CONTINUE;
        END IF;
        dealt := skep.deal(tokens, batches, partitions, cardinality(chosen.lane_ids));
        deleted := skep.claim(chosen.reader_ids, chosen.lane_ids, dealt.lane_tokens, dealt.lane_batches, lease_time, conflate);
        IF deleted THEN
            PERFORM skep.complete(dealt.lane_tokens, chosen.lane_ids);
        END IF;
        IF deleted IS NOT NULL AND (NOT deleted OR EXISTS (
               SELECT FROM unnest(chosen.lane_ids, dealt.lane_tokens) AS held (lane, token)
               CROSS JOIN LATERAL (SELECT FROM skep.leases s WHERE s.token = held.token AND s.partition_id = held.lane LIMIT 1) s)) THEN
            lane_ids := chosen.lane_ids;
            lane_tokens := dealt.lane_tokens;
            RETURN;
        END IF;
        IF deleted IS NULL THEN  -- another took it between choice and lock
            waits := waits + 1;
            EXIT WHEN waits > 2;
        END IF;
    END LOOP;
END $$;

-- What these leases still have to answer, lane by lane, in order.
CREATE FUNCTION skep.taken(lane_ids bigint[], lane_tokens uuid[]) RETURNS SETOF skep.delivery
LANGUAGE sql STABLE AS $$
    SELECT q.name, p.name, m."offset", skep.message_id(m.partition_id, m."offset"), m.payload, m.headers, m.transaction_id,
           m.trace_id, m.producer, m.created_at, s.attempt, s.partition_id, s.token, s.expires_at
    FROM unnest($1, $2) AS served (lane, token)
    CROSS JOIN LATERAL (SELECT *, s.done = '{}' AS untouched FROM skep.leases s
                        WHERE s.token = served.token AND s.partition_id = served.lane LIMIT 1) s
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = served.lane LIMIT 1) p
    JOIN skep.queues q ON q.id = p.queue_id
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = served.lane AND m."offset" >= s.first_offset AND m."offset" < s.end_offset
        ORDER BY m."offset"
    ) m
    WHERE m.payload IS NOT NULL AND (s.untouched OR NOT s.done @> m."offset")
$$;

CREATE FUNCTION skep.pop(
    queue text DEFAULT NULL, group_name text DEFAULT '__QUEUE_MODE__', batch integer DEFAULT 1, partitions integer DEFAULT 1,
    partition text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL, lease_time double precision DEFAULT NULL,
    auto_ack boolean DEFAULT false, subscription_mode text DEFAULT NULL, subscription_from text DEFAULT NULL
) RETURNS SETOF skep.delivery LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    got := skep.take(queue, group_name, ARRAY[gen_random_uuid()], ARRAY[batch], ARRAY[partitions], partition, namespace, task,
                     CASE WHEN auto_ack THEN 3600 ELSE lease_time END, subscription_mode, subscription_from, false);
    IF got.lane_ids IS NOT NULL THEN
        RETURN QUERY SELECT * FROM skep.taken(got.lane_ids, got.lane_tokens);
        IF auto_ack THEN
            PERFORM skep.complete(got.lane_tokens, got.lane_ids, whole => true);
        END IF;
    END IF;
END $$;
