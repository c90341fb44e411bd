-- One queue in the dashboard: its partitions, the groups that are behind in them, the groups that retention waits for,
-- and leases.

-- Returns the backlog of each group of a queue, partition by partition. kept: the part of it that retention keeps for
-- the group. Retention keeps no messages from before its subscription for a group without backfill, nor for a group
-- that subscribed to other partitions only.
CREATE FUNCTION skep._dashboard_backlogs(queue text, only_group text)
RETURNS TABLE (group_name text, status text, is_waited_for boolean, partition_id bigint, lag bigint, kept bigint,
               leased integer, oldest_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT g.name, g.status, g.is_waited_for, l.partition_id, l.lag,
           CASE WHEN own.backfill OR own.id IS NULL AND g.backfill THEN l.lag
                WHEN own.id IS NOT NULL THEN
                    least(l.lag, h.last_offset + 1
                          - skep._offset_at(l.partition_id, own.created_at, own.start_snapshot))
                WHEN g.subscribed THEN
                    least(l.lag, h.last_offset + 1 - skep._offset_at(l.partition_id, g.created_at, g.start_snapshot))
                ELSE 0 END,
           l.leased, l.oldest_at
    FROM (
        SELECT q.id, member.name, read.id AS group_queue_id, coalesce(s.status, 'ACTIVE') AS status, s.created_at,
               s.start_snapshot, s.id IS NOT NULL AS subscribed,
               coalesce(s.backfill, q.semantics = 'queue') AS backfill,
               s.status IS DISTINCT FROM 'DEAD'
               OR s.status_changed_at > clock_timestamp() - skep._seconds(q.dead_group_grace_seconds) AS is_waited_for
        FROM skep.queues q
        CROSS JOIN LATERAL (
            SELECT g.group_name AS name FROM skep.group_queues g WHERE g.queue_id = q.id
            UNION
            SELECT skep._group_of(q.semantics, s.group_name) FROM skep.subscriptions s
            WHERE s.queue = q.name
               OR s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = q.namespace)
               AND (s.task IS NULL OR s.task = q.task)
        ) member
        LEFT JOIN skep.group_queues read ON read.queue_id = q.id AND read.group_name = member.name
        LEFT JOIN LATERAL skep._subscription_of(member.name, q.name, NULL, q.namespace, q.task) s ON true
        WHERE q.name = $1 AND ($2 IS NULL OR member.name = $2)
    ) g
    CROSS JOIN LATERAL skep._group_report(g.name, g.id, g.group_queue_id) l
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup h WHERE h.partition_id = l.partition_id LIMIT 1) h
    LEFT JOIN LATERAL (SELECT * FROM skep.subscriptions own
                       WHERE own.group_name = g.name AND coalesce(own.queue, '') = $1
                          AND coalesce(own.partition, '') = l.partition LIMIT 1) own ON true
    WHERE l.lag > 0 AND g.status <> 'CANCELLED'
$$;

-- Returns the partitions of a queue: kept messages, the lag of the group that is furthest behind, or of one group, and
-- the age of its oldest message. rate: messages per second among the last hundred, in partitions with pushes in the
-- last minutes.
CREATE FUNCTION skep._dashboard_partition_rows(queue text, group_name text)
RETURNS TABLE (partition text, kept bigint, lag bigint, leased bigint, pushed bigint, rate double precision,
               seconds double precision, behind text,
               first_offset bigint, last_created_at timestamptz)
LANGUAGE sql VOLATILE AS $$
    SELECT p.name, h.last_offset - h.first_offset + 1, progress.lag, progress.leased, h.last_offset + 1,
           coalesce((h.last_offset - m."offset"
                     + 1) / greatest(extract(epoch FROM clock_timestamp() - m.created_at)::double precision,
                                     1), 0),
           greatest(extract(epoch FROM clock_timestamp() - progress.oldest_at), 0)::double precision, progress.behind,
               h.first_offset, nullif(h.last_created_at, '-infinity')
    FROM (
        -- Combined by grouping, because a join could be planned for a few partitions and get a hundred thousand.
        SELECT l.id, max(l.lag) AS lag, sum(l.leased) AS leased, min(l.oldest_at) AS oldest_at,
               (array_agg(l.group_name ORDER BY l.lag DESC, l.group_name))[1] AS behind
        FROM (
            SELECT p.id, 0 AS lag, 0 AS leased, NULL::timestamptz AS oldest_at, NULL AS group_name
            FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
            WHERE q.name = $1 AND ($2 IS NULL OR p.only_group IS NULL OR p.only_group = $2)
            UNION ALL
            SELECT d.partition_id, d.lag, d.leased, d.oldest_at, d.group_name FROM skep._dashboard_backlogs($1, $2) d
            WHERE $2 IS NOT NULL OR d.status <> 'DEAD'
        ) l GROUP BY l.id
    ) progress
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = progress.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup h WHERE h.partition_id = progress.id LIMIT 1) h
    LEFT JOIN LATERAL (SELECT m."offset", m.created_at FROM skep.messages m
                       WHERE h.last_created_at > clock_timestamp() - interval '5 minutes'
                         AND m.partition_id = progress.id
                         AND m."offset" = greatest(h.first_offset, h.last_offset - 99) LIMIT 1) m ON true
$$;

-- Returns the first max_rows partitions by a column, and how evenly all partitions are used; NULL if there is no such
-- queue.
CREATE FUNCTION skep._dashboard_partitions(queue text, group_name text, sort text, max_rows integer) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH partition AS MATERIALIZED (
        SELECT l.* FROM skep.queues q CROSS JOIN LATERAL skep._dashboard_partition_rows(_dashboard_partitions.queue,
            skep._group_of(q.semantics, _dashboard_partitions.group_name)) l
                WHERE q.name = _dashboard_partitions.queue), total AS (
        SELECT count(*) AS partitions, coalesce(sum(l.kept), 0) AS kept, coalesce(sum(l.lag), 0) AS lag,
               coalesce(sum(l.pushed), 0) AS pushed,
               coalesce(max(l.pushed), 0) AS top_pushed, count(*) FILTER (WHERE l.kept = 0) AS idle FROM partition l)
    SELECT to_jsonb(total) || jsonb_build_object('rows', coalesce((
        SELECT jsonb_agg(to_jsonb(l) - 'n' ORDER BY l.n)
        FROM (SELECT l.*, row_number() OVER (ORDER BY CASE sort WHEN 'kept' THEN l.kept WHEN 'pushed' THEN l.pushed
                                             WHEN 'rate' THEN l.rate
                         WHEN 'oldest' THEN l.seconds WHEN 'recent'
                             THEN extract(epoch FROM l.last_created_at)::double precision
                         ELSE l.lag END DESC NULLS LAST, l.partition) AS n
              FROM partition l ORDER BY n LIMIT max_rows) l), '[]'))
    FROM total WHERE EXISTS (SELECT FROM skep.queues q WHERE q.name = _dashboard_partitions.queue)
$$;
CALL skep._allow('skep_admin', '_dashboard_partitions');

-- Returns the groups that keep messages of a queue from being deleted as completed: the number of partitions in which
-- no group has a lower cursor, and the messages that are kept for the group in all of them. Also returns the messages
-- that wait for the archive, if retention does.
CREATE FUNCTION skep._dashboard_holders(queue text) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH backlog AS (
        SELECT d.*, d.is_waited_for AND d.kept
            = max(d.kept) FILTER (WHERE d.is_waited_for) OVER (PARTITION BY d.partition_id) AS is_floor
        FROM skep._dashboard_backlogs($1, NULL) d WHERE d.kept > 0)
    SELECT json_build_object(
        'groups', (SELECT coalesce(json_agg(to_json(g) ORDER BY g.floors DESC, g.pending DESC, g."group"), '[]') FROM (
            SELECT d.group_name AS "group", d.status, count(*) FILTER (WHERE d.is_floor) AS floors,
                   count(*) AS partitions, sum(d.kept) AS pending,
                   min(d.oldest_at) AS oldest_at FROM backlog d GROUP BY d.group_name, d.status) g),
        'archive', (SELECT json_build_object('partitions', count(*),
                                             'pending', coalesce(sum(h.last_offset + 1
                                                 - greatest(a.end_offset, h.first_offset)), 0))
                    FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
                    JOIN skep.partition_lookup h ON h.partition_id = p.id
                    LEFT JOIN skep.archive_marks a ON a.partition_id = p.id
                    WHERE q.name = $1 AND q.retain_until_archived
                      AND h.last_offset >= greatest(a.end_offset, h.first_offset)
                    HAVING bool_or(q.retain_until_archived)),
        'kept_since', (SELECT s.oldest_at FROM skep.samples s WHERE s.queue = $1 AND s.group_name = ''
                       ORDER BY s.at DESC LIMIT 1))
$$;
CALL skep._allow('skep_admin', '_dashboard_holders');

-- Returns the leases of a group, by expiry. again: the number of runs that wait for their next delivery.
CREATE FUNCTION skep._dashboard_leases(queue text, group_name text, max_rows integer) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH reading AS MATERIALIZED (
        SELECT g.id, g.list_id FROM skep.queues q
        JOIN skep.group_queues g ON g.queue_id = q.id AND g.group_name = skep._group_of(q.semantics, $2)
        WHERE q.name = $1),
    lease AS MATERIALIZED (
        SELECT r.* FROM reading g
        CROSS JOIN LATERAL (SELECT * FROM skep.runs r
                            WHERE r.list_id = g.list_id AND r.lease_id IS NOT NULL AND r.group_queue_id = g.id
                              AND r.expires_at > clock_timestamp()) r),
    waiting AS (
        SELECT coalesce(sum(cardinality(r.cuts)), 0) AS runs FROM reading g
        CROSS JOIN LATERAL (SELECT * FROM skep.runs r
                            WHERE r.list_id = g.list_id AND r.ready_at IS NOT NULL AND r.lease_id IS NULL
                              AND NOT r.drained AND r.group_queue_id = g.id) r)
    SELECT json_build_object('total', (SELECT count(*) FROM lease), 'again', (SELECT w.runs FROM waiting w),
        'leases', coalesce((SELECT json_agg(json_build_object(
                                'lease', l.lease_id, 'partition', p.name, 'partitions', 1,
                                'messages', l.leased_to - l.first_offset,
                                'unanswered', skep._count_offsets(int8multirange(int8range(l.first_offset, l.leased_to))
                                                                 - coalesce(l.done, '{}') - coalesce(l.failed, '{}')),
                                'attempt', coalesce(l.attempts[1], 1), 'since', l.served_at, 'expires_at', l.expires_at)
                                ORDER BY l.expires_at, l.lease_id)
                            FROM (SELECT * FROM lease l ORDER BY l.expires_at, l.lease_id LIMIT $3) l
                            JOIN skep.partitions p ON p.id = l.partition_id), '[]'))
$$;
CALL skep._allow('skep_admin', '_dashboard_leases');
