-- Streams of Queen's clients. The client computes windows and joins. Here are its queries, the state of each (query,
-- partition, key), and the cycle: state, pushes and the ack of a run of one partition, all or nothing.

-- Registers a query. The same name and hash is the same query. Another hash is refused, unless reset is true: then the
-- state of the query is deleted.
CREATE FUNCTION skep._queen_stream_register(
    name text, source_queue text, sink_queue text, config_hash text, reset boolean,
    OUT query_id uuid, OUT fresh boolean, OUT was_reset boolean, OUT stored_hash text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM skep._check_name('query', _queen_stream_register.name),
            skep._check_name('queue', _queen_stream_register.source_queue);
    PERFORM skep._check_name('queue', _queen_stream_register.sink_queue)
    WHERE _queen_stream_register.sink_queue IS NOT NULL;
    PERFORM skep._check_name('config_hash', _queen_stream_register.config_hash);
    INSERT INTO skep.stream_groups (group_name, queue)
    SELECT 'streams.' || _queen_stream_register.name, _queen_stream_register.source_queue ON CONFLICT DO NOTHING;
    INSERT INTO skep.stream_queries (name, source_queue, sink_queue, config_hash)
    VALUES (_queen_stream_register.name, _queen_stream_register.source_queue, _queen_stream_register.sink_queue,
            _queen_stream_register.config_hash)
    ON CONFLICT DO NOTHING RETURNING id INTO query_id;
    fresh := query_id IS NOT NULL;
    was_reset := false;
    stored_hash := _queen_stream_register.config_hash;
    IF fresh THEN
        RETURN;
    END IF;
    SELECT q.id, q.config_hash INTO query_id, stored_hash FROM skep.stream_queries q
    WHERE q.name = _queen_stream_register.name FOR UPDATE;
    IF stored_hash <> _queen_stream_register.config_hash AND reset THEN
        DELETE FROM skep.stream_state s WHERE s.query_id = _queen_stream_register.query_id;
        UPDATE skep.stream_queries q
        SET config_hash = _queen_stream_register.config_hash, source_queue = _queen_stream_register.source_queue,
            sink_queue = _queen_stream_register.sink_queue
        WHERE q.id = _queen_stream_register.query_id;
        was_reset := true;
        stored_hash := _queen_stream_register.config_hash;
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_queen_stream_register');

-- Returns rows of state as JSON, comma-separated, by key. Without keys it returns all. A prefix has no wildcards.
CREATE FUNCTION skep._queen_stream_state(
    query_id uuid, partition_id uuid, keys text[], key_prefix text, ripe_at_or_before double precision
)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(string_agg(json_build_object('key', s.key, 'value', s.value,
                                                 'updated_at', skep._queen_time(s.updated_at))::text, ','
                               ORDER BY s.key), '')
    FROM skep.stream_state s
    WHERE s.query_id = _queen_stream_state.query_id
      AND s.partition_id = skep.partition_of(_queen_stream_state.partition_id) AND (keys = '{}' OR s.key = ANY (keys))
      AND s.key >= coalesce(key_prefix, '') AND starts_with(s.key, coalesce(key_prefix, ''))
      AND (ripe_at_or_before IS NULL
           OR CASE WHEN jsonb_typeof(s.value -> 'windowEnd') = 'number' THEN (s.value ->> 'windowEnd')::numeric
           <= ripe_at_or_before::numeric
                              ELSE false END)
$$;
CALL skep._allow('skep_consumer', '_queen_stream_state');

-- Applies changes of state. If a key occurs twice, the last change counts.
CREATE FUNCTION skep._write_stream_state(query_id uuid, partition_id bigint, ops jsonb) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    too_long text;
BEGIN
    WITH changes AS MATERIALIZED (
        SELECT DISTINCT ON (op ->> 'key') op ->> 'key' AS key, op ->> 'type' AS type,
               coalesce(op -> 'value', 'null') AS value
        FROM jsonb_array_elements(ops) WITH ORDINALITY AS item (op, n) ORDER BY op ->> 'key', n DESC
    ), deleted AS (
        DELETE FROM skep.stream_state s USING changes
        WHERE changes.type = 'delete' AND s.query_id = _write_stream_state.query_id
          AND s.partition_id = _write_stream_state.partition_id
          AND s.key = ANY (ARRAY[changes.key])
    )
    INSERT INTO skep.stream_state AS s (query_id, partition_id, key, value)
    SELECT _write_stream_state.query_id, _write_stream_state.partition_id, changes.key, changes.value FROM changes
    WHERE changes.type = 'upsert'
    ON CONFLICT (query_id, partition_id, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;
EXCEPTION WHEN check_violation THEN
    SELECT left(op ->> 'key', 40) INTO too_long FROM jsonb_array_elements(ops) op
    WHERE octet_length(op ->> 'key') > 2000 LIMIT 1;
    PERFORM skep._refuse('SK001', format('state key "%s…" is too long', too_long),
                         'A key must have at most 2000 bytes.');
END $$;

-- Acknowledges the `count` messages of the lease that end with the named one; messages before them stay without an ack.
-- The rest is released, at the same attempt, or stays leased. Returns the number of acknowledged messages and whether
-- the lease has ended.
CREATE FUNCTION skep._ack_stream(
    partition_id uuid, group_name text, transaction_id text, lease uuid, status text, count integer, error text,
    release_lease boolean, OUT acked bigint, OUT released boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    target  skep.resolved_ack;
    leased  record;
    offsets bigint[];
    n       integer;
BEGIN
    SELECT * INTO target
    FROM skep._queen_resolve_acks(ARRAY[_ack_stream.partition_id], ARRAY[_ack_stream.transaction_id],
                          ARRAY[_ack_stream.group_name], ARRAY[_ack_stream.lease]);
    IF target."offset" IS NULL THEN
        PERFORM skep._refuse('SK003', 'Message not found');
    END IF;
    SELECT (l.run).first_offset, (l.run).leased_to, coalesce((l.run).done, '{}') AS done INTO leased
    FROM skep._lock_lease(target.lease) l;
    IF target."offset" >= leased.first_offset AND target."offset" < leased.leased_to
       AND NOT leased.done @> target."offset" THEN
        offsets := ARRAY(
            SELECT o FROM unnest(int8multirange(int8range(leased.first_offset, target."offset" + 1))
                                 - leased.done) AS range
            CROSS JOIN LATERAL generate_series(lower(range), upper(range) - 1) AS o
            ORDER BY o DESC LIMIT _ack_stream.count);
    ELSE
        PERFORM skep._refuse('SK003', 'Invalid or expired lease');
    END IF;
    acked := cardinality(offsets);
    offsets := CASE WHEN release_lease THEN offsets || NULL::bigint ELSE offsets END;
    n := cardinality(offsets);
    PERFORM skep._apply_acks(array_fill(target.lease, ARRAY[n]), array_fill(target.partition_id, ARRAY[n]), offsets,
                        skep._queen_statuses(array_fill(_ack_stream.status, ARRAY[acked::integer]))
                        || CASE WHEN release_lease THEN ARRAY['release'] ELSE '{}' END,
                        array_fill(_ack_stream.error, ARRAY[n]));
    INSERT INTO skep.stream_groups (group_name, queue)
    SELECT g.group_name, target.queue FROM skep.group_queues g
    WHERE g.id = target.group_queue_id AND g.group_name <> '__QUEUE_MODE__'
      AND NOT EXISTS (SELECT FROM skep.stream_groups known
                      WHERE known.group_name = g.group_name AND known.queue = target.queue)
    ON CONFLICT DO NOTHING;
    released := NOT EXISTS (SELECT FROM skep.runs r
                            WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id
                               AND r.lease_id IS NOT DISTINCT FROM target.lease);
END $$;

-- Stores the state and the ack of a cycle. Only one cycle at a time runs for each (query, partition). Without an ack no
-- lease changes.
CREATE FUNCTION skep._queen_stream_step(
    query_id uuid, partition_id uuid, group_name text, state_ops jsonb, ack jsonb, release_lease boolean,
    OUT queue text, OUT acked bigint, OUT released boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    source bigint := skep.partition_of(_queen_stream_step.partition_id);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(_queen_stream_step.query_id::text, source));
    PERFORM FROM skep.stream_queries q WHERE q.id = _queen_stream_step.query_id FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK002', 'query_id is unknown');
    END IF;
    SELECT q.name INTO queue FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id WHERE p.id = source;
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK002', 'partition_id is unknown');
    END IF;
    IF state_ops <> '[]' THEN
        PERFORM skep._write_stream_state(_queen_stream_step.query_id, source, state_ops);
    END IF;
    IF ack IS NOT NULL THEN
        SELECT a.acked, a.released INTO acked, released
        FROM skep._ack_stream(_queen_stream_step.partition_id, _queen_stream_step.group_name, ack ->> 'transaction_id',
                              (ack ->> 'lease')::uuid, ack ->> 'status', (ack ->> 'count')::integer, ack ->> 'error',
                              release_lease) a;
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_queen_stream_step');

-- Runs one cycle of a stream. It pushes with the rights of its caller, as _queen_transaction() does. A duplicate push
-- is not an error.
CREATE FUNCTION skep._queen_stream_cycle(
    query_id uuid, partition_id uuid, group_name text, state_ops jsonb, messages jsonb, ack jsonb,
    release_lease boolean, OUT queue text, OUT acked bigint, OUT released boolean, OUT duplicates boolean[],
    OUT stored_in bigint[], OUT offsets bigint[], OUT delayed jsonb
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.queue, s.acked, s.released INTO queue, acked, released
    FROM skep._queen_stream_step(_queen_stream_cycle.query_id, _queen_stream_cycle.partition_id, group_name, state_ops,
                                 ack, release_lease) s;
    IF messages <> '[]' THEN
        SELECT p.duplicates, p.partition_ids, p.offsets, p.delayed INTO duplicates, stored_in, offsets, delayed
        FROM skep._push_messages(messages) p;
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_queen_stream_cycle', definer => false);
