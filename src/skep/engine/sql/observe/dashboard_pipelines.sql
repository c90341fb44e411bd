-- The archive in the dashboard, from its manifest and its marks. No file is read, and at most one message of each
-- partition, by its key.

-- Returns the messages of a queue that are not archived yet. Partitions for a single group are not archived.
CREATE FUNCTION skep._dashboard_unarchived(queue_id integer) RETURNS TABLE (pending bigint, oldest_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(l.last_offset + 1 - progress.at), 0)::bigint, min(m.created_at)
    FROM skep.partitions p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id LIMIT 1) l
    LEFT JOIN LATERAL (SELECT * FROM skep.archive_marks a WHERE a.partition_id = p.id LIMIT 1) a ON true
    CROSS JOIN LATERAL (SELECT greatest(a.end_offset, l.first_offset) AS at) progress
    LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" = progress.at
                       LIMIT 1) m ON true
    WHERE p.queue_id = $1 AND p.only_group IS NULL AND l.last_offset >= progress.at
$$;

-- Returns each queue that is archived, or whose retention waits for the archive, with its stored and its pending
-- messages. runs: the last jobs, newest first; unfinished files belong to a job that is running, or was killed. busy: a
-- job is running on an archive now.
CREATE FUNCTION skep._dashboard_pipelines(visible text[]) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH stored AS MATERIALIZED (
        SELECT f.queue, max(a.location) AS location, count(*) AS files, sum(f.messages)::bigint AS messages,
               sum(f.bytes)::bigint AS bytes, min(f.day) AS first_day, max(f.day) AS last_day,
               max(f.stored_at) AS stored_at
        FROM skep.archive_files f JOIN skep.archives a ON a.id = f.archive_id
        WHERE f.state = 'stored' AND ($1 IS NULL OR f.queue = ANY ($1)) GROUP BY f.queue),
    progress AS (
        SELECT s.queue FROM stored s
        UNION SELECT q.name FROM skep.queues q WHERE q.retain_until_archived AND ($1 IS NULL OR q.name = ANY ($1))),
    job AS (
        SELECT f.job, count(*) AS files, count(*) FILTER (WHERE f.state = 'writing') AS unfinished,
               sum(f.messages)::bigint AS messages, sum(f.bytes)::bigint AS bytes,
               array_agg(DISTINCT f.queue) AS queues, min(f.stored_at) AS first_at, max(f.stored_at) AS last_at,
               max(f.id) AS id
        FROM (SELECT * FROM skep.archive_files f ORDER BY f.id DESC LIMIT 5000) f
        WHERE $1 IS NULL OR f.queue = ANY ($1) GROUP BY f.job)
    SELECT json_build_object(
        'queues', (SELECT coalesce(json_agg(json_build_object(
                              'queue', p.queue, 'location', s.location, 'files', coalesce(s.files, 0),
                              'messages', coalesce(s.messages, 0), 'bytes', coalesce(s.bytes, 0),
                              'first_day', s.first_day, 'last_day', s.last_day, 'stored_at', s.stored_at,
                              'waits', q.retain_until_archived, 'pending', todo.pending, 'oldest_at', todo.oldest_at)
                              ORDER BY p.queue), '[]')
                   FROM progress p LEFT JOIN stored s ON s.queue = p.queue LEFT JOIN skep.queues q ON q.name = p.queue
                   CROSS JOIN LATERAL skep._dashboard_unarchived(q.id) todo),
        'runs', (SELECT coalesce(json_agg(json_build_object(
                            'job', j.job, 'queues', j.queues, 'files', j.files, 'unfinished', j.unfinished,
                            'messages', j.messages, 'bytes', j.bytes, 'first_at', j.first_at, 'last_at', j.last_at)
                            ORDER BY j.id DESC), '[]')
                 FROM (SELECT * FROM job j ORDER BY j.id DESC LIMIT 20) j),
        'busy', EXISTS (SELECT FROM pg_locks l JOIN skep.archives a ON a.id = l.objid::bigint
                        WHERE l.locktype = 'advisory' AND l.classid::bigint = x'736b6172'::integer AND l.objsubid = 2
                          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())))
$$;
CALL skep._allow('skep_admin', '_dashboard_pipelines');
