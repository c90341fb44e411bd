-- Heads and cursors over time. Offsets are dense and cursors count what is done, so two samples tell exactly what happened between them,
-- and the hot path pays nothing.

-- The lanes of a group on a queue, met or not: what it has done and what is left.
CREATE FUNCTION skep.group_lanes(group_name text, queue_id integer, reader_id integer)
RETURNS TABLE (partition text, partition_id bigint, met boolean, consumed bigint, lag bigint, oldest_at timestamptz, last_consumed_at timestamptz,
               leased integer, lease uuid, lease_expires_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT p.name, p.id, c.met, c.cursor - c.start_offset, todo.lag, m.created_at, c.last_consumed_at, c.leased, run.token, run.expires_at
    FROM (
        SELECT c.partition_id, true AS met, c.start_offset, c.cursor, c.leased, c.last_consumed_at
        FROM skep.partitions p CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = $3 ORDER BY c.next_offset DESC LIMIT 1) c
        WHERE p.queue_id = $2
        UNION ALL
        SELECT s.partition_id, false, s.start_offset, s.start_offset, 0, NULL FROM skep.starts($1, $2, ARRAY(
            SELECT p.id FROM skep.partitions p
            WHERE p.queue_id = $2 AND NOT EXISTS (SELECT FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = $3 OFFSET 0))) s
    ) c
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = c.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = c.partition_id ORDER BY l.generation DESC LIMIT 1) l
    CROSS JOIN LATERAL (SELECT greatest(c.cursor, l.first_offset) AS at) place
    CROSS JOIN LATERAL (SELECT greatest(l.last_offset + 1 - place.at, 0) AS lag) todo
    LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE todo.lag > 0 AND m.partition_id = p.id AND m."offset" >= place.at
                       ORDER BY m."offset" LIMIT 1) m ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.leases run WHERE c.leased > 0 AND run.partition_id = p.id AND run.reader_id = $3
                          AND run.expires_at > clock_timestamp() ORDER BY run.first_offset LIMIT 1) run ON true
    WHERE p.only_group IS NULL OR p.only_group = $1
$$;

-- Several servers take turns: one sample is enough for all of them.
CREATE FUNCTION skep.sample(not_within interval DEFAULT '5 seconds') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    taken bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(x'736b6572'::integer, 0)
       OR EXISTS (SELECT FROM skep.samples s WHERE s.at > stamp - not_within AND s.at <= stamp) THEN
        RETURN 0;
    END IF;
    WITH letters AS MATERIALIZED (
        SELECT d.queue, d.group_name, count(*) AS dead FROM skep.dead_letters d GROUP BY d.queue, d.group_name
    )
    INSERT INTO skep.samples (at, queue, group_name, total, lag, leased, dead, oldest_at)
    SELECT stamp, q.name, '', coalesce(t.total, 0) + lane.total, lane.kept, 0,
           (SELECT coalesce(sum(d.dead), 0) FROM letters d WHERE d.queue = q.name), lane.oldest_at
    FROM skep.queues q
    LEFT JOIN skep.gone_totals t ON t.queue = q.name AND t.group_name = ''
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(l.last_offset + 1), 0) AS total, coalesce(sum(l.last_offset - l.first_offset + 1), 0) AS kept, min(m.created_at) AS oldest_at
        FROM skep.partitions p JOIN skep.partition_lookup l ON l.partition_id = p.id
        LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" = l.first_offset LIMIT 1) m ON true
        WHERE p.queue_id = q.id
    ) lane
    UNION ALL
    SELECT stamp, q.name, r.group_name, coalesce(t.total, 0) + lane.total, lane.lag, lane.leased,
           (SELECT coalesce(sum(d.dead), 0) FROM letters d WHERE d.queue = q.name AND d.group_name = r.group_name), lane.oldest_at
    FROM (SELECT r.group_name, r.queue_id FROM skep.readers r
          UNION
          SELECT s.group_name, q.id FROM skep.subscriptions s JOIN skep.queues q ON q.name = s.queue WHERE q.semantics <> 'queue') r
    JOIN skep.queues q ON q.id = r.queue_id
    LEFT JOIN skep.readers reader ON reader.queue_id = q.id AND reader.group_name = r.group_name
    LEFT JOIN skep.gone_totals t ON t.queue = q.name AND t.group_name = r.group_name
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(l.consumed), 0) AS total, coalesce(sum(l.lag), 0) AS lag, coalesce(sum(l.leased), 0) AS leased, min(l.oldest_at) AS oldest_at
        FROM skep.group_lanes(r.group_name, q.id, reader.id) l
    ) lane;
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken;
END $$;

-- Keeps every sample for an hour, one a minute for so long, and nothing after that: the size is bounded by queues and groups alone.
CREATE FUNCTION skep.prune_samples(keep interval DEFAULT '7 days') RETURNS bigint
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

-- Messages per second between neighbouring samples, lag, and how old the oldest message is that a group has not consumed.
CREATE FUNCTION skep.history(queue text, group_name text DEFAULT '', since interval DEFAULT '1 hour')
RETURNS TABLE (at timestamptz, rate double precision, lag bigint, leased bigint, dead bigint, lag_seconds double precision)
LANGUAGE sql STABLE AS $$
    SELECT s.at, greatest(s.total - lag(s.total) OVER (ORDER BY s.at), 0)
                 / nullif(extract(epoch FROM s.at - lag(s.at) OVER (ORDER BY s.at)), 0)::double precision,
           s.lag, s.leased, s.dead, CASE WHEN s.lag > 0 THEN extract(epoch FROM s.at - s.oldest_at)::double precision ELSE 0 END
    FROM skep.samples s WHERE s.queue = $1 AND s.group_name = $2 AND s.at >= clock_timestamp() - $3 ORDER BY s.at
$$;

-- Each queue (group '', no status) and each group on it, as of the last sample; rate: messages per second in the minute before it, NULL if
-- nobody sampled then. `visible` is the queues to look at; NULL: all.
CREATE FUNCTION skep.last_places(visible text[])
RETURNS TABLE (at timestamptz, queue text, group_name text, status text, rate double precision, lag bigint, leased bigint, dead bigint,
               seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT s.at, s.queue, s.group_name, CASE WHEN s.group_name <> '' THEN coalesce(sub.status, 'ACTIVE') END,
           greatest(s.total - before.total, 0) / nullif(extract(epoch FROM s.at - before.at), 0)::double precision, s.lag, s.leased, s.dead,
           CASE WHEN s.lag > 0 THEN greatest(extract(epoch FROM clock_timestamp() - s.oldest_at), 0)::double precision ELSE 0 END
    FROM (SELECT s.at FROM skep.samples s ORDER BY s.at DESC LIMIT 1) last
    CROSS JOIN LATERAL (SELECT * FROM skep.samples s WHERE s.at = last.at) s
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = s.queue LIMIT 1) q
    LEFT JOIN LATERAL (SELECT * FROM skep.samples b WHERE b.queue = s.queue AND b.group_name = s.group_name
                          AND b.at >= s.at - interval '1 minute' AND b.at < s.at ORDER BY b.at LIMIT 1) before ON true
    LEFT JOIN LATERAL skep.subscription_of(s.group_name, q.name, NULL, q.namespace, q.task) sub ON s.group_name <> ''
    WHERE $1 IS NULL OR s.queue = ANY ($1)
$$;

-- The same now: a sample is taken unless there is one of the last seconds. trend: the lags of five minutes, oldest first, of the so many
-- groups that are most behind.
CREATE FUNCTION skep.places(trends integer DEFAULT 0, not_within interval DEFAULT '5 seconds')
RETURNS TABLE (at timestamptz, queue text, group_name text, status text, rate double precision, lag bigint, leased bigint,
               dead_letters bigint, oldest_seconds double precision, trend bigint[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM skep.sample(places.not_within);
    RETURN QUERY
    SELECT p.*, CASE WHEN p.group_name <> '' AND row_number() OVER (ORDER BY p.group_name = '', p.lag DESC, p.queue, p.group_name) <= places.trends THEN
                    ARRAY(SELECT t.lag FROM skep.samples t WHERE t.queue = p.queue AND t.group_name = p.group_name
                             AND t.at > p.at - interval '5 minutes' AND t.at <= p.at ORDER BY t.at) END
    FROM skep.last_places(NULL) p;
END $$;
