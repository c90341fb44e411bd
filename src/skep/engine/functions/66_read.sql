-- Reading the log from outside of the groups, as Spark does.
--
-- A reader's position is a snapshot: everything visible in it is read. What is visible in a later one and not in this is the news. Because
-- a lane's lock is held to commit, the news of a lane is one run, right behind what was read before. So the rows between two positions
-- never change, no writer holds the reader back, and the position is as small with 100,000 lanes as with one.
--
--   0 .... kept_from ........ first_offset ............ end_offset ........ last_offset
--   deleted by retention      read already     news      not in the end snapshot

-- Which database this is (transaction ids mean nothing in another), what is visible now, and the queues a reader asks for.
CREATE FUNCTION skep.read_view(
    queues text[] DEFAULT NULL, pattern text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL,
    OUT database text, OUT view pg_snapshot, OUT queue_ids integer[], OUT queue_names text[]
) LANGUAGE sql STABLE AS $$
    SELECT (SELECT format('%s/%s', c.system_identifier, d.oid) FROM pg_control_system() c, pg_database d
            WHERE d.datname = current_database()),
           skep.current_view(), coalesce(array_agg(q.id ORDER BY q.id), '{}'), coalesce(array_agg(q.name ORDER BY q.id), '{}')
    FROM skep.queues q
    WHERE (q.name = ANY ($1) OR $1 IS NULL) AND ($2 IS NULL OR q.name ~ ('^(?:' || $2 || ')$'))
      AND ($3 IS NULL OR q.namespace = $3) AND ($4 IS NULL OR q.task = $4)
$$;

CREATE FUNCTION skep.group_exists(group_name text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM skep.subscriptions s WHERE s.group_name = $1) OR EXISTS (SELECT FROM skep.readers r WHERE r.group_name = $1)
$$;

-- The first offset of a lane that a snapshot does not see. The last message is asked first: most lanes have nothing new.
CREATE FUNCTION skep.visible_end(partition_id bigint, view pg_snapshot) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    low  bigint;
    high bigint;
    mid  bigint;
    seen boolean;
BEGIN
    SELECT l.first_offset, l.last_offset + 1, l.last_offset INTO low, high, mid
    FROM skep.partition_lookup l WHERE l.partition_id = visible_end.partition_id ORDER BY l.generation DESC LIMIT 1;
    WHILE low < high LOOP
        SELECT pg_visible_in_snapshot(m.xid, view) INTO seen
        FROM skep.messages m WHERE m.partition_id = visible_end.partition_id AND m."offset" = mid;
        IF seen IS NOT FALSE THEN low := mid + 1; ELSE high := mid; END IF;
        mid := low + (high - low) / 2;
    END LOOP;
    RETURN low;
END $$;

-- Up to where files have everything of a lane. A mark alone, made by hand, is no file.
CREATE FUNCTION skep.archived_to(lane bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT least(a.end_offset, r.end_offset)
    FROM (SELECT * FROM skep.archive_marks a WHERE a.partition_id = $1 LIMIT 1) a
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_runs r WHERE r.partition_id = $1 ORDER BY r.first_offset DESC LIMIT 1) r
$$;

-- A place that is not a snapshot, in one lane. {"archive": true}: the earliest archived or kept | {"archived": true}: behind what is archived, and not before "timestamp", if there is one |
-- {"timestamp": …} | {"group": …} | {"offsets": {queue: {partition: offset}}, "other": -2 or -1, "view": …}, where -2 is the earliest kept and -1 the end of the view | {}: the earliest kept.
CREATE FUNCTION skep.place_in(lane bigint, place jsonb) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN $2 ? 'archived' THEN greatest(l.first_offset, skep.archived_to($1),
                    CASE WHEN $2 ? 'timestamp' THEN skep.offset_at($1, ($2 ->> 'timestamp')::timestamptz) END)
                WHEN $2 ? 'timestamp' THEN skep.offset_at($1, ($2 ->> 'timestamp')::timestamptz)
                WHEN $2 ? 'group' THEN greatest(l.first_offset, coalesce(
                    (SELECT c.cursor FROM skep.readers r JOIN skep.cursors c ON c.partition_id = $1 AND c.reader_id = r.id
                     WHERE r.queue_id = q.id AND r.group_name = skep.group_on(q.semantics, $2 ->> 'group') ORDER BY c.next_offset DESC LIMIT 1),
                    (SELECT s.start_offset FROM skep.starts(skep.group_on(q.semantics, $2 ->> 'group'), q.id, ARRAY[$1]) s)))
                WHEN $2 ? 'archive' THEN least(l.first_offset, (
                    SELECT r.first_offset FROM skep.archive_runs r WHERE r.partition_id = $1 ORDER BY r.first_offset LIMIT 1))
                WHEN asked.at = -1 THEN skep.visible_end($1, ($2 ->> 'view')::pg_snapshot)
                WHEN asked.at >= 0 THEN asked.at
                ELSE l.first_offset END
    FROM (SELECT * FROM skep.partitions p WHERE p.id = $1 LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = $1 ORDER BY l.generation DESC LIMIT 1) l
    CROSS JOIN LATERAL (SELECT coalesce(($2 -> 'offsets' -> q.name ->> p.name)::bigint, ($2 ->> 'other')::bigint) AS at) asked
$$;

-- The news by the journal: as much work as has changed.
CREATE FUNCTION skep.journal_window(queue_ids integer[], since pg_snapshot, until pg_snapshot, group_name text)
RETURNS TABLE (partition_id bigint, first_offset bigint, end_offset bigint, kept_from bigint, unseen boolean, deleted_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT grown.lane, grown.first_offset, grown.end_offset, coalesce(l.first_offset, grown.end_offset), false, l.deleted_created_at
    FROM (
        SELECT run.lane, min(run.first_offset) AS first_offset, max(run.last_offset) + 1 AS end_offset
        FROM unnest($1) AS queue (id)
        CROSS JOIN LATERAL (
            SELECT j.* FROM skep.journal j
            WHERE j.queue_id = queue.id AND j.xid >= pg_snapshot_xmax($2) AND j.xid < pg_snapshot_xmax($3)
            UNION ALL
            SELECT j.* FROM pg_snapshot_xip($2) AS running
            CROSS JOIN LATERAL (SELECT * FROM skep.journal j WHERE j.queue_id = queue.id AND j.xid = running OFFSET 0) j
        ) j
        CROSS JOIN LATERAL unnest(j.partition_ids, j.first_offsets, j.last_offsets) AS run (lane, first_offset, last_offset)
        WHERE pg_visible_in_snapshot(j.xid, $3)
        GROUP BY run.lane
    ) grown
    LEFT JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = grown.lane LIMIT 1) p ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = grown.lane ORDER BY l.generation DESC LIMIT 1) l ON true  -- none: deleted since
    WHERE p.only_group IS NULL OR p.only_group = $4
    ORDER BY grown.lane
$$;

-- The same by asking every lane: for a reader that is older than the journal, begins elsewhere than at a snapshot, or has an end.
-- unseen: retention deleted something below kept_from that the reader has not seen, and nobody knows any more how much.
CREATE FUNCTION skep.lane_window(queue_ids integer[], since pg_snapshot, start jsonb, until pg_snapshot, stop jsonb, group_name text)
RETURNS TABLE (partition_id bigint, first_offset bigint, end_offset bigint, kept_from bigint, unseen boolean, deleted_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT p.id, run.first_offset, run.end_offset, l.first_offset, lost.unseen, l.deleted_created_at
    FROM unnest($1) AS queue (id)
    JOIN skep.partitions p ON p.queue_id = queue.id
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id ORDER BY l.generation DESC LIMIT 1) l
    LEFT JOIN LATERAL (SELECT m.xid FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" = l.last_offset LIMIT 1) last ON true
    CROSS JOIN LATERAL (  -- calls only where the ends of a lane do not tell
        SELECT CASE WHEN $2 IS NULL AND $3 = '{}' THEN l.first_offset
                    WHEN $2 IS NULL THEN skep.place_in(p.id, $3)
                    WHEN pg_visible_in_snapshot(last.xid, $2) THEN l.last_offset + 1
                    ELSE skep.visible_end(p.id, $2) END AS first_offset,
               least(CASE WHEN pg_visible_in_snapshot(last.xid, $4) THEN l.last_offset + 1 ELSE skep.visible_end(p.id, $4) END,
                     CASE WHEN $5 IS NOT NULL THEN skep.place_in(p.id, $5) END) AS end_offset
    ) run
    CROSS JOIN LATERAL (SELECT $2 IS NOT NULL AND l.deleted_xid IS NOT NULL AND NOT pg_visible_in_snapshot(l.deleted_xid, $2) AS unseen) lost
    WHERE (p.only_group IS NULL OR p.only_group = $6) AND (run.first_offset < run.end_offset OR lost.unseen)
    ORDER BY p.id
$$;

-- What lies between a position and a snapshot, lane by lane. The position is a snapshot (since) or a place (start); stop is a place as well.
CREATE FUNCTION skep.read_window(queue_ids integer[], since pg_snapshot, until pg_snapshot, start jsonb DEFAULT '{}', stop jsonb DEFAULT NULL,
                                 group_name text DEFAULT NULL)
RETURNS TABLE (partition_id bigint, first_offset bigint, end_offset bigint, kept_from bigint, unseen boolean, deleted_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF since IS NOT NULL AND stop IS NULL AND pg_snapshot_xmin(since) >= (SELECT f.xid FROM skep.journal_floor f) THEN
        RETURN QUERY SELECT * FROM skep.journal_window(queue_ids, since, until, group_name);
    ELSE
        RETURN QUERY SELECT * FROM skep.lane_window(queue_ids, since, start, until, stop, group_name);
    END IF;
END $$;

-- The messages of runs of lanes, in order. A tombstone has no value; without payloads nothing has.
CREATE FUNCTION skep.read(lanes bigint[], first_offsets bigint[], end_offsets bigint[], payloads boolean DEFAULT true)
RETURNS TABLE (ord integer, "offset" bigint, created_at timestamptz, deleted boolean, value text, headers text, transaction_id text,
               trace_id text, producer text)
LANGUAGE sql STABLE AS $$
    SELECT run.ord::integer, m."offset", m.created_at, m.payload IS NULL, CASE WHEN $4 THEN m.payload::text END, m.headers::text,
           m.transaction_id, m.trace_id::text, m.producer
    FROM unnest($1, $2, $3) WITH ORDINALITY AS run (lane, first_offset, end_offset, ord)
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = run.lane AND m."offset" >= run.first_offset AND m."offset" < run.end_offset ORDER BY m."offset"
    ) m
    ORDER BY run.ord, m."offset"
$$;

-- The same in one row, for readers that take much: values are joined by a character that JSON escapes, deleted ones are empty; columns that no
-- message has are NULL. A reader knows the offsets: there are no gaps, as long as the number of messages is right.
CREATE FUNCTION skep.read_packed(
    lanes bigint[], first_offsets bigint[], end_offsets bigint[], payloads boolean DEFAULT true,
    OUT messages bigint, OUT times bytea, OUT "values" bytea, OUT headers text[], OUT transaction_ids text[], OUT trace_ids text[], OUT producers text[]
) LANGUAGE sql STABLE AS $$
    SELECT count(*), string_agg(timestamptz_send(m.created_at), ''),
           convert_to(string_agg(CASE WHEN m.deleted THEN '' ELSE coalesce(m.value, '-') END, chr(30)), 'UTF8'),
           CASE WHEN count(m.headers) > 0 THEN array_agg(m.headers) END,
           CASE WHEN count(m.transaction_id) > 0 THEN array_agg(m.transaction_id) END,
           CASE WHEN count(m.trace_id) > 0 THEN array_agg(m.trace_id) END,
           CASE WHEN count(m.producer) > 0 THEN array_agg(m.producer) END
    FROM skep.read($1, $2, $3, $4) m
$$;

CREATE FUNCTION skep.lane_names(lanes bigint[]) RETURNS TABLE (queue text, partition text)
LANGUAGE sql STABLE AS $$
    SELECT q.name, p.name FROM unnest($1) WITH ORDINALITY AS lane (id, ord)
    LEFT JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = lane.id LIMIT 1) p ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q ON true
    ORDER BY lane.ord
$$;

-- When runs of lanes begin and end, and where each lane was at a time: so a long way is cut into stretches of time.
CREATE FUNCTION skep.times_of(lanes bigint[], first_offsets bigint[], end_offsets bigint[], OUT oldest timestamptz, OUT newest timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT min(m.created_at), max(m.created_at)
    FROM unnest($1, $2, $3) AS run (lane, first_offset, end_offset)
    CROSS JOIN LATERAL (VALUES (run.first_offset), (run.end_offset - 1)) AS edge (at)
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = run.lane AND m."offset" = edge.at LIMIT 1) m
$$;

CREATE FUNCTION skep.offsets_at(lanes bigint[], instant timestamptz) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(skep.offset_at(lane.id, $2) ORDER BY lane.ord) FROM unnest($1) WITH ORDINALITY AS lane (id, ord)
$$;
