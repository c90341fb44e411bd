-- Returns for each of these waiting groups whether a pop may find something: a ready run, an expired lease, a due
-- message, or a push that discovery has not seen. It is an estimate for many groups at once, so that thousands of
-- waiting polls cost one statement a second; pop decides. A ready list with more than 64 runs, all drained, and
-- probably drained runs count too: the pop cleans them up.
CREATE FUNCTION skep._has_work(queues text[], groups text[]) RETURNS boolean[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    RETURN (
        SELECT array_agg(q.id IS NOT NULL AND (g.id IS NULL OR d.is_due IS NOT FALSE OR coalesce(ready.is_due, false)
                                               OR leased.partition_id IS NOT NULL OR drained.partition_id IS NOT NULL
                                               OR unseen.xid IS NOT NULL OR delayed.id IS NOT NULL)
                         ORDER BY requested.n)
        FROM unnest(_has_work.queues, _has_work.groups) WITH ORDINALITY AS requested (queue, group_name, n)
        LEFT JOIN skep.queues q ON q.name = requested.queue
        LEFT JOIN skep.group_queues g ON g.queue_id = q.id
            AND g.group_name = skep._group_of(q.semantics, requested.group_name)
        LEFT JOIN LATERAL (
            SELECT d.snapshot, d.left_over IS NOT NULL OR d.scan_after IS NOT NULL OR d.discovered_at > stamp
                               OR d.server_started <> pg_postmaster_start_time()
                               OR pg_snapshot_xmin(d.snapshot) < f.xid AS is_due
            FROM skep.discoveries d CROSS JOIN skep.journal_floor f WHERE d.list_id = g.list_id ORDER BY d.id DESC
            LIMIT 1) d ON true
        LEFT JOIN LATERAL (
            SELECT count(*) > 64
                   OR bool_or(EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = r.partition_id
                                         AND m."offset" >= r.first_offset)) AS is_due
            FROM (SELECT r.partition_id, r.first_offset FROM skep.runs r
                  WHERE r.list_id = g.list_id AND r.priority = CASE WHEN g.list_id = g.id THEN 0 ELSE -q.priority END
                    AND r.ready_at <= stamp AND r.lease_id IS NULL AND NOT r.drained ORDER BY r.ready_at
                        LIMIT 65) r) ready ON true
        LEFT JOIN LATERAL (SELECT r.partition_id FROM skep.runs r
                           WHERE r.list_id = g.list_id AND r.ready_at <= stamp AND r.lease_id IS NOT NULL
                           ORDER BY r.ready_at LIMIT 1) leased ON true
        LEFT JOIN LATERAL (SELECT r.partition_id FROM skep.runs r
                           WHERE r.list_id = g.list_id AND r.ready_at IS NOT NULL AND r.lease_id IS NULL AND r.drained
                           ORDER BY r.ready_at LIMIT 1) drained ON true
        LEFT JOIN LATERAL (
            (SELECT j.xid FROM skep.journal j WHERE j.queue_id = q.id AND j.xid >= pg_snapshot_xmax(d.snapshot) LIMIT 1)
            UNION ALL
            (SELECT j.xid FROM pg_snapshot_xip(d.snapshot) AS running
             CROSS JOIN LATERAL (SELECT j.xid FROM skep.journal j WHERE j.queue_id = q.id AND j.xid = running
                                 LIMIT 1) j LIMIT 1)
            LIMIT 1) unseen ON true
        LEFT JOIN LATERAL (SELECT d.id FROM skep.delayed_messages d WHERE d.queue_id = q.id AND d.due_at <= stamp
                           ORDER BY d.due_at LIMIT 1) delayed ON true);
END $$;
CALL skep._allow('skep_consumer', '_has_work');
