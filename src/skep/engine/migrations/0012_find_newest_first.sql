-- A transaction that somebody holds open keeps every dead version of the rows that each push, pop and ack updates. So the newest version is
-- found without passing the others: the key of each hot row ends in something that grows with it, and is read from its upper end.

-- Grows with every 256th message: the updates in between stay HOT.
ALTER TABLE skep.partition_lookup ADD generation bigint NOT NULL GENERATED ALWAYS AS (last_offset >> 8) STORED;
ALTER TABLE skep.partition_lookup DROP CONSTRAINT partition_lookup_pkey, ADD PRIMARY KEY (partition_id, generation);

-- One row for each lane and reader all the same: whoever adds one holds the reader's lock, and changes its row in looks.
ALTER TABLE skep.cursors DROP CONSTRAINT cursors_pkey, ADD PRIMARY KEY (partition_id, reader_id, next_offset);

-- What a reader has seen: the snapshot of its last look at the journal (NULL: look at every lane), and from where on its line is to be read.
CREATE TABLE skep.looks (
    reader_id      integer NOT NULL REFERENCES skep.readers ON DELETE CASCADE,
    number         bigint NOT NULL DEFAULT 0,
    generation     bigint NOT NULL GENERATED ALWAYS AS (number >> 6) STORED,
    snapshot       pg_snapshot,
    looked_at      timestamptz,                                -- later than now: the clock was set back, and no time in cursors can be trusted
    server_started timestamptz,                                -- transaction ids mean nothing in another cluster: a snapshot counts only under this postmaster
    line_start     timestamptz NOT NULL DEFAULT '-infinity',   -- no lane in line before this, but for those that find_hidden() finds
    swept_at       timestamptz NOT NULL DEFAULT '-infinity',   -- when it last looked for them: among the recent ones, and all
    swept_all_at   timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (reader_id, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
INSERT INTO skep.looks (reader_id, snapshot, looked_at, server_started) SELECT id, snapshot, looked_at, server_started FROM skep.readers;
ALTER TABLE skep.readers DROP snapshot, DROP looked_at, DROP server_started;
