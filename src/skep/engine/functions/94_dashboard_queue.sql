-- One queue as the dashboard shows it: its lanes, who is behind in them, who holds back retention, and what is leased.

-- What each group of a queue has still to do, lane by lane. owed: what of it is kept for the group, as obligations() says. So a group without
-- backfill does not hold back what was there before it, nor one that subscribed to other lanes only.
CREATE FUNCTION skep.dash_debts(queue text, only_group text)
RETURNS TABLE (group_name text, status text, partition_id bigint, lag bigint, owed bigint, leased integer, oldest_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT g.name, g.status, l.partition_id, l.lag,
           CASE WHEN own.backfill OR own.id IS NULL AND g.backfill THEN l.lag
                WHEN own.id IS NOT NULL OR g.subscribed
                THEN least(l.lag, h.last_offset + 1 - skep.offset_at(l.partition_id, coalesce(own.created_at, g.created_at))) ELSE 0 END,
           l.leased, l.oldest_at
    FROM (
        SELECT q.id, who.name, r.id AS reader_id, coalesce(s.status, 'ACTIVE') AS status, s.created_at, s.id IS NOT NULL AS subscribed,
               coalesce(s.backfill, q.semantics = 'queue') AS backfill
        FROM skep.queues q
        CROSS JOIN LATERAL (
            SELECT r.group_name AS name FROM skep.readers r WHERE r.queue_id = q.id
            UNION
            SELECT skep.group_on(q.semantics, s.group_name) FROM skep.subscriptions s
            WHERE s.queue = q.name OR s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task)
        ) who
        LEFT JOIN skep.readers r ON r.queue_id = q.id AND r.group_name = who.name
        LEFT JOIN LATERAL skep.subscription_of(who.name, q.name, NULL, q.namespace, q.task) s ON true
        WHERE q.name = $1 AND ($2 IS NULL OR who.name = $2)
    ) g
    CROSS JOIN LATERAL skep.group_lanes(g.name, g.id, g.reader_id) l
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup h WHERE h.partition_id = l.partition_id ORDER BY h.generation DESC LIMIT 1) h
    LEFT JOIN LATERAL (SELECT * FROM skep.subscriptions own WHERE own.group_name = g.name AND coalesce(own.queue, '') = $1
                          AND coalesce(own.partition, '') = l.partition LIMIT 1) own ON true
    WHERE l.lag > 0 AND g.status <> 'CANCELLED'
$$;

-- The lanes of a queue: what is kept, how much waits for the group that is furthest behind, or for one group, and since when. rate: messages a
-- second of the last hundred, in lanes that were written to in the last minutes.
CREATE FUNCTION skep.dash_lane_rows(queue text, group_name text)
RETURNS TABLE (partition text, kept bigint, lag bigint, leased bigint, pushed bigint, rate double precision, seconds double precision, behind text,
               first_offset bigint, last_created_at timestamptz)
LANGUAGE sql VOLATILE AS $$
    SELECT p.name, h.last_offset - h.first_offset + 1, place.lag, place.leased, h.last_offset + 1,
           coalesce((h.last_offset - m."offset" + 1) / greatest(extract(epoch FROM clock_timestamp() - m.created_at)::double precision, 1), 0),
           greatest(extract(epoch FROM clock_timestamp() - place.oldest_at), 0)::double precision, place.behind, h.first_offset,
           nullif(h.last_created_at, '-infinity')
    FROM (
        -- Put together by grouping: a join could be planned for a few lanes and meet a hundred thousand.
        SELECT l.id, max(l.lag) AS lag, sum(l.leased) AS leased, min(l.oldest_at) AS oldest_at,
               (array_agg(l.group_name ORDER BY l.lag DESC, l.group_name))[1] AS behind
        FROM (
            SELECT p.id, 0 AS lag, 0 AS leased, NULL::timestamptz AS oldest_at, NULL AS group_name
            FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
            WHERE q.name = $1 AND ($2 IS NULL OR p.only_group IS NULL OR p.only_group = $2)
            UNION ALL
            SELECT d.partition_id, d.lag, d.leased, d.oldest_at, d.group_name FROM skep.dash_debts($1, $2) d
            WHERE $2 IS NOT NULL OR d.status <> 'DEAD'
        ) l GROUP BY l.id
    ) place
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = place.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup h WHERE h.partition_id = place.id ORDER BY h.generation DESC LIMIT 1) h
    LEFT JOIN LATERAL (SELECT m."offset", m.created_at FROM skep.messages m
                       WHERE h.last_created_at > clock_timestamp() - interval '5 minutes' AND m.partition_id = place.id
                         AND m."offset" = greatest(h.first_offset, h.last_offset - 99) LIMIT 1) m ON true
$$;

-- The first so many in the order of a column, and how evenly all are used. NULL: no such queue.
CREATE FUNCTION skep.dash_lanes(queue text, group_name text, sort text, max_rows integer) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH lane AS MATERIALIZED (
        SELECT l.* FROM skep.queues q CROSS JOIN LATERAL skep.dash_lane_rows($1, skep.group_on(q.semantics, $2)) l WHERE q.name = $1),
    total AS (
        SELECT count(*) AS partitions, coalesce(sum(l.kept), 0) AS kept, coalesce(sum(l.lag), 0) AS lag, coalesce(sum(l.pushed), 0) AS pushed,
               coalesce(max(l.pushed), 0) AS top_pushed, count(*) FILTER (WHERE l.kept = 0) AS idle FROM lane l)
    SELECT to_jsonb(total) || jsonb_build_object('lanes', coalesce((
        SELECT jsonb_agg(to_jsonb(l) - 'n' ORDER BY l.n)
        FROM (SELECT l.*, row_number() OVER (ORDER BY CASE $3 WHEN 'kept' THEN l.kept WHEN 'pushed' THEN l.pushed WHEN 'rate' THEN l.rate
                         WHEN 'oldest' THEN l.seconds WHEN 'recent' THEN extract(epoch FROM l.last_created_at)::double precision
                         ELSE l.lag END DESC NULLS LAST, l.partition) AS n
              FROM lane l ORDER BY n LIMIT $4) l), '[]'))
    FROM total WHERE EXISTS (SELECT FROM skep.queues q WHERE q.name = $1)
$$;

-- Who keeps messages of a queue from being deleted as completed: for each group the lanes in which nobody stands further back, and what is kept
-- for it in all of them; and what waits for the archive, if retention does.
CREATE FUNCTION skep.dash_holders(queue text) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH debt AS (
        SELECT d.*, d.status <> 'DEAD' AND d.owed = max(d.owed) FILTER (WHERE d.status <> 'DEAD') OVER (PARTITION BY d.partition_id) AS is_floor
        FROM skep.dash_debts($1, NULL) d WHERE d.owed > 0)
    SELECT json_build_object(
        'groups', (SELECT coalesce(json_agg(to_json(g) ORDER BY g.floors DESC, g.pending DESC, g."group"), '[]') FROM (
            SELECT d.group_name AS "group", d.status, count(*) FILTER (WHERE d.is_floor) AS floors, count(*) AS lanes, sum(d.owed) AS pending,
                   min(d.oldest_at) AS oldest_at FROM debt d GROUP BY d.group_name, d.status) g),
        'archive', (SELECT json_build_object('lanes', count(*), 'pending', coalesce(sum(h.last_offset + 1 - greatest(a.end_offset, h.first_offset)), 0))
                    FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id JOIN skep.partition_lookup h ON h.partition_id = p.id
                    LEFT JOIN skep.archive_marks a ON a.partition_id = p.id
                    WHERE q.name = $1 AND q.retain_until_archived AND h.last_offset >= greatest(a.end_offset, h.first_offset)
                    HAVING bool_or(q.retain_until_archived)),
        'kept_since', (SELECT s.oldest_at FROM skep.samples s WHERE s.queue = $1 AND s.group_name = '' ORDER BY s.at DESC LIMIT 1))
$$;

-- What a group has out: each lease is what one pop of one consumer has got, soonest to end first. again: runs that wait for their next delivery.
CREATE FUNCTION skep.dash_leases(queue text, group_name text, max_rows integer) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH reader AS MATERIALIZED (
        SELECT r.id FROM skep.queues q JOIN skep.readers r ON r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, $2) WHERE q.name = $1),
    lease AS MATERIALIZED (
        SELECT run.token, count(*) AS partitions, sum(run.end_offset - run.first_offset) AS messages, max(run.attempt) AS attempt,
               sum(run.end_offset - run.first_offset - skep.count_offsets(run.done) - skep.count_offsets(run.failed)) AS unanswered,
               min(run.expires_at) AS expires_at, min(run.partition_id) AS partition_id, min(c.last_consumed_at) AS since
        FROM reader
        CROSS JOIN LATERAL (SELECT * FROM skep.leases run WHERE run.reader_id = reader.id AND run.expires_at > clock_timestamp()) run
        LEFT JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = run.partition_id AND c.reader_id = reader.id ORDER BY c.next_offset DESC LIMIT 1) c ON true
        GROUP BY run.token)
    SELECT json_build_object('total', (SELECT count(*) FROM lease),
        'again', (SELECT count(*) FROM reader JOIN skep.leases run ON run.reader_id = reader.id AND run.expires_at IS NULL),
        'leases', coalesce((SELECT json_agg(json_build_object('lease', l.token, 'partition', p.name, 'partitions', l.partitions, 'messages', l.messages,
                                'unanswered', l.unanswered, 'attempt', l.attempt, 'since', l.since, 'expires_at', l.expires_at) ORDER BY l.expires_at, l.token)
                            FROM (SELECT * FROM lease l ORDER BY l.expires_at, l.token LIMIT $3) l
                            JOIN skep.partitions p ON p.id = l.partition_id), '[]'))
$$;
