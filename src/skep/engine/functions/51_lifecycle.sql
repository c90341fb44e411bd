-- The life of a subscription: pause, resume, cancel, heartbeat, death. The states are drawn in migration 0002.

-- A subscription, and those of its group to the same queue, or to partitions of the queues it is for.
CREATE FUNCTION skep.beside(subscription_id bigint) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(other.id) FROM (SELECT * FROM skep.subscriptions WHERE id = $1) one
    JOIN skep.subscriptions other ON other.group_name = one.group_name
    WHERE other.id = one.id OR other.queue = one.queue
       OR one.queue IS NULL AND other.partition IS NOT NULL AND EXISTS (
              SELECT FROM skep.queues q WHERE q.name = other.queue AND q.namespace = coalesce(one.namespace, q.namespace)
                                          AND q.task = coalesce(one.task, q.task))
$$;

-- A sign of life, also for what the group has on the same queue for single partitions. Not waited for: whoever holds a row gives one too.
CREATE FUNCTION skep.beat(subscription_id bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE skep.subscriptions s
    SET last_heartbeat_at = clock_timestamp(), status = CASE s.status WHEN 'DEAD' THEN 'ACTIVE' ELSE s.status END,
        status_changed_at = CASE s.status WHEN 'DEAD' THEN clock_timestamp() ELSE s.status_changed_at END
    FROM (SELECT id FROM skep.subscriptions WHERE id = ANY (skep.beside($1)) AND status <> 'CANCELLED'
          ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) mine
    WHERE s.id = mine.id
$$;

-- The subscriptions a call is about, locked in order: of a queue (with those of its partitions), of a namespace and/or task, or all of
-- the group. A queue that is covered by a wildcard only gets a subscription of its own, so that it can differ.
CREATE FUNCTION skep.subscriptions_for(group_name text, queue text, namespace text, task text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    who   text := coalesce((SELECT skep.group_on(q.semantics, subscriptions_for.group_name) FROM skep.queues q
                            WHERE q.name = subscriptions_for.queue), subscriptions_for.group_name);
    found bigint[];
BEGIN
    PERFORM skep.check_name('group', subscriptions_for.group_name);
    IF subscriptions_for.queue IS NOT NULL THEN
        INSERT INTO skep.subscriptions (group_name, queue, mode, start_at, start_offset, created_at, status, backfill, heartbeat_interval,
                                        heartbeat_timeout, miss_threshold, last_heartbeat_at)
        SELECT who, q.name, s.mode, s.start_at, s.start_offset, s.created_at, s.status, s.backfill, s.heartbeat_interval,
               s.heartbeat_timeout, s.miss_threshold, s.last_heartbeat_at
        FROM skep.queues q CROSS JOIN LATERAL skep.subscription_of(who, q.name, NULL, q.namespace, q.task) s
        WHERE q.name = subscriptions_for.queue AND s.id IS NOT NULL AND s.queue IS NULL
        ON CONFLICT DO NOTHING;
    END IF;
    SELECT array_agg(s.id) INTO found FROM (
        SELECT s.id FROM skep.subscriptions s
        WHERE s.group_name = who
          AND CASE WHEN subscriptions_for.queue IS NOT NULL THEN s.queue = subscriptions_for.queue
                   WHEN num_nonnulls(subscriptions_for.namespace, subscriptions_for.task) > 0 THEN
                       s.queue IS NULL AND s.namespace IS NOT DISTINCT FROM subscriptions_for.namespace
                       AND s.task IS NOT DISTINCT FROM subscriptions_for.task
                   ELSE true END
        ORDER BY s.id FOR NO KEY UPDATE) s;
    IF found IS NULL THEN
        PERFORM skep.refuse('SK002', format('group "%s" has no subscription%s', subscriptions_for.group_name,
                                            coalesce(format(' to queue "%s"', subscriptions_for.queue), '')), 'Subscribe first.');
    END IF;
    RETURN found;
END $$;

CREATE FUNCTION skep.set_status(ids bigint[], wanted text) RETURNS SETOF skep.subscriptions
LANGUAGE sql AS $$
    UPDATE skep.subscriptions s
    SET status = $2, status_changed_at = clock_timestamp(),
        last_heartbeat_at = CASE $2 WHEN 'ACTIVE' THEN clock_timestamp() ELSE s.last_heartbeat_at END
    WHERE s.id = ANY ($1) AND s.status <> $2
    RETURNING s.*
$$;

CREATE FUNCTION skep.refuse_cancelled(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM skep.subscriptions s WHERE s.id = ANY (ids) AND s.status <> 'CANCELLED') THEN
        PERFORM skep.refuse('SK007', 'the subscription is cancelled', 'Subscribe again to begin anew.');
    END IF;
END $$;

-- What the consumers of these subscriptions hold is given back, nothing charged. Their answers are refused from now on.
CREATE FUNCTION skep.give_back_leases(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tokens   uuid[];
    lane_ids bigint[];
BEGIN
    SELECT array_agg(held.token), array_agg(held.partition_id) INTO tokens, lane_ids FROM (
        SELECT l.token, l.partition_id
        FROM skep.subscriptions s
        JOIN skep.readers r ON r.group_name = s.group_name
        JOIN skep.queues q ON q.id = r.queue_id
        JOIN skep.partitions p ON p.queue_id = q.id
        JOIN skep.leases l ON l.partition_id = p.id AND l.reader_id = r.id AND l.token IS NOT NULL
        CROSS JOIN LATERAL skep.subscription_of(s.group_name, q.name, p.name, q.namespace, q.task) decides
        CROSS JOIN LATERAL (
            SELECT FROM skep.cursors c WHERE c.partition_id = l.partition_id AND c.reader_id = l.reader_id FOR NO KEY UPDATE
        ) c
        WHERE s.id = ANY (ids) AND decides.id = s.id
        ORDER BY l.partition_id, l.reader_id
    ) held;
    IF tokens IS NOT NULL THEN
        PERFORM skep.judge(tokens, lane_ids, 'released');
    END IF;
END $$;

-- Nothing is delivered, everything owed stays owed.
CREATE FUNCTION skep.pause(group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := skep.subscriptions_for(group_name, queue, namespace, task);
BEGIN
    PERFORM skep.refuse_cancelled(ids);
    SELECT array_agg(s.id) INTO ids FROM skep.subscriptions s WHERE s.id = ANY (ids) AND s.status <> 'CANCELLED';
    RETURN QUERY SELECT * FROM skep.set_status(ids, 'PAUSED');
    PERFORM skep.give_back_leases(ids);
END $$;

CREATE FUNCTION skep.resume(group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := skep.subscriptions_for(group_name, queue, namespace, task);
BEGIN
    PERFORM skep.refuse_cancelled(ids);
    SELECT array_agg(s.id) INTO ids FROM skep.subscriptions s WHERE s.id = ANY (ids) AND s.status <> 'CANCELLED';
    RETURN QUERY SELECT * FROM skep.set_status(ids, 'ACTIVE');
END $$;

-- Final until subscribed anew: nothing is owed to it any more. What it has done stays on record. Harmless to repeat.
CREATE FUNCTION skep.cancel(group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := skep.subscriptions_for(group_name, queue, namespace, task);
BEGIN
    RETURN QUERY SELECT * FROM skep.set_status(ids, 'CANCELLED');
    PERFORM skep.give_back_leases(ids);
END $$;

-- For an administrator: cancels, and says how many messages no longer wait for the group. One that is cancelled already is a conflict.
CREATE FUNCTION skep.remove_group(group_name text, queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ids   bigint[] := skep.subscriptions_for(group_name, queue, NULL, NULL);
    owed  bigint;
BEGIN
    PERFORM skep.refuse_cancelled(ids);
    SELECT coalesce(sum(l.lag), 0) INTO owed FROM skep.lag(group_name, queue) l;
    PERFORM skep.cancel(group_name, queue);
    RETURN owed;
END $$;

-- Clients send it while they have nothing else to say; every pop, answer and extension is one as well.
CREATE FUNCTION skep.heartbeat(group_name text, queue text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS SETOF skep.subscriptions LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := skep.subscriptions_for(group_name, queue, namespace, task);
BEGIN
    PERFORM skep.refuse_cancelled(ids);
    PERFORM skep.beat(id) FROM unnest(ids) AS id;
    RETURN QUERY SELECT * FROM skep.subscriptions s WHERE s.id = ANY (ids) ORDER BY s.id;
END $$;

-- Forgets what a group has done under a subscription, so that it starts where the next one says.
CREATE FUNCTION skep.forget_progress(ended skep.subscriptions) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    doomed record;
BEGIN
    FOR doomed IN
        SELECT r.id AS reader, array_agg(p.id ORDER BY p.id) AS lanes
        FROM skep.readers r
        JOIN skep.queues q ON q.id = r.queue_id
        JOIN skep.partitions p ON p.queue_id = q.id
        CROSS JOIN LATERAL skep.subscription_of(r.group_name, q.name, p.name, q.namespace, q.task) decides
        WHERE r.group_name = ended.group_name AND decides.id = ended.id
        GROUP BY r.id ORDER BY r.id
    LOOP
        PERFORM pg_advisory_xact_lock(x'736b6570'::integer, doomed.reader);
        PERFORM FROM skep.cursors c WHERE c.partition_id = ANY (doomed.lanes) AND c.reader_id = doomed.reader
        ORDER BY c.partition_id FOR UPDATE;
        DELETE FROM skep.leases s WHERE s.partition_id = ANY (doomed.lanes) AND s.reader_id = doomed.reader;
        DELETE FROM skep.cursors c WHERE c.partition_id = ANY (doomed.lanes) AND c.reader_id = doomed.reader;
        UPDATE skep.looks k SET snapshot = NULL, number = k.number + 1 WHERE k.reader_id = doomed.reader;  -- look at every lane again
    END LOOP;
END $$;

-- Misses are counted by the clock, not by runs of the detector: any number of detectors, at any pace, agree.
CREATE FUNCTION skep.misses(overdue double precision, heartbeat_interval double precision) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN $1 <= 0 THEN 0 ELSE 1 + floor(least($1 / $2, 1e6))::integer END $$;

-- What the lanes of a group say about its life: a live lease is a sign of this moment. By the lanes of its queues, one by one: an index
-- that finds the cursors of a reader would cost every pop and ack.
CREATE FUNCTION skep.last_sign(suspect skep.subscriptions, stamp timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT max(CASE WHEN c.leased > 0 AND EXISTS (
                        SELECT FROM skep.leases l WHERE l.partition_id = c.partition_id AND l.reader_id = c.reader_id
                                                    AND l.expires_at > $2) THEN $2
                    WHEN greatest(c.last_consumed_at, c.touched_at) < $2 THEN greatest(c.last_consumed_at, c.touched_at) END)
    FROM (SELECT * FROM skep.readers r WHERE r.group_name = ($1).group_name OFFSET 0) r
    CROSS JOIN LATERAL (SELECT * FROM skep.queues q WHERE q.id = r.queue_id LIMIT 1) q
    CROSS JOIN LATERAL (SELECT p.id FROM skep.partitions p WHERE p.queue_id = q.id OFFSET 0) p
    CROSS JOIN LATERAL (SELECT * FROM skep.cursors c WHERE c.partition_id = p.id AND c.reader_id = r.id ORDER BY c.next_offset DESC LIMIT 1) c
    WHERE q.name = ($1).queue OR ($1).queue IS NULL
          AND (($1).namespace IS NULL OR q.namespace = ($1).namespace) AND (($1).task IS NULL OR q.task = ($1).task)
$$;

-- Declares groups dead that gave no sign of life for too long. A suspect that holds a live lease or has answered lately is alive: its
-- sign of life is written down instead. Paused ones and queue mode, which belongs to nobody in particular, never die.
-- If nobody has looked for longer than a group's timeout, it has the benefit of the doubt and that time again: the database was down, or all
-- servers, or the clock has jumped, and it could not be heard.
CREATE FUNCTION skep.detect_dead_groups()
RETURNS TABLE (group_name text, queue text, namespace text, task text, last_heartbeat_at timestamptz, overdue_seconds double precision,
               misses integer, died boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stamp timestamptz := clock_timestamp();
    deaf  interval := stamp - (SELECT w.watched_at FROM skep.settings w);
BEGIN
    UPDATE skep.settings w SET watched_at = stamp
    FROM (SELECT FROM skep.settings FOR NO KEY UPDATE SKIP LOCKED) mine;
    RETURN QUERY
    WITH suspect AS MATERIALIZED (
        SELECT s.* FROM skep.subscriptions s
        WHERE s.status = 'ACTIVE' AND s.group_name <> '__QUEUE_MODE__'
          AND NOT EXISTS (SELECT FROM skep.queues q WHERE q.name = s.queue AND q.semantics = 'queue')
          AND s.last_heartbeat_at < stamp - skep.seconds(s.heartbeat_timeout)
        ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED
    ), seen AS MATERIALIZED (
        SELECT suspect.id, CASE WHEN deaf > skep.seconds(suspect.heartbeat_timeout) THEN stamp
                                ELSE greatest(suspect.last_heartbeat_at, skep.last_sign(suspect, stamp)) END AS at
        FROM suspect
    ), judged AS MATERIALIZED (
        SELECT seen.*, overdue.seconds, skep.misses(overdue.seconds, s.heartbeat_interval) AS misses
        FROM seen JOIN suspect s ON s.id = seen.id
        CROSS JOIN LATERAL (SELECT extract(epoch FROM stamp - seen.at)::double precision - s.heartbeat_timeout AS seconds) overdue
    )
    UPDATE skep.subscriptions s
    SET last_heartbeat_at = judged.at,
        status = CASE WHEN judged.misses >= s.miss_threshold THEN 'DEAD' ELSE s.status END,
        status_changed_at = CASE WHEN judged.misses >= s.miss_threshold THEN stamp ELSE s.status_changed_at END
    FROM judged
    WHERE s.id = judged.id
    RETURNING s.group_name, s.queue, s.namespace, s.task, s.last_heartbeat_at, judged.seconds, judged.misses, s.status = 'DEAD';
END $$;
