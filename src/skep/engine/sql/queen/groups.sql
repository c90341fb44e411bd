-- Groups in Queen's shapes.

-- Returns each group with the queues that it has read from or subscribed to.
CREATE FUNCTION skep._queen_group_queues(group_name text, queue text, visible text[])
RETURNS TABLE (group_name text, queue text, queue_id integer, group_queue_id integer) LANGUAGE sql STABLE AS $$
    SELECT g.group_name, g.queue, q.id, read.id
    FROM (SELECT r.group_name, q.name AS queue FROM skep.group_queues r JOIN skep.queues q ON q.id = r.queue_id
          UNION
          SELECT s.group_name, s.queue FROM skep.subscriptions s LEFT JOIN skep.queues q ON q.name = s.queue
          WHERE s.queue IS NOT NULL AND (q.semantics IS DISTINCT FROM 'queue' OR s.group_name = '__QUEUE_MODE__')) g
    LEFT JOIN skep.queues q ON q.name = g.queue
    LEFT JOIN skep.group_queues read ON read.queue_id = q.id AND read.group_name = g.group_name
    WHERE ($1 IS NULL OR g.group_name = $1) AND ($2 IS NULL OR g.queue = $2) AND ($3 IS NULL OR g.queue = ANY ($3))
$$;

CREATE FUNCTION skep._seconds_since(instant timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT greatest(floor(extract(epoch FROM clock_timestamp() - $1)), 0)::bigint $$;

CREATE FUNCTION skep._queen_groups(visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object(
        'name', g.group_name, 'topics', json_build_array(g.queue), 'queueName', g.queue, 'members', l.partitions_read,
        'partitionsWithLag', l.lagging, 'totalLag', NULL, 'maxTimeLag', l.seconds,
        'state', CASE WHEN l.partitions_read = 0 OR s.status = 'DEAD' THEN 'Dead' WHEN l.seconds > 300 THEN 'Lagging'
        ELSE 'Stable' END, 'subscriptionMode', s.mode, 'subscriptionTimestamp', skep._queen_time(s.start_at),
        'subscriptionCreatedAt', skep._queen_time(s.created_at),
        'status', coalesce(s.status, 'ACTIVE')) ORDER BY g.group_name, g.queue), '[]')
    FROM skep._queen_group_queues(NULL, NULL, $1) g
    LEFT JOIN skep.queues q ON q.id = g.queue_id
    LEFT JOIN LATERAL skep._subscription_of(g.group_name, g.queue, NULL, q.namespace, q.task) s ON true
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE l.has_read) AS partitions_read, count(*) FILTER (WHERE l.lag > 0) AS lagging,
               coalesce(max(skep._seconds_since(l.oldest_at)), 0) AS seconds
        FROM skep._group_report(g.group_name, g.queue_id, g.group_queue_id) l) l
$$;
CALL skep._allow('skep_admin', '_queen_groups');

-- Returns the groups that are furthest behind, at most a thousand.
CREATE FUNCTION skep._queen_lagging(least_seconds double precision, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object(
        'consumer_group', l.group_name, 'queue_name', l.queue, 'partition_name', l.partition,
        'partition_id', skep._partition_uuid(l.partition_id),
        'worker_id', l.lease, 'offset_lag', l.lag, 'time_lag_seconds', l.seconds,
        'lag_hours', round(l.seconds / 3600.0, 2), 'oldest_unconsumed_at', skep._queen_time(l.oldest_at),
        'last_consumed_at', skep._queen_time(l.last_consumed_at))
        ORDER BY l.oldest_at, l.partition_id, l.group_name), '[]')
    FROM (
        SELECT g.group_name, g.queue, l.*, skep._seconds_since(l.oldest_at) AS seconds
        FROM skep._queen_group_queues(NULL, NULL, $2) g
        CROSS JOIN LATERAL skep._group_report(g.group_name, g.queue_id, g.group_queue_id) l
        WHERE l.lag > 0 AND l.oldest_at <= clock_timestamp() - skep._seconds($1)
        ORDER BY l.oldest_at LIMIT 1000
    ) l
$$;
CALL skep._allow('skep_admin', '_queen_lagging');

CREATE FUNCTION skep._queen_group(group_name text, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_object_agg(g.queue, json_build_object('partitions', p.list)), '{}')
    FROM skep._queen_group_queues($1, NULL, $2) g
    CROSS JOIN LATERAL (
        SELECT coalesce(json_agg(json_build_object(
            'partition', l.partition, 'workerId', l.lease, 'lastConsumedAt', skep._queen_time(l.last_consumed_at),
            'totalConsumed', l.consumed,
            'offsetLag', l.lag, 'timeLagSeconds', coalesce(skep._seconds_since(l.oldest_at), 0),
            'leaseActive', l.lease IS NOT NULL)
            ORDER BY l.partition), '[]') AS list
        FROM skep._group_report(g.group_name, g.queue_id, g.group_queue_id) l) p
$$;
CALL skep._allow('skep_admin', '_queen_group');

-- Returns the backlog of a group in a queue; NULL if there is no such queue. The backlog of a group that has never read
-- is everything.
CREATE FUNCTION skep._queen_depth(queue text, group_name text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('queue', q.name, 'group', $2, 'pending', l.pending, 'partitionsPending', l.lagging,
        'conflation', coalesce(s.conflation, false), 'effectivePending', CASE WHEN s.conflation THEN l.lagging
        ELSE l.pending END, 'partitions', l.list)
    FROM skep.queues q
    LEFT JOIN skep.group_queues g ON g.queue_id = q.id AND g.group_name = skep._group_of(q.semantics, $2)
    LEFT JOIN LATERAL skep._subscription_of(skep._group_of(q.semantics, $2), q.name, NULL, q.namespace, q.task) s
        ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(l.lag), 0) AS pending, count(*) FILTER (WHERE l.lag > 0) AS lagging,
               coalesce(json_agg(json_build_object('partition', l.partition, 'pending', l.lag) ORDER BY l.partition)
                        FILTER (WHERE l.lag > 0), '[]') AS list
        FROM skep._group_report(skep._group_of(q.semantics, $2), q.id, g.id) l) l
    WHERE q.name = $1
$$;
CALL skep._allow('skep_admin', '_queen_depth');

-- Sets the start of the group in partitions that it has not read yet; its cursors stay. Returns the number of changed
-- subscriptions.
CREATE FUNCTION skep._queen_resubscribe(group_name text, start_at timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    changed bigint;
BEGIN
    UPDATE skep.subscriptions s SET mode = 'timestamp', start_at = _queen_resubscribe.start_at, start_offset = NULL,
        start_snapshot = NULL
    WHERE s.group_name = _queen_resubscribe.group_name;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM skep._request_discovery(ARRAY(SELECT DISTINCT g.list_id FROM skep.group_queues g
                                       WHERE g.group_name = _queen_resubscribe.group_name));
    RETURN changed;
END $$;
CALL skep._allow('skep_admin', '_queen_resubscribe');

-- seek() in one existing partition. Returns the message before the new cursor, NULL if there is none, and no row if the
-- partition does not exist.
CREATE FUNCTION skep._queen_seek_partition(group_name text, queue text, partition text, "position" text)
RETURNS TABLE (updated bigint, moved_to uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    target bigint := (SELECT p.id FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
                      WHERE q.name = _queen_seek_partition.queue AND p.name = _queen_seek_partition.partition);
BEGIN
    IF target IS NULL THEN
        RETURN;
    END IF;
    SELECT s.partitions INTO updated
    FROM skep.seek(_queen_seek_partition.group_name, _queen_seek_partition.queue, "position",
                   _queen_seek_partition.partition) s;
    moved_to := (SELECT skep.message_id(target, c.cursor - 1) FROM skep.queues q
                 JOIN skep.group_queues g ON g.queue_id = q.id
                     AND g.group_name = skep._group_of(q.semantics, _queen_seek_partition.group_name)
                 CROSS JOIN LATERAL (SELECT skep._cursor_of(target, g.id) AS cursor) c
                 WHERE q.name = _queen_seek_partition.queue AND c.cursor > 0);
    RETURN NEXT;
END $$;
CALL skep._allow('skep_admin', '_queen_seek_partition');
