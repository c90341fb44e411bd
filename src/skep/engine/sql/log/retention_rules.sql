-- The groups that require the messages of a partition, and the messages that may be deleted. Computed, never stored:
-- see retain.sql.

-- Returns every group that reads these partitions, and its progress. A work queue always has one group, also before its
-- first consumer.
--   position        everything below is done, skipped or deleted
--   required_from   the first offset that was ever required; without backfill this is where the subscription began
--   pending_from    the first offset that is still required
--   required_since  when the group subscribed, or was last moved by a seek
CREATE FUNCTION skep._group_cursors(partition_ids bigint[])
RETURNS TABLE (partition_id bigint, group_name text, status text, group_queue_id integer, "position" bigint,
               pending_from bigint, is_required boolean, required_from bigint, required_since timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT g.partition_id, g.group_name, g.status, g.group_queue_id, g."position",
           greatest(g."position", g.required_from), g.status IN ('ACTIVE', 'PAUSED') OR g.status = 'DEAD'
               AND g.status_changed_at > clock_timestamp() - skep._seconds(g.grace),
           g.required_from, g.required_since
    FROM (
        SELECT p.id AS partition_id, member.group_name, coalesce(s.status, 'ACTIVE') AS status, s.status_changed_at,
               q.dead_group_grace_seconds AS grace, g.id AS group_queue_id,
               coalesce(s.created_at, '-infinity') AS required_since,
               greatest(coalesce(least(newest.first_offset, closed.lowest), st.start_offset),
                        f.first_offset) AS "position",
               greatest(coalesce(started.start_offset, st.start_offset), CASE WHEN NOT s.backfill THEN
                        skep._offset_at(p.id, s.created_at, s.start_snapshot) END) AS required_from
        FROM unnest($1) AS requested (id)
        CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = requested.id LIMIT 1) p
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = requested.id LIMIT 1) f
        CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
        CROSS JOIN LATERAL (
            SELECT s.group_name FROM skep.subscriptions s WHERE s.queue = q.name AND q.semantics <> 'queue'
            UNION
            SELECT s.group_name FROM skep.subscriptions s
            WHERE s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = q.namespace)
              AND (s.task IS NULL OR s.task = q.task) AND q.semantics <> 'queue'
            UNION
            SELECT '__QUEUE_MODE__' WHERE q.semantics = 'queue'
        ) member
        LEFT JOIN LATERAL skep._subscription_of(member.group_name, q.name, p.name, q.namespace, q.task) s ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.group_queues g
                           WHERE g.group_name = member.group_name AND g.queue_id = q.id LIMIT 1) g ON true
        LEFT JOIN LATERAL (SELECT * FROM skep.starts t WHERE t.partition_id = p.id AND t.group_queue_id = g.id
                           LIMIT 1) started ON true
        LEFT JOIN LATERAL (SELECT r.first_offset FROM skep.runs r
                           WHERE r.partition_id = p.id AND r.group_queue_id = g.id
                           ORDER BY r.first_offset DESC LIMIT 1) newest ON true
        LEFT JOIN LATERAL (SELECT min(r.first_offset) AS lowest FROM skep.runs r
                           WHERE q.was_shared AND r.partition_id = p.id
                              AND r.group_queue_id = g.id AND r.first_offset < newest.first_offset) closed ON true
        LEFT JOIN LATERAL (SELECT * FROM skep._starting_offsets(member.group_name, q.id, ARRAY[p.id])
                           WHERE newest.first_offset IS NULL) st ON true
        WHERE (p.only_group IS NULL OR p.only_group = member.group_name)
          AND (s.id IS NOT NULL OR q.semantics = 'queue' OR p.only_group IS NOT NULL)
    ) g
$$;

-- Returns the first offset of the lowest run of a partition, and of its lowest lease, of all groups whatever their
-- subscriptions. Only a queue that had concurrency > 1 has more than open runs: others need not scan the index entries
-- of runs that have moved.
CREATE FUNCTION skep._lowest_runs(partition_id bigint, queue_id integer, was_shared boolean)
RETURNS TABLE (run bigint, lease bigint) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT min(r.first_offset), min(r.first_offset) FILTER (WHERE r.lease_id IS NOT NULL)
    FROM (SELECT g.id FROM skep.group_queues g WHERE g.queue_id = $2 OFFSET 0) g
    CROSS JOIN LATERAL (
        (SELECT r.first_offset, r.lease_id FROM skep.runs r WHERE r.partition_id = $1 AND r.group_queue_id = g.id
         ORDER BY r.first_offset DESC LIMIT 1)
        UNION ALL
        SELECT r.first_offset, r.lease_id FROM skep.runs r WHERE $3 AND r.partition_id = $1 AND r.group_queue_id = g.id
           AND r.end_offset IS NOT NULL
    ) r
$$;

-- completed_retention_seconds counts from the time at which the last group completed a message. That time is not stored
-- for each message: each partition has a few samples (offset, time), which say that all messages below the offset were
-- completed by then. Retention takes a sample when the completed offset has grown and the last sample is older than an
-- eighth of completed_retention_seconds. A message is kept a little longer than necessary, never shorter.

-- Returns the current samples of a partition. A new one is added if it is due. Messages that are required again are not
-- completed. A group that subscribed or was moved after a sample (newer_since) is not part of it: from the group's new
-- start on (newer_from), the sample does not count. Useless samples are dropped: those below the floor, and those with
-- a later sample that is old enough too.
CREATE FUNCTION skep._next_samples(
    INOUT offsets bigint[], INOUT times timestamptz[], first_offset bigint, completed bigint, keep double precision,
    newer_from bigint[], newer_since timestamptz[], stamp timestamptz
) LANGUAGE plpgsql IMMUTABLE AS $$
#variable_conflict use_column
DECLARE
    stored record;
BEGIN
    SELECT array_agg(s."offset") AS offsets, array_agg(s.at) AS times INTO stored FROM (
        SELECT least(s."offset", _next_samples.completed,
                     (SELECT min(g.start) FROM unnest(newer_from, newer_since) AS g (start, since)
                      WHERE g.since > s.at)) AS "offset", s.at
        FROM unnest(_next_samples.offsets, _next_samples.times) AS s ("offset", at)) s
    WHERE s."offset" > _next_samples.first_offset;
    SELECT array_agg(s."offset" ORDER BY s.at), array_agg(s.at ORDER BY s.at) INTO offsets, times FROM (
        SELECT s."offset", min(s.at) AS at FROM (
            SELECT s."offset", s.at, lead(s.at) OVER (ORDER BY s.at) AS next_at
            FROM unnest(stored.offsets, stored.times) AS s ("offset", at)
            UNION ALL
            SELECT _next_samples.completed, stamp, NULL
            WHERE NOT EXISTS (SELECT FROM unnest(stored.times) AS at WHERE at > stamp - skep._seconds(keep) / 8)
        ) s
        WHERE s."offset" > _next_samples.first_offset AND (s.next_at > stamp - skep._seconds(keep)) IS NOT FALSE
        GROUP BY s."offset"
    ) s;
END $$;

-- Returns the offset below which everything was completed at this time.
CREATE FUNCTION skep._completed_at(offsets bigint[], times timestamptz[], instant timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(max(s."offset"), 0) FROM unnest($1, $2) AS s ("offset", at) WHERE s.at <= $3
$$;

-- Returns for each partition with messages, of a queue with a retention rule, the offset below which messages may be
-- deleted now (NULL: no rule allows it) and the rule. The rule that allows most counts. Leases, and the archive if
-- retention waits for it, limit the offset.
--   lowest        the lowest cursor of any group
--   sample_…      the current samples for completed_retention_seconds
--   is_sampled    the stored samples are the current ones
CREATE FUNCTION skep._retention_of(partition_ids bigint[])
RETURNS TABLE (queue text, partition text, partition_id bigint, first_offset bigint, cut bigint, rule text,
               lowest bigint, sample_offsets bigint[], sample_times timestamptz[], is_sampled boolean)
LANGUAGE sql STABLE AS $$
    SELECT q.name, p.name, p.id, f.first_offset,
           CASE WHEN choice.cut IS NOT NULL THEN
                least(choice.cut, head.next_offset, runs.lease,
                      CASE WHEN q.retain_until_archived THEN coalesce(a.end_offset, 0) END) END,
           choice.rule, least(groups.lowest, runs.run), samples.offsets, samples.times,
           samples IS NULL
               OR (samples.offsets, samples.times) IS NOT DISTINCT FROM (f.completed_offsets, f.completed_times)
    FROM unnest($1) AS requested (id)
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = requested.id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = requested.id LIMIT 1) f
    CROSS JOIN LATERAL (SELECT * FROM skep._head_of(requested.id) head
                        WHERE head.next_offset > f.first_offset LIMIT 1) head
    CROSS JOIN LATERAL skep._lowest_runs(requested.id, q.id, q.was_shared) runs
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE o.is_required) AS number,
               min(o.pending_from) FILTER (WHERE o.is_required) AS completed,
               min(o."position") FILTER (WHERE o.status <> 'CANCELLED') AS lowest,
               array_agg(greatest(o.required_from, (SELECT s.start_offset
                                                    FROM skep._starting_offsets(o.group_name, q.id,
                                                        ARRAY[requested.id]) s)))
                   FILTER (WHERE o.is_required AND o.required_since > f.completed_times[1]) AS newer_from,
               array_agg(o.required_since) FILTER (WHERE o.is_required AND o.required_since > f.completed_times[1])
                   AS newer_since
        FROM skep._group_cursors(ARRAY[requested.id]) o
    ) groups
    LEFT JOIN LATERAL (
        SELECT s.offsets, s.times FROM skep._next_samples(f.completed_offsets, f.completed_times, f.first_offset,
            groups.completed, q.completed_retention_seconds, groups.newer_from, groups.newer_since, clock_timestamp()) s
        WHERE q.completed_retention_seconds > 0 AND groups.number > 0
    ) samples ON true
    LEFT JOIN LATERAL (SELECT * FROM skep.archive_marks a WHERE a.partition_id = requested.id LIMIT 1) a ON true
    LEFT JOIN LATERAL (
        SELECT candidate.rule, candidate.cut FROM (VALUES
            ('retention_seconds', CASE WHEN q.retention_seconds IS NOT NULL THEN
                skep._offset_at(p.id, clock_timestamp() - skep._seconds(q.retention_seconds)) END),
            ('max_size', CASE WHEN q.max_size IS NOT NULL THEN head.next_offset - q.max_size END),
            ('completed_retention_seconds', CASE
             WHEN groups.number > 0 AND q.completed_retention_seconds = 0 THEN groups.completed
                WHEN groups.number > 0 AND q.completed_retention_seconds > 0 THEN
                least(groups.completed, skep._completed_at(samples.offsets, samples.times,
                    clock_timestamp() - skep._seconds(q.completed_retention_seconds))) END),
            ('zero_subscriber_retention_seconds', CASE
             WHEN q.zero_subscriber_retention_seconds IS NOT NULL AND groups.number = 0 THEN
                skep._offset_at(p.id, clock_timestamp() - skep._seconds(q.zero_subscriber_retention_seconds)) END)
        ) AS candidate (rule, cut)
        WHERE candidate.cut IS NOT NULL ORDER BY candidate.cut DESC LIMIT 1
    ) choice ON true
    WHERE skep._has_retention(q)
$$;

CREATE FUNCTION skep._has_retention(q skep.queues) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT num_nonnulls($1.retention_seconds, $1.max_size, $1.completed_retention_seconds,
                        $1.zero_subscriber_retention_seconds) > 0
$$;

-- Returns the partitions from which messages may be deleted, up to which offset, and by which rule.
CREATE FUNCTION skep._retainable(partition_ids bigint[])
RETURNS TABLE (queue text, partition text, partition_id bigint, first_offset bigint, cut bigint, rule text)
LANGUAGE sql STABLE AS $$
    SELECT r.queue, r.partition, r.partition_id, r.first_offset, r.cut, r.rule FROM skep._retention_of($1) r
    WHERE r.cut > r.first_offset
$$;
