-- Compaction: small files of a queue and a day become one. A reader of the archive sees either the small files or the
-- new one.
--
--   small_files --> begin_compaction --> (a task merges files, and reads the result again) --> swap_files
--
-- Replaced files are kept for a while, because readers that listed them before the swap may still read them.

CREATE FUNCTION skep._find_archive(location text) RETURNS integer
LANGUAGE sql STABLE AS $$ SELECT a.id FROM skep.archives a WHERE a.location = $1 $$;
CALL skep._allow('skep_admin', '_find_archive');

-- Returns files with fewer messages than this, in the order of their creation.
CREATE FUNCTION skep._small_files(
    archive_id integer, below bigint, queues text[] DEFAULT NULL, pattern text DEFAULT NULL,
    namespace text DEFAULT NULL, task text DEFAULT NULL
)
RETURNS TABLE (queue text, day date, file_id bigint, messages bigint, bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT f.queue, f.day, f.id, f.messages, f.bytes
    FROM skep.archive_files f LEFT JOIN skep.queues q ON q.name = f.queue
    WHERE f.archive_id = _small_files.archive_id AND f.state = 'stored' AND f.messages < below
      AND (f.queue = ANY (_small_files.queues) OR _small_files.queues IS NULL)
      AND (pattern IS NULL OR f.queue ~ ('^(?:' || pattern || ')$'))
      AND (_small_files.namespace IS NULL OR q.namespace = _small_files.namespace)
      AND (_small_files.task IS NULL OR q.task = _small_files.task)
    ORDER BY f.queue, f.day, f.id
$$;
CALL skep._allow('skep_admin', '_small_files');

-- Reserves files that will replace others and returns their ids, in order. sources: [[file_id, …], …], each list of one
-- queue and day.
CREATE FUNCTION skep._begin_compaction(archive_id integer, job uuid, sources jsonb) RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    chosen jsonb;
    made   bigint;
    ids    bigint[] := '{}';
BEGIN
    FOR chosen IN SELECT value FROM jsonb_array_elements(sources) WITH ORDINALITY AS given (value, n) ORDER BY n LOOP
        INSERT INTO skep.archive_files (archive_id, job, queue, day, messages)
        SELECT _begin_compaction.archive_id, _begin_compaction.job, min(f.queue), min(f.day), sum(f.messages)
        FROM skep.archive_files f
        WHERE f.id = ANY (ARRAY(SELECT jsonb_array_elements_text(chosen)::bigint))
          AND f.archive_id = _begin_compaction.archive_id
        RETURNING id INTO made;
        ids := ids || made;
    END LOOP;
    RETURN ids;
END $$;
CALL skep._allow('skep_admin', '_begin_compaction');

-- Returns the files that a task merges, with their digests and their runs in the order of the file.
CREATE FUNCTION skep._source_files(file_ids bigint[])
RETURNS TABLE (path text, digest bytea, partition_ids bigint[], first_offsets bigint[], end_offsets bigint[])
LANGUAGE sql STABLE AS $$
    SELECT f.path, f.digest, r.partition_ids, r.firsts, r.ends
    FROM skep.archive_files f
    CROSS JOIN LATERAL (
        SELECT array_agg(r.partition_id ORDER BY r.ord) AS partition_ids,
               array_agg(r.first_offset ORDER BY r.ord) AS firsts, array_agg(r.end_offset ORDER BY r.ord) AS ends
        FROM skep.archive_runs r WHERE r.file_id = f.id
    ) r
    WHERE f.id = ANY ($1) AND f.state = 'stored' ORDER BY f.id
$$;
CALL skep._allow('skep_admin', '_source_files');

-- Replaces files by one that has the same messages. Returns false if another attempt has done it.
CREATE FUNCTION skep._swap_files(
    file_id bigint, job uuid, source_ids bigint[], path text, bytes bigint, messages bigint, digest bytea,
    grace interval
) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    file    skep.archive_files;
    sources record;
    merged  record;
BEGIN
    SELECT f.* INTO file FROM skep.archive_files f WHERE f.id = _swap_files.file_id AND f.job = _swap_files.job
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK007', format('file %s was abandoned: another job has taken over', _swap_files.file_id));
    ELSIF file.state = 'stored' THEN
        RETURN false;
    END IF;
    -- The archive marks follow the runs, so they must not move while the runs do.
    PERFORM FROM skep.archives a WHERE a.id = file.archive_id FOR UPDATE;
    SELECT count(*) AS files, coalesce(sum(f.messages), 0) AS messages INTO sources FROM skep.archive_files f
    WHERE f.id = ANY (source_ids) AND f.archive_id = file.archive_id AND f.state = 'stored'
      AND (f.queue, f.day) = (file.queue, file.day);
    IF sources.files <> cardinality(source_ids) OR sources.messages <> _swap_files.messages
        OR sources.messages <> file.messages THEN
        PERFORM skep._refuse('SK007', format('%s has %s messages, the %s files that it replaces have %s',
                                             _swap_files.path, _swap_files.messages, sources.files, sources.messages));
    END IF;
    SELECT array_agg(id ORDER BY id, run) AS ids, array_agg(name ORDER BY id, run) AS names,
           array_agg(run ORDER BY id, run) AS runs
    INTO merged FROM (
        SELECT r.partition_id AS id, min(r.partition) AS name,
               unnest(range_agg(int8range(r.first_offset, r.end_offset))) AS run
        FROM skep.archive_runs r WHERE r.file_id = ANY (source_ids) GROUP BY r.partition_id
    ) r;
    DELETE FROM skep.archive_runs r WHERE r.file_id = ANY (source_ids);
    INSERT INTO skep.archive_runs (file_id, ord, partition_id, partition, first_offset, end_offset)
    SELECT _swap_files.file_id, n, id, name, lower(run), upper(run)
    FROM unnest(merged.ids, merged.names, merged.runs) WITH ORDINALITY AS merged (id, name, run, n);
    UPDATE skep.archive_files f SET state = 'replaced', kept_until = clock_timestamp() + grace
    WHERE f.id = ANY (source_ids);
    UPDATE skep.archive_files f
    SET state = 'stored', path = _swap_files.path, bytes = _swap_files.bytes, digest = _swap_files.digest,
        stored_at = clock_timestamp()
    WHERE f.id = _swap_files.file_id;
    RETURN true;
END $$;
CALL skep._allow('skep_admin', '_swap_files');

-- Returns replaced files that no longer have to be kept.
CREATE FUNCTION skep._expired_files(archive_id integer) RETURNS TABLE (file_id bigint, path text)
LANGUAGE sql STABLE AS $$
    SELECT f.id, f.path FROM skep.archive_files f
    WHERE f.archive_id = $1 AND f.state = 'replaced' AND f.kept_until <= clock_timestamp() ORDER BY f.id
$$;
CALL skep._allow('skep_admin', '_expired_files');

-- Removes deleted files from the manifest.
CREATE FUNCTION skep._forget_files(file_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM skep.archive_files f
    WHERE f.id = ANY ($1) AND f.state = 'replaced' AND f.kept_until <= clock_timestamp()
$$;
CALL skep._allow('skep_admin', '_forget_files');
