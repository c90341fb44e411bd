-- Acks by Queen's addresses: a message is identified by partition and transaction id, a lease by the id that a pop
-- returned.

-- Returns true for the id of a lease set. Queen's clients know one lease id for all partitions of a pop. A pop of one
-- partition returns the lease's own id, a pop of several partitions the id of a lease set. No partition has the number
-- 0, so the first 35 bits of an id tell which of the two it is.
CREATE FUNCTION skep._is_lease_set(id uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT $1 < '00000000-2000-0000-0000-000000000000' $$;

-- Returns the lease id for each request of a pop. The ids in a set are sorted, so that a member is found by binary
-- search.
CREATE FUNCTION skep._queen_lease_ids(leases skep.lease[], requests integer) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[];
BEGIN
    WITH answered AS MATERIALIZED (
        SELECT l.request, array_agg(l.lease_id ORDER BY l.lease_id) AS lease_ids,
               CASE WHEN count(*) > 1 THEN ('000000000'
                                            || right(replace(gen_random_uuid()::text, '-', ''), 23))::uuid END AS set_id
        FROM unnest(leases) l GROUP BY l.request
    ), stored AS (
        INSERT INTO skep.lease_sets (id, lease_ids) SELECT a.set_id, a.lease_ids FROM answered a
        WHERE a.set_id IS NOT NULL
    )
    SELECT array_agg(coalesce(a.set_id, a.lease_ids[1]) ORDER BY n) INTO ids
    FROM generate_series(1, requests) AS n LEFT JOIN answered a ON a.request = n;
    RETURN ids;
END $$;

-- Returns the leases of these ids: the ids themselves, or the members of sets.
CREATE FUNCTION skep._leases_of(ids uuid[]) RETURNS uuid[]
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(lease ORDER BY lease), '{}') FROM (
        SELECT id AS lease FROM unnest($1) AS id WHERE NOT skep._is_lease_set(id)
        UNION
        SELECT unnest(s.lease_ids) FROM unnest($1) AS id
        CROSS JOIN LATERAL (SELECT s.lease_ids FROM skep.lease_sets s WHERE s.id = id.id LIMIT 1) s
        WHERE skep._is_lease_set(id)) named
$$;

-- Deletes lease sets without a live lease.
CREATE FUNCTION skep._prune_lease_sets(max_rows integer DEFAULT 100000) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    stamp  timestamptz := clock_timestamp();
    before timestamptz := stamp - interval '1 minute';
    pruned bigint;
BEGIN
    DELETE FROM skep.lease_sets WHERE id = ANY (ARRAY(
        SELECT s.id FROM skep.lease_sets s
        WHERE s.created_at < before AND NOT EXISTS (
            SELECT FROM unnest(s.lease_ids) AS member (id)
            CROSS JOIN LATERAL (SELECT r.lease_id, r.expires_at FROM skep.runs r
                                WHERE r.partition_id = skep._partition_of_lease(member.id)
                                  AND r.group_queue_id = skep._group_queue_of_lease(member.id) OFFSET 0) r
            WHERE r.lease_id IS NOT DISTINCT FROM member.id AND r.expires_at > stamp)
        ORDER BY s.created_at LIMIT max_rows));
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END $$;

-- Returns the offset of a message in the partition with this address; NULL if the text is not the id of a message of
-- it. Ids of a partition have their first 18 characters in common.
CREATE FUNCTION skep._offset_in(address uuid, id text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN left($2, 18) = left($1::text, 18) AND substr($2, 19) ~ '^-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' THEN
                ('x' || substr($2, 20, 4) || substr($2, 25))::bit(64)::bigint & 4611686018427387903 END
$$;

-- Returns an id that sorts before every lease id of a group in a partition; group 0 means any group.
CREATE FUNCTION skep._first_lease_id(partition_id bigint, group_queue_id integer) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$ SELECT (lpad(to_hex($1 << 21 | $2), 14, '0') || repeat('0', 18))::uuid $$;

-- Returns the offsets of messages with this id: a transaction id, or the id of a message without one. A message that
-- has a transaction id is never addressed by its own id. Producers choose transaction ids, so one may be equal to the
-- id of another message: is_own_id tells the two apart.
CREATE FUNCTION skep._queen_offsets(partition_id bigint, transaction_id text)
RETURNS TABLE ("offset" bigint, is_own_id boolean) LANGUAGE sql STABLE AS $$
    SELECT m."offset", false FROM skep.messages m WHERE m.partition_id = $1 AND m.transaction_id = $2
    UNION ALL
    SELECT m."offset", true FROM skep.messages m
    WHERE m.partition_id = $1 AND m."offset" = skep._offset_in(skep._partition_uuid($1), $2)
      AND m.transaction_id IS NULL
$$;

-- Returns the target of each ack: its partition and offset, the lease it counts for, and whether the group is done with
-- the message. A named lease counts only for its own partition, and its group is the one that acknowledges. An ack that
-- names no lease counts for the live lease of its group that contains the message, if there is one. A transaction id is
-- unique within the dedup window; beyond it, the leased message counts, or else the last one. If the text is the id of
-- one message and the transaction id of another, the ack is for the one in the named lease; if both or none are in it,
-- for the message with that id. So an ack that is repeated never completes the other message.
CREATE FUNCTION skep._queen_resolve_acks(partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[])
RETURNS SETOF skep.resolved_ack LANGUAGE sql STABLE AS $$
    SELECT item.ord, p.id, owner.id, q.name, p.name, m."offset",
           CASE WHEN item.lease IS NULL THEN CASE WHEN m.leased_to > m."offset"
               AND m.expires_at > clock_timestamp() THEN m.lease_id END
                WHEN named.members IS NULL THEN named.lease
                WHEN m.leased_to > m."offset" AND named.members[width_bucket(m.lease_id, named.members)] = m.lease_id
                    THEN m.lease_id END,
           coalesce(CASE WHEN m.first_offset IS NOT NULL THEN m.end_offset <= m."offset" OR m.done @> m."offset"
                         WHEN m."offset" IS NOT NULL THEN (SELECT true FROM skep.starts s
                                                           WHERE s.partition_id = p.id AND s.group_queue_id = owner.id
                                                           LIMIT 1) END, false)
    FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS item (address, transaction_id, group_name, lease, ord)
    LEFT JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = skep.partition_of(item.address) LIMIT 1) p ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q ON true
    LEFT JOIN LATERAL (  -- of a set: the first member of this partition
        SELECT item.lease, NULL::uuid[] AS members
        WHERE NOT skep._is_lease_set(item.lease) AND skep._partition_of_lease(item.lease) = p.id
        UNION ALL
        SELECT s.lease_ids[1 + width_bucket(skep._first_lease_id(p.id, 0), s.lease_ids)], s.lease_ids
        FROM (SELECT s.lease_ids || '{}' AS lease_ids FROM skep.lease_sets s
              WHERE skep._is_lease_set(item.lease) AND s.id = item.lease
              OFFSET 0) s  -- read once, even if it is toasted
    ) named ON true
    LEFT JOIN LATERAL (
        SELECT skep._group_queue_of_lease(named.lease) AS id WHERE skep._partition_of_lease(named.lease) = p.id
        UNION ALL
        SELECT g.id FROM skep.group_queues g
        WHERE skep._partition_of_lease(named.lease) IS DISTINCT FROM p.id
          AND g.queue_id = q.id AND g.group_name = skep._group_of(q.semantics, item.group_name)
    ) owner ON true
    LEFT JOIN LATERAL (
        SELECT m."offset", r.* FROM skep._queen_offsets(p.id, item.transaction_id) m
        LEFT JOIN LATERAL (
            SELECT r.first_offset, r.end_offset, r.leased_to, r.lease_id, r.expires_at, r.done FROM skep.runs r
            WHERE r.partition_id = p.id AND r.group_queue_id = owner.id AND r.first_offset <= m."offset"
            ORDER BY r.first_offset DESC LIMIT 1
        ) r ON true
        ORDER BY (r.leased_to > m."offset" AND r.lease_id = coalesce(
                      named.members[width_bucket(r.lease_id, named.members)], named.lease)) IS TRUE DESC,
                 m.is_own_id DESC, r.leased_to > m."offset" DESC NULLS LAST, m."offset" DESC LIMIT 1
    ) m ON true
$$;

-- For clients that list the leases of a transaction separately from its acks. Returns the lease of each ack: its own,
-- or the live lease of its group that contains the message, if that is required. Otherwise returns a lease id that
-- matches no lease, so the ack is rejected as stale.
CREATE FUNCTION skep._queen_find_leases(
    partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], required uuid[]
) RETURNS uuid[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(coalesce($4[f.ord], CASE WHEN f.lease = ANY (r.leases) THEN f.lease END,
                              '00000000-0000-0000-0000-000000000000')
                     ORDER BY f.ord)
    FROM (SELECT skep._leases_of($5) AS leases) r CROSS JOIN LATERAL skep._queen_resolve_acks($1, $2, $3, $4) f
$$;
CALL skep._allow('skep_consumer', '_queen_find_leases');

-- Returns the leases of which every message is acknowledged as completed, which is the usual case, and the number of
-- leases in these acks.
CREATE FUNCTION skep._queen_whole_leases(
    partition_ids uuid[], transaction_ids text[], leases uuid[], statuses text[], OUT whole uuid[], OUT count bigint
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(array_agg(named.lease) FILTER (WHERE acks.is_completed AND acks.ids = leased.ids), '{}'), count(*)
    INTO whole, _queen_whole_leases.count
    FROM (
        SELECT item.lease, item.address,
               array_agg(item.transaction_id ORDER BY item.transaction_id COLLATE "C") AS ids,
               bool_and(item.status = 'completed') AS is_completed
        FROM unnest(_queen_whole_leases.partition_ids, _queen_whole_leases.transaction_ids, _queen_whole_leases.leases,
                    _queen_whole_leases.statuses)
             AS item (address, transaction_id, lease, status)
        GROUP BY item.lease, item.address
    ) acks  -- sorted, because their order does not matter
    CROSS JOIN LATERAL (SELECT skep.partition_of(acks.address) AS id OFFSET 0) p
    CROSS JOIN LATERAL (
        SELECT CASE WHEN NOT skep._is_lease_set(acks.lease) THEN acks.lease ELSE (
            SELECT s.lease_ids[1 + width_bucket(skep._first_lease_id(p.id, 0), s.lease_ids)]
            FROM skep.lease_sets s WHERE s.id = acks.lease LIMIT 1) END AS lease OFFSET 0) named
    LEFT JOIN LATERAL (
        SELECT ARRAY(SELECT coalesce(m.transaction_id, skep._id_text(left(acks.address::text, 19), m."offset")) AS id
                     FROM skep.messages m
                     WHERE m.partition_id = p.id AND m."offset" >= r.first_offset AND m."offset" < r.leased_to
                       AND m.payload IS NOT NULL ORDER BY id) AS ids
        FROM skep.runs r
        WHERE r.partition_id = p.id AND r.group_queue_id = skep._group_queue_of_lease(named.lease)
          AND r.first_offset = ('x' || substr(replace(named.lease::text, '-', ''), 15, 8))::bit(32)::bigint
          AND r.lease_id IS NOT DISTINCT FROM named.lease LIMIT 1) leased ON true;
END $$;

-- Locks the open runs of leases in the order of their ids, which is the order of every ack. A call that acknowledges
-- whole leases before others would lock them in another order, and may deadlock with the next one if their partitions
-- are shared.
CREATE FUNCTION skep._lock_open_runs(leases uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT lease FROM unnest(leases) AS lease WHERE lease IS NOT NULL ORDER BY lease) l
    CROSS JOIN LATERAL (SELECT FROM skep.runs r
                        WHERE r.partition_id = skep._partition_of_lease(l.lease)
                          AND r.group_queue_id = skep._group_queue_of_lease(l.lease) AND r.end_offset IS NULL
                        ORDER BY r.first_offset DESC LIMIT 1 FOR NO KEY UPDATE) open;
END $$;

-- Returns which acks were for one of these whole leases. Other acks of the same call are judged by the state before it,
-- so these messages are not done for them, even if the call looked at them afterwards.
CREATE FUNCTION skep._mark_acked(INOUT targets skep.resolved_ack[], leases uuid[], acked uuid[], OUT is_acked boolean[])
LANGUAGE sql STABLE AS $$
    SELECT array_agg(ROW(f.ord, f.partition_id, f.group_queue_id, f.queue, f.partition, f."offset", f.lease,
                         f.done AND coalesce(((f."offset" - mine.first_offset) & 4294967295) >= 2147483648,
                                             true))::skep.resolved_ack
                     ORDER BY f.ord),
           array_agg(coalesce(CASE WHEN skep._is_lease_set($2[f.ord]) THEN (
                         SELECT s.lease_ids[width_bucket(mine.lease, s.lease_ids)] = mine.lease FROM skep.lease_sets s
                         WHERE s.id = $2[f.ord] LIMIT 1) ELSE mine.lease = $2[f.ord] END, false) ORDER BY f.ord)
    FROM unnest($1) f
    CROSS JOIN LATERAL (
        SELECT $3[nullif(width_bucket(skep._first_lease_id(f.partition_id, f.group_queue_id + 1), $3), 0)]
            AS lease OFFSET 0) last
    LEFT JOIN LATERAL (
        SELECT last.lease, ('x' || substr(replace(last.lease::text, '-', ''), 15, 8))::bit(32)::bigint AS first_offset
        WHERE skep._partition_of_lease(last.lease) = f.partition_id
          AND skep._group_queue_of_lease(last.lease) = f.group_queue_id
    ) mine ON true
$$;

-- Completes a lease if these acks are for all its messages, in order: the usual request of a client that has processed
-- a whole pop. It takes one statement, the same as in skep.ack(). Returns the names of the queue and the partition;
-- NULL if nothing has changed.
CREATE FUNCTION skep._queen_ack_lease(
    partition_id uuid, transaction_ids text[], lease uuid, OUT queue text, OUT partition text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    quiet integer;
BEGIN
    UPDATE skep.runs r
    SET first_offset = r.leased_to, lease_id = NULL, leased_to = NULL, expires_at = NULL,
        ready_at = skep._ready_time(r.served_at, key.stamp),
        drained = r.drained AND NOT EXISTS (SELECT FROM skep.messages m
                                            WHERE m.partition_id = r.partition_id AND m."offset" >= r.leased_to)
    FROM (SELECT skep._partition_of_lease(lease) AS partition_id, skep._group_queue_of_lease(lease) AS group_queue_id,
                 ('x' || substr(replace(lease::text, '-', ''), 15, 8))::bit(32)::bigint AS first_offset,
                 left(_queen_ack_lease.partition_id::text, 19) AS id_start, clock_timestamp() AS stamp OFFSET 0) key
    CROSS JOIN LATERAL (SELECT p.name AS partition, q.name AS queue
                        FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id
                        WHERE p.id = key.partition_id LIMIT 1) names
    WHERE r.partition_id = ANY (ARRAY[key.partition_id]) AND r.group_queue_id = key.group_queue_id
      AND r.first_offset = key.first_offset AND key.partition_id = skep.partition_of(_queen_ack_lease.partition_id)
      AND r.lease_id IS NOT DISTINCT FROM lease AND r.expires_at > key.stamp AND r.end_offset IS NULL
      AND NOT r.is_logged
      AND r.failed IS NULL AND r.done IS NULL AND r.cuts IS NULL
      AND transaction_ids = ARRAY(SELECT coalesce(m.transaction_id, skep._id_text(key.id_start, m."offset"))
                                  FROM skep.messages m WHERE m.partition_id = r.partition_id
                                     AND m."offset" >= r.first_offset AND m."offset" < r.leased_to
                                     AND m.payload IS NOT NULL ORDER BY m."offset")
    RETURNING names.queue, names.partition,
              CASE WHEN r.served_at < key.stamp - interval '10 seconds' THEN r.group_queue_id END
    INTO _queen_ack_lease.queue, _queen_ack_lease.partition, quiet;
    IF quiet IS NOT NULL THEN
        PERFORM skep._record_activity(quiet);
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_queen_ack_lease');

-- Translates Queen's statuses into those of _apply_acks().
CREATE FUNCTION skep._queen_statuses(statuses text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT CASE status WHEN 'dlq' THEN 'dead_letter' WHEN 'retry' THEN 'release'
                                    WHEN 'nack' THEN 'failed_at_once' ELSE status END
                 FROM unnest($1) WITH ORDINALITY AS item (status, n) ORDER BY n)
$$;

-- ack_many() with Queen's addresses and statuses. A repeat of an applied ack is not an error, but a noop. Queen's
-- clients forget the messages after one that they fail, so a lease with a failure and without all acks ends here, and
-- the rest is delivered again at once.
CREATE FUNCTION skep._queen_ack(
    partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], statuses text[], errors text[]
)
RETURNS TABLE (ord bigint, success boolean, noop boolean, error text, queue text, partition text, released boolean,
               dlq boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found    record;
    acked    uuid[] := '{}';  -- whole leases
    targets  skep.resolved_ack[];
    is_acked boolean[];  -- acknowledged with a whole lease
    applied  boolean[];
BEGIN
    found := skep._queen_whole_leases(_queen_ack.partition_ids, _queen_ack.transaction_ids, _queen_ack.leases,
                                      _queen_ack.statuses);
    IF cardinality(found.whole) = found.count THEN
        acked := skep._ack_leases(found.whole);
        IF cardinality(acked) = found.count THEN
            RETURN QUERY
            SELECT item.ord, true, false, NULL::text, q.name, p.name, true, false
            FROM unnest(_queen_ack.partition_ids) WITH ORDINALITY AS item (address, ord)
            CROSS JOIN LATERAL (SELECT p.name, p.queue_id FROM skep.partitions p
                                WHERE p.id = skep.partition_of(item.address) LIMIT 1) p
            CROSS JOIN LATERAL (SELECT q.name FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q;
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(f ORDER BY f.ord) INTO targets
    FROM skep._queen_resolve_acks(_queen_ack.partition_ids, _queen_ack.transaction_ids, _queen_ack.groups,
                                  _queen_ack.leases) f;
    IF found.whole <> '{}' AND cardinality(found.whole) < found.count THEN
        PERFORM skep._lock_open_runs(found.whole || ARRAY(SELECT f.lease FROM unnest(targets) f));
        acked := skep._ack_leases(found.whole);
    END IF;
    IF acked <> '{}' THEN
        SELECT m.targets, m.is_acked INTO targets, is_acked
        FROM skep._mark_acked(targets, _queen_ack.leases, acked) m;
    END IF;
    SELECT array_agg(a.applied OR coalesce(is_acked[a.ord], false) ORDER BY a.ord) INTO applied
    FROM (SELECT array_agg(CASE WHEN f."offset" IS NOT NULL AND is_acked[f.ord] IS NOT TRUE THEN f.lease END) AS leases,
                 array_agg(f.partition_id) AS partition_ids, array_agg(f."offset") AS offsets
          FROM unnest(targets) f) acks
    CROSS JOIN LATERAL skep._apply_acks(acks.leases, acks.partition_ids, acks.offsets,
                                        skep._queen_statuses(_queen_ack.statuses), _queen_ack.errors) a;
    IF 'failed' = ANY (_queen_ack.statuses) THEN
        PERFORM skep._end_lease(leased.row_id, leased.run, 'failed_at_once')
        FROM (SELECT DISTINCT f.lease FROM unnest(targets) f
              WHERE _queen_ack.statuses[f.ord] = 'failed' AND f.lease IS NOT NULL ORDER BY 1) f
        CROSS JOIN LATERAL skep._lock_lease(f.lease) leased WHERE (leased.run).failed IS NOT NULL;
    END IF;
    RETURN QUERY
    SELECT f.ord, o.yes OR o.noop, NOT o.yes AND o.noop,
           CASE WHEN o.yes OR o.noop THEN NULL
                WHEN f."offset" IS NULL THEN 'Message not found'
                WHEN f.done THEN 'already committed: the group is past this message'
                ELSE 'Invalid or expired lease' END,
           f.queue, f.partition, o.yes AND o.is_over,
           o.yes AND (o.status = 'dlq' OR o.status IN ('failed', 'nack') AND o.is_over AND o.is_done)
    FROM unnest(targets) f
    LEFT JOIN LATERAL (  -- the state after the acks
        SELECT r.first_offset, r.end_offset, r.lease_id, r.done FROM skep.runs r
        WHERE r.partition_id = f.partition_id AND r.group_queue_id = f.group_queue_id AND r.first_offset <= f."offset"
        ORDER BY r.first_offset DESC LIMIT 1
    ) run ON true
    CROSS JOIN LATERAL (
        SELECT applied[f.ord] AS yes, _queen_ack.statuses[f.ord] AS status,
               f.done AND _queen_ack.statuses[f.ord] = 'completed' AS noop,
               is_acked[f.ord] IS TRUE OR run.lease_id IS DISTINCT FROM f.lease AS is_over,
               run.first_offset IS NULL OR coalesce(run.end_offset <= f."offset", false)
               OR coalesce(run.done @> f."offset", false) AS is_done) o
    ORDER BY f.ord;
END $$;
CALL skep._allow('skep_consumer', '_queen_ack');

-- Applies acks and pushes, all or nothing. A stale ack or a duplicate push rolls everything back.
CREATE FUNCTION skep._queen_transaction(
    partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], statuses text[], errors text[],
    messages jsonb, OUT dlq boolean[], OUT stored_in bigint[], OUT offsets bigint[], OUT delayed jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    refused text;
    repeats boolean[];
BEGIN
    SELECT array_agg(a.dlq ORDER BY a.ord),
           min(CASE WHEN a.noop THEN 'already committed: the group is past this message' ELSE a.error END)
    INTO dlq, refused
    FROM skep._queen_ack(_queen_transaction.partition_ids, _queen_transaction.transaction_ids,
                         _queen_transaction.groups, _queen_transaction.leases, _queen_transaction.statuses,
                         _queen_transaction.errors) a;
    IF refused IS NOT NULL THEN
        PERFORM skep._refuse('SK003', 'ACK operation failed: ' || refused);
    END IF;
    IF messages <> '[]' THEN
        SELECT p.duplicates, p.partition_ids, p.offsets, p.delayed INTO repeats, stored_in, offsets, delayed
        FROM skep._push_messages(messages) p;
        IF true = ANY (repeats) THEN
            PERFORM skep._refuse('SK007', format('duplicate transactionId %s',
                                                messages -> (array_position(repeats, true) - 1) -> 'transaction_id'));
        END IF;
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_queen_transaction', definer => false);
