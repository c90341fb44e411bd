-- Writing batches from outside, each exactly once: rows are staged (COPY into skep.sink_rows) by any number of tasks, then published
-- together in one transaction, which notes the batch. A batch that is noted already is not published again.

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

-- Publishes the pieces in this order, and answers how many messages were new; NULL if the batch was published before. The lanes of the
-- whole batch are locked first, in push's order, so that pushing it in steps cannot deadlock.
CREATE FUNCTION skep.publish_batch(sink text, query text, batch bigint, pieces uuid[], counts bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    published bigint := 0;
    step      bigint;
    done      bigint;
    staged    bigint[];
BEGIN
    PERFORM skep.open_sink(publish_batch.sink, publish_batch.query);
    SELECT last_batch INTO done FROM skep.sinks s WHERE s.id = publish_batch.sink FOR UPDATE;
    IF done < batch THEN
        SELECT array_agg((SELECT count(*) FROM skep.sink_rows r WHERE r.sink = publish_batch.sink AND r.batch = publish_batch.batch
                                                                  AND r.piece = piece.id) ORDER BY piece.ord) INTO staged
        FROM unnest(pieces) WITH ORDINALITY AS piece (id, ord);
        IF staged IS DISTINCT FROM nullif(counts, '{}') THEN
            -- Not retryable: publishing again finds no more rows, only writing the batch again does.
            PERFORM skep.refuse('SK002', format('rows of batch %s of sink "%s" are gone: the database crashed while it was written',
                                                batch, sink), 'Start the query again: it writes the batch again.');
        END IF;
        PERFORM skep.lock_lanes(array_agg(lane.queue), array_agg(lane.partition))
        FROM (SELECT DISTINCT r.queue, r.partition FROM skep.sink_rows r
              WHERE r.sink = publish_batch.sink AND r.batch = publish_batch.batch AND r.piece = ANY (pieces)) lane HAVING count(*) > 0;
        FOR n IN 1 .. cardinality(pieces) LOOP
            SELECT count(*) INTO step FROM skep.push_piece(publish_batch.sink, publish_batch.batch, pieces[n]) p WHERE p.status = 'queued';
            published := published + step;
        END LOOP;
        UPDATE skep.sinks s SET last_batch = batch, messages = s.messages + published, used_at = clock_timestamp()
        WHERE s.id = publish_batch.sink;
    END IF;
    PERFORM skep.clear_sink(publish_batch.sink, publish_batch.batch);
    RETURN CASE WHEN done < batch THEN published END;
END $$;

CREATE FUNCTION skep.push_piece(sink text, batch bigint, piece uuid) RETURNS TABLE (status text)
LANGUAGE sql AS $$
    SELECT p.status
    FROM (SELECT array_agg(r.queue) AS queues, array_agg(r.partition) AS partitions, array_agg(r.payload) AS payloads,
                 CASE WHEN count(r.transaction_id) > 0 THEN array_agg(r.transaction_id) END AS transaction_ids,
                 array_agg(r.headers) AS headers, array_agg(r.trace_id) AS trace_ids, array_agg(r.producer) AS producers
          FROM (SELECT * FROM skep.sink_rows r WHERE r.sink = $1 AND r.batch = $2 AND r.piece = $3 ORDER BY r.ord) r HAVING count(*) > 0) m
    CROSS JOIN LATERAL skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids, m.producers) p
$$;

-- Forgets what was staged for a batch and for those before it, whoever staged it.
CREATE FUNCTION skep.clear_sink(sink text, batch bigint) RETURNS void
LANGUAGE sql AS $$ DELETE FROM skep.sink_rows r WHERE r.sink = $1 AND r.batch <= $2 $$;

-- Forgets a sink that will not write again: a batch write that needs no name.
CREATE FUNCTION skep.drop_sink(sink text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM skep.sink_rows r WHERE r.sink = $1;
    DELETE FROM skep.sinks s WHERE s.id = $1;
$$;

-- Forgets what queries that ended badly had staged. Which batch a sink published last is kept: the query may come back.
CREATE FUNCTION skep.prune_sinks(older_than interval DEFAULT '1 day') RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM skep.sink_rows r
        WHERE r.sink IN (SELECT s.id FROM skep.sinks s WHERE s.used_at < clock_timestamp() - $1) RETURNING 1)
    SELECT count(*) FROM gone
$$;
