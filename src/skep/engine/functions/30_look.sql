-- How a group learns which lanes have something for it, at a cost that depends on what changed and not on how many lanes there are.
--
-- A reader (group, queue) keeps the snapshot of its last look. Journal rows visible now but not then name the lanes that grew;
-- each change is looked at once, and no transaction, however long, holds the look back.
--
-- The rule that loses no wake-up: cursors.ready_at is set to NULL (drained) or put off because there is nothing to serve only here.
-- look() runs under the reader's lock and saves the snapshot of its first statement; heads are read in later ones. So a push that the
-- decision "drained" did not see is not in the saved snapshot either: it is news to the next look. Acks therefore leave a lane in line
-- even when it looks drained, and look() tidies the front of the line.
--
-- The line is read from looks.line_start on: before it there are only dead entries, and they stay for as long as somebody holds a transaction
-- open. A lane gets its place from place_of(), 0.1 s ago at most, and line_start stays 0.25 s behind: only an answer whose commit comes later
-- than that can put a lane before it. Those are looked for when there is nothing else to serve, and otherwise every second, if they are
-- late by 10 seconds at most, or every half minute.
--
-- Several small statements, because starting one large one costs more than running it: the usual look finds nothing to do.

CREATE FUNCTION skep.offset_at(partition_id bigint, instant timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    low  bigint;  -- first offset that may be at or after the instant
    high bigint;  -- everything from here is at or after it
    mid  bigint;
    mid_time timestamptz;
BEGIN
    SELECT CASE WHEN l.last_created_at < instant THEN l.last_offset + 1 ELSE l.first_offset END, l.last_offset + 1
    INTO low, high FROM skep.partition_lookup l WHERE l.partition_id = offset_at.partition_id ORDER BY l.generation DESC LIMIT 1;
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

-- Where a group starts in lanes it has not met: the most specific subscription decides, never the clock of this moment. A lane for
-- another group alone is no lane for it, and in its own, of dead letters, an offset of the queue's lanes means nothing. What holds for the
-- whole queue is looked up once, however many lanes are asked for.
CREATE FUNCTION skep.starts(group_name text, queue_id integer, lanes bigint[]) RETURNS TABLE (partition_id bigint, start_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT lane, CASE WHEN s.mode = 'offset' AND p.only_group IS NULL THEN greatest(s.start_offset, l.first_offset)
                      WHEN s.mode IN ('timestamp', 'new') THEN skep.offset_at(lane, s.start_at)
                      ELSE l.first_offset END
    FROM skep.queues q
    LEFT JOIN LATERAL skep.subscription_of($1, q.name, NULL, q.namespace, q.task) wide ON true
    CROSS JOIN unnest($3) AS lane
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = lane ORDER BY l.generation DESC LIMIT 1) l
    LEFT JOIN LATERAL (SELECT * FROM skep.subscriptions own WHERE own.group_name = $1 AND coalesce(own.queue, '') = q.name
                          AND coalesce(own.partition, '') = p.name LIMIT 1) own ON true
    CROSS JOIN LATERAL (SELECT own.mode, own.start_at, own.start_offset WHERE own.id IS NOT NULL
                        UNION ALL SELECT wide.mode, wide.start_at, wide.start_offset WHERE own.id IS NULL) s
    WHERE q.id = $2 AND (p.only_group IS NULL OR p.only_group = $1)
$$;

-- What this statement sees, as others will need it: our own transaction is not over, though its snapshot does not list it.
CREATE FUNCTION skep.current_view() RETURNS pg_snapshot
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN own < pg_snapshot_xmax(view) THEN
                format('%s:%s:%s', CASE WHEN own < pg_snapshot_xmin(view) THEN own ELSE pg_snapshot_xmin(view) END, pg_snapshot_xmax(view),
                       (SELECT string_agg(running::text, ',' ORDER BY running)
                        FROM (SELECT pg_snapshot_xip(view) AS running UNION SELECT own) r))::pg_snapshot
                ELSE view END
    FROM pg_current_snapshot() AS view, pg_current_xact_id_if_assigned() AS own
$$;

-- The readers whose lock this transaction got. Try only: a pop never waits for another pop's look.
CREATE FUNCTION skep.lock_readers(readers integer[]) RETURNS integer[]
LANGUAGE sql AS $$
    SELECT coalesce(array_agg(id), '{}') FROM unnest($1) AS id WHERE pg_try_advisory_xact_lock(x'736b6570'::integer, id)
$$;

-- Where a lane belongs in line that was last served then: behind those that were served before it, if that was not too long ago.
CREATE FUNCTION skep.place_of(last_consumed_at timestamptz, stamp timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT least($2, greatest($1, $2 - interval '100 milliseconds')) $$;

-- Whether lanes or leases that are over lie before the start of the line, not longer than this (NULL: ever); if so, the line is read from its beginning again.
CREATE FUNCTION skep.find_hidden(locked_readers integer[], before interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    hiding integer[];
BEGIN
    SELECT array_agg(reader) INTO hiding
    FROM unnest(locked_readers) AS reader
    CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = reader ORDER BY k.generation DESC LIMIT 1) look
    WHERE EXISTS (SELECT FROM (SELECT FROM skep.cursors c WHERE c.reader_id = reader AND c.ready_at < look.line_start
                                                             AND c.ready_at >= coalesce(look.line_start - before, '-infinity') LIMIT 1) c)
       OR EXISTS (SELECT FROM (SELECT FROM skep.leases s WHERE s.reader_id = reader AND s.expires_at < look.line_start
                                                           AND s.expires_at >= coalesce(look.line_start - before, '-infinity') LIMIT 1) s);
    IF hiding IS NOT NULL THEN
        PERFORM skep.start_line_anew(hiding);
    END IF;
    RETURN hiding IS NOT NULL;
END $$;

CREATE FUNCTION skep.start_line_anew(readers integer[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE skep.looks k SET line_start = '-infinity', number = k.number + 1
    FROM (SELECT look.* FROM unnest($1) AS reader
          CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = reader ORDER BY k.generation DESC LIMIT 1) look) old
    WHERE k.reader_id = ANY (ARRAY[old.reader_id]) AND k.generation >= old.generation
$$;

-- front: how many lanes at the front of the line to tidy; a pop drains fewer than that, so the front stays clean.
CREATE FUNCTION skep.look(locked_readers integer[], front integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    seen  pg_snapshot;
    news  bigint;
    due   boolean;
    back  boolean;
    postpones boolean;
    readers   integer[];
    lanes     bigint[];
    unsaved   boolean;
    unswept   boolean;
    unswept_all boolean;
    line      record;
    changed   boolean := false;
    complete  boolean := true;
BEGIN
    SELECT skep.current_view(), bool_or(found.lost OR found.looked_at < stamp - interval '1 minute'), count(found.lane),
           bool_or(found.looked_at > stamp), bool_or(found.looked_at < stamp - interval '1 second'),
           bool_or(found.swept_at < stamp - interval '1 second'), bool_or(found.swept_all_at < stamp - interval '30 seconds'),
           bool_or(found.postpones),
           array_agg(found.reader_id) FILTER (WHERE found.lane IS NOT NULL AND found.asleep),
           array_agg(found.lane) FILTER (WHERE found.lane IS NOT NULL AND found.asleep)
    INTO seen, due, news, back, unsaved, unswept, unswept_all, postpones, readers, lanes
    FROM (
        SELECT reader.id AS reader_id, reader.lost, reader.looked_at, reader.swept_at, reader.swept_all_at, reader.postpones, grown.lane,
               c.reader_id IS NULL OR c.next_offset <= l.last_offset AND (c.ready_at IS NULL
                   OR c.ready_at > stamp AND CASE WHEN reader.lost THEN c.leased + c.returned = 0
                                                  ELSE reader.concurrency > 1 AND c.leased < reader.concurrency END) AS asleep
        FROM (
            SELECT r.id, r.queue_id, k.snapshot, k.looked_at, k.swept_at, k.swept_all_at, q.concurrency,
                   q.delayed_processing > 0 OR q.window_buffer > 0 AS postpones,
                   k.snapshot IS NULL OR pg_snapshot_xmin(k.snapshot) < f.xid OR k.looked_at > stamp
                       OR k.server_started IS DISTINCT FROM pg_postmaster_start_time() AS lost
            FROM unnest(locked_readers) AS locked (id)
            JOIN skep.readers r ON r.id = locked.id
            JOIN skep.queues q ON q.id = r.queue_id
            CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = r.id ORDER BY k.generation DESC LIMIT 1) k
            CROSS JOIN skep.journal_floor f
        ) reader
        LEFT JOIN LATERAL (
            SELECT unnest(j.partition_ids) AS lane FROM skep.journal j
            WHERE NOT reader.lost AND j.queue_id = reader.queue_id AND j.xid >= pg_snapshot_xmax(reader.snapshot)
            UNION ALL
            SELECT unnest(j.partition_ids) FROM pg_snapshot_xip(reader.snapshot) AS running
            CROSS JOIN LATERAL (SELECT * FROM skep.journal j WHERE j.queue_id = reader.queue_id AND j.xid = running OFFSET 0) j
            WHERE NOT reader.lost
            UNION ALL
            SELECT p.id FROM skep.partitions p WHERE reader.lost AND p.queue_id = reader.queue_id
        ) grown ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = grown.lane ORDER BY l.generation DESC LIMIT 1) l ON true
        LEFT JOIN LATERAL (
            SELECT * FROM skep.cursors c WHERE c.partition_id = grown.lane AND c.reader_id = reader.id ORDER BY c.next_offset DESC LIMIT 1
        ) c ON true
    ) found;
    IF back THEN
        PERFORM skep.start_line_anew(locked_readers);
    END IF;
    IF lanes IS NOT NULL THEN
        complete := skep.wake(readers, lanes, stamp);
        changed := true;
        IF postpones THEN
            PERFORM skep.postpone(readers, lanes);
        END IF;
    END IF;
    IF back THEN
        complete := skep.turn_back(locked_readers, stamp) AND complete;
    END IF;

    line := skep.tidy(locked_readers, front, postpones, stamp);
    -- Otherwise it is cheaper to look again than to write.
    IF complete AND (changed OR line.changed OR due OR news > 16 OR unsaved AND line.busy) THEN
        IF unswept THEN
            PERFORM skep.find_hidden(locked_readers, CASE WHEN NOT unswept_all THEN interval '10 seconds' END);
        END IF;
        PERFORM skep.save_look(locked_readers, seen, stamp, unswept, unswept AND unswept_all);
    END IF;
END $$;

CREATE FUNCTION skep.save_look(locked_readers integer[], seen pg_snapshot, stamp timestamptz, swept boolean, swept_all boolean) RETURNS void
LANGUAGE sql AS $$
    UPDATE skep.looks k
    SET snapshot = $2, looked_at = $3, server_started = pg_postmaster_start_time(), number = k.number + 1, line_start = old.first_place,
        swept_at = CASE WHEN $4 THEN $3 ELSE k.swept_at END, swept_all_at = CASE WHEN $5 THEN $3 ELSE k.swept_all_at END
    FROM (
        SELECT look.reader_id, look.generation, least(line.ready_at, $3 - interval '250 milliseconds') AS first_place
        FROM unnest($1) AS reader
        CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = reader ORDER BY k.generation DESC LIMIT 1) look
        LEFT JOIN LATERAL (SELECT c.ready_at FROM skep.cursors c WHERE c.reader_id = reader AND c.ready_at >= look.line_start
                           ORDER BY c.ready_at LIMIT 1) line ON true
    ) old
    WHERE k.reader_id = ANY (ARRAY[old.reader_id]) AND k.generation >= old.generation
$$;

-- The clock was set back since the last look: lanes would wait for the end of leases and for retries until it is there again. By how much
-- is known from the last service of each: it lies in the future. False if someone has one of the lanes in hand: then it is tried again.
CREATE FUNCTION skep.turn_back(locked_readers integer[], stamp timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint;
    moved bigint;
BEGIN
    WITH waiting AS MATERIALIZED (
        SELECT c.partition_id, c.reader_id, mine.by
        FROM unnest(locked_readers) AS locked (id)
        JOIN skep.readers r ON r.id = locked.id
        JOIN skep.partitions p ON p.queue_id = r.queue_id
        CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = r.id ORDER BY c.next_offset DESC LIMIT 1) c
        LEFT JOIN LATERAL (
            SELECT greatest(m.last_consumed_at, m.touched_at) - stamp AS by FROM skep.cursors m
            WHERE m.partition_id = p.id AND m.reader_id = r.id AND m.next_offset >= c.next_offset FOR NO KEY UPDATE SKIP LOCKED
        ) mine ON true
        WHERE greatest(c.last_consumed_at, c.touched_at) > stamp
    ), runs AS (
        UPDATE skep.leases s SET expires_at = s.expires_at - w.by, retry_at = s.retry_at - w.by
        FROM waiting w WHERE w.by IS NOT NULL AND s.partition_id = ANY (ARRAY[w.partition_id]) AND s.reader_id = ANY (ARRAY[w.reader_id])
    ), lanes AS (
        UPDATE skep.cursors c
        SET ready_at = c.ready_at - w.by, last_consumed_at = c.last_consumed_at - w.by, touched_at = c.touched_at - w.by
        FROM waiting w WHERE w.by IS NOT NULL AND c.partition_id = ANY (ARRAY[w.partition_id]) AND c.reader_id = ANY (ARRAY[w.reader_id])
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM waiting), (SELECT count(*) FROM lanes) INTO ahead, moved;
    RETURN ahead = moved;
END $$;

-- Takes lanes at the front of the line that cannot be served now out of it, or to where they belong. changed: there were some; busy: there is
-- a line.
CREATE FUNCTION skep.tidy(locked_readers integer[], front integer, postpones boolean, stamp timestamptz, OUT changed boolean, OUT busy boolean)
LANGUAGE plpgsql AS $$
DECLARE
    readers integer[];
    lanes   bigint[];
BEGIN
    SELECT array_agg(idle.reader_id) FILTER (WHERE idle.reader_id IS NOT NULL),
           array_agg(idle.partition_id) FILTER (WHERE idle.reader_id IS NOT NULL), count(*) > 0
    INTO readers, lanes, busy
    FROM (
        SELECT c.reader_id, c.partition_id
        FROM unnest(locked_readers) AS locked (id)
        CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = locked.id ORDER BY k.generation DESC LIMIT 1) look
        CROSS JOIN LATERAL (
            SELECT c.partition_id, c.returned, c.next_offset, c.last_consumed_at > c.ready_at AS suspect FROM skep.cursors c
            WHERE c.reader_id = locked.id AND c.ready_at >= look.line_start AND c.ready_at <= stamp
            ORDER BY c.ready_at, c.partition_id LIMIT front
        ) line
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = line.partition_id ORDER BY l.generation DESC LIMIT 1) l
        LEFT JOIN LATERAL (
            SELECT c.reader_id, c.partition_id FROM skep.cursors c
            WHERE (line.next_offset > l.last_offset OR line.returned > 0 OR line.suspect OR postpones)
              AND c.partition_id = line.partition_id AND c.reader_id = locked.id AND c.next_offset >= line.next_offset
            FOR NO KEY UPDATE SKIP LOCKED
        ) c ON true
    ) idle;
    changed := lanes IS NOT NULL;
    IF changed THEN
        PERFORM skep.rest(readers, lanes);
        IF postpones THEN
            PERFORM skep.postpone(readers, lanes);
        END IF;
    END IF;
END $$;

-- Puts lanes that grew in line: at the place of their last service, or first if they were never served.
-- False if someone holds one of them in an open transaction: it is not waited for, and stays news.
CREATE FUNCTION skep.wake(readers integer[], lanes bigint[], stamp timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    met_readers integer[];
    met_lanes   bigint[];
    complete    boolean;
BEGIN
    SELECT array_agg(grown.reader_id) FILTER (WHERE c.mine), array_agg(grown.lane) FILTER (WHERE c.mine), coalesce(bool_and(c.mine), true)
    INTO met_readers, met_lanes, complete
    FROM unnest(wake.readers, wake.lanes) AS grown (reader_id, lane)
    CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = grown.lane AND c.reader_id = grown.reader_id ORDER BY c.next_offset DESC LIMIT 1) met
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS mine FROM (
            SELECT FROM skep.cursors c WHERE c.partition_id = grown.lane AND c.reader_id = grown.reader_id AND c.next_offset >= met.next_offset
            FOR NO KEY UPDATE SKIP LOCKED) c
    ) c;

    WITH grown AS MATERIALIZED (
        SELECT grown.*, look.line_start, met.next_offset FROM unnest(met_readers, met_lanes) AS grown (reader_id, lane)
        CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = grown.reader_id ORDER BY k.generation DESC LIMIT 1) look
        CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = grown.lane AND c.reader_id = grown.reader_id
                            ORDER BY c.next_offset DESC LIMIT 1) met
    )
    UPDATE skep.cursors c SET ready_at = greatest(grown.line_start, least(coalesce(c.last_consumed_at, '-infinity'), wake.stamp))
    FROM grown
    WHERE c.partition_id = ANY (ARRAY[grown.lane]) AND c.reader_id = ANY (ARRAY[grown.reader_id]) AND c.next_offset >= grown.next_offset
      AND (c.ready_at IS NULL OR c.ready_at > wake.stamp);

    INSERT INTO skep.cursors (partition_id, reader_id, start_offset, cursor, next_offset, ready_at)
    SELECT s.partition_id, unmet.reader_id, s.start_offset, s.start_offset, s.start_offset, look.line_start
    FROM (SELECT grown.reader_id, array_agg(grown.lane) AS lanes
          FROM unnest(wake.readers, wake.lanes) AS grown (reader_id, lane)
          LEFT JOIN LATERAL (
              SELECT * FROM skep.cursors c WHERE c.partition_id = grown.lane AND c.reader_id = grown.reader_id ORDER BY c.next_offset DESC LIMIT 1
          ) c ON true
          WHERE c.reader_id IS NULL
          GROUP BY grown.reader_id) unmet
    JOIN skep.readers r ON r.id = unmet.reader_id
    CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = r.id ORDER BY k.generation DESC LIMIT 1) look
    CROSS JOIN LATERAL skep.starts(r.group_name, r.queue_id, unmet.lanes) s
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = s.partition_id ORDER BY l.generation DESC LIMIT 1) l
    WHERE s.start_offset <= l.last_offset
    ON CONFLICT DO NOTHING;
    IF FOUND AND NOT complete THEN  -- the look will not be saved, and a transaction with an older snapshot must not add the same rows
        PERFORM skep.start_line_anew(ARRAY(SELECT DISTINCT unnest(wake.readers)));
    END IF;
    RETURN complete;
END $$;

-- When something changes in a lane by itself: a lease ends, or a returned run may come again.
-- OFFSET 0: or min() would walk the leases of all lanes in order of expiry until it meets one of this lane.
CREATE FUNCTION skep.first_deadline(c skep.cursors) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT min(coalesce(s.expires_at, s.retry_at))
    FROM (SELECT * FROM skep.leases s WHERE s.partition_id = ($1).partition_id AND s.reader_id = ($1).reader_id
                                        AND s.first_offset >= ($1).cursor OFFSET 0) s
$$;

-- When the lowest returned run of a lane may come again: in strict order nothing comes before it.
CREATE FUNCTION skep.first_retry(c skep.cursors) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT s.retry_at FROM skep.leases s
    WHERE s.partition_id = ($1).partition_id AND s.reader_id = ($1).reader_id AND s.first_offset >= ($1).cursor AND s.token IS NULL
    ORDER BY s.first_offset LIMIT 1
$$;

-- Takes lanes that have nothing to serve out of line: until a lease ends, a run may come again, or they grow. Others take their place.
CREATE FUNCTION skep.rest(readers integer[], lanes bigint[]) RETURNS void
LANGUAGE sql AS $$
    WITH idle AS MATERIALIZED (
        SELECT idle.*, q.concurrency, look.line_start, old.next_offset, l.last_offset
        FROM unnest($1, $2) AS idle (reader_id, lane)
        JOIN skep.readers r ON r.id = idle.reader_id
        JOIN skep.queues q ON q.id = r.queue_id
        CROSS JOIN LATERAL (SELECT * FROM skep.looks k WHERE k.reader_id = idle.reader_id ORDER BY k.generation DESC LIMIT 1) look
        CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = idle.lane AND c.reader_id = idle.reader_id
                            ORDER BY c.next_offset DESC LIMIT 1) old
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = idle.lane ORDER BY l.generation DESC LIMIT 1) l
    )
    UPDATE skep.cursors c
    SET ready_at = CASE WHEN c.returned > 0 AND idle.concurrency = 1 AND c.leased = 0 THEN
                             greatest(idle.line_start, least(c.last_consumed_at, clock_timestamp()), skep.first_retry(c))
                        WHEN c.next_offset <= idle.last_offset THEN
                             CASE WHEN c.ready_at = '-infinity' THEN
                                       greatest(idle.line_start, least(coalesce(c.last_consumed_at, '-infinity'), clock_timestamp()))
                                  ELSE c.ready_at END
                        WHEN c.leased + c.returned > 0 THEN skep.first_deadline(c) END
    FROM idle
    WHERE c.partition_id = ANY (ARRAY[idle.lane]) AND c.reader_id = ANY (ARRAY[idle.reader_id]) AND c.next_offset >= idle.next_offset
$$;

-- Puts lanes off until delayed_processing or window_buffer lets their next message out.
CREATE FUNCTION skep.postpone(readers integer[], lanes bigint[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE skep.cursors c
    SET ready_at = greatest(c.ready_at, l.last_created_at + skep.seconds(q.window_buffer), m.created_at + skep.seconds(q.delayed_processing))
    FROM unnest($1, $2) AS grown (reader_id, lane)
    JOIN skep.readers r ON r.id = grown.reader_id
    JOIN skep.queues q ON q.id = r.queue_id
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = grown.lane ORDER BY l.generation DESC LIMIT 1) l
    CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = grown.lane AND c.reader_id = grown.reader_id ORDER BY c.next_offset DESC LIMIT 1) old
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = grown.lane AND m."offset" = old.next_offset LIMIT 1) m
    WHERE c.partition_id = ANY (ARRAY[grown.lane]) AND c.reader_id = ANY (ARRAY[grown.reader_id])
      AND c.returned = 0 AND c.leased = 0
      AND c.next_offset = old.next_offset
      AND greatest(l.last_created_at + skep.seconds(q.window_buffer), m.created_at + skep.seconds(q.delayed_processing)) > clock_timestamp()
$$;
