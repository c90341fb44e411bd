-- A sink stages pieces instead of rows. What was staged is dropped: publishing finds it missing, and the query writes the batch again.
DROP TABLE skep.sink_rows;

-- Up to 10,000 messages of a batch that is being written, lane after lane: counts[n] of them go to the lane queues[n], partitions[n].
-- Unlogged: what a crash of the database takes, the batch brings again.
CREATE UNLOGGED TABLE skep.sink_pieces (
    sink            text COLLATE "C" NOT NULL,
    batch           bigint NOT NULL,
    piece           uuid NOT NULL,                               -- one attempt; what a failed one left behind is never asked for
    messages        integer NOT NULL CHECK (messages > 0),
    queues          text[] COLLATE "C" NOT NULL,
    partitions      text[] COLLATE "C" NOT NULL,
    counts          integer[] NOT NULL CHECK (0 < ALL (counts)),
    lane_of         integer[] NOT NULL,                          -- counts, spelt out message by message
    payloads        jsonb[] NOT NULL,
    headers         jsonb[],                                     -- this and the others: NULL if no message has any
    transaction_ids text[] COLLATE "C",
    trace_ids       uuid[],
    producers       text[],
    PRIMARY KEY (sink, batch, piece)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- Written once and read once: compressing would cost more than it saves.
ALTER TABLE skep.sink_pieces
    ALTER queues SET STORAGE EXTERNAL, ALTER partitions SET STORAGE EXTERNAL, ALTER counts SET STORAGE EXTERNAL,
    ALTER lane_of SET STORAGE EXTERNAL, ALTER payloads SET STORAGE EXTERNAL, ALTER headers SET STORAGE EXTERNAL,
    ALTER transaction_ids SET STORAGE EXTERNAL, ALTER trace_ids SET STORAGE EXTERNAL, ALTER producers SET STORAGE EXTERNAL;
