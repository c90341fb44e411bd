-- Reading by offset, outside of any group.

-- Returns one entry for each requested partition. Its first record is always returned, however large, and further ones
-- as far as the byte limits allow. Deleted messages are left out.
CREATE FUNCTION skep._queen_fetch(
    queues text[], partitions text[], offsets bigint[], max_bytes bigint[], all_bytes bigint, max_rows integer
)
RETURNS SETOF json LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    requested record;
    log       record;
    records   json;
    size      bigint;
    bytes     bigint := all_bytes;
BEGIN
    FOR requested IN
        SELECT * FROM unnest(queues, partitions, offsets, max_bytes)
        WITH ORDINALITY AS e (queue, partition, "offset", bytes, n) ORDER BY n
    LOOP
        SELECT l.* INTO log FROM skep.queues q
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = requested.partition
                            LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id LIMIT 1) l
        WHERE q.name = requested.queue;
        IF NOT FOUND THEN
            RETURN NEXT json_build_object('records', '[]'::json, 'highWatermark', -1, 'logStartOffset', -1,
                                          'error', 'UNKNOWN_TOPIC_OR_PARTITION');
            CONTINUE;
        ELSIF requested."offset" NOT BETWEEN log.first_offset AND log.last_offset + 1 THEN
            RETURN NEXT json_build_object('records', '[]'::json, 'highWatermark', log.last_offset + 1,
                                          'logStartOffset', log.first_offset, 'error', 'OFFSET_OUT_OF_RANGE');
            CONTINUE;
        END IF;
        SELECT coalesce(json_agg(json_build_object(
                   'offset', m."offset", 'transactionId', coalesce(m.transaction_id,
                       skep.message_id(m.partition_id, m."offset")::text), 'payload', m.payload,
                       'ts', skep._queen_time(m.created_at), 'headers', m.headers) ORDER BY m."offset"), '[]'),
               coalesce(sum(m.size), 0)
        INTO records, size
        FROM (SELECT m.*, sum(m.size) OVER (ORDER BY m."offset") AS together
              -- Only messages that may fit by their compressed size.
              FROM (SELECT m.*, octet_length(m.payload::text)::bigint AS size
                    FROM (SELECT m.*, sum(pg_column_size(m.payload)) OVER (ORDER BY m."offset") AS at_least,
                                 row_number() OVER (ORDER BY m."offset") AS n
                          FROM (SELECT * FROM skep.messages m
                                WHERE m.partition_id = log.partition_id AND m."offset" >= requested."offset"
                                  AND m.payload IS NOT NULL
                                  AND bytes > 0 ORDER BY m."offset" LIMIT max_rows) m) m
                    WHERE m.at_least <= least(requested.bytes, bytes) OR m.n = 1) m) m
        WHERE m.together <= least(requested.bytes, bytes) OR m.n = 1;
        bytes := bytes - size;
        RETURN NEXT json_build_object('records', records, 'highWatermark', log.last_offset + 1,
                                      'logStartOffset', log.first_offset);
    END LOOP;
END $$;
CALL skep._allow('skep_admin', '_queen_fetch');

-- Returns a time before which everything is committed and visible: a push takes its time under a lock, and commits a
-- little later. Open transactions that push hold it back, if the caller may see when they began.
CREATE FUNCTION skep._queen_safe_time() RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT least(clock_timestamp() - 2 * skep._seconds((SELECT max_poll_interval FROM skep.settings)), (
        SELECT min(a.xact_start) FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()))
$$;
CALL skep._allow('skep_admin', '_queen_safe_time');

-- Returns the partitions of a queue with pushes since a time, by name; NULL if there is no such queue.
CREATE FUNCTION skep._queen_changed(queue text, since timestamptz, after_name text, max_rows integer) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('partitions', coalesce(json_agg(json_build_object(
               'name', head.name, 'id', skep._partition_uuid(head.id), 'lastOffset', head.last_offset,
               'logStart', head.first_offset,
               'lastWriteAt', skep._queen_time(nullif(head.last_created_at, '-infinity'))) ORDER BY head.name)
               FILTER (WHERE head.id IS NOT NULL), '[]'),
               'next', CASE WHEN count(head.id) = max_rows THEN max(head.name) END)
    FROM skep.queues q
    LEFT JOIN LATERAL (
        SELECT p.id, p.name, l.* FROM skep.partitions p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id LIMIT 1) l
        WHERE p.queue_id = q.id AND p.name > coalesce(after_name, '') AND (since IS NULL OR l.last_created_at >= since)
        ORDER BY p.name LIMIT max_rows
    ) head ON true
    WHERE q.name = _queen_changed.queue GROUP BY q.id
$$;
CALL skep._allow('skep_admin', '_queen_changed');
