-- Writing batches from outside, each exactly once: pieces are staged by any number of tasks, then published together in one
-- transaction, which notes the batch. A batch that is noted already is not published again.

-- A sink belongs to one query: another one counts its batches anew, and would be taken for a repetition.
CREATE FUNCTION skep.open_sink(sink text, query text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    owner text;
BEGIN
    PERFORM skep.check_name('sink', sink);
    INSERT INTO skep.sinks AS s (id, query) VALUES (open_sink.sink, open_sink.query)
    ON CONFLICT (id) DO UPDATE SET used_at = clock_timestamp() WHERE s.used_at < clock_timestamp() - interval '1 minute';
    SELECT s.query INTO owner FROM skep.sinks s WHERE s.id = open_sink.sink;
    IF owner <> open_sink.query THEN
        PERFORM skep.refuse('SK007', format('sink "%s" belongs to another query', sink),
                            'Give each query a sinkId of its own; a query with a new checkpoint is a new one.');
    END IF;
END $$;

-- Stages messages that are sorted by lane. The payloads are one text, joined by the character U+001E: JSON has it only escaped, and
-- splitting is cheaper than reading an array in which every quote is quoted. JSON is read here, by tasks side by side, not in publish_batch.
CREATE FUNCTION skep.stage_piece(
    sink text, batch bigint, piece uuid, queues text[], partitions text[], counts integer[], payloads text,
    transaction_ids text[] DEFAULT NULL, headers jsonb[] DEFAULT NULL, trace_ids uuid[] DEFAULT NULL, producers text[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    total bigint := (SELECT sum(n) FROM unnest(counts) n);
BEGIN
    IF (cardinality(counts) = cardinality(queues) AND cardinality(counts) = cardinality(partitions)
        AND coalesce(total = cardinality(transaction_ids), true) AND coalesce(total = cardinality(headers), true)
        AND coalesce(total = cardinality(trace_ids), true) AND coalesce(total = cardinality(producers), true)
        AND 0 < ALL (counts)
        AND (SELECT count(DISTINCT lane) FROM unnest(queues, partitions) AS lane) = cardinality(counts)) IS NOT TRUE THEN
        PERFORM skep.refuse('SK001', 'the lanes of a piece do not go with its messages',
                            'Name each lane once, with how many messages it gets; the other arrays have one element per message, or are NULL.');
    END IF;
    -- Row by row: a cast of the whole array would keep all that the parser leaves behind until its end, and take half as long again.
    INSERT INTO skep.sink_pieces
    SELECT sink, batch, piece, total, queues, partitions, counts,
           ARRAY(SELECT lane FROM unnest(counts) WITH ORDINALITY AS run (n, lane), generate_series(1, n) ORDER BY lane),
           ARRAY(SELECT text::jsonb FROM unnest(texts) AS text), headers, transaction_ids, trace_ids, producers
    FROM (SELECT string_to_array(payloads, chr(30)) AS texts OFFSET 0) split
    WHERE cardinality(texts) = total;
    IF NOT FOUND THEN
        PERFORM skep.refuse('SK001', format('%s messages have not as many payloads: one is empty, or contains the character U+001E', total),
                            'Payloads are JSON, in which that character is written \u001e.');
    END IF;
END $$;

-- Publishes the pieces in this order, and answers how many messages were new; NULL if the batch was published before. The lanes of the
-- whole batch are locked first, in push's order, so that pushing it in steps cannot deadlock.
CREATE FUNCTION skep.publish_batch(sink text, query text, batch bigint, pieces uuid[], counts bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    published bigint := 0;
    done      bigint;
    staged    bigint[];
BEGIN
    PERFORM skep.open_sink(publish_batch.sink, publish_batch.query);
    SELECT last_batch INTO done FROM skep.sinks s WHERE s.id = publish_batch.sink FOR UPDATE;
    IF done < batch THEN
        SELECT array_agg((SELECT p.messages FROM skep.sink_pieces p WHERE p.sink = publish_batch.sink AND p.batch = publish_batch.batch
                                                                      AND p.piece = asked.id) ORDER BY asked.ord) INTO staged
        FROM unnest(pieces) WITH ORDINALITY AS asked (id, ord);
        IF staged IS DISTINCT FROM nullif(counts, '{}') OR array_position(staged, NULL) > 0 THEN
            -- Not retryable: publishing again finds no more rows, only writing the batch again does.
            PERFORM skep.refuse('SK002', format('rows of batch %s of sink "%s" are gone: the database crashed while it was written',
                                                batch, sink), 'Start the query again: it writes the batch again.');
        END IF;
        PERFORM skep.lock_lanes(array_agg(lane.queue), array_agg(lane.partition))
        FROM (SELECT DISTINCT queue, partition FROM skep.sink_pieces p, unnest(p.queues, p.partitions) AS lane (queue, partition)
              WHERE p.sink = publish_batch.sink AND p.batch = publish_batch.batch AND p.piece = ANY (pieces)) lane HAVING count(*) > 0;
        FOR n IN 1 .. cardinality(pieces) LOOP
            published := published + skep.append_piece(publish_batch.sink, publish_batch.batch, pieces[n]);
        END LOOP;
        UPDATE skep.sinks s SET last_batch = batch, messages = s.messages + published, used_at = clock_timestamp()
        WHERE s.id = publish_batch.sink;
    END IF;
    PERFORM skep.clear_sink(publish_batch.sink, publish_batch.batch);
    RETURN CASE WHEN done < batch THEN published END;
END $$;

-- Appends a piece, and answers how many messages were new. A shorter way than push_many for messages that are sorted by lane and
-- cannot be repeats: where each goes is arithmetic, which takes no sorting, and nobody asks for the offsets.
CREATE FUNCTION skep.append_piece(sink text, batch bigint, piece uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    given  record;
    lanes  record;
    runs   record;
    stamp  timestamptz;
    stored bigint;
BEGIN
    SELECT queues, partitions, counts, transaction_ids IS NOT NULL AS may_repeat INTO given
    FROM skep.sink_pieces p WHERE p.sink = append_piece.sink AND p.batch = append_piece.batch AND p.piece = append_piece.piece;
    IF given.may_repeat THEN
        RETURN skep.push_piece(append_piece.sink, append_piece.batch, append_piece.piece);
    END IF;
    lanes := skep.lock_lanes(given.queues, given.partitions);  -- held already: this tells where they end
    stamp := clock_timestamp();
    WITH run AS MATERIALIZED (
        SELECT n, lanes.lane_of[n] AS lane, count, sum(count) OVER (ORDER BY n) - count AS before
        FROM unnest(given.counts) WITH ORDINALITY AS run (count, n)
    ), head AS (
        UPDATE skep.partition_lookup l
        SET last_offset = lanes.last_offsets[lane] + count, last_created_at = greatest(l.last_created_at, stamp)
        FROM run
        WHERE l.partition_id = ANY (ARRAY[lanes.partition_ids[lane]]) AND l.generation >= lanes.last_offsets[lane] >> 8
        RETURNING lane, l.partition_id, l.last_offset
    ), journaled AS (
        INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
        SELECT lanes.queue_ids[lane], array_agg(partition_id), array_agg(lanes.last_offsets[lane] + 1), array_agg(last_offset)
        FROM head GROUP BY 1
    )
    SELECT array_agg(lanes.partition_ids[lane] ORDER BY n) AS ids, array_agg((lanes.last_offsets[lane] - before)::bigint ORDER BY n) AS bases,
           array_agg(greatest(lanes.last_times[lane], stamp) ORDER BY n) AS times, array_agg(lanes.payload_limits[lane] ORDER BY n) AS limits
    INTO runs FROM run;

    -- unnest in the list of columns, because in FROM it would copy everything first.
    INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, trace_id, producer)
    SELECT runs.ids[lane], runs.bases[lane] + ord, runs.times[lane], payload, item.headers, trace_id, producer
    FROM skep.sink_pieces p
    CROSS JOIN LATERAL (SELECT unnest(p.lane_of) AS lane, unnest(p.payloads) AS payload, unnest(p.headers) AS headers,
                               unnest(p.trace_ids) AS trace_id, unnest(p.producers) AS producer, generate_series(1, p.messages) AS ord) item
    WHERE p.sink = append_piece.sink AND p.batch = append_piece.batch AND p.piece = append_piece.piece
      AND (pg_column_size(payload) <= runs.limits[lane] AND coalesce(jsonb_typeof(item.headers) = 'object', true)
           OR skep.check_item(ord, payload, runs.limits[lane], NULL, item.headers));
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored;
END $$;

CREATE FUNCTION skep.push_piece(sink text, batch bigint, piece uuid) RETURNS bigint
LANGUAGE sql AS $$
    SELECT count(*) FILTER (WHERE pushed.status = 'queued')
    FROM skep.sink_pieces p
    CROSS JOIN LATERAL skep.push_many(
        ARRAY(SELECT p.queues[lane] FROM unnest(p.lane_of) WITH ORDINALITY AS item (lane, ord) ORDER BY ord),
        ARRAY(SELECT p.partitions[lane] FROM unnest(p.lane_of) WITH ORDINALITY AS item (lane, ord) ORDER BY ord),
        p.payloads, p.transaction_ids, p.headers, p.trace_ids, p.producers) pushed
    WHERE p.sink = $1 AND p.batch = $2 AND p.piece = $3
$$;

-- Forgets what was staged for a batch and for those before it, whoever staged it.
CREATE FUNCTION skep.clear_sink(sink text, batch bigint) RETURNS void
LANGUAGE sql AS $$ DELETE FROM skep.sink_pieces p WHERE p.sink = $1 AND p.batch <= $2 $$;

-- Forgets a sink that will not write again: a batch write that needs no name.
CREATE FUNCTION skep.drop_sink(sink text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM skep.sink_pieces p WHERE p.sink = $1;
    DELETE FROM skep.sinks s WHERE s.id = $1;
$$;

-- Forgets what queries that ended badly had staged. Which batch a sink published last is kept: the query may come back.
CREATE FUNCTION skep.prune_sinks(older_than interval DEFAULT '1 day') RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM skep.sink_pieces p
        WHERE NOT EXISTS (SELECT FROM skep.sinks s WHERE s.id = p.sink AND s.used_at >= clock_timestamp() - $1) RETURNING messages)
    SELECT coalesce(sum(messages), 0) FROM gone
$$;
