-- push of messages in JSON: one parameter for any number of messages.

-- What a message in JSON looks like: known keys, and texts where columns are text. Inlined, so it costs little for each
-- message. A message with a delay is not recognised: it takes the slow way, so that the others need not look for one.
CREATE FUNCTION skep._is_message(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof($1) = 'object' THEN
        ($1 - '{queue,partition,payload,transaction_id,headers,trace_id,producer}'::text[] <> '{}'
         OR jsonb_typeof($1 -> 'queue') NOT IN ('string', 'null')
         OR jsonb_typeof($1 -> 'partition') NOT IN ('string', 'null')
         OR jsonb_typeof($1 -> 'transaction_id') NOT IN ('string', 'null')
         OR jsonb_typeof($1 -> 'trace_id') NOT IN ('string', 'null')
         OR jsonb_typeof($1 -> 'producer') NOT IN ('string', 'null')) IS NOT TRUE ELSE false END
$$;

-- The slow half: says what is wrong with a message, if something is.
CREATE FUNCTION skep._check_message(ord bigint, message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    item  text := format('item %s', ord - 1);
    texts text[] := ARRAY['queue', 'partition', 'transaction_id', 'trace_id', 'producer', 'deliver_at'];
    wrong record;
BEGIN
    IF (CASE WHEN jsonb_typeof(message) = 'object' THEN message - texts - ARRAY['payload', 'headers', 'delay'] <> '{}'
        ELSE true END) THEN
        PERFORM skep._refuse('SK001', format('%s is not a message: %s', item, left(message::text, 80)),
                            'A message is an object with the keys payload, headers, delay, '
                                || array_to_string(texts, ', ') || '.');
    END IF;
    SELECT * INTO wrong FROM jsonb_each(message)
    WHERE key = ANY (texts) AND jsonb_typeof(value) NOT IN ('string', 'null') LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK001', format('%s: %s is a JSON %s', item, wrong.key, jsonb_typeof(wrong.value)),
                            array_to_string(texts, ', ') || ' are strings.');
    ELSIF jsonb_typeof(message -> 'delay') NOT IN ('number', 'null') THEN
        PERFORM skep._refuse('SK001', format('%s: delay is a JSON %s', item, jsonb_typeof(message -> 'delay')),
                             'delay is a number of seconds.');
    END IF;
    PERFORM skep._check_name(item || ': queue', message ->> 'queue'),
            skep._check_name(item || ': partition', coalesce(message ->> 'partition', 'Default')),
            skep._check_item(ord, 'null', 100, message ->> 'transaction_id', nullif(message -> 'headers', 'null')),
            (message ->> 'trace_id')::uuid;
EXCEPTION WHEN invalid_text_representation THEN
    PERFORM skep._refuse('SK001', format('%s: trace_id is "%s"', item, left(message ->> 'trace_id', 80)),
                         'Trace ids are UUIDs.');
END $$;

CREATE FUNCTION skep._check_messages(messages jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        PERFORM skep._refuse('SK001', format('messages are a JSON %s', coalesce(jsonb_typeof(messages), 'NULL')),
                            'Give an array of objects with queue and payload.');
    END IF;
    PERFORM skep._check_message(n, value) FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n);
END $$;

-- The same as a JSON array of {queue, partition, payload, transaction_id, headers, trace_id, producer, delay,
-- deliver_at}. From a driver this is the fastest way in: one parameter instead of arrays that the driver has to quote
-- item by item.
CREATE FUNCTION skep.push(messages jsonb)
RETURNS TABLE (ord bigint, status text, id uuid, partition_id bigint, "offset" bigint, created_at timestamptz,
               due_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    m         record;
    due_times timestamptz[];
BEGIN
    -- One message, the usual case. (The block below costs a subtransaction.)
    IF (CASE WHEN jsonb_typeof(messages) = 'array' THEN jsonb_array_length(messages) = 1 END)
       AND skep._is_message(messages -> 0) AND messages -> 0 ->> 'trace_id' IS NULL THEN
        RETURN QUERY
        SELECT 1::bigint, p.status, p.id, p.partition_id, p."offset", p.created_at, p.due_at
        FROM (SELECT messages -> 0 AS value OFFSET 0) item
        CROSS JOIN LATERAL skep.push(value ->> 'queue', coalesce(value -> 'payload', 'null'),
                                     coalesce(value ->> 'partition', 'Default'), value ->> 'transaction_id',
                                     nullif(value -> 'headers', 'null'), NULL, value ->> 'producer') p;
        RETURN;
    END IF;
    BEGIN
        SELECT bool_and(skep._is_message(value)) AS is_sound,
               array_agg(value ->> 'queue') AS queues,
               array_agg(coalesce(value ->> 'partition', 'Default')) AS partitions,
               array_agg(coalesce(value -> 'payload', 'null')) AS payloads,
               array_agg(value ->> 'transaction_id') AS transaction_ids,
               array_agg(nullif(value -> 'headers', 'null')) AS headers,
               array_agg((value ->> 'trace_id')::uuid) AS trace_ids,
               array_agg(value ->> 'producer') AS producers
        -- in order, which aggregates keep: sorting each would double the cost
        INTO m FROM jsonb_array_elements(messages) AS value;
    EXCEPTION WHEN invalid_text_representation OR invalid_parameter_value THEN
        PERFORM skep._check_messages(messages);  -- says what is wrong
        RAISE;
    END;
    IF m.is_sound IS NOT TRUE THEN
        PERFORM skep._check_messages(messages);
        IF m.queues IS NULL THEN
            RETURN;  -- no message at all
        END IF;
        due_times := skep._due_times(messages);
    END IF;
    RETURN QUERY
    SELECT p.ord, p.status, coalesce(p.delayed_id, skep.message_id(p.partition_id, p."offset")), p.partition_id,
           p."offset", p.created_at, p.due_at
    FROM skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids, m.producers,
                        due_times) p
    ORDER BY p.ord;
END $$;
COMMENT ON FUNCTION skep.push(jsonb) IS
    'Appends an array of {queue, partition, payload, transaction_id, headers, trace_id, producer, delay, deliver_at} '
    'and returns a row for each.';
CALL skep._allow('skep_producer', 'push');
