-- The archive: runs of partitions in files elsewhere, each message once, and a manifest of the files.
--
--   plan_archive --> begin_files --> (a task writes a file, and reads it again) --> store_file --> settle_files
--
-- A job may die at any point: stored files stay, and the next job forgets the others and plans their messages again.
-- Retention that waits for the archive uses the mark of a partition, below which every message is stored.

-- Returns the archive at this location, and creates it if needed. A queue has only one archive: of two, neither would
-- be complete.
CREATE FUNCTION skep._open_archive(location text, queues text[]) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    archive integer;
    other   record;
BEGIN
    INSERT INTO skep.archives (location) VALUES (_open_archive.location) ON CONFLICT DO NOTHING;
    SELECT a.id INTO archive FROM skep.archives a WHERE a.location = _open_archive.location;
    SELECT f.queue, a.location INTO other FROM unnest(queues) AS requested (queue)
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_files f WHERE f.queue = requested.queue AND f.archive_id <> archive
                        LIMIT 1) f
    JOIN skep.archives a ON a.id = f.archive_id LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK007', format('queue "%s" is archived at %s', other.queue, other.location),
                            'Archive it there or, if the files have moved, record their new location: '
                            'skep.move_archive(location, new_location).');
    END IF;
    -- Partitions of redriven dead letters hold copies for one group: they are not archived.
    PERFORM skep._mark_archived(redriven.id, redriven.next_offset) FROM (
        SELECT p.id, head.next_offset
        FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id CROSS JOIN LATERAL skep._head_of(p.id) head
        WHERE q.name = ANY (queues) AND p.only_group IS NOT NULL AND head.next_offset > 0 ORDER BY p.id) redriven;
    RETURN archive;
END $$;
CALL skep._allow('skep_admin', '_open_archive');

CREATE FUNCTION skep.move_archive(location text, new_location text) RETURNS boolean
LANGUAGE sql AS $$
    WITH moved AS (UPDATE skep.archives a SET location = $2 WHERE a.location = $1 RETURNING 1)
    SELECT EXISTS (SELECT FROM moved)
$$;
COMMENT ON FUNCTION skep.move_archive IS
    'Records that the files of an archive have moved to another location. Returns false if there is no archive at '
    'the old location.';
CALL skep._allow('skep_admin', 'move_archive');

-- Locks an archive for one job, for as long as its session lasts.
CREATE FUNCTION skep._lock_archive(archive_id integer) RETURNS boolean
LANGUAGE sql AS $$ SELECT pg_try_advisory_lock(x'736b6172'::integer, $1) $$;
CALL skep._allow('skep_admin', '_lock_archive');

-- Returns the start of the archived run that contains this offset of a partition, or of the last run before it. Runs do
-- not overlap, so no earlier run contains the offset.
CREATE FUNCTION skep._archived_run_at(partition_id bigint, "offset" bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT r.first_offset FROM skep.archive_runs r WHERE r.partition_id = $1 AND r.first_offset <= $2
                     ORDER BY r.first_offset DESC LIMIT 1), 0)
$$;

-- Returns the messages that are in the log and in no file, as runs of partitions within a day.
CREATE FUNCTION skep._plan_archive(queues text[])
RETURNS TABLE (queue text, day date, partition_id bigint, partition text, first_offset bigint, end_offset bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    source  record;
    missing int8range;
BEGIN
    FOR source IN
        SELECT q.name AS queue, p.id, p.name, greatest(f.first_offset, a.end_offset) AS start, head.next_offset AS stop
        FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = p.id LIMIT 1) f
        CROSS JOIN LATERAL skep._head_of(p.id) head
        LEFT JOIN LATERAL (SELECT * FROM skep.archive_marks a WHERE a.partition_id = p.id LIMIT 1) a ON true
        WHERE q.name = ANY (queues) AND p.only_group IS NULL
          AND head.next_offset > greatest(f.first_offset, a.end_offset)
        ORDER BY q.id, p.id
    LOOP
        FOR missing IN
            SELECT unnest(int8multirange(int8range(source.start, source.stop)) - coalesce((
                SELECT range_agg(int8range(r.first_offset, r.end_offset)) FROM skep.archive_runs r
                WHERE r.partition_id = source.id
                  AND r.first_offset >= skep._archived_run_at(source.id, source.start)), '{}'))
        LOOP
            queue := source.queue; partition_id := source.id; partition := source.name; end_offset := lower(missing);
            WHILE end_offset < upper(missing) LOOP
                first_offset := end_offset;
                SELECT (m.created_at AT TIME ZONE 'UTC')::date INTO day
                FROM skep.messages m WHERE m.partition_id = source.id AND m."offset" = first_offset;
                end_offset := least(upper(missing),
                                    skep._offset_at(source.id, (day + 1)::timestamp AT TIME ZONE 'UTC'));
                RETURN NEXT;
            END LOOP;
        END LOOP;
    END LOOP;
END $$;
CALL skep._allow('skep_admin', '_plan_archive');

-- Reserves files and returns their ids, in order. files: [{"queue": …, "day": …, "runs": [[partition_id, partition,
-- first_offset, end_offset], …]}, …].
CREATE FUNCTION skep._begin_files(archive_id integer, job uuid, files jsonb) RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    file   jsonb;
    made   bigint;
    ids    bigint[] := '{}';
BEGIN
    FOR file IN SELECT value FROM jsonb_array_elements(files) WITH ORDINALITY AS given (value, n) ORDER BY n LOOP
        INSERT INTO skep.archive_files (archive_id, job, queue, day, messages)
        SELECT _begin_files.archive_id, _begin_files.job, file ->> 'queue', (file ->> 'day')::date,
               sum((run ->> 3)::bigint - (run ->> 2)::bigint)
        FROM jsonb_array_elements(file -> 'runs') AS run RETURNING id INTO made;
        INSERT INTO skep.archive_runs (file_id, ord, partition_id, partition, first_offset, end_offset)
        SELECT made, n, (run ->> 0)::bigint, run ->> 1, (run ->> 2)::bigint, (run ->> 3)::bigint
        FROM jsonb_array_elements(file -> 'runs') WITH ORDINALITY AS given (run, n);
        ids := ids || made;
    END LOOP;
    RETURN ids;
EXCEPTION WHEN exclusion_violation THEN
    PERFORM skep._refuse('SK007', 'another job is archiving these messages', 'Wait until it has ended.');
END $$;
CALL skep._allow('skep_admin', '_begin_files');

-- Returns the number and the digest of the messages of runs: the SHA-256 of the SHA-256 of every message, in order. A
-- message is the JSON array of all its columns.
CREATE FUNCTION skep._digest(
    partition_ids bigint[], first_offsets bigint[], end_offsets bigint[], OUT messages bigint, OUT digest bytea
)
LANGUAGE sql STABLE AS $$
    SELECT count(*), sha256(coalesce(string_agg(sha256(convert_to(json_build_array(
               run.partition_id, m."offset", (extract(epoch FROM m.created_at) * 1000000)::bigint, m.payload::text,
               m.headers::text, m.transaction_id, m.trace_id, m.producer)::text, 'UTF8')), NULL
                   ORDER BY run.ord, m."offset"), ''))
    FROM unnest($1, $2, $3) WITH ORDINALITY AS run (partition_id, first_offset, end_offset, ord)
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = run.partition_id AND m."offset" >= run.first_offset AND m."offset" < run.end_offset
    ) m
$$;
CALL skep._allow('skep_admin', '_digest');

-- Adds a file that was written, and read again, to the manifest, if its messages match the log. Returns false if
-- another attempt has stored it.
CREATE FUNCTION skep._store_file(file_id bigint, job uuid, path text, bytes bigint, messages bigint, digest bytea)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    file skep.archive_files;
    runs record;
    log  record;
BEGIN
    SELECT f.* INTO file FROM skep.archive_files f WHERE f.id = _store_file.file_id AND f.job = _store_file.job
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK007', format('file %s was abandoned: another job has taken over', _store_file.file_id));
    ELSIF file.state = 'stored' THEN
        RETURN false;
    END IF;
    SELECT array_agg(r.partition_id ORDER BY r.ord) AS partition_ids,
           array_agg(r.first_offset ORDER BY r.ord) AS firsts,
           array_agg(r.end_offset ORDER BY r.ord) AS ends INTO runs
    FROM skep.archive_runs r WHERE r.file_id = _store_file.file_id;
    SELECT * INTO log FROM skep._digest(runs.partition_ids, runs.firsts, runs.ends);
    IF (log.messages, log.digest) IS DISTINCT FROM (_store_file.messages, _store_file.digest)
        OR log.messages <> file.messages THEN
        PERFORM skep._refuse('SK007', format('%s has %s messages and digest %s, the log has %s of %s and digest %s',
                                             _store_file.path, _store_file.messages,
                                             left(encode(_store_file.digest, 'hex'), 12), log.messages, file.messages,
                                left(encode(log.digest, 'hex'), 12)),
                            'Messages were deleted meanwhile. Run the archive again, and set the queue option '
                            'retain_until_archived.');
    END IF;
    -- Otherwise two files that finish at once would not see each other's runs.
    PERFORM FROM skep.archives a WHERE a.id = file.archive_id FOR UPDATE;
    UPDATE skep.archive_files f
    SET state = 'stored', path = _store_file.path, bytes = _store_file.bytes, digest = _store_file.digest,
        stored_at = clock_timestamp()
    WHERE f.id = _store_file.file_id;
    PERFORM skep._mark_stored(part.id) FROM (SELECT DISTINCT id FROM unnest(runs.partition_ids) AS id ORDER BY id) part;
    RETURN true;
END $$;
CALL skep._allow('skep_admin', '_store_file');

-- Moves the mark of a partition to the first message that is not stored.
CREATE FUNCTION skep._mark_stored(partition_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    stored_to bigint;
    next      bigint;
BEGIN
    SELECT greatest(f.first_offset, a.end_offset) INTO stored_to
    FROM skep.partition_floors f LEFT JOIN skep.archive_marks a ON a.partition_id = f.partition_id
    WHERE f.partition_id = _mark_stored.partition_id;
    LOOP
        SELECT r.end_offset INTO next
        FROM (SELECT * FROM skep.archive_runs r
              WHERE r.partition_id = _mark_stored.partition_id AND r.first_offset <= stored_to
              ORDER BY r.first_offset DESC LIMIT 1) r
        JOIN skep.archive_files f ON f.id = r.file_id
        WHERE r.end_offset > stored_to AND f.state = 'stored';
        EXIT WHEN NOT FOUND;
        stored_to := next;
    END LOOP;
    IF stored_to IS NOT NULL THEN
        PERFORM skep._mark_archived(partition_id, stored_to);
    END IF;
END $$;

-- Returns the files of ended jobs whose failed attempts may have left files behind.
CREATE FUNCTION skep._unsettled_files(archive_id integer)
RETURNS TABLE (file_id bigint, queue text, day date, path text)
LANGUAGE sql STABLE AS $$
    SELECT f.id, f.queue, f.day, f.path FROM skep.archive_files f WHERE f.archive_id = $1 AND NOT f.settled
    ORDER BY f.id
$$;
CALL skep._allow('skep_admin', '_unsettled_files');

-- Deletes files that were not stored from the manifest, after their remains were removed. Their messages are planned
-- again.
CREATE FUNCTION skep._settle_files(file_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM skep.archive_files f WHERE f.id = ANY ($1) AND f.state = 'writing';
    UPDATE skep.archive_files f SET settled = true WHERE f.id = ANY ($1) AND f.state = 'stored' AND NOT f.settled;
$$;
CALL skep._allow('skep_admin', '_settle_files');

CREATE FUNCTION skep._archive_progress(
    job uuid, OUT files bigint, OUT stored_files bigint, OUT messages bigint, OUT stored_messages bigint,
    OUT stored_bytes bigint
)
LANGUAGE sql STABLE AS $$
    SELECT count(*), count(*) FILTER (WHERE f.state = 'stored'), coalesce(sum(f.messages), 0)::bigint,
           coalesce(sum(f.messages) FILTER (WHERE f.state = 'stored'), 0)::bigint, coalesce(sum(f.bytes), 0)::bigint
    FROM skep.archive_files f WHERE f.job = $1
$$;
CALL skep._allow('skep_admin', '_archive_progress');

-- Returns the files of these runs, run by run. NULL offsets mean everything that the archive has of the partition.
CREATE FUNCTION skep._archived_runs(partition_ids bigint[], first_offsets bigint[], end_offsets bigint[])
RETURNS TABLE (partition_id bigint, queue text, partition text, first_offset bigint, end_offset bigint, path text)
LANGUAGE sql STABLE AS $$
    SELECT requested.id, f.queue, r.partition, greatest(r.first_offset, requested.first_offset),
           least(r.end_offset, requested.end_offset), f.path
    FROM unnest($1, $2, $3) AS requested (id, first_offset, end_offset)
    CROSS JOIN LATERAL (
        SELECT * FROM skep.archive_runs r
        WHERE r.partition_id = requested.id
          AND r.first_offset >= skep._archived_run_at(requested.id, coalesce(requested.first_offset, 0))
          AND r.first_offset < coalesce(requested.end_offset, 9223372036854775807)
        ORDER BY r.first_offset OFFSET 0
    ) r
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_files f WHERE f.id = r.file_id LIMIT 1) f
    WHERE f.state = 'stored' AND r.end_offset > coalesce(requested.first_offset, 0)
    ORDER BY requested.id, r.first_offset
$$;
CALL skep._allow('skep_consumer', '_archived_runs');

-- Returns the offsets of these partitions that contain all messages of a time range, as far as the log and the days of
-- files show.
CREATE FUNCTION skep._offsets_between(partition_ids bigint[], since timestamptz, until timestamptz)
RETURNS TABLE (first_offset bigint, end_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT greatest(old.end_offset, CASE
                    WHEN log.first_offset > f.first_offset OR head.last_time < $2 THEN log.first_offset END),
           least(new.first_offset, log.end_offset)
    FROM unnest($1) WITH ORDINALITY AS requested (id, ord)
    LEFT JOIN LATERAL (SELECT * FROM skep.partition_floors f WHERE f.partition_id = requested.id LIMIT 1) f ON true
    LEFT JOIN LATERAL skep._head_of(requested.id) head ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN $2 IS NOT NULL THEN skep._offset_at(requested.id, $2) END AS first_offset,
               CASE WHEN $3 IS NOT NULL THEN skep._offset_at(requested.id, $3) END AS end_offset
    ) log
    CROSS JOIN LATERAL (
        SELECT max(r.end_offset) AS end_offset
        FROM (SELECT * FROM skep.archive_runs r WHERE r.partition_id = requested.id OFFSET 0) r
        JOIN skep.archive_files f ON f.id = r.file_id WHERE f.day < ($2 AT TIME ZONE 'UTC')::date
    ) old
    CROSS JOIN LATERAL (
        SELECT min(r.first_offset) AS first_offset
        FROM (SELECT * FROM skep.archive_runs r WHERE r.partition_id = requested.id OFFSET 0) r
        JOIN skep.archive_files f ON f.id = r.file_id WHERE f.day > ($3 AT TIME ZONE 'UTC')::date
    ) new
    ORDER BY requested.ord
$$;
CALL skep._allow('skep_consumer', '_offsets_between');

-- Returns partitions that were deleted from the log and are still in the archive.
CREATE FUNCTION skep._archived_partitions(queues text[])
RETURNS TABLE (partition_id bigint, queue text, partition text, first_offset bigint, end_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.partition_id, f.queue, r.partition, min(r.first_offset), max(r.end_offset)
    FROM unnest($1) AS requested (queue)
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_files f
                        WHERE f.queue = requested.queue AND f.state = 'stored' OFFSET 0) f
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_runs r WHERE r.file_id = f.id OFFSET 0) r
    WHERE NOT EXISTS (SELECT FROM skep.partitions p WHERE p.id = r.partition_id)
    GROUP BY r.partition_id, f.queue, r.partition ORDER BY r.partition_id
$$;
CALL skep._allow('skep_consumer', '_archived_partitions');

-- Returns the files of these queues, oldest first. Deleted queues no longer have a namespace or a task.
CREATE FUNCTION skep._archived_files(
    queues text[] DEFAULT NULL, pattern text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL
) RETURNS TABLE (location text, path text, queue text, day date, messages bigint)
LANGUAGE sql STABLE AS $$
    SELECT a.location, f.path, f.queue, f.day, f.messages
    FROM skep.archive_files f JOIN skep.archives a ON a.id = f.archive_id LEFT JOIN skep.queues q ON q.name = f.queue
    WHERE f.state = 'stored' AND (f.queue = ANY (_archived_files.queues) OR _archived_files.queues IS NULL)
      AND (pattern IS NULL OR f.queue ~ ('^(?:' || pattern || ')$'))
      AND (_archived_files.namespace IS NULL OR q.namespace = _archived_files.namespace)
      AND (_archived_files.task IS NULL OR q.task = _archived_files.task)
    ORDER BY f.day, f.id
$$;
CALL skep._allow('skep_consumer', '_archived_files');

CREATE FUNCTION skep.archive_status(queues text[] DEFAULT NULL)
RETURNS TABLE (queue text, location text, files bigint, messages bigint, bytes bigint, first_day date, last_day date,
               waiting boolean)
LANGUAGE sql STABLE AS $$
    SELECT f.queue, a.location, count(*), sum(f.messages)::bigint, sum(f.bytes)::bigint, min(f.day), max(f.day),
           coalesce((SELECT q.retain_until_archived FROM skep.queues q WHERE q.name = f.queue), false)
    FROM skep.archive_files f JOIN skep.archives a ON a.id = f.archive_id
    WHERE f.state = 'stored' AND (f.queue = ANY ($1) OR $1 IS NULL)
    GROUP BY f.queue, a.location ORDER BY f.queue, a.location
$$;
COMMENT ON FUNCTION skep.archive_status IS
    'Returns the archive of each queue: location, files, messages, bytes and days. waiting is true if retention waits '
    'for the archive.';
CALL skep._allow('skep_consumer', 'archive_status');
