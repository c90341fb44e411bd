-- Extending and releasing leases by Queen's ids.

-- Extends every live lease of an id, and never shortens one. Returns the number of partitions, and the earliest expiry.
CREATE FUNCTION skep._queen_extend(
    lease uuid, seconds double precision, OUT partition_count bigint, OUT expires_at timestamptz
)
LANGUAGE plpgsql AS $$
DECLARE
    stamp        timestamptz := clock_timestamp();
    group_queues integer[];
BEGIN
    IF seconds IS NULL OR seconds NOT BETWEEN 0.001 AND 604800 THEN
        PERFORM skep._refuse('SK001', format('seconds must be between 0.001 and 604800, got %s',
                                             coalesce(seconds::text, 'NULL')), '');
    END IF;
    WITH extended AS (
        UPDATE skep.runs r SET expires_at = greatest(r.expires_at, stamp + skep._seconds(_queen_extend.seconds))
        FROM (SELECT id, skep._partition_of_lease(id) AS partition_id, skep._group_queue_of_lease(id) AS group_queue_id
              FROM unnest(skep._leases_of(ARRAY[_queen_extend.lease])) AS id ORDER BY id) leased
        WHERE r.partition_id = ANY (ARRAY[leased.partition_id]) AND r.group_queue_id = leased.group_queue_id
          AND r.lease_id IS NOT DISTINCT FROM leased.id AND r.expires_at > stamp
        RETURNING r.partition_id, r.group_queue_id, r.expires_at
    )
    SELECT count(DISTINCT e.partition_id), min(e.expires_at), array_agg(DISTINCT e.group_queue_id)
    INTO partition_count, _queen_extend.expires_at, group_queues FROM extended e;
    PERFORM skep._record_activity(one.id) FROM unnest(group_queues) AS one (id);
END $$;
CALL skep._allow('skep_consumer', '_queen_extend');

-- Releases every live lease of an id, and returns their number.
CREATE FUNCTION skep._queen_release(lease uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    leases uuid[] := skep._leases_of(ARRAY[_queen_release.lease]);
BEGIN
    RETURN (SELECT count(*) FROM skep._apply_acks(leases, NULL, NULL,
                                                  array_fill('release'::text, ARRAY[cardinality(leases)]), NULL) a
            WHERE a.applied);
END $$;
CALL skep._allow('skep_consumer', '_queen_release');

-- Returns the queues of the partitions in a lease id. Only these, and no names that the caller gives, decide about the
-- caller's rights.
CREATE FUNCTION skep._queen_lease_queues(lease uuid) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT q.name FROM unnest(skep._leases_of(ARRAY[$1])) AS member (id)
    CROSS JOIN LATERAL (SELECT p.queue_id FROM skep.partitions p WHERE p.id = skep._partition_of_lease(member.id)
                        LIMIT 1) p
    CROSS JOIN LATERAL (SELECT q.name FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
$$;
CALL skep._allow('skep_consumer', '_queen_lease_queues');
