-- Requests of a pop: their checks, their slots, and the lease id of each slot.

CREATE FUNCTION skep._check_pop(queue text, group_name text, partition text, namespace text, task text, batch integer,
                               partitions integer, lease_time double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF queue IS NULL THEN
        IF namespace IS NULL AND task IS NULL OR partition IS NOT NULL THEN
            PERFORM skep._refuse('SK001', 'queue is missing',
                                 'Give a queue, with or without a partition, or a namespace and/or a task.');
        END IF;
    ELSE
        PERFORM skep._check_name('queue', queue);
        IF namespace IS NOT NULL OR task IS NOT NULL THEN
            PERFORM skep._refuse('SK001', 'queue cannot be combined with namespace or task');
        END IF;
    END IF;
    PERFORM skep._check_name('group', group_name);
    PERFORM skep._check_name(label, name)
    FROM (VALUES ('partition', partition), ('namespace', namespace), ('task', task)) v (label, name)
    WHERE name IS NOT NULL AND (label = 'partition' OR name <> '');
    IF batch IS NULL OR batch NOT BETWEEN 1 AND 100000 THEN
        PERFORM skep._refuse('SK001', format('batch must be between 1 and 100000, got %s',
                                             coalesce(batch::text, 'NULL')), '');
    ELSIF partitions IS NULL OR partitions NOT BETWEEN 1 AND 10000 THEN
        PERFORM skep._refuse('SK001', format('partitions must be between 1 and 10000, got %s',
                                             coalesce(partitions::text, 'NULL')), '');
    ELSIF lease_time NOT BETWEEN 0.001 AND 604800 THEN
        PERFORM skep._refuse('SK001', format('lease_time must be between 0.001 and 604800 seconds, got %s',
                                             lease_time), '');
    END IF;
END $$;

-- Returns a new lease id. It contains the key of its run, so that an ack needs no other index: 35 bits of partition, 21
-- of group_queue, 32 of first_offset. The other 40 bits are random, so that it cannot be guessed and an old id of the
-- same run is refused.
CREATE FUNCTION skep._lease_id(partition_id bigint, group_queue_id integer, first_offset bigint) RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex($1 << 21 | $2), 14, '0') || lpad(to_hex($3 & 4294967295), 8, '0')
            || right(gen_random_uuid()::text, 10))::uuid
$$;

-- Return the partition and the group_queue that a lease id contains (see _lease_id).
CREATE FUNCTION skep._partition_of_lease(lease uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT ('x00' || left(replace($1::text, '-', ''), 14))::bit(64)::bigint >> 21 $$;

CREATE FUNCTION skep._group_queue_of_lease(lease uuid) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT (('x00'
                                      || left(replace($1::text, '-', ''), 14))::bit(64)::bigint & 2097151)::integer $$;

-- Returns the slots of requests: first the first partition of every request, then the second, up to the number of each
-- request.
CREATE FUNCTION skep._slots(batches integer[], partitions integer[], OUT requests integer[], OUT sizes integer[])
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF cardinality(batches) = 1 THEN
        requests := array_fill(1, ARRAY[partitions[1]]);
        sizes := array_fill(batches[1], ARRAY[partitions[1]]);
        RETURN;
    END IF;
    SELECT array_agg(n), array_agg(batch) INTO requests, sizes
    FROM (SELECT request.n::integer AS n, batch FROM unnest(batches, partitions)
          WITH ORDINALITY AS request (batch, most, n)
          CROSS JOIN LATERAL generate_series(1, most) AS turn ORDER BY turn, request.n LIMIT 10000) slot;
END $$;

-- Returns the slots that are left after these leases, with the rest of their batch and without those whose batch is
-- full.
CREATE FUNCTION skep._slots_left(INOUT requests integer[], INOUT sizes integer[], leases skep.lease[])
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(slot.request ORDER BY slot.n), '{}'),
           coalesce(array_agg((slot.size - coalesce(used.messages, 0))::integer ORDER BY slot.n), '{}')
    FROM (SELECT slot.*, row_number() OVER (PARTITION BY slot.request ORDER BY slot.n) AS turn
          FROM unnest($1, $2) WITH ORDINALITY AS slot (request, size, n)) slot
    LEFT JOIN (SELECT l.request, count(*) AS partitions, sum(l.leased_to - l.first_offset - skep._done_count(
                   l.done * int8multirange(int8range(l.first_offset, l.leased_to)))) AS messages FROM unnest($3) l
                       GROUP BY l.request) used
           ON used.request = slot.request
    WHERE slot.turn > coalesce(used.partitions, 0) AND slot.size > coalesce(used.messages, 0)
$$;

-- Returns the number of done offsets, which take no room in a batch. It is inlined; most runs have none.
CREATE FUNCTION skep._done_count(done int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN $1 IS NULL THEN 0 ELSE skep._count_offsets($1) END $$;

-- Returns the offset after the first n of [first_offset, end_offset) that are not done, or first_offset if n <= 0.
CREATE FUNCTION skep._cut(first_offset bigint, end_offset bigint, done int8multirange, n bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN n <= 0 THEN _cut.first_offset
        WHEN _cut.done IS NULL THEN least(_cut.end_offset, _cut.first_offset + n)
                ELSE coalesce(skep._cut_after(int8multirange(int8range(_cut.first_offset, _cut.end_offset))
                                              - _cut.done, n), _cut.end_offset) END
$$;
