-- The partitions that upkeep visits for retention. The cost depends on the number of changes, not on the number of
-- partitions.

-- Returns the partitions of queues with a retention rule that had pushes since this snapshot.
CREATE FUNCTION skep._pushed_since(snapshot pg_snapshot) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT unnest(j.partition_ids) FROM skep.journal j
        CROSS JOIN LATERAL (SELECT FROM skep.queues q WHERE q.id = j.queue_id AND skep._has_retention(q) LIMIT 1) q
        WHERE j.xid >= pg_snapshot_xmin(snapshot) AND NOT pg_visible_in_snapshot(j.xid, snapshot));
END $$;

-- Returns true if the runs of a queue do not show which messages are completed: retention waits for the archive, a
-- group is dead or cancelled or has not read from the queue yet, or a group has a subscription to a single partition.
CREATE FUNCTION skep._is_completion_unclear(q skep.queues) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT ($1).retain_until_archived OR ($1).semantics <> 'queue' AND EXISTS (
        SELECT FROM skep.subscriptions s
        WHERE (s.queue = ($1).name OR s.queue IS NULL) AND (
            s.status IN ('DEAD', 'CANCELLED') OR s.partition IS NOT NULL
            OR NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.group_name = s.group_name AND g.queue_id = ($1).id)))
$$;

-- Returns the offset below which all groups that have read from the queue have completed a partition; NULL if one of
-- them has no run there.
CREATE FUNCTION skep._completed_by_all(partition_id bigint, queue_id integer, was_shared boolean) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN count(*) = count(newest.first_offset)
        THEN (SELECT low.run FROM skep._lowest_runs($1, $2, $3) low) END
    FROM skep.group_queues g
    LEFT JOIN LATERAL (SELECT r.first_offset FROM skep.runs r WHERE r.partition_id = $1 AND r.group_queue_id = g.id
                       ORDER BY r.first_offset DESC LIMIT 1) newest ON true
    WHERE g.queue_id = $2
$$;

-- Returns the cost of a visit to a partition: 0 if retention has nothing to do, 1 if it has, 5 if it may have. is_idle:
-- the partition may be dropped. It is cheap, because upkeep calls it for thousands of partitions; retain() decides.
CREATE FUNCTION skep._visit_cost(
    p skep.partitions, q skep.queues, is_unclear boolean, stamp timestamptz, OUT cost integer, OUT is_idle boolean
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    floor skep.partition_floors;
    since timestamptz;  -- of the first message
    keep  double precision := q.completed_retention_seconds;
    known bigint;       -- last offset of the samples
    done  bigint;
BEGIN
    cost := 0;
    is_idle := false;
    SELECT * INTO floor FROM skep.partition_floors f WHERE f.partition_id = p.id;
    since := (SELECT m.created_at FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" >= floor.first_offset
              ORDER BY m."offset" LIMIT 1);
    IF since IS NULL THEN
        is_idle := coalesce(greatest(p.created_at, floor.deleted_created_at) < stamp
                            - skep._seconds(q.drop_idle_seconds), false);
    ELSIF since <= stamp - skep._seconds(least(q.retention_seconds, q.zero_subscriber_retention_seconds))
          OR q.max_size IS NOT NULL AND EXISTS (
             SELECT FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" >= floor.first_offset + q.max_size)
          OR floor.completed_times[1] <= stamp - skep._seconds(keep) THEN
        cost := CASE WHEN is_unclear THEN 5 ELSE 1 END;
    ELSIF keep IS NOT NULL AND (floor.completed_times[cardinality(floor.completed_times)] > stamp
                                - skep._seconds(keep) / 8) IS NOT TRUE THEN
        known := coalesce(floor.completed_offsets[cardinality(floor.completed_offsets)], floor.first_offset);
        IF NOT EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = p.id AND m."offset" >= known) THEN
            RETURN;  -- everything is completed
        ELSIF is_unclear THEN
            cost := 5;
        ELSE
            done := skep._completed_by_all(p.id, q.id, q.was_shared);
            cost := CASE WHEN done > known THEN 1 WHEN done IS NULL THEN 5 ELSE 0 END;
        END IF;
    END IF;
END $$;

-- Returns partitions that may have messages to delete (due), and those that may be dropped because they are empty and
-- idle. Upkeep calls it every few seconds:
--  1. partitions with pushes since the last call: max_size, and messages that were completed meanwhile;
--  2. the next partitions in order of id, because messages age and are completed without pushes. It examines at
--     most 500 a second and 5,000 a call, and returns at most 1,000 of them, fewer if it is unclear whether there is
--     something to do. The call after the last partition begins with the first.
-- Calls that run at once share the work: the second returns nothing.
CREATE FUNCTION skep._partitions_due(OUT due bigint[], OUT idle bigint[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    budget constant integer := 1000;
    stamp  timestamptz := clock_timestamp();
    visits skep.retention_visits;
    size   bigint;
    share  record;
BEGIN
    due := '{}';
    idle := '{}';
    SELECT * INTO visits FROM skep.retention_visits FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR NOT EXISTS (SELECT FROM skep.queues q
                                WHERE skep._has_retention(q) OR q.drop_idle_seconds IS NOT NULL) THEN
        RETURN;
    END IF;
    size := least(5000, greatest(budget, 500 * extract(epoch FROM stamp - visits.visited_at)));
    WITH page AS MATERIALIZED (
        SELECT p FROM skep.partitions p WHERE p.id > visits.visited_to ORDER BY p.id LIMIT size
    ), kind AS MATERIALIZED (
        SELECT q, q.id, skep._is_completion_unclear(q) AS is_unclear FROM skep.queues q
        WHERE q.id IN (SELECT (p).queue_id FROM page) AND (skep._has_retention(q) OR q.drop_idle_seconds IS NOT NULL)
    )
    SELECT count(*) AS number, max(s.id) FILTER (WHERE s.spent <= budget) AS last, max(s.spent) > budget AS is_cut,
           array_agg(s.id) FILTER (WHERE s.cost > 0 AND s.spent <= budget) AS due,
           array_agg(s.id) FILTER (WHERE s.is_idle AND s.spent <= budget) AS idle
    INTO share FROM (
        SELECT (page.p).id, v.cost, v.is_idle,
               sum(coalesce(v.cost, 0) + coalesce(v.is_idle, false)::integer) OVER (ORDER BY (page.p).id) AS spent
        FROM page
        LEFT JOIN kind ON kind.id = (page.p).queue_id
        LEFT JOIN LATERAL skep._visit_cost(page.p, kind.q, kind.is_unclear, stamp) v ON kind.id IS NOT NULL
    ) s;
    due := ARRAY(SELECT unnest(share.due) UNION SELECT unnest(skep._pushed_since(visits.snapshot)));
    idle := coalesce(share.idle, '{}');
    UPDATE skep.retention_visits SET visited_at = stamp, snapshot = skep._current_snapshot(),
        visited_to = CASE WHEN share.number = size OR share.is_cut THEN share.last ELSE 0 END;
END $$;
CALL skep._allow('skep_admin', '_partitions_due');
