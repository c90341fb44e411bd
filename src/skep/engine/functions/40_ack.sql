-- Answers, and the verdict on a lease once every message has one, or its time is up, or it is given back.
--
--   answers                             what happens
--   all completed                       the run is done
--   some completed, some failed         failed -> dead letters (partial_failure = 'retry': they come again)
--   all failed                          the run comes again after retry_delay; past retry_limit -> dead letters
--   some unanswered, lease expired      the unanswered come again in two halves, attempt + 1; a single one past retry_limit -> dead letters
--   the same of a stream                the unanswered come again, nothing charged: that is how a stream holds messages back
--   released                            what is not completed comes again, nothing charged
--   nacked                              what is not completed comes again, attempt + 1; past retry_limit the nacked -> dead letters
--
-- Lock order: cursors rows by (partition_id, reader_id), then leases. Whoever changes a lease holds its cursors row.

-- Done runs leave. The lane stays in line, even if it looks drained (see 30_look.sql).
-- whole: everything not answered is completed now. Returns how many left.
CREATE FUNCTION skep.complete(tokens uuid[], lane_ids bigint[], whole boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
    lanes bigint;
    ended skep.leases[];
BEGIN
    WITH gone AS (
        DELETE FROM skep.leases s
        USING unnest(complete.tokens, complete.lane_ids) AS held (token, lane)
        WHERE s.token = ANY (ARRAY[held.token]) AND int8eq(s.partition_id, held.lane)
          AND s.failed = '{}' AND (s.expires_at > stamp) IS TRUE  -- neither is a condition for an index: those of lanes and of times are full of dead leases
          AND (complete.whole OR s.done @> int8range(s.first_offset, s.end_offset))
        RETURNING s.partition_id, s.reader_id, s.first_offset, s.end_offset, s AS lease
    ), lane AS (
        SELECT partition_id, reader_id, count(*) AS leases, array_agg(first_offset) AS firsts, max(end_offset) AS end_offset
        FROM gone GROUP BY partition_id, reader_id
    ), moved AS (
        UPDATE skep.cursors c
        SET leased = c.leased - lane.leases, touched_at = stamp,
            cursor = CASE WHEN c.leased + c.returned = lane.leases THEN c.next_offset ELSE coalesce((
                               SELECT s.first_offset FROM skep.leases s
                               WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id
                                 AND s.first_offset >= c.cursor AND s.first_offset <> ALL (lane.firsts)
                               ORDER BY s.first_offset LIMIT 1), c.next_offset) END,
            ready_at = greatest(skep.place_of(c.last_consumed_at, stamp),
                                CASE WHEN c.returned > 0 AND q.concurrency = 1 THEN skep.first_retry(c) END)
        FROM lane
        JOIN skep.readers r ON r.id = lane.reader_id
        JOIN skep.queues q ON q.id = r.queue_id
        WHERE c.partition_id = ANY (ARRAY[lane.partition_id]) AND c.reader_id = ANY (ARRAY[lane.reader_id])
          AND c.next_offset >= lane.end_offset
        RETURNING q.lease_log_seconds
    )
    SELECT count(*), CASE WHEN count(lease_log_seconds) > 0 THEN (SELECT array_agg(lease) FROM gone) END INTO lanes, ended FROM moved;
    IF ended IS NOT NULL THEN
        PERFORM skep.log_completed(ended);  -- apart, so that it costs nothing where there is no log
    END IF;
    RETURN lanes;
END $$;

-- How long a failed run waits: exponential with jitter, at most an hour unless retry_delay itself is longer.
CREATE FUNCTION skep.back_off(retry_delay double precision, attempt integer) RETURNS interval
LANGUAGE sql VOLATILE AS $$
    SELECT skep.seconds(least($1 * 2 ^ least($2 - 1, 30), greatest($1, 3600)) * (0.75 + random() / 2))
$$;

-- A stream holds messages back by doing nothing: that its lease is over is no more than a release. (Not EXISTS: that plans a scan as well.)
CREATE FUNCTION skep.charge(reason text, group_name text, queue text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN $1 = 'expired' AND (SELECT true FROM skep.stream_groups g WHERE g.group_name = $2 AND g.queue = $3 LIMIT 1) THEN 'released'
                ELSE $1 END
$$;

CREATE FUNCTION skep.judge(tokens uuid[], lane_ids bigint[], reason text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    WITH lease AS (
        SELECT s.*, q.retry_limit, q.retry_delay, q.concurrency, q.name AS queue, q.id AS queue_id, q.lease_log_seconds, p.name AS partition, r.group_name,
               int8multirange(int8range(s.first_offset, s.end_offset)) AS whole, skep.charge(judge.reason, r.group_name, q.name) AS reason,
               int8multirange(int8range(s.first_offset, s.end_offset)) - s.done
                   - CASE WHEN NOT s.succeeded OR q.partial_failure = 'retry' OR judge.reason = 'nacked' THEN '{}' ELSE s.failed END AS again
        FROM unnest(judge.tokens, judge.lane_ids) AS held (token, lane)
        CROSS JOIN LATERAL (SELECT * FROM skep.leases s WHERE s.token = held.token AND s.partition_id = held.lane LIMIT 1) s
        JOIN skep.readers r ON r.id = s.reader_id
        JOIN skep.queues q ON q.id = r.queue_id
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = s.partition_id LIMIT 1) p
        WHERE CASE judge.reason WHEN 'answered' THEN s.done + s.failed @> int8range(s.first_offset, s.end_offset) WHEN 'expired' THEN s.expires_at <= stamp ELSE true END
    ), tried AS (
        SELECT lease.*, reason <> 'released' AND attempt > retry_limit AND again <> '{}'
                        AND (reason IN ('answered', 'nacked') OR skep.count_offsets(again) = 1) AS exhausted
        FROM lease
    ), verdict AS MATERIALIZED (
        SELECT tried.*, CASE WHEN exhausted THEN CASE WHEN reason = 'nacked' THEN again - failed ELSE '{}' END ELSE again END AS back,
               CASE WHEN exhausted THEN CASE WHEN reason = 'nacked' THEN failed ELSE failed + again END ELSE failed - again END AS dead,
               CASE WHEN reason = 'expired' AND NOT exhausted AND skep.count_offsets(again) > 1 THEN
                    skep.cut_after(lower(again), upper(again), whole - again, (skep.count_offsets(again) + 1) / 2) END AS split,
               CASE WHEN reason = 'released' THEN attempt WHEN reason = 'nacked' AND exhausted THEN 1 ELSE attempt + 1 END AS next_attempt,
               CASE WHEN reason = 'answered' OR reason = 'nacked' AND NOT exhausted THEN stamp + skep.back_off(retry_delay, attempt) ELSE stamp END AS again_at
        FROM tried
    ), buried AS (
        INSERT INTO skep.dead_letters (group_name, queue, partition, partition_id, "offset", created_at, payload, headers,
                                       transaction_id, trace_id, producer, error, attempts)
        SELECT v.group_name, v.queue, v.partition, m.partition_id, m."offset", m.created_at, m.payload, m.headers, m.transaction_id,
               m.trace_id, m.producer,
               coalesce(v.errors ->> m."offset"::text, v.errors ->> '*', CASE WHEN judge.reason = 'expired' THEN 'lease expired' ELSE 'failed' END), v.attempt
        FROM verdict v
        CROSS JOIN LATERAL (
            SELECT * FROM skep.messages m WHERE m.partition_id = v.partition_id AND m."offset" >= v.first_offset AND m."offset" < v.end_offset
            ORDER BY m."offset"
        ) m
        WHERE v.dead <> '{}' AND v.dead @> m."offset" AND m.payload IS NOT NULL
    ), logged AS (
        INSERT INTO skep.lease_log
        SELECT v.queue_id, v.group_name, v.partition_id, v.first_offset, v.end_offset, v.attempt, v.reason, v.back, edge.*, v.leased_at, stamp
        FROM verdict v CROSS JOIN LATERAL skep.pushed_between(v.partition_id, v.first_offset, v.end_offset) edge WHERE v.lease_log_seconds IS NOT NULL
    ), finished AS (
        DELETE FROM skep.leases s USING verdict v
        WHERE v.back = '{}' AND s.token = ANY (ARRAY[v.token]) AND s.partition_id = ANY (ARRAY[v.partition_id])
    ), returned AS (
        UPDATE skep.leases s
        SET token = NULL, expires_at = NULL, retry_at = v.again_at, attempt = v.next_attempt, succeeded = false, failed = '{}', errors = '{}',
            first_offset = lower(v.back), end_offset = coalesce(v.split, upper(v.back)),
            done = int8multirange(int8range(lower(v.back), coalesce(v.split, upper(v.back)))) - v.back
        FROM verdict v
        WHERE v.back <> '{}' AND s.token = ANY (ARRAY[v.token]) AND s.partition_id = ANY (ARRAY[v.partition_id])
    ), second_half AS (
        INSERT INTO skep.leases (partition_id, reader_id, first_offset, end_offset, attempt, retry_at, done)
        SELECT partition_id, reader_id, split, upper(back), next_attempt, again_at, int8multirange(int8range(split, upper(back))) - back
        FROM verdict WHERE split IS NOT NULL
    ), lane AS (
        SELECT partition_id, reader_id, count(*) AS leases, array_agg(first_offset) AS firsts, max(end_offset) AS end_offset,
               count(*) FILTER (WHERE back <> '{}') + count(split) AS runs, min(lower(back)) AS lowest,
               min(again_at) FILTER (WHERE back <> '{}') AS again_at, bool_and(concurrency = 1) AS in_order
        FROM verdict GROUP BY partition_id, reader_id
    )
    UPDATE skep.cursors c
    SET leased = c.leased - lane.leases, touched_at = clock_timestamp(),
        returned = c.returned + lane.runs,
        cursor = coalesce(least(lane.lowest, (SELECT s.first_offset FROM skep.leases s
                                              WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id
                                                AND s.first_offset >= c.cursor AND s.first_offset <> ALL (lane.firsts)
                                              ORDER BY s.first_offset LIMIT 1)), c.next_offset),
        ready_at = greatest(skep.place_of(c.last_consumed_at, stamp), CASE WHEN lane.in_order THEN lane.again_at END)
    FROM lane
    WHERE c.partition_id = ANY (ARRAY[lane.partition_id]) AND c.reader_id = ANY (ARRAY[lane.reader_id]) AND c.next_offset >= lane.end_offset;
END $$;

-- Runs whose lease is over, given back to their lanes: by the next pop of the group, or by upkeep, which looks before the start of the line too.
CREATE FUNCTION skep.return_expired(readers integer[], everything boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp    timestamptz := clock_timestamp();  -- a variable, because a volatile function is no condition for an index
    tokens   uuid[];
    lane_ids bigint[];
BEGIN
    SELECT array_agg(token), array_agg(partition_id) INTO tokens, lane_ids
    FROM (
        SELECT late.token, late.partition_id
        FROM unnest(readers) AS reader
        CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = reader ORDER BY k.generation DESC LIMIT 1) look
        CROSS JOIN LATERAL (
            SELECT s.token, s.partition_id, s.end_offset FROM skep.leases s
            WHERE s.reader_id = reader AND s.expires_at <= stamp AND s.expires_at >= CASE WHEN everything THEN '-infinity' ELSE look.line_start END
            ORDER BY s.expires_at LIMIT 100
        ) late
        CROSS JOIN LATERAL (
            SELECT FROM skep.cursors c WHERE c.partition_id = late.partition_id AND c.reader_id = reader AND c.next_offset >= late.end_offset
            FOR NO KEY UPDATE SKIP LOCKED
        ) c
    ) late;
    IF tokens IS NOT NULL THEN
        PERFORM skep.judge(tokens, lane_ids, 'expired');
    END IF;
END $$;

-- For upkeep: what consumers that died held, of any group, without waiting for its next pop.
CREATE FUNCTION skep.reap() RETURNS void
LANGUAGE sql AS $$
    SELECT skep.return_expired(array_agg(r.id), everything => true) FROM skep.readers r
    WHERE EXISTS (SELECT FROM skep.leases s WHERE s.reader_id = r.id AND s.expires_at <= clock_timestamp())
$$;

-- Locks the lanes of these leases, in their order, and says which.
CREATE FUNCTION skep.lock_leases(tokens uuid[]) RETURNS bigint[]
LANGUAGE sql AS $$
    SELECT array_agg(held.partition_id)
    FROM (SELECT s.partition_id, s.reader_id, s.end_offset
          FROM (SELECT DISTINCT token FROM unnest($1) AS token) named
          CROSS JOIN LATERAL (SELECT s.partition_id, s.reader_id, s.end_offset FROM skep.leases s WHERE s.token = named.token OFFSET 0) s
          ORDER BY s.partition_id, s.reader_id) held
    CROSS JOIN LATERAL (
        SELECT FROM skep.cursors c WHERE c.partition_id = held.partition_id AND c.reader_id = held.reader_id AND c.next_offset >= held.end_offset
        FOR NO KEY UPDATE
    ) c
$$;

-- After answers were noted: what is done leaves, and what is decided gets its verdict.
CREATE FUNCTION skep.settle(tokens uuid[], lane_ids bigint[], some_failed boolean, released boolean[], nacked boolean[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep.complete(tokens, lane_ids);
    IF true = ANY (nacked) THEN
        PERFORM skep.judge(array_agg(token), array_agg(lane), 'nacked')
        FROM unnest(tokens, lane_ids, nacked) AS held (token, lane, is_nacked) WHERE is_nacked;
    END IF;
    IF some_failed THEN
        PERFORM skep.judge(tokens, lane_ids, 'answered');
    END IF;
    IF true = ANY (released) THEN
        PERFORM skep.judge(array_agg(token), array_agg(lane), 'released')
        FROM unnest(tokens, lane_ids, released) AS held (token, lane, is_released) WHERE is_released;
    END IF;
END $$;

-- The one door for answers. Each names a lease and, unless it is for the whole lease, a message (lane, offset).
-- status: completed, failed, dlq (dead letters now), retry (release the lease), nack (failed, and the lease ends here).
-- One stale answer does not touch the others.
CREATE FUNCTION skep.answer(tokens uuid[], lane_ids bigint[], offsets bigint[], statuses text[], errors text[])
RETURNS TABLE (ord bigint, applied boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz;
    live_tokens     uuid[];
    live_lanes      bigint[];
    released        boolean[];
    nacked          boolean[];
    some_failed     boolean;
    verdicts        boolean[];
BEGIN
    PERFORM skep.lock_leases(answer.tokens);
    stamp := clock_timestamp();
    WITH item AS MATERIALIZED (
        SELECT item.ord, s.token, s.partition_id, item.status, item.error, item."offset",
               CASE WHEN item."offset" IS NULL THEN int8range(s.first_offset, s.end_offset)
                    ELSE int8range(item."offset", item."offset" + 1) END AS run
        FROM unnest(answer.tokens, answer.lane_ids, answer.offsets, answer.statuses, answer.errors)
             WITH ORDINALITY AS item (token, lane, "offset", status, error, ord)
        LEFT JOIN LATERAL (
            SELECT * FROM skep.leases s
            WHERE s.token = item.token AND s.partition_id = coalesce(item.lane, s.partition_id) AND s.expires_at > stamp
              AND (item."offset" IS NULL OR item."offset" >= s.first_offset AND item."offset" < s.end_offset)
        ) s ON true
    ), said AS (
        SELECT token, partition_id, bool_or(status = 'retry') AS released, bool_or(status = 'nack') AS nacked,
               coalesce(range_agg(run) FILTER (WHERE status = 'completed' AND "offset" IS NOT NULL), '{}') AS completed,
               coalesce(range_agg(run) FILTER (WHERE status IN ('failed', 'nack') AND "offset" IS NOT NULL), '{}') AS failed,
               coalesce(range_agg(run) FILTER (WHERE status = 'dlq' AND "offset" IS NOT NULL), '{}') AS dead,
               coalesce(range_agg(run) FILTER (WHERE status = 'dlq' AND "offset" IS NULL), '{}') AS rest_dead,
               coalesce(range_agg(run) FILTER (WHERE status = 'completed' AND "offset" IS NULL), '{}') AS rest_completed,
               coalesce(range_agg(run) FILTER (WHERE status = 'failed' AND "offset" IS NULL), '{}') AS rest_failed,
               jsonb_object_agg(coalesce("offset"::text, '*'), error)
                   FILTER (WHERE status IN ('failed', 'nack', 'dlq') AND error IS NOT NULL) AS errors
        FROM item WHERE token IS NOT NULL GROUP BY token, partition_id
    ), buried AS (
        INSERT INTO skep.dead_letters (group_name, queue, partition, partition_id, "offset", created_at, payload, headers,
                                       transaction_id, trace_id, producer, error, attempts)
        SELECT r.group_name, q.name, p.name, m.partition_id, m."offset", m.created_at, m.payload, m.headers, m.transaction_id,
               m.trace_id, m.producer, coalesce(said.errors ->> m."offset"::text, said.errors ->> '*', 'dead-lettered'), s.attempt
        FROM said
        CROSS JOIN LATERAL (SELECT * FROM skep.leases s WHERE s.token = said.token AND s.partition_id = said.partition_id) s
        CROSS JOIN LATERAL (
            SELECT * FROM skep.messages m
            WHERE m.partition_id = s.partition_id AND m."offset" >= s.first_offset AND m."offset" < s.end_offset
            ORDER BY m."offset"
        ) m
        JOIN skep.readers r ON r.id = s.reader_id
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = s.partition_id LIMIT 1) p
        JOIN skep.queues q ON q.id = p.queue_id
        WHERE said.dead + rest_dead <> '{}' AND m.payload IS NOT NULL
          AND (said.dead + (rest_dead - s.failed - said.failed)) - s.done - said.completed @> m."offset"
    ), heard AS (
        UPDATE skep.leases s
        SET done = s.done + said.completed + said.dead + (rest_completed + rest_dead - s.failed - said.failed),
            failed = s.failed + said.failed + rest_failed - s.done - said.completed - said.dead,
            succeeded = s.succeeded OR said.completed + (rest_completed - s.failed - said.failed - said.dead) - s.done <> '{}',
            errors = CASE WHEN said.errors IS NULL THEN s.errors ELSE s.errors || said.errors END
        FROM said
        WHERE s.token = ANY (ARRAY[said.token]) AND s.partition_id = ANY (ARRAY[said.partition_id])
        RETURNING s.token, s.partition_id, s.failed <> '{}' AS some_failed, said.released, said.nacked AND s.failed <> '{}' AS nacked
    )
    SELECT array_agg(token), array_agg(partition_id), bool_or(some_failed), array_agg(released), array_agg(nacked),
           (SELECT array_agg(live ORDER BY ord) FROM (SELECT ord, bool_or(token IS NOT NULL) AS live FROM item GROUP BY ord) item)
    INTO live_tokens, live_lanes, some_failed, released, nacked, verdicts FROM heard;

    IF live_tokens IS NOT NULL THEN
        PERFORM skep.settle(live_tokens, live_lanes, some_failed, released, nacked);
    END IF;
    RETURN QUERY SELECT n, live FROM unnest(verdicts) WITH ORDINALITY AS verdict (live, n);
END $$;
