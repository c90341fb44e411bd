-- Streams of Queen's clients. The windows and joins are the client's; here are their queries, the state of each (query, lane, key), and the
-- cycle: state, pushes and the answer for a run of one lane, all or nothing.

-- The same name and hash is the same query. Another hash is refused, unless reset is asked for: then its state goes.
CREATE FUNCTION skep.stream_register(
    name text, source_queue text, sink_queue text, config_hash text, reset boolean,
    OUT query_id uuid, OUT fresh boolean, OUT was_reset boolean, OUT stored_hash text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM skep.check_name('query', stream_register.name), skep.check_name('queue', stream_register.source_queue);
    PERFORM skep.check_name('queue', stream_register.sink_queue) WHERE stream_register.sink_queue IS NOT NULL;
    PERFORM skep.check_name('config_hash', stream_register.config_hash);
    INSERT INTO skep.stream_groups (group_name, queue)
    SELECT 'streams.' || stream_register.name, stream_register.source_queue ON CONFLICT DO NOTHING;
    INSERT INTO skep.stream_queries (name, source_queue, sink_queue, config_hash)
    VALUES (stream_register.name, stream_register.source_queue, stream_register.sink_queue, stream_register.config_hash)
    ON CONFLICT DO NOTHING RETURNING id INTO query_id;
    fresh := query_id IS NOT NULL;
    was_reset := false;
    stored_hash := stream_register.config_hash;
    IF fresh THEN
        RETURN;
    END IF;
    SELECT q.id, q.config_hash INTO query_id, stored_hash FROM skep.stream_queries q WHERE q.name = stream_register.name FOR UPDATE;
    IF stored_hash <> stream_register.config_hash AND reset THEN
        DELETE FROM skep.stream_state s WHERE s.query_id = stream_register.query_id;
        UPDATE skep.stream_queries q
        SET config_hash = stream_register.config_hash, source_queue = stream_register.source_queue, sink_queue = stream_register.sink_queue
        WHERE q.id = stream_register.query_id;
        was_reset := true;
        stored_hash := stream_register.config_hash;
    END IF;
END $$;

-- Rows of state as JSON, comma-separated, by key. No keys: all. A prefix is a prefix: nothing in it is a wildcard.
CREATE FUNCTION skep.stream_state(query_id uuid, partition_id uuid, keys text[], key_prefix text, ripe_at_or_before double precision)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(string_agg(json_build_object('key', s.key, 'value', s.value, 'updated_at', skep.wire_time(s.updated_at))::text, ','
                               ORDER BY s.key), '')
    FROM skep.stream_state s
    WHERE s.query_id = $1 AND s.partition_id = skep.partition_of($2) AND ($3 = '{}' OR s.key = ANY ($3))
      AND s.key >= coalesce($4, '') AND starts_with(s.key, coalesce($4, ''))
      AND ($5 IS NULL OR CASE WHEN jsonb_typeof(s.value -> 'windowEnd') = 'number' THEN (s.value ->> 'windowEnd')::numeric <= $5::numeric
                              ELSE false END)
$$;

-- Of a key that is named twice the last word counts.
CREATE FUNCTION skep.stream_write(query_id uuid, lane bigint, ops jsonb) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    too_long text;
BEGIN
    WITH said AS MATERIALIZED (
        SELECT DISTINCT ON (op ->> 'key') op ->> 'key' AS key, op ->> 'type' AS type, coalesce(op -> 'value', 'null') AS value
        FROM jsonb_array_elements(ops) WITH ORDINALITY AS item (op, n) ORDER BY op ->> 'key', n DESC
    ), gone AS (
        DELETE FROM skep.stream_state s USING said
        WHERE said.type = 'delete' AND s.query_id = stream_write.query_id AND s.partition_id = lane AND s.key = ANY (ARRAY[said.key])
    )
    INSERT INTO skep.stream_state AS s (query_id, partition_id, key, value)
    SELECT stream_write.query_id, lane, said.key, said.value FROM said WHERE said.type = 'upsert'
    ON CONFLICT (query_id, partition_id, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;
EXCEPTION WHEN check_violation THEN
    SELECT left(op ->> 'key', 40) INTO too_long FROM jsonb_array_elements(ops) op WHERE octet_length(op ->> 'key') > 2000 LIMIT 1;
    PERFORM skep.refuse('SK001', format('state key "%s…" is too long', too_long), 'Keys have 2000 bytes at most.');
END $$;

-- The answer of a cycle is for the `count` messages of the lease that end with the named one: those before them stay unanswered. The rest is
-- given back, uncharged, or stays leased. Returns how many were answered and whether the lease is over.
CREATE FUNCTION skep.stream_ack(
    partition_id uuid, group_name text, transaction_id text, lease uuid, status text, count integer, error text, release_lease boolean,
    OUT answered bigint, OUT released boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    place   skep.wire_place;
    offsets bigint[];
    n       integer;
BEGIN
    SELECT * INTO place
    FROM skep.wire_find(ARRAY[stream_ack.partition_id], ARRAY[stream_ack.transaction_id], ARRAY[stream_ack.group_name], ARRAY[stream_ack.lease]);
    IF place."offset" IS NULL THEN
        PERFORM skep.refuse('SK003', 'Message not found');
    END IF;
    PERFORM skep.lock_leases(ARRAY[place.lease]);
    SELECT array_agg(o) INTO offsets FROM (
        SELECT o FROM skep.leases s
        CROSS JOIN LATERAL unnest(int8multirange(int8range(s.first_offset, place."offset" + 1)) - s.done) AS piece
        CROSS JOIN LATERAL generate_series(lower(piece), upper(piece) - 1) AS o
        WHERE s.token = place.lease AND s.partition_id = place.lane AND s.expires_at > clock_timestamp()
          AND place."offset" >= s.first_offset AND place."offset" < s.end_offset AND NOT s.done @> place."offset"
        ORDER BY o DESC LIMIT stream_ack.count) run;
    IF offsets IS NULL THEN
        PERFORM skep.refuse('SK003', 'Invalid or expired lease');
    END IF;
    answered := cardinality(offsets);
    offsets := CASE WHEN release_lease THEN offsets || NULL::bigint ELSE offsets END;
    n := cardinality(offsets);
    PERFORM skep.answer(array_fill(place.lease, ARRAY[n]), array_fill(place.lane, ARRAY[n]), offsets,
                        array_fill(stream_ack.status, ARRAY[answered::integer]) || CASE WHEN release_lease THEN ARRAY['retry'] ELSE '{}' END,
                        array_fill(stream_ack.error, ARRAY[n]));
    INSERT INTO skep.stream_groups (group_name, queue)
    SELECT r.group_name, place.queue FROM skep.readers r
    WHERE r.id = place.reader AND r.group_name <> '__QUEUE_MODE__'
      AND NOT EXISTS (SELECT FROM skep.stream_groups g WHERE g.group_name = r.group_name AND g.queue = place.queue)
    ON CONFLICT DO NOTHING;
    released := NOT EXISTS (SELECT FROM skep.leases s WHERE s.token = place.lease AND s.partition_id = place.lane);
END $$;

-- State and answer of a cycle. One cycle at a time for each (query, lane). ack NULL touches no lease.
CREATE FUNCTION skep.stream_step(
    query_id uuid, partition_id uuid, group_name text, state_ops jsonb, ack jsonb, release_lease boolean,
    OUT queue text, OUT answered bigint, OUT released boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lane bigint := skep.partition_of(stream_step.partition_id);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(stream_step.query_id::text, lane));
    PERFORM FROM skep.stream_queries q WHERE q.id = stream_step.query_id FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM skep.refuse('SK002', 'query_id is unknown');
    END IF;
    SELECT q.name INTO queue FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id WHERE p.id = lane;
    IF NOT FOUND THEN
        PERFORM skep.refuse('SK002', 'partition_id is unknown');
    END IF;
    IF state_ops <> '[]' THEN
        PERFORM skep.stream_write(stream_step.query_id, lane, state_ops);
    END IF;
    IF ack IS NOT NULL THEN
        SELECT a.answered, a.released INTO answered, released
        FROM skep.stream_ack(stream_step.partition_id, stream_step.group_name, ack ->> 'transaction_id', (ack ->> 'lease')::uuid, ack ->> 'status',
                             (ack ->> 'count')::integer, ack ->> 'error', release_lease) a;
    END IF;
END $$;

-- One step of a stream. It pushes with its caller's rights, as wire_transaction() does; a push that is a repeat is no error.
CREATE FUNCTION skep.stream_cycle(
    query_id uuid, partition_id uuid, group_name text, state_ops jsonb, messages jsonb, ack jsonb, release_lease boolean,
    OUT queue text, OUT answered bigint, OUT released boolean, OUT duplicates boolean[], OUT lanes bigint[], OUT offsets bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.queue, s.answered, s.released INTO queue, answered, released
    FROM skep.stream_step(stream_cycle.query_id, stream_cycle.partition_id, group_name, state_ops, ack, release_lease) s;
    IF messages <> '[]' THEN
        SELECT p.duplicates, p.partition_ids, p.offsets INTO duplicates, lanes, offsets FROM skep.wire_push(messages) p;
    END IF;
END $$;
