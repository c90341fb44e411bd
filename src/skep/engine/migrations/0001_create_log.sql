-- The log: queues, partitions, messages, the journal, and what each group has done with them.
-- Hot tables carry no foreign keys: the functions keep them whole, and check_consistency() proves it.

CREATE TABLE skep.settings (
    only_row                  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    default_subscription_mode text NOT NULL DEFAULT 'all' CHECK (default_subscription_mode IN ('all', 'new')),
    max_poll_interval         double precision NOT NULL DEFAULT 2 CHECK (max_poll_interval > 0 AND max_poll_interval <= 86400)  -- seconds
);
INSERT INTO skep.settings DEFAULT VALUES;

-- All times are seconds. The option columns are the whole list of options: configure_queue() reads it from here.
CREATE TABLE skep.queues (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 255),
    namespace   text COLLATE "C" NOT NULL DEFAULT '' CHECK (char_length(namespace) <= 255),
    task        text COLLATE "C" NOT NULL DEFAULT '' CHECK (char_length(task) <= 255),
    semantics   text NOT NULL DEFAULT 'mixed' CHECK (semantics IN ('queue', 'pub_sub', 'mixed')),
    lease_time                        double precision NOT NULL DEFAULT 300 CHECK (lease_time > 0 AND lease_time <= 604800),
    retry_limit                       integer NOT NULL DEFAULT 3 CHECK (retry_limit >= 0),
    retry_delay                       double precision NOT NULL DEFAULT 1 CHECK (retry_delay >= 0 AND retry_delay <= 86400),
    delayed_processing                double precision NOT NULL DEFAULT 0 CHECK (delayed_processing >= 0 AND delayed_processing <= 31536000),
    window_buffer                     double precision NOT NULL DEFAULT 0 CHECK (window_buffer >= 0 AND window_buffer <= 86400),
    priority                          integer NOT NULL DEFAULT 0,
    max_size                          bigint CHECK (max_size > 0),
    max_payload_bytes                 integer NOT NULL DEFAULT 16777216 CHECK (max_payload_bytes > 0),
    dedup_window                      double precision CHECK (dedup_window > 0 AND dedup_window <= 3153600000),  -- NULL: as long as the message is kept
    partial_failure                   text NOT NULL DEFAULT 'dead_letter' CHECK (partial_failure IN ('dead_letter', 'retry')),
    concurrency                       integer NOT NULL DEFAULT 1 CHECK (concurrency BETWEEN 1 AND 10000),
    retention_seconds                 double precision CHECK (retention_seconds > 0 AND retention_seconds <= 3153600000),
    completed_retention_seconds       double precision CHECK (completed_retention_seconds >= 0 AND completed_retention_seconds <= 3153600000),
    zero_subscriber_retention_seconds double precision CHECK (zero_subscriber_retention_seconds > 0 AND zero_subscriber_retention_seconds <= 3153600000),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX queues_namespace_task ON skep.queues (namespace, task);
CREATE INDEX queues_task ON skep.queues (task);

CREATE TABLE skep.partitions (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id   integer NOT NULL REFERENCES skep.queues,
    name       text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 255),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (queue_id, name)
);

-- The head of each lane, and its lock: whoever appends holds this row until commit.
-- Narrow, half-empty pages and no second index, so that every push is a HOT update.
CREATE TABLE skep.partition_lookup (
    partition_id    bigint PRIMARY KEY REFERENCES skep.partitions,
    first_offset    bigint NOT NULL DEFAULT 0,           -- first retained offset
    last_offset     bigint NOT NULL DEFAULT -1,
    last_created_at timestamptz NOT NULL DEFAULT '-infinity',
    CHECK (first_offset >= 0 AND last_offset >= first_offset - 1)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- payload NULL is a tombstone: the message was deleted, its offset stays.
CREATE TABLE skep.messages (
    partition_id   bigint NOT NULL,
    "offset"       bigint NOT NULL,
    created_at     timestamptz NOT NULL,                 -- never decreases within a partition
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    payload        jsonb,
    headers        jsonb,
    transaction_id text COLLATE "C",
    trace_id       uuid,
    producer       text,
    PRIMARY KEY (partition_id, "offset")
);
-- Not unique: uniqueness holds only within the dedup window, and the lane's lock makes the check exact.
CREATE INDEX messages_transaction_id ON skep.messages (partition_id, transaction_id) WHERE transaction_id IS NOT NULL;
CREATE INDEX messages_tombstones ON skep.messages (partition_id, "offset") WHERE payload IS NULL;

-- One row per push and queue. id is drawn while the lane locks are held, so within a lane it follows the offsets.
CREATE TABLE skep.journal (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    queue_id      integer NOT NULL,
    partition_ids bigint[] NOT NULL,
    first_offsets bigint[] NOT NULL,
    last_offsets  bigint[] NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue_id, xid, id)
);
-- Journal rows of transactions below this are gone: a reader that has not seen all of them looks at partition_lookup instead.
CREATE TABLE skep.journal_floor (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xid      xid8 NOT NULL DEFAULT '0'
);
INSERT INTO skep.journal_floor DEFAULT VALUES;

-- NULL = any. Written at the first contact of a group and by subscribe and seek; it outlives queues that do not exist yet.
CREATE TABLE skep.subscriptions (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name   text COLLATE "C" NOT NULL CHECK (char_length(group_name) BETWEEN 1 AND 255),
    queue        text COLLATE "C" CHECK (char_length(queue) BETWEEN 1 AND 255),
    partition    text COLLATE "C" CHECK (char_length(partition) BETWEEN 1 AND 255),
    namespace    text COLLATE "C",
    task         text COLLATE "C",
    mode         text NOT NULL CHECK (mode IN ('all', 'new', 'timestamp', 'offset')),
    start_at     timestamptz,                            -- birth time for 'new'
    start_offset bigint CHECK (start_offset >= 0),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((mode IN ('new', 'timestamp')) = (start_at IS NOT NULL)),
    CHECK ((mode = 'offset') = (start_offset IS NOT NULL)),
    CHECK (num_nonnulls(queue, namespace, task) > 0),
    CHECK (queue IS NULL OR num_nulls(namespace, task) = 2),
    CHECK (partition IS NULL OR queue IS NOT NULL)
);
CREATE UNIQUE INDEX subscriptions_scope ON skep.subscriptions
    (group_name, coalesce(queue, ''), coalesce(partition, ''), coalesce(namespace, ''), coalesce(task, ''));
CREATE INDEX subscriptions_queue ON skep.subscriptions (queue);

-- A group that has met a queue, and the snapshot of its last look at the journal (NULL: look at every lane).
CREATE TABLE skep.readers (
    id             integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name     text COLLATE "C" NOT NULL,
    queue_id       integer NOT NULL REFERENCES skep.queues,
    snapshot       pg_snapshot,
    looked_at      timestamptz,  -- later than now: the clock was set back, and no time in cursors can be trusted
    server_started timestamptz,  -- transaction ids mean nothing in another cluster: a snapshot counts only under this postmaster
    UNIQUE (group_name, queue_id)
) WITH (fillfactor = 50);
CREATE INDEX readers_queue_id ON skep.readers (queue_id);

-- What a group has done in a lane. A missing row means: at the subscription's start.
--   start_offset .. cursor      done
--   cursor .. next_offset       leased or returned runs (rows of leases), with done ones between
--   next_offset .. last_offset  never leased
-- ready_at is the lane's place in line: served oldest first once it has come. While as many leases are out as the queue
-- allows it is the earliest deadline. NULL means drained. Only look() may set NULL: see 30_look.sql.
CREATE TABLE skep.cursors (
    partition_id     bigint NOT NULL,
    reader_id        integer NOT NULL,
    leased           integer NOT NULL DEFAULT 0 CHECK (leased >= 0),
    returned         integer NOT NULL DEFAULT 0 CHECK (returned >= 0),
    start_offset     bigint NOT NULL,
    cursor           bigint NOT NULL,
    next_offset      bigint NOT NULL,
    ready_at         timestamptz,
    last_consumed_at timestamptz,
    PRIMARY KEY (partition_id, reader_id),
    CHECK (cursor <= next_offset),
    CHECK (leased + returned > 0 OR cursor = next_offset)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX cursors_ready ON skep.cursors (reader_id, ready_at, partition_id) WHERE ready_at IS NOT NULL;

-- A run of one lane for one group: leased (token) or returned (no token, waiting for its next delivery).
--   (new) --pop--> leased --all answered--> gone
--                  leased --failed, expired, released--> returned --pop--> leased
CREATE TABLE skep.leases (
    partition_id bigint NOT NULL,
    reader_id    integer NOT NULL,
    first_offset bigint NOT NULL,
    end_offset   bigint NOT NULL,
    attempt      integer NOT NULL DEFAULT 1 CHECK (attempt > 0),    -- number of this (or, if returned, the next) delivery
    token        uuid,
    expires_at   timestamptz,
    retry_at     timestamptz,
    succeeded    boolean NOT NULL DEFAULT false,                    -- some message completed in this delivery
    done         int8multirange NOT NULL DEFAULT '{}',              -- completed, dead-lettered or deleted: not delivered again
    failed       int8multirange NOT NULL DEFAULT '{}',
    errors       jsonb NOT NULL DEFAULT '{}',                       -- offset -> error, of the failed
    PRIMARY KEY (partition_id, reader_id, first_offset),
    CHECK (first_offset < end_offset),
    CHECK ((token IS NULL) = (expires_at IS NULL)),
    CHECK ((token IS NULL) = (retry_at IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
-- Not partial: the planner may walk the whole of a partial index whose predicate a query implies.
CREATE UNIQUE INDEX leases_token ON skep.leases (token, partition_id);
CREATE INDEX leases_expiry ON skep.leases (reader_id, expires_at);

-- Full copies: they outlive the message, its partition and its queue.
CREATE TABLE skep.dead_letters (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name     text COLLATE "C" NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    partition      text COLLATE "C" NOT NULL,
    partition_id   bigint NOT NULL,
    "offset"       bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    payload        jsonb NOT NULL,
    headers        jsonb,
    transaction_id text COLLATE "C",
    trace_id       uuid,
    producer       text,
    error          text NOT NULL,
    attempts       integer NOT NULL,
    failed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dead_letters_queue_group ON skep.dead_letters (queue, group_name, id);

-- Rows live here from INSERT to COMMIT of the caller's transaction, when move_outbox() appends them to the log.
CREATE TABLE skep.outbox (
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id             bigint GENERATED ALWAYS AS IDENTITY,
    queue          text COLLATE "C" NOT NULL CHECK (char_length(queue) BETWEEN 1 AND 255),
    partition      text COLLATE "C" NOT NULL DEFAULT 'Default' CHECK (char_length(partition) BETWEEN 1 AND 255),
    payload        jsonb NOT NULL,
    headers        jsonb CHECK (jsonb_typeof(headers) = 'object'),
    transaction_id text COLLATE "C" CHECK (char_length(transaction_id) BETWEEN 1 AND 255),
    trace_id       uuid,
    producer       text,
    PRIMARY KEY (xid, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- One row, and so one deferred trigger event, for each transaction that used the outbox.
CREATE TABLE skep.outbox_transactions (
    xid xid8 PRIMARY KEY
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- What pop gives for each message.
CREATE TYPE skep.delivery AS (
    queue            text,
    partition        text,
    "offset"         bigint,
    id               uuid,
    payload          jsonb,
    headers          jsonb,
    transaction_id   text,
    trace_id         uuid,
    producer         text,
    created_at       timestamptz,
    attempt          integer,
    partition_id     bigint,
    lease            uuid,
    lease_expires_at timestamptz
);
