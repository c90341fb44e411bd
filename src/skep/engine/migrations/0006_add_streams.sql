-- Streams: what their clients keep between two steps. And maintenance: pushes that wait until it is over.

CREATE TABLE skep.stream_queries (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name         text COLLATE "C" NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 255),
    source_queue text COLLATE "C" NOT NULL CHECK (char_length(source_queue) BETWEEN 1 AND 255),
    sink_queue   text COLLATE "C" CHECK (char_length(sink_queue) BETWEEN 1 AND 255),
    config_hash  text COLLATE "C" NOT NULL CHECK (char_length(config_hash) BETWEEN 1 AND 255),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- No foreign key to partitions: delete_lanes() takes the rows along.
CREATE TABLE skep.stream_state (
    query_id     uuid NOT NULL REFERENCES skep.stream_queries,
    partition_id bigint NOT NULL,
    key          text COLLATE "C" NOT NULL CHECK (octet_length(key) <= 2000),  -- what fits into an index
    value        jsonb NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, partition_id, key)
) WITH (fillfactor = 70);

-- Groups whose leases run out without a charge: a stream holds messages back by doing nothing (see judge()).
CREATE TABLE skep.stream_groups (
    group_name text COLLATE "C" NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    PRIMARY KEY (group_name, queue)
);

ALTER TABLE skep.settings
    ADD push_maintenance boolean NOT NULL DEFAULT false,   -- the servers keep pushes in held_pushes
    ADD pop_maintenance  boolean NOT NULL DEFAULT false;   -- the servers deliver nothing

-- One row for each request that came during push maintenance.
--   (new) --hold--> held --maintenance ends--> gone, its messages in the log
--                   held --refused--> held with its error --tried again by upkeep--> gone
CREATE TABLE skep.held_pushes (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    items    jsonb NOT NULL CHECK (jsonb_typeof(items) = 'array'),  -- as wire_push() takes them
    messages integer NOT NULL CHECK (messages > 0),
    error    text,
    held_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
