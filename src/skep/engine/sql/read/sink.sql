-- Writing batches from outside, each exactly once: any number of tasks stage chunks, which are then published together
-- in one transaction, which records the batch. A batch that is recorded already is not published again.

-- Registers a sink. Refuses it if it belongs to another query: that one counts its batches from 0, and they would look
-- like repeats.
CREATE FUNCTION skep._open_sink(sink text, query text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    owner text;
BEGIN
    PERFORM skep._check_name('sink', sink);
    INSERT INTO skep.sinks AS s (id, query) VALUES (_open_sink.sink, _open_sink.query)
    ON CONFLICT (id) DO UPDATE SET used_at = clock_timestamp()
    WHERE s.used_at < clock_timestamp() - interval '1 minute';
    SELECT s.query INTO owner FROM skep.sinks s WHERE s.id = _open_sink.sink;
    IF owner <> _open_sink.query THEN
        PERFORM skep._refuse('SK007', format('sink "%s" belongs to another query', sink),
                            'Give each query its own sinkId. A query with a new checkpoint is a new query.');
    END IF;
END $$;
CALL skep._allow('skep_producer', '_open_sink');

-- Stages messages that are sorted by partition. The payloads are one text, joined by the character U+001E: JSON
-- contains it only escaped, and splitting is cheaper than parsing an array in which every quote is quoted. JSON is
-- parsed here, by parallel tasks, not in _publish_batch().
CREATE FUNCTION skep._stage_messages(
    sink text, batch bigint, chunk uuid, queues text[], partitions text[], counts integer[], payloads text,
    transaction_ids text[] DEFAULT NULL, headers jsonb[] DEFAULT NULL, trace_ids uuid[] DEFAULT NULL,
        producers text[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    total bigint := (SELECT sum(n) FROM unnest(counts) n);
BEGIN
    IF (cardinality(counts) = cardinality(queues) AND cardinality(counts) = cardinality(partitions)
        AND coalesce(total = cardinality(transaction_ids), true) AND coalesce(total = cardinality(headers), true)
        AND coalesce(total = cardinality(trace_ids), true) AND coalesce(total = cardinality(producers), true)
        AND 0 < ALL (counts)
        AND (SELECT count(DISTINCT named) FROM unnest(queues, partitions) AS named) = cardinality(counts))
            IS NOT TRUE THEN
        PERFORM skep._refuse('SK001', 'the arrays of a chunk do not match',
                            'Give each partition once, with its number of messages. The other arrays must have one '
                            'element per message, or be NULL.');
    END IF;
    -- Row by row: a cast of the whole array would keep the garbage of the parser until its end, and take half as long
    -- again.
    INSERT INTO skep.sink_chunks
    SELECT sink, batch, chunk, total, queues, partitions, counts,
           ARRAY(SELECT slot FROM unnest(counts) WITH ORDINALITY AS run (n, slot), generate_series(1, n) ORDER BY slot),
           ARRAY(SELECT text::jsonb FROM unnest(texts) AS text), headers, transaction_ids, trace_ids, producers
    FROM (SELECT string_to_array(payloads, chr(30)) AS texts OFFSET 0) split
    WHERE cardinality(texts) = total;
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK001',
                             format('the number of payloads is not %s: one is empty, or contains the character U+001E',
                                    total), 'Payloads must be JSON, which writes that character as \u001e.');
    END IF;
END $$;
CALL skep._allow('skep_producer', '_stage_messages');

-- Publishes the chunks in this order and returns the number of new messages; NULL if the batch was published before.
-- The partitions of the whole batch are locked first, in the order of push, so pushing it in steps cannot deadlock.
CREATE FUNCTION skep._publish_batch(sink text, query text, batch bigint, chunks uuid[], counts bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    published bigint := 0;
    done      bigint;
    staged    bigint[];
BEGIN
    PERFORM skep._open_sink(_publish_batch.sink, _publish_batch.query);
    SELECT last_batch INTO done FROM skep.sinks s WHERE s.id = _publish_batch.sink FOR UPDATE;
    IF done < batch THEN
        SELECT array_agg((SELECT p.messages FROM skep.sink_chunks p
                          WHERE p.sink = _publish_batch.sink AND p.batch = _publish_batch.batch
                            AND p.chunk = requested.id)
                         ORDER BY requested.ord) INTO staged
        FROM unnest(chunks) WITH ORDINALITY AS requested (id, ord);
        IF staged IS DISTINCT FROM nullif(counts, '{}') OR array_position(staged, NULL) > 0 THEN
            -- Not retryable: publishing again finds no more rows, only writing the batch again does.
            PERFORM skep._refuse(
                'SK002',
                format('rows of batch %s of sink "%s" are missing: the database crashed while it was written',
                       batch, sink),
                'Restart the query: it writes the batch again.');
        END IF;
        PERFORM skep._lock_partitions(array_agg(named.queue), array_agg(named.partition))
        FROM (SELECT DISTINCT queue, partition
              FROM skep.sink_chunks p, unnest(p.queues, p.partitions) AS named (queue, partition)
              WHERE p.sink = _publish_batch.sink AND p.batch = _publish_batch.batch AND p.chunk = ANY (chunks)) named
              HAVING count(*) > 0;
        FOR n IN 1 .. cardinality(chunks) LOOP
            published := published + skep._append_chunk(_publish_batch.sink, _publish_batch.batch, chunks[n]);
        END LOOP;
        UPDATE skep.sinks s SET last_batch = batch, messages = s.messages + published, used_at = clock_timestamp()
        WHERE s.id = _publish_batch.sink;
    END IF;
    PERFORM skep._clear_sink(_publish_batch.sink, _publish_batch.batch);
    RETURN CASE WHEN done < batch THEN published END;
END $$;
CALL skep._allow('skep_producer', '_publish_batch');

-- Appends a chunk and returns the number of new messages. It does less than push_many(), because the messages are
-- sorted by partition and cannot be duplicates: their offsets are computed without sorting, and are not returned.
CREATE FUNCTION skep._append_chunk(sink text, batch bigint, chunk uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    given  record;
    slots  record;
    runs   record;
    stamp  timestamptz;
    stored bigint;
BEGIN
    SELECT queues, partitions, counts, transaction_ids IS NOT NULL AS may_repeat INTO given
    FROM skep.sink_chunks p WHERE p.sink = _append_chunk.sink AND p.batch = _append_chunk.batch
        AND p.chunk = _append_chunk.chunk;
    IF given.may_repeat THEN
        RETURN skep._push_chunk(_append_chunk.sink, _append_chunk.batch, _append_chunk.chunk);
    END IF;
    -- They are locked already: this returns their heads.
    slots := skep._lock_partitions(given.queues, given.partitions);
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM skep._check_heads(slots.partition_ids, slots.next_offsets);
    END IF;
    stamp := clock_timestamp();
    WITH run AS MATERIALIZED (
        SELECT n, slots.slot_of[n] AS slot, count, sum(count) OVER (ORDER BY n) - count AS before
        FROM unnest(given.counts) WITH ORDINALITY AS run (count, n)
    ), journaled AS (
        INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
        SELECT slots.queue_ids[slot], array_agg(slots.partition_ids[slot]), array_agg(slots.next_offsets[slot]),
               array_agg(slots.next_offsets[slot] + count - 1)
        FROM run GROUP BY 1
    )
    SELECT array_agg(slots.partition_ids[slot] ORDER BY n) AS ids,
           array_agg((slots.next_offsets[slot] - 1 - before)::bigint ORDER BY n) AS bases,
           array_agg(greatest(slots.last_times[slot], stamp) ORDER BY n) AS times,
           array_agg(slots.payload_limits[slot] ORDER BY n) AS limits
    INTO runs FROM run;

    -- unnest() is in the list of columns, because in FROM it would copy everything first.
    INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, trace_id, producer)
    SELECT runs.ids[slot], runs.bases[slot] + ord, runs.times[slot], payload, item.headers, trace_id, producer
    FROM skep.sink_chunks p
    CROSS JOIN LATERAL (SELECT unnest(p.slot_of) AS slot, unnest(p.payloads) AS payload, unnest(p.headers) AS headers,
                               unnest(p.trace_ids) AS trace_id, unnest(p.producers) AS producer,
                                   generate_series(1, p.messages) AS ord) item
    WHERE p.sink = _append_chunk.sink AND p.batch = _append_chunk.batch AND p.chunk = _append_chunk.chunk
      AND (NOT skep._exceeds(payload, runs.limits[slot]) AND coalesce(jsonb_typeof(item.headers) = 'object', true)
           OR skep._check_item(ord, payload, runs.limits[slot], NULL, item.headers));
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored;
END $$;

CREATE FUNCTION skep._push_chunk(sink text, batch bigint, chunk uuid) RETURNS bigint
LANGUAGE sql AS $$
    SELECT count(*) FILTER (WHERE pushed.status = 'queued')
    FROM skep.sink_chunks p
    CROSS JOIN LATERAL skep.push_many(
        ARRAY(SELECT p.queues[slot] FROM unnest(p.slot_of) WITH ORDINALITY AS item (slot, ord) ORDER BY ord),
        ARRAY(SELECT p.partitions[slot] FROM unnest(p.slot_of) WITH ORDINALITY AS item (slot, ord) ORDER BY ord),
        p.payloads, p.transaction_ids, p.headers, p.trace_ids, p.producers) pushed
    WHERE p.sink = $1 AND p.batch = $2 AND p.chunk = $3
$$;

-- Deletes everything that was staged for a batch and for earlier ones.
CREATE FUNCTION skep._clear_sink(sink text, batch bigint) RETURNS void
LANGUAGE sql AS $$ DELETE FROM skep.sink_chunks p WHERE p.sink = $1 AND p.batch <= $2 $$;
CALL skep._allow('skep_producer', '_clear_sink');

-- Deletes a sink that will not write again, such as that of a batch job.
CREATE FUNCTION skep._drop_sink(sink text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM skep.sink_chunks p WHERE p.sink = $1;
    DELETE FROM skep.sinks s WHERE s.id = $1;
$$;
CALL skep._allow('skep_producer', '_drop_sink');

-- Deletes rows that were staged by failed queries. The number of the last published batch is kept, because the query
-- may be started again.
CREATE FUNCTION skep._prune_sinks(older_than interval DEFAULT '1 day') RETURNS bigint
LANGUAGE sql AS $$
    WITH deleted AS (
        DELETE FROM skep.sink_chunks p
        WHERE NOT EXISTS (SELECT FROM skep.sinks s WHERE s.id = p.sink AND s.used_at >= clock_timestamp() - $1)
        RETURNING messages)
    SELECT coalesce(sum(messages), 0) FROM deleted
$$;
CALL skep._allow('skep_admin', '_prune_sinks');
