-- What the Spark connector needs: a trace of what retention deleted, and a place where a sink collects a batch before it is published.

-- The last message that retention deleted from a lane. Whoever has not seen its transaction has lost something.
ALTER TABLE skep.partition_lookup
    ADD deleted_xid        xid8,
    ADD deleted_created_at timestamptz;

-- A sink is one query that writes. Its batches come in order, so the last one published says which are.
CREATE TABLE skep.sinks (
    id         text COLLATE "C" PRIMARY KEY CHECK (char_length(id) BETWEEN 1 AND 255),
    query      text COLLATE "C" NOT NULL,                        -- Spark's id of the query, the same after a restart
    last_batch bigint NOT NULL DEFAULT -1,
    messages   bigint NOT NULL DEFAULT 0,
    used_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Rows of batches that are being written. Unlogged: what a crash of the database takes, the batch brings again.
CREATE UNLOGGED TABLE skep.sink_rows (
    sink           text COLLATE "C" NOT NULL,
    batch          bigint NOT NULL,
    piece          uuid NOT NULL,                                -- one COPY; what a failed attempt left behind is never asked for
    ord            integer NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    partition      text COLLATE "C" NOT NULL,
    payload        jsonb NOT NULL,
    headers        jsonb,
    transaction_id text COLLATE "C",
    trace_id       uuid,
    producer       text,
    PRIMARY KEY (sink, batch, piece, ord)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
