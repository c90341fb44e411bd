-- The lifecycle of a subscription: heartbeats, pause, resume, cancel, death. Its states are drawn above the table
-- subscriptions.
--
-- A group is DEAD if its last heartbeat is older than both heartbeat_timeout and miss_threshold * heartbeat_interval.
-- pop, ack and extend record heartbeats, at most four in an interval; a live lease counts as a heartbeat. Everything is
-- computed by the clock of the database, so any number of detectors agree, however often they run.

-- Records a heartbeat of a subscription, and of the other subscriptions of its group to the same queue, or to the
-- queues and partitions that it covers: a group that reads one of them is alive for all. Revives a dead subscription.
-- Does not wait for a locked row, because the session that has locked it records a heartbeat as well.
CREATE FUNCTION skep._record_heartbeat(subscription_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    SELECT array_agg(other.id ORDER BY other.id) INTO ids
    FROM (SELECT * FROM skep.subscriptions s WHERE s.id = subscription_id) one
    JOIN skep.subscriptions other ON other.group_name = one.group_name
    WHERE other.id = one.id OR other.queue = one.queue
       OR one.queue IS NULL AND other.queue IS NOT NULL AND EXISTS (
              SELECT FROM skep.queues q WHERE q.name = other.queue
                  AND q.namespace = coalesce(one.namespace, q.namespace)
                                          AND q.task = coalesce(one.task, q.task));
    UPDATE skep.subscriptions s
    SET last_heartbeat_at = clock_timestamp(), status = CASE s.status WHEN 'DEAD' THEN 'ACTIVE' ELSE s.status END,
        status_changed_at = CASE s.status WHEN 'DEAD' THEN clock_timestamp() ELSE s.status_changed_at END
    FROM (SELECT own.id FROM skep.subscriptions own WHERE own.id = ANY (ids) AND own.status <> 'CANCELLED'
          ORDER BY own.id FOR NO KEY UPDATE SKIP LOCKED) own
    WHERE s.id = own.id;
END $$;

-- Records a heartbeat for an ack or an extend, if the last one of a subscription that covers the queue is older than a
-- quarter of its interval.
CREATE FUNCTION skep._record_activity(group_queue_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    PERFORM skep._record_heartbeat(s.id)
    FROM skep.group_queues g
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = g.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (
        SELECT s.id FROM skep.subscriptions s
        WHERE s.group_name = g.group_name AND s.status <> 'CANCELLED'
          AND (s.queue = q.name OR s.queue IS NULL AND (s.namespace IS NULL OR s.namespace = q.namespace)
                                                   AND (s.task IS NULL OR s.task = q.task))
          AND s.last_heartbeat_at NOT BETWEEN stamp - skep._seconds(s.heartbeat_interval / 4) AND stamp
        ORDER BY s.queue IS NULL, s.id LIMIT 1
    ) s
    WHERE g.id = group_queue_id;
END $$;

-- Returns true if the group has a lease that has not expired, in a queue that the subscription covers.
CREATE FUNCTION skep._has_live_lease(s skep.subscriptions, stamp timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT DISTINCT g.list_id FROM skep.group_queues g WHERE g.group_name = s.group_name) list
        CROSS JOIN LATERAL (
            SELECT FROM skep.runs r
            CROSS JOIN LATERAL (SELECT * FROM skep.group_queues g WHERE g.id = r.group_queue_id LIMIT 1) g
            CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = g.queue_id LIMIT 1) q
            WHERE r.list_id = list.list_id AND r.lease_id IS NOT NULL AND r.expires_at > stamp
              AND (q.name = s.queue OR s.queue IS NULL AND (s.namespace IS NULL OR q.namespace = s.namespace)
                                                       AND (s.task IS NULL OR q.task = s.task))
            ORDER BY r.ready_at DESC LIMIT 1) lease);
END $$;

-- Returns the number of seconds without a heartbeat or a live lease of a subscription.
CREATE FUNCTION skep._silence_of(s skep.subscriptions, stamp timestamptz) RETURNS double precision
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN s.last_heartbeat_at < stamp AND NOT skep._has_live_lease(s, stamp) THEN
                extract(epoch FROM stamp - s.last_heartbeat_at)::double precision ELSE 0 END;
END $$;

-- Returns the number of missed heartbeats.
CREATE FUNCTION skep._missed_heartbeats(silence double precision, heartbeat_interval double precision) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT floor(least($1 / $2, 1e6))::integer $$;

-- It writes no heartbeats, so it does not matter how often it runs. Paused groups and queue mode, which all consumers
-- share, are never declared dead.
CREATE FUNCTION skep.detect_dead_groups()
RETURNS TABLE (group_name text, queue text, namespace text, task text, last_heartbeat_at timestamptz,
               overdue_seconds double precision, missed_heartbeats integer, died boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH suspect AS MATERIALIZED (
        SELECT s.*, extract(epoch FROM stamp - s.last_heartbeat_at)::double precision AS silence
        FROM skep.subscriptions s
        WHERE s.status = 'ACTIVE' AND s.group_name <> '__QUEUE_MODE__'
          AND s.last_heartbeat_at <= stamp - skep._seconds(s.heartbeat_timeout)
          AND NOT EXISTS (SELECT FROM skep.queues q WHERE q.name = s.queue AND q.semantics = 'queue')
          AND NOT skep._has_live_lease(s, stamp)
        ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED
    ), counted AS MATERIALIZED (
        SELECT suspect.*, skep._missed_heartbeats(suspect.silence, suspect.heartbeat_interval) AS missed FROM suspect
    ), dead AS (
        UPDATE skep.subscriptions s SET status = 'DEAD', status_changed_at = stamp
        FROM counted WHERE s.id = counted.id AND counted.missed >= counted.miss_threshold
    )
    SELECT c.group_name, c.queue, c.namespace, c.task, c.last_heartbeat_at, c.silence - c.heartbeat_timeout, c.missed,
           c.missed >= c.miss_threshold
    FROM counted c ORDER BY c.id;
END $$;
COMMENT ON FUNCTION skep.detect_dead_groups IS
    'Declares groups DEAD that have sent no heartbeat for too long, and returns every group beyond its timeout. '
    'died is true for groups that this call has declared dead.';
CALL skep._allow('skep_admin', 'detect_dead_groups');

-- Returns the subscriptions of a scope, locked in order: those of a queue with its partitions, of a namespace and/or
-- task, or all of the group. A queue that only a wider subscription covers gets its own subscription, so that its
-- status can differ.
CREATE FUNCTION skep._lock_subscriptions(group_name text, queue text, namespace text, task text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    effective_group text := coalesce(
        (SELECT skep._group_of(q.semantics, _lock_subscriptions.group_name) FROM skep.queues q
         WHERE q.name = _lock_subscriptions.queue), _lock_subscriptions.group_name);
    wider           skep.subscriptions;
    found           bigint[];
BEGIN
    PERFORM skep._check_name('group', _lock_subscriptions.group_name);
    IF EXISTS (SELECT FROM skep.queues q WHERE q.name = _lock_subscriptions.queue) THEN
        wider := skep._covering_subscription(effective_group, queue, NULL, NULL, NULL);
        IF wider.id IS NOT NULL AND wider.queue IS NULL THEN
            wider := skep._without_wider_policy(wider, queue, NULL);
            wider.queue := queue; wider.namespace := NULL; wider.task := NULL;
            PERFORM skep._insert_subscription(wider);
        END IF;
    END IF;
    found := ARRAY(
        SELECT s.id FROM skep.subscriptions s
        WHERE s.group_name = effective_group
          AND CASE WHEN _lock_subscriptions.queue IS NOT NULL THEN s.queue = _lock_subscriptions.queue
                   WHEN num_nonnulls(_lock_subscriptions.namespace, _lock_subscriptions.task) > 0 THEN
                       s.queue IS NULL AND s.namespace IS NOT DISTINCT FROM _lock_subscriptions.namespace
                       AND s.task IS NOT DISTINCT FROM _lock_subscriptions.task
                   ELSE true END
        ORDER BY s.id FOR NO KEY UPDATE);
    IF found = '{}' THEN
        PERFORM skep._refuse('SK002', format('group "%s" has no subscription%s', _lock_subscriptions.group_name,
                                            coalesce(' to queue "' || _lock_subscriptions.queue || '"', '')),
                                            'Subscribe first.');
    END IF;
    RETURN found;
END $$;

-- Returns the same without cancelled subscriptions. If all are cancelled, that is an error.
CREATE FUNCTION skep._lock_open_subscriptions(group_name text, queue text, namespace text, task text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := skep._lock_subscriptions(group_name, queue, namespace, task);
BEGIN
    ids := ARRAY(SELECT s.id FROM skep.subscriptions s WHERE s.id = ANY (ids) AND s.status <> 'CANCELLED'
                 ORDER BY s.id);
    IF ids = '{}' THEN
        PERFORM skep._refuse('SK007', format('the subscription of group "%s"%s is cancelled', group_name,
                                             coalesce(' to queue "' || queue || '"', '')),
                             'Subscribe again to make a new start.');
    END IF;
    RETURN ids;
END $$;

CREATE FUNCTION skep._set_status(ids bigint[], status text) RETURNS SETOF skep.subscriptions
LANGUAGE sql AS $$
    UPDATE skep.subscriptions s
    SET status = $2, status_changed_at = clock_timestamp(),
        last_heartbeat_at = CASE $2 WHEN 'ACTIVE' THEN clock_timestamp() ELSE s.last_heartbeat_at END
    WHERE s.id = ANY ($1) AND s.status <> $2
    RETURNING s.*
$$;

-- Releases the leases that these subscriptions decide about: their messages are delivered again at the same attempt,
-- and their acks are refused.
CREATE FUNCTION skep._release_leases(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    target record;
    lease record;
BEGIN
    FOR target IN
        SELECT DISTINCT r.partition_id, r.group_queue_id
        FROM (SELECT DISTINCT g.list_id, g.group_name FROM skep.subscriptions s
              JOIN skep.group_queues g ON g.group_name = s.group_name
              WHERE s.id = ANY (ids)) list
        JOIN skep.runs r ON r.list_id = list.list_id AND r.lease_id IS NOT NULL
        JOIN skep.group_queues g ON g.id = r.group_queue_id
        JOIN skep.queues q ON q.id = g.queue_id
        JOIN skep.partitions p ON p.id = r.partition_id
        CROSS JOIN LATERAL skep._subscription_of(g.group_name, q.name, p.name, q.namespace, q.task) decides
        WHERE decides.id = ANY (ids)
        ORDER BY r.partition_id, r.group_queue_id
    LOOP
        PERFORM FROM skep.runs r
        WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id AND r.end_offset IS NULL
        ORDER BY r.first_offset DESC LIMIT 1 FOR NO KEY UPDATE;  -- before the closed ones, as every ack does
        FOR lease IN
            SELECT r.ctid AS row_id, r AS run FROM skep.runs r
            WHERE r.partition_id = target.partition_id AND r.group_queue_id = target.group_queue_id
              AND r.lease_id IS NOT NULL
            ORDER BY r.first_offset FOR NO KEY UPDATE
        LOOP
            PERFORM skep._end_lease(lease.row_id, lease.run, 'released');
        END LOOP;
    END LOOP;
END $$;

CREATE FUNCTION skep.pause(
    group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL
)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := skep._lock_open_subscriptions(group_name, queue, namespace, task);
    RETURN QUERY SELECT * FROM skep._set_status(ids, 'PAUSED');
    PERFORM skep._release_leases(ids);
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(group_name);
END $$;
COMMENT ON FUNCTION skep.pause IS
    'Stops delivery to a group and returns its changed subscriptions. Its backlog is kept.';
CALL skep._allow('skep_admin', 'pause');

CREATE FUNCTION skep.resume(
    group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL
)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    RETURN QUERY SELECT * FROM skep._set_status(skep._lock_open_subscriptions(group_name, queue, namespace, task),
                                                'ACTIVE');
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(group_name);
END $$;
COMMENT ON FUNCTION skep.resume IS
    'Resumes delivery to a paused or dead group at its cursor, and returns its changed subscriptions.';
CALL skep._allow('skep_admin', 'resume');

CREATE FUNCTION skep.cancel(
    group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL
)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := skep._lock_subscriptions(group_name, queue, namespace, task);
    RETURN QUERY SELECT * FROM skep._set_status(ids, 'CANCELLED');
    PERFORM skep._release_leases(ids);
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(group_name);
END $$;
COMMENT ON FUNCTION skep.cancel IS
    'Ends subscriptions of a group until it subscribes again, and returns them. Retention no longer keeps messages for '
    'the group. A second call changes nothing.';
CALL skep._allow('skep_admin', 'cancel');

CREATE FUNCTION skep.cancel_group(group_name text, queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    backlog bigint;
BEGIN
    PERFORM skep._lock_open_subscriptions(group_name, queue, NULL, NULL);
    SELECT coalesce(sum(l.lag), 0) INTO backlog FROM skep.lag(group_name, queue) l;
    PERFORM skep.cancel(group_name, queue);
    RETURN backlog;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(group_name);
END $$;
COMMENT ON FUNCTION skep.cancel_group IS
    'Cancels the subscriptions of a group and returns the size of its backlog. Fails with SK007 if they are cancelled '
    'already.';
CALL skep._allow('skep_admin', 'cancel_group');

CREATE FUNCTION skep.heartbeat(
    group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL
)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := skep._lock_open_subscriptions(group_name, queue, namespace, task);
    PERFORM skep._record_heartbeat(id) FROM unnest(ids) AS id;
    RETURN QUERY SELECT * FROM skep.subscriptions s WHERE s.id = ANY (ids) ORDER BY s.id;
EXCEPTION WHEN lock_not_available THEN
    PERFORM skep._refuse_busy(group_name);
END $$;
COMMENT ON FUNCTION skep.heartbeat IS
    'Records that a group is alive, revives it if it is DEAD, and returns its subscriptions. Every pop does the same.';
CALL skep._allow('skep_consumer', 'heartbeat');
