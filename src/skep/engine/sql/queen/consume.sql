-- The message calls of the HTTP server. Queen's names and shapes are made here, so that payloads pass through Python as
-- bytes.

-- Returns the address of a partition in Queen's protocol: an id that none of its messages has.
CREATE FUNCTION skep._partition_uuid(partition_id bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT skep.message_id($1, 4611686018427387903) $$;

CREATE FUNCTION skep._queue_uuid(queue_id integer) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT skep.message_id(0, $1) $$;

-- Returns a time in milliseconds, in UTC whatever the time zone of the session is.
CREATE FUNCTION skep._queen_time(instant timestamptz) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
    RETURN to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
CALL skep._allow('skep_producer', '_queen_time', definer => false);
CALL skep._allow('skep_consumer', '_queen_time', definer => false);

-- Returns the id of a message as text. id_start: the first 19 characters, which all ids of a partition have in common.
CREATE FUNCTION skep._id_text(id_start text, "offset" bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT $1 || overlay(to_hex($2 | (-9223372036854775808)) PLACING '-' FROM 5 FOR 0) $$;

-- Returns the messages of a lease as JSON, comma-separated. Concatenating strings is twice as fast as
-- json_build_object. Every message ends with `tail`: \x01, which cannot occur in JSON, separates the messages first,
-- and is then replaced by it. sealed: at least one payload is encrypted, and the server has to decrypt it.
CREATE FUNCTION skep._queen_encode(
    partition_id bigint, first_offset bigint, leased_to bigint, done int8multirange, tail text
) RETURNS TABLE (messages text, sealed boolean, size bigint) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT '{' || replace(m.heads, E'\x01', tail || ',{') || tail, coalesce(m.sealed, false), m.size
    FROM (
        SELECT bool_or(m.headers ? 'skep-sealed') AS sealed, count(*) AS size,
               string_agg('"id":"' || id || coalesce('","transactionId":' || to_json(m.transaction_id)::text,
                                                     '","transactionId":"' || id || '"')
                          || coalesce(',"traceId":"' || m.trace_id::text || '"', ',"traceId":null')
                          || ',"data":' || m.payload::text
                          || coalesce(',"producerSub":' || to_json(m.producer)::text, ',"producerSub":null')
                          || ',"createdAt":"'
                          || to_char(m.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
                          || coalesce('","headers":' || m.headers::text, '","headers":null')
                          || ',"offset":' || m."offset"::text, E'\x01' ORDER BY m."offset") AS heads
        FROM (SELECT left(skep.message_id($1, 0)::text, 19) AS id_start OFFSET 0) lease
        CROSS JOIN LATERAL (
            SELECT m.*, skep._id_text(lease.id_start, m."offset") AS id
            FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" >= $2 AND m."offset" < $3
            ORDER BY m."offset" OFFSET 0) m
        WHERE m.payload IS NOT NULL AND ($4 IS NULL OR NOT $4 @> m."offset")
    ) m
$$;

-- Returns the end of the JSON object of a message: the fields that are the same for all messages of a lease.
CREATE FUNCTION skep._queen_tail(
    queue text, partition text, address uuid, lease uuid, group_name text, attempt integer
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat(',"queue":', to_json($1), ',"partition":', to_json($2), ',"partitionId":"', $3, '","leaseId":"', $4,
                  '","consumerGroup":', to_json($5), ',"deliveryAttempt":', $6, '}')
$$;

-- pop() for many requests that differ only in their size and in their partition, if partitions are named. Returns a row
-- for each request that got messages: its lease id, its first partition, the number of partitions, and the messages.
-- The messages are read by a separate statement, which sees all messages that the leases have seen.
CREATE FUNCTION skep._queen_pop(
    queue text, group_name text, batches integer[], partitions integer[], names text[], namespace text, task text,
    lease_time double precision, auto_ack boolean, subscription_mode text, subscription_from text, conflate boolean
) RETURNS TABLE (request integer, lease uuid, first_queue text, first_partition text, first_partition_id uuid,
                 partition_count bigint, messages text, sealed boolean, size bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leases    skep.lease[];
    lease_ids uuid[];
BEGIN
    leases := skep._lease_requests(
        _queen_pop.queue, _queen_pop.group_name, _queen_pop.batches, _queen_pop.partitions, _queen_pop.names,
        _queen_pop.namespace, _queen_pop.task, _queen_pop.lease_time, auto_ack, subscription_mode, subscription_from,
        conflate);
    IF leases = '{}' THEN
        RETURN;
    ELSIF auto_ack THEN
        lease_ids := NULL;
    ELSIF cardinality(leases) = 1 THEN
        lease_ids[(leases[1]).request] := (leases[1]).lease_id;
    ELSE
        lease_ids := skep._queen_lease_ids(leases, cardinality(_queen_pop.batches));
    END IF;
    IF cardinality(leases) = 1 THEN
        RETURN QUERY
        SELECT l.request, lease_ids[l.request], l.queue, p.name, a.address, 1::bigint, m.messages, m.sealed, m.size
        FROM unnest(leases) l
        CROSS JOIN LATERAL (SELECT p.name FROM skep.partitions p WHERE p.id = l.partition_id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT skep._partition_uuid(l.partition_id) AS address OFFSET 0) a
        CROSS JOIN LATERAL skep._queen_encode(
            l.partition_id, l.first_offset, l.leased_to, l.done,
            skep._queen_tail(l.queue, p.name, a.address, lease_ids[l.request], _queen_pop.group_name, l.attempt)) m;
    ELSE
        RETURN QUERY
        SELECT got.request, lease_ids[got.request], (array_agg(got.queue ORDER BY n))[1],
               (array_agg(got.partition ORDER BY n))[1], (array_agg(got.address ORDER BY n))[1],
               count(DISTINCT got.address), coalesce(string_agg(got.messages, ',' ORDER BY n), ''),
               bool_or(got.sealed), sum(got.size)::bigint
        FROM (SELECT l.ordinality AS n, l.request, l.queue, p.name AS partition, a.address, m.*
              FROM unnest(leases) WITH ORDINALITY l
              CROSS JOIN LATERAL (SELECT p.name FROM skep.partitions p WHERE p.id = l.partition_id LIMIT 1) p
              CROSS JOIN LATERAL (SELECT skep._partition_uuid(l.partition_id) AS address OFFSET 0) a
              CROSS JOIN LATERAL skep._queen_encode(
                  l.partition_id, l.first_offset, l.leased_to, l.done,
                  skep._queen_tail(l.queue, p.name, a.address, lease_ids[l.request], _queen_pop.group_name,
                                   l.attempt)) m) got
        GROUP BY got.request;
    END IF;
    IF auto_ack THEN
        PERFORM skep._complete_leases(leases);
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_queen_pop');

-- Returns Queen's options of a queue. Options that only Queen has are stored and returned unchanged; NULL in Skep is 0
-- in Queen.
CREATE FUNCTION skep._queen_options(q skep.queues) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('retryDelay', 1000, 'ttl', 3600, 'deadLetterQueue', false, 'dlqAfterMaxRetries', false,
               'retentionEnabled', false, 'retentionSeconds', 0, 'completedRetentionSeconds', 0,
               'maxWaitTimeSeconds', 0, 'maxSize', 0)
           || $1.queen_options || jsonb_build_object(
               'leaseTime', $1.lease_time, 'retryLimit', $1.retry_limit, 'retryDelay', $1.retry_delay * 1000,
               'priority', $1.priority, 'delayedProcessing', $1.delayed_processing, 'windowBuffer', $1.window_buffer,
               'encryptionEnabled', $1.encryption_enabled)
$$;

-- Merges the options into those of the queue; replace: options that are not given get their defaults.
CREATE FUNCTION skep._queen_configure(queue text, options jsonb, namespace text, task text, replace boolean)
RETURNS jsonb
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    blank skep.queues := jsonb_populate_record(NULL::skep.queues,
                                               '{"lease_time": 300, "retry_limit": 3, "retry_delay": 1, "priority": 0,
        "delayed_processing": 0, "window_buffer": 0, "encryption_enabled": false, "queen_options": {}}');
    given jsonb := CASE WHEN replace THEN skep._queen_options(blank) ELSE '{}' END || jsonb_strip_nulls(options);
    kept  jsonb;
    own   jsonb := '{}';
    q     skep.queues;
BEGIN
    PERFORM skep._check_name('queue', _queen_configure.queue);
    PERFORM skep._create_partitions(ARRAY[_queen_configure.queue], ARRAY['Default']);
    SELECT * INTO q FROM skep.queues WHERE name = _queen_configure.queue FOR NO KEY UPDATE;
    kept := q.queen_options || (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(given)
                                WHERE key IN ('ttl', 'deadLetterQueue',
                                              'dlqAfterMaxRetries', 'retentionEnabled', 'retentionSeconds',
                                              'completedRetentionSeconds', 'maxWaitTimeSeconds', 'maxSize'));
    SELECT coalesce(jsonb_object_agg(ours, CASE
                                     WHEN theirs = 'retryDelay'
                                     THEN to_jsonb((given ->> theirs)::double precision / 1000)
                                                ELSE given -> theirs END), '{}')
    INTO own
    FROM (VALUES ('leaseTime', 'lease_time'), ('retryLimit', 'retry_limit'), ('retryDelay', 'retry_delay'),
                 ('priority', 'priority'), ('delayedProcessing', 'delayed_processing'),
                 ('windowBuffer', 'window_buffer'), ('encryptionEnabled', 'encryption_enabled')) name (theirs, ours)
    WHERE given ? theirs;
    IF given ?| ARRAY['retentionEnabled', 'retentionSeconds', 'completedRetentionSeconds', 'maxWaitTimeSeconds'] THEN
        own := own || jsonb_build_object(
            'retention_seconds', least(CASE WHEN (kept ->> 'retentionEnabled')::boolean THEN
                                                nullif((kept ->> 'retentionSeconds')::double precision, 0) END,
                                       nullif((kept ->> 'maxWaitTimeSeconds')::double precision, 0)),
            'completed_retention_seconds', CASE WHEN (kept ->> 'retentionEnabled')::boolean THEN
                                                nullif((kept ->> 'completedRetentionSeconds')::double precision,
                                                       0) END);
    END IF;
    PERFORM skep.configure_queue(_queen_configure.queue, own, _queen_configure.namespace, _queen_configure.task);
    UPDATE skep.queues SET queen_options = kept WHERE id = q.id RETURNING * INTO q;
    RETURN jsonb_build_object(
        'configured', true, 'queueId', skep._queue_uuid(q.id), 'queue', q.name, 'namespace', q.namespace,
        'task', q.task, 'options', skep._queen_options(q),
        'partitionId', (SELECT skep._partition_uuid(p.id) FROM skep.partitions p
                        WHERE p.queue_id = q.id AND p.name = 'Default'));
END $$;
CALL skep._allow('skep_admin', '_queen_configure');

-- Returns true if a group gets only the newest message of each partition of a queue. The first pop of the group decides
-- it for good.
CREATE FUNCTION skep._queen_conflation(queue text, group_name text, subscription_mode text, subscription_from text)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM skep.subscriptions s
                   WHERE s.group_name = _queen_conflation.group_name AND s.queue = _queen_conflation.queue
                     AND s.partition IS NULL) THEN
        PERFORM skep._store_subscription(_queen_conflation.group_name, _queen_conflation.queue, NULL, NULL, NULL,
                                         subscription_mode, subscription_from);
        UPDATE skep.subscriptions s SET conflation = true
        WHERE s.group_name = _queen_conflation.group_name AND s.queue = _queen_conflation.queue AND s.partition IS NULL;
    END IF;
    RETURN (SELECT s.conflation FROM skep.subscriptions s
            WHERE s.group_name = _queen_conflation.group_name AND s.queue = _queen_conflation.queue
              AND s.partition IS NULL);
END $$;
CALL skep._allow('skep_consumer', '_queen_conflation');
