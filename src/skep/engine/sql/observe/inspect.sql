-- Inspection of the log: lag, views for people, and consistency checks.

CREATE VIEW skep.partition_list AS
    SELECT q.name AS queue, p.name AS partition, l.partition_id, l.first_offset, l.last_offset,
           l.last_offset - l.first_offset + 1 AS messages,
           CASE WHEN l.last_offset >= 0 THEN skep.message_id(l.partition_id, l.last_offset) END AS last_message_id,
           nullif(l.last_created_at, '-infinity') AS last_created_at, p.created_at
    FROM skep.partition_lookup l
    JOIN skep.partitions p ON p.id = l.partition_id
    JOIN skep.queues q ON q.id = p.queue_id;
COMMENT ON VIEW skep.partition_list IS 'Partitions by queue and name, with their offsets and number of messages.';

CREATE FUNCTION skep.lag(group_name text, queue text DEFAULT NULL, partition text DEFAULT NULL)
RETURNS TABLE (queue text, partition text, cursor bigint, last_offset bigint, lag bigint, leased integer,
               last_consumed_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT q.name, l.partition, l.cursor, l.last_offset, l.lag, l.leased, l.last_consumed_at
    FROM skep.queues q
    LEFT JOIN skep.group_queues g ON g.queue_id = q.id AND g.group_name = skep._group_of(q.semantics, $1)
    CROSS JOIN LATERAL skep._group_partitions(skep._group_of(q.semantics, $1), q.id, g.id, $3) l
    WHERE ($2 IS NULL OR q.name = $2)
      AND (g.id IS NOT NULL OR (skep._subscription_of($1, q.name, l.partition, q.namespace, q.task)).id IS NOT NULL)
$$;
COMMENT ON FUNCTION skep.lag IS
    'Returns the cursor and the lag of a group in each partition that it reads. lag counts the messages that it has '
    'not completed, including leased ones.';
CALL skep._allow('skep_consumer', 'lag');

CREATE FUNCTION skep.queue_status(queue text DEFAULT NULL)
RETURNS TABLE (name text, namespace text, task text, partitions bigint, messages bigint, last_created_at timestamptz,
               groups bigint, dead_letters bigint, delayed bigint, options jsonb, created_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT q.name, q.namespace, q.task, log.partitions, log.messages, log.last_created_at,
           (SELECT count(*) FROM skep.group_queues g WHERE g.queue_id = q.id),
           (SELECT count(*) FROM skep.dead_letters d WHERE d.queue = q.name),
           (SELECT count(*) FROM skep.delayed_messages d WHERE d.queue_id = q.id),
           (SELECT jsonb_object_agg(key, value) FROM jsonb_each(to_jsonb(q)) WHERE key = ANY (skep._queue_options())),
           q.created_at
    FROM skep.queues q
    CROSS JOIN LATERAL (
        SELECT count(*) AS partitions, coalesce(sum(l.last_offset - l.first_offset + 1), 0)::bigint AS messages,
               nullif(max(l.last_created_at), '-infinity') AS last_created_at
        FROM skep.partitions p JOIN skep.partition_lookup l ON l.partition_id = p.id WHERE p.queue_id = q.id
    ) log
    WHERE $1 IS NULL OR q.name = $1
$$;
COMMENT ON FUNCTION skep.queue_status IS
    'Returns queues, one or all, with their sizes, groups, dead letters and options.';
CALL skep._allow('skep_admin', 'queue_status');

-- Returns the known end of a partition: groups have read the offsets below it, or they are archived.
CREATE FUNCTION skep._known_end(partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN greatest(0, (SELECT max(greatest(r.first_offset, r.end_offset, r.leased_to)) FROM skep.runs r
                        WHERE r.partition_id = _known_end.partition_id),
                    (SELECT max(r.end_offset) FROM skep.archive_runs r WHERE r.partition_id = _known_end.partition_id));
END $$;

-- Returns the partitions whose floor does not match the messages, and the correct floor: the first message. A floor is
-- wrong if it is missing, if it is not the offset of the first message, or if there are no messages and it is below the
-- known end, so that offsets would be assigned twice. The head cannot be wrong: it is the last message.
CREATE FUNCTION skep._stale_floors() RETURNS TABLE (partition_id bigint, first_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT p.id, coalesce(m."offset", greatest(f.first_offset, known.ends)) FROM skep.partitions p
    LEFT JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = p.id LIMIT 1) f ON true
    LEFT JOIN LATERAL (SELECT m."offset" FROM skep.messages m WHERE m.partition_id = p.id ORDER BY m."offset"
                       LIMIT 1) m ON true
    CROSS JOIN LATERAL (SELECT CASE WHEN m."offset" IS NULL THEN skep._known_end(p.id) END AS ends) known
    WHERE f.partition_id IS NULL OR m."offset" <> f.first_offset OR known.ends > f.first_offset
$$;

-- Returns the number of rows of partition_lookup that do not match the messages. It must be 0.
CREATE FUNCTION skep._stale_partitions() RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT count(*) FROM skep._stale_floors() $$;
CALL skep._allow('skep_admin', '_stale_partitions');

-- It is safe while pushes and retention run, because it locks the partitions that it repairs.
CREATE FUNCTION skep.resync_partition_lookup() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    wrong    bigint[] := ARRAY(SELECT s.partition_id FROM skep._stale_floors() s);
    repaired bigint;
BEGIN
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = ANY (wrong) ORDER BY f.partition_id FOR UPDATE;
    PERFORM FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id WHERE p.id = ANY (wrong)
    ORDER BY q.name, p.name FOR NO KEY UPDATE OF p;  -- the order of push
    INSERT INTO skep.partition_floors (partition_id, first_offset)
    SELECT s.partition_id, s.first_offset FROM skep._stale_floors() s WHERE s.partition_id = ANY (wrong)
    ON CONFLICT (partition_id) DO UPDATE SET first_offset = excluded.first_offset;
    GET DIAGNOSTICS repaired = ROW_COUNT;
    RETURN repaired;
END $$;
COMMENT ON FUNCTION skep.resync_partition_lookup IS
    'Repairs partition floors that do not match the messages, and returns how many it changed. It is safe while '
    'pushes and retention run.';
CALL skep._allow('skep_admin', 'resync_partition_lookup');

CREATE FUNCTION skep.check_consistency() RETURNS TABLE (invariant text, broken bigint)
LANGUAGE sql STABLE AS $$
    SELECT * FROM skep._check_log() UNION ALL SELECT * FROM skep._check_runs() UNION ALL SELECT *
    FROM skep._check_leases()
    UNION ALL SELECT * FROM skep._check_lists()
$$;
COMMENT ON FUNCTION skep.check_consistency IS
    'Returns every invariant of the stored data and the number of violations, which must be 0. It reads all tables.';
CALL skep._allow('skep_admin', 'check_consistency');

CREATE FUNCTION skep._check_log() RETURNS TABLE (invariant text, broken bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'partition_lookup matches the messages', skep._stale_partitions()
    UNION ALL
    SELECT 'offsets are dense', count(*) FROM (
        SELECT m.partition_id FROM skep.messages m GROUP BY m.partition_id
        HAVING max(m."offset") - min(m."offset") + 1 <> count(*)) gap
    UNION ALL
    SELECT 'created_at never decreases', count(*) FROM (
        SELECT created_at < lag(created_at) OVER (PARTITION BY partition_id ORDER BY "offset") AS back
        FROM skep.messages) m WHERE back
    UNION ALL
    SELECT 'messages and floors belong to a partition', count(*) FROM (
        SELECT m.partition_id FROM skep.messages m GROUP BY m.partition_id UNION SELECT f.partition_id
        FROM skep.partition_floors f) own
    WHERE NOT EXISTS (SELECT FROM skep.partitions p WHERE p.id = own.partition_id)
    UNION ALL
    SELECT 'the next tick of a schedule is after its last', count(*) FROM skep.schedules s WHERE s.next_at <= s.last_at
    UNION ALL
    SELECT 'delayed messages belong to a partition of their queue', count(*) FROM skep.delayed_messages d
    WHERE NOT EXISTS (SELECT FROM skep.partitions p WHERE p.id = d.partition_id AND p.queue_id = d.queue_id)
$$;

CREATE FUNCTION skep._check_runs() RETURNS TABLE (invariant text, broken bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'a group has one open run where it started, and runs nowhere else', count(*) FROM (
        SELECT partition_id, group_queue_id, count(*) FILTER (WHERE is_start) AS starts,
               count(*) FILTER (WHERE is_open) AS open
        FROM (SELECT s.partition_id, s.group_queue_id, true AS is_start, false AS is_open FROM skep.starts s
              UNION ALL
              SELECT r.partition_id, r.group_queue_id, false, r.end_offset IS NULL FROM skep.runs r) own
        GROUP BY partition_id, group_queue_id) own
    LEFT JOIN skep.partitions p ON p.id = own.partition_id
    LEFT JOIN skep.group_queues g ON g.id = own.group_queue_id
    WHERE own.starts <> 1 OR own.open <> 1 OR p.queue_id IS DISTINCT FROM g.queue_id
    UNION ALL
    SELECT 'runs are disjoint, and the open one is the last', count(*) FROM (
        SELECT r.end_offset, lead(r.first_offset) OVER (PARTITION BY r.partition_id, r.group_queue_id
                                                        ORDER BY r.first_offset) AS next
        FROM skep.runs r) r
    WHERE (r.end_offset IS NULL) <> (r.next IS NULL) OR r.end_offset > r.next
    UNION ALL
    SELECT 'no run reaches beyond the head', count(*) FROM skep.runs r
    CROSS JOIN LATERAL skep._head_of(r.partition_id) head
    WHERE greatest(r.first_offset, r.leased_to, r.end_offset) > head.next_offset
    UNION ALL
    SELECT 'no group has processed a negative number of messages', count(*) FROM skep.partition_consumers c
    WHERE c.cursor - c.start_offset - c.skipped < 0 OR c.skipped < 0
    UNION ALL
    SELECT 'runs are in the ready list of their group', count(*) FROM skep.runs r
    LEFT JOIN skep.group_queues g ON g.id = r.group_queue_id
    LEFT JOIN skep.queues q ON q.id = g.queue_id
    WHERE (r.list_id, r.priority) IS DISTINCT FROM (g.list_id, CASE WHEN g.list_id = g.id THEN 0 ELSE -q.priority END)
$$;

CREATE FUNCTION skep._check_leases() RETURNS TABLE (invariant text, broken bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'open runs count the leases of their partition', count(*) FROM skep.runs o
    WHERE o.end_offset IS NULL AND o.leases <> (
        SELECT count(*) FROM skep.runs r WHERE r.partition_id = o.partition_id AND r.group_queue_id = o.group_queue_id
                                           AND r.end_offset IS NOT NULL AND r.lease_id IS NOT NULL)
    UNION ALL
    SELECT 'a lease is whole, and its id is the key of its run', count(*) FROM skep.runs r
    WHERE num_nonnulls(r.lease_id, r.leased_to, r.expires_at) NOT IN (0, 3) OR r.leased_to <= r.first_offset
      OR r.leased_to > r.end_offset
       OR r.end_offset IS NULL AND r.lease_id IS NOT NULL AND r.leases > 0
       OR left(replace(r.lease_id::text, '-', ''), 22) <> lpad(to_hex(r.partition_id << 21 | r.group_queue_id), 14, '0')
                                                          || lpad(to_hex(r.first_offset & 4294967295), 8, '0')
    UNION ALL
    SELECT 'acks and retries lie inside their run', count(*) FROM skep.runs r
    WHERE lower(r.failed) < r.first_offset OR upper(r.failed) > r.leased_to OR r.cuts[1] <= r.first_offset
       OR cardinality(r.cuts) IS DISTINCT FROM cardinality(r.attempts)
       OR r.lease_id IS NULL AND (lower(r.done) <= r.first_offset OR r.failed IS NOT NULL OR r.errors IS NOT NULL)
       OR r.failed IS NULL AND r.retry_after IS NOT NULL
$$;

-- Returns true if discovery will still check a partition for the group of a ready list: there was no discovery yet, its
-- scan has not reached the partition, the partition was locked, or a push to it is not visible in a saved snapshot.
CREATE FUNCTION skep._will_be_discovered(list integer, queue_id integer, partition_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM skep.discoveries d WHERE d.list_id = $1) OR EXISTS (
        SELECT FROM skep.discoveries d CROSS JOIN skep.journal_floor f
        WHERE d.list_id = $1 AND (
            pg_snapshot_xmin(d.snapshot) < f.xid OR d.server_started <> pg_postmaster_start_time()
            OR $3 = ANY (d.left_over) OR d.scan_after IS NOT NULL AND EXISTS (
                SELECT FROM skep.group_queues l CROSS JOIN skep.partitions p
                WHERE l.id = $1 AND p.id = $3 AND CASE
                    WHEN l.queue_id = 0 THEN coalesce(nullif(d.scan_after, ''), '0')::bigint < p.id
                                                       ELSE d.scan_after < p.name END)
            OR EXISTS (SELECT FROM skep.journal j WHERE j.queue_id = $2 AND $3 = ANY (j.partition_ids)
                                                    AND NOT pg_visible_in_snapshot(j.xid, d.snapshot))))
$$;

CREATE FUNCTION skep._check_lists() RETURNS TABLE (invariant text, broken bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'a run with messages is in a list, or will be discovered', count(*)
    FROM skep.runs r LEFT JOIN skep.group_queues g ON g.id = r.group_queue_id
    WHERE r.ready_at IS NULL AND (
        r.lease_id IS NOT NULL OR r.end_offset IS NOT NULL
        OR EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = r.partition_id AND m."offset" >= r.first_offset)
           AND NOT skep._will_be_discovered(r.list_id, g.queue_id, r.partition_id))
    UNION ALL
    SELECT 'a partition with messages for a group has a run, or will be discovered', count(*)
    FROM skep.group_queues g
    CROSS JOIN LATERAL skep._starting_offsets(g.group_name, g.queue_id, ARRAY(
        SELECT p.id FROM skep.partitions p WHERE p.queue_id = g.queue_id
           AND NOT EXISTS (SELECT FROM skep.starts s
                           WHERE s.partition_id = p.id AND s.group_queue_id = g.id OFFSET 0))) s
    WHERE EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = s.partition_id AND m."offset" >= s.start_offset)
      AND NOT skep._will_be_discovered(g.list_id, g.queue_id, s.partition_id)
    UNION ALL
    SELECT 'a ready list belongs to its group', count(*) FROM skep.group_queues g
    LEFT JOIN skep.group_queues w ON w.id = g.list_id
    WHERE w.group_name IS DISTINCT FROM g.group_name OR w.id <> g.id AND w.queue_id <> 0 OR g.queue_id = 0
      AND g.list_id <> g.id
    UNION ALL
    SELECT 'discoveries belong to a ready list', count(*) FROM skep.discoveries d
    WHERE NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.list_id = d.list_id)
$$;

-- Rows are deleted in the order of their transactions, up to the first young one. (A row from the future is not young:
-- the clock was set back.)
CREATE FUNCTION skep.prune_journal(older_than interval DEFAULT '10 minutes') RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    stamp  timestamptz := clock_timestamp();
    young  xid8;
    pruned bigint;
    newest xid8;
BEGIN
    PERFORM skep.repair_restored();
    SELECT j.xid INTO young FROM skep.journal j WHERE j.created_at BETWEEN stamp - older_than AND stamp ORDER BY j.xid
    LIMIT 1;
    WITH deleted AS (
        DELETE FROM skep.journal j
        WHERE j.xid < pg_snapshot_xmin(pg_current_snapshot()) AND (young IS NULL OR j.xid < young)
        RETURNING j.xid
    )
    SELECT count(*), max(deleted.xid::text::bigint)::text::xid8 INTO pruned, newest FROM deleted;
    UPDATE skep.journal_floor f SET xid = (newest::text::bigint + 1)::text::xid8 WHERE f.xid <= newest;
    RETURN pruned;
EXCEPTION WHEN lock_not_available THEN  -- a queue is being deleted, or another session prunes: next time
    RETURN 0;
END $$;
COMMENT ON FUNCTION skep.prune_journal IS
    'Deletes committed journal rows that are older than this, and returns their number. Groups and readers that have '
    'not seen them check every partition once.';
CALL skep._allow('skep_admin', 'prune_journal');

-- Offsets are dense, so the heads tell how many messages each partition has, and no more are read than are returned.
CREATE FUNCTION skep.peek(
    queue text, partition text DEFAULT NULL, first_offset bigint DEFAULT 0, max_rows integer DEFAULT 100
)
RETURNS TABLE (queue text, partition text, "offset" bigint, id uuid, payload jsonb, headers jsonb, transaction_id text,
               trace_id uuid, producer text, created_at timestamptz, deleted boolean)
LANGUAGE sql STABLE AS $$
    SELECT q.name, chosen.name, m."offset", skep.message_id(chosen.id, m."offset"), m.payload, m.headers,
           m.transaction_id, m.trace_id, m.producer, m.created_at, m.payload IS NULL
    FROM skep.queues q
    CROSS JOIN LATERAL (
        SELECT p.id, p.name, sum(p.messages) OVER (ORDER BY p.name) - p.messages AS before FROM (
            (SELECT p.id, p.name, max_rows::bigint AS messages FROM skep.partitions p
             WHERE p.queue_id = q.id AND p.name = peek.partition LIMIT 1)
            UNION ALL
            (SELECT p.id, p.name, last."offset" + 1 - greatest(f.first_offset, peek.first_offset) FROM skep.partitions p
             CROSS JOIN LATERAL (SELECT f.first_offset FROM skep.partition_floors f WHERE f.partition_id = p.id
                                 LIMIT 1) f
             CROSS JOIN LATERAL (SELECT m."offset" FROM skep.messages m
                                 WHERE m.partition_id = p.id AND m."offset"
                                     >= greatest(f.first_offset, peek.first_offset)
                                 ORDER BY m."offset" DESC LIMIT 1) last
             WHERE peek.partition IS NULL AND p.queue_id = q.id ORDER BY p.name LIMIT max_rows)
        ) p
    ) chosen
    CROSS JOIN LATERAL (SELECT * FROM skep.messages m
                        WHERE m.partition_id = chosen.id AND m."offset" >= peek.first_offset
                        ORDER BY m."offset" LIMIT greatest(max_rows - chosen.before, 0)) m
    WHERE q.name = peek.queue ORDER BY chosen.name, m."offset"
$$;
COMMENT ON FUNCTION skep.peek IS
    'Returns stored messages, completed or not, of one partition or of all, by partition. A deleted message has no '
    'payload.';
CALL skep._allow('skep_admin', 'peek');

CREATE FUNCTION skep.find_message(message uuid)
RETURNS TABLE (queue text, partition text, "offset" bigint, id uuid, payload jsonb, headers jsonb, transaction_id text,
               trace_id uuid, producer text, created_at timestamptz, deleted boolean)
LANGUAGE sql STABLE AS $$
    SELECT found.* FROM skep.partitions p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL skep.peek(q.name, p.name, skep.offset_of($1), 1) found
    WHERE p.id = skep.partition_of($1) AND found.id = $1
$$;
COMMENT ON FUNCTION skep.find_message IS 'Returns one message by its id, completed or not.';
CALL skep._allow('skep_admin', 'find_message');
