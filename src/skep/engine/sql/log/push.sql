-- push: any number of queues and partitions in one call, with a constant number of statements. Partitions are created
-- and locked in one order, by queue and name, so pushes never deadlock. The locks are held until commit, so offsets are
-- dense and become visible in order.

-- Returns true if a payload has more bytes than this as the text that is sent to consumers. A short number can be a
-- long text (1e131071 has 131,072 digits): 12 bytes of jsonb are at most 131,072 characters, so small payloads need not
-- be converted to text.
CREATE FUNCTION skep._exceeds(payload jsonb, max_bytes integer) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_column_size($1)::bigint * 11000 <= $2 THEN false ELSE octet_length($1::text) > $2 END
$$;

-- Returns for each item whether it is new: neither stored, nor delayed, nor earlier in this push. The result is exact,
-- because the partitions are locked.
CREATE FUNCTION skep._find_new(
    slot_of integer[], partition_ids bigint[], dedup_since timestamptz[], transaction_ids text[]
)
RETURNS boolean[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT array_agg(transaction_id IS NULL OR (occurrence = 1 AND stored IS NULL AND NOT is_delayed) ORDER BY ord)
        FROM (
            SELECT item.*, stored."offset" AS stored, delayed.id IS NOT NULL AS is_delayed,
                   row_number() OVER (PARTITION BY slot, item.transaction_id ORDER BY ord) AS occurrence
            FROM unnest(slot_of, transaction_ids) WITH ORDINALITY AS item (slot, transaction_id, ord)
            LEFT JOIN LATERAL (
                SELECT m."offset" FROM skep.messages m
                WHERE m.partition_id = partition_ids[slot] AND m.transaction_id = item.transaction_id
                  AND m.created_at >= dedup_since[slot]
                LIMIT 1
            ) stored ON item.transaction_id IS NOT NULL
            LEFT JOIN LATERAL (SELECT d.id FROM skep.delayed_messages d WHERE d.partition_id = partition_ids[slot]
                                  AND d.transaction_id = item.transaction_id
                                      LIMIT 1) delayed ON item.transaction_id IS NOT NULL
        ) item);
END $$;

-- Raises an error if an item is invalid.
CREATE FUNCTION skep._check_item(ord bigint, payload jsonb, payload_limit integer, transaction_id text, headers jsonb)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    item text := format('item %s: ', ord - 1);
BEGIN
    IF payload IS NULL THEN
        PERFORM skep._refuse('SK001', item || 'payload must not be NULL', 'Push the JSON value null instead.');
    ELSIF skep._exceeds(payload, payload_limit) THEN
        PERFORM skep._refuse('SK004', format('%sthe payload has %s bytes, the limit of the queue is %s', item,
                                            octet_length(payload::text), payload_limit),
                            'Store large bodies elsewhere and push a reference, or raise max_payload_bytes of '
                            'the queue.');
    ELSIF char_length(transaction_id) NOT BETWEEN 1 AND 255 THEN
        PERFORM skep._refuse('SK001', format('%sthe transaction id must have 1 to 255 characters, got %s', item,
                                             char_length(transaction_id)),
                            'Leave it out if the message needs no deduplication.');
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        PERFORM skep._refuse('SK001', format('%sheaders must be a JSON object, got a JSON %s', item,
                                             jsonb_typeof(headers)));
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION skep._check_lengths(
    queues text[], partitions text[], payloads jsonb[], transaction_ids text[], headers jsonb[], trace_ids uuid[],
    producers text[], deliver_at timestamptz[]
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (cardinality(queues) = cardinality(partitions) AND cardinality(queues) = cardinality(payloads)
        AND coalesce(cardinality(queues) = cardinality(transaction_ids), true)
        AND coalesce(cardinality(queues) = cardinality(headers), true)
        AND coalesce(cardinality(queues) = cardinality(trace_ids), true)
        AND coalesce(cardinality(queues) = cardinality(producers), true)
        AND coalesce(cardinality(queues) = cardinality(deliver_at), true)) IS NOT TRUE THEN
        PERFORM skep._refuse('SK001', 'the arrays of push_many differ in length',
                            'Give one queue, partition and payload for each message. The other arrays must have the '
                            'same length, or be NULL.');
    END IF;
END $$;

-- Raises an error if this transaction cannot see the heads of these partitions: under REPEATABLE READ others may have
-- moved them since its snapshot. An insert at the head detects that, unless the messages there have been deleted: then
-- the floor has moved, and locking it fails. A locked floor is not waited for, because floors are locked before
-- partitions.
CREATE FUNCTION skep._check_heads(partition_ids bigint[], next_offsets bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    locked bigint;
BEGIN
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = ANY (partition_ids) FOR KEY SHARE SKIP LOCKED;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked < cardinality(partition_ids) THEN
        RAISE serialization_failure;
    END IF;
    INSERT INTO skep.messages (partition_id, "offset", created_at)
    SELECT head.id, head.next_offset, clock_timestamp()
    FROM unnest(partition_ids, next_offsets) AS head (id, next_offset);
    DELETE FROM skep.messages m USING unnest(partition_ids, next_offsets) AS head (id, next_offset)
    WHERE m.partition_id = head.id AND m."offset" = head.next_offset;
EXCEPTION WHEN unique_violation OR serialization_failure THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the partition has messages that this transaction cannot see',
        HINT = 'Push under READ COMMITTED, INSERT INTO skep.outbox, or try the transaction again.';
END $$;

-- Raises an error if this transaction cannot see a delayed message with one of these transaction ids, which is possible
-- under REPEATABLE READ. An insert into the unique index detects that.
CREATE FUNCTION skep._check_delayed(
    slot_of integer[], queue_ids integer[], partition_ids bigint[], transaction_ids text[], fresh boolean[]
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    inserted uuid[];
BEGIN
    WITH tried AS (
        INSERT INTO skep.delayed_messages (queue_id, partition_id, due_at, payload, transaction_id)
        SELECT DISTINCT queue_ids[slot], partition_ids[slot], timestamptz '9998-01-01 00:00:00Z', jsonb 'null',
               transaction_id
        FROM unnest(slot_of, transaction_ids, fresh) AS item (slot, transaction_id, fresh)
        WHERE fresh AND char_length(transaction_id) BETWEEN 1 AND 255
        RETURNING id
    )
    SELECT array_agg(id) INTO inserted FROM tried;
    DELETE FROM skep.delayed_messages d WHERE d.id = ANY (inserted);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION USING ERRCODE = '40001',
        MESSAGE = 'the partition has delayed messages that this transaction cannot see',
        HINT = 'Push under READ COMMITTED, INSERT INTO skep.outbox, or try the transaction again.';
END $$;

-- Appends the messages of a push to one partition, if all of them are new. It does less than push_many() for many
-- partitions.
CREATE FUNCTION skep._append_to_partition(
    queue_id integer, partition_id bigint, next_offset bigint, created_at timestamptz, payload_limit integer,
    payloads jsonb[], transaction_ids text[], headers jsonb[], trace_ids uuid[], producers text[]
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
    VALUES (_append_to_partition.queue_id, ARRAY[_append_to_partition.partition_id], ARRAY[next_offset],
            ARRAY[next_offset + cardinality(payloads) - 1]);
    INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, transaction_id, trace_id, producer)
    SELECT _append_to_partition.partition_id, next_offset - 1 + ord, _append_to_partition.created_at, payload, headers,
           transaction_id, trace_id, producer
    FROM unnest(payloads, transaction_ids, _append_to_partition.headers, trace_ids, producers)
         WITH ORDINALITY AS item (payload, transaction_id, headers, trace_id, producer, ord)
    WHERE NOT skep._exceeds(payload, payload_limit)
          AND coalesce(octet_length(transaction_id) BETWEEN 1 AND 255, true)
          AND coalesce(jsonb_typeof(headers) = 'object', true)
          OR skep._check_item(ord, payload, payload_limit, transaction_id, headers);
END $$;

-- A message with a deliver_at in the future is stored in delayed_messages: it has no offset yet, but a delayed_id and a
-- due_at.
CREATE FUNCTION skep.push_many(
    queues text[], partitions text[], payloads jsonb[], transaction_ids text[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, trace_ids uuid[] DEFAULT NULL, producers text[] DEFAULT NULL,
    deliver_at timestamptz[] DEFAULT NULL
) RETURNS TABLE (ord bigint, status text, partition_id bigint, "offset" bigint, created_at timestamptz,
                 delayed_id uuid, due_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    slots record;
    fresh boolean[];
    stamp timestamptz;
BEGIN
    PERFORM skep._check_lengths(push_many.queues, push_many.partitions, push_many.payloads, push_many.transaction_ids,
                               push_many.headers, push_many.trace_ids, push_many.producers, push_many.deliver_at);
    IF cardinality(push_many.queues) = 0 THEN
        RETURN;
    ELSIF push_many.deliver_at IS NOT NULL THEN
        RETURN QUERY SELECT * FROM skep._push_delayed(push_many.queues, push_many.partitions, push_many.payloads,
                                                      push_many.transaction_ids, push_many.headers,
                                                      push_many.trace_ids, push_many.producers, push_many.deliver_at);
        RETURN;
    END IF;
    slots := skep._lock_partitions(push_many.queues, push_many.partitions);
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM skep._check_heads(slots.partition_ids, slots.next_offsets);
    END IF;
    IF num_nonnulls(VARIADIC push_many.transaction_ids) > 0 THEN
        fresh := skep._find_new(slots.slot_of, slots.partition_ids, slots.dedup_since, push_many.transaction_ids);
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            PERFORM skep._check_delayed(slots.slot_of, slots.queue_ids, slots.partition_ids, push_many.transaction_ids,
                                        fresh);
        END IF;
    END IF;
    stamp := clock_timestamp();  -- after the locks, so that a later push to the partition reads a later time
    IF cardinality(slots.partition_ids) = 1 AND coalesce(true = ALL (fresh), true) THEN
        stamp := greatest(slots.last_times[1], stamp);
        PERFORM skep._append_to_partition(
            slots.queue_ids[1], slots.partition_ids[1], slots.next_offsets[1], stamp, slots.payload_limits[1],
            push_many.payloads, push_many.transaction_ids, push_many.headers, push_many.trace_ids, push_many.producers);
        RETURN QUERY
        SELECT n, 'queued', slots.partition_ids[1], slots.next_offsets[1] - 1 + n, stamp, NULL::uuid, NULL::timestamptz
        FROM generate_series(1::bigint, cardinality(push_many.payloads)) AS n;
        RETURN;
    END IF;
    RETURN QUERY
    WITH placed AS MATERIALIZED (
        SELECT item.*, slots.next_offsets[slot] - 1 + row_number() OVER (PARTITION BY slot ORDER BY ord) AS "offset"
        FROM unnest(slots.slot_of, fresh, push_many.payloads, push_many.transaction_ids, push_many.headers,
                    push_many.trace_ids, push_many.producers)
             WITH ORDINALITY AS item (slot, fresh, payload, transaction_id, headers, trace_id, producer, ord)
        WHERE fresh IS NOT FALSE
          AND (NOT skep._exceeds(payload, slots.payload_limits[slot])
               AND coalesce(octet_length(transaction_id) BETWEEN 1 AND 255, true)
               AND coalesce(jsonb_typeof(headers) = 'object', true)
               OR skep._check_item(ord, payload, slots.payload_limits[slot], transaction_id, headers))
    ), journaled AS (
        INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
        SELECT slots.queue_ids[slot], array_agg(slots.partition_ids[slot]), array_agg(slots.next_offsets[slot]),
               array_agg(last)
        FROM (SELECT slot, max("offset") AS last FROM placed GROUP BY slot) grown GROUP BY 1
    ), stored AS (
        INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, transaction_id, trace_id,
                                   producer)
        SELECT slots.partition_ids[slot], "offset", greatest(slots.last_times[slot], stamp), payload, headers,
               transaction_id, trace_id, producer
        FROM placed
    )
    SELECT ord, 'queued', slots.partition_ids[slot], "offset", greatest(slots.last_times[slot], stamp), NULL::uuid,
           NULL::timestamptz FROM placed;

    IF false = ANY (fresh) THEN
        RETURN QUERY
        SELECT item.ord, 'duplicate', slots.partition_ids[slot], first."offset", first.created_at, first.delayed_id,
               first.due_at
        FROM unnest(slots.slot_of, fresh, push_many.transaction_ids)
        WITH ORDINALITY AS item (slot, fresh, transaction_id, ord)
        CROSS JOIN LATERAL skep._find_original(slots.partition_ids[slot], item.transaction_id) first
        WHERE NOT item.fresh;
    END IF;
END $$;
COMMENT ON FUNCTION skep.push_many IS
    'Appends messages, given as arrays, and returns a row for each. New messages come first and duplicates last: '
    'match them by ord.';
CALL skep._allow('skep_producer', 'push_many');

-- Returns true if a transaction id cannot be pushed as new: it is stored, is delayed, or has not 1 to 255 bytes.
CREATE FUNCTION skep._is_known(partition_id bigint, transaction_id text, dedup_window double precision) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM skep.messages m
                   WHERE m.partition_id = _is_known.partition_id AND m.transaction_id = _is_known.transaction_id
                      AND m.created_at >= coalesce(clock_timestamp() - skep._seconds(dedup_window), '-infinity'))
        OR EXISTS (SELECT FROM skep.delayed_messages d WHERE d.partition_id = _is_known.partition_id
                      AND d.transaction_id = _is_known.transaction_id)
        OR octet_length(transaction_id) NOT BETWEEN 1 AND 255;
END $$;

-- One message, which is the usual case, takes a shorter path than push_many(): the same checks, in four statements.
CREATE FUNCTION skep.push(
    queue text, payload jsonb, partition text DEFAULT 'Default', transaction_id text DEFAULT NULL,
    headers jsonb DEFAULT NULL, trace_id uuid DEFAULT NULL, producer text DEFAULT NULL,
    delay double precision DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, OUT status text, OUT id uuid,
    OUT partition_id bigint, OUT "offset" bigint, OUT created_at timestamptz, OUT due_at timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    target record;
BEGIN
    SELECT p.id, p.queue_id, q.max_payload_bytes, q.block_without_subscribers, q.dedup_window INTO target
    FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
    WHERE q.name = push.queue AND p.name = push.partition FOR NO KEY UPDATE OF p;
    IF NOT FOUND OR target.block_without_subscribers OR push.payload IS NULL
        OR skep._exceeds(push.payload, target.max_payload_bytes)
       OR jsonb_typeof(push.headers) <> 'object' OR num_nonnulls(push.delay, push.deliver_at) > 0
       OR current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
       OR push.transaction_id IS NOT NULL AND skep._is_known(target.id, push.transaction_id, target.dedup_window) THEN
        SELECT p.status, coalesce(p.delayed_id, skep.message_id(p.partition_id, p."offset")), p.partition_id,
               p."offset", p.created_at, p.due_at
        INTO push.status, push.id, push.partition_id, push."offset", push.created_at, push.due_at
        FROM skep.push_many(ARRAY[push.queue], ARRAY[push.partition], ARRAY[push.payload], ARRAY[push.transaction_id],
                            ARRAY[push.headers], ARRAY[push.trace_id], ARRAY[push.producer],
                            CASE WHEN num_nonnulls(push.delay, push.deliver_at) > 0
                                THEN ARRAY[skep._due_time(1, push.delay, push.deliver_at)] END) p;
        RETURN;
    END IF;
    -- Three short statements are cheaper than one with two inserts.
    SELECT head.next_offset, greatest(head.last_time, clock_timestamp()) INTO push."offset", push.created_at
    FROM skep._head_of(target.id) head;
    INSERT INTO skep.journal (queue_id, partition_ids, first_offsets, last_offsets)
    VALUES (target.queue_id, ARRAY[target.id], ARRAY[push."offset"], ARRAY[push."offset"]);
    INSERT INTO skep.messages (partition_id, "offset", created_at, payload, headers, transaction_id, trace_id, producer)
    VALUES (target.id, push."offset", push.created_at, push.payload, push.headers, push.transaction_id, push.trace_id,
            push.producer);
    partition_id := target.id;
    status := 'queued';
    id := skep.message_id(target.id, push."offset");
END $$;
COMMENT ON FUNCTION skep.push(text, jsonb, text, text, jsonb, uuid, text, double precision, timestamptz) IS
    'Appends one message and returns its id and offset. status is queued, duplicate if the partition has a message '
    'with this transaction_id, or delayed: then it is appended at due_at, and id is for cancel_delayed().';
CALL skep._allow('skep_producer', 'push');
