-- The data of the dashboard: from samples, heads and cursors, and from the statistics of PostgreSQL. No messages are
-- counted for it. `visible` has the queues that the caller may see; NULL means all.

-- Returns the time of the last sample of each bucket, oldest first. The buckets are fixed in time, so the points of a
-- chart do not move.
CREATE FUNCTION skep._dashboard_moments(since interval, points integer) RETURNS timestamptz[]
LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(s.at ORDER BY s.at)
    FROM (SELECT extract(epoch FROM $1)::double precision / $2 AS width) w
    CROSS JOIN LATERAL (SELECT ceil(extract(epoch FROM clock_timestamp())::double precision / w.width) AS number) last
    CROSS JOIN generate_series(0, least($2, 10000)) AS n
    CROSS JOIN LATERAL (
        SELECT s.at FROM skep.samples s
        WHERE s.at > to_timestamp((last.number - n - 1) * w.width) AND s.at <= to_timestamp((last.number - n) * w.width)
        ORDER BY s.at DESC LIMIT 1) s
$$;

-- Returns the state of all queues: rates, the lag of live groups, and the groups that are most behind. Takes a sample
-- if upkeep, which takes one every ten seconds, is not running.
CREATE FUNCTION skep._dashboard_overview(visible text[]) RETURNS json
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep.sample(interval '15 seconds');
    RETURN (
        WITH progress AS MATERIALIZED (SELECT * FROM skep._last_progress($1)),
        live AS (SELECT * FROM progress p WHERE p.status IN ('ACTIVE', 'PAUSED'))
        SELECT json_build_object(
            'pushed', (SELECT coalesce(sum(p.rate), 0) FROM progress p WHERE p.group_name = ''),
            'done', (SELECT coalesce(sum(p.rate), 0) FROM progress p WHERE p.group_name <> ''),
            'queues', (SELECT count(*) FROM progress p WHERE p.group_name = ''),
            'kept', (SELECT coalesce(sum(p.lag), 0) FROM progress p WHERE p.group_name = ''),
            'lag', (SELECT coalesce(sum(l.lag), 0) FROM live l),
            'leased', (SELECT coalesce(sum(l.leased), 0) FROM live l),
            'dead_letters', (SELECT coalesce(sum(p.dead), 0) FROM progress p WHERE p.group_name = ''),
            'groups', (SELECT coalesce(json_object_agg(g.status, g.groups), '{}') FROM (
                SELECT p.status, count(*) AS groups FROM progress p WHERE p.group_name <> '' GROUP BY p.status) g),
            'worst', (SELECT coalesce(json_agg(json_build_object(
                                 'queue', w.queue, 'group', w.group_name, 'status', w.status, 'lag', w.lag,
                                 'seconds', w.seconds, 'rate', coalesce(w.rate, 0), 'dead_letters', w.dead)
                                 ORDER BY w.seconds DESC, w.queue, w.group_name), '[]')
                      FROM (SELECT * FROM live l WHERE l.lag > 0 ORDER BY l.seconds DESC, l.queue, l.group_name
                            LIMIT 8) w),
            'age', (SELECT extract(epoch FROM clock_timestamp() - s.at) FROM skep.samples s
                    ORDER BY s.at DESC LIMIT 1)));
END $$;
CALL skep._allow('skep_admin', '_dashboard_overview');

-- Returns [[time, pushed per second, done per second, lag, age of the oldest pending message, dead letters], …] of all
-- queues. Groups that are dead or cancelled now do not count.
CREATE FUNCTION skep._dashboard_trend(since interval, points integer, visible text[]) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH step AS (
        SELECT s.*, greatest(s.total - lag(s.total) OVER series,
                             0) / nullif(extract(epoch FROM s.at - lag(s.at) OVER series), 0) AS rate
        FROM unnest(skep._dashboard_moments($1, $2)) AS moment
        CROSS JOIN LATERAL (SELECT * FROM skep.samples s WHERE s.at = moment AND ($3 IS NULL OR s.queue = ANY ($3))) s
        WINDOW series AS (PARTITION BY s.queue, s.group_name ORDER BY s.at)
    )
    SELECT coalesce(json_agg(json_build_array(t.at, t.pushed, t.done, t.lag, t.seconds, t.dead) ORDER BY t.at), '[]')
    FROM (
        SELECT extract(epoch FROM s.at)::double precision AS at,
               round(sum(s.rate) FILTER (WHERE s.group_name = ''), 3) AS pushed,
               round(sum(s.rate) FILTER (WHERE s.group_name <> ''), 3) AS done,
               coalesce(sum(s.lag) FILTER (WHERE s.waits), 0) AS lag,
               coalesce(round(max(extract(epoch FROM s.at - s.oldest_at)) FILTER (WHERE s.waits AND s.lag > 0), 1), 0)
                   AS seconds, sum(s.dead) FILTER (WHERE s.group_name = '') AS dead
        FROM (SELECT s.*, s.group_name <> '' AND (s.queue, s.group_name) NOT IN (
                  SELECT p.queue, p.group_name FROM skep._last_progress($3) p
                  WHERE p.status IN ('DEAD', 'CANCELLED')) AS waits FROM step s) s
        GROUP BY s.at
    ) t
$$;
CALL skep._allow('skep_admin', '_dashboard_trend');

-- Returns [[group, time, rate, lag, age of the oldest message, leased, dead letters], …] of a queue (group '') and of
-- its groups, or of one of them.
CREATE FUNCTION skep._dashboard_queue_trend(queue text, group_name text, since interval, points integer) RETURNS json
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(json_agg(json_build_array(s.group_name, extract(epoch FROM s.at)::double precision,
                                              round(s.rate, 3), s.lag,
               CASE WHEN s.lag > 0 THEN round(extract(epoch FROM s.at - s.oldest_at), 1) ELSE 0 END, s.leased, s.dead)
                   ORDER BY s.group_name, s.at), '[]')
    FROM (
        SELECT s.*, greatest(s.total - lag(s.total) OVER series,
                             0) / nullif(extract(epoch FROM s.at - lag(s.at) OVER series), 0) AS rate
        FROM (SELECT '' AS name UNION SELECT g.group_name FROM skep.queues q
              JOIN skep.group_queues g ON g.queue_id = q.id WHERE q.name = _dashboard_queue_trend.queue
              UNION SELECT x.group_name FROM skep.subscriptions x WHERE x.queue = _dashboard_queue_trend.queue) member
        CROSS JOIN unnest(skep._dashboard_moments(since, points)) AS moment
        CROSS JOIN LATERAL (SELECT * FROM skep.samples s
                            WHERE s.queue = _dashboard_queue_trend.queue AND s.group_name = member.name
                              AND s.at = moment LIMIT 1) s
        WHERE _dashboard_queue_trend.group_name IS NULL OR member.name = _dashboard_queue_trend.group_name
        WINDOW series AS (PARTITION BY s.group_name ORDER BY s.at)
    ) s
$$;
CALL skep._allow('skep_admin', '_dashboard_queue_trend');

-- Returns a page of queues whose name, namespace or task contains the text, sorted by a column. total: the number of
-- all matches. A queue that is younger than the last sample has no numbers yet.
CREATE FUNCTION skep._dashboard_queues(
    search text, sort text, descending boolean, max_rows integer, skip integer, visible text[]
) RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH progress AS (
        SELECT p.queue, max(p.lag) FILTER (WHERE p.group_name = '') AS kept,
               coalesce(max(p.rate) FILTER (WHERE p.group_name = ''), 0) AS pushed,
               coalesce(sum(p.rate) FILTER (WHERE p.group_name <> ''), 0) AS done,
               coalesce(sum(p.lag) FILTER (WHERE p.status IN ('ACTIVE', 'PAUSED')), 0) AS lag,
               coalesce(max(p.seconds) FILTER (WHERE p.status IN ('ACTIVE', 'PAUSED')), 0) AS seconds,
               max(p.dead) FILTER (WHERE p.group_name = '') AS dead_letters,
                   count(*) FILTER (WHERE p.group_name <> '') AS groups
        FROM skep._last_progress(visible) p GROUP BY p.queue
        UNION ALL
        SELECT q.name, 0, 0, 0, 0, 0, 0, 0 FROM skep.queues q
        WHERE (visible IS NULL OR q.name = ANY (visible)) AND NOT EXISTS (
            SELECT FROM skep.samples s WHERE s.queue = q.name AND s.group_name = ''
                AND s.at = (SELECT last.at FROM skep.samples last ORDER BY last.at DESC LIMIT 1))),
    found AS MATERIALIZED (
        SELECT q.id, q.name, q.namespace, q.task, q.semantics, p.kept, p.pushed, p.done, p.lag, p.seconds,
               p.dead_letters, p.groups
        FROM progress p CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = p.queue LIMIT 1) q
        WHERE search IS NULL OR strpos(lower(concat_ws(' ', q.name, q.namespace, q.task)), lower(search)) > 0),
    page AS (
        SELECT f.*, row_number() OVER (ORDER BY CASE WHEN descending THEN -1 ELSE 1 END * CASE sort
                   WHEN 'kept' THEN f.kept WHEN 'pushed' THEN f.pushed WHEN 'done' THEN f.done WHEN 'lag' THEN f.lag
                       WHEN 'seconds' THEN f.seconds
                   WHEN 'dead_letters' THEN f.dead_letters WHEN 'groups' THEN f.groups ELSE 0 END,
                   CASE WHEN sort = 'name' AND descending THEN f.name END DESC, f.name) AS n
        FROM found f ORDER BY n LIMIT max_rows OFFSET skip)
    SELECT json_build_object('total', (SELECT count(*) FROM found), 'queues', coalesce(json_agg(
               (to_jsonb(page) - ARRAY['id', 'n'])
               || jsonb_build_object('partitions', (SELECT count(*) FROM skep.partitions p WHERE p.queue_id = page.id))
                   ORDER BY page.n), '[]'))
    FROM page
$$;
CALL skep._allow('skep_admin', '_dashboard_queues');

-- Returns a page of groups, each on one queue.
CREATE FUNCTION skep._dashboard_groups(
    search text, state text, sort text, descending boolean, max_rows integer, skip integer, visible text[]
)
RETURNS json
LANGUAGE sql VOLATILE AS $$
    WITH found AS MATERIALIZED (
        SELECT p.group_name AS "group", p.queue, p.status, coalesce(p.rate, 0) AS rate, p.lag, p.seconds, p.leased,
               p.dead AS dead_letters
        FROM skep._last_progress(visible) p
        WHERE p.group_name <> '' AND (_dashboard_groups.state IS NULL OR p.status = _dashboard_groups.state)
          AND (search IS NULL OR strpos(lower(p.group_name || ' ' || p.queue), lower(search)) > 0)),
    page AS (
        SELECT f.*, row_number() OVER (ORDER BY CASE WHEN descending THEN -1 ELSE 1 END * CASE sort
                   WHEN 'rate' THEN f.rate WHEN 'lag' THEN f.lag WHEN 'seconds' THEN f.seconds
                       WHEN 'leased' THEN f.leased
                   WHEN 'dead_letters' THEN f.dead_letters ELSE 0 END,
                   CASE WHEN descending THEN CASE sort WHEN 'group' THEN f."group" WHEN 'queue' THEN f.queue
                       WHEN 'status' THEN f.status END END DESC,
                   CASE sort WHEN 'queue' THEN f.queue WHEN 'status' THEN f.status ELSE f."group" END, f."group",
                       f.queue) AS n
        FROM found f ORDER BY n LIMIT max_rows OFFSET skip)
    SELECT json_build_object('total', (SELECT count(*) FROM found),
                             'groups', coalesce(json_agg(to_jsonb(page) - 'n' ORDER BY page.n), '[]')) FROM page
$$;
CALL skep._allow('skep_admin', '_dashboard_groups');

-- Returns the effect of a seek(); position is 'end' or a time. again: completed messages that would be delivered again;
-- skipped: pending messages that would never be delivered.
CREATE FUNCTION skep._dashboard_seek(group_name text, queue text, "position" text) RETURNS json
LANGUAGE sql VOLATILE AS $$
    SELECT json_build_object('partitions', count(*), 'again', coalesce(sum(greatest(progress.at - goal.at, 0)), 0),
               'skipped', coalesce(sum(greatest(goal.at - progress.at, 0)), 0), 'lag', coalesce(sum(g.lag), 0),
               'lag_after', coalesce(sum(h.last_offset + 1 - goal.at), 0), 'leased', coalesce(sum(g.leased), 0))
    FROM skep.lag($1, $2) g
    JOIN skep.queues q ON q.name = g.queue
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = g.partition LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup h WHERE h.partition_id = p.id LIMIT 1) h
    CROSS JOIN LATERAL (SELECT greatest(g.cursor, h.first_offset) AS at) progress
    CROSS JOIN LATERAL (SELECT CASE WHEN $3 = 'end' THEN h.last_offset + 1
                        ELSE greatest(skep._offset_at(p.id, $3::timestamptz), h.first_offset) END AS at) goal
$$;
CALL skep._allow('skep_admin', '_dashboard_seek');

-- Returns the size of the database, its connections, and the oldest open transaction.
CREATE FUNCTION skep._dashboard_database() RETURNS json
LANGUAGE sql VOLATILE AS $$
    SELECT json_build_object('name', current_database(), 'version', current_setting('server_version'),
                             'bytes', pg_database_size(current_database()),
        'started_at', pg_postmaster_start_time(), 'max_connections', current_setting('max_connections')::integer,
        'clients', (SELECT coalesce(json_agg(json_build_object(
                               'application', c.application, 'address', c.address, 'connections', c.connections,
                               'active', c.active, 'in_transaction', c.open, 'since', c.since)
                               ORDER BY c.connections DESC, c.application, c.address), '[]')
                    FROM (SELECT coalesce(nullif(a.application_name, ''), '(unnamed)') AS application,
                                 coalesce(host(a.client_addr), 'local') AS address, count(*) AS connections,
                                 count(*) FILTER (WHERE a.state = 'active') AS active,
                                 count(*) FILTER (WHERE a.state LIKE 'idle in transaction%') AS open,
                                 min(a.backend_start) AS since
                          FROM pg_stat_activity a
                          WHERE a.datname = current_database() AND a.backend_type = 'client backend'
                          GROUP BY 1, 2) c),
        'oldest_transaction', (SELECT json_build_object(
                                   'pid', a.pid, 'seconds', extract(epoch FROM clock_timestamp() - a.xact_start),
                                   'state', a.state, 'application', a.application_name, 'user', a.usename)
                               FROM pg_stat_activity a
                               WHERE a.datname = current_database() AND a.xact_start IS NOT NULL
                                 AND a.pid <> pg_backend_pid()
                                 AND a.backend_type = 'client backend' ORDER BY a.xact_start LIMIT 1))
$$;
CALL skep._allow('skep_admin', '_dashboard_database');
