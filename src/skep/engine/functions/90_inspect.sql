-- Looking at the log: lag, views for people, and the checks that the log is whole.

CREATE VIEW skep.lanes AS
    SELECT q.name AS queue, p.name AS partition, l.partition_id, l.first_offset, l.last_offset,
           l.last_offset - l.first_offset + 1 AS messages,
           CASE WHEN l.last_offset >= 0 THEN skep.message_id(l.partition_id, l.last_offset) END AS last_message_id,
           nullif(l.last_created_at, '-infinity') AS last_created_at, p.created_at
    FROM skep.partition_lookup l
    JOIN skep.partitions p ON p.id = l.partition_id
    JOIN skep.queues q ON q.id = p.queue_id;

-- What a group has still to do in each lane, met or not. lag counts what is not done yet, leased or not.
CREATE FUNCTION skep.lag(group_name text, queue text DEFAULT NULL, partition text DEFAULT NULL)
RETURNS TABLE (queue text, partition text, cursor bigint, last_offset bigint, lag bigint, leased integer, last_consumed_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT q.name, p.name, coalesce(c.cursor, s.start_offset), l.last_offset,
           greatest(l.last_offset + 1 - greatest(coalesce(c.cursor, s.start_offset), l.first_offset), 0),
           coalesce(c.leased, 0), c.last_consumed_at
    FROM skep.queues q
    LEFT JOIN skep.readers r ON r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, $1)
    JOIN skep.partitions p ON p.queue_id = q.id
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id ORDER BY l.generation DESC LIMIT 1) l
    LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = r.id ORDER BY c.next_offset DESC LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.starts(skep.group_on(q.semantics, $1), q.id, ARRAY[p.id]) WHERE c.reader_id IS NULL) s ON true
    WHERE ($2 IS NULL OR q.name = $2) AND ($3 IS NULL OR p.name = $3) AND (p.only_group IS NULL OR p.only_group = r.group_name)
      AND (r.id IS NOT NULL OR (skep.subscription_of($1, q.name, p.name, q.namespace, q.task)).id IS NOT NULL)
$$;

-- Queues with their options and sizes; one, or all.
CREATE FUNCTION skep.queue_status(queue text DEFAULT NULL)
RETURNS TABLE (name text, namespace text, task text, partitions bigint, messages bigint, last_created_at timestamptz, groups bigint,
               dead_letters bigint, options jsonb, created_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT q.name, q.namespace, q.task, lane.partitions, lane.messages, lane.last_created_at,
           (SELECT count(*) FROM skep.readers r WHERE r.queue_id = q.id),
           (SELECT count(*) FROM skep.dead_letters d WHERE d.queue = q.name),
           (SELECT jsonb_object_agg(key, value) FROM jsonb_each(to_jsonb(q)) WHERE key = ANY (skep.queue_options())), q.created_at
    FROM skep.queues q
    CROSS JOIN LATERAL (
        SELECT count(*) AS partitions, coalesce(sum(l.last_offset - l.first_offset + 1), 0)::bigint AS messages,
               nullif(max(l.last_created_at), '-infinity') AS last_created_at
        FROM skep.partitions p JOIN skep.partition_lookup l ON l.partition_id = p.id WHERE p.queue_id = q.id
    ) lane
    WHERE $1 IS NULL OR q.name = $1
$$;

-- Lanes whose partition_lookup row is not what the messages say. 0 is the only good answer.
CREATE FUNCTION skep.stale_partitions() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM skep.partitions p
    LEFT JOIN skep.partition_lookup l ON l.partition_id = p.id
    LEFT JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = p.id ORDER BY m."offset" DESC LIMIT 1) last ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = p.id ORDER BY m."offset" LIMIT 1) first ON true
    WHERE l.partition_id IS NULL
       OR last."offset" IS NULL AND l.last_offset <> l.first_offset - 1
       OR last."offset" IS NOT NULL AND (l.last_offset, l.first_offset, l.last_created_at)
                                        IS DISTINCT FROM (last."offset", first."offset", last.created_at)
$$;

-- Repairs them from the messages. Safe while pushes run: it takes the lanes' locks, in their order. Returns how many it changed.
CREATE FUNCTION skep.resync_partition_lookup() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    added    bigint[];
    repaired bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(x'736b7273'::integer, 0);  -- two at once could add the same row
    WITH missing AS (
        INSERT INTO skep.partition_lookup (partition_id)
        SELECT p.id FROM skep.partitions p LEFT JOIN skep.partition_lookup l ON l.partition_id = p.id
        WHERE l.partition_id IS NULL ORDER BY p.id
        RETURNING partition_id
    )
    SELECT array_agg(partition_id) INTO added FROM missing;
    PERFORM FROM skep.partition_lookup ORDER BY partition_id FOR NO KEY UPDATE;
    WITH wrong AS (
    UPDATE skep.partition_lookup l
    SET last_offset = real.last_offset, first_offset = real.first_offset, last_created_at = real.last_created_at
    FROM (
        SELECT old.partition_id, coalesce(last."offset", old.last_offset) AS last_offset,
               coalesce(first."offset", old.last_offset + 1) AS first_offset,
               coalesce(last.created_at, old.last_created_at) AS last_created_at
        FROM skep.partition_lookup old
        LEFT JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = old.partition_id
                           ORDER BY m."offset" DESC LIMIT 1) last ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = old.partition_id
                           ORDER BY m."offset" LIMIT 1) first ON true
    ) real
    WHERE l.partition_id = real.partition_id
      AND (l.last_offset, l.first_offset, l.last_created_at)
          IS DISTINCT FROM (real.last_offset, real.first_offset, real.last_created_at)
    RETURNING l.partition_id
    )
    SELECT array_agg(partition_id) INTO repaired FROM wrong;
    RETURN (SELECT count(DISTINCT lane) FROM unnest(added || repaired) AS lane);
END $$;

-- Every invariant the functions rely on, and how often it is broken. Reads everything: for tests and for a bad day.
CREATE FUNCTION skep.check_consistency() RETURNS TABLE (invariant text, broken bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'partition_lookup matches the messages', skep.stale_partitions()
    UNION ALL
    SELECT 'offsets are dense', count(*) FROM (
        SELECT m.partition_id FROM skep.messages m GROUP BY m.partition_id
        HAVING max(m."offset") - min(m."offset") + 1 <> count(*)) gap
    UNION ALL
    SELECT 'created_at never decreases', count(*) FROM (
        SELECT created_at < lag(created_at) OVER (PARTITION BY partition_id ORDER BY "offset") AS back FROM skep.messages) m WHERE back
    UNION ALL
    SELECT 'cursors count their leases', count(*) FROM skep.cursors c
    LEFT JOIN LATERAL (SELECT count(s.token) AS leased, count(*) - count(s.token) AS returned, min(s.first_offset) AS lowest
                       FROM skep.leases s WHERE s.partition_id = c.partition_id AND s.reader_id = c.reader_id) s ON true
    WHERE (c.leased, c.returned, c.cursor) IS DISTINCT FROM (s.leased::integer, s.returned::integer, coalesce(s.lowest, c.next_offset))
    UNION ALL
    SELECT 'leases are disjoint and below next_offset', count(*) FROM (
        SELECT s.*, lag(s.end_offset) OVER (PARTITION BY s.partition_id, s.reader_id ORDER BY s.first_offset) AS previous_end
        FROM skep.leases s) s
    LEFT JOIN skep.cursors c ON c.partition_id = s.partition_id AND c.reader_id = s.reader_id
    WHERE s.first_offset < s.previous_end OR c.reader_id IS NULL OR s.end_offset > c.next_offset
    UNION ALL
    SELECT 'a lane with work is in line', count(*) FROM skep.cursors c
    JOIN skep.partition_lookup l ON l.partition_id = c.partition_id
    JOIN skep.readers r ON r.id = c.reader_id
    WHERE c.ready_at IS NULL AND (c.leased + c.returned > 0 OR c.next_offset <= l.last_offset AND NOT EXISTS (
        SELECT FROM skep.journal j WHERE j.queue_id = r.queue_id AND c.partition_id = ANY (j.partition_ids)
                                     AND NOT pg_visible_in_snapshot(j.xid, (SELECT k.snapshot FROM skep.looks k WHERE k.reader_id = r.id))))
    UNION ALL
    SELECT 'one row for each lane and reader', count(*) FROM (
        SELECT FROM skep.cursors GROUP BY partition_id, reader_id HAVING count(*) > 1
        UNION ALL SELECT FROM skep.partition_lookup GROUP BY partition_id HAVING count(*) > 1
        UNION ALL SELECT FROM skep.readers r LEFT JOIN skep.looks k ON k.reader_id = r.id GROUP BY r.id HAVING count(k.reader_id) <> 1) odd
$$;

-- Forgets journal rows that are older than this and committed. A reader that has not seen them looks at every lane once.
CREATE FUNCTION skep.prune_journal(older_than interval DEFAULT '10 minutes') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
    newest xid8;
BEGIN
    PERFORM skep.settle_restored();
    WITH gone AS (
        DELETE FROM skep.journal j
        WHERE j.created_at < clock_timestamp() - older_than AND j.xid < pg_snapshot_xmin(pg_current_snapshot())
        RETURNING j.xid
    )
    SELECT count(*), max(gone.xid::text::bigint)::text::xid8 INTO pruned, newest FROM gone;
    UPDATE skep.journal_floor f SET xid = (newest::text::bigint + 1)::text::xid8 WHERE f.xid <= newest;
    RETURN pruned;
END $$;

-- Messages as they are stored, whoever has consumed them: of one lane, or lane by lane. A deleted one has no payload. Offsets are dense, so
-- that heads tell how many messages each lane has to give, and no more are read than shown.
CREATE FUNCTION skep.peek(queue text, partition text DEFAULT NULL, first_offset bigint DEFAULT 0, max_rows integer DEFAULT 100)
RETURNS TABLE (queue text, partition text, "offset" bigint, id uuid, payload jsonb, headers jsonb, transaction_id text, trace_id uuid, producer text,
               created_at timestamptz, deleted boolean)
LANGUAGE sql STABLE AS $$
    SELECT q.name, lane.name, m."offset", skep.message_id(lane.id, m."offset"), m.payload, m.headers, m.transaction_id, m.trace_id, m.producer,
           m.created_at, m.payload IS NULL
    FROM skep.queues q
    CROSS JOIN LATERAL (
        SELECT p.id, p.name, sum(p.messages) OVER (ORDER BY p.name) - p.messages AS before FROM (
            (SELECT p.id, p.name, $4::bigint AS messages FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = $2 LIMIT 1)
            UNION ALL
            (SELECT p.id, p.name, l.last_offset + 1 - greatest(l.first_offset, $3) FROM skep.partitions p
             CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id ORDER BY l.generation DESC LIMIT 1) l
             WHERE $2 IS NULL AND p.queue_id = q.id AND l.last_offset >= greatest(l.first_offset, $3) ORDER BY p.name LIMIT $4)
        ) p
    ) lane
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = lane.id AND m."offset" >= $3
                        ORDER BY m."offset" LIMIT greatest($4 - lane.before, 0)) m
    WHERE q.name = $1 ORDER BY lane.name, m."offset"
$$;

-- One message, by its id.
CREATE FUNCTION skep.find(message uuid)
RETURNS TABLE (queue text, partition text, "offset" bigint, id uuid, payload jsonb, headers jsonb, transaction_id text, trace_id uuid, producer text,
               created_at timestamptz, deleted boolean)
LANGUAGE sql STABLE AS $$
    SELECT found.* FROM skep.partitions p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL skep.peek(q.name, p.name, skep.offset_of($1), 1) found
    WHERE p.id = skep.partition_of($1) AND found.id = $1
$$;
