-- Time series in Queen's shapes, from the samples of heads and cursors. Numbers that Skep does not count are 0.

-- Returns the width of the buckets of a time range.
CREATE FUNCTION skep._bucket_minutes(since timestamptz, until timestamptz) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN $2 - $1 <= interval '1 hour' THEN 1 WHEN $2 - $1 <= interval '6 hours' THEN 5
        WHEN $2 - $1 <= interval '24 hours' THEN 15
                WHEN $2 - $1 <= interval '7 days' THEN 60 ELSE 360 END
$$;

CREATE FUNCTION skep._bucket_time(instant timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$ SELECT to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;

CREATE FUNCTION skep._queen_range(since timestamptz, until timestamptz) RETURNS json
LANGUAGE sql STABLE AS $$ SELECT json_build_object('from', skep._queen_time($1), 'to', skep._queen_time($2)) $$;

-- Counters only grow, so the difference of two samples shows what happened between them. removed: messages that
-- retention deleted.
CREATE FUNCTION skep._queen_series(
    since timestamptz, until timestamptz, minutes integer, queue text, namespace text, task text, visible text[]
)
RETURNS TABLE (bucket timestamptz, queue text, pushed bigint, consumed bigint, dead bigint, removed bigint,
               avg_lag_ms bigint, max_lag_ms bigint,
               partitions bigint)
LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(floor(extract(epoch FROM s.at) / (60 * minutes)) * 60 * minutes) AS bucket, s.queue,
           coalesce(sum(s.total) FILTER (WHERE s.group_name = ''), 0)::bigint,
           coalesce(sum(s.total) FILTER (WHERE s.group_name <> ''), 0)::bigint,
           coalesce(sum(s.dead) FILTER (WHERE s.group_name = ''), 0)::bigint,
           coalesce(sum(s.removed) FILTER (WHERE s.group_name = ''), 0)::bigint,
           coalesce(avg(s.lag_ms), 0)::bigint, coalesce(max(s.lag_ms), 0)::bigint,
           (SELECT count(*) FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id WHERE q.name = s.queue)
    FROM (
        SELECT s.at, s.queue, s.group_name, greatest(s.total - lag(s.total) OVER series, 0) AS total,
               greatest(s.dead - lag(s.dead) OVER series, 0) AS dead,
               greatest(s.total - s.lag - lag(s.total - s.lag) OVER series, 0) AS removed,
               CASE WHEN s.group_name <> '' AND s.lag > 0 THEN extract(epoch FROM s.at - s.oldest_at) * 1000 END
                   AS lag_ms
        FROM skep.samples s
        WHERE s.at >= since - make_interval(mins => minutes) AND s.at <= _queen_series.until
          AND (_queen_series.queue IS NULL OR s.queue = _queen_series.queue)
          AND (visible IS NULL OR s.queue = ANY (visible))
          AND (_queen_series.namespace IS NULL AND _queen_series.task IS NULL OR EXISTS (
              SELECT FROM skep.queues q WHERE q.name = s.queue
                  AND (_queen_series.namespace IS NULL OR q.namespace = _queen_series.namespace)
                  AND (_queen_series.task IS NULL OR q.task = _queen_series.task)))
        WINDOW series AS (PARTITION BY s.queue, s.group_name ORDER BY s.at)
    ) s
    WHERE s.at >= since GROUP BY 1, 2
$$;

-- Returns the sums of all queues for each bucket.
CREATE FUNCTION skep._queen_sums(
    since timestamptz, until timestamptz, minutes integer, queue text, namespace text, task text, visible text[]
)
RETURNS TABLE (bucket timestamptz, pushed bigint, consumed bigint, dead bigint, removed bigint, avg_lag_ms bigint,
               max_lag_ms bigint)
LANGUAGE sql STABLE AS $$
    SELECT s.bucket, sum(s.pushed)::bigint, sum(s.consumed)::bigint, sum(s.dead)::bigint, sum(s.removed)::bigint,
           coalesce(avg(s.avg_lag_ms) FILTER (WHERE s.avg_lag_ms > 0), 0)::bigint, max(s.max_lag_ms)
    FROM skep._queen_series(since, _queen_sums.until, minutes, _queen_sums.queue, _queen_sums.namespace,
                            _queen_sums.task, visible) s GROUP BY s.bucket ORDER BY s.bucket
$$;

CREATE FUNCTION skep._per_second(amount numeric, minutes integer) RETURNS numeric
LANGUAGE sql IMMUTABLE AS $$ SELECT round($1 / (60 * $2), 2) $$;

-- Returns the seconds since the last sample, -1 if there is none.
CREATE FUNCTION skep._stats_age() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT skep._seconds_since(s.at) FROM skep.samples s ORDER BY s.at DESC LIMIT 1), -1)
$$;

CREATE FUNCTION skep._queen_overview(visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('queues', n.queues, 'partitions', n.partitions, 'namespaces', n.namespaces,
                             'tasks', n.tasks, 'messages', skep._queen_counts(n.total, n.pending, n.processing,
                                 n.completed, n.failed,
                                  (SELECT count(*) FROM skep._match_dead_letters(NULL, NULL, NULL, NULL, NULL, $1,
                                      100000))), 'lag', json_build_object(
            'time', json_build_object('avg', lag.time_avg, 'median', lag.time_median, 'min', lag.time_min,
                                      'max', lag.time_max), 'offset', json_build_object('avg', lag.offset_avg,
                                          'median', lag.offset_median, 'min', lag.offset_min, 'max', lag.offset_max)),
        'throughput', (SELECT json_build_object('ingestedPerSecond', coalesce(round(sum(s.pushed) / 60.0, 2), 0),
                                                'processedPerSecond', coalesce(round(sum(s.consumed) / 60.0, 2), 0))
                       FROM skep._queen_sums(clock_timestamp() - interval '1 minute', clock_timestamp(), 1, NULL, NULL,
                                             NULL, $1) s), 'timestamp', skep._queen_time(clock_timestamp()),
                                             'statsAge', skep._stats_age())
    FROM (SELECT count(*) AS queues, coalesce(sum(n.partitions), 0) AS partitions, count(DISTINCT n.namespace)
          FILTER (WHERE n.namespace <> '') AS namespaces,
                 count(DISTINCT n.task) FILTER (WHERE n.task <> '') AS tasks,
                     coalesce(sum(n.total), 0)::bigint AS total,
                 coalesce(sum(n.pending), 0)::bigint AS pending, coalesce(sum(n.processing), 0)::bigint AS processing,
                 coalesce(sum(n.completed), 0)::bigint AS completed, coalesce(sum(n.failed), 0)::bigint AS failed
          FROM skep._queue_counts(NULL, NULL, NULL, $1) n) n
    CROSS JOIN (
        SELECT coalesce(round(avg(g.seconds)), 0) AS time_avg,
               coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY g.seconds), 0) AS time_median,
               coalesce(min(g.seconds), 0) AS time_min, coalesce(max(g.seconds), 0) AS time_max,
               coalesce(round(avg(g.lag)), 0) AS offset_avg,
               coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY g.lag), 0) AS offset_median,
                   coalesce(min(g.lag), 0) AS offset_min,
               coalesce(max(g.lag), 0) AS offset_max
        FROM (SELECT s.lag, CASE WHEN s.lag > 0 THEN skep._seconds_since(s.oldest_at) ELSE 0 END AS seconds
              FROM skep.samples s
              WHERE s.at = (SELECT last.at FROM skep.samples last ORDER BY last.at DESC LIMIT 1) AND s.group_name <> ''
                AND ($1 IS NULL OR s.queue = ANY ($1))) g) lag
$$;
CALL skep._allow('skep_admin', '_queen_overview');

-- Returns the live leases of these queues.
CREATE FUNCTION skep._queen_leases(queue text, namespace text, task text, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('active', count(*), 'partitionsWithLeases', count(DISTINCT r.partition_id),
               'totalBatchSize', coalesce(sum(r.leased_to - r.first_offset), 0),
               'totalAcked', coalesce(sum(skep._count_offsets(r.done)), 0))
    FROM (SELECT DISTINCT g.list_id FROM skep.group_queues g) list
    CROSS JOIN LATERAL (SELECT * FROM skep.runs r WHERE r.list_id = list.list_id AND r.lease_id IS NOT NULL
                                                    AND r.expires_at > clock_timestamp()) r
    JOIN skep.group_queues g ON g.id = r.group_queue_id
    JOIN skep.queues q ON q.id = g.queue_id
    WHERE (_queen_leases.queue IS NULL OR q.name = _queen_leases.queue)
      AND (_queen_leases.namespace IS NULL OR q.namespace = _queen_leases.namespace)
      AND (_queen_leases.task IS NULL OR q.task = _queen_leases.task)
      AND (visible IS NULL OR q.name = ANY (visible))
$$;

-- Returns a summary of the last 100,000 dead letters.
CREATE FUNCTION skep._dead_summary(queue text, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    WITH dead AS MATERIALIZED (SELECT d.partition_id, left(d.error, 200) AS error
                               FROM skep._match_dead_letters($1, NULL, NULL, NULL, NULL, $2, 100000) d)
    SELECT json_build_object('totalMessages', (SELECT count(*) FROM dead),
                             'affectedPartitions', (SELECT count(DISTINCT d.partition_id) FROM dead d),
        'topErrors', coalesce((SELECT json_agg(json_build_object('error', e.error, 'count', e.letters)
                                               ORDER BY e.letters DESC, e.error)
                               FROM (SELECT d.error, count(*) AS letters FROM dead d GROUP BY d.error
                                     ORDER BY 2 DESC, 1 LIMIT 10) e), '[]'))
$$;

CREATE FUNCTION skep._queen_throughput(
    since timestamptz, until timestamptz, queue text, namespace text, task text, visible text[]
)
RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object(
        'timestamp', skep._bucket_time(s.bucket), 'ingested', s.pushed, 'processed', s.consumed,
        'popMessages', s.consumed, 'ingestedPerSecond', skep._per_second(s.pushed, m.m),
        'processedPerSecond', skep._per_second(s.consumed, m.m), 'popPerSecond', skep._per_second(s.consumed, m.m),
        'avgLagMs', s.avg_lag_ms, 'maxLagMs', s.max_lag_ms, 'avgEventLoopLagMs', 0, 'maxEventLoopLagMs', 0,
        'minFreeSlots', 0, 'dbErrors', 0, 'ackFailed', 0, 'dlqCount', s.dead, 'queenCpuUserPct', 0, 'queenCpuSysPct', 0,
        'queenRssMb', 0, 'dbPoolActive', 0, 'dbPoolIdle', 0, 'dbPoolSize', 0) ORDER BY s.bucket), '[]')
    FROM (SELECT skep._bucket_minutes(since, _queen_throughput.until) AS m) m
    CROSS JOIN LATERAL skep._queen_sums(since, _queen_throughput.until, m.m, _queen_throughput.queue,
                                        _queen_throughput.namespace, _queen_throughput.task, visible) s
$$;

CREATE FUNCTION skep._queen_status(
    since timestamptz, until timestamptz, queue text, namespace text, task text, visible text[]
) RETURNS json
LANGUAGE sql STABLE AS $$
    WITH n AS MATERIALIZED (SELECT *
                            FROM skep._queue_counts(_queen_status.queue, _queen_status.namespace, _queen_status.task,
                                                    visible))
    SELECT json_build_object('timeRange', skep._queen_range(since, _queen_status.until),
                             'bucketMinutes', skep._bucket_minutes(since, _queen_status.until),
                             'pointCount', json_array_length(t.t), 'throughput', t.t,
        'queues', coalesce((SELECT json_agg(json_build_object(
                                'id', skep._queue_uuid(n.id), 'name', n.name, 'namespace', n.namespace, 'task', n.task,
                                'partitions', n.partitions, 'totalConsumed', n.consumed) ORDER BY n.name)
                            FROM n), '[]'),
        'messages', (SELECT skep._queen_counts(coalesce(sum(n.total), 0)::bigint, coalesce(sum(n.pending), 0)::bigint,
                                             coalesce(sum(n.processing), 0)::bigint,
                                             coalesce(sum(n.completed), 0)::bigint, coalesce(sum(n.failed), 0)::bigint,
                                             (d.d ->> 'totalMessages')::bigint)
                            || '{"requests": {"push": 0, "pop": 0, "ack": 0},
                                 "batchEfficiency": {"push": 0, "pop": 0, "ack": 0}}' FROM n),
        'leases', skep._queen_leases(_queen_status.queue, _queen_status.namespace, _queen_status.task, visible),
        'deadLetterQueue', d.d, 'workers', '[]'::json,
        'errors', json_build_object('dbErrors', 0, 'ackFailed', 0, 'dlqMessages', (
                                        SELECT coalesce(sum((p ->> 'dlqCount')::bigint), 0)
                                        FROM json_array_elements(t.t) AS p)),
        'statsAge', skep._stats_age())
    FROM (SELECT skep._queen_throughput(since, _queen_status.until, _queen_status.queue, _queen_status.namespace,
                                        _queen_status.task, visible) AS t) t
    CROSS JOIN (SELECT skep._dead_summary(_queen_status.queue, CASE WHEN _queen_status.namespace IS NULL
                                          AND _queen_status.task IS NULL THEN visible
                                          ELSE ARRAY(SELECT n.name FROM n) END) AS d) d
$$;
CALL skep._allow('skep_admin', '_queen_status');

-- Returns how many messages were pushed in each minute, hour or day (unit).
CREATE FUNCTION skep._queen_pushed(
    since timestamptz, until timestamptz, queue text, namespace text, task text, unit text, visible text[]
)
RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
               'dataPoints', coalesce(json_agg(json_build_object('timestamp', skep._bucket_time(s.bucket),
                                                                 'messages', s.pushed) ORDER BY s.bucket), '[]'),
               'interval', unit, 'from', skep._queen_time(since), 'to', skep._queen_time(_queen_pushed.until))
    FROM skep._queen_sums(since, _queen_pushed.until, CASE unit WHEN 'minute' THEN 1 WHEN 'day' THEN 1440 ELSE 60 END,
                          _queen_pushed.queue, _queen_pushed.namespace, _queen_pushed.task, visible) s
$$;
CALL skep._allow('skep_admin', '_queen_pushed');
