-- Dead letters in Queen's shape.

-- Returns the newest dead letters that match. Those of a queue are merged from its groups, each by the index; those of all queues come in
-- their own order.
CREATE FUNCTION skep._match_dead_letters(
    queue text, group_name text, partition text, since timestamptz, until timestamptz, visible text[], max_rows integer
) RETURNS SETOF skep.dead_letters LANGUAGE sql STABLE AS $$
    WITH RECURSIVE groups (name) AS (
        (SELECT d.group_name FROM skep.dead_letters d WHERE d.queue = $1 AND ($2 IS NULL OR d.group_name = $2)
         ORDER BY d.group_name, d.id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.group_name FROM skep.dead_letters d WHERE d.queue = $1 AND d.group_name > groups.name
                ORDER BY d.group_name, d.id LIMIT 1)
        FROM groups WHERE groups.name IS NOT NULL AND $2 IS NULL
    )
    SELECT * FROM (
        SELECT of_group.* FROM groups
        CROSS JOIN LATERAL (
            SELECT * FROM skep.dead_letters d
            WHERE d.queue = $1 AND d.group_name = groups.name AND ($3 IS NULL OR d.partition = $3) AND ($4 IS NULL OR d.failed_at >= $4)
              AND ($5 IS NULL OR d.failed_at <= $5) AND ($6 IS NULL OR d.queue = ANY ($6))
            ORDER BY d.id DESC LIMIT $7) of_group
        UNION ALL
        (SELECT * FROM skep.dead_letters d
         WHERE $1 IS NULL AND ($2 IS NULL OR d.group_name = $2) AND ($3 IS NULL OR d.partition = $3) AND ($4 IS NULL OR d.failed_at >= $4)
           AND ($5 IS NULL OR d.failed_at <= $5) AND ($6 IS NULL OR d.queue = ANY ($6))
         ORDER BY d.id DESC LIMIT $7)
    ) d ORDER BY d.id DESC LIMIT $7
$$;

-- total counts no further than 100,000.
CREATE FUNCTION skep._queen_dead_letters(
    queue text, group_name text, partition text, since timestamptz, until timestamptz, visible text[], max_rows integer, skip integer
) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('messages', coalesce((
        SELECT json_agg(json_build_object(
            'id', skep.message_id(d.partition_id, d."offset"),
            'transactionId', coalesce(d.transaction_id, skep.message_id(d.partition_id, d."offset")::text),
            'partitionId', skep._partition_uuid(d.partition_id), 'queue', d.queue, 'partition', d.partition, 'consumerGroup', d.group_name,
            'errorMessage', d.error, 'retryCount', greatest(d.attempts - 1, 0), 'data', d.payload, 'producerSub', d.producer,
            'createdAt', skep._queen_time(d.created_at), 'failedAt', skep._queen_time(d.failed_at), 'dlqId', d.id, 'traceId', d.trace_id,
            'headers', d.headers) ORDER BY d.id DESC)
        FROM (SELECT * FROM skep._match_dead_letters($1, $2, $3, $4, $5, $6, $7 + $8) d ORDER BY d.id DESC OFFSET $8) d), '[]'),
        'total', (SELECT count(*) FROM skep._match_dead_letters($1, $2, $3, $4, $5, $6, 100000)),
        'pagination', json_build_object('limit', $7, 'offset', $8))
$$;
CALL skep._allow('skep_admin', '_queen_dead_letters');

-- Returns the dead letters that a call is about: by their own number, or all of a message, by its id or by (partitionId, transactionId).
CREATE FUNCTION skep._queen_dead_letters_of(dead_letter_id bigint, message_id uuid, partition_id uuid, transaction_id text, group_name text)
RETURNS TABLE (id bigint, queue text) LANGUAGE sql STABLE AS $$
    SELECT d.id, d.queue FROM (
        SELECT * FROM skep.dead_letters d WHERE d.id = $1
        UNION ALL
        SELECT * FROM skep.dead_letters d WHERE d.partition_id = skep.partition_of($2) AND d."offset" = skep.offset_of($2)
        UNION ALL
        SELECT * FROM skep.dead_letters d
        WHERE d.partition_id = skep.partition_of($3) AND (d.transaction_id = $4 OR skep.message_id(d.partition_id, d."offset")::text = $4)
    ) d
    WHERE $5 IS NULL OR d.group_name = $5 ORDER BY d.id
$$;
CALL skep._allow('skep_admin', '_queen_dead_letters_of');
