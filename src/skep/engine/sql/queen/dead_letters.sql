-- Dead letters in Queen's shape.

-- Returns the newest dead letters that match. Those of one queue are merged from its groups, each by the index; those
-- of all queues come by id.
CREATE FUNCTION skep._match_dead_letters(
    queue text, group_name text, partition text, since timestamptz, until timestamptz, visible text[], max_rows integer
) RETURNS SETOF skep.dead_letters LANGUAGE sql STABLE AS $$
    WITH RECURSIVE groups (name) AS (
        (SELECT d.group_name FROM skep.dead_letters d
         WHERE d.queue = _match_dead_letters.queue
           AND (_match_dead_letters.group_name IS NULL OR d.group_name = _match_dead_letters.group_name)
         ORDER BY d.group_name, d.id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.group_name FROM skep.dead_letters d
                WHERE d.queue = _match_dead_letters.queue AND d.group_name > groups.name
                ORDER BY d.group_name, d.id LIMIT 1)
        FROM groups WHERE groups.name IS NOT NULL AND _match_dead_letters.group_name IS NULL
    )
    SELECT * FROM (
        SELECT of_group.* FROM groups
        CROSS JOIN LATERAL (
            SELECT * FROM skep.dead_letters d
            WHERE d.queue = _match_dead_letters.queue AND d.group_name = groups.name
              AND (_match_dead_letters.partition IS NULL OR d.partition = _match_dead_letters.partition)
              AND (since IS NULL OR d.failed_at >= since)
              AND (_match_dead_letters.until IS NULL OR d.failed_at <= _match_dead_letters.until)
              AND (visible IS NULL OR d.queue = ANY (visible))
            ORDER BY d.id DESC LIMIT max_rows) of_group
        UNION ALL
        (SELECT * FROM skep.dead_letters d
         WHERE _match_dead_letters.queue IS NULL
           AND (_match_dead_letters.group_name IS NULL OR d.group_name = _match_dead_letters.group_name)
           AND (_match_dead_letters.partition IS NULL OR d.partition = _match_dead_letters.partition)
           AND (since IS NULL OR d.failed_at >= since)
           AND (_match_dead_letters.until IS NULL OR d.failed_at <= _match_dead_letters.until)
           AND (visible IS NULL OR d.queue = ANY (visible))
         ORDER BY d.id DESC LIMIT max_rows)
    ) d ORDER BY d.id DESC LIMIT max_rows
$$;

-- total counts at most 100,000.
CREATE FUNCTION skep._queen_dead_letters(
    queue text, group_name text, partition text, since timestamptz, until timestamptz, visible text[],
        max_rows integer, skip integer
) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('messages', coalesce((
        SELECT json_agg(json_build_object(
            'id', skep.message_id(d.partition_id, d."offset"),
            'transactionId', coalesce(d.transaction_id, skep.message_id(d.partition_id, d."offset")::text),
            'partitionId', skep._partition_uuid(d.partition_id), 'queue', d.queue, 'partition', d.partition,
            'consumerGroup', d.group_name, 'errorMessage', d.error, 'retryCount', greatest(d.attempts - 1, 0),
            'data', d.payload, 'producerSub', d.producer, 'createdAt', skep._queen_time(d.created_at),
            'failedAt', skep._queen_time(d.failed_at), 'dlqId', d.id, 'traceId', d.trace_id, 'headers', d.headers)
            ORDER BY d.id DESC)
        FROM (SELECT * FROM skep._match_dead_letters(
                  _queen_dead_letters.queue, _queen_dead_letters.group_name, _queen_dead_letters.partition, since,
                  _queen_dead_letters.until, visible, max_rows + skip) d
              ORDER BY d.id DESC OFFSET skip) d), '[]'),
        'total', (SELECT count(*) FROM skep._match_dead_letters(
                      _queen_dead_letters.queue, _queen_dead_letters.group_name, _queen_dead_letters.partition, since,
                      _queen_dead_letters.until, visible, 100000)),
        'pagination', json_build_object('limit', max_rows, 'offset', skip))
$$;
CALL skep._allow('skep_admin', '_queen_dead_letters');

-- Returns dead letters by their own id, or all of a message, by its id or by (partitionId, transactionId).
CREATE FUNCTION skep._queen_dead_letters_of(
    dead_letter_id bigint, message_id uuid, partition_id uuid, transaction_id text, group_name text
)
RETURNS TABLE (id bigint, queue text) LANGUAGE sql STABLE AS $$
    SELECT d.id, d.queue FROM (
        SELECT * FROM skep.dead_letters d WHERE d.id = _queen_dead_letters_of.dead_letter_id
        UNION ALL
        SELECT * FROM skep.dead_letters d
        WHERE d.partition_id = skep.partition_of(_queen_dead_letters_of.message_id)
          AND d."offset" = skep.offset_of(_queen_dead_letters_of.message_id)
        UNION ALL
        SELECT * FROM skep.dead_letters d
        WHERE d.partition_id = skep.partition_of(_queen_dead_letters_of.partition_id)
          AND (d.transaction_id = _queen_dead_letters_of.transaction_id
               OR skep.message_id(d.partition_id, d."offset")::text = _queen_dead_letters_of.transaction_id)
    ) d
    WHERE _queen_dead_letters_of.group_name IS NULL OR d.group_name = _queen_dead_letters_of.group_name ORDER BY d.id
$$;
CALL skep._allow('skep_admin', '_queen_dead_letters_of');
