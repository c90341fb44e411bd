-- delete_group(), and the removal of a cancelled subscription before it is made again.

-- Deletes the runs and starts of groups in partitions, with their leases. Returns the number of partitions.
CREATE FUNCTION skep._delete_runs(partition_ids bigint[], group_queue_ids integer[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    forgotten bigint;
BEGIN
    PERFORM skep._lock_runs(partition_ids, group_queue_ids);
    DELETE FROM skep.runs r USING unnest(partition_ids, group_queue_ids) AS target (partition_id, group_queue_id)
    WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id;
    DELETE FROM skep.starts s USING unnest(partition_ids, group_queue_ids) AS target (partition_id, group_queue_id)
    WHERE s.partition_id = target.partition_id AND s.group_queue_id = target.group_queue_id;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    PERFORM skep._request_count(ARRAY(SELECT g.queue_id FROM skep.group_queues g WHERE g.id = ANY (group_queue_ids)));
    RETURN forgotten;
END $$;

-- Deletes a cancelled subscription, with those of its partitions, and the runs that they decided about. The next
-- subscription starts again.
CREATE FUNCTION skep._forget_cancelled(ended skep.subscriptions) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    locked  integer[];
    ids     bigint[];
    decided record;
BEGIN
    locked := skep._lock_group(ended.group_name, ended.queue);
    PERFORM skep._require_read_committed('subscribe after cancel');
    ids := ARRAY(SELECT s.id FROM skep.subscriptions s
                 WHERE s.group_name = ended.group_name AND s.status = 'CANCELLED'
                   AND (s.id = ended.id OR ended.partition IS NULL AND s.queue = ended.queue)
                 ORDER BY s.id FOR UPDATE);
    SELECT array_agg(known.partition_id ORDER BY known.partition_id) AS partition_ids,
           array_agg(known.group_queue_id ORDER BY known.partition_id) AS group_queue_ids INTO decided
    FROM skep._read_partitions(locked) read
    CROSS JOIN LATERAL unnest(read.partition_ids, read.group_queue_ids) AS known (partition_id, group_queue_id)
    CROSS JOIN LATERAL (SELECT * FROM skep.partitions p WHERE p.id = known.partition_id LIMIT 1) p
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = p.queue_id LIMIT 1) q
    CROSS JOIN LATERAL skep._subscription_of(ended.group_name, q.name, p.name, q.namespace, q.task) decides
    WHERE decides.id = ANY (ids);
    IF decided.partition_ids IS NOT NULL THEN
        PERFORM skep._delete_runs(decided.partition_ids, decided.group_queue_ids);
    END IF;
    PERFORM skep._request_discovery(array_agg(g.list_id)) FROM skep.group_queues g WHERE g.id = ANY (locked);
    DELETE FROM skep.subscriptions s WHERE s.id = ANY (ids);
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(ended.group_name);
END $$;

CREATE FUNCTION skep.delete_group(group_name text, queue text DEFAULT NULL, keep_subscription boolean DEFAULT false)
RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    locked    integer[];
    ids       bigint[];
    read      record;
    forgotten bigint;
BEGIN
    locked := skep._lock_group(delete_group.group_name, delete_group.queue);
    PERFORM skep._require_read_committed('delete_group');
    IF NOT keep_subscription THEN
        ids := ARRAY(SELECT s.id FROM skep.subscriptions s
                     WHERE s.group_name = delete_group.group_name
                       AND (delete_group.queue IS NULL OR s.queue = delete_group.queue)
                     ORDER BY s.id FOR UPDATE);
        DELETE FROM skep.subscriptions s WHERE s.id = ANY (ids);
    END IF;
    read := skep._read_partitions(locked);
    forgotten := skep._delete_runs(read.partition_ids, read.group_queue_ids);
    DELETE FROM skep.discoveries d WHERE d.list_id = ANY (locked);
    PERFORM skep._request_discovery(array_agg(g.list_id)) FROM skep.group_queues g
    WHERE g.id = ANY (locked) AND g.list_id <> ALL (locked);
    DELETE FROM skep.group_queues g WHERE g.id = ANY (locked);
    RETURN forgotten;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(delete_group.group_name);
END $$;
COMMENT ON FUNCTION skep.delete_group IS
    'Deletes a group with its cursors and leases, in one queue or everywhere, and returns the number of partitions. '
    'With keep_subscription it starts again at the start of its subscription.';
CALL skep._allow('skep_admin', 'delete_group');
