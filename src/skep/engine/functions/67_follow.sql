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

    INSERT INTO skep.cursors AS c (partition_id, reader_id, start_offset, cursor, next_offset, ready_at, last_consumed_at, touched_at)
    SELECT p.id, r.id, lane.start_offset, lane.at, lane.at, '-infinity', clock_timestamp(), clock_timestamp()
    FROM unnest(follow.lanes, follow.start_offsets, follow.offsets) AS lane (id, start_offset, at)
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.readers r WHERE r.id = ANY (readers) AND r.queue_id = p.queue_id LIMIT 1) r
    ORDER BY p.id
    ON CONFLICT (partition_id, reader_id) DO UPDATE
    SET start_offset = least(c.start_offset, excluded.start_offset), cursor = excluded.cursor, next_offset = excluded.next_offset,
        leased = 0, returned = 0, ready_at = '-infinity', last_consumed_at = excluded.last_consumed_at, touched_at = excluded.touched_at;
    RETURN (SELECT max(s.id) FROM skep.subscriptions s WHERE s.group_name = follow.group_name);
END $$;
