-- push: many queues and partitions in one call, two statements whatever their number.
-- Lock order: lanes are created in order of (queue, name), then locked in order of id, so pushes never deadlock.

-- Makes the queues and partitions that do not exist yet. Key-share locks on the queues: a delete_queue() under way is waited for.
CREATE FUNCTION skep.create_lanes(queues text[], partitions text[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM skep.check_name(format('item %s: queue', n - 1), queue), skep.check_name(format('item %s: partition', n - 1), partition)
    FROM unnest(create_lanes.queues, create_lanes.partitions) WITH ORDINALITY AS asked (queue, partition, n)
    WHERE (char_length(queue) BETWEEN 1 AND 255 AND char_length(partition) BETWEEN 1 AND 255) IS NOT TRUE;

    INSERT INTO skep.queues (name, namespace, task)
    SELECT DISTINCT queue, split_part(queue, '.', 1), split_part(queue, '.', 2)
    FROM unnest(create_lanes.queues) AS queue
    WHERE NOT EXISTS (SELECT FROM skep.queues WHERE name = queue)
    ORDER BY queue
    ON CONFLICT DO NOTHING;

    PERFORM FROM skep.queues WHERE name = ANY (create_lanes.queues) ORDER BY id FOR KEY SHARE;

    WITH created AS (
        INSERT INTO skep.partitions (queue_id, name)
        SELECT DISTINCT q.id, partition
        FROM unnest(create_lanes.queues, create_lanes.partitions) AS asked (queue, partition)
        JOIN skep.queues q ON q.name = queue
        LEFT JOIN LATERAL (SELECT p.id FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = partition LIMIT 1) known ON true
        WHERE known.id IS NULL
        ORDER BY q.id, partition
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    INSERT INTO skep.partition_lookup (partition_id) SELECT id FROM created;
END $$;

-- Nobody active to publish to. Work queues and mixed ones keep what nobody asked for yet.
CREATE FUNCTION skep.has_no_subscriber(q skep.queues) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT $1.semantics = 'pub_sub' AND NOT EXISTS (
        SELECT FROM skep.subscriptions s WHERE s.queue = $1.name AND s.status = 'ACTIVE') AND NOT EXISTS (
        SELECT FROM skep.subscriptions s WHERE s.queue IS NULL AND s.status = 'ACTIVE'
           AND (s.namespace IS NULL OR s.namespace = $1.namespace) AND (s.task IS NULL OR s.task = $1.task)
           AND NOT EXISTS (SELECT FROM skep.subscriptions own WHERE own.queue = $1.name AND own.group_name = s.group_name
                                                                AND own.partition IS NULL))
$$;

-- Locks the lanes of a push until commit. Arrays over lanes, and lane_of from each item to its lane: the next statement must start
-- after the locks are held, and finds its lane by subscript. (A join would be planned for ten items and be quadratic for 100,000.)
CREATE FUNCTION skep.lock_lanes(
    queues text[], partitions text[],
    OUT queue_ids integer[], OUT partition_ids bigint[], OUT last_offsets bigint[], OUT last_times timestamptz[],
    OUT payload_limits integer[], OUT dedup_since timestamptz[], OUT lane_of integer[]
) LANGUAGE plpgsql AS $$
DECLARE
    locked  bigint;
    blocked text;
BEGIN
    FOR try IN 1 .. 4 LOOP
        SELECT array_agg(queue_id), array_agg(partition_id), array_agg(last_offset), array_agg(last_created_at),
               array_agg(max_payload_bytes), array_agg(since), sum(items), min(queue) FILTER (WHERE is_blocked)
        INTO queue_ids, partition_ids, last_offsets, last_times, payload_limits, dedup_since, locked, blocked
        FROM (
            SELECT named.*, l.*
            FROM (
                SELECT q.name AS queue, p.name AS partition, p.queue_id, p.id, q.max_payload_bytes,
                       CASE WHEN q.block_without_subscribers THEN skep.has_no_subscriber(q) ELSE false END AS is_blocked,
                       named.items, sum(named.items) OVER () AS known,
                       coalesce(clock_timestamp() - skep.seconds(q.dedup_window), '-infinity') AS since
                FROM (SELECT queue, partition, count(*) AS items
                      FROM unnest(lock_lanes.queues, lock_lanes.partitions) AS item (queue, partition)
                      GROUP BY queue, partition) named
                JOIN skep.queues q ON q.name = named.queue
                CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = named.partition LIMIT 1) p
                ORDER BY p.id
            ) named
            -- No lock before every lane exists: creating one while holding others could deadlock with its creator.
            CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l
                                WHERE l.partition_id = named.id AND named.known = cardinality(lock_lanes.queues)
                                ORDER BY l.generation DESC LIMIT 1 FOR NO KEY UPDATE) l
            ORDER BY named.queue, named.partition
        ) lane;
        EXIT WHEN locked = cardinality(queues);
        IF try = 4 THEN  -- vanished after creation, over and over
            RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'queue or partition deleted during push', HINT = 'Push again.';
        END IF;
        PERFORM skep.create_lanes(queues, partitions);
    END LOOP;
    IF blocked IS NOT NULL THEN
        PERFORM skep.refuse('SK006', format('queue "%s" takes no messages while nobody is subscribed', blocked),
                            'Subscribe a group, or set block_without_subscribers to false.');
    END IF;

    IF cardinality(partition_ids) = 1 THEN
        lane_of := array_fill(1, ARRAY[cardinality(queues)]);
    ELSE
        lane_of := array_agg(lane ORDER BY ord) FROM (
            SELECT ord, dense_rank() OVER (ORDER BY queue COLLATE "C", partition COLLATE "C") AS lane
            FROM unnest(lock_lanes.queues, lock_lanes.partitions) WITH ORDINALITY AS item (queue, partition, ord)) ranked;
    END IF;
END $$;

-- Which items are not repeats of a stored message or of an earlier item. Exact, because the lanes are locked.
CREATE FUNCTION skep.first_of_their_kind(
    lane_of integer[], partition_ids bigint[], dedup_since timestamptz[], transaction_ids text[]
) RETURNS boolean[] LANGUAGE sql AS $$
    SELECT array_agg(transaction_id IS NULL OR (twin = 1 AND stored IS NULL) ORDER BY ord)
    FROM (
        SELECT item.*, stored."offset" AS stored, row_number() OVER (PARTITION BY lane, item.transaction_id ORDER BY ord) AS twin
        FROM unnest($1, $4) WITH ORDINALITY AS item (lane, transaction_id, ord)
        LEFT JOIN LATERAL (
            SELECT m."offset" FROM skep.messages m
            WHERE m.partition_id = ($2)[lane] AND m.transaction_id = item.transaction_id
              AND m.created_at >= ($3)[lane]
            LIMIT 1
        ) stored ON item.transaction_id IS NOT NULL
    ) item
$$;

-- The slow half of push_many's check of an item: says what is wrong with it.
CREATE FUNCTION skep.check_item(ord bigint, payload jsonb, payload_limit integer, transaction_id text, headers jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    item text := format('item %s: ', ord - 1);
BEGIN
    IF payload IS NULL THEN
        PERFORM skep.refuse('SK001', item || 'the payload is NULL', 'Push the JSON value null instead.');
    ELSIF pg_column_size(payload) > payload_limit THEN
        PERFORM skep.refuse('SK004', format('%sthe payload has %s bytes, the limit of the queue is %s', item,
                                            pg_column_size(payload), payload_limit),
                            'Store large bodies elsewhere and push a reference, or raise max_payload_bytes of the queue.');
    ELSIF char_length(transaction_id) NOT BETWEEN 1 AND 255 THEN
        PERFORM skep.refuse('SK001', format('%sthe transaction id has %s characters', item, char_length(transaction_id)),
                            'Transaction ids have 1 to 255 characters; leave it out for no deduplication.');
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        PERFORM skep.refuse('SK001', format('%sheaders are a JSON %s', item, jsonb_typeof(headers)), 'Headers are a JSON object.');
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION skep.check_lengths(queues text[], partitions text[], payloads jsonb[], transaction_ids text[], headers jsonb[],
                                   trace_ids uuid[], producers text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (cardinality(queues) = cardinality(partitions) AND cardinality(queues) = cardinality(payloads)
        AND coalesce(cardinality(queues) = cardinality(transaction_ids), true)
        AND coalesce(cardinality(queues) = cardinality(headers), true)
        AND coalesce(cardinality(queues) = cardinality(trace_ids), true)
        AND coalesce(cardinality(queues) = cardinality(producers), true)) IS NOT TRUE THEN
        PERFORM skep.refuse('SK001', 'the arrays of push_many differ in length',
                            'Give one queue, partition and payload for each message; the other arrays are as long or NULL.');
    END IF;
END $$;

-- New messages come first in the answer, repeats after them: go by ord.
CREATE FUNCTION skep.push_many(
    queues text[], partitions text[], payloads jsonb[], transaction_ids text[] DEFAULT NULL, headers jsonb[] DEFAULT NULL,
    trace_ids uuid[] DEFAULT NULL, producers text[] DEFAULT NULL
) RETURNS TABLE (ord bigint, status text, partition_id bigint, "offset" bigint, created_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lanes record;
    fresh boolean[];
    stamp timestamptz;
BEGIN
    PERFORM skep.check_lengths(push_many.queues, push_many.partitions, push_many.payloads, push_many.transaction_ids,
                               push_many.headers, push_many.trace_ids, push_many.producers);
    IF cardinality(push_many.queues) = 0 THEN
        RETURN;
    END IF;
    lanes := skep.lock_lanes(push_many.queues, push_many.partitions);
    IF push_many.transaction_ids IS NOT NULL THEN
        fresh := skep.first_of_their_kind(lanes.lane_of, lanes.partition_ids, lanes.dedup_since, push_many.transaction_ids);
    END IF;
    stamp := clock_timestamp();  -- after the locks: a later push to the lane reads a later clock
    RETURN QUERY
    WITH placed AS MATERIALIZED (
        SELECT item.*, lanes.last_offsets[lane] + row_number() OVER (PARTITION BY lane ORDER BY ord) AS "offset"
        FROM unnest(lanes.lane_of, fresh, push_many.payloads, push_many.transaction_ids, push_many.headers,
                    push_many.trace_ids, push_many.producers)
             WITH ORDINALITY AS item (lane, fresh, payload, transaction_id, headers, trace_id, producer, ord)
        WHERE fresh IS NOT FALSE
          AND (pg_column_size(payload) <= lanes.payload_limits[lane]
               AND coalesce(octet_length(transaction_id) BETWEEN 1 AND 255, true)
               AND coalesce(jsonb_typeof(headers) = 'object', true)
               OR skep.check_item(ord, payload, lanes.payload_limits[lane], transaction_id, headers))
    ), head AS (
        UPDATE skep.partition_lookup l
        SET last_offset = grown.last_offset, last_created_at = greatest(l.last_created_at, stamp)
        FROM (SELECT lane, max("offset") AS last_offset FROM placed GROUP BY lane) grown
        WHERE l.partition_id = ANY (ARRAY[lanes.partition_ids[lane]]) AND l.generation >= lanes.last_offsets[lane] >> 8
        RETURNING lane, l.partition_id, l.last_offset
    ), journaled AS (
        INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
        SELECT lanes.queue_ids[lane], array_agg(partition_id), array_agg(lanes.last_offsets[lane] + 1), array_agg(last_offset)
        FROM head GROUP BY 1
    ), stored AS (
        INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, transaction_id, trace_id, producer)
        SELECT lanes.partition_ids[lane], "offset", greatest(lanes.last_times[lane], stamp), payload, headers, transaction_id,
               trace_id, producer
        FROM placed
    )
    SELECT ord, 'queued', lanes.partition_ids[lane], "offset", greatest(lanes.last_times[lane], stamp) FROM placed;

    IF false = ANY (fresh) THEN
        RETURN QUERY
        SELECT item.ord, 'duplicate', m.partition_id, m."offset", m.created_at
        FROM unnest(lanes.lane_of, fresh, push_many.transaction_ids) WITH ORDINALITY AS item (lane, fresh, transaction_id, ord)
        CROSS JOIN LATERAL (
            SELECT * FROM skep.messages m
            WHERE m.partition_id = lanes.partition_ids[lane] AND m.transaction_id = item.transaction_id
            ORDER BY m.created_at DESC LIMIT 1
        ) m
        WHERE NOT item.fresh;
    END IF;
END $$;


CREATE FUNCTION skep.push(
    queue text, payload jsonb, partition text DEFAULT 'Default', transaction_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
    trace_id uuid DEFAULT NULL, producer text DEFAULT NULL,
    OUT status text, OUT id uuid, OUT partition_id bigint, OUT "offset" bigint, OUT created_at timestamptz
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT p.status, skep.message_id(p.partition_id, p."offset"), p.partition_id, p."offset", p.created_at
    INTO push.status, push.id, push.partition_id, push."offset", push.created_at
    FROM skep.push_many(ARRAY[push.queue], ARRAY[push.partition], ARRAY[push.payload], ARRAY[push.transaction_id], ARRAY[push.headers],
                        ARRAY[push.trace_id], ARRAY[push.producer]) p;
END $$;

-- What a message in JSON looks like: known keys, and texts where columns are text. Inlined, so it costs little for each message.
CREATE FUNCTION skep.is_message(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof($1) = 'object' THEN
        ($1 - '{queue,partition,payload,transaction_id,headers,trace_id,producer}'::text[] <> '{}'
         OR jsonb_typeof($1 -> 'queue') NOT IN ('string', 'null') OR jsonb_typeof($1 -> 'partition') NOT IN ('string', 'null')
         OR jsonb_typeof($1 -> 'transaction_id') NOT IN ('string', 'null') OR jsonb_typeof($1 -> 'trace_id') NOT IN ('string', 'null')
         OR jsonb_typeof($1 -> 'producer') NOT IN ('string', 'null')) IS NOT TRUE ELSE false END
$$;

-- The slow half: says what is wrong with a message, if something is.
CREATE FUNCTION skep.check_message(ord bigint, message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    item  text := format('item %s', ord - 1);
    texts text[] := ARRAY['queue', 'partition', 'transaction_id', 'trace_id', 'producer'];
    wrong record;
BEGIN
    IF (CASE WHEN jsonb_typeof(message) = 'object' THEN message - texts - ARRAY['payload', 'headers'] <> '{}' ELSE true END) THEN
        PERFORM skep.refuse('SK001', format('%s is not a message: %s', item, left(message::text, 80)),
                            'A message is an object with the keys payload, headers, ' || array_to_string(texts, ', ') || '.');
    END IF;
    SELECT * INTO wrong FROM jsonb_each(message) WHERE key = ANY (texts) AND jsonb_typeof(value) NOT IN ('string', 'null') LIMIT 1;
    IF FOUND THEN
        PERFORM skep.refuse('SK001', format('%s: %s is a JSON %s', item, wrong.key, jsonb_typeof(wrong.value)),
                            array_to_string(texts, ', ') || ' are strings.');
    END IF;
    PERFORM skep.check_name(item || ': queue', message ->> 'queue'),
            skep.check_name(item || ': partition', coalesce(message ->> 'partition', 'Default')),
            skep.check_item(ord, 'null', 100, message ->> 'transaction_id', nullif(message -> 'headers', 'null')),
            (message ->> 'trace_id')::uuid;
EXCEPTION WHEN invalid_text_representation THEN
    PERFORM skep.refuse('SK001', format('%s: trace_id is "%s"', item, left(message ->> 'trace_id', 80)), 'Trace ids are UUIDs.');
END $$;

CREATE FUNCTION skep.check_messages(messages jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        PERFORM skep.refuse('SK001', format('messages are a JSON %s', coalesce(jsonb_typeof(messages), 'NULL')),
                            'Give an array of objects with queue and payload.');
    END IF;
    PERFORM skep.check_message(n, value) FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n);
END $$;

-- The same as a JSON array of {queue, partition, payload, transaction_id, headers, trace_id, producer}. From a driver this is the
-- fastest way in: one parameter instead of arrays that the driver has to quote item by item.
CREATE FUNCTION skep.push(messages jsonb)
RETURNS TABLE (ord bigint, status text, id uuid, partition_id bigint, "offset" bigint, created_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
    m record;
BEGIN
    BEGIN
        SELECT bool_and(skep.is_message(value)) AS is_sound,
               array_agg(value ->> 'queue' ORDER BY n) AS queues,
               array_agg(coalesce(value ->> 'partition', 'Default') ORDER BY n) AS partitions,
               array_agg(coalesce(value -> 'payload', 'null') ORDER BY n) AS payloads,
               array_agg(value ->> 'transaction_id' ORDER BY n) AS transaction_ids,
               array_agg(nullif(value -> 'headers', 'null') ORDER BY n) AS headers,
               array_agg((value ->> 'trace_id')::uuid ORDER BY n) AS trace_ids,
               array_agg(value ->> 'producer' ORDER BY n) AS producers
        INTO m FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, n);
    EXCEPTION WHEN invalid_text_representation OR invalid_parameter_value THEN
        PERFORM skep.check_messages(messages);  -- says what is wrong
        RAISE;
    END;
    IF m.is_sound IS NOT TRUE THEN
        PERFORM skep.check_messages(messages);
        RETURN;  -- no message at all
    END IF;
    RETURN QUERY
    SELECT p.ord, p.status, skep.message_id(p.partition_id, p."offset"), p.partition_id, p."offset", p.created_at
    FROM skep.push_many(m.queues, m.partitions, m.payloads, m.transaction_ids, m.headers, m.trace_ids, m.producers) p
    ORDER BY p.ord;
END $$;
