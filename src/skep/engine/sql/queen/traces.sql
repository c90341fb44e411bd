-- Traces: reports of consumers about messages that they process. A name connects traces of many messages.

-- Stores a trace and returns its id; NULL if there is no such message.
CREATE FUNCTION skep._queen_trace(
    partition_id uuid, transaction_id text, group_name text, event_type text, data jsonb, names text[], worker text
)
RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    source         bigint := skep.partition_of(_queen_trace.partition_id);
    message_offset bigint := skep._find_message(source, _queen_trace.transaction_id);
    number         bigint;
    stamp          timestamptz := clock_timestamp();
BEGIN
    IF message_offset IS NULL THEN
        RETURN NULL;
    ELSIF pg_column_size(data) > 65536 THEN
        PERFORM skep._refuse('SK004', format('the data of the trace has %s bytes, the limit is 65536',
                                             pg_column_size(data)));
    END IF;
    PERFORM skep._check_name('trace', name) FROM unnest(names) AS name;
    PERFORM skep._check_name('event type', _queen_trace.event_type), skep._check_name('group', _queen_trace.group_name);
    INSERT INTO skep.traces (partition_id, "offset", transaction_id, group_name, event_type, data, worker)
    SELECT source, message_offset, coalesce(m.transaction_id, _queen_trace.transaction_id), _queen_trace.group_name,
           _queen_trace.event_type, _queen_trace.data,
           _queen_trace.worker
    FROM skep.messages m WHERE m.partition_id = source AND m."offset" = message_offset
    RETURNING id INTO number;
    INSERT INTO skep.trace_names (name, trace_id, partition_id, "offset")
    SELECT DISTINCT name, number, source, message_offset FROM unnest(names) AS name;
    INSERT INTO skep.traced_names AS t (name, last_seen_at)
    SELECT DISTINCT name, stamp FROM unnest(names) AS name
    WHERE NOT EXISTS (SELECT FROM skep.traced_names k
                      WHERE k.name = name.name AND k.last_seen_at > stamp - interval '1 second')
    ORDER BY name
    ON CONFLICT (name) DO UPDATE SET last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at);
    RETURN skep.message_id(0, number);
END $$;
CALL skep._allow('skep_admin', '_queen_trace');

CREATE FUNCTION skep._trace_row(t skep.traces) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', skep.message_id(0, $1.id), 'event_type', $1.event_type, 'data', $1.data,
                              'consumer_group', $1.group_name,
        'worker_id', $1.worker, 'created_at', skep._queen_time($1.created_at),
        'trace_names', coalesce((SELECT jsonb_agg(n.name ORDER BY n.name) FROM skep.trace_names n
                                 WHERE n.trace_id = $1.id), '[]'))
$$;

-- Returns the last thousand traces of a message, oldest first.
CREATE FUNCTION skep._queen_traces_of(partition_id uuid, transaction_id text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('traces', coalesce(json_agg(skep._trace_row(last.t) ORDER BY (last.t).id), '[]'))
    FROM (SELECT t FROM skep.traces t WHERE t.partition_id = skep.partition_of($1) AND t.transaction_id = $2
          ORDER BY t.id DESC
          LIMIT 1000) last
$$;
CALL skep._allow('skep_admin', '_queen_traces_of');

-- Returns the messages of the last 10,000 traces with a name.
CREATE FUNCTION skep._traced_messages(name text, visible text[]) RETURNS TABLE (partition_id bigint, "offset" bigint)
LANGUAGE sql STABLE AS $$
    SELECT n.partition_id, n."offset" FROM skep.trace_names n
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = n.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    WHERE n.name = $1 AND ($2 IS NULL OR q.name = ANY ($2)) ORDER BY n.trace_id DESC LIMIT 10000
$$;

-- Returns traces with a name, newest first. total counts at most 10,000.
CREATE FUNCTION skep._queen_traces_named(name text, visible text[], max_rows integer, skip integer) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_build_object('traces', coalesce((
        SELECT json_agg(skep._trace_row(page.t) || jsonb_build_object(
            'transaction_id', (page.t).transaction_id, 'partition_id', skep._partition_uuid((page.t).partition_id),
            'queue_name', page.queue,
            'partition_name', page.partition, 'message_payload', m.payload, 'headers', m.headers)
            ORDER BY (page.t).id DESC)
        FROM (SELECT of_name.t, q.name AS queue, p.name AS partition FROM skep.trace_names n
              CROSS JOIN LATERAL (SELECT t FROM skep.traces t WHERE t.id = n.trace_id LIMIT 1) of_name
              CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = n.partition_id LIMIT 1) p
              CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
              WHERE n.name = _queen_traces_named.name AND (visible IS NULL OR q.name = ANY (visible))
              ORDER BY n.trace_id DESC LIMIT max_rows OFFSET skip) page
        LEFT JOIN LATERAL (SELECT * FROM skep.messages m
                           WHERE m.partition_id = (page.t).partition_id AND m."offset" = (page.t)."offset"
                           LIMIT 1) m ON true),
        '[]'),
        'total', (SELECT count(*) FROM (SELECT FROM skep._traced_messages(_queen_traces_named.name, visible)) n),
        'pagination', json_build_object('limit', max_rows, 'offset', skip))
$$;
CALL skep._allow('skep_admin', '_queen_traces_named');

-- Returns names, the last seen first. A caller who may not see every queue gets only names of traces of visible queues,
-- among the last 10,000 names.
CREATE FUNCTION skep._queen_trace_names(visible text[], max_rows integer, skip integer) RETURNS json
LANGUAGE sql STABLE AS $$
    WITH known AS MATERIALIZED (
        SELECT t.name, t.last_seen_at FROM skep.traced_names t
        WHERE EXISTS (SELECT FROM skep._traced_messages(t.name, $1)) ORDER BY t.last_seen_at DESC, t.name DESC
        LIMIT 10000
    )
    SELECT json_build_object('trace_names', coalesce(json_agg(json_build_object(
               'trace_name', page.name, 'trace_count', n.traces, 'message_count', n.messages,
               'last_seen', skep._queen_time(page.last_seen_at))
               ORDER BY page.last_seen_at DESC, page.name DESC), '[]'),
               'total', (SELECT count(*) FROM known), 'pagination', json_build_object('limit', $2, 'offset', $3))
    FROM (SELECT * FROM known ORDER BY known.last_seen_at DESC, known.name DESC LIMIT $2 OFFSET $3) page
    CROSS JOIN LATERAL (SELECT count(*) AS traces, count(DISTINCT (n.partition_id, n."offset")) AS messages
                        FROM skep._traced_messages(page.name, $1) n) n
$$;
CALL skep._allow('skep_admin', '_queen_trace_names');

-- Deletes traces that are older than this, or beyond the limit, in steps of 10,000. A name is deleted when it is older
-- than every trace and has no traces left. Also deletes old lease sets of Queen's clients. Returns the number of
-- deleted traces.
CREATE FUNCTION skep._prune_traces(keep interval DEFAULT '7 days', at_most bigint DEFAULT 1000000) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
    newest bigint := (SELECT t.id FROM skep.traces t ORDER BY t.id DESC LIMIT 1);
    -- A variable, because an index cannot be used with a volatile function.
    oldest timestamptz := clock_timestamp() - keep;
BEGIN
    DELETE FROM skep.traces t WHERE t.id = ANY (ARRAY(
        (SELECT k.id FROM skep.traces k WHERE k.created_at < oldest ORDER BY k.created_at LIMIT 10000)
        UNION ALL
        (SELECT k.id FROM skep.traces k WHERE k.id <= newest - at_most ORDER BY k.id LIMIT 10000)));
    GET DIAGNOSTICS pruned = ROW_COUNT;
    oldest := coalesce((SELECT t.created_at FROM skep.traces t ORDER BY t.id LIMIT 1), clock_timestamp());
    DELETE FROM skep.traced_names k
    WHERE k.last_seen_at < oldest AND NOT EXISTS (SELECT FROM skep.trace_names n WHERE n.name = k.name);
    PERFORM skep._prune_lease_sets();
    RETURN pruned;
END $$;
CALL skep._allow('skep_admin', '_prune_traces');
