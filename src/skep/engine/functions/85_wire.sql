-- What the HTTP server calls: Queen's names and shapes, made here, so that payloads pass through Python as bytes.

-- A lane's address on the wire: the id that no message of it has.
CREATE FUNCTION skep.partition_uuid(partition_id bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT skep.message_id($1, 4611686018427387903) $$;

CREATE FUNCTION skep.queue_uuid(queue_id integer) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT skep.message_id(0, $1) $$;

-- Milliseconds, UTC whatever the session's time zone is.
CREATE FUNCTION skep.wire_time(instant timestamptz) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$ SELECT to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

-- take() as answers: for each request that got something its lease, its first lane, how many lanes, and the messages as JSON,
-- comma-separated. Strings are put together by hand, and what all messages of a lane have in common only once: that is twice as fast
-- as json_build_object, and \x01 cannot be in JSON. sealed: some payload is encrypted and the server has to open it.
CREATE FUNCTION skep.wire_pop(
    queue text, group_name text, tokens uuid[], batches integer[], partitions integer[], partition text, namespace text, task text,
    lease_time double precision, auto_ack boolean, subscription_mode text, subscription_from text, conflate boolean
) RETURNS TABLE (lease uuid, first_queue text, first_partition text, first_partition_id uuid, lanes bigint, messages text, sealed boolean,
                 size bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    got record;
BEGIN
    got := skep.take(wire_pop.queue, wire_pop.group_name, wire_pop.tokens, wire_pop.batches, wire_pop.partitions, wire_pop.partition,
                     wire_pop.namespace, wire_pop.task, CASE WHEN wire_pop.auto_ack THEN 3600 ELSE wire_pop.lease_time END,
                     wire_pop.subscription_mode, wire_pop.subscription_from, wire_pop.conflate);
    IF got.lane_ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT token, (array_agg(lane.queue ORDER BY ord))[1], (array_agg(lane.partition ORDER BY ord))[1],
           (array_agg(lane.address ORDER BY ord))[1], count(*), string_agg(lane.messages, ',' ORDER BY ord), bool_or(lane.sealed),
           sum(lane.size)::bigint
    FROM (
        SELECT served.ord, s.token, q.name AS queue, p.name AS partition, a.address, m.sealed, m.size,
               '{' || replace(m.heads, E'\x01', tail || ',{') || tail AS messages
        FROM unnest(got.lane_ids, got.lane_tokens) WITH ORDINALITY AS served (lane, token, ord)
        CROSS JOIN LATERAL (SELECT *, s.done = '{}' AS untouched FROM skep.leases s
                            WHERE s.token = served.token AND s.partition_id = served.lane LIMIT 1) s
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = served.lane LIMIT 1) p
        JOIN skep.queues q ON q.id = p.queue_id
        CROSS JOIN LATERAL (SELECT skep.partition_uuid(served.lane) AS address) a
        CROSS JOIN LATERAL (
            SELECT coalesce(bool_or(m.headers ? 'skep-sealed'), false) AS sealed, count(*) AS size, string_agg(concat(
                       '"id":"', id, '","transactionId":', coalesce(to_json(m.transaction_id)::text, concat('"', id, '"')),
                       ',"traceId":', coalesce(to_json(m.trace_id)::text, 'null'), ',"data":', m.payload,
                       ',"producerSub":', coalesce(to_json(m.producer)::text, 'null'),
                       ',"createdAt":"', to_char(m.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                       '","headers":', coalesce(m.headers::text, 'null'), ',"offset":', m."offset"), E'\x01' ORDER BY m."offset") AS heads
            FROM (SELECT * FROM skep.messages m WHERE m.partition_id = served.lane AND m."offset" >= s.first_offset AND m."offset" < s.end_offset
                  ORDER BY m."offset" OFFSET 0) m
            CROSS JOIN LATERAL (SELECT skep.message_id(served.lane, m."offset") AS id OFFSET 0) i
            WHERE m.payload IS NOT NULL AND (s.untouched OR NOT s.done @> m."offset")
        ) m
        CROSS JOIN LATERAL (SELECT concat(
            ',"queue":', to_json(q.name), ',"partition":', to_json(p.name), ',"partitionId":"', a.address, '","leaseId":"',
            CASE WHEN wire_pop.auto_ack THEN '' ELSE s.token::text END, '","consumerGroup":', to_json(wire_pop.group_name),
            ',"deliveryAttempt":', s.attempt, '}') AS tail) t
    ) lane
    GROUP BY token;
    IF auto_ack THEN
        PERFORM skep.complete(got.lane_tokens, got.lane_ids, whole => true);
    END IF;
END $$;

-- Where each answer points: its lane and offset, the lease it counts for, and how far its group is. An answer that names no lease counts
-- for the lease of its group that holds the message now, if there is one.
CREATE FUNCTION skep.wire_find(partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[])
RETURNS SETOF skep.wire_place LANGUAGE sql STABLE AS $$
    SELECT item.ord, p.id, r.id, q.name, p.name, m."offset", coalesce(item.lease, held.token),
           coalesce(m."offset" < c.cursor OR held.done @> m."offset", false)
    FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS item (lane, transaction_id, group_name, lease, ord)
    LEFT JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = skep.partition_of(item.lane) LIMIT 1) p ON true
    LEFT JOIN skep.queues q ON q.id = p.queue_id
    LEFT JOIN skep.readers r ON r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, item.group_name)
    LEFT JOIN LATERAL (SELECT c.cursor FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = r.id ORDER BY c.next_offset DESC LIMIT 1) c ON true
    LEFT JOIN LATERAL (  -- within the dedup window a transaction id is unique; beyond it the one that is leased is meant, else the last
        SELECT m."offset" FROM (
            SELECT m."offset" FROM skep.messages m WHERE m.partition_id = p.id AND m.transaction_id = item.transaction_id
            UNION ALL
            SELECT skep.offset_of(item.transaction_id::uuid) FROM skep.partition_lookup l
            WHERE l.partition_id = p.id AND item.transaction_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
              AND skep.partition_of(item.transaction_id::uuid) = p.id
              AND skep.offset_of(item.transaction_id::uuid) BETWEEN l.first_offset AND l.last_offset
        ) m
        ORDER BY m."offset" >= c.cursor AND EXISTS (
            SELECT FROM skep.leases s WHERE s.partition_id = p.id AND s.reader_id = r.id AND s.token IS NOT NULL
                                        AND m."offset" >= s.first_offset AND m."offset" < s.end_offset) DESC NULLS LAST, m."offset" DESC
        LIMIT 1
    ) m ON true
    LEFT JOIN LATERAL (
        SELECT s.token, s.done FROM skep.leases s
        WHERE s.partition_id = p.id AND s.reader_id = r.id AND s.first_offset <= m."offset" AND s.end_offset > m."offset"
          AND s.expires_at > clock_timestamp() LIMIT 1
    ) held ON true
$$;

-- For clients that name the leases of a transaction beside its answers, not in them. The lease of each answer: its own, else the one its
-- group holds the message by now if that is among the required. None of them: a lease that nobody has, so that the answer is refused as
-- one of a stale lease is.
CREATE FUNCTION skep.wire_lend(partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], required uuid[]) RETURNS uuid[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(coalesce($4[f.ord], CASE WHEN f.lease = ANY ($5) THEN f.lease END, '00000000-0000-0000-0000-000000000000') ORDER BY f.ord)
    FROM skep.wire_find($1, $2, $3, $4) f
$$;

-- ack_many by Queen's addresses. A repeat of an answer that has already counted is no error: noop. Queen's clients forget what comes
-- behind a message they refuse, so that a lease with a failure and without all answers ends here, and the rest comes again at once.
CREATE FUNCTION skep.wire_ack(partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], statuses text[], errors text[])
RETURNS TABLE (ord bigint, success boolean, noop boolean, error text, queue text, partition text, released boolean, dlq boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    places  skep.wire_place[];
    applied boolean[];
BEGIN
    SELECT array_agg(f ORDER BY f.ord) INTO places
    FROM skep.wire_find(wire_ack.partition_ids, wire_ack.transaction_ids, wire_ack.groups, wire_ack.leases) f;
    SELECT array_agg(a.applied ORDER BY a.ord) INTO applied
    FROM (SELECT array_agg(CASE WHEN f."offset" IS NOT NULL THEN f.lease END) AS leases, array_agg(f.lane) AS lanes,
                 array_agg(f."offset") AS offsets
          FROM unnest(places) f) said
    CROSS JOIN LATERAL skep.answer(said.leases, said.lanes, said.offsets, wire_ack.statuses, wire_ack.errors) a;
    IF 'failed' = ANY (wire_ack.statuses) THEN
        PERFORM skep.judge(array_agg(s.token), array_agg(s.partition_id), 'nacked')
        FROM (SELECT DISTINCT f.lease, f.lane FROM unnest(places) f WHERE wire_ack.statuses[f.ord] = 'failed') f
        CROSS JOIN LATERAL (SELECT * FROM skep.leases s WHERE s.token = f.lease AND s.partition_id = f.lane AND s.failed <> '{}' LIMIT 1) s
        HAVING count(*) > 0;
    END IF;
    RETURN QUERY
    SELECT f.ord, yes OR noop, NOT yes AND noop,
           CASE WHEN yes OR noop THEN NULL
                WHEN f."offset" IS NULL THEN 'Message not found'
                WHEN f.done THEN 'already committed: the group is past this message'
                ELSE 'Invalid or expired lease' END,
           f.queue, f.partition, yes AND gone, yes AND (status = 'dlq' OR status IN ('failed', 'nack') AND gone AND (
               SELECT s.first_offset FROM skep.leases s WHERE s.partition_id = f.lane AND s.reader_id = f.reader AND s.token IS NULL
                   AND s.first_offset <= f."offset" AND s.end_offset > f."offset" LIMIT 1) IS NULL)
    FROM unnest(places) f
    CROSS JOIN LATERAL (
        SELECT applied[f.ord] AS yes, wire_ack.statuses[f.ord] AS status,
               f.done AND wire_ack.statuses[f.ord] = 'completed' AS noop,
               (SELECT s.token FROM skep.leases s WHERE s.token = f.lease AND s.partition_id = f.lane LIMIT 1) IS NULL AS gone) o
    ORDER BY f.ord;
END $$;

-- push(messages) for the server, which has checked their shape: one row of arrays in the order of the messages.
CREATE FUNCTION skep.wire_push(messages jsonb, OUT duplicates boolean[], OUT partition_ids bigint[], OUT offsets bigint[])
LANGUAGE sql AS $$
    SELECT array_agg(p.status = 'duplicate' ORDER BY p.ord), array_agg(p.partition_id ORDER BY p.ord), array_agg(p."offset" ORDER BY p.ord)
    FROM (SELECT array_agg(value ->> 'queue' ORDER BY n) AS queues, array_agg(value ->> 'partition' ORDER BY n) AS partitions,
                 array_agg(value -> 'payload' ORDER BY n) AS payloads, array_agg(value ->> 'transaction_id' ORDER BY n) AS transaction_ids,
                 array_agg(value -> 'headers' ORDER BY n) AS headers, array_agg((value ->> 'trace_id')::uuid ORDER BY n) AS trace_ids,
                 array_agg(value ->> 'producer' ORDER BY n) AS producers
          FROM jsonb_array_elements($1) WITH ORDINALITY AS item (value, n)) m
    CROSS JOIN LATERAL skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids, m.producers) p
$$;

-- Which of these groups that wait have something to look at: a lane whose time has come, or a push they have not seen. A cheap guess
-- for many at once, so that thousands of parked requests cost one statement a second; pop decides.
CREATE FUNCTION skep.due(queues text[], groups text[]) RETURNS boolean[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(q.id IS NOT NULL AND (r.id IS NULL OR k.snapshot IS NULL OR lane.partition_id IS NOT NULL OR news.id IS NOT NULL)
                     ORDER BY asked.n)
    FROM (SELECT asked.*, clock_timestamp() AS stamp FROM unnest($1, $2) WITH ORDINALITY AS asked (queue, group_name, n) OFFSET 0) asked
    LEFT JOIN skep.queues q ON q.name = asked.queue
    LEFT JOIN skep.readers r ON r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, asked.group_name)
    LEFT JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = r.id ORDER BY k.generation DESC LIMIT 1) k ON true
    LEFT JOIN LATERAL (
        (SELECT c.partition_id FROM skep.cursors c WHERE c.reader_id = r.id AND c.ready_at >= k.line_start AND c.ready_at <= asked.stamp LIMIT 1)
        UNION ALL
        (SELECT c.partition_id FROM skep.cursors c WHERE c.reader_id = r.id AND c.ready_at < k.line_start LIMIT 1)
        LIMIT 1
    ) lane ON true
    LEFT JOIN LATERAL (SELECT j.id FROM skep.journal j WHERE j.queue_id = q.id AND j.xid >= pg_snapshot_xmin(k.snapshot)
                                                         AND NOT pg_visible_in_snapshot(j.xid, k.snapshot) LIMIT 1) news ON true
$$;

-- Answers and pushes as one. An answer that does not count now, or a push that is a repeat, undoes it all.
CREATE FUNCTION skep.wire_transaction(
    partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], statuses text[], errors text[], messages jsonb,
    OUT dlq boolean[], OUT lanes bigint[], OUT offsets bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    refused text;
    repeats boolean[];
BEGIN
    SELECT array_agg(a.dlq ORDER BY a.ord), min(CASE WHEN a.noop THEN 'already committed: the group is past this message' ELSE a.error END)
    INTO dlq, refused
    FROM skep.wire_ack(wire_transaction.partition_ids, wire_transaction.transaction_ids, wire_transaction.groups, wire_transaction.leases,
                       wire_transaction.statuses, wire_transaction.errors) a;
    IF refused IS NOT NULL THEN
        PERFORM skep.refuse('SK003', 'ACK operation failed: ' || refused);
    END IF;
    IF messages <> '[]' THEN
        SELECT p.duplicates, p.partition_ids, p.offsets INTO repeats, lanes, offsets FROM skep.wire_push(messages) p;
        IF true = ANY (repeats) THEN
            PERFORM skep.refuse('SK007', format('duplicate transactionId %s', messages -> (array_position(repeats, true) - 1) -> 'transaction_id'));
        END IF;
    END IF;
END $$;

-- Like extend(), and says how many lanes; no row changes if the lease is over.
CREATE FUNCTION skep.wire_extend(lease uuid, seconds double precision, OUT lanes bigint, OUT expires_at timestamptz)
LANGUAGE plpgsql AS $$
BEGIN
    expires_at := skep.extend(lease, seconds);
    lanes := (SELECT count(*) FROM skep.leases s WHERE s.token = lease);
EXCEPTION WHEN SQLSTATE 'SK003' THEN
    lanes := 0;
END $$;

-- Queen's options on Skep's columns. Those that only Queen knows are kept and given back; NULL of ours is 0 of theirs.
CREATE FUNCTION skep.wire_options(q skep.queues) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('retryDelay', 1000, 'ttl', 3600, 'deadLetterQueue', false, 'dlqAfterMaxRetries', false, 'retentionEnabled', false,
               'retentionSeconds', 0, 'completedRetentionSeconds', 0, 'maxWaitTimeSeconds', 0, 'maxSize', 0) || $1.queen_options || jsonb_build_object(
               'leaseTime', $1.lease_time, 'retryLimit', $1.retry_limit, 'retryDelay', $1.retry_delay * 1000, 'priority', $1.priority,
               'delayedProcessing', $1.delayed_processing, 'windowBuffer', $1.window_buffer,
               'encryptionEnabled', $1.encryption_enabled)
$$;

-- Merges; replace: what is not given goes back to its default.
CREATE FUNCTION skep.wire_configure(queue text, options jsonb, namespace text, task text, replace boolean) RETURNS jsonb
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    blank skep.queues := jsonb_populate_record(NULL::skep.queues, '{"lease_time": 300, "retry_limit": 3, "retry_delay": 1, "priority": 0,
        "delayed_processing": 0, "window_buffer": 0, "encryption_enabled": false, "queen_options": {}}');
    given jsonb := CASE WHEN replace THEN skep.wire_options(blank) ELSE '{}' END || jsonb_strip_nulls(options);
    kept  jsonb;
    own   jsonb := '{}';
    q     skep.queues;
BEGIN
    PERFORM skep.check_name('queue', wire_configure.queue);
    PERFORM skep.create_lanes(ARRAY[wire_configure.queue], ARRAY['Default']);
    SELECT * INTO q FROM skep.queues WHERE name = wire_configure.queue FOR NO KEY UPDATE;
    kept := q.queen_options || (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(given)
                                WHERE key IN ('ttl', 'deadLetterQueue', 'dlqAfterMaxRetries', 'retentionEnabled', 'retentionSeconds',
                                              'completedRetentionSeconds', 'maxWaitTimeSeconds', 'maxSize'));
    SELECT coalesce(jsonb_object_agg(ours, CASE WHEN theirs = 'retryDelay' THEN to_jsonb((given ->> theirs)::double precision / 1000)
                                                ELSE given -> theirs END), '{}')
    INTO own
    FROM (VALUES ('leaseTime', 'lease_time'), ('retryLimit', 'retry_limit'), ('retryDelay', 'retry_delay'),
                 ('priority', 'priority'), ('delayedProcessing', 'delayed_processing'), ('windowBuffer', 'window_buffer'),
                 ('encryptionEnabled', 'encryption_enabled')) name (theirs, ours)
    WHERE given ? theirs;
    IF given ?| ARRAY['retentionEnabled', 'retentionSeconds', 'completedRetentionSeconds', 'maxWaitTimeSeconds'] THEN
        own := own || jsonb_build_object(
            'retention_seconds', least(CASE WHEN (kept ->> 'retentionEnabled')::boolean THEN nullif((kept ->> 'retentionSeconds')::double precision, 0) END,
                                       nullif((kept ->> 'maxWaitTimeSeconds')::double precision, 0)),
            'completed_retention_seconds', CASE WHEN (kept ->> 'retentionEnabled')::boolean THEN
                                                nullif((kept ->> 'completedRetentionSeconds')::double precision, 0) END);
    END IF;
    PERFORM skep.configure_queue(wire_configure.queue, own, wire_configure.namespace, wire_configure.task);
    UPDATE skep.queues SET queen_options = kept WHERE id = q.id RETURNING * INTO q;
    RETURN jsonb_build_object(
        'configured', true, 'queueId', skep.queue_uuid(q.id), 'queue', q.name, 'namespace', q.namespace, 'task', q.task,
        'options', skep.wire_options(q),
        'partitionId', (SELECT skep.partition_uuid(p.id) FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = 'Default'));
END $$;

-- Whether a group on a queue gets only the newest of each lane. Its first contact decides for good.
CREATE FUNCTION skep.wire_conflation(queue text, group_name text, subscription_mode text, subscription_from text) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM skep.subscriptions s
                   WHERE s.group_name = wire_conflation.group_name AND s.queue = wire_conflation.queue AND s.partition IS NULL) THEN
        PERFORM skep.store_subscription(wire_conflation.group_name, wire_conflation.queue, NULL, NULL, NULL, subscription_mode, subscription_from);
        UPDATE skep.subscriptions s SET conflation = true
        WHERE s.group_name = wire_conflation.group_name AND s.queue = wire_conflation.queue AND s.partition IS NULL;
    END IF;
    RETURN (SELECT s.conflation FROM skep.subscriptions s
            WHERE s.group_name = wire_conflation.group_name AND s.queue = wire_conflation.queue AND s.partition IS NULL);
END $$;
