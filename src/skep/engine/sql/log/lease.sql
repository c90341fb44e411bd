-- The functions of a consumer. Each takes a lease that pop returned, and the id of a message, or NULL for all messages
-- that have no ack yet. A stale lease (expired, leased again, group moved or deleted) is refused, and nothing changes.

CREATE FUNCTION skep.ack_many(
    leases uuid[], ids uuid[], statuses text[], errors text[] DEFAULT NULL, delays double precision[] DEFAULT NULL
) RETURNS TABLE (ord bigint, applied boolean) LANGUAGE plpgsql AS $$
DECLARE
    known constant text[] := '{completed,failed,failed_alone,dead_letter,release}';
    partition_ids bigint[];
    offsets       bigint[];
BEGIN
    IF (cardinality(leases) = cardinality(statuses) AND coalesce(cardinality(leases) = cardinality(ids), true)
        AND coalesce(cardinality(leases) = cardinality(errors), true)
        AND coalesce(cardinality(leases) = cardinality(delays), true)) IS NOT TRUE THEN
        PERFORM skep._refuse('SK001', 'the arrays of ack_many differ in length',
                            'Give one lease and one status for each ack. ids (NULL for the whole lease), errors and '
                            'delays must have the same length, or be NULL.');
    END IF;
    IF NOT statuses <@ known THEN
        PERFORM skep._refuse('SK001', format('item %s: unknown status "%s"', n - 1, status),
                            'Statuses: ' || array_to_string(known, ', ') || '.')
        FROM unnest(statuses) WITH ORDINALITY AS item (status, n)
        WHERE (status = ANY (known)) IS NOT TRUE ORDER BY n LIMIT 1;
    END IF;
    IF delays IS NOT NULL OR 'failed_alone' = ANY (statuses) THEN
        PERFORM skep._check_delays(ids, statuses, delays);
    END IF;
    SELECT array_agg(skep.partition_of(id) ORDER BY n), array_agg(skep.offset_of(id) ORDER BY n)
    INTO partition_ids, offsets FROM unnest(ids) WITH ORDINALITY AS item (id, n);
    RETURN QUERY SELECT * FROM skep._apply_acks(leases, partition_ids, offsets, statuses, errors, delays);
END $$;
COMMENT ON FUNCTION skep.ack_many IS
    'Applies one ack to each message or lease: completed, failed, failed_alone, dead_letter or release. delays are the '
    'seconds until a failed or released message is delivered again. Returns whether each ack was applied; a stale '
    'lease does not affect the other acks.';
CALL skep._allow('skep_consumer', 'ack_many');

CREATE FUNCTION skep._check_delays(ids uuid[], statuses text[], delays double precision[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wrong record;
BEGIN
    SELECT item.*, item.id IS NULL AND item.status = 'failed_alone' AS is_whole INTO wrong
    FROM unnest(ids, statuses, delays) WITH ORDINALITY AS item (id, status, delay, n)
    WHERE item.id IS NULL AND item.status = 'failed_alone' OR item.delay NOT BETWEEN 0 AND 31536000
       OR item.delay IS NOT NULL AND item.status NOT IN ('failed', 'failed_alone', 'release') ORDER BY n LIMIT 1;
    IF wrong.is_whole THEN
        PERFORM skep._refuse('SK001', format('item %s: status "failed_alone" needs a message', wrong.n - 1),
                            'Give the id of the message.');
    ELSIF wrong.delay BETWEEN 0 AND 31536000 THEN
        PERFORM skep._refuse('SK001', format('item %s: status "%s" cannot have a delay', wrong.n - 1, wrong.status),
                            'Only failed, failed_alone and release can have one.');
    ELSIF FOUND THEN
        PERFORM skep._refuse('SK001', format('item %s: the delay must be between 0 and 31536000 seconds, got %s',
                                            wrong.n - 1, wrong.delay));
    END IF;
END $$;

CREATE FUNCTION skep._apply_ack(lease uuid, id uuid, status text, error text, delay double precision DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (SELECT applied FROM skep.ack_many(ARRAY[lease], ARRAY[id], ARRAY[status], ARRAY[error],
                                              CASE WHEN delay IS NOT NULL THEN ARRAY[delay] END)) THEN
        PERFORM skep._refuse(
            'SK003', format('lease %s has ended%s', coalesce(lease::text, 'NULL'),
                            CASE WHEN id IS NULL THEN '' ELSE format(', or does not contain message %s', id) END),
            'It was acknowledged or released, it expired, or the group was moved or deleted. Nothing was changed.');
    END IF;
END $$;

-- Completes a whole lease that has no acks yet and was never returned, which is the usual case, in one statement: the
-- same as _ack_leases().
CREATE FUNCTION skep.ack(lease uuid, id uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    quiet integer;
BEGIN
    IF id IS NULL THEN
        UPDATE skep.runs r
        SET first_offset = r.leased_to, lease_id = NULL, leased_to = NULL, expires_at = NULL,
            ready_at = skep._ready_time(r.served_at, key.stamp),
            drained = r.drained AND NOT EXISTS (SELECT FROM skep.messages m
                                                WHERE m.partition_id = r.partition_id AND m."offset" >= r.leased_to)
        FROM (SELECT ('x00' || left(digits, 14))::bit(64)::bigint AS packed,
                     ('x' || substr(digits, 15, 8))::bit(32)::bigint AS first_offset, stamp
              FROM (SELECT replace(lease::text, '-', '') AS digits,
                           clock_timestamp() AS stamp OFFSET 0) lease OFFSET 0) key
        WHERE r.partition_id = ANY (ARRAY[key.packed >> 21]) AND r.group_queue_id = (key.packed & 2097151)::integer
          AND r.first_offset = key.first_offset
          AND r.lease_id IS NOT DISTINCT FROM lease AND r.expires_at > key.stamp AND r.end_offset IS NULL
          AND NOT r.is_logged
          AND r.failed IS NULL AND r.done IS NULL AND r.cuts IS NULL
        RETURNING CASE WHEN r.served_at < key.stamp - interval '10 seconds' THEN r.group_queue_id ELSE 0 END INTO quiet;
        IF quiet = 0 THEN
            RETURN;
        ELSIF quiet > 0 THEN
            PERFORM skep._record_activity(quiet);
            RETURN;
        ELSIF skep._ack_closed(ARRAY[lease], NULL) <> '{}' THEN
            RETURN;
        END IF;
    END IF;
    PERFORM skep._apply_ack(lease, id, 'completed', NULL);
END $$;
COMMENT ON FUNCTION skep.ack IS
    'Acknowledges one message of a lease, or without id every message that has no ack yet. Fails with SK003 if '
    'the lease has ended.';
CALL skep._allow('skep_consumer', 'ack');

CREATE FUNCTION skep.fail(
    lease uuid, error text, id uuid DEFAULT NULL, retry_after double precision DEFAULT NULL, alone boolean DEFAULT false
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._apply_ack(lease, id, CASE WHEN alone THEN 'failed_alone' ELSE 'failed' END, error, retry_after);
END $$;
COMMENT ON FUNCTION skep.fail IS
    'Marks one message of a lease as failed, or without id every message that has no ack yet. The retry policy of the '
    'group decides what follows; retry_after replaces its delay, in seconds. alone: the lease ends, and this message '
    'is retried by itself.';
CALL skep._allow('skep_consumer', 'fail');

CREATE FUNCTION skep.dead_letter(lease uuid, error text, id uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep._apply_ack(lease, id, 'dead_letter', error); END $$;
COMMENT ON FUNCTION skep.dead_letter IS
    'Moves one message of a lease to the dead letters, or without id every message that has no ack yet.';
CALL skep._allow('skep_consumer', 'dead_letter');

CREATE FUNCTION skep.release(lease uuid, delay double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep._apply_ack(lease, NULL, 'release', NULL, delay); END $$;
COMMENT ON FUNCTION skep.release IS
    'Ends a lease. Messages without an ack are delivered again after the delay, with the same attempt number.';
CALL skep._allow('skep_consumer', 'release');

-- Applies one ack to all leases of a pop of several partitions. Stale leases are skipped; if all are stale, that is an
-- error.
CREATE FUNCTION skep._ack_all(leases uuid[], status text, error text, delay double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT bool_or(applied) FROM skep.ack_many(leases, NULL, array_fill(status, ARRAY[cardinality(leases)]),
                                                   array_fill(error, ARRAY[cardinality(leases)]),
                                                   CASE WHEN delay IS NOT NULL
                                                   THEN array_fill(delay, ARRAY[cardinality(leases)])
                                                   END)) IS NOT TRUE THEN
        PERFORM skep._refuse('SK003', format(CASE WHEN cardinality(leases) > 1 THEN 'leases %s have ended'
                                             ELSE 'lease %s has ended' END, array_to_string(leases[:3], ', ')),
                            'They were acknowledged or released, they expired, or the group was moved or deleted. '
                            'Nothing was changed.');
    END IF;
END $$;

-- Whole leases that have no acks yet, which is the usual case, take one statement; only the others need more.
CREATE FUNCTION skep.ack_all(leases uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    acked uuid[] := skep._ack_leases(leases);
BEGIN
    IF acked = '{}' THEN
        PERFORM skep._ack_all(leases, 'completed', NULL);
    ELSIF cardinality(acked) < cardinality(leases) THEN
        leases := ARRAY(SELECT lease FROM unnest(leases) AS lease WHERE lease <> ALL (acked));
        PERFORM FROM skep.ack_many(leases, NULL, array_fill('completed'::text, ARRAY[cardinality(leases)]));
    END IF;
END $$;
COMMENT ON FUNCTION skep.ack_all IS
    'Acknowledges every message of these leases. Fails with SK003 if all of them have ended.';
CALL skep._allow('skep_consumer', 'ack_all');

CREATE FUNCTION skep.fail_all(leases uuid[], error text, retry_after double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep._ack_all(leases, 'failed', error, retry_after); END $$;
COMMENT ON FUNCTION skep.fail_all IS
    'Marks every message of these leases as failed. Fails with SK003 if all of them have ended.';
CALL skep._allow('skep_consumer', 'fail_all');

CREATE FUNCTION skep.dead_letter_all(leases uuid[], error text) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep._ack_all(leases, 'dead_letter', error); END $$;
COMMENT ON FUNCTION skep.dead_letter_all IS
    'Moves every message of these leases to the dead letters. Fails with SK003 if all of them have ended.';
CALL skep._allow('skep_consumer', 'dead_letter_all');

CREATE FUNCTION skep.release_all(leases uuid[], delay double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM skep._ack_all(leases, 'release', NULL, delay); END $$;
COMMENT ON FUNCTION skep.release_all IS
    'Ends these leases. Messages without an ack are delivered again after the delay. Fails with SK003 if all leases '
    'have ended.';
CALL skep._allow('skep_consumer', 'release_all');

-- Only expires_at is written, which makes the update cheap: the run stays in the index at its old deadline until
-- discovery finds it there.
CREATE FUNCTION skep.extend(lease uuid, seconds double precision DEFAULT 60) RETURNS timestamptz
LANGUAGE plpgsql AS $$ BEGIN RETURN skep.extend_all(ARRAY[lease], seconds); END $$;
COMMENT ON FUNCTION skep.extend IS
    'Extends a lease to this many seconds from now and returns when it expires. A lease is never shortened.';
CALL skep._allow('skep_consumer', 'extend');

CREATE FUNCTION skep.extend_all(leases uuid[], seconds double precision DEFAULT 60) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    stamp    timestamptz := clock_timestamp();
    extended record;
BEGIN
    IF seconds IS NULL OR seconds NOT BETWEEN 0.001 AND 604800 THEN
        PERFORM skep._refuse('SK001', format('seconds must be between 0.001 and 604800, got %s',
                                             coalesce(seconds::text, 'NULL')), '');
    END IF;
    WITH extended AS (
        UPDATE skep.runs r SET expires_at = greatest(r.expires_at, stamp + skep._seconds(extend_all.seconds))
        FROM (SELECT lease, packed >> 21 AS partition_id, (packed & 2097151)::integer AS group_queue_id
              FROM (SELECT lease, ('x00' || left(replace(lease::text, '-', ''), 14))::bit(64)::bigint AS packed
                    FROM unnest(leases) AS lease) lease
              ORDER BY 2, 3, 1) lease
        WHERE r.partition_id = ANY (ARRAY[lease.partition_id]) AND r.group_queue_id = lease.group_queue_id
          AND r.lease_id IS NOT DISTINCT FROM lease.lease AND r.expires_at > stamp
        RETURNING r.expires_at, r.group_queue_id
    )
    SELECT min(e.expires_at) AS deadline, array_agg(DISTINCT e.group_queue_id) AS group_queues INTO extended
    FROM extended e;
    IF extended.deadline IS NULL THEN
        PERFORM skep._refuse('SK003', format('lease %s has ended', coalesce(array_to_string(leases[:3], ', '), 'NULL')),
                            'It was acknowledged or released, it expired, or the group was moved or deleted. Nothing '
                            'was changed.');
    END IF;
    PERFORM skep._record_activity(one.id) FROM unnest(extended.group_queues) AS one (id);
    RETURN extended.deadline;
END $$;
COMMENT ON FUNCTION skep.extend_all IS
    'Extends these leases to this many seconds from now and returns when the first of them expires.';
CALL skep._allow('skep_consumer', 'extend_all');

CREATE FUNCTION skep.transaction(operations jsonb) RETURNS SETOF jsonb
LANGUAGE plpgsql AS $$
DECLARE
    unknown  jsonb;
    stale    bigint;
    messages jsonb;
BEGIN
    IF jsonb_typeof(operations) IS DISTINCT FROM 'array' THEN
        PERFORM skep._refuse('SK001', format('operations must be a JSON array, got %s',
                                             coalesce('a JSON ' || jsonb_typeof(operations), 'NULL')),
                             'Give an array of {"push": …} and {"ack": …}.');
    END IF;
    SELECT o INTO unknown FROM jsonb_array_elements(operations) o WHERE NOT coalesce(o ? 'push' <> o ? 'ack', false)
    LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK001', format('unknown operation %s', left(unknown::text, 80)),
                             'An operation has one key: "push" or "ack".');
    END IF;
    SELECT min(a.ord) INTO stale
    FROM (SELECT array_agg((o #>> '{ack,lease}')::uuid ORDER BY n) AS leases,
                 array_agg((o #>> '{ack,id}')::uuid ORDER BY n) AS ids,
                 array_agg(coalesce(o #>> '{ack,status}', 'completed') ORDER BY n) AS statuses,
                 array_agg(o #>> '{ack,error}' ORDER BY n) AS errors,
                 CASE WHEN bool_or(o -> 'ack' ? 'delay') THEN
                      array_agg((o #>> '{ack,delay}')::double precision ORDER BY n) END AS delays
          FROM jsonb_array_elements(operations) WITH ORDINALITY AS op (o, n) WHERE o ? 'ack' HAVING count(*) > 0) acks
    CROSS JOIN LATERAL skep.ack_many(leases, ids, statuses, errors, delays) a WHERE NOT a.applied;
    IF stale IS NOT NULL THEN
        PERFORM skep._refuse('SK003', format('ack %s of the transaction: its lease has ended', stale - 1),
                            'Nothing was pushed or acknowledged.');
    END IF;
    SELECT jsonb_agg(o -> 'push' ORDER BY n) INTO messages
    FROM jsonb_array_elements(operations) WITH ORDINALITY AS op (o, n) WHERE o ? 'push';
    IF messages IS NOT NULL THEN
        RETURN QUERY SELECT to_jsonb(p) FROM skep.push(messages) p;
    END IF;
END $$;
COMMENT ON FUNCTION skep.transaction IS
    'Pushes messages and applies acks, all or nothing: [{"push": {"queue", "payload", …}}, {"ack": {"lease", '
    '"id", "status", "error", "delay"}}, …]. Returns one JSON object for each operation; one stale lease fails them '
    'all.';
CALL skep._allow('skep_consumer', 'transaction', definer => false);

-- Returns the ready lists that pops have not cleaned up for 10 seconds, and the queue of each: consumers that keep
-- their transactions open leave that to others.
CREATE FUNCTION skep._neglected_lists(stamp timestamptz) RETURNS TABLE (list integer, queue_id integer)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT g.id, g.queue_id FROM skep.group_queues g
    LEFT JOIN LATERAL (SELECT r.partition_id, r.first_offset, r.ready_at FROM skep.runs r
                       WHERE r.list_id = g.id AND r.ready_at IS NOT NULL AND r.lease_id IS NULL AND NOT r.drained
                       ORDER BY r.priority, r.ready_at LIMIT 1) front ON true
    WHERE g.list_id = g.id
      AND (front.ready_at < stamp - interval '10 seconds'
           AND NOT EXISTS (SELECT FROM skep.messages m
                           WHERE m.partition_id = front.partition_id AND m."offset" = front.first_offset
                             AND m.payload IS NOT NULL)
           OR EXISTS (SELECT FROM skep.runs r
                      WHERE r.list_id = g.id AND r.ready_at < stamp - interval '10 seconds' AND r.ready_at IS NOT NULL
                        AND r.lease_id IS NULL AND r.drained));
END $$;

CREATE FUNCTION skep.expire_leases() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._discover(n.list, n.queue_id, true, 1000000) FROM skep._neglected_lists(clock_timestamp()) n;
    PERFORM skep._expire_leases(g.list_id, '-infinity', 100, clock_timestamp())
    FROM (SELECT DISTINCT list_id FROM skep.group_queues) g
    WHERE EXISTS (SELECT FROM skep.runs r
                  WHERE r.list_id = g.list_id AND r.lease_id IS NOT NULL AND r.ready_at <= clock_timestamp());
END $$;
COMMENT ON FUNCTION skep.expire_leases IS
    'Ends expired leases, so that their messages can be delivered again before the next pop. Upkeep calls it.';
CALL skep._allow('skep_admin', 'expire_leases');
