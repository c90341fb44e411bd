-- The archive's manifest: which file has which run of which lane. Files that it does not name are garbage.
-- It outlives what it is about: retention, deleted partitions, deleted queues.

CREATE TABLE skep.archives (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    location   text COLLATE "C" NOT NULL UNIQUE CHECK (location <> ''),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- state:
--   (new) --begin_files--> writing --store_file, verified against the log--> stored
--                          writing --settle_files, its job has ended--> (gone)
--   (new) --begin_compaction--> writing --swap_files, and in the same transaction its sources: stored --> replaced
--                          replaced --forget_files, once kept_until has passed--> (gone)
-- settled: nothing that a failed attempt has written can be left beside it.
CREATE TABLE skep.archive_files (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archive_id integer NOT NULL REFERENCES skep.archives,
    job        uuid NOT NULL,
    state      text NOT NULL DEFAULT 'writing' CHECK (state IN ('writing', 'stored', 'replaced')),
    settled    boolean NOT NULL DEFAULT false,
    queue      text COLLATE "C" NOT NULL,
    day        date NOT NULL,                         -- of the messages, in UTC
    messages   bigint NOT NULL CHECK (messages > 0),
    path       text COLLATE "C",                      -- below the location
    bytes      bigint,
    digest     bytea,                                 -- of every message in it, in order: see digest_of()
    stored_at  timestamptz,
    kept_until timestamptz,                           -- replaced: until then, who began to read it may go on
    CHECK ((state <> 'writing') = (num_nonnulls(path, bytes, digest, stored_at) = 4)),
    CHECK ((state = 'replaced') = (kept_until IS NOT NULL)),
    CHECK (state <> 'writing' OR NOT settled)
);
CREATE UNIQUE INDEX archive_files_path ON skep.archive_files (archive_id, path);
CREATE INDEX archive_files_queue_day ON skep.archive_files (queue, day);
CREATE INDEX archive_files_unsettled ON skep.archive_files (archive_id) WHERE NOT settled;
CREATE INDEX archive_files_replaced ON skep.archive_files (archive_id, kept_until) WHERE state = 'replaced';

-- No message is in two files. Ranges stand for numbers, as btree_gist is not everywhere.
CREATE TABLE skep.archive_runs (
    file_id      bigint NOT NULL REFERENCES skep.archive_files ON DELETE CASCADE,
    ord          integer NOT NULL,                    -- its place in the file
    partition_id bigint NOT NULL,
    partition    text COLLATE "C" NOT NULL,
    first_offset bigint NOT NULL,
    end_offset   bigint NOT NULL CHECK (end_offset > first_offset),
    PRIMARY KEY (file_id, ord),
    CONSTRAINT archive_runs_once EXCLUDE USING gist
        (int8range(partition_id, partition_id, '[]') WITH &&, int8range(first_offset, end_offset) WITH &&)
);
CREATE INDEX archive_runs_lane ON skep.archive_runs (partition_id, first_offset);
