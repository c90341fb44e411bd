-- A group that follows a reader outside: its cursors are put where that reader is, for lag and retention to see. The reader is the truth:
-- cursors go back as well as forward, and leases are dropped, as by a seek.
-- Answers the group's newest subscription: it is another one after a seek, and then every lane must be put right.
CREATE FUNCTION skep.follow(group_name text, lanes bigint[], start_offsets bigint[], offsets bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    readers integer[];
BEGIN
    SELECT array_agg(skep.hold_reader(follow.group_name, queue.name)) INTO readers
    FROM (SELECT DISTINCT q.id, q.name FROM unnest(follow.lanes) AS lane (id)
          CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane.id LIMIT 1) p
          CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
          ORDER BY q.id) queue;
    PERFORM FROM skep.cursors c WHERE c.partition_id = ANY (follow.lanes) AND c.reader_id = ANY (readers)
    ORDER BY c.partition_id, c.reader_id FOR NO KEY UPDATE;
    DELETE FROM skep.leases s WHERE s.partition_id = ANY (follow.lanes) AND s.reader_id = ANY (readers);

    WITH place AS MATERIALIZED (
        SELECT p.id, r.id AS reader_id, lane.start_offset, lane.at
        FROM unnest(follow.lanes, follow.start_offsets, follow.offsets) AS lane (id, start_offset, at)
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.readers r WHERE r.id = ANY (readers) AND r.queue_id = p.queue_id LIMIT 1) r
    ), met AS (
        UPDATE skep.cursors c
        SET start_offset = least(c.start_offset, place.start_offset), cursor = place.at, next_offset = place.at, leased = 0, returned = 0,
            ready_at = '-infinity', last_consumed_at = clock_timestamp(), touched_at = clock_timestamp()
        FROM place WHERE c.partition_id = ANY (ARRAY[place.id]) AND c.reader_id = ANY (ARRAY[place.reader_id])
        RETURNING c.partition_id
    )
    INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at, last_consumed_at, touched_at)
    SELECT place.id, place.reader_id, place.start_offset, place.at, place.at, '-infinity', clock_timestamp(), clock_timestamp()
    FROM place WHERE NOT EXISTS (SELECT FROM met WHERE met.partition_id = place.id) ORDER BY place.id;
    PERFORM skep.start_line_anew(readers);
    RETURN (SELECT max(s.id) FROM skep.subscriptions s WHERE s.group_name = follow.group_name);
END $$;
