-- Seek, and the locks that it shares with delete_group(). Both lock the group's rows of group_queues FOR UPDATE, so
-- that the group gets no run in a new partition meanwhile, then its runs. They wait at most 5 seconds for open
-- transactions that have leased something.

-- Raises an error that clients retry: an open transaction has locked a lease of the group, or another seek or delete is
-- running.
CREATE FUNCTION skep._refuse_busy(group_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
        MESSAGE = format('group "%s" is locked by another transaction', group_name),
        HINT = 'Try again when it has ended. pg_stat_activity shows open transactions.';
END $$;

-- Locks the group_queues rows of a group for these queues, and creates them if needed. Queues that do not exist are
-- skipped.
CREATE FUNCTION skep._lock_group_queues(group_name text, queues text[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    wanted integer[];
    locked integer[];
BEGIN
    FOR try IN 1 .. 4 LOOP
        wanted := ARRAY(SELECT skep._ensure_group_queue(_lock_group_queues.group_name, name)
                        FROM unnest(queues) AS name ORDER BY name);
        wanted := ARRAY(SELECT DISTINCT id FROM unnest(wanted) AS id WHERE id IS NOT NULL ORDER BY id);
        locked := ARRAY(SELECT g.id FROM skep.group_queues g WHERE g.id = ANY (wanted) ORDER BY g.id FOR UPDATE);
        EXIT WHEN locked = wanted;
        IF try = 4 THEN  -- deleted each time
            PERFORM skep._refuse_busy(group_name);
        END IF;
    END LOOP;
    RETURN locked;
END $$;

-- Locks and returns the group_queues rows of a group, all of them or the one for a queue. The list for namespaces and
-- tasks is locked as well, because a queue that leaves it is discovered again.
CREATE FUNCTION skep._lock_group(group_name text, queue text) RETURNS integer[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(
        SELECT g.id FROM (
            SELECT g.id, g.queue_id FROM skep.group_queues g
            WHERE g.group_name = _lock_group.group_name
              AND (_lock_group.queue IS NULL
                   OR g.queue_id IN (0, (SELECT q.id FROM skep.queues q WHERE q.name = _lock_group.queue)))
            ORDER BY g.id FOR UPDATE) g
        WHERE _lock_group.queue IS NULL OR g.queue_id <> 0);
END $$;

-- Returns the partitions that groups have read, in order, each with its group_queues row: all, or those of one name.
-- with_redriven includes those of redriven dead letters.
CREATE FUNCTION skep._read_partitions(
    group_queues integer[], partition text DEFAULT NULL, with_redriven boolean DEFAULT true,
    OUT partition_ids bigint[], OUT group_queue_ids integer[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(array_agg(p.id ORDER BY p.id), '{}'), coalesce(array_agg(g.id ORDER BY p.id), '{}')
    INTO partition_ids, group_queue_ids
    FROM unnest(group_queues) AS requested (id)
    CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g WHERE g.id = requested.id LIMIT 1) g
    JOIN skep.partitions p ON p.queue_id = g.queue_id
    CROSS JOIN LATERAL (SELECT FROM skep.starts s WHERE s.partition_id = p.id AND s.group_queue_id = g.id LIMIT 1) s
    WHERE (_read_partitions.partition IS NULL OR p.name = _read_partitions.partition)
      AND (p.only_group IS NULL OR with_redriven);
END $$;

-- Locks runs, partition by partition: the open one first, as every ack does. Closed runs are created only under the
-- lock of the open one, so a later statement sees and locks all of them.
CREATE FUNCTION skep._lock_runs(partition_ids bigint[], group_queue_ids integer[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM unnest(partition_ids, group_queue_ids) AS target (partition_id, group_queue_id)
    CROSS JOIN LATERAL (SELECT FROM skep.runs r
                        WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id
                           AND r.end_offset IS NULL ORDER BY r.first_offset DESC LIMIT 1 FOR UPDATE) r;
    PERFORM FROM unnest(partition_ids, group_queue_ids) AS target (partition_id, group_queue_id)
    CROSS JOIN LATERAL (SELECT FROM skep.runs r
                        WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id
                           AND r.end_offset IS NOT NULL ORDER BY r.first_offset FOR UPDATE) r;
END $$;

-- Returns the start of a position: mode, start_at and start_offset of a subscription. The end is 'new': messages that
-- commit later come after it, also in future partitions.
CREATE FUNCTION skep._parse_position("position" text) RETURNS skep.subscriptions
LANGUAGE plpgsql AS $$
DECLARE
    allowed constant text := 'Give beginning, end, a time such as 2026-01-31T12:00:00Z, or an offset.';
    start   skep.subscriptions;
BEGIN
    IF coalesce("position", '') = '' THEN
        PERFORM skep._refuse('SK001', 'seek needs a position', allowed);
    END IF;
    BEGIN
        SELECT p.start_mode, p.start_at, p.start_offset INTO start.mode, start.start_at, start.start_offset
        FROM skep._parse_start(CASE lower("position") WHEN 'beginning' THEN 'all' WHEN 'end' THEN 'new' END,
                              CASE WHEN lower("position") NOT IN ('beginning', 'end') THEN "position" END) p;
    EXCEPTION WHEN SQLSTATE 'SK001' THEN  -- its hint is about subscriptions
        PERFORM skep._refuse('SK001', format('invalid position "%s"', left("position", 60)), allowed);
    END;
    RETURN start;
END $$;

-- Gives a queue or a partition a subscription with a new start; the rest is copied from the subscription that covered
-- it. Subscriptions to partitions of the queue are deleted, because this start is newer. Messages from the start on are
-- part of the backlog.
CREATE FUNCTION skep._restart_subscription(group_name text, queue text, partition text, start skep.subscriptions)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s   skep.subscriptions;
    ids bigint[];
BEGIN
    FOR try IN 1 .. 4 LOOP
        s := skep._covering_subscription(group_name, queue, partition, NULL, NULL);
        IF s.status = 'CANCELLED' THEN
            PERFORM skep._refuse('SK007', format('the subscription of group "%s" to queue "%s" is cancelled',
                                                 group_name, queue), 'Subscribe again to make a new start.');
        END IF;
        ids := ARRAY(SELECT o.id FROM skep.subscriptions o
                     WHERE o.group_name = _restart_subscription.group_name AND o.queue = _restart_subscription.queue
                       AND (_restart_subscription.partition IS NULL OR o.partition = _restart_subscription.partition)
                     ORDER BY o.id FOR UPDATE);
        DELETE FROM skep.subscriptions o WHERE o.id = ANY (ids);
        s := skep._without_wider_policy(s, queue, partition);
        s.group_name := group_name; s.queue := queue; s.partition := partition; s.namespace := NULL; s.task := NULL;
        s.mode := start.mode; s.start_at := start.start_at; s.start_offset := start.start_offset;
        s.start_snapshot := NULL;
        s.created_at := NULL; s.backfill := true;
        IF skep._insert_subscription(s) THEN  -- false: another session has subscribed meanwhile
            RETURN;
        END IF;
    END LOOP;
    PERFORM skep._refuse_busy(group_name);
END $$;

-- Restarts all queues of a group: subscriptions to namespaces and tasks get the new start, and so do queues that have
-- their own subscription or none.
CREATE FUNCTION skep._restart_subscriptions(group_name text, queues text[], start skep.subscriptions) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ids bigint[] := ARRAY(SELECT s.id FROM skep.subscriptions s WHERE s.group_name = _restart_subscriptions.group_name
                          ORDER BY s.id FOR UPDATE);
BEGIN
    UPDATE skep.subscriptions s
    SET mode = start.mode, start_at = start.start_at, start_offset = start.start_offset, backfill = true,
        created_at = clock_timestamp(),
        start_snapshot = CASE WHEN start.mode IN ('new', 'offset') THEN skep._current_snapshot() END
    WHERE s.id = ANY (ids) AND s.queue IS NULL AND s.status <> 'CANCELLED';
    PERFORM skep._restart_subscription(skep._group_of(q.semantics, _restart_subscriptions.group_name), named.name,
                                       NULL, start)
    FROM unnest(queues) AS named (name)
    LEFT JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.name = named.name LIMIT 1) q ON true
    WHERE EXISTS (SELECT FROM skep.subscriptions s
                  WHERE s.group_name = _restart_subscriptions.group_name AND s.queue = named.name)
       OR (skep._covering_subscription(_restart_subscriptions.group_name, named.name, NULL, NULL, NULL)).id IS NULL;
END $$;

-- Returns the queues that a group reads, or will read when they exist, without cancelled ones.
CREATE FUNCTION skep._queues_of_group(group_name text) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(found.name ORDER BY found.name), '{}') FROM (
        SELECT q.name FROM skep.group_queues g JOIN skep.queues q ON q.id = g.queue_id
        LEFT JOIN LATERAL skep._subscription_of(g.group_name, q.name, NULL, q.namespace, q.task) s ON true
        WHERE g.group_name = $1 AND s.status IS DISTINCT FROM 'CANCELLED'
        UNION
        SELECT s.queue FROM skep.subscriptions s
        WHERE s.group_name = $1 AND s.queue IS NOT NULL AND s.status <> 'CANCELLED'
    ) found
$$;

-- Returns the offsets that a group still has to complete, from its cursor on.
CREATE FUNCTION skep._pending_of(partition_id bigint, group_queue_id integer) RETURNS int8multirange
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(range_agg(range), '{}') FROM skep.runs r
            CROSS JOIN LATERAL unnest(int8multirange(int8range(r.first_offset, r.end_offset)) - coalesce(r.done, '{}'))
                AS range
            WHERE r.partition_id = _pending_of.partition_id AND r.group_queue_id = _pending_of.group_queue_id);
END $$;

-- Returns the offset that a seek leads to in a partition: not before its first message, and not after its end.
CREATE FUNCTION skep._seek_offset(partition_id bigint, start skep.subscriptions, is_end boolean) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT CASE WHEN is_end THEN head.next_offset
                        WHEN start.mode = 'timestamp' THEN skep._offset_at(f.partition_id, start.start_at)
                        WHEN start.mode = 'offset' THEN least(greatest(start.start_offset, f.first_offset),
                            head.next_offset)
                        ELSE f.first_offset END
            FROM skep.partition_floors f CROSS JOIN LATERAL skep._head_of(f.partition_id) head
            WHERE f.partition_id = _seek_offset.partition_id);
END $$;

-- Moves groups in partitions that they have read; the caller has locked the runs. skipped counts the messages below the
-- cursor that the group has not processed: a seek forward keeps the number of processed messages, and a seek back
-- reduces it by the messages that are delivered again.
CREATE FUNCTION skep._move_runs(
    partition_ids bigint[], group_queue_ids integer[], start skep.subscriptions, is_end boolean,
    OUT skipped bigint, OUT replayed bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
    moves record;  -- arrays over the partitions that still exist
BEGIN
    SELECT array_agg(target.partition_id ORDER BY n) AS partition_ids,
           array_agg(target.group_queue_id ORDER BY n) AS group_queue_ids,
           array_agg(goal.at ORDER BY n) AS goals, array_agg(c.cursor ORDER BY n) AS cursors,
           array_agg(CASE WHEN is_plain THEN greatest(goal.at - c.cursor, 0)
                          ELSE skep._count_offsets(pending * int8multirange(int8range(0, goal.at))) END
                              ORDER BY n) AS skipped,
           array_agg(CASE WHEN is_plain THEN greatest(c.cursor - goal.at, 0)
                          ELSE skep._count_offsets(int8multirange(int8range(goal.at, head.next_offset)) - pending) END
                     ORDER BY n) AS replayed
    INTO moves
    FROM unnest(_move_runs.partition_ids, _move_runs.group_queue_ids)
    WITH ORDINALITY AS target (partition_id, group_queue_id, n)
    CROSS JOIN LATERAL (SELECT min(r.first_offset) AS cursor, count(r.end_offset) = 0 AND count(r.done) = 0 AS is_plain
                        FROM skep.runs r
                        WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id) c
    CROSS JOIN LATERAL skep._seek_offset(target.partition_id, start, is_end) AS goal (at)
    CROSS JOIN LATERAL skep._head_of(target.partition_id) head
    CROSS JOIN LATERAL (SELECT CASE
                               WHEN NOT is_plain THEN skep._pending_of(target.partition_id, target.group_queue_id) END
                               AS pending) p;

    DELETE FROM skep.runs r USING unnest(moves.partition_ids, moves.group_queue_ids)
        AS target (partition_id, group_queue_id)
    WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id
      AND r.end_offset IS NOT NULL;
    UPDATE skep.runs r
    SET first_offset = goal.at, lease_id = NULL, leased_to = NULL, expires_at = NULL, leases = 0, succeeded = false,
        is_logged = false, cuts = NULL, attempts = NULL, done = NULL, failed = NULL, errors = NULL, retry_after = NULL,
        ready_at = skep._ready_time(r.served_at, stamp),
        drained = NOT EXISTS (SELECT FROM skep.messages m
                              WHERE m.partition_id = goal.partition_id AND m."offset" >= goal.at)
    FROM unnest(moves.partition_ids, moves.group_queue_ids, moves.goals) AS goal (partition_id, group_queue_id, at)
    WHERE r.partition_id = goal.partition_id AND r.group_queue_id = goal.group_queue_id;
    UPDATE skep.starts s
    SET start_offset = least(s.start_offset, goal.at),
        skipped = CASE WHEN goal.at >= goal.cursor THEN s.skipped + goal.skipped
                       ELSE least(s.skipped, goal.at - least(s.start_offset, goal.at)) END
    FROM unnest(moves.partition_ids, moves.group_queue_ids, moves.goals, moves.cursors, moves.skipped)
         AS goal (partition_id, group_queue_id, at, cursor, skipped)
    WHERE s.partition_id = goal.partition_id AND s.group_queue_id = goal.group_queue_id;
    SELECT coalesce(sum(o.skipped), 0), coalesce(sum(o.replayed), 0) INTO skipped, replayed
    FROM unnest(moves.skipped, moves.replayed) AS o (skipped, replayed);
END $$;

-- Adds runs of groups in partitions that they have not read. starts: where they would have started, or NULL if they are
-- new there.
CREATE FUNCTION skep._open_runs(
    partition_ids bigint[], group_queue_ids integer[], starts bigint[], start skep.subscriptions, is_end boolean,
    OUT skipped bigint, OUT replayed bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
    goals bigint[];
BEGIN
    goals := ARRAY(SELECT skep._seek_offset(id, start, is_end)
                   FROM unnest(_open_runs.partition_ids) WITH ORDINALITY AS target (id, n) ORDER BY n);
    INSERT INTO skep.starts (partition_id, group_queue_id, start_offset)
    SELECT goal.* FROM unnest(_open_runs.partition_ids, _open_runs.group_queue_ids, goals)
        AS goal (partition_id, group_queue_id, at)
    WHERE goal.at IS NOT NULL;  -- NULL: the partition was deleted
    INSERT INTO skep.runs (partition_id, group_queue_id, list_id, first_offset, ready_at, priority, drained)
    SELECT goal.partition_id, g.id, g.list_id, goal.at, skep._ready_time(NULL, stamp), CASE
        WHEN g.list_id = g.id THEN 0 ELSE -q.priority END,
           NOT EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = goal.partition_id AND m."offset" >= goal.at)
    FROM unnest(_open_runs.partition_ids, _open_runs.group_queue_ids, goals) AS goal (partition_id, group_queue_id, at)
    CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g WHERE g.id = goal.group_queue_id LIMIT 1) g
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = g.queue_id LIMIT 1) q
    WHERE goal.at IS NOT NULL;
    SELECT coalesce(sum(greatest(goal.at - goal.target, 0)), 0), coalesce(sum(greatest(goal.target - goal.at, 0)), 0)
    INTO skipped, replayed
    FROM unnest(goals, starts) AS goal (at, target);
END $$;

-- Returns the partitions to move that the groups have not read, and where they would have started; NULL without a
-- subscription.
CREATE FUNCTION skep._unread_partitions(
    group_queues integer[], partition text, with_redriven boolean,
    OUT partition_ids bigint[], OUT group_queue_ids integer[], OUT starts bigint[]
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(array_agg(s.partition_id ORDER BY s.partition_id), '{}'),
           coalesce(array_agg(g.id ORDER BY s.partition_id), '{}'),
           coalesce(array_agg(CASE WHEN known.is_known THEN s.start_offset END ORDER BY s.partition_id), '{}')
    INTO partition_ids, group_queue_ids, starts
    FROM unnest(group_queues) AS requested (id)
    CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g WHERE g.id = requested.id LIMIT 1) g
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = g.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT EXISTS (
        SELECT FROM skep.subscriptions s WHERE s.group_name = g.group_name AND (s.queue = q.name OR s.queue IS NULL
           AND (s.namespace IS NULL OR s.namespace = q.namespace)
           AND (s.task IS NULL OR s.task = q.task))) AS is_known) known
    CROSS JOIN LATERAL skep._starting_offsets(g.group_name, q.id, ARRAY(
        SELECT p.id FROM skep.partitions p
        WHERE p.queue_id = q.id AND (_unread_partitions.partition IS NULL OR p.name = _unread_partitions.partition)
          AND (p.only_group IS NULL OR with_redriven)
          AND NOT EXISTS (SELECT FROM skep.starts s WHERE s.partition_id = p.id AND s.group_queue_id = g.id))) s;
END $$;

-- An offset after the end of a partition means its end. Partitions that are created later start at their beginning.
CREATE FUNCTION skep.seek(
    group_name text, queue text, "position" text, partition text DEFAULT NULL,
    OUT partitions bigint, OUT skipped bigint, OUT replayed bigint
) LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    is_end boolean := lower("position") = 'end';
    start  skep.subscriptions;
    queues text[];
    locked integer[];
    effective_group text;  -- all groups share the cursor of a work queue
    unread record;
    read   record;
    moved  record;
    opened record;
BEGIN
    PERFORM skep._require_read_committed('seek');
    IF seek.queue IS NULL AND seek.partition IS NULL THEN
        PERFORM skep._check_name('group', seek.group_name);
    ELSE
        PERFORM skep._check_pop(seek.queue, seek.group_name, seek.partition, NULL, NULL, 1, 1, NULL);
    END IF;
    start := skep._parse_position("position");
    queues := CASE WHEN seek.queue IS NULL THEN skep._queues_of_group(seek.group_name) ELSE ARRAY[seek.queue] END;
    locked := skep._lock_group_queues(seek.group_name, queues);
    -- By the subscriptions before the change.
    unread := skep._unread_partitions(locked, seek.partition, start.mode <> 'offset');
    IF seek.queue IS NULL THEN
        PERFORM skep._restart_subscriptions(seek.group_name, queues, start);
    ELSE
        effective_group := coalesce((SELECT g.group_name FROM skep.group_queues g WHERE g.id = locked[1]),
                                    seek.group_name);
        PERFORM skep._restart_subscription(effective_group, seek.queue, seek.partition, start);
    END IF;
    read := skep._read_partitions(locked, seek.partition, start.mode <> 'offset');
    PERFORM FROM skep.partition_floors f WHERE f.partition_id = ANY (read.partition_ids || unread.partition_ids)
    ORDER BY f.partition_id FOR KEY SHARE;
    PERFORM skep._lock_runs(read.partition_ids, read.group_queue_ids);
    moved := skep._move_runs(read.partition_ids, read.group_queue_ids, start, is_end);
    opened := skep._open_runs(unread.partition_ids, unread.group_queue_ids, unread.starts, start, is_end);
    partitions := cardinality(read.partition_ids) + cardinality(unread.partition_ids);
    skipped := moved.skipped + opened.skipped;
    replayed := moved.replayed + opened.replayed;
    PERFORM skep._request_count(ARRAY(SELECT q.id FROM skep.queues q WHERE q.name = ANY (queues)));
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(seek.group_name);
END $$;
COMMENT ON FUNCTION skep.seek IS
    'Moves a group to beginning, end, a time or an offset: in a partition, in a queue, or in all queues if queue is '
    'NULL. Its leases end. Returns the number of moved partitions, of skipped pending messages, and of completed '
    'messages that are delivered again (replayed).';
CALL skep._allow('skep_admin', 'seek');
