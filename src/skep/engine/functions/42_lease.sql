-- The verbs of a consumer. Each takes the lease that pop gave, and a message's id or NULL for everything not answered yet.
-- A lease that is over (expired, taken over, group moved or deleted) is refused and nothing changes.

CREATE FUNCTION skep.ack_many(leases uuid[], ids uuid[], statuses text[], errors text[] DEFAULT NULL)
RETURNS TABLE (ord bigint, applied boolean) LANGUAGE plpgsql AS $$
DECLARE
    lane_ids bigint[];
    offsets  bigint[];
BEGIN
    IF (cardinality(leases) = cardinality(statuses) AND coalesce(cardinality(leases) = cardinality(ids), true)
        AND coalesce(cardinality(leases) = cardinality(errors), true)) IS NOT TRUE THEN
        PERFORM skep.refuse('SK001', 'the arrays of ack_many differ in length',
                            'Give one lease and status for each answer; ids (NULL for the whole lease) and errors are as long, or NULL.');
    END IF;
    IF NOT statuses <@ ARRAY['completed', 'failed', 'dlq', 'retry'] THEN
        PERFORM skep.refuse('SK001', format('item %s: unknown status "%s"', n - 1, status), 'Statuses: completed, failed, dlq, retry.')
        FROM unnest(statuses) WITH ORDINALITY AS item (status, n)
        WHERE (status IN ('completed', 'failed', 'dlq', 'retry')) IS NOT TRUE ORDER BY n LIMIT 1;
    END IF;
    SELECT array_agg(skep.partition_of(id) ORDER BY n), array_agg(skep.offset_of(id) ORDER BY n)
    INTO lane_ids, offsets FROM unnest(ids) WITH ORDINALITY AS item (id, n);
    RETURN QUERY SELECT * FROM skep.answer(leases, lane_ids, offsets, statuses, errors);
END $$;

CREATE FUNCTION skep.answer_or_refuse(lease uuid, id uuid, status text, error text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (SELECT applied FROM skep.ack_many(ARRAY[lease], ARRAY[id], ARRAY[status], ARRAY[error])) THEN
        PERFORM skep.refuse('SK003', format('lease %s is over%s', coalesce(lease::text, 'NULL'),
                                            CASE WHEN id IS NULL THEN '' ELSE format(', or message %s is not in it', id) END),
                            'It expired, was taken over, or the group was moved or deleted. Nothing changed; the messages come again.');
    END IF;
END $$;

-- A whole lease without failures, the usual case, takes the short way.
CREATE FUNCTION skep.ack(lease uuid, id uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lanes bigint[];
BEGIN
    IF id IS NULL THEN
        lanes := skep.lock_leases(ARRAY[lease]);
        IF lanes IS NOT NULL AND cardinality(lanes) = skep.complete(array_fill(lease, ARRAY[cardinality(lanes)]), lanes, whole => true) THEN
            RETURN;
        END IF;
    END IF;
    PERFORM skep.answer_or_refuse(lease, id, 'completed', NULL);
END $$;

CREATE FUNCTION skep.fail(lease uuid, error text, id uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep.answer_or_refuse(lease, id, 'failed', error); END $$;

CREATE FUNCTION skep.dead_letter(lease uuid, error text, id uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep.answer_or_refuse(lease, id, 'dlq', error); END $$;

CREATE FUNCTION skep.release(lease uuid) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep.answer_or_refuse(lease, NULL, 'retry', NULL); END $$;

-- Never shortens. Returns the earliest new deadline.
CREATE FUNCTION skep.extend(lease uuid, seconds double precision DEFAULT 60) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    stamp    timestamptz;
    deadline timestamptz;
BEGIN
    IF seconds IS NULL OR seconds NOT BETWEEN 0.001 AND 604800 THEN
        PERFORM skep.refuse('SK001', format('cannot extend by %s seconds', coalesce(seconds::text, 'NULL')), 'Up to 604800 seconds.');
    END IF;
    PERFORM skep.lock_leases(ARRAY[lease]);
    stamp := clock_timestamp();
    WITH extended AS (
        UPDATE skep.leases s SET expires_at = greatest(s.expires_at, stamp + skep.seconds(extend.seconds))
        WHERE s.token = lease AND s.expires_at > stamp
        RETURNING s.partition_id, s.reader_id, s.end_offset, s.expires_at
    ), put_off AS (  -- a lane with no room for another lease is next looked at when this one ends
        UPDATE skep.cursors c
        SET touched_at = stamp,
            ready_at = CASE WHEN c.leased = 1 AND c.ready_at > stamp THEN extended.expires_at ELSE c.ready_at END
        FROM extended
        WHERE c.partition_id = ANY (ARRAY[extended.partition_id]) AND c.reader_id = ANY (ARRAY[extended.reader_id])
          AND c.next_offset >= extended.end_offset
    )
    SELECT min(expires_at) INTO deadline FROM extended;
    IF deadline IS NULL THEN
        PERFORM skep.refuse('SK003', format('lease %s is over', coalesce(lease::text, 'NULL')),
                            'It expired, was taken over, or the group was moved or deleted. The messages come again.');
    END IF;
    RETURN deadline;
END $$;

-- Pushes and answers as one: [{"push": {queue, payload, …}}, {"ack": {lease, id, status, error}}, …]. A stale answer fails it all.
CREATE FUNCTION skep.transaction(operations jsonb) RETURNS SETOF jsonb
LANGUAGE plpgsql AS $$
DECLARE
    unknown  jsonb;
    stale    bigint;
    messages jsonb;
BEGIN
    IF jsonb_typeof(operations) IS DISTINCT FROM 'array' THEN
        PERFORM skep.refuse('SK001', 'operations are not a JSON array', 'Give an array of {"push": …} and {"ack": …}.');
    END IF;
    SELECT o INTO unknown FROM jsonb_array_elements(operations) o WHERE NOT coalesce(o ? 'push' <> o ? 'ack', false) LIMIT 1;
    IF FOUND THEN
        PERFORM skep.refuse('SK001', format('unknown operation %s', left(unknown::text, 80)), 'Each has one key: "push" or "ack".');
    END IF;
    SELECT min(a.ord) INTO stale
    FROM (SELECT array_agg((o #>> '{ack,lease}')::uuid ORDER BY n) AS leases, array_agg((o #>> '{ack,id}')::uuid ORDER BY n) AS ids,
                 array_agg(coalesce(o #>> '{ack,status}', 'completed') ORDER BY n) AS statuses,
                 array_agg(o #>> '{ack,error}' ORDER BY n) AS errors
          FROM jsonb_array_elements(operations) WITH ORDINALITY AS op (o, n) WHERE o ? 'ack' HAVING count(*) > 0) acks
    CROSS JOIN LATERAL skep.ack_many(leases, ids, statuses, errors) a WHERE NOT a.applied;
    IF stale IS NOT NULL THEN
        PERFORM skep.refuse('SK003', format('ack %s of the transaction: its lease is over', stale - 1),
                            'Nothing was pushed or acknowledged.');
    END IF;
    SELECT jsonb_agg(o -> 'push' ORDER BY n) INTO messages
    FROM jsonb_array_elements(operations) WITH ORDINALITY AS op (o, n) WHERE o ? 'push';
    IF messages IS NOT NULL THEN
        RETURN QUERY SELECT to_jsonb(p) FROM skep.push(messages) p;
    END IF;
END $$;
