-- The archive: runs of lanes in files elsewhere, each message once, and a manifest that says which.
--
--   plan_archive --> begin_files --> (a task writes a file, and reads it again) --> store_file --> settle_files
--
-- A job may die anywhere: what is stored stays, the rest is forgotten by the next one and planned anew. Retention that waits for the
-- archive goes by the mark of a lane, below which every message is stored.

-- Answers the archive at this place. A queue has one archive: in two, neither would be whole.
CREATE FUNCTION skep.open_archive(location text, queues text[]) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    archive integer;
    other   record;
BEGIN
    INSERT INTO skep.archives (location) VALUES (open_archive.location) ON CONFLICT DO NOTHING;
    SELECT a.id INTO archive FROM skep.archives a WHERE a.location = open_archive.location;
    SELECT f.queue, a.location INTO other FROM unnest(queues) AS asked (queue)
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_files f WHERE f.queue = asked.queue AND f.archive_id <> archive LIMIT 1) f
    JOIN skep.archives a ON a.id = f.archive_id LIMIT 1;
    IF FOUND THEN
        PERFORM skep.refuse('SK007', format('queue "%s" is archived at %s', other.queue, other.location),
                            'Archive it there, or tell where the files are now: skep.move_archive(location, new_location).');
    END IF;
    -- Lanes of driven dead letters hold copies for one group: they are nobody's history.
    PERFORM skep.mark_archived(p.id, l.last_offset + 1)
    FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id JOIN skep.partition_lookup l ON l.partition_id = p.id
    WHERE q.name = ANY (queues) AND p.only_group IS NOT NULL AND l.last_offset >= 0;
    RETURN archive;
END $$;

CREATE FUNCTION skep.move_archive(location text, new_location text) RETURNS boolean
LANGUAGE sql AS $$
    WITH moved AS (UPDATE skep.archives a SET location = $2 WHERE a.location = $1 RETURNING 1) SELECT EXISTS (SELECT FROM moved)
$$;

-- One job at a time works on an archive, for as long as its session lasts.
CREATE FUNCTION skep.lock_archive(archive_id integer) RETURNS boolean
LANGUAGE sql AS $$ SELECT pg_try_advisory_lock(x'736b6172'::integer, $1) $$;

-- Where the run begins that has this offset of a lane, or the last one before it: runs do not overlap, so none that has it begins earlier.
CREATE FUNCTION skep.run_at(lane bigint, "offset" bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT r.first_offset FROM skep.archive_runs r WHERE r.partition_id = $1 AND r.first_offset <= $2
                     ORDER BY r.first_offset DESC LIMIT 1), 0)
$$;

-- What is in the log and in no file, as runs of lanes within a day.
CREATE FUNCTION skep.plan_archive(queues text[])
RETURNS TABLE (queue text, day date, partition_id bigint, partition text, first_offset bigint, end_offset bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    lane  record;
    piece int8range;
BEGIN
    FOR lane IN
        SELECT q.name AS queue, p.id, p.name, greatest(l.first_offset, a.end_offset) AS start, l.last_offset + 1 AS stop
        FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
        CROSS JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = p.id ORDER BY l.generation DESC LIMIT 1) l
        LEFT JOIN LATERAL (SELECT * FROM skep.archive_marks a WHERE a.partition_id = p.id LIMIT 1) a ON true
        WHERE q.name = ANY (queues) AND p.only_group IS NULL AND l.last_offset >= greatest(l.first_offset, a.end_offset)
        ORDER BY q.id, p.id
    LOOP
        FOR piece IN
            SELECT unnest(int8multirange(int8range(lane.start, lane.stop)) - coalesce((
                SELECT range_agg(int8range(r.first_offset, r.end_offset)) FROM skep.archive_runs r
                WHERE r.partition_id = lane.id AND r.first_offset >= skep.run_at(lane.id, lane.start)), '{}'))
        LOOP
            queue := lane.queue; partition_id := lane.id; partition := lane.name; end_offset := lower(piece);
            WHILE end_offset < upper(piece) LOOP
                first_offset := end_offset;
                SELECT (m.created_at AT TIME ZONE 'UTC')::date INTO day
                FROM skep.messages m WHERE m.partition_id = lane.id AND m."offset" = first_offset;
                end_offset := least(upper(piece), skep.offset_at(lane.id, (day + 1)::timestamp AT TIME ZONE 'UTC'));
                RETURN NEXT;
            END LOOP;
        END LOOP;
    END LOOP;
END $$;

-- Reserves files: [{"queue": …, "day": …, "runs": [[partition_id, partition, first_offset, end_offset], …]}, …]. Answers their ids, in order.
CREATE FUNCTION skep.begin_files(archive_id integer, job uuid, files jsonb) RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    file   jsonb;
    made   bigint;
    answer bigint[] := '{}';
BEGIN
    FOR file IN SELECT value FROM jsonb_array_elements(files) WITH ORDINALITY AS given (value, n) ORDER BY n LOOP
        INSERT INTO skep.archive_files (archive_id, job, queue, day, messages)
        SELECT begin_files.archive_id, begin_files.job, file ->> 'queue', (file ->> 'day')::date, sum((run ->> 3)::bigint - (run ->> 2)::bigint)
        FROM jsonb_array_elements(file -> 'runs') AS run RETURNING id INTO made;
        INSERT INTO skep.archive_runs (file_id, ord, partition_id, partition, first_offset, end_offset)
        SELECT made, n, (run ->> 0)::bigint, run ->> 1, (run ->> 2)::bigint, (run ->> 3)::bigint
        FROM jsonb_array_elements(file -> 'runs') WITH ORDINALITY AS given (run, n);
        answer := answer || made;
    END LOOP;
    RETURN answer;
EXCEPTION WHEN exclusion_violation THEN
    PERFORM skep.refuse('SK007', 'another job archives these messages', 'Wait for it to end.');
END $$;

-- The content of runs of lanes: the SHA-256 of the SHA-256 of every message, in order. A message is the JSON array of all it has.
CREATE FUNCTION skep.digest_of(lanes bigint[], first_offsets bigint[], end_offsets bigint[], OUT messages bigint, OUT digest bytea)
LANGUAGE sql STABLE AS $$
    SELECT count(*), sha256(coalesce(string_agg(sha256(convert_to(json_build_array(
               run.lane, m."offset", (extract(epoch FROM m.created_at) * 1000000)::bigint, m.payload::text, m.headers::text,
               m.transaction_id, m.trace_id, m.producer)::text, 'UTF8')), NULL ORDER BY run.ord, m."offset"), ''))
    FROM unnest($1, $2, $3) WITH ORDINALITY AS run (lane, first_offset, end_offset, ord)
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = run.lane AND m."offset" >= run.first_offset AND m."offset" < run.end_offset
    ) m
$$;

-- Puts a file that was written, and read again, into the manifest, if it has what the log has. False if another attempt has stored it.
CREATE FUNCTION skep.store_file(file_id bigint, job uuid, path text, bytes bigint, messages bigint, digest bytea) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    file skep.archive_files;
    runs record;
    log  record;
BEGIN
    SELECT f.* INTO file FROM skep.archive_files f WHERE f.id = store_file.file_id AND f.job = store_file.job FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM skep.refuse('SK007', format('file %s was given up: another job has taken over', store_file.file_id));
    ELSIF file.state = 'stored' THEN
        RETURN false;
    END IF;
    SELECT array_agg(r.partition_id ORDER BY r.ord) AS lanes, array_agg(r.first_offset ORDER BY r.ord) AS firsts,
           array_agg(r.end_offset ORDER BY r.ord) AS ends INTO runs
    FROM skep.archive_runs r WHERE r.file_id = store_file.file_id;
    SELECT * INTO log FROM skep.digest_of(runs.lanes, runs.firsts, runs.ends);
    IF (log.messages, log.digest) IS DISTINCT FROM (store_file.messages, store_file.digest) OR log.messages <> file.messages THEN
        PERFORM skep.refuse('SK007', format('%s has %s messages and digest %s, the log has %s of %s and digest %s', store_file.path,
                                store_file.messages, left(encode(store_file.digest, 'hex'), 12), log.messages, file.messages,
                                left(encode(log.digest, 'hex'), 12)),
                            'Messages were deleted meanwhile: archive again, and set the queue option retain_until_archived.');
    END IF;
    PERFORM FROM skep.archives a WHERE a.id = file.archive_id FOR UPDATE;  -- or two that end at once would not see one another's runs
    UPDATE skep.archive_files f
    SET state = 'stored', path = store_file.path, bytes = store_file.bytes, digest = store_file.digest, stored_at = clock_timestamp()
    WHERE f.id = store_file.file_id;
    PERFORM skep.mark_stored(lane) FROM unnest(runs.lanes) AS lane;
    RETURN true;
END $$;

-- Moves the mark of a lane to where the first message is that is not stored.
CREATE FUNCTION skep.mark_stored(lane bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    at   bigint;
    next bigint;
BEGIN
    SELECT greatest(l.first_offset, a.end_offset) INTO at
    FROM (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = lane ORDER BY l.generation DESC LIMIT 1) l
    LEFT JOIN skep.archive_marks a ON a.partition_id = lane;
    LOOP
        SELECT r.end_offset INTO next
        FROM (SELECT * FROM skep.archive_runs r WHERE r.partition_id = lane AND r.first_offset <= at
              ORDER BY r.first_offset DESC LIMIT 1) r
        JOIN skep.archive_files f ON f.id = r.file_id
        WHERE r.end_offset > at AND f.state = 'stored';
        EXIT WHEN NOT FOUND;
        at := next;
    END LOOP;
    IF at IS NOT NULL THEN
        PERFORM skep.mark_archived(lane, at);
    END IF;
END $$;

-- Files whose job has ended, one way or another, and beside which failed attempts may have left something.
CREATE FUNCTION skep.unsettled_files(archive_id integer) RETURNS TABLE (file_id bigint, queue text, day date, path text)
LANGUAGE sql STABLE AS $$
    SELECT f.id, f.queue, f.day, f.path FROM skep.archive_files f WHERE f.archive_id = $1 AND NOT f.settled ORDER BY f.id
$$;

-- Forgets files that were not stored, once nothing is left of them; their messages are planned anew.
CREATE FUNCTION skep.settle_files(file_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM skep.archive_files f WHERE f.id = ANY ($1) AND f.state = 'writing';
    UPDATE skep.archive_files f SET settled = true WHERE f.id = ANY ($1) AND f.state = 'stored' AND NOT f.settled;
$$;

CREATE FUNCTION skep.archive_progress(job uuid, OUT files bigint, OUT stored_files bigint, OUT messages bigint, OUT stored_messages bigint,
                                      OUT stored_bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT count(*), count(*) FILTER (WHERE f.state = 'stored'), coalesce(sum(f.messages), 0)::bigint,
           coalesce(sum(f.messages) FILTER (WHERE f.state = 'stored'), 0)::bigint, coalesce(sum(f.bytes), 0)::bigint
    FROM skep.archive_files f WHERE f.job = $1
$$;

-- Where the archive has these runs of lanes: file by file, run by run. NULL: whatever it has of the lane.
CREATE FUNCTION skep.archived_runs(lanes bigint[], first_offsets bigint[], end_offsets bigint[])
RETURNS TABLE (partition_id bigint, queue text, partition text, first_offset bigint, end_offset bigint, path text)
LANGUAGE sql STABLE AS $$
    SELECT asked.lane, f.queue, r.partition, greatest(r.first_offset, asked.first_offset), least(r.end_offset, asked.end_offset), f.path
    FROM unnest($1, $2, $3) AS asked (lane, first_offset, end_offset)
    CROSS JOIN LATERAL (
        SELECT * FROM skep.archive_runs r
        WHERE r.partition_id = asked.lane AND r.first_offset >= skep.run_at(asked.lane, coalesce(asked.first_offset, 0))
          AND r.first_offset < coalesce(asked.end_offset, 9223372036854775807)
        ORDER BY r.first_offset OFFSET 0
    ) r
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_files f WHERE f.id = r.file_id LIMIT 1) f
    WHERE f.state = 'stored' AND r.end_offset > coalesce(asked.first_offset, 0)
    ORDER BY asked.lane, r.first_offset
$$;

-- Between which offsets of these lanes the messages of a time are, as far as the log and the days of files tell: none is outside.
CREATE FUNCTION skep.span_of(lanes bigint[], since timestamptz, until timestamptz) RETURNS TABLE (first_offset bigint, end_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT greatest(old.end_offset, CASE WHEN log.first_offset > l.first_offset OR l.last_created_at < $2 THEN log.first_offset END),
           least(new.first_offset, log.end_offset)
    FROM unnest($1) WITH ORDINALITY AS lane (id, ord)
    LEFT JOIN LATERAL (SELECT * FROM skep.partition_lookup l WHERE l.partition_id = lane.id ORDER BY l.generation DESC LIMIT 1) l ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN $2 IS NOT NULL THEN skep.offset_at(lane.id, $2) END AS first_offset,
               CASE WHEN $3 IS NOT NULL THEN skep.offset_at(lane.id, $3) END AS end_offset
    ) log
    CROSS JOIN LATERAL (
        SELECT max(r.end_offset) AS end_offset FROM (SELECT * FROM skep.archive_runs r WHERE r.partition_id = lane.id OFFSET 0) r
        JOIN skep.archive_files f ON f.id = r.file_id WHERE f.day < ($2 AT TIME ZONE 'UTC')::date
    ) old
    CROSS JOIN LATERAL (
        SELECT min(r.first_offset) AS first_offset FROM (SELECT * FROM skep.archive_runs r WHERE r.partition_id = lane.id OFFSET 0) r
        JOIN skep.archive_files f ON f.id = r.file_id WHERE f.day > ($3 AT TIME ZONE 'UTC')::date
    ) new
    ORDER BY lane.ord
$$;

-- Partitions that are gone from the log and in the archive still.
CREATE FUNCTION skep.archived_lanes(queues text[])
RETURNS TABLE (partition_id bigint, queue text, partition text, first_offset bigint, end_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.partition_id, f.queue, r.partition, min(r.first_offset), max(r.end_offset)
    FROM unnest($1) AS asked (queue)
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_files f WHERE f.queue = asked.queue AND f.state = 'stored' OFFSET 0) f
    CROSS JOIN LATERAL (SELECT * FROM skep.archive_runs r WHERE r.file_id = f.id OFFSET 0) r
    WHERE NOT EXISTS (SELECT FROM skep.partitions p WHERE p.id = r.partition_id)
    GROUP BY r.partition_id, f.queue, r.partition ORDER BY r.partition_id
$$;

-- The files of these queues, the oldest first; queues that are deleted have neither namespace nor task any more.
CREATE FUNCTION skep.archived_files(queues text[] DEFAULT NULL, pattern text DEFAULT NULL, namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS TABLE (location text, path text, queue text, day date, messages bigint)
LANGUAGE sql STABLE AS $$
    SELECT a.location, f.path, f.queue, f.day, f.messages
    FROM skep.archive_files f JOIN skep.archives a ON a.id = f.archive_id LEFT JOIN skep.queues q ON q.name = f.queue
    WHERE f.state = 'stored' AND (f.queue = ANY ($1) OR $1 IS NULL) AND ($2 IS NULL OR f.queue ~ ('^(?:' || $2 || ')$'))
      AND ($3 IS NULL OR q.namespace = $3) AND ($4 IS NULL OR q.task = $4)
    ORDER BY f.day, f.id
$$;

CREATE FUNCTION skep.archive_status(queues text[] DEFAULT NULL)
RETURNS TABLE (queue text, location text, files bigint, messages bigint, bytes bigint, first_day date, last_day date, waiting boolean)
LANGUAGE sql STABLE AS $$
    SELECT f.queue, a.location, count(*), sum(f.messages)::bigint, sum(f.bytes)::bigint, min(f.day), max(f.day),
           coalesce((SELECT q.retain_until_archived FROM skep.queues q WHERE q.name = f.queue), false)
    FROM skep.archive_files f JOIN skep.archives a ON a.id = f.archive_id
    WHERE f.state = 'stored' AND (f.queue = ANY ($1) OR $1 IS NULL)
    GROUP BY f.queue, a.location ORDER BY f.queue, a.location
$$;
