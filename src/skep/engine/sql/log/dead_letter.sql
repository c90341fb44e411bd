-- Dead letters: list, redrive, purge. Every redrive and purge leaves a row in dead_letter_audit.

-- Returns the dead letters that match, oldest first. error matches a part of the text.
CREATE FUNCTION skep._find_dead_letters(
    queue text, group_name text, error text, failed_after timestamptz, failed_before timestamptz, ids bigint[],
        max_rows integer
) RETURNS SETOF skep.dead_letters LANGUAGE sql STABLE AS $$
    SELECT * FROM skep.dead_letters d
    WHERE (_find_dead_letters.queue IS NULL OR d.queue = _find_dead_letters.queue)
      AND (_find_dead_letters.group_name IS NULL OR d.group_name = _find_dead_letters.group_name)
      AND (_find_dead_letters.error IS NULL OR strpos(lower(d.error), lower(_find_dead_letters.error)) > 0)
      AND (failed_after IS NULL OR d.failed_at >= failed_after)
      AND (failed_before IS NULL OR d.failed_at < failed_before)
      AND (_find_dead_letters.ids IS NULL OR d.id = ANY (_find_dead_letters.ids))
    ORDER BY d.id LIMIT max_rows
$$;

CREATE FUNCTION skep.list_dead_letters(
    queue text DEFAULT NULL, group_name text DEFAULT NULL, error text DEFAULT NULL,
        failed_after timestamptz DEFAULT NULL, failed_before timestamptz DEFAULT NULL, before_id bigint DEFAULT NULL,
        max_rows integer DEFAULT 100
) RETURNS SETOF skep.dead_letters LANGUAGE sql STABLE AS $$
    SELECT * FROM skep.dead_letters d
    WHERE (list_dead_letters.queue IS NULL OR d.queue = list_dead_letters.queue)
      AND (list_dead_letters.group_name IS NULL OR d.group_name = list_dead_letters.group_name)
      AND (list_dead_letters.error IS NULL OR strpos(lower(d.error), lower(list_dead_letters.error)) > 0)
      AND (failed_after IS NULL OR d.failed_at >= failed_after)
      AND (failed_before IS NULL OR d.failed_at < failed_before) AND (before_id IS NULL OR d.id < before_id)
    ORDER BY d.id DESC LIMIT max_rows
$$;
COMMENT ON FUNCTION skep.list_dead_letters IS
    'Returns dead letters, newest first. For the next page pass the last id as before_id.';
CALL skep._allow('skep_admin', 'list_dead_letters');

CREATE FUNCTION skep.count_dead_letters(
    queue text DEFAULT NULL, group_name text DEFAULT NULL, failed_after timestamptz DEFAULT NULL,
        failed_before timestamptz DEFAULT NULL
) RETURNS TABLE (queue text, group_name text, error text, letters bigint, first_failed_at timestamptz,
                 last_failed_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT d.queue, d.group_name, left(d.error, 200), count(*), min(d.failed_at), max(d.failed_at)
    FROM skep._find_dead_letters(count_dead_letters.queue, count_dead_letters.group_name, NULL, failed_after,
                                 failed_before, NULL, NULL) d GROUP BY 1, 2, 3
$$;
COMMENT ON FUNCTION skep.count_dead_letters IS 'Returns the number of dead letters for each queue, group and error.';
CALL skep._allow('skep_admin', 'count_dead_letters');

-- Returns the headers of a redriven dead letter. A new payload is not sealed.
CREATE FUNCTION skep._redriven_headers(old jsonb, new jsonb, edited boolean, origin jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN edited THEN coalesce(old, '{}') - 'skep-sealed' ELSE coalesce(old, '{}') END || coalesce(new, '{}')
           || jsonb_build_object('skep-redriven', origin || CASE WHEN edited THEN '{"edited": true}'
                                 ELSE '{}' END::jsonb)
$$;

-- Pushing and deleting are one transaction, so each dead letter is redriven once, however many calls run at the same
-- time.
CREATE FUNCTION skep.redrive(
    queue text DEFAULT NULL, group_name text DEFAULT NULL, error text DEFAULT NULL,
        failed_after timestamptz DEFAULT NULL, failed_before timestamptz DEFAULT NULL, ids bigint[] DEFAULT NULL,
        to_queue text DEFAULT NULL, max_rows integer DEFAULT 1000, dry_run boolean DEFAULT false,
        done_by text DEFAULT NULL, payload jsonb DEFAULT NULL, headers jsonb DEFAULT NULL
) RETURNS TABLE (dead_letter_id bigint, from_queue text, from_partition text, for_group text, message_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    chosen skep.dead_letters[];
BEGIN
    IF redrive.to_queue IS NOT NULL THEN
        PERFORM skep._check_name('queue', redrive.to_queue);
    END IF;
    IF num_nonnulls(redrive.payload, redrive.headers) > 0 AND cardinality(redrive.ids) IS DISTINCT FROM 1 THEN
        PERFORM skep._refuse('SK001', 'a new payload or new headers need exactly one dead letter',
                             'Give its id in ids.');
    END IF;
    IF dry_run THEN
        RETURN QUERY SELECT d.id, d.queue, d.partition, d.group_name, NULL::uuid
        FROM skep._find_dead_letters(redrive.queue, redrive.group_name, redrive.error, failed_after, failed_before,
                                     ids, max_rows) d;
        RETURN;
    END IF;
    SELECT array_agg(d ORDER BY d.id) INTO chosen FROM (
        SELECT mine.*
        FROM skep._find_dead_letters(redrive.queue, redrive.group_name, redrive.error, failed_after, failed_before,
                                     ids, max_rows) d
        CROSS JOIN LATERAL (SELECT * FROM skep.dead_letters x WHERE x.id = d.id FOR UPDATE SKIP LOCKED) mine
    ) d;
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    IF redrive.to_queue IS NULL THEN
        PERFORM skep._open_redrive_partitions(chosen);
    END IF;
    RETURN QUERY
    WITH pushed AS (
        SELECT p.* FROM (
            SELECT array_agg(coalesce(redrive.to_queue, d.queue) ORDER BY n) AS queues,
                   array_agg(CASE WHEN redrive.to_queue IS NULL THEN skep._redrive_partition(d.group_name, d.partition)
                             ELSE skep._origin_partition(d.group_name, d.partition) END
                             ORDER BY n) AS partitions,
                   array_agg(coalesce(redrive.payload, d.payload) ORDER BY n) AS payloads,
                   array_agg(skep._redriven_headers(d.headers, redrive.headers, redrive.payload IS NOT NULL,
                                                    jsonb_build_object(
                       'queue', d.queue, 'partition', d.partition, 'offset', d."offset",
                       'error', left(d.error, 500))) ORDER BY n) AS headers,
                   array_agg(d.trace_id ORDER BY n) AS trace_ids, array_agg(d.producer ORDER BY n) AS producers
            FROM unnest(chosen) WITH ORDINALITY AS d (
                id, group_name, queue, partition, partition_id, "offset", created_at, payload, headers, transaction_id,
                    trace_id, producer, error, attempts, failed_at, n)) m
        CROSS JOIN LATERAL skep.push_many(m.queues, m.partitions, m.payloads, NULL, m.headers, m.trace_ids,
                                          m.producers) p
    ), deleted AS (
        DELETE FROM skep.dead_letters d WHERE d.id = ANY (SELECT c.id FROM unnest(chosen) c)
    ), noted AS (
        INSERT INTO skep.dead_letter_audit (action, dead_letter_id, group_name, queue, partition, "offset", error,
                                            message_id, to_queue, done_by)
        SELECT 'redriven', d.id, d.group_name, d.queue, d.partition, d."offset", d.error,
               skep.message_id(pushed.partition_id, pushed."offset"), coalesce(redrive.to_queue, d.queue),
               coalesce(redrive.done_by, session_user)
        FROM pushed CROSS JOIN LATERAL (SELECT (chosen[pushed.ord::integer]).*) d
        RETURNING *
    )
    SELECT noted.dead_letter_id, noted.queue, noted.partition, noted.group_name, noted.message_id FROM noted;
END $$;
COMMENT ON FUNCTION skep.redrive IS
    'Redrives dead letters, oldest first: pushes them to their own group or, with to_queue, as new messages for every '
    'group of that queue, and deletes them. payload replaces the payload of one dead letter, headers are merged into '
    'its own. Returns a row for each; dry_run changes nothing.';
CALL skep._allow('skep_admin', 'redrive');

-- Creates the partitions for one group that these dead letters need, and locks them. Refuses a partition of that name
-- that is in use for something else. A partition that is dropped as idle meanwhile is created again here, because
-- push() would create it for every group.
CREATE FUNCTION skep._open_redrive_partitions(dead skep.dead_letters[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wanted record;
    locked bigint;
    taken  text;
BEGIN
    SELECT array_agg(d.queue ORDER BY d.queue, d.name) AS queues, array_agg(d.name ORDER BY d.queue, d.name) AS names
    INTO wanted
    FROM (SELECT DISTINCT d.queue, skep._redrive_partition(d.group_name, d.partition) COLLATE "C" AS name
          FROM unnest(dead) d) d;
    FOR try IN 1 .. 4 LOOP
        PERFORM skep._create_partitions(wanted.queues, wanted.names);
        -- Lock them in the order of push, and read them after that, so that a concurrent push counts.
        PERFORM FROM unnest(wanted.queues, wanted.names) AS one (queue, name)
        CROSS JOIN LATERAL (SELECT q.id FROM skep.queues q WHERE q.name = one.queue LIMIT 1) q
        CROSS JOIN LATERAL (SELECT FROM skep.partitions p WHERE p.queue_id = q.id AND p.name = one.name
                            FOR NO KEY UPDATE) p;
        GET DIAGNOSTICS locked = ROW_COUNT;
        EXIT WHEN locked = cardinality(wanted.names);
        IF try = 4 OR locked > 0 THEN  -- creating one while others are locked could deadlock
            RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'queue or partition deleted during redrive',
            HINT = 'Redrive again.';
        END IF;
    END LOOP;
    UPDATE skep.partitions p SET only_group = skep._group_of(q.semantics, one.group_name)
    FROM (SELECT DISTINCT d.queue, d.group_name, skep._redrive_partition(d.group_name, d.partition) AS name
          FROM unnest(dead) d) one
    JOIN skep.queues q ON q.name = one.queue
    WHERE p.queue_id = q.id AND p.name = one.name AND p.only_group IS NULL
      AND NOT EXISTS (SELECT FROM skep.messages m WHERE m.partition_id = p.id)
      AND EXISTS (SELECT FROM skep.partition_floors f WHERE f.partition_id = p.id AND f.first_offset = 0);
    SELECT p.name INTO taken FROM unnest(dead) d
    JOIN skep.queues q ON q.name = d.queue
    JOIN skep.partitions p ON p.queue_id = q.id AND p.name = skep._redrive_partition(d.group_name, d.partition)
    WHERE p.only_group IS DISTINCT FROM skep._group_of(q.semantics, d.group_name) LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK007', format('partition "%s" is in use', taken),
                             'Redrive to another queue with to_queue.');
    END IF;
END $$;

CREATE FUNCTION skep.purge_dead_letters(
    queue text DEFAULT NULL, group_name text DEFAULT NULL, error text DEFAULT NULL,
        failed_after timestamptz DEFAULT NULL, failed_before timestamptz DEFAULT NULL, ids bigint[] DEFAULT NULL,
        max_rows integer DEFAULT 1000, dry_run boolean DEFAULT false, done_by text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    purged bigint;
BEGIN
    IF dry_run THEN
        RETURN (SELECT count(*) FROM skep._find_dead_letters(purge_dead_letters.queue, purge_dead_letters.group_name,
                    purge_dead_letters.error, failed_after, failed_before, ids, max_rows));
    END IF;
    WITH chosen AS (
        SELECT mine.id
        FROM skep._find_dead_letters(purge_dead_letters.queue, purge_dead_letters.group_name, purge_dead_letters.error,
                                     failed_after, failed_before, ids, max_rows) d
        CROSS JOIN LATERAL (SELECT x.id FROM skep.dead_letters x WHERE x.id = d.id FOR UPDATE SKIP LOCKED) mine
    ), deleted AS (
        DELETE FROM skep.dead_letters d WHERE d.id = ANY (SELECT chosen.id FROM chosen) RETURNING d.*
    ), noted AS (
        INSERT INTO skep.dead_letter_audit (action, dead_letter_id, group_name, queue, partition, "offset", error,
                                            done_by)
        SELECT 'purged', d.id, d.group_name, d.queue, d.partition, d."offset", d.error,
               coalesce(purge_dead_letters.done_by, session_user) FROM deleted d
        RETURNING id
    )
    SELECT count(*) INTO purged FROM noted;
    RETURN purged;
END $$;
COMMENT ON FUNCTION skep.purge_dead_letters IS
    'Deletes dead letters, oldest first, and returns their number; dry_run only counts them.';
CALL skep._allow('skep_admin', 'purge_dead_letters');
