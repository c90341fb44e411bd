-- Returns the last sample for Prometheus, and takes a new one unless the last is only seconds old. It reads heads and
-- cursors and counts no messages.
CREATE FUNCTION skep._metrics()
RETURNS TABLE (queue text, group_name text, total bigint, lag bigint, leased bigint, dead bigint,
               oldest_seconds double precision)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep.sample();
    RETURN QUERY
    SELECT s.queue, s.group_name, s.total, s.lag, s.leased, s.dead,
           CASE WHEN s.lag > 0 THEN greatest(extract(epoch FROM clock_timestamp() - s.oldest_at), 0)::double precision
               ELSE 0 END
    FROM skep.samples s WHERE s.at = (SELECT max(latest.at) FROM skep.samples latest) ORDER BY s.queue, s.group_name;
END $$;
CALL skep._allow('skep_admin', '_metrics');
