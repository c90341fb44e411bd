-- How a group learns which lanes have something for it, at a cost that depends on what changed and not on how many lanes there are.
--
-- A reader (group, queue) keeps the snapshot of its last look. Journal rows visible now but not then name the lanes that grew;
-- each change is looked at once, and no transaction, however long, holds the look back.
--
-- The rule that loses no wake-up: cursors.ready_at is set to NULL (drained) or put off because there is nothing to serve only here.
-- look() runs under the reader's lock, reads journal and heads in ONE statement, so in one snapshot, and saves that snapshot. A push
-- it did not see is news to the next look. Acks therefore leave a lane in line even when it may be empty; look() tidies the front.

CREATE FUNCTION skep.offset_at(partition_id bigint, instant timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    low  bigint;  -- first offset that may be at or after the instant
    high bigint;  -- everything from here is at or after it
    mid  bigint;
    mid_time timestamptz;
BEGIN
    SELECT CASE WHEN l.last_created_at < instant THEN l.last_offset + 1 ELSE l.first_offset END, l.last_offset + 1
    INTO low, high FROM skep.partition_lookup l WHERE l.partition_id = offset_at.partition_id;
    WHILE low < high LOOP
        mid := low + (high - low) / 2;
        SELECT m.created_at INTO mid_time FROM skep.messages m WHERE m.partition_id = offset_at.partition_id AND m."offset" = mid;
        IF mid_time >= instant THEN high := mid; ELSE low := mid + 1; END IF;  -- a retained-away row is older
    END LOOP;
    RETURN low;
END $$;

CREATE FUNCTION skep.subscription_of(group_name text, queue text, partition text, namespace text, task text) RETURNS skep.subscriptions
LANGUAGE sql STABLE AS $$
    SELECT s FROM skep.subscriptions s
    WHERE s.group_name = $1
      AND (s.queue = $2 AND (s.partition IS NULL OR s.partition = $3)
           OR s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = $4) AND (s.task IS NULL OR s.task = $5))
    ORDER BY s.partition IS NOT NULL DESC, s.queue IS NOT NULL DESC, s.namespace IS NOT NULL DESC, s.task IS NOT NULL DESC
    LIMIT 1
$$;

-- Where a group starts in lanes it has not met: the most specific subscription decides, never the clock of this moment.
CREATE FUNCTION skep.starts(reader integer, lanes bigint[]) RETURNS TABLE (partition_id bigint, start_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT lane, CASE s.mode WHEN 'offset' THEN greatest(s.start_offset, l.first_offset)
                             WHEN 'timestamp' THEN skep.offset_at(lane, s.start_at)
                             WHEN 'new' THEN skep.offset_at(lane, s.start_at)
                             ELSE l.first_offset END
    FROM unnest($2) AS lane
    JOIN skep.readers r ON r.id = $1
    JOIN skep.queues q ON q.id = r.queue_id
    JOIN skep.partitions p ON p.id = lane
    JOIN skep.partition_lookup l ON l.partition_id = lane
    LEFT JOIN LATERAL skep.subscription_of(r.group_name, q.name, p.name, q.namespace, q.task) s ON true
$$;

-- The readers whose lock this transaction got. Try only: a pop never waits for another pop's look.
CREATE FUNCTION skep.lock_readers(readers integer[]) RETURNS integer[]
LANGUAGE sql AS $$
    SELECT coalesce(array_agg(id), '{}') FROM unnest($1) AS id WHERE pg_try_advisory_xact_lock(x'736b6570'::integer, id)
$$;

CREATE FUNCTION skep.look(locked_readers integer[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    WITH reader AS MATERIALIZED (
        SELECT r.id, r.queue_id, r.snapshot, q.concurrency, q.delayed_processing, q.window_buffer,
               r.snapshot IS NULL OR r.server_started IS DISTINCT FROM pg_postmaster_start_time()
                   OR pg_snapshot_xmin(r.snapshot) < (SELECT xid FROM skep.journal_floor) AS lost
        FROM unnest(locked_readers) AS id
        JOIN skep.readers r ON r.id = id.id
        JOIN skep.queues q ON q.id = r.queue_id
    ), news AS MATERIALIZED (
        SELECT reader.id AS reader_id, lane
        FROM reader
        CROSS JOIN LATERAL (
            SELECT j.partition_ids FROM skep.journal j
            WHERE j.queue_id = reader.queue_id AND j.xid >= pg_snapshot_xmax(reader.snapshot)
            UNION ALL
            SELECT j.partition_ids FROM pg_snapshot_xip(reader.snapshot) AS running
            CROSS JOIN LATERAL (SELECT * FROM skep.journal j WHERE j.queue_id = reader.queue_id AND j.xid = running OFFSET 0) j
        ) j
        CROSS JOIN unnest(j.partition_ids) AS lane
        WHERE NOT reader.lost
        UNION
        SELECT reader.id, p.id FROM reader JOIN skep.partitions p ON p.queue_id = reader.queue_id WHERE reader.lost
    ), grown AS MATERIALIZED (
        SELECT reader.*, l.partition_id, l.last_offset, l.last_created_at, c.reader_id IS NOT NULL AS met, c.next_offset,
               c.last_consumed_at
        FROM news
        JOIN reader ON reader.id = news.reader_id
        JOIN skep.partition_lookup l ON l.partition_id = news.lane
        LEFT JOIN LATERAL (
            SELECT * FROM skep.cursors c WHERE c.partition_id = news.lane AND c.reader_id = news.reader_id LIMIT 1
        ) c ON true
        WHERE c.reader_id IS NULL
           OR l.last_offset >= c.next_offset AND (c.ready_at IS NULL
                OR c.ready_at > stamp AND c.leased > 0 AND c.leased < reader.concurrency)
    ), woken AS (
        UPDATE skep.cursors c
        SET ready_at = skep.turn(c.partition_id, c.next_offset, c.last_consumed_at, grown.last_created_at,
                                 grown.delayed_processing, grown.window_buffer)
        FROM grown
        WHERE grown.met AND c.partition_id = grown.partition_id AND c.reader_id = grown.id
          AND (c.ready_at IS NULL OR c.ready_at > stamp AND c.leased > 0 AND c.leased < grown.concurrency)
        RETURNING true
    ), met AS (
        INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
        SELECT s.partition_id, grown.id, s.start_offset, s.start_offset, s.start_offset,
               skep.turn(s.partition_id, s.start_offset, NULL, grown.last_created_at, grown.delayed_processing, grown.window_buffer)
        FROM (SELECT id, array_agg(partition_id) AS lanes FROM grown WHERE NOT met GROUP BY id) unmet
        CROSS JOIN LATERAL skep.starts(unmet.id, unmet.lanes) s
        JOIN grown ON grown.id = unmet.id AND grown.partition_id = s.partition_id
        WHERE s.start_offset <= grown.last_offset
        ON CONFLICT DO NOTHING
        RETURNING true
    ), idle AS (
        SELECT c.partition_id, c.reader_id, c.leased, c.next_offset, l.last_offset, l.last_created_at,
               reader.delayed_processing, reader.window_buffer
        FROM reader
        CROSS JOIN LATERAL (
            SELECT c.partition_id FROM skep.cursors c WHERE c.reader_id = reader.id AND c.ready_at <= stamp
            ORDER BY c.ready_at, c.partition_id LIMIT 64
        ) front
        JOIN skep.cursors c ON c.partition_id = front.partition_id AND c.reader_id = reader.id
        JOIN skep.partition_lookup l ON l.partition_id = front.partition_id
        WHERE c.returned = 0 AND c.ready_at <= stamp
          AND (c.next_offset > l.last_offset
               OR c.leased = 0 AND (reader.delayed_processing > 0 OR reader.window_buffer > 0)
                  AND skep.turn(c.partition_id, c.next_offset, NULL, l.last_created_at,
                                reader.delayed_processing, reader.window_buffer) > stamp)
        FOR NO KEY UPDATE OF c SKIP LOCKED
    ), tidied AS (
        UPDATE skep.cursors c
        SET ready_at = CASE WHEN idle.next_offset <= idle.last_offset THEN
                                 skep.turn(c.partition_id, c.next_offset, NULL, idle.last_created_at,
                                           idle.delayed_processing, idle.window_buffer)
                            WHEN idle.leased > 0 THEN
                                 (SELECT min(s.expires_at) FROM skep.leases s
                                  WHERE s.partition_id = idle.partition_id AND s.reader_id = idle.reader_id) END
        FROM idle
        WHERE c.partition_id = idle.partition_id AND c.reader_id = idle.reader_id
          AND c.returned = 0 AND c.leased = idle.leased AND c.next_offset = idle.next_offset
        RETURNING true
    )
    UPDATE skep.readers r
    SET snapshot = pg_current_snapshot(), server_started = pg_postmaster_start_time()
    FROM reader
    WHERE r.id = reader.id
      AND (reader.lost OR EXISTS (SELECT FROM woken) OR EXISTS (SELECT FROM met) OR EXISTS (SELECT FROM tidied)
           OR (SELECT count(*) FROM news) > 16);  -- otherwise cheaper to look again than to write
END $$;

-- When a lane's next message may be served: its place in line, put off by delay and quiet period.
CREATE FUNCTION skep.turn(partition_id bigint, next_offset bigint, last_consumed_at timestamptz, last_created_at timestamptz,
                          delayed_processing double precision, window_buffer double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT greatest(coalesce($3, '-infinity'),
        CASE WHEN $6 > 0 THEN $4 + skep.seconds($6) END,
        CASE WHEN $5 > 0 THEN (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = $1 AND m."offset" = $2) + skep.seconds($5) END)
$$;
