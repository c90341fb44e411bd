-- Partitions for a push: create them if they are missing, lock them until commit, and find their next offsets.

-- Creates the queues and partitions that do not exist yet. Takes key-share locks on the queues, which wait for a
-- running delete_queue().
CREATE FUNCTION skep._create_partitions(queues text[], partitions text[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM skep._check_name(format('item %s: queue', n - 1), queue),
            skep._check_name(format('item %s: partition', n - 1), partition)
    FROM unnest(_create_partitions.queues, _create_partitions.partitions)
         WITH ORDINALITY AS requested (queue, partition, n)
    WHERE (char_length(queue) BETWEEN 1 AND 255 AND char_length(partition) BETWEEN 1 AND 255) IS NOT TRUE;

    INSERT INTO skep.queues (name, namespace, task)
    SELECT DISTINCT queue COLLATE "C", split_part(queue, '.', 1), split_part(queue, '.', 2)
    FROM unnest(_create_partitions.queues) AS queue
    WHERE NOT EXISTS (SELECT FROM skep.queues WHERE name = queue)
    ORDER BY 1
    ON CONFLICT DO NOTHING;

    PERFORM FROM skep.queues WHERE name = ANY (_create_partitions.queues) ORDER BY name FOR KEY SHARE;

    WITH created AS (
        INSERT INTO skep.partitions (queue_id, name)
        SELECT missing.queue_id, missing.name FROM (
            SELECT DISTINCT q.name AS queue, q.id AS queue_id, partition COLLATE "C" AS name
            FROM unnest(_create_partitions.queues, _create_partitions.partitions) AS requested (queue, partition)
            JOIN skep.queues q ON q.name = queue
            LEFT JOIN LATERAL (SELECT p.id FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = partition
                               LIMIT 1) known ON true
            WHERE known.id IS NULL) missing
        ORDER BY missing.queue, missing.name
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    INSERT INTO skep.partition_floors (partition_id) SELECT id FROM created;
END $$;

-- Returns true if a pub_sub queue has no active subscription. Other queues keep messages for future groups.
CREATE FUNCTION skep._has_no_subscriber(q skep.queues) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT $1.semantics = 'pub_sub' AND NOT EXISTS (
        SELECT FROM skep.subscriptions s WHERE s.queue = $1.name AND s.status = 'ACTIVE') AND NOT EXISTS (
        SELECT FROM skep.subscriptions s WHERE s.queue IS NULL AND s.status = 'ACTIVE'
           AND (s.namespace IS NULL OR s.namespace = $1.namespace) AND (s.task IS NULL OR s.task = $1.task)
           AND NOT EXISTS (SELECT FROM skep.subscriptions own
                           WHERE own.queue = $1.name AND own.group_name = s.group_name
                                                                AND own.partition IS NULL))
$$;

CREATE FUNCTION skep._refuse_blocked(queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._refuse('SK006', format('queue "%s" takes no messages: it has no subscribed group', queue),
                        'Subscribe a group, or set block_without_subscribers to false.');
END $$;

-- Locks the partitions of a push until commit, then reads their heads in a separate statement, which sees the commits
-- that the locks waited for. Returns arrays over the partitions, and slot_of from each item to its partition. (A join
-- would be planned for ten items and be quadratic for 100,000.) next_offsets: the offset of the next message;
-- last_times: the earliest time of the next message.
CREATE FUNCTION skep._lock_partitions(
    queues text[], partitions text[],
    OUT queue_ids integer[], OUT partition_ids bigint[], OUT next_offsets bigint[], OUT last_times timestamptz[],
    OUT payload_limits integer[], OUT dedup_since timestamptz[], OUT slot_of integer[]
) LANGUAGE plpgsql AS $$
DECLARE
    locked  bigint;
    blocked text;
BEGIN
    IF queues[1] = ALL (queues) AND partitions[1] = ALL (partitions) THEN  -- the usual case takes a shorter path
        SELECT ARRAY[p.queue_id], ARRAY[p.id], ARRAY[q.max_payload_bytes],
               ARRAY[coalesce(clock_timestamp() - skep._seconds(q.dedup_window), '-infinity')]
        INTO queue_ids, partition_ids, payload_limits, dedup_since
        FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
        WHERE q.name = queues[1] AND p.name = partitions[1] AND NOT q.block_without_subscribers
        FOR NO KEY UPDATE OF p;
        IF FOUND THEN
            SELECT ARRAY[head.next_offset], ARRAY[head.last_time] INTO next_offsets, last_times
            FROM skep._head_of(partition_ids[1]) head;
            slot_of := array_fill(1, ARRAY[cardinality(queues)]);
            RETURN;
        END IF;
    END IF;
    FOR try IN 1 .. 4 LOOP
        SELECT array_agg(queue_id), array_agg(partition_id), array_agg(max_payload_bytes), array_agg(since), sum(items),
               min(queue) FILTER (WHERE is_blocked)
        INTO queue_ids, partition_ids, payload_limits, dedup_since, locked, blocked
        FROM (
            SELECT named.*, p.id AS partition_id
            FROM (
                SELECT q.name AS queue, p.id, p.queue_id, q.max_payload_bytes, named.items,
                       sum(named.items) OVER () AS known,
                       CASE WHEN q.block_without_subscribers THEN skep._has_no_subscriber(q)
                           ELSE false END AS is_blocked,
                       coalesce(clock_timestamp() - skep._seconds(q.dedup_window), '-infinity') AS since
                FROM (SELECT queue COLLATE "C" AS queue, partition COLLATE "C" AS partition, count(*) AS items
                      FROM unnest(_lock_partitions.queues, _lock_partitions.partitions) AS item (queue, partition)
                      GROUP BY 1, 2) named
                CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = named.queue LIMIT 1) q
                CROSS JOIN LATERAL (SELECT * FROM skep.partitions p
                                    WHERE p.queue_id = q.id AND p.name = named.partition LIMIT 1) p
                ORDER BY named.queue, named.partition
            ) named
            -- No lock before every partition exists: creating one while holding others could deadlock with its creator.
            CROSS JOIN LATERAL (SELECT p.id FROM skep.partitions p
                                WHERE p.id = named.id AND named.known = cardinality(_lock_partitions.queues)
                                FOR NO KEY UPDATE) p
        ) named;
        EXIT WHEN locked = cardinality(queues);
        IF try = 4 OR locked > 0 THEN  -- one was deleted while the others were locked: creating it now could deadlock
            RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'queue or partition deleted during push',
            HINT = 'Push again.';
        END IF;
        PERFORM skep._create_partitions(queues, partitions);
    END LOOP;
    IF blocked IS NOT NULL THEN
        PERFORM skep._refuse_blocked(blocked);
    END IF;

    SELECT array_agg(head.next_offset ORDER BY n), array_agg(head.last_time ORDER BY n) INTO next_offsets, last_times
    FROM unnest(_lock_partitions.partition_ids) WITH ORDINALITY AS named (id, n)
    CROSS JOIN LATERAL skep._head_of(named.id) head;

    IF cardinality(partition_ids) = 1 THEN
        slot_of := array_fill(1, ARRAY[cardinality(queues)]);
    ELSE
        slot_of := array_agg(slot ORDER BY ord) FROM (
            SELECT ord, dense_rank() OVER (ORDER BY queue COLLATE "C", partition COLLATE "C") AS slot
            FROM unnest(_lock_partitions.queues, _lock_partitions.partitions)
            WITH ORDINALITY AS item (queue, partition, ord)) ranked;
    END IF;
END $$;

-- Returns the offset of the next message of a partition, and the time of its last one. The scan stops at the floor,
-- because there may be index entries of deleted messages below it. An empty partition continues at its floor, so no
-- offset is assigned twice.
CREATE FUNCTION skep._head_of(partition_id bigint) RETURNS TABLE (next_offset bigint, last_time timestamptz)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT greatest(m."offset" + 1, f.first_offset), greatest(m.created_at, f.deleted_created_at)
    FROM skep.partition_floors f
    LEFT JOIN LATERAL (SELECT m."offset", m.created_at FROM skep.messages m
                       WHERE m.partition_id = f.partition_id AND m."offset" >= f.first_offset ORDER BY m."offset" DESC
                       LIMIT 1) m ON true
    WHERE f.partition_id = $1
$$;
CALL skep._allow('skep_admin', '_head_of', definer => false);
