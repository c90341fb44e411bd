-- The health of groups: status, lag, and the groups that retention waits for. Everything is computed from runs and
-- subscriptions: nothing is stored, so nothing can drift.

-- Returns the queues that groups have read, or are subscribed to.
CREATE FUNCTION skep._groups_on_queues()
RETURNS TABLE (group_name text, queue text, queue_id integer, namespace text, task text)
LANGUAGE sql STABLE AS $$
    SELECT g.group_name, q.name, q.id, q.namespace, q.task FROM skep.group_queues g
    JOIN skep.queues q ON q.id = g.queue_id
    UNION
    SELECT s.group_name, s.queue, q.id, coalesce(q.namespace, ''), coalesce(q.task, '')
    FROM skep.subscriptions s LEFT JOIN skep.queues q ON q.name = s.queue
    WHERE s.queue IS NOT NULL AND (q.semantics IS DISTINCT FROM 'queue' OR s.group_name = '__QUEUE_MODE__')
    UNION
    SELECT s.group_name, q.name, q.id, q.namespace, q.task FROM skep.subscriptions s
    JOIN skep.queues q ON (s.namespace IS NULL OR q.namespace = s.namespace) AND (s.task IS NULL OR q.task = s.task)
    WHERE s.queue IS NULL AND q.semantics <> 'queue'
$$;

-- processed does not count messages that the group missed or skipped. last_heartbeat_at is now if the group has a live
-- lease.
CREATE FUNCTION skep.group_status(group_name text DEFAULT NULL, queue text DEFAULT NULL)
RETURNS TABLE (group_name text, queue text, status text, mode text, partitions bigint, lag bigint, leased bigint,
               processed bigint, dead_letters bigint, missed bigint, last_consumed_at timestamptz,
               last_heartbeat_at timestamptz, missed_heartbeats integer, oldest_pending_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT g.group_name, g.queue, coalesce(s.status, 'ACTIVE'), s.mode, work.partitions, work.lag, work.leased,
           work.processed,
           (SELECT count(*) FROM skep.dead_letters d WHERE d.queue = g.queue AND d.group_name = g.group_name),
           (SELECT coalesce(sum(m.messages), 0)::bigint FROM skep.missed_messages m
            WHERE m.queue = g.queue AND m.group_name = g.group_name),
           work.last_consumed_at, CASE WHEN life.silence = 0 THEN clock_timestamp() ELSE s.last_heartbeat_at END,
           CASE WHEN s.status = 'ACTIVE' THEN skep._missed_heartbeats(life.silence, s.heartbeat_interval) ELSE 0 END,
               work.oldest_pending_at
    FROM skep._groups_on_queues() g
    LEFT JOIN skep.group_queues known ON known.queue_id = g.queue_id AND known.group_name = g.group_name
    LEFT JOIN LATERAL skep._subscription_of(g.group_name, g.queue, NULL, g.namespace, g.task) s ON true
    LEFT JOIN LATERAL (SELECT skep._silence_of(s, clock_timestamp()) AS silence WHERE s.id IS NOT NULL) life ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS partitions, coalesce(sum(l.lag), 0)::bigint AS lag, coalesce(sum(l.leased), 0) AS leased,
               max(l.last_consumed_at) AS last_consumed_at, coalesce(sum(l.consumed), 0)::bigint AS processed,
               min(l.oldest_at) AS oldest_pending_at
        FROM skep._group_report(g.group_name, g.queue_id, known.id) l
        WHERE known.id IS NOT NULL OR s.id IS NOT NULL  -- or it reads only some partitions
           OR EXISTS (SELECT FROM skep.subscriptions own
                      WHERE own.group_name = g.group_name AND own.queue = g.queue AND own.partition = l.partition)
    ) work
    WHERE ($1 IS NULL OR g.group_name = $1) AND ($2 IS NULL OR g.queue = $2)
$$;
COMMENT ON FUNCTION skep.group_status IS
    'Returns the health of groups on queues: status, lag, leases, processed, missed and dead-lettered messages, the '
    'last heartbeat and missed heartbeats.';
CALL skep._allow('skep_admin', 'group_status');

-- Returns each group that reads a partition, with the offsets that it has completed, those that are leased, and those
-- that wait to be delivered again. first_offset: the group does not read messages below it.
CREATE FUNCTION skep._groups_of(partition_id bigint)
RETURNS TABLE (group_name text, status text, is_required boolean, pending_from bigint, first_offset bigint,
               completed int8multirange, leased int8multirange, returned int8multirange)
LANGUAGE sql STABLE AS $$
    SELECT o.group_name, o.status, o.is_required, o.pending_from, coalesce(s.start_offset, o."position"),
           int8multirange(int8range(NULL, run.open_from)) - run.given + run.done, run.leased - run.done,
               run.given - run.leased - run.done
    FROM skep._group_cursors(ARRAY[$1]) o
    LEFT JOIN LATERAL (SELECT * FROM skep.starts s WHERE s.partition_id = $1 AND s.group_queue_id = o.group_queue_id
                       LIMIT 1) s ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(max(r.first_offset) FILTER (WHERE r.end_offset IS NULL), o."position") AS open_from,
               coalesce(range_agg(int8range(r.first_offset,
                                            greatest(r.end_offset, r.leased_to, r.cuts[cardinality(r.cuts)],
                                                     r.first_offset))), '{}') AS given,
               coalesce(range_agg(int8range(r.first_offset, coalesce(r.leased_to, r.first_offset))), '{}') AS leased,
               coalesce((SELECT range_agg(range) FROM skep.runs d CROSS JOIN LATERAL unnest(d.done) AS range
                         WHERE d.partition_id = $1 AND d.group_queue_id = o.group_queue_id
                           AND d.done IS NOT NULL), '{}') AS done
        FROM skep.runs r WHERE r.partition_id = $1 AND r.group_queue_id = o.group_queue_id
    ) run
$$;

CREATE FUNCTION skep.message_groups(id uuid)
RETURNS TABLE (group_name text, status text, required boolean, completed boolean, state text)
LANGUAGE sql STABLE AS $$
    SELECT g.group_name, g.status, g.is_required
        AND (message.o >= g.pending_from OR g.completed @> message.o), g.completed @> message.o,
           CASE WHEN g.completed @> message.o THEN 'completed' WHEN g.leased @> message.o THEN 'leased'
                WHEN g.returned @> message.o THEN 'waiting' WHEN NOT g.is_required THEN 'released' ELSE 'pending' END
    FROM (SELECT skep.partition_of($1) AS partition_id, skep.offset_of($1) AS o) message
    CROSS JOIN LATERAL skep._groups_of(message.partition_id) g
    WHERE message.o >= g.first_offset
$$;
COMMENT ON FUNCTION skep.message_groups IS
    'Returns the groups of a message and its state in each: completed, leased, waiting for a retry, pending, or '
    'released (retention does not keep it for the group, because the group is dead or cancelled).';
CALL skep._allow('skep_admin', 'message_groups');

-- Returns the fan-out of a message: the number of groups that require it, the number that have completed it, and the
-- pending groups.
CREATE FUNCTION skep._fanout(
    id uuid, OUT required_consumer_groups bigint, OUT completed_consumer_groups bigint, OUT pending_groups text[]
)
LANGUAGE sql STABLE AS $$
    SELECT count(*) FILTER (WHERE g.required OR g.completed), count(*) FILTER (WHERE g.completed),
           coalesce(array_agg(g.group_name ORDER BY g.group_name) FILTER (WHERE g.required AND NOT g.completed), '{}')
    FROM skep.message_groups($1) g
$$;
CALL skep._allow('skep_admin', '_fanout');

CREATE VIEW skep.fanout AS
    SELECT q.name AS queue, p.name AS partition, m."offset", id.id, m.created_at, f.*
    FROM skep.queues q
    JOIN skep.partitions p ON p.queue_id = q.id
    JOIN skep.messages m ON m.partition_id = p.id
    CROSS JOIN LATERAL (SELECT skep.message_id(m.partition_id, m."offset") AS id) id
    CROSS JOIN LATERAL skep._fanout(id.id) f;
COMMENT ON VIEW skep.fanout IS
    'The number of groups that require each message and that have completed it, and the pending groups. It is computed '
    'for each row: filter by queue and partition, and by offset if the partition is large.';

-- The progress of the groups is computed once, not for each message.
CREATE FUNCTION skep.message_status(
    queue text, partition text, first_offset bigint DEFAULT 0, max_rows integer DEFAULT 100
)
RETURNS TABLE ("offset" bigint, id uuid, created_at timestamptz, required_consumer_groups bigint,
               completed_consumer_groups bigint, pending_groups text[])
LANGUAGE sql STABLE AS $$
    WITH requested AS MATERIALIZED (
        SELECT p.id FROM skep.queues q
        JOIN skep.partitions p ON p.queue_id = q.id AND p.name = message_status.partition
        WHERE q.name = message_status.queue
    ), g AS MATERIALIZED (
        SELECT g.* FROM requested CROSS JOIN LATERAL skep._groups_of(requested.id) g ORDER BY g.group_name
    )
    SELECT m."offset", skep.message_id(requested.id, m."offset"), m.created_at, fanout.required, fanout.completed,
           coalesce(fanout.pending, '{}')
    FROM requested
    CROSS JOIN LATERAL (SELECT m."offset", m.created_at FROM skep.messages m
                        WHERE m.partition_id = requested.id AND m."offset" >= message_status.first_offset
                        ORDER BY m."offset" LIMIT max_rows) m
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE one.completed OR g.is_required AND m."offset" >= g.pending_from) AS required,
               count(*) FILTER (WHERE one.completed) AS completed,
               array_agg(g.group_name) FILTER (WHERE NOT one.completed AND g.is_required
                                               AND m."offset" >= g.pending_from)
                   AS pending
        FROM g CROSS JOIN LATERAL (SELECT g.completed @> m."offset" AS completed OFFSET 0) one
        WHERE m."offset" >= g.first_offset
    ) fanout
    ORDER BY m."offset"
$$;
COMMENT ON FUNCTION skep.message_status IS
    'Returns messages of a partition with the number of groups that require each, the number that have completed '
    'it, and the pending groups.';
CALL skep._allow('skep_admin', 'message_status');

-- Returns the progress of every group in these partitions, also of groups that have not read them: it reads messages
-- from start_offset on, has completed those below cursor, and requires those from pending_from on if it is active or
-- paused.
CREATE FUNCTION skep._group_progress(partition_ids bigint[])
RETURNS TABLE (partition_id bigint, group_name text, status text, start_offset bigint, cursor bigint,
               pending_from bigint)
LANGUAGE sql STABLE AS $$
    SELECT o.partition_id, o.group_name, o.status, coalesce(s.start_offset, o."position"), o."position", o.pending_from
    FROM skep._group_cursors($1) o
    LEFT JOIN LATERAL (SELECT * FROM skep.starts s
                       WHERE s.partition_id = o.partition_id AND s.group_queue_id = o.group_queue_id LIMIT 1) s ON true
$$;
CALL skep._allow('skep_admin', '_group_progress');

-- Dead groups are listed with the backlog that they would have after a revival.
CREATE FUNCTION skep.pending_groups(queue text DEFAULT NULL)
RETURNS TABLE (queue text, partition text, group_name text, status text, "position" bigint, pending bigint,
               leased bigint, oldest_pending_at timestamptz, is_floor boolean)
LANGUAGE sql STABLE AS $$
    SELECT requested.queue, requested.partition, o.group_name, o.status, o.pending_from,
           head.next_offset - o.pending_from, coalesce(l.leased, 0), m.created_at,
           o.is_required AND o.pending_from
               = min(o.pending_from) FILTER (WHERE o.is_required) OVER (PARTITION BY requested.id)
    FROM (SELECT q.name AS queue, p.name AS partition, p.id FROM skep.queues q
          JOIN skep.partitions p ON p.queue_id = q.id
          WHERE $1 IS NULL OR q.name = $1) requested
    CROSS JOIN LATERAL skep._head_of(requested.id) head
    CROSS JOIN LATERAL skep._group_cursors(ARRAY[requested.id]) o
    LEFT JOIN LATERAL (SELECT count(r.lease_id) AS leased FROM skep.runs r
                       WHERE r.partition_id = requested.id AND r.group_queue_id = o.group_queue_id) l ON true
    LEFT JOIN LATERAL (SELECT m.created_at FROM skep.messages m
                       WHERE m.partition_id = requested.id AND m."offset" >= o.pending_from
                       ORDER BY m."offset" LIMIT 1) m ON true
    WHERE o.pending_from < head.next_offset AND o.status <> 'CANCELLED'
$$;
COMMENT ON FUNCTION skep.pending_groups IS
    'Returns the groups with a backlog in each partition. is_floor is true if no other group is further behind, so '
    'that retention waits for it.';
CALL skep._allow('skep_admin', 'pending_groups');

-- Returns the group_queues row for force_complete(), or refuses its arguments.
CREATE FUNCTION skep._check_force_complete(group_name text, queue text, older_than interval) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    found integer;
    q     skep.queues;
BEGIN
    SELECT * INTO q FROM skep.queues o WHERE o.name = queue;
    IF q.id IS NULL THEN
        PERFORM skep._refuse('SK002', format('there is no queue "%s"', queue));
    ELSIF older_than IS NULL OR older_than < interval '0' THEN
        PERFORM skep._refuse('SK001', format('older_than must be a positive interval, got %s',
                                             coalesce(older_than::text, 'NULL')));
    ELSIF q.semantics <> 'queue' AND NOT EXISTS (
        SELECT FROM skep.subscriptions s
        WHERE s.group_name = _check_force_complete.group_name AND (s.queue = q.name OR s.queue IS NULL
            AND (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task))) THEN
        PERFORM skep._refuse('SK002', format('group "%s" has no subscription to queue "%s"', group_name, queue),
                             'Subscribe first.');
    END IF;
    found := skep._ensure_group_queue(group_name, queue);
    PERFORM FROM skep.group_queues g WHERE g.id = found FOR KEY SHARE;  -- locks out seek and delete_group()
    RETURN found;
END $$;

CREATE FUNCTION skep.force_complete(group_name text, queue text, older_than interval) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    group_queue integer := skep._check_force_complete(group_name, queue, older_than);
    stamp       timestamptz := clock_timestamp();
    finished    bigint := 0;
    pending     bigint;
    part        record;
BEGIN
    PERFORM skep._add_runs(group_queue, unread.ids, cardinality(unread.ids), stamp)
    FROM (SELECT array_agg(p.id ORDER BY p.id) AS ids FROM skep.group_queues g
          JOIN skep.partitions p ON p.queue_id = g.queue_id
          WHERE g.id = group_queue
            AND NOT EXISTS (SELECT FROM skep.starts s
                            WHERE s.partition_id = p.id AND s.group_queue_id = group_queue)) unread
    WHERE unread.ids IS NOT NULL;
    FOR part IN
        SELECT p.id, c.cursor, skep._offset_at(p.id, stamp - older_than) AS cut
        FROM skep.group_queues g JOIN skep.partitions p ON p.queue_id = g.queue_id
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_consumers c
                            WHERE c.partition_id = p.id AND c.group_queue_id = group_queue LIMIT 1) c
        WHERE g.id = group_queue ORDER BY p.id
    LOOP
        CONTINUE WHEN part.cut <= part.cursor;
        pending := skep._count_undone(part.id, group_queue, part.cursor, part.cut);
        PERFORM skep._advance_cursor(part.id, part.cut, group_queue);
        finished := finished + pending - skep._count_undone(part.id, group_queue, part.cursor, part.cut);
    END LOOP;
    RETURN finished;
END $$;
COMMENT ON FUNCTION skep.force_complete IS
    'Completes every message of a queue that is older than this for a group, except leased ones and, unless '
    'concurrency is above 1, those behind them in their partition. Returns the number; they count as '
    'skipped, not as processed.';
CALL skep._allow('skep_admin', 'force_complete');
