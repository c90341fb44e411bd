-- Queues and their sizes in Queen's shapes. Everything is computed from heads, cursors and leases: no messages are
-- counted, and nothing is stale.

-- Returns the number of messages of a run that are leased now, and the number that wait to be delivered again.
CREATE FUNCTION skep._count_run(r skep.runs, OUT leased bigint, OUT returned bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    begins bigint := coalesce(r.leased_to, r.first_offset);
BEGIN
    leased := CASE WHEN r.expires_at > clock_timestamp() THEN
                  skep._count_offsets(int8multirange(int8range(r.first_offset, r.leased_to)) - coalesce(r.done, '{}'))
                      ELSE 0 END;
    returned := CASE WHEN r.cuts[cardinality(r.cuts)] > begins THEN
                    skep._count_offsets(int8multirange(int8range(begins, r.cuts[cardinality(r.cuts)]))
                                        - coalesce(r.done, '{}')) ELSE 0 END;
END $$;

-- Returns the counts of each partition of a queue: total = pending + processing + completed, from the view of the group
-- that is furthest behind. Without any group everything is pending. failed (to be delivered again) is part of pending.
-- Dead and cancelled groups do not count.
CREATE FUNCTION skep._partition_counts(queue_id integer)
RETURNS TABLE (partition_id bigint, partition text, created_at timestamptz, total bigint, pending bigint,
               processing bigint, completed bigint,
               failed bigint, consumed bigint, first_offset bigint, last_created_at timestamptz)
LANGUAGE sql STABLE AS $$
    WITH live AS MATERIALIZED (
        SELECT array_agg(g.id) AS group_queues FROM skep.group_queues g
        JOIN skep.queues q ON q.id = g.queue_id
        LEFT JOIN LATERAL skep._subscription_of(g.group_name, q.name, NULL, q.namespace, q.task) s ON true
        WHERE g.queue_id = $1 AND coalesce(s.status, 'ACTIVE') IN ('ACTIVE', 'PAUSED')
    )
    SELECT p.id, p.name, p.created_at, kept.total, todo.undone - capped.leased, capped.leased, kept.total - todo.undone,
           least(g.returned, todo.undone - capped.leased), g.consumed, l.first_offset,
               nullif(l.last_created_at, '-infinity')
    FROM live
    CROSS JOIN skep.partitions p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id LIMIT 1) l
    CROSS JOIN LATERAL (SELECT l.last_offset - l.first_offset + 1 AS total) kept
    CROSS JOIN LATERAL (
        SELECT max(l.last_offset + 1 - greatest(g.cursor, l.first_offset)) AS undone,
               coalesce(max(run.leased), 0)::bigint AS leased, coalesce(max(run.returned), 0)::bigint AS returned,
               coalesce(sum(g.cursor - g.start_offset - g.skipped), 0)::bigint AS consumed
        FROM skep._partition_groups(p) g
        CROSS JOIN LATERAL (
            SELECT sum(n.leased) AS leased, sum(n.returned) AS returned
            FROM skep.runs r CROSS JOIN LATERAL skep._count_run(r) n
            WHERE r.partition_id = p.id AND r.group_queue_id = g.group_queue_id
              AND (r.lease_id IS NOT NULL OR r.cuts IS NOT NULL)) run
        WHERE g.group_queue_id = ANY (live.group_queues)
    ) g
    CROSS JOIN LATERAL (SELECT least(greatest(coalesce(g.undone, kept.total), 0), kept.total) AS undone) todo
    CROSS JOIN LATERAL (SELECT least(g.leased, todo.undone) AS leased) capped
    WHERE p.queue_id = $1
$$;

-- Returns the same for each queue; consumed includes the counts of deleted partitions.
CREATE FUNCTION skep._queue_counts(queue text, namespace text, task text, visible text[])
RETURNS TABLE (id integer, name text, namespace text, task text, created_at timestamptz, partitions bigint,
               total bigint, pending bigint, processing bigint, completed bigint, failed bigint, consumed bigint)
LANGUAGE sql STABLE AS $$
    SELECT q.id, q.name, q.namespace, q.task, q.created_at, n.partitions, n.total, n.pending, n.processing,
           n.completed, n.failed, n.consumed
           + coalesce((SELECT sum(t.total) FROM skep.deleted_totals t WHERE t.queue = q.name AND t.group_name <> ''),
                      0)::bigint
    FROM skep.queues q
    CROSS JOIN LATERAL (
        SELECT count(*) AS partitions, coalesce(sum(l.total), 0)::bigint AS total,
               coalesce(sum(l.pending), 0)::bigint AS pending,
               coalesce(sum(l.processing), 0)::bigint AS processing, coalesce(sum(l.completed), 0)::bigint AS completed,
               coalesce(sum(l.failed), 0)::bigint AS failed, coalesce(sum(l.consumed), 0)::bigint AS consumed
        FROM skep._partition_counts(q.id) l) n
    WHERE (_queue_counts.queue IS NULL OR q.name = _queue_counts.queue)
      AND (_queue_counts.namespace IS NULL OR q.namespace = _queue_counts.namespace)
      AND (_queue_counts.task IS NULL OR q.task = _queue_counts.task)
      AND (visible IS NULL OR q.name = ANY (visible))
$$;

CREATE FUNCTION skep._queen_counts(
    total bigint, pending bigint, processing bigint, completed bigint, failed bigint, dead bigint
)
RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('total', _queen_counts.total, 'pending', _queen_counts.pending,
                              'processing', _queen_counts.processing, 'completed', _queen_counts.completed,
                              'failed', _queen_counts.failed, 'deadLetter', _queen_counts.dead)
$$;

-- Returns the number of dead letters of a partition or a queue, at most 100,000.
CREATE FUNCTION skep._count_dead(queue text, partition_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT (SELECT count(*) FROM (SELECT FROM skep.dead_letters d WHERE d.partition_id = $2 LIMIT 100000) d)
         + (SELECT count(*) FROM (SELECT FROM skep.dead_letters d WHERE $2 IS NULL AND d.queue = $1 LIMIT 100000) d)
$$;

-- Returns queues, newest first.
CREATE FUNCTION skep._queen_queues(namespace text, task text, visible text[], max_rows integer, skip integer)
RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('queues', coalesce(json_agg(json_build_object(
        'id', skep._queue_uuid(page.id), 'name', page.name, 'namespace', page.namespace, 'task', page.task,
        'createdAt', skep._queen_time(page.created_at),
        'partitions', n.partitions, 'messages', json_build_object('total', n.total, 'pending', n.pending,
            'processing', n.processing))
        ORDER BY page.created_at DESC, page.id DESC), '[]'))
    FROM (SELECT * FROM skep.queues q
          WHERE (_queen_queues.namespace IS NULL OR q.namespace = _queen_queues.namespace)
            AND (_queen_queues.task IS NULL OR q.task = _queen_queues.task)
            AND (visible IS NULL OR q.name = ANY (visible))
          ORDER BY q.created_at DESC, q.id DESC LIMIT max_rows OFFSET skip) page
    CROSS JOIN LATERAL skep._queue_counts(page.name, NULL, NULL, NULL) n
$$;
CALL skep._allow('skep_admin', '_queen_queues');

-- Returns partitions of one queue or of all, by name, with all fields of the responses about them.
CREATE FUNCTION skep._list_partitions(queue text, visible text[], max_rows integer, skip integer)
RETURNS TABLE (queue text, body jsonb, six jsonb, name text) LANGUAGE sql STABLE AS $$
    SELECT q.name, jsonb_build_object(
               'id', skep._partition_uuid(l.partition_id), 'name', l.partition,
               'createdAt', skep._queen_time(l.created_at), 'oldestMessage', skep._queen_time(m.created_at),
               'newestMessage', skep._queen_time(CASE WHEN l.total > 0 THEN l.last_created_at END),
               'lastActivity', skep._queen_time(l.last_created_at), 'consumed', l.consumed),
           skep._queen_counts(l.total, l.pending, l.processing, l.completed, l.failed,
                            skep._count_dead(NULL, l.partition_id)), l.partition
    FROM skep.queues q
    CROSS JOIN LATERAL skep._partition_counts(q.id) l
    LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE l.total > 0 AND m.partition_id = l.partition_id
                       AND m."offset" = l.first_offset
                       LIMIT 1) m ON true
    WHERE (_list_partitions.queue IS NULL OR q.name = _list_partitions.queue)
      AND (visible IS NULL OR q.name = ANY (visible)) ORDER BY q.name, l.partition LIMIT max_rows OFFSET skip
$$;

CREATE FUNCTION skep._queue_totals(q skep.queues) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT skep._queen_counts(n.total, n.pending, n.processing, n.completed, n.failed, skep._count_dead($1.name, NULL))
    FROM skep._queue_counts($1.name, NULL, NULL, NULL) n
$$;

-- Returns NULL if there is no such queue.
CREATE FUNCTION skep._queen_queue(queue text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('id', skep._queue_uuid(q.id), 'name', q.name, 'namespace', q.namespace, 'task', q.task,
        'createdAt', skep._queen_time(q.created_at),
        'partitions', (SELECT coalesce(jsonb_agg((p.body - ARRAY['lastActivity', 'consumed'])
                                                 || jsonb_build_object('stats', p.six)
                                                 ORDER BY p.name), '[]')
                       FROM skep._list_partitions(q.name, NULL, NULL, 0) p),
        'totals', skep._queue_totals(q))
    FROM skep.queues q WHERE q.name = $1
$$;
CALL skep._allow('skep_admin', '_queen_queue');

CREATE FUNCTION skep._queen_partition_list(queue text, visible text[], max_rows integer, skip integer) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('partitions', coalesce(jsonb_agg((p.body - ARRAY['lastActivity', 'consumed'])
               || jsonb_build_object('queue', p.queue, 'stats', p.six) ORDER BY p.queue, p.name), '[]'))
    FROM skep._list_partitions(_queen_partition_list.queue, visible, max_rows, skip) p
$$;
CALL skep._allow('skep_admin', '_queen_partition_list');

-- Returns NULL if there is no such queue.
CREATE FUNCTION skep._queen_queue_status(queue text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'queue', json_build_object('id', skep._queue_uuid(q.id), 'name', q.name, 'namespace', q.namespace,
                                   'task', q.task, 'priority', q.priority,
            'createdAt', skep._queen_time(q.created_at),
            'config', json_build_object('leaseTime', o.o -> 'leaseTime', 'retryLimit', o.o -> 'retryLimit',
                'retryDelay', o.o -> 'retryDelay', 'ttl', o.o -> 'ttl', 'maxQueueSize', o.o -> 'maxSize',
                'deadLetterQueue', o.o -> 'deadLetterQueue')),
        'partitions', (SELECT coalesce(jsonb_agg((p.body - 'consumed')
                                                 || jsonb_build_object('messages', p.six, 'stats', p.six,
                           'cursor', jsonb_build_object('totalConsumed', p.body -> 'consumed', 'batchesConsumed', 0))
                           ORDER BY p.name), '[]')
                       FROM skep._list_partitions(q.name, NULL, NULL, 0) p),
        'totals', jsonb_build_object('messages', t.t) || t.t)
    FROM skep.queues q CROSS JOIN LATERAL (SELECT skep._queen_options(q) AS o) o
    CROSS JOIN LATERAL (SELECT skep._queue_totals(q) AS t) t
    WHERE q.name = $1
$$;
CALL skep._allow('skep_admin', '_queen_queue_status');

CREATE FUNCTION skep._queen_namespaces(visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('namespaces', coalesce(json_agg(json_build_object('namespace', n.namespace,
        'queues', n.queues, 'partitions', n.partitions,
               'messages', json_build_object('total', n.total, 'pending', n.pending)) ORDER BY n.namespace), '[]'))
    FROM (SELECT n.namespace, count(*) AS queues, sum(n.partitions) AS partitions, sum(n.total) AS total,
                 sum(n.pending) AS pending
          FROM skep._queue_counts(NULL, NULL, NULL, $1) n GROUP BY n.namespace) n
$$;
CALL skep._allow('skep_admin', '_queen_namespaces');

CREATE FUNCTION skep._queen_tasks(visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('tasks', coalesce(json_agg(json_build_object('task', n.task, 'queues', n.queues,
        'partitions', n.partitions, 'messages', json_build_object('total', n.total, 'pending', n.pending))
        ORDER BY n.task), '[]'))
    FROM (SELECT n.task, count(*) AS queues, sum(n.partitions) AS partitions, sum(n.total) AS total,
                 sum(n.pending) AS pending
          FROM skep._queue_counts(NULL, NULL, NULL, $1) n GROUP BY n.task) n
$$;
CALL skep._allow('skep_admin', '_queen_tasks');
