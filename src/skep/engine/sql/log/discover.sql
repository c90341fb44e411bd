-- Discovery: how a group finds the partitions that have work for it. Its cost depends on the number of changes.
--
-- pop reads the ready list, an index over the runs that may have messages. It calls discovery when the list yields
-- nothing, or when the last discovery is some time ago. Discovery reads the unseen journal rows, which are visible now
-- and were not visible in a saved snapshot, and puts their partitions into the list; it returns expired leases; and it
-- removes drained partitions from the list.
--
-- Why no push is overlooked, without a lock: only discovery sets ready_at to NULL (drained), and in the same
-- transaction it saves a snapshot that is older than that decision. A push that the decision did not see is not visible
-- in the saved snapshot either, so it is unseen for every later discovery that sees the mark. Discovery deletes only
-- snapshots that it has locked before it read any run, and whose unseen pushes it has handled. A snapshot that was
-- saved together with a mark that it cannot see yet stays. An ack therefore leaves its run in the list or, while the
-- list is crowded, in the list of probably drained runs: only discovery decides about those.
--
-- The list is read from ready_from on. Before it there are only dead index entries, which stay as long as some
-- transaction is open. The ready time of a run is at most 0.1 s old and ready_from stays 0.25 s behind, so only a
-- transaction that commits later than that can put a run before ready_from. Discovery scans for such runs once a second
-- while consumers wait, every ten seconds while they are busy, or less often if the scan takes long.

-- Returns the ready time of a run, which is its position in the ready list: after the runs that were served before it,
-- unless that was too long ago.
CREATE FUNCTION skep._ready_time(served_at timestamptz, stamp timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT least($2, greatest($1, $2 - interval '100 milliseconds')) $$;

-- Returns the priorities that occur in a ready list, highest first. It steps from one to the next in the index.
CREATE FUNCTION skep._priorities(list integer) RETURNS integer[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    priorities integer[] := '{}';
    next  integer := (SELECT r.priority FROM skep.runs r
                      WHERE r.list_id = list AND r.ready_at IS NOT NULL AND r.lease_id IS NULL
                         AND NOT r.drained ORDER BY r.priority LIMIT 1);
BEGIN
    WHILE next IS NOT NULL LOOP
        priorities := priorities || next;
        next := (SELECT r.priority FROM skep.runs r
                 WHERE r.list_id = list AND r.priority > next AND r.ready_at IS NOT NULL
                    AND r.lease_id IS NULL AND NOT r.drained ORDER BY r.priority LIMIT 1);
    END LOOP;
    RETURN priorities;
END $$;

-- Returns the ready time of the first run at or after this time that is ready, leased or probably drained.
CREATE FUNCTION skep._first_ready_time(list integer, priorities integer[], after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least(
        (SELECT min(r.ready_at) FROM unnest(priorities) AS one (priority)
         CROSS JOIN LATERAL (SELECT r.ready_at FROM skep.runs r
                             WHERE r.list_id = list AND r.priority = one.priority AND r.ready_at >= after
                               AND r.lease_id IS NULL
                               AND NOT r.drained ORDER BY r.ready_at LIMIT 1) r),
        (SELECT r.ready_at FROM skep.runs r WHERE r.list_id = list AND r.ready_at >= after AND r.lease_id IS NOT NULL
         ORDER BY r.ready_at LIMIT 1),
        (SELECT r.ready_at FROM skep.runs r WHERE r.list_id = list AND r.ready_at >= after AND r.ready_at IS NOT NULL
            AND r.lease_id IS NULL AND r.drained ORDER BY r.ready_at LIMIT 1));
END $$;

-- Returns true if the journal cannot tell which pushes a snapshot has not seen.
CREATE FUNCTION skep._is_lost(d skep.discoveries, floor xid8) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT pg_snapshot_xmin($1.snapshot) < $2 OR $1.server_started <> pg_postmaster_start_time()
$$;

-- Returns the saved snapshots of a list, and the partitions with unseen pushes. A lost snapshot that an open
-- transaction has locked stays after a full scan has begun: the scan goes on at scan_after if its snapshot names the
-- lost one.
CREATE FUNCTION skep._read_discovery_state(list integer, queue_id integer, stamp timestamptz)
RETURNS skep.discovery_state LANGUAGE plpgsql AS $$
DECLARE
    known skep.discovery_state;
BEGIN
    SELECT skep._current_snapshot(), array_agg(DISTINCT d.id), min(d.discovered_at), min(d.ready_from), min(d.scan_at),
           coalesce(bool_or(d.crowded), false), coalesce(bool_or(d.is_lost AND NOT d.is_scanned), true),
           coalesce(bool_or(d.discovered_at > stamp), false), min(d.scan_after),
           array_agg(DISTINCT unseen.partition_id) FILTER (WHERE unseen.partition_id IS NOT NULL),
           count(unseen.partition_id), array_agg(DISTINCT d.id) FILTER (WHERE d.is_lost)
    INTO known
    FROM (
        SELECT d.*, lost.is_lost, lost.is_lost AND EXISTS (
                   SELECT FROM skep.discoveries newer
                   WHERE newer.list_id = list AND d.id = ANY (newer.scanned) AND NOT skep._is_lost(newer, f.xid)
               ) AS is_scanned
        FROM skep.discoveries d CROSS JOIN skep.journal_floor f
        CROSS JOIN LATERAL (SELECT skep._is_lost(d, f.xid) AS is_lost) lost WHERE d.list_id = list
    ) d
    LEFT JOIN LATERAL (
        SELECT unnest(d.left_over) AS partition_id
        UNION ALL
        SELECT unnest(j.partition_ids) FROM skep.journal j
        WHERE NOT d.is_lost AND _read_discovery_state.queue_id <> 0 AND j.queue_id = _read_discovery_state.queue_id
          -- A row comparison: no other index fits it.
          AND (j.queue_id, j.xid) >= (_read_discovery_state.queue_id, pg_snapshot_xmax(d.snapshot))
        UNION ALL
        SELECT unnest(j.partition_ids) FROM pg_snapshot_xip(d.snapshot) AS running
        CROSS JOIN LATERAL (SELECT * FROM skep.journal j
                            WHERE j.queue_id = _read_discovery_state.queue_id AND j.xid = running OFFSET 0) j
        WHERE NOT d.is_lost AND _read_discovery_state.queue_id <> 0
        UNION ALL
        SELECT * FROM skep._unseen_wide_partitions(list, d.snapshot)
        WHERE NOT d.is_lost AND _read_discovery_state.queue_id = 0
    ) unseen ON true;
    RETURN known;
END $$;

-- Returns the next partitions of a list for a discovery that has to check all of them, and where the next page begins.
-- The partitions of a queue come by name. Those of a wide list come by id, and the pages contain partitions of other
-- queues too.
CREATE FUNCTION skep._partitions_after(
    list integer, queue_id integer, after text, OUT partition_ids bigint[], OUT next text
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    page_size constant integer := 2000;
BEGIN
    IF queue_id <> 0 THEN
        SELECT coalesce(array_agg(p.id), '{}'), CASE WHEN count(*) = page_size THEN max(p.name) END
        INTO partition_ids, next
        FROM (SELECT p.id, p.name FROM skep.partitions p
              WHERE p.queue_id = _partitions_after.queue_id AND p.name > after
              ORDER BY p.name LIMIT page_size) p;
    ELSE
        SELECT coalesce(array_agg(p.id) FILTER (WHERE g.id IS NOT NULL), '{}'), CASE
            WHEN count(*) = page_size THEN lpad(max(p.id)::text, 11, '0') END
        INTO partition_ids, next
        FROM (SELECT p.id, p.queue_id FROM skep.partitions p WHERE p.id > coalesce(nullif(after, ''), '0')::bigint
              ORDER BY p.id LIMIT page_size) p
        LEFT JOIN LATERAL (SELECT g.id FROM skep.group_queues g WHERE g.list_id = list AND g.queue_id = p.queue_id
                           LIMIT 1) g ON true;
    END IF;
END $$;

-- Returns when delayed_processing and window_buffer allow the next message of a partition to be delivered; NULL if the
-- queue has neither option.
CREATE FUNCTION skep._due_at(partition_id bigint, first_offset bigint, delay double precision, quiet double precision)
RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF delay = 0 AND quiet = 0 THEN
        RETURN NULL;
    END IF;
    RETURN greatest(
        (SELECT m.created_at + skep._seconds(delay) FROM skep.messages m
         WHERE m.partition_id = _due_at.partition_id AND m."offset" >= _due_at.first_offset
         ORDER BY m."offset" LIMIT 1),
        (SELECT m.created_at + skep._seconds(quiet) FROM skep.messages m
         WHERE m.partition_id = _due_at.partition_id AND m."offset" >= _due_at.first_offset
         ORDER BY m."offset" DESC LIMIT 1));
END $$;

-- Puts drained and probably drained runs into the ready list. Returns the partitions whose run was not locked.
CREATE FUNCTION skep._make_runs_ready(list integer, partition_ids bigint[], max_rows integer, stamp timestamptz)
RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ready_ids bigint[];
BEGIN
    WITH drained AS (
        SELECT r.row_id, q.delayed_processing, q.window_buffer
        FROM unnest(_make_runs_ready.partition_ids) AS unseen (id)
        CROSS JOIN LATERAL (SELECT p.queue_id FROM skep.partitions p WHERE p.id = unseen.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        CROSS JOIN LATERAL (SELECT g.id FROM skep.group_queues g WHERE g.list_id = list AND g.queue_id = p.queue_id
                            LIMIT 1) g
        CROSS JOIN LATERAL (SELECT r.ctid AS row_id FROM skep.runs r
                            WHERE r.partition_id = unseen.id AND r.group_queue_id = g.id
                            ORDER BY r.first_offset DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) r
        LIMIT max_rows
    ), ready AS (
        UPDATE skep.runs r
        SET ready_at = CASE WHEN r.lease_id IS NULL AND (r.ready_at IS NULL OR r.drained) THEN
                            greatest(skep._ready_time(r.served_at, _make_runs_ready.stamp), skep._due_at(
                                r.partition_id, r.first_offset, drained.delayed_processing, drained.window_buffer))
                            ELSE r.ready_at END,
            drained = false
        FROM drained WHERE r.ctid = drained.row_id
        RETURNING r.partition_id
    )
    SELECT array_agg(partition_id) INTO ready_ids FROM ready;
    RETURN coalesce(ready_ids, '{}');
END $$;

-- Locks partitions so that only this transaction adds runs of its group in them, and returns the partitions that it has
-- locked. A call for few partitions takes one lock for each, so that a transaction that stays open hides no other
-- partition from its group. A call for many takes one lock for all, if no other session has one, because the lock table
-- has room for a few thousand locks. Applications use advisory locks of small numbers, and may hold them for long: the
-- first byte of these keys is 's'.
CREATE FUNCTION skep._lock_starts(group_queue integer, partition_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM skep.group_queues g WHERE g.id = group_queue FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN  -- a seek, delete_group or delete_queue is running
        RETURN '{}';
    ELSIF cardinality(partition_ids) > 64 AND pg_try_advisory_xact_lock(x'736b6570'::integer, group_queue) THEN
        RETURN partition_ids;
    ELSIF NOT pg_try_advisory_xact_lock_shared(x'736b6570'::integer, group_queue) THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(SELECT id FROM unnest(partition_ids[:64]) AS id
                 WHERE pg_try_advisory_xact_lock(x'73'::bigint << 56 | group_queue::bigint << 35 | id));
END $$;

-- Adds runs of a group in partitions that it has not read yet, if there are messages from its start on. A group without
-- a run is at the start of its subscription. Returns the partitions that got a run, and those that have to be tried
-- again because they are locked.
CREATE FUNCTION skep._add_runs(
    group_queue integer, wanted bigint[], max_rows integer, stamp timestamptz, OUT added bigint[],
    OUT left_over bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    target record;  -- partitions with something to read
    locked bigint[];
BEGIN
    SELECT array_agg(s.partition_id) AS ids, g.group_name, g.queue_id INTO target
    FROM skep.group_queues g CROSS JOIN LATERAL skep._starting_offsets(g.group_name, g.queue_id, wanted) s
    WHERE g.id = group_queue AND EXISTS (SELECT FROM skep.messages m
                                         WHERE m.partition_id = s.partition_id AND m."offset" >= s.start_offset)
    GROUP BY g.group_name, g.queue_id;
    IF target.ids IS NULL THEN
        RETURN;
    END IF;
    locked := skep._lock_starts(group_queue, target.ids[:max_rows]);
    -- Lock out retention: it keeps messages from a committed start on.
    locked := ARRAY(SELECT f.partition_id FROM skep.partition_floors f WHERE f.partition_id = ANY (locked)
                  ORDER BY f.partition_id FOR KEY SHARE SKIP LOCKED);
    WITH started AS (
        INSERT INTO skep.starts (partition_id, group_queue_id, start_offset)
        SELECT s.partition_id, group_queue, s.start_offset
        FROM skep._starting_offsets(target.group_name, target.queue_id, locked) s
        ON CONFLICT DO NOTHING
        RETURNING partition_id, start_offset
    ), opened AS (
        INSERT INTO skep.runs (partition_id, group_queue_id, list_id, first_offset, ready_at, priority)
        SELECT s.partition_id, group_queue, g.list_id, s.start_offset,
               greatest(stamp - interval '100 milliseconds',
                        skep._due_at(s.partition_id, s.start_offset, q.delayed_processing, q.window_buffer)),
               CASE WHEN g.list_id = group_queue THEN 0 ELSE -q.priority END
        FROM started s JOIN skep.group_queues g ON g.id = group_queue JOIN skep.queues q ON q.id = g.queue_id
        RETURNING partition_id
    )
    SELECT array_agg(partition_id) INTO added FROM opened;
    left_over := ARRAY(SELECT unnest(target.ids) EXCEPT SELECT unnest(locked));
END $$;

-- Checks partitions with unseen pushes: drained ones become ready, and those that the group has not read get a run.
-- Returns the partitions that are locked, and the number of those that became ready.
CREATE FUNCTION skep._discover_partitions(
    list integer, partition_ids bigint[], max_rows integer, stamp timestamptz, OUT left_over bigint[], OUT ready bigint
) LANGUAGE plpgsql AS $$
DECLARE
    drained_ids bigint[];
    ready_ids   bigint[];
    unknown     record;
    added       record;
BEGIN
    left_over := '{}';
    ready := 0;
    drained_ids := ARRAY(
        SELECT unseen.id FROM unnest(partition_ids) AS unseen (id)
        CROSS JOIN LATERAL (SELECT p.queue_id FROM skep.partitions p WHERE p.id = unseen.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT g.id FROM skep.group_queues g WHERE g.list_id = list AND g.queue_id = p.queue_id
                            LIMIT 1) g
        CROSS JOIN LATERAL (SELECT r.ready_at, r.drained, r.lease_id, r.first_offset FROM skep.runs r
                            WHERE r.partition_id = unseen.id AND r.group_queue_id = g.id ORDER BY r.first_offset DESC
                            LIMIT 1) r
        WHERE r.lease_id IS NULL AND (r.ready_at IS NULL OR r.drained)
          AND EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = unseen.id AND m."offset" >= r.first_offset));
    IF drained_ids <> '{}' THEN
        ready_ids := skep._make_runs_ready(list, drained_ids, max_rows, stamp);
        ready := cardinality(ready_ids);
        left_over := ARRAY(SELECT unnest(drained_ids) EXCEPT SELECT unnest(ready_ids));
    END IF;
    FOR unknown IN
        SELECT g.id AS group_queue, array_agg(unseen.id) AS ids FROM unnest(partition_ids) AS unseen (id)
        CROSS JOIN LATERAL (SELECT p.queue_id FROM skep.partitions p WHERE p.id = unseen.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT g.id FROM skep.group_queues g WHERE g.list_id = list AND g.queue_id = p.queue_id
                            LIMIT 1) g
        WHERE NOT EXISTS (SELECT FROM skep.starts s WHERE s.partition_id = unseen.id AND s.group_queue_id = g.id)
        GROUP BY g.id
    LOOP
        added := skep._add_runs(unknown.group_queue, unknown.ids, max_rows, stamp);
        ready := ready + coalesce(cardinality(added.added), 0);
        left_over := left_over || coalesce(added.left_over, '{}');
    END LOOP;
END $$;

-- Runs discovery for a ready list. Returns true if a run became ready, or if there are partitions left to check.
-- is_timed: it is called because of the time, not because nothing was ready. max_rows: a caller inside a longer
-- transaction locks no more partitions than it leases. If that transaction stays open (is_held), every run that it
-- changes is hidden from the group: it only makes runs ready that it can lease, and leaves the other work to others.
CREATE FUNCTION skep._discover(list integer, queue_id integer, is_timed boolean, max_rows integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    stamp      timestamptz := clock_timestamp();
    is_held    boolean := max_rows < 1000000 AND transaction_timestamp() <> statement_timestamp();
    known      skep.discovery_state;
    page       record;
    is_saving  boolean;
    handled    record;
    ready      bigint := 0;
    hidden     timestamptz;
    is_scanning boolean;
    scan_from  timestamptz;
    priorities integer[];
BEGIN
    known := skep._read_discovery_state(list, queue_id, stamp);
    scan_from := coalesce(known.ready_from, '-infinity');
    IF known.is_lost AND queue_id = 0 AND NOT skep._add_covered_queues(list) THEN
        RETURN false;  -- a queue that has to be added is locked: try again later
    END IF;
    SELECT NULL::bigint[] AS partition_ids, NULL::text AS next INTO page;
    IF known.is_lost OR known.scan_after IS NOT NULL THEN
        page := skep._partitions_after(list, queue_id, CASE WHEN known.is_lost THEN '' ELSE known.scan_after END);
    END IF;
    priorities := CASE WHEN queue_id = 0 THEN skep._priorities(list) ELSE ARRAY[0] END;
    is_scanning := known.scan_at IS NULL
        OR known.scan_at + CASE WHEN is_timed THEN interval '9 seconds' ELSE interval '0' END <= stamp;
    IF known.is_ahead THEN
        scan_from := '-infinity';
        PERFORM skep._correct_future_times(list, stamp);
    ELSIF is_scanning THEN
        hidden := skep._first_ready_time(list, priorities, '-infinity');
        scan_from := least(scan_from, hidden);
    END IF;
    is_saving := known.is_lost OR page.partition_ids IS NOT NULL OR known.is_ahead OR is_timed OR is_scanning
        OR known.rows > 64 OR known.crowded
        OR (known.rows > 0 OR cardinality(known.snapshots) > 1) AND known.discovered_at < stamp - interval '1 second'
        OR known.discovered_at < stamp - interval '1 minute';
    IF queue_id = 0 AND (0 = ANY (known.partition_ids) OR known.is_lost AND skep._lacks_queue(list, NULL)) THEN
        is_saving := false;  -- a queue is locked: its unseen pushes would be lost
    END IF;
    IF is_saving THEN  -- a list that is being deleted or moved, or was deleted, gets no snapshot
        PERFORM FROM skep.group_queues g WHERE g.id = list AND g.list_id = list FOR KEY SHARE SKIP LOCKED;
        is_saving := FOUND;
    END IF;
    IF is_saving THEN  -- lock them before any run is read
        known.snapshots := ARRAY(SELECT d.id FROM skep.discoveries d
                                 WHERE d.list_id = list AND d.id = ANY (known.snapshots) FOR UPDATE SKIP LOCKED);
    END IF;

    handled := skep._discover_partitions(list, known.partition_ids || page.partition_ids, max_rows, stamp);
    ready := handled.ready;
    max_rows := CASE WHEN is_held THEN greatest(max_rows - ready, 0) ELSE max_rows END;
    ready := ready + skep._expire_leases(list, scan_from, least(max_rows, 100), stamp, is_held);
    IF is_saving OR NOT is_timed THEN
        ready := ready + (SELECT coalesce(sum(skep._clean_ready_list(
                              list, one.priority, scan_from, least(max_rows, 64), is_saving, is_held, stamp)), 0)
                          FROM unnest(priorities) AS one (priority));
    END IF;
    IF is_saving THEN
        ready := ready + skep._recheck_drained_runs(list, scan_from, least(max_rows, 500), is_held, stamp);
        PERFORM skep._save_discovery(list, known, handled.left_over, page.next, is_scanning, scan_from, priorities,
                                     stamp);
    END IF;
    RETURN ready > 0 OR known.is_ahead OR known.is_lost AND queue_id = 0 OR coalesce(hidden < known.ready_from, false)
        OR page.next IS NOT NULL;
END $$;

-- Saves the snapshot with which this discovery began, and deletes those whose unseen pushes it has handled.
CREATE FUNCTION skep._save_discovery(
    list integer, known skep.discovery_state, left_over bigint[], scan_after text, is_scanning boolean,
    scan_from timestamptz, priorities integer[], stamp timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.discoveries (list_id, snapshot, discovered_at, server_started, ready_from, scan_at, crowded,
                                  left_over, scan_after, scanned)
    VALUES (list, known.seen, stamp, pg_postmaster_start_time(),
            coalesce(least(skep._first_ready_time(list, priorities, scan_from), stamp - interval '250 milliseconds'),
                     '-infinity'),
            CASE WHEN NOT is_scanning THEN known.scan_at
                ELSE stamp + greatest(interval '1 second', 100 * (clock_timestamp() - stamp)) END,
            EXISTS (SELECT FROM skep.runs r
                    WHERE r.list_id = list AND r.ready_at IS NOT NULL AND r.lease_id IS NULL AND r.drained)
            OR (SELECT count(*) > 16 FROM (SELECT FROM unnest(priorities) AS one (priority)
                CROSS JOIN LATERAL (SELECT FROM skep.runs r
                                    WHERE r.list_id = list AND r.priority = one.priority AND r.ready_at >= scan_from
                                      AND r.ready_at <= stamp AND r.lease_id IS NULL AND NOT r.drained LIMIT 17) r
                LIMIT 17) waiting),
            nullif(left_over, '{}'), _save_discovery.scan_after, known.lost);
    DELETE FROM skep.discoveries d WHERE d.list_id = list AND d.id = ANY (known.snapshots);
END $$;
