-- Reading the log outside of any group, as Spark does.
--
-- The position of such a reader is a snapshot: it has read everything that is visible in it. The messages that are
-- visible in a later snapshot and not in this one are new to it. Because the lock of a partition is held until commit,
-- the new messages of a partition are one run, directly after those that were read before. So the rows between two
-- positions never change, no writer blocks the reader, and a position is as small with 100,000 partitions as with one.
--
--   0 .... kept_from ........ first_offset ............ end_offset ........ last_offset
--   deleted by retention      read before      new       not in the end snapshot

-- Returns the identity of this database for the position of a reader, because transaction ids mean nothing in another
-- database. The timeline changes with a promotion and with a restore to a point in time, after which transaction ids
-- are used again. A standby knows the timeline only from its last restart point.
CREATE FUNCTION skep._database_identity() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN format('%s/%s/%s', (SELECT c.system_identifier FROM pg_control_system() c),
                  (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
                  CASE WHEN pg_is_in_recovery() THEN (SELECT c.timeline_id FROM pg_control_checkpoint() c)
                       ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END);
END $$;

-- Returns the identity of the database, the current snapshot, and the queues of a reader.
CREATE FUNCTION skep._read_snapshot(
    queues text[] DEFAULT NULL, pattern text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL,
    OUT database text, OUT snapshot pg_snapshot, OUT queue_ids integer[], OUT queue_names text[]
) LANGUAGE sql STABLE AS $$
    SELECT skep._database_identity(), skep._current_snapshot(), coalesce(array_agg(q.id ORDER BY q.id), '{}'),
           coalesce(array_agg(q.name ORDER BY q.id), '{}')
    FROM skep.queues q
    WHERE (q.name = ANY (_read_snapshot.queues) OR _read_snapshot.queues IS NULL)
      AND (pattern IS NULL OR q.name ~ ('^(?:' || pattern || ')$'))
      AND (_read_snapshot.namespace IS NULL OR q.namespace = _read_snapshot.namespace)
      AND (_read_snapshot.task IS NULL OR q.task = _read_snapshot.task)
$$;
CALL skep._allow('skep_consumer', '_read_snapshot');

-- Returns a mark of the last journal row that is visible in a snapshot (NULL: now), for _has_journal_mark(); NULL if
-- there is no row. A disk snapshot that is started again keeps its identity and its timeline, but not the rows that
-- were committed after it was taken. The mark contains the row (xid, id, time) and its first message (partition,
-- offset, time), which is kept longer.
CREATE FUNCTION skep._journal_mark(snapshot pg_snapshot DEFAULT NULL) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    seen pg_snapshot := coalesce(snapshot, skep._current_snapshot());
BEGIN
    RETURN (SELECT format('%s/%s/%s/%s/%s/%s', j.xid, j.id, skep._microseconds(j.created_at), j.partition_ids[1],
                          j.first_offsets[1],
                          (SELECT skep._microseconds(m.created_at) FROM skep.messages m
                           WHERE m.partition_id = j.partition_ids[1] AND m."offset" = j.first_offsets[1]))
            FROM skep.journal j WHERE j.xid < pg_snapshot_xmax(seen) AND pg_visible_in_snapshot(j.xid, seen)
            ORDER BY j.xid DESC, j.id DESC LIMIT 1);
END $$;
CALL skep._allow('skep_consumer', '_journal_mark');

CREATE FUNCTION skep._microseconds(instant timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT (extract(epoch FROM $1) * 1000000)::bigint $$;

-- Returns true if the log is still the one in which this snapshot and its mark were taken. Returns false if the row of
-- the mark is missing or is not the last one of the snapshot, because transaction ids were used again. If the row was
-- pruned, its message decides. Returns NULL if neither can, because the message, its partition or its queue was
-- deleted.
CREATE FUNCTION skep._has_journal_mark(snapshot pg_snapshot, mark text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    parts  text[] := string_to_array(mark, '/');
    now_is text := skep._journal_mark(snapshot);
    head   bigint := (SELECT h.next_offset FROM skep._head_of(parts[4]::bigint) h);
    found  record;
BEGIN
    IF (string_to_array(now_is, '/'))[:3] = parts[:3] THEN
        RETURN true;
    ELSIF head IS NULL THEN
        RETURN NULL;
    ELSIF parts[1]::xid8 >= (SELECT f.xid FROM skep.journal_floor f) OR parts[5]::bigint >= head THEN
        RETURN false;
    END IF;
    SELECT m.xid::text AS xid, skep._microseconds(m.created_at)::text AS created_at INTO found
    FROM skep.messages m WHERE m.partition_id = parts[4]::bigint AND m."offset" = parts[5]::bigint;
    RETURN (found.xid, found.created_at) = (parts[1], nullif(parts[6], ''));
END $$;
CALL skep._allow('skep_consumer', '_has_journal_mark');

CREATE FUNCTION skep._group_exists(group_name text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM skep.subscriptions s WHERE s.group_name = $1)
        OR EXISTS (SELECT FROM skep.group_queues g WHERE g.group_name = $1)
$$;
CALL skep._allow('skep_consumer', '_group_exists');

-- Returns the first offset of a partition that a snapshot does not see. The last message is checked first, because most
-- partitions have nothing new.
CREATE FUNCTION skep._visible_end(partition_id bigint, snapshot pg_snapshot) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    low     bigint;
    high    bigint;
    middle  bigint;
    is_seen boolean;
BEGIN
    SELECT f.first_offset, head.next_offset, head.next_offset - 1 INTO low, high, middle
    FROM skep.partition_floors f CROSS JOIN LATERAL skep._head_of(f.partition_id) head
    WHERE f.partition_id = _visible_end.partition_id;
    WHILE low < high LOOP
        SELECT pg_visible_in_snapshot(m.xid, snapshot) INTO is_seen
        FROM skep.messages m WHERE m.partition_id = _visible_end.partition_id AND m."offset" = middle;
        IF is_seen IS NOT FALSE THEN low := middle + 1; ELSE high := middle; END IF;
        middle := low + (high - low) / 2;
    END LOOP;
    RETURN low;
END $$;

-- Returns the offset up to which files contain all messages of a partition. A mark that was made by hand, without a
-- file, does not count.
CREATE FUNCTION skep._archived_to(partition_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT least(a.end_offset, r.end_offset)
    FROM (SELECT * FROM skep.archive_marks a WHERE a.partition_id = $1 LIMIT 1) a
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_runs r WHERE r.partition_id = $1 ORDER BY r.first_offset DESC
                        LIMIT 1) r
$$;

-- Returns the offset in one partition of a start or stop that is not a snapshot:
--   {}                                     the earliest kept message
--   {"archive": true}                      the earliest archived or kept message
--   {"archived": true, "timestamp": …}     after the archived messages, and not before the time, if one is given
--   {"timestamp": …}                       the first message that is not older
--   {"group": …}                           the cursor of the group
--   {"offsets": {queue: {partition: offset}}, "other": -2 or -1, "view": …}
--                                          the offset; -2 is the earliest kept message, -1 the end of the snapshot
CREATE FUNCTION skep._offset_of_start(partition_id bigint, start jsonb) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    kept  bigint := (SELECT f.first_offset FROM skep.partition_floors f
                     WHERE f.partition_id = _offset_of_start.partition_id);
    names record;
    requested bigint;
BEGIN
    IF start ? 'archived' THEN
        RETURN greatest(kept, skep._archived_to(partition_id),
                        CASE WHEN start ? 'timestamp' THEN skep._offset_at(partition_id,
                            (start ->> 'timestamp')::timestamptz) END);
    ELSIF start ? 'timestamp' THEN
        RETURN skep._offset_at(partition_id, (start ->> 'timestamp')::timestamptz);
    ELSIF start ? 'archive' THEN
        RETURN least(kept, (SELECT r.first_offset FROM skep.archive_runs r
                            WHERE r.partition_id = _offset_of_start.partition_id
                            ORDER BY r.first_offset LIMIT 1));
    ELSIF NOT start ?| ARRAY['group', 'offsets', 'other'] THEN
        RETURN kept;
    END IF;
    SELECT q.id AS queue_id, q.name AS queue, p.name AS partition,
           skep._group_of(q.semantics, start ->> 'group') AS group_name INTO names
    FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id WHERE p.id = _offset_of_start.partition_id;
    IF start ? 'group' THEN
        RETURN greatest(kept, coalesce(
            skep._cursor_of(partition_id, (SELECT g.id FROM skep.group_queues g
                                           WHERE g.group_name = names.group_name AND g.queue_id = names.queue_id)),
            (SELECT s.start_offset FROM skep._starting_offsets(names.group_name, names.queue_id,
                ARRAY[partition_id]) s)));
    END IF;
    requested := coalesce((start -> 'offsets' -> names.queue ->> names.partition)::bigint, (start ->> 'other')::bigint);
    RETURN CASE WHEN requested = -1 THEN skep._visible_end(partition_id, (start ->> 'view')::pg_snapshot)
                WHEN requested >= 0 THEN requested ELSE kept END;
END $$;

-- Returns the new runs by the journal. Its cost depends on the number of changes.
CREATE FUNCTION skep._journal_window(queue_ids integer[], since pg_snapshot, until pg_snapshot, group_name text)
RETURNS TABLE (partition_id bigint, first_offset bigint, end_offset bigint, kept_from bigint, unseen boolean,
               deleted_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT grown.id, grown.first_offset, grown.end_offset, coalesce(f.first_offset, grown.end_offset), false,
           f.deleted_created_at
    FROM (
        SELECT run.id, min(run.first_offset) AS first_offset, max(run.last_offset) + 1 AS end_offset
        FROM unnest(_journal_window.queue_ids) AS queue (id)
        CROSS JOIN LATERAL (
            SELECT j.* FROM skep.journal j
            WHERE j.queue_id = queue.id AND j.xid >= pg_snapshot_xmax(since)
              AND j.xid < pg_snapshot_xmax(_journal_window.until)
            UNION ALL
            SELECT j.* FROM pg_snapshot_xip(since) AS running
            CROSS JOIN LATERAL (SELECT * FROM skep.journal j WHERE j.queue_id = queue.id AND j.xid = running OFFSET 0) j
        ) j
        CROSS JOIN LATERAL unnest(j.partition_ids, j.first_offsets, j.last_offsets)
            AS run (id, first_offset, last_offset)
        WHERE pg_visible_in_snapshot(j.xid, _journal_window.until)
        GROUP BY run.id
    ) grown
    LEFT JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = grown.id LIMIT 1) p ON true
    -- No row: the partition was deleted.
    LEFT JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = grown.id LIMIT 1) f ON true
    WHERE p.only_group IS NULL OR p.only_group = _journal_window.group_name
    ORDER BY grown.id
$$;

-- Returns the same by checking every partition: for a reader that is older than the journal, that does not begin at a
-- snapshot, or that has an end. unseen: retention deleted messages below kept_from that the reader has not seen; their
-- number is no longer known.
CREATE FUNCTION skep._partition_window(
    queue_ids integer[], since pg_snapshot, start jsonb, until pg_snapshot, stop jsonb, group_name text
)
RETURNS TABLE (partition_id bigint, first_offset bigint, end_offset bigint, kept_from bigint, unseen boolean,
               deleted_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT p.id, run.first_offset, run.end_offset, f.first_offset, lost.unseen, f.deleted_created_at
    FROM unnest(_partition_window.queue_ids) AS queue (id)
    JOIN skep.partitions p ON p.queue_id = queue.id
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = p.id LIMIT 1) f
    LEFT JOIN LATERAL (SELECT m.xid, m."offset" + 1 AS next_offset FROM skep.messages m
                       WHERE m.partition_id = p.id AND m."offset" >= f.first_offset ORDER BY m."offset" DESC
                       LIMIT 1) last ON true
    CROSS JOIN LATERAL (  -- functions are called only if the ends of a partition do not decide
        SELECT CASE WHEN since IS NULL AND _partition_window.start = '{}' THEN f.first_offset
                    WHEN since IS NULL THEN skep._offset_of_start(p.id, _partition_window.start)
                    WHEN pg_visible_in_snapshot(last.xid, since) THEN last.next_offset
                    ELSE skep._visible_end(p.id, since) END AS first_offset,
               least(CASE WHEN pg_visible_in_snapshot(last.xid, _partition_window.until) THEN last.next_offset
                     ELSE skep._visible_end(p.id, _partition_window.until) END,
                     CASE WHEN _partition_window.stop IS NOT NULL
                         THEN skep._offset_of_start(p.id, _partition_window.stop) END) AS end_offset
    ) run
    CROSS JOIN LATERAL (SELECT since IS NOT NULL AND f.deleted_xid IS NOT NULL
                           AND NOT pg_visible_in_snapshot(f.deleted_xid, since) AS unseen) lost
    WHERE (p.only_group IS NULL OR p.only_group = _partition_window.group_name)
      AND (run.first_offset < run.end_offset OR lost.unseen)
    ORDER BY p.id
$$;

-- Returns the runs between a position and a snapshot, partition by partition. The position is a snapshot (since), or a
-- start of _offset_of_start(). stop has the same form.
CREATE FUNCTION skep._read_window(
    queue_ids integer[], since pg_snapshot, until pg_snapshot, start jsonb DEFAULT '{}', stop jsonb DEFAULT NULL,
    group_name text DEFAULT NULL
) RETURNS TABLE (partition_id bigint, first_offset bigint, end_offset bigint, kept_from bigint, unseen boolean,
                 deleted_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF since IS NOT NULL AND stop IS NULL AND pg_snapshot_xmin(since) >= (SELECT f.xid FROM skep.journal_floor f) THEN
        RETURN QUERY SELECT * FROM skep._journal_window(queue_ids, since, until, group_name);
    ELSE
        RETURN QUERY SELECT * FROM skep._partition_window(queue_ids, since, start, until, stop, group_name);
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_read_window');

-- Returns the messages of runs, in order. value is NULL for a deleted message, and for all messages without payloads.
CREATE FUNCTION skep._read(
    partition_ids bigint[], first_offsets bigint[], end_offsets bigint[], payloads boolean DEFAULT true
)
RETURNS TABLE (ord integer, "offset" bigint, created_at timestamptz, deleted boolean, value text, headers text,
               transaction_id text, trace_id text, producer text)
LANGUAGE sql STABLE AS $$
    SELECT run.ord::integer, m."offset", m.created_at, m.payload IS NULL, CASE
        WHEN _read.payloads THEN m.payload::text END, m.headers::text, m.transaction_id, m.trace_id::text, m.producer
    FROM unnest(_read.partition_ids, _read.first_offsets, _read.end_offsets)
    WITH ORDINALITY AS run (partition_id, first_offset, end_offset, ord)
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = run.partition_id AND m."offset" >= run.first_offset AND m."offset" < run.end_offset
        ORDER BY m."offset"
    ) m
    ORDER BY run.ord, m."offset"
$$;
CALL skep._allow('skep_consumer', '_read');

-- Returns the same in one row, for readers of large runs: values are joined by a character that JSON escapes, values of
-- deleted messages are empty, and columns that no message has are NULL. The reader knows the offsets: there is no gap
-- if the number of messages is right.
CREATE FUNCTION skep._read_packed(
    partition_ids bigint[], first_offsets bigint[], end_offsets bigint[], payloads boolean DEFAULT true,
    OUT messages bigint, OUT times bytea, OUT "values" bytea, OUT headers text[], OUT transaction_ids text[],
        OUT trace_ids text[], OUT producers text[]
) LANGUAGE sql STABLE AS $$
    SELECT count(*), string_agg(timestamptz_send(m.created_at), ''),
           convert_to(string_agg(CASE WHEN m.deleted THEN '' ELSE coalesce(m.value, '-') END, chr(30)), 'UTF8'),
           CASE WHEN count(m.headers) > 0 THEN array_agg(m.headers) END,
           CASE WHEN count(m.transaction_id) > 0 THEN array_agg(m.transaction_id) END,
           CASE WHEN count(m.trace_id) > 0 THEN array_agg(m.trace_id) END,
           CASE WHEN count(m.producer) > 0 THEN array_agg(m.producer) END
    FROM skep._read(_read_packed.partition_ids, _read_packed.first_offsets, _read_packed.end_offsets,
                    _read_packed.payloads) m
$$;
CALL skep._allow('skep_consumer', '_read_packed');

-- Returns the names of partitions, in order; NULL for deleted ones.
CREATE FUNCTION skep._partition_names(partition_ids bigint[]) RETURNS TABLE (queue text, partition text)
LANGUAGE sql STABLE AS $$
    SELECT q.name, p.name FROM unnest($1) WITH ORDINALITY AS requested (id, ord)
    LEFT JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = requested.id LIMIT 1) p ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q ON true
    ORDER BY requested.ord
$$;
CALL skep._allow('skep_consumer', '_partition_names');

-- Returns the times of the oldest and the newest message of runs. With _offsets_at() a reader cuts a long backlog by
-- time.
CREATE FUNCTION skep._times(
    partition_ids bigint[], first_offsets bigint[], end_offsets bigint[], OUT oldest timestamptz,
        OUT newest timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT min(m.created_at), max(m.created_at)
    FROM unnest($1, $2, $3) AS run (partition_id, first_offset, end_offset)
    CROSS JOIN LATERAL (VALUES (run.first_offset), (run.end_offset - 1)) AS edge (at)
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m WHERE m.partition_id = run.partition_id AND m."offset" = edge.at
                        LIMIT 1) m
$$;
CALL skep._allow('skep_consumer', '_times');

-- Returns the first offset of each partition that is not older than this.
CREATE FUNCTION skep._offsets_at(partition_ids bigint[], instant timestamptz) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(skep._offset_at(requested.id, $2) ORDER BY requested.ord) FROM unnest($1)
    WITH ORDINALITY AS requested (id, ord)
$$;
CALL skep._allow('skep_consumer', '_offsets_at');
