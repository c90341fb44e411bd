-- The series behind the charts of a dashboard, in Queen's shapes.

CREATE FUNCTION skep._queen_worker_metrics(since timestamptz, until timestamptz, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    WITH m AS (SELECT skep._bucket_minutes($1, $2) AS m),
    s AS MATERIALIZED (SELECT s.* FROM m CROSS JOIN LATERAL skep._queen_sums($1, $2, m.m, NULL, NULL, NULL, $3) s)
    SELECT json_build_object('timeRange', skep._queen_range($1, $2), 'bucketMinutes', m.m,
                             'pointCount', (SELECT count(*) FROM s),
                             'timeSeries', coalesce((SELECT json_agg(json_build_object(
            'timestamp', skep._bucket_time(s.bucket), 'pushMessages', s.pushed, 'popMessages', s.consumed,
            'ackMessages', s.consumed, 'pushRequests', 0,
            'popRequests', 0, 'ackRequests', 0, 'jobsDone', 0, 'pushPerSecond', skep._per_second(s.pushed, m.m),
            'popPerSecond', skep._per_second(s.consumed, m.m), 'ackPerSecond', skep._per_second(s.consumed, m.m),
            'avgEventLoopLagMs', 0, 'maxEventLoopLagMs', 0, 'avgFreeSlots', 0, 'minFreeSlots', 0, 'dbConnections', 0,
            'avgJobQueueSize', 0, 'maxJobQueueSize', 0, 'backoffSize', 0, 'avgLagMs', s.avg_lag_ms,
            'maxLagMs', s.max_lag_ms, 'lagCount', 0, 'dbErrors', 0, 'ackSuccess', s.consumed, 'ackFailed', 0,
            'dlqCount', s.dead) ORDER BY s.bucket) FROM s), '[]'), 'workers', '[]'::json,
        'queues', coalesce((SELECT json_agg(json_build_object('queueName', q.queue, 'popCount', q.consumed,
            'avgLagMs', q.avg_lag_ms, 'maxLagMs', q.max_lag_ms)
                                            ORDER BY q.queue)
                            FROM (SELECT q.queue, sum(q.consumed) AS consumed, avg(q.avg_lag_ms)::bigint AS avg_lag_ms,
                                  max(q.max_lag_ms) AS max_lag_ms
                                  FROM skep._queen_series($1, $2, m.m, NULL, NULL, NULL, $3) q
                                  GROUP BY q.queue) q), '[]'), 'summary',
                                  (SELECT json_build_object('totalPushMessages', coalesce(sum(s.pushed), 0),
                                             'totalPopMessages', coalesce(sum(s.consumed), 0),
                               'totalAckMessages', coalesce(sum(s.consumed), 0), 'totalPushRequests', 0,
                               'totalPopRequests', 0, 'totalAckRequests', 0,
                               'totalDbErrors', 0, 'totalAckFailed', 0, 'totalDlq', coalesce(sum(s.dead), 0),
                               'pendingMessages', (SELECT coalesce(sum(n.pending), 0)
                                                   FROM skep._queue_counts(NULL, NULL, NULL, $3) n))
                               FROM s))
    FROM m
$$;
CALL skep._allow('skep_admin', '_queen_worker_metrics');

CREATE FUNCTION skep._queen_queue_lag(since timestamptz, until timestamptz, queue text, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object('queueName', s.queue, 'popCount', s.consumed, 'avgLagMs', s.avg_lag_ms,
                                               'maxLagMs', s.max_lag_ms,
                                               'bucketTime', skep._bucket_time(s.bucket))
                                               ORDER BY s.bucket, s.queue), '[]')
    FROM skep._queen_series(since, _queen_queue_lag.until, skep._bucket_minutes(since, _queen_queue_lag.until),
                            _queen_queue_lag.queue, NULL, NULL, visible) s
$$;
CALL skep._allow('skep_admin', '_queen_queue_lag');

CREATE FUNCTION skep._queen_queue_ops(since timestamptz, until timestamptz, queue text, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('timeRange', skep._queen_range(since, _queen_queue_ops.until), 'bucketMinutes', m.m,
                             'series', coalesce(json_agg(json_build_object(
        'bucket', skep._bucket_time(s.bucket), 'queueName', s.queue, 'pushRequests', 0, 'pushMessages', s.pushed,
        'popMessages', s.consumed, 'popEmpty', 0,
        'ackRequests', 0, 'ackSuccess', s.consumed, 'ackFailed', 0, 'transactions', 0, 'partitionsCreated', 0,
        'partitionsDeleted', 0, 'partitionCount', s.partitions, 'avgLagMs', s.avg_lag_ms, 'maxLagMs', s.max_lag_ms,
        'pushPerSecond', skep._per_second(s.pushed, m.m),
        'popPerSecond', skep._per_second(s.consumed, m.m), 'ackPerSecond', skep._per_second(s.consumed, m.m),
        'emptyPerSecond', 0, 'parkedCount', 0) ORDER BY s.bucket, s.queue) FILTER (WHERE s.queue IS NOT NULL), '[]'),
        'queues', coalesce(json_agg(DISTINCT s.queue) FILTER (WHERE s.queue IS NOT NULL), '[]'))
    FROM (SELECT skep._bucket_minutes(since, _queen_queue_ops.until) AS m) m
    LEFT JOIN LATERAL skep._queen_series(since, _queen_queue_ops.until, m.m, _queen_queue_ops.queue, NULL, NULL,
                                         visible) s ON true
    GROUP BY m.m
$$;
CALL skep._allow('skep_admin', '_queen_queue_ops');

-- The rule that deleted a message is not stored, so all deletions are counted as retention.
CREATE FUNCTION skep._queen_retention(since timestamptz, until timestamptz, visible text[]) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('timeRange', skep._queen_range($1, $2), 'bucketMinutes', m.m,
                             'series', coalesce(json_agg(json_build_object(
               'bucket', skep._bucket_time(s.bucket), 'retentionMsgs', s.removed, 'completedRetentionMsgs', 0,
               'evictionMsgs', 0, 'totalMsgs', s.removed,
               'eventCount', CASE WHEN s.removed > 0 THEN 1 ELSE 0 END)
               ORDER BY s.bucket) FILTER (WHERE s.bucket IS NOT NULL), '[]'), 'totals',
               json_build_object('retentionMsgs', coalesce(sum(s.removed), 0), 'completedRetentionMsgs', 0,
                                 'evictionMsgs', 0, 'totalMsgs', coalesce(sum(s.removed), 0),
                                 'eventCount', count(*) FILTER (WHERE s.removed > 0)))
    FROM (SELECT skep._bucket_minutes($1, $2) AS m) m
    LEFT JOIN LATERAL skep._queen_sums($1, $2, m.m, NULL, NULL, NULL, $3) s ON true
    GROUP BY m.m
$$;
CALL skep._allow('skep_admin', '_queen_retention');

CREATE FUNCTION skep._hit_ratio(hits numeric, reads numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(round(100 * $1 / nullif($1 + $2, 0), 2), 0) $$;

-- Returns the caches, dead rows, vacuums and sizes of Skep's tables, as JSON.
CREATE FUNCTION skep._queen_table_stats(
    OUT cache json, OUT ratio numeric, OUT dead json, OUT hot json, OUT vacuum json, OUT sizes json
) LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object(
               'table', t.relname, 'hits', io.heap_blks_hit, 'reads', io.heap_blks_read,
               'hitRatio', skep._hit_ratio(io.heap_blks_hit, io.heap_blks_read)) ORDER BY t.relname), '[]'),
           skep._hit_ratio(sum(io.heap_blks_hit), sum(io.heap_blks_read)),
           coalesce(json_agg(json_build_object(
               'table', t.relname, 'liveTuples', t.n_live_tup, 'deadTuples', t.n_dead_tup) ORDER BY t.relname), '[]'),
           coalesce(json_agg(json_build_object(
               'table', t.relname, 'updates', t.n_tup_upd, 'hotUpdates', t.n_tup_hot_upd) ORDER BY t.relname), '[]'),
           coalesce(json_agg(json_build_object(
               'table', t.relname, 'lastAutovacuum', skep._queen_time(t.last_autovacuum),
               'lastAutoanalyze', skep._queen_time(t.last_autoanalyze)) ORDER BY t.relname), '[]'),
           coalesce(json_agg(json_build_object(
               'table', t.relname, 'bytes', pg_total_relation_size(t.relid),
               'size', pg_size_pretty(pg_total_relation_size(t.relid)))
               ORDER BY pg_total_relation_size(t.relid) DESC), '[]')
    FROM pg_stat_user_tables t JOIN pg_statio_user_tables io ON io.relid = t.relid WHERE t.schemaname = 'skep'
$$;

-- Returns what PostgreSQL reports about itself and about Skep's tables; nothing about other programs in the database.
CREATE FUNCTION skep._queen_postgres() RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('timestamp', skep._queen_time(clock_timestamp()), 'database', current_database(),
        'databaseCache', (SELECT json_build_object('hits', d.blks_hit, 'reads', d.blks_read,
                                                   'hitRatio', skep._hit_ratio(d.blks_hit, d.blks_read))
                          FROM pg_stat_database d WHERE d.datname = current_database()),
        'tableCache', t.cache, 'indexCache', i.cache,
        'cacheSummary', json_build_object('tableHitRatio', t.ratio, 'indexHitRatio', i.ratio),
        'deadTuples', t.dead, 'hotUpdates', t.hot,
        'activeQueries', (
            SELECT coalesce(json_agg(json_build_object(
                       'pid', a.pid, 'state', a.state, 'waitEvent', a.wait_event, 'durationSeconds',
                       round(extract(epoch FROM clock_timestamp() - a.query_start)::numeric, 3))
                       ORDER BY a.query_start), '[]')
            FROM pg_stat_activity a
            WHERE a.datname = current_database() AND a.application_name = 'skep' AND a.state <> 'idle'
              AND a.pid <> pg_backend_pid()),
        'autovacuumStatus', t.vacuum,
        'bufferConfig', (SELECT json_object_agg(s.name, pg_size_pretty(s.setting::bigint * 8192)) FROM pg_settings s
                         WHERE s.name IN ('shared_buffers', 'effective_cache_size')),
        'bufferUsage', '[]'::json, 'tableSizes', t.sizes)
    FROM skep._queen_table_stats() t
    CROSS JOIN (
        SELECT coalesce(json_agg(json_build_object(
                   'index', i.indexrelname, 'hits', i.idx_blks_hit, 'reads', i.idx_blks_read,
                   'hitRatio', skep._hit_ratio(i.idx_blks_hit, i.idx_blks_read))
                   ORDER BY i.indexrelname), '[]') AS cache,
                   skep._hit_ratio(sum(i.idx_blks_hit), sum(i.idx_blks_read)) AS ratio
        FROM pg_statio_user_indexes i WHERE i.schemaname = 'skep'
    ) i
$$;
CALL skep._allow('skep_admin', '_queen_postgres');

-- Takes a sample. Returns NULL if the last one is only seconds old.
CREATE FUNCTION skep._queen_refresh() RETURNS json
LANGUAGE plpgsql AS $$
BEGIN
    IF skep.sample() = 0 THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT json_build_object('partition', (SELECT count(*) FROM skep.partitions), 'queue', count(*),
                                     'namespace', count(DISTINCT q.namespace),
                       'task', count(DISTINCT q.task), 'system', 1, 'cleanup', 0) FROM skep.queues q);
END $$;
CALL skep._allow('skep_admin', '_queen_refresh');
