-- Returns the names of queues to check rights for, including those that only have subscriptions or dead letters.
CREATE FUNCTION skep._queue_names() RETURNS text[]
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE dead (queue) AS (
        (SELECT d.queue FROM skep.dead_letters d ORDER BY d.queue, d.group_name, d.id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.queue FROM skep.dead_letters d WHERE d.queue > dead.queue ORDER BY d.queue, d.group_name, d.id
                LIMIT 1)
        FROM dead WHERE dead.queue IS NOT NULL
    )
    SELECT array_agg(name) FROM (
        SELECT q.name FROM skep.queues q
        UNION SELECT s.queue FROM skep.subscriptions s WHERE s.queue IS NOT NULL
        UNION SELECT dead.queue FROM dead WHERE dead.queue IS NOT NULL) known
$$;
CALL skep._allow('skep_admin', '_queue_names');
