-- push() of messages in JSON: one parameter for any number of messages.

-- Returns true for a JSON object with the keys of a message, and strings where columns are text. It is inlined, and
-- most messages have only the first three keys, so it is cheap. It returns false for a message with a delay, which
-- takes the slow path, so that other messages need not be checked for one.
CREATE FUNCTION skep._is_message(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof($1) <> 'object' OR jsonb_typeof($1 -> 'queue') NOT IN ('string', 'null')
                     OR jsonb_typeof($1 -> 'partition') NOT IN ('string', 'null') THEN false
                WHEN $1 - '{queue,partition,payload}'::text[] = '{}' THEN true
                ELSE ($1 - '{queue,partition,payload,transaction_id,headers,trace_id,producer}'::text[] <> '{}'
                      OR jsonb_typeof($1 -> 'transaction_id') NOT IN ('string', 'null')
                      OR jsonb_typeof($1 -> 'trace_id') NOT IN ('string', 'null')
                      OR jsonb_typeof($1 -> 'producer') NOT IN ('string', 'null')) IS NOT TRUE END
$$;

-- Raises an error if a message is invalid: the slow path of _is_message().
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
                            'A message is a JSON object with the keys payload, headers, delay, '
                                || array_to_string(texts, ', ') || '.');
    END IF;
    SELECT * INTO wrong FROM jsonb_each(message)
    WHERE key = ANY (texts) AND jsonb_typeof(value) NOT IN ('string', 'null') LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK001', format('%s: %s must be a string, got a JSON %s', item, wrong.key,
                                             jsonb_typeof(wrong.value)));
    ELSIF jsonb_typeof(message -> 'delay') NOT IN ('number', 'null') THEN
        PERFORM skep._refuse('SK001', format('%s: delay must be a number of seconds, got a JSON %s', item,
                                             jsonb_typeof(message -> 'delay')));
    END IF;
    PERFORM skep._check_name(item || ': queue', message ->> 'queue'),
            skep._check_name(item || ': partition', coalesce(message ->> 'partition', 'Default')),
            skep._check_item(ord, 'null', 100, message ->> 'transaction_id', nullif(message -> 'headers', 'null')),
            (message ->> 'trace_id')::uuid;
EXCEPTION WHEN invalid_text_representation THEN
    PERFORM skep._refuse('SK001', format('%s: trace_id must be a UUID, got "%s"', item,
                                         left(message ->> 'trace_id', 80)));
END $$;

CREATE FUNCTION skep._check_messages(messages jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        PERFORM skep._refuse('SK001', format('messages must be a JSON array, got %s',
                                             coalesce('a JSON ' || jsonb_typeof(messages), 'NULL')),
                            'Give an array of objects with queue and payload.');
    END IF;
    PERFORM skep._check_message(n, value) FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n);
END $$;

-- Returns messages in JSON as the arrays that push_many() takes; NULL if there are no messages. due_times is NULL if no
-- message is delayed.
CREATE FUNCTION skep._read_messages(
    messages jsonb, OUT queues text[], OUT partitions text[], OUT payloads jsonb[], OUT transaction_ids text[],
    OUT headers jsonb[], OUT trace_ids uuid[], OUT producers text[], OUT due_times timestamptz[]
) LANGUAGE plpgsql AS $$
DECLARE
    is_sound boolean;
BEGIN
    SELECT bool_and(skep._is_message(value)), array_agg(value ->> 'queue'),
           array_agg(coalesce(value ->> 'partition', 'Default')), array_agg(coalesce(value -> 'payload', 'null')),
           array_agg(value ->> 'transaction_id'), array_agg(nullif(value -> 'headers', 'null')),
           array_agg((value ->> 'trace_id')::uuid), array_agg(value ->> 'producer')
    INTO is_sound, queues, partitions, payloads, transaction_ids, _read_messages.headers, trace_ids, producers
    FROM jsonb_array_elements(messages) AS value;  -- in order, which aggregates keep; sorting would double the cost
    IF is_sound IS NOT TRUE THEN
        PERFORM skep._check_messages(messages);
        due_times := skep._due_times(messages);
    END IF;
EXCEPTION WHEN invalid_text_representation OR invalid_parameter_value THEN
    PERFORM skep._check_messages(messages);  -- raises the error that names the item
    RAISE;
END $$;

-- The fastest way to push from a driver: one parameter instead of arrays that the driver has to quote item by item.
CREATE FUNCTION skep.push(messages jsonb)
RETURNS TABLE (ord bigint, status text, id uuid, partition_id bigint, "offset" bigint, created_at timestamptz,
               due_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    m record;
BEGIN
    -- One message is the usual case. (_read_messages() costs a subtransaction.)
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
    m := skep._read_messages(messages);
    IF m.queues IS NOT NULL THEN
        RETURN QUERY
        SELECT p.ord, p.status, coalesce(p.delayed_id, skep.message_id(p.partition_id, p."offset")), p.partition_id,
               p."offset", p.created_at, p.due_at
        FROM skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids, m.producers,
                            m.due_times) p
        ORDER BY p.ord;
    END IF;
END $$;
COMMENT ON FUNCTION skep.push(jsonb) IS
    'Appends an array of {queue, partition, payload, transaction_id, headers, trace_id, producer, delay, deliver_at} '
    'and returns a row for each.';
CALL skep._allow('skep_producer', 'push');

-- push(messages) for the server, which has checked their shape: returns one row of arrays in the order of the messages.
-- has_delays: some may have a delay or a deliver_at. delayed: {"index of the message": [id, due time in UTC]} of the
-- delayed ones, NULL if there are none.
CREATE FUNCTION skep._push_messages(
    messages jsonb, has_delays boolean DEFAULT true,
    OUT duplicates boolean[], OUT partition_ids bigint[], OUT offsets bigint[], OUT delayed jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    m   record;
    one record;
BEGIN
    IF NOT has_delays AND jsonb_array_length(messages) = 1 THEN
        SELECT p.status = 'duplicate' AS duplicate, p.id, p.partition_id, p."offset", p.due_at INTO one
        FROM (SELECT messages -> 0 AS value OFFSET 0) item
        CROSS JOIN LATERAL skep.push(value ->> 'queue', value -> 'payload', value ->> 'partition',
                                     value ->> 'transaction_id', value -> 'headers', (value ->> 'trace_id')::uuid,
                                     value ->> 'producer') p;
        duplicates := ARRAY[one.duplicate]; partition_ids := ARRAY[one.partition_id]; offsets := ARRAY[one."offset"];
        IF one.due_at IS NOT NULL THEN  -- a duplicate of a delayed message
            delayed := jsonb_build_object(0, jsonb_build_array(one.id, one.due_at AT TIME ZONE 'UTC'));
        END IF;
        RETURN;
    END IF;
    SELECT array_agg(value ->> 'queue') AS queues, array_agg(value ->> 'partition') AS partitions,
           array_agg(value -> 'payload') AS payloads, array_agg(value ->> 'transaction_id') AS transaction_ids,
           array_agg(value -> 'headers') AS headers,
           array_agg((value ->> 'trace_id')::uuid) AS trace_ids, array_agg(value ->> 'producer') AS producers
    INTO m FROM jsonb_array_elements(messages) AS value;  -- in order, which aggregates keep
    SELECT array_agg(p.status = 'duplicate'), array_agg(p.partition_id), array_agg(p."offset"),
           jsonb_object_agg(p.ord - 1, jsonb_build_array(p.delayed_id, p.due_at AT TIME ZONE 'UTC'))
               FILTER (WHERE p.due_at IS NOT NULL)
    INTO duplicates, partition_ids, offsets, delayed
    FROM (SELECT * FROM skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids,
                                       m.producers, CASE WHEN has_delays THEN skep._due_times(messages) END) p
          ORDER BY p.ord) p;
END $$;
CALL skep._allow('skep_producer', '_push_messages');
