-- Traces: what consumers say about messages they work on. They go with the lane of their message, and are pruned like samples.

CREATE TABLE skep.traces (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id   bigint NOT NULL,
    "offset"       bigint NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,  -- what the message is known by on the wire; it may be gone before its traces
    group_name     text COLLATE "C" NOT NULL,
    event_type     text NOT NULL CHECK (char_length(event_type) BETWEEN 1 AND 255),
    data           jsonb NOT NULL,
    worker         text,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX traces_message ON skep.traces (partition_id, transaction_id, id);
CREATE INDEX traces_created_at ON skep.traces (created_at);

CREATE TABLE skep.trace_names (
    name         text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 255),
    trace_id     bigint NOT NULL REFERENCES skep.traces ON DELETE CASCADE,
    partition_id bigint NOT NULL,
    "offset"     bigint NOT NULL,
    PRIMARY KEY (name, trace_id)
);
CREATE INDEX trace_names_trace_id ON skep.trace_names (trace_id);

-- Each name once, so that a list of them reads no traces. last_seen_at is right to a second: a busy name is not written each time.
CREATE TABLE skep.traced_names (
    name         text COLLATE "C" PRIMARY KEY,
    last_seen_at timestamptz NOT NULL
);
CREATE INDEX traced_names_last_seen_at ON skep.traced_names (last_seen_at, name);

-- Whether a message is dead, and its copies.
CREATE INDEX dead_letters_message ON skep.dead_letters (partition_id, "offset");
