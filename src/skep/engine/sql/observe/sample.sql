-- Samples of heads and cursors over time. Offsets are dense and cursors count done messages, so two samples show
-- exactly what happened between them, at no cost for pushes and pops.

-- Returns the partitions of a queue, or one of them, that a group reads, whether it has read from them yet (has_read)
-- or not: its start, its cursor, and the number of messages left for it, leased or not. group_queue_id is NULL if the
-- group has not read from the queue yet.
CREATE FUNCTION skep._group_partitions(
    group_name text, queue_id integer, group_queue_id integer, partition text DEFAULT NULL
)
RETURNS TABLE (partition_id bigint, partition text, has_read boolean, start_offset bigint, skipped bigint,
               cursor bigint, first_offset bigint, last_offset bigint, lag bigint, leased integer,
               last_consumed_at timestamptz)
LANGUAGE sql STABLE AS $$
    WITH requested AS MATERIALIZED (
        SELECT p.id, p.name, EXISTS (SELECT FROM skep.starts s
                                     WHERE s.partition_id = p.id
                                       AND s.group_queue_id = _group_partitions.group_queue_id OFFSET 0) AS has_read
        FROM (SELECT * FROM skep.partitions p
              WHERE _group_partitions.partition IS NULL AND p.queue_id = _group_partitions.queue_id
              UNION ALL
              SELECT * FROM skep.partitions p
              WHERE p.queue_id = _group_partitions.queue_id AND p.name = _group_partitions.partition) p
        WHERE p.only_group IS NULL OR p.only_group = _group_partitions.group_name
    )
    SELECT c.id, c.name, c.has_read, c.start_offset, c.skipped, c.cursor, f.first_offset, head.next_offset - 1,
           greatest(head.next_offset - greatest(c.cursor, f.first_offset), 0), c.leased, c.last_consumed_at
    FROM (
        SELECT p.id, p.name, true AS has_read, c.start_offset, c.skipped, c.cursor, c.leased, c.last_consumed_at
        FROM requested p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_consumers c
                            WHERE c.partition_id = p.id AND c.group_queue_id = _group_partitions.group_queue_id
                            LIMIT 1) c
        WHERE p.has_read
        UNION ALL
        SELECT p.id, p.name, false, s.start_offset, 0, s.start_offset, 0, NULL
        FROM skep._starting_offsets(_group_partitions.group_name, _group_partitions.queue_id,
                                    ARRAY(SELECT p.id FROM requested p WHERE NOT p.has_read)) s
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = s.partition_id LIMIT 1) p
    ) c
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = c.id LIMIT 1) f
    CROSS JOIN LATERAL skep._head_of(c.id) head
$$;

-- Returns the same for people and reports: with the number of processed messages (consumed), the time of the first
-- message that is left, and the first live lease of the group.
CREATE FUNCTION skep._group_report(group_name text, queue_id integer, group_queue_id integer)
RETURNS TABLE (partition text, partition_id bigint, has_read boolean, consumed bigint, lag bigint,
               oldest_at timestamptz, last_consumed_at timestamptz, leased integer, lease uuid,
               lease_expires_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT g.partition, g.partition_id, g.has_read, g.cursor - g.start_offset - g.skipped, g.lag, m.created_at,
           g.last_consumed_at, g.leased, l.lease_id, l.expires_at
    FROM skep._group_partitions($1, $2, $3) g
    LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE g.lag > 0 AND m.partition_id = g.partition_id
                          AND m."offset" >= greatest(g.cursor, g.first_offset) ORDER BY m."offset" LIMIT 1) m ON true
    LEFT JOIN LATERAL (SELECT r.lease_id, r.expires_at FROM skep.runs r
                       WHERE g.leased > 0 AND r.partition_id = g.partition_id AND r.group_queue_id = $3
                         AND r.expires_at > clock_timestamp() ORDER BY r.first_offset LIMIT 1) l ON true
$$;

-- Returns the counters of a queue (group '') and of its groups, in one pass over its partitions, because all runs of a
-- partition are adjacent. total: messages pushed, or processed, so far. lag: messages kept, or left for the group.
CREATE FUNCTION skep._count_queue(queue_id integer, queue text, semantics text)
RETURNS TABLE (group_name text, total numeric, lag numeric, leased numeric, oldest_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH part AS MATERIALIZED (
        SELECT p.id, p.only_group, f.first_offset, head.next_offset
        FROM skep.partitions p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = p.id LIMIT 1) f
        CROSS JOIN LATERAL skep._head_of(p.id) head
        WHERE p.queue_id = _count_queue.queue_id
    ), done AS MATERIALIZED (
        SELECT r.group_queue_id, count(*) AS partitions, sum(r.cursor - s.start_offset - s.skipped) AS total,
               sum(todo.lag) AS lag, sum(r.leased) AS leased, min(m.created_at) AS oldest_at
        FROM part
        CROSS JOIN LATERAL (SELECT r.group_queue_id, min(r.first_offset) AS cursor, count(r.lease_id) AS leased
                            FROM skep.runs r WHERE r.partition_id = part.id GROUP BY r.group_queue_id) r
        CROSS JOIN LATERAL (SELECT * FROM skep.starts s
                            WHERE s.partition_id = part.id AND s.group_queue_id = r.group_queue_id LIMIT 1) s
        CROSS JOIN LATERAL (SELECT greatest(part.next_offset - greatest(r.cursor, part.first_offset), 0) AS lag) todo
        LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE todo.lag > 0 AND m.partition_id = part.id
                              AND m."offset" >= greatest(r.cursor, part.first_offset)
                           ORDER BY m."offset" LIMIT 1) m ON true
        GROUP BY r.group_queue_id
    ), sizes AS MATERIALIZED (
        SELECT part.only_group, count(*) AS partitions FROM part GROUP BY part.only_group
    )
    SELECT '', coalesce(sum(part.next_offset), 0), coalesce(sum(part.next_offset - part.first_offset), 0), 0::numeric,
           min((SELECT m.created_at FROM skep.messages m
                WHERE m.partition_id = part.id AND m."offset" = part.first_offset))
    FROM part
    UNION ALL
    SELECT g.group_name, coalesce(done.total, 0), coalesce(done.lag, 0) + coalesce(new.lag, 0),
           coalesce(done.leased, 0), least(done.oldest_at, new.oldest_at)
    FROM (SELECT g.group_name FROM skep.group_queues g WHERE g.queue_id = _count_queue.queue_id
          UNION
          SELECT s.group_name FROM skep.subscriptions s WHERE s.queue = _count_queue.queue AND semantics <> 'queue') g
    LEFT JOIN skep.group_queues known ON known.queue_id = _count_queue.queue_id AND known.group_name = g.group_name
    LEFT JOIN done ON done.group_queue_id = known.id
    LEFT JOIN LATERAL (  -- partitions that the group has not read yet, if there are any
        SELECT sum(l.lag) AS lag, min(l.oldest_at) AS oldest_at
        FROM skep._group_report(g.group_name, _count_queue.queue_id, known.id) l WHERE NOT l.has_read
    ) new ON coalesce(done.partitions, 0) < (SELECT coalesce(sum(sizes.partitions), 0) FROM sizes
                                             WHERE sizes.only_group IS NULL OR sizes.only_group = g.group_name);
END $$;

-- Returns true if there was a push to the queue after this snapshot, or may have been one: journal rows were pruned, or
-- the database was restored.
CREATE FUNCTION skep._has_unseen_pushes(queue_id integer, snapshot pg_snapshot) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM skep.journal_floor f WHERE f.xid > pg_snapshot_xmin(snapshot))
        OR pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM skep.journal j
                   WHERE j.queue_id = _has_unseen_pushes.queue_id
                     AND (j.queue_id, j.xid) >= (_has_unseen_pushes.queue_id, pg_snapshot_xmin(snapshot))
                     AND NOT pg_visible_in_snapshot(j.xid, snapshot));
END $$;

-- Returns true if sample() should count the queue now and not repeat its last sample. Counting takes time in proportion
-- to partitions x groups, so a queue is counted less often the longer it takes:
--   there were pushes since the last count, or there are leases     at most a tenth of the time
--   messages are left, but nothing was pushed and nothing is leased at most a hundredth
--   no messages are left                                            at most a two-hundredth, and once a minute
-- While all counts together take less than 0.1 s, the first two are counted every time. Added and deleted groups, seek,
-- retention and deleted partitions make the next sample count.
CREATE FUNCTION skep._is_count_due(q skep.queues, previous timestamptz, all_seconds double precision, stamp timestamptz)
RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last   record;
    counts skep.sample_counts;
    groups text[];
    waited double precision;
BEGIN
    SELECT * INTO counts FROM skep.sample_counts c WHERE c.queue_id = q.id;
    IF NOT FOUND OR counts.counted_at NOT BETWEEN 'epoch' AND stamp THEN
        RETURN true;
    END IF;
    SELECT array_agg(s.group_name ORDER BY s.group_name) AS groups, sum(s.leased) AS leased,
           sum(s.lag) FILTER (WHERE s.group_name <> '') AS lag INTO last
    FROM skep.samples s WHERE s.queue = q.name AND s.at = previous;
    groups := ARRAY(SELECT '' UNION SELECT g.group_name FROM skep.group_queues g WHERE g.queue_id = q.id
                    UNION SELECT s.group_name FROM skep.subscriptions s
                        WHERE s.queue = q.name AND q.semantics <> 'queue' ORDER BY 1);
    IF last.groups IS DISTINCT FROM groups THEN
        RETURN true;
    END IF;
    waited := extract(epoch FROM stamp - counts.counted_at);
    IF last.leased > 0 OR skep._has_unseen_pushes(q.id, counts.snapshot) THEN
        RETURN all_seconds < 0.1 OR waited >= 10 * counts.seconds;
    ELSIF last.lag > 0 THEN
        RETURN all_seconds < 0.1 OR waited >= 100 * counts.seconds;
    END IF;
    RETURN waited >= greatest(60, 200 * counts.seconds);
END $$;

-- Makes the next sample count these queues. If a sample is being written, it may repeat the last count until the next
-- one is due.
CREATE FUNCTION skep._request_count(queue_ids integer[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE skep.sample_counts c SET counted_at = '-infinity'
    FROM (SELECT c.queue_id FROM skep.sample_counts c WHERE c.queue_id = ANY ($1) AND c.counted_at > '-infinity'
          ORDER BY c.queue_id FOR UPDATE SKIP LOCKED) mine
    WHERE c.queue_id = mine.queue_id
$$;

-- Counts a queue and writes its sample; returns the number of rows.
CREATE FUNCTION skep._sample_queue(q skep.queues, stamp timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    view  pg_snapshot := skep._current_snapshot();
    taken bigint;
BEGIN
    INSERT INTO skep.samples (at, queue, group_name, total, lag, leased, dead, oldest_at)
    SELECT stamp, q.name, c.group_name, coalesce(t.total, 0) + c.total, c.lag, c.leased,
           skep._count_dead_letters(q.name, c.group_name), c.oldest_at
    FROM skep._count_queue(q.id, q.name, q.semantics) c
    LEFT JOIN skep.deleted_totals t ON t.queue = q.name AND t.group_name = c.group_name;
    GET DIAGNOSTICS taken = ROW_COUNT;
    -- If it is locked, the next sample counts again.
    IF EXISTS (SELECT FROM skep.sample_counts c WHERE c.queue_id = q.id) THEN
        UPDATE skep.sample_counts c
        SET counted_at = stamp, seconds = extract(epoch FROM clock_timestamp() - began), snapshot = view
        FROM (SELECT c.queue_id FROM skep.sample_counts c WHERE c.queue_id = q.id FOR UPDATE SKIP LOCKED) mine
        WHERE c.queue_id = mine.queue_id;
    ELSE
        INSERT INTO skep.sample_counts VALUES (q.id, stamp, extract(epoch FROM clock_timestamp() - began), view);
    END IF;
    RETURN taken;
END $$;

-- Returns the number of dead letters of a queue (group '') or of a group on it.
CREATE FUNCTION skep._count_dead_letters(queue text, group_name text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF group_name = '' THEN
        RETURN (SELECT count(*) FROM skep.dead_letters d WHERE d.queue = _count_dead_letters.queue);
    END IF;
    RETURN (SELECT count(*) FROM skep.dead_letters d
            WHERE d.queue = _count_dead_letters.queue AND d.group_name = _count_dead_letters.group_name);
END $$;

-- Several servers take turns: one sample is enough for all of them. Queues that need not be counted repeat their last
-- sample.
CREATE FUNCTION skep.sample(not_within interval DEFAULT '5 seconds') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    stamp    timestamptz := clock_timestamp();
    previous timestamptz;
    seconds  double precision;
    counted  text[] := '{}';
    due      skep.queues;
    taken    bigint := 0;
    repeated bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(x'736b6572'::integer, 0)
       OR EXISTS (SELECT FROM skep.samples s WHERE s.at > stamp - not_within AND s.at <= stamp) THEN
        RETURN 0;
    END IF;
    previous := (SELECT s.at FROM skep.samples s ORDER BY s.at DESC LIMIT 1);
    DELETE FROM skep.sample_counts c
    USING (SELECT c.queue_id FROM skep.sample_counts c
           WHERE NOT EXISTS (SELECT FROM skep.queues q WHERE q.id = c.queue_id)
           FOR UPDATE SKIP LOCKED) deleted
    WHERE c.queue_id = deleted.queue_id;
    seconds := (SELECT sum(c.seconds) FROM skep.sample_counts c);
    FOR due IN SELECT * FROM skep.queues q WHERE skep._is_count_due(q, previous, seconds, stamp) LOOP
        taken := taken + skep._sample_queue(due, stamp);
        counted := counted || due.name;
    END LOOP;
    INSERT INTO skep.samples (at, queue, group_name, total, lag, leased, dead, oldest_at)
    SELECT stamp, s.queue, s.group_name, s.total, s.lag, s.leased, skep._count_dead_letters(s.queue, s.group_name),
           s.oldest_at
    FROM skep.queues q CROSS JOIN LATERAL (SELECT * FROM skep.samples s WHERE s.queue = q.name AND s.at = previous) s
    WHERE q.name <> ALL (counted);
    GET DIAGNOSTICS repeated = ROW_COUNT;
    RETURN taken + repeated;
END $$;
COMMENT ON FUNCTION skep.sample IS
    'Writes a sample of every queue and group, unless the last one is younger than not_within. Returns the number '
    'of rows.';
CALL skep._allow('skep_admin', 'sample');

-- Deletes old samples and returns their number: every sample is kept for an hour, and one per minute for the time
-- given. So the size depends on the number of queues and groups alone.
CREATE FUNCTION skep._prune_samples(keep interval DEFAULT '7 days') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
BEGIN
    DELETE FROM skep.samples s
    WHERE s.at < clock_timestamp() - keep
       OR s.at < clock_timestamp() - interval '1 hour' AND EXISTS (
           SELECT FROM skep.samples earlier WHERE earlier.queue = s.queue AND earlier.group_name = s.group_name
              AND earlier.at >= date_trunc('minute', s.at) AND earlier.at < s.at);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END $$;
CALL skep._allow('skep_admin', '_prune_samples');

CREATE FUNCTION skep.history(queue text, group_name text DEFAULT '', since interval DEFAULT '1 hour')
RETURNS TABLE (at timestamptz, rate double precision, lag bigint, leased bigint, dead bigint,
               lag_seconds double precision)
LANGUAGE sql STABLE AS $$
    SELECT s.at, greatest(s.total - lag(s.total) OVER (ORDER BY s.at), 0)
                 / nullif(extract(epoch FROM s.at - lag(s.at) OVER (ORDER BY s.at)), 0)::double precision,
           s.lag, s.leased, s.dead, CASE WHEN s.lag > 0 THEN extract(epoch FROM s.at - s.oldest_at)::double precision
               ELSE 0 END
    FROM skep.samples s WHERE s.queue = $1 AND s.group_name = $2 AND s.at >= clock_timestamp() - $3 ORDER BY s.at
$$;
COMMENT ON FUNCTION skep.history IS
    'Returns messages per second between samples, lag, and the age of the oldest message that the group has not '
    'completed. group_name '''' is the queue itself.';
CALL skep._allow('skep_admin', 'history');

-- Returns each queue (group '', no status) and each group on it, as of the last sample. rate: messages per second in
-- the minute before it, NULL without an earlier sample in that minute. visible: the queues to return; NULL: all.
CREATE FUNCTION skep._last_progress(visible text[])
RETURNS TABLE (at timestamptz, queue text, group_name text, status text, rate double precision, lag bigint,
               leased bigint, dead bigint, seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT s.at, s.queue, s.group_name, CASE WHEN s.group_name <> '' THEN coalesce(sub.status, 'ACTIVE') END,
           greatest(s.total - before.total, 0) / nullif(extract(epoch FROM s.at - before.at), 0)::double precision,
           s.lag, s.leased, s.dead,
           CASE WHEN s.lag > 0 THEN greatest(extract(epoch FROM clock_timestamp() - s.oldest_at), 0)::double precision
               ELSE 0 END
    FROM (SELECT s.at FROM skep.samples s ORDER BY s.at DESC LIMIT 1) last
    CROSS JOIN LATERAL (SELECT * FROM skep.samples s WHERE s.at = last.at) s
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = s.queue LIMIT 1) q
    LEFT JOIN LATERAL (SELECT * FROM skep.samples b WHERE b.queue = s.queue AND b.group_name = s.group_name
                          AND b.at >= s.at - interval '1 minute' AND b.at < s.at ORDER BY b.at LIMIT 1) before ON true
    LEFT JOIN LATERAL skep._subscription_of(s.group_name, q.name, NULL, q.namespace, q.task) sub ON s.group_name <> ''
    WHERE $1 IS NULL OR s.queue = ANY ($1)
$$;

-- Returns the same as of now: takes a sample unless there is a recent one. trend: the lags of the last five minutes,
-- oldest first, for the `trends` groups that are most behind.
CREATE FUNCTION skep._current_progress(trends integer DEFAULT 0, not_within interval DEFAULT '5 seconds')
RETURNS TABLE (at timestamptz, queue text, group_name text, status text, rate double precision, lag bigint,
               leased bigint, dead_letters bigint, oldest_seconds double precision, trend bigint[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM skep.sample(_current_progress.not_within);
    RETURN QUERY
    SELECT p.*, CASE WHEN p.group_name <> ''
                          AND row_number() OVER (ORDER BY p.group_name = '', p.lag DESC, p.queue, p.group_name)
                              <= _current_progress.trends THEN
                    ARRAY(SELECT t.lag FROM skep.samples t WHERE t.queue = p.queue AND t.group_name = p.group_name
                             AND t.at > p.at - interval '5 minutes' AND t.at <= p.at ORDER BY t.at) END
    FROM skep._last_progress(NULL) p;
END $$;
CALL skep._allow('skep_admin', '_current_progress');
