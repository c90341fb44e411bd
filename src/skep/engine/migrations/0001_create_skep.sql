-- The tables of Skep. Hot tables have no foreign keys: the functions keep them consistent, and check_consistency()
-- verifies it.
--
-- The path of a message: push locks its row of partitions and appends to messages and journal. Discovery finds
-- partitions with work for a group and puts their runs into the ready list, an index of runs. pop leases from there;
-- ack moves first_offset; retention raises the floor.
--
-- Lock order, for every function that waits for a lock:
--   queues > group_queues > subscriptions > partition_floors > runs > partitions, each by its key.
-- pop, discovery and upkeep do not wait: they skip locked rows.

CREATE TABLE skep.settings (
    only_row                  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    default_subscription_mode text NOT NULL DEFAULT 'all' CHECK (default_subscription_mode IN ('all', 'new')),
    max_poll_interval         double precision NOT NULL DEFAULT 2  -- seconds
                                  CHECK (max_poll_interval > 0 AND max_poll_interval <= 86400),
    push_maintenance          boolean NOT NULL DEFAULT false,   -- servers store pushes in held_pushes
    pop_maintenance           boolean NOT NULL DEFAULT false    -- servers deliver nothing
);
COMMENT ON TABLE skep.settings IS
    'Settings of all queues, in one row; configure_defaults() and set_maintenance_mode() change them.';
INSERT INTO skep.settings DEFAULT VALUES;

-- The option columns are the complete list of options: configure_queue() reads it from here.
CREATE TABLE skep.queues (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 255),
    namespace   text COLLATE "C" NOT NULL DEFAULT '' CHECK (char_length(namespace) <= 255),
    task        text COLLATE "C" NOT NULL DEFAULT '' CHECK (char_length(task) <= 255),
    semantics   text NOT NULL DEFAULT 'mixed' CHECK (semantics IN ('queue', 'pub_sub', 'mixed')),
    lease_time                        double precision NOT NULL DEFAULT 300
                                          CHECK (lease_time > 0 AND lease_time <= 604800),
    retry_limit                       integer NOT NULL DEFAULT 3 CHECK (retry_limit >= 0),
    retry_delay                       double precision NOT NULL DEFAULT 1
                                          CHECK (retry_delay >= 0 AND retry_delay <= 86400),
    max_retry_delay                   double precision NOT NULL DEFAULT 3600  -- never shortens retry_delay
                                          CHECK (max_retry_delay >= 0 AND max_retry_delay <= 604800),
    retry_jitter                      double precision NOT NULL DEFAULT 0.25  -- the delay varies by this share of it
                                          CHECK (retry_jitter >= 0 AND retry_jitter <= 1),
    delayed_processing                double precision NOT NULL DEFAULT 0
                                          CHECK (delayed_processing >= 0 AND delayed_processing <= 31536000),
    window_buffer                     double precision NOT NULL DEFAULT 0
                                          CHECK (window_buffer >= 0 AND window_buffer <= 86400),
    priority                          integer NOT NULL DEFAULT 0,
    max_size                          bigint CHECK (max_size > 0),
    max_payload_bytes                 integer NOT NULL DEFAULT 16777216 CHECK (max_payload_bytes > 0),
    dedup_window                      double precision  -- NULL: as long as the message is kept
                                          CHECK (dedup_window > 0 AND dedup_window <= 3153600000),
    partial_failure                   text NOT NULL DEFAULT 'dead_letter'
                                          CHECK (partial_failure IN ('dead_letter', 'retry')),
    concurrency                       integer NOT NULL DEFAULT 1 CHECK (concurrency BETWEEN 1 AND 10000),
    retention_seconds                 double precision
                                          CHECK (retention_seconds > 0 AND retention_seconds <= 3153600000),
    completed_retention_seconds       double precision
                                          CHECK (completed_retention_seconds >= 0
                                                 AND completed_retention_seconds <= 3153600000),
    zero_subscriber_retention_seconds double precision
                                          CHECK (zero_subscriber_retention_seconds > 0
                                                 AND zero_subscriber_retention_seconds <= 3153600000),
    dead_group_grace_seconds          double precision NOT NULL DEFAULT 604800  -- retention waits for DEAD groups
                                          CHECK (dead_group_grace_seconds >= 0
                                                 AND dead_group_grace_seconds <= 3153600000),
    block_without_subscribers         boolean NOT NULL DEFAULT false,
    retain_until_archived             boolean NOT NULL DEFAULT false,
    drop_idle_seconds                 double precision
                                          CHECK (drop_idle_seconds > 0 AND drop_idle_seconds <= 3153600000),
    encryption_enabled                boolean NOT NULL DEFAULT false,  -- the server encrypts payloads
    lease_log_seconds                 double precision  -- NULL: no log
                                          CHECK (lease_log_seconds > 0 AND lease_log_seconds <= 3153600000),
    was_shared                        boolean NOT NULL DEFAULT false,  -- concurrency was once above 1
    queen_options                     jsonb NOT NULL DEFAULT '{}',       -- as a Queen client sent them
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.queues IS 'Queues with their options; configure_queue() changes them. All times are seconds.';
CREATE INDEX queues_namespace_task ON skep.queues (namespace, task);
CREATE INDEX queues_task ON skep.queues (task);
CREATE INDEX queues_work ON skep.queues (namespace, task) WHERE semantics = 'queue';

-- A push locks this row until it commits, and does not write it: the head of a partition is the last row of messages.
CREATE TABLE skep.partitions (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY CHECK (id < 34359738368),  -- 35 bits of a lease id
    queue_id   integer NOT NULL REFERENCES skep.queues,
    name       text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 255),
    only_group text COLLATE "C",          -- redriven dead letters: a partition for one group; NULL: for every group
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (queue_id, name)
) WITH (fillfactor = 80);
COMMENT ON TABLE skep.partitions IS 'Partitions by id; partition_list shows them with their offsets.';

-- The start of a partition. Only retention and clear_queue() write it, under FOR UPDATE. A group that starts or seeks
-- holds the row FOR KEY SHARE until it commits, so that no message is deleted between the choice of a start and its
-- commit.
CREATE TABLE skep.partition_floors (
    partition_id       bigint PRIMARY KEY,
    first_offset       bigint NOT NULL DEFAULT 0 CHECK (first_offset >= 0),  -- first retained offset
    -- Of the last deleted message: a reader that has not seen its transaction has lost messages.
    deleted_xid        xid8,
    deleted_created_at timestamptz,
    -- Offsets that every group had completed, and when that was found: see _sample_completed().
    completed_offsets  bigint[],
    completed_times    timestamptz[]
) WITH (fillfactor = 70);
COMMENT ON TABLE skep.partition_floors IS 'The first kept offset of each partition; lower ones were deleted.';

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
COMMENT ON TABLE skep.messages IS 'The log: one row per message, in the order of its partition. peek() reads it.';
-- Not unique: uniqueness holds only within the dedup window, and the partition's lock makes the check exact.
CREATE INDEX messages_transaction_id ON skep.messages (partition_id, transaction_id) WHERE transaction_id IS NOT NULL;
CREATE INDEX messages_tombstones ON skep.messages (partition_id, "offset") WHERE payload IS NULL;

-- A session that inserts, appends or cancels one holds the lock of its partition until it commits, as a push does. So
-- each is appended once, and those of a partition in order of (due_at, seq).
CREATE TABLE skep.delayed_messages (
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),  -- random: only the pusher can cancel it
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    queue_id       integer NOT NULL,
    partition_id   bigint NOT NULL,
    due_at         timestamptz NOT NULL CHECK (isfinite(due_at) AND due_at < '9999-01-01 00:00:00Z'),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    payload        jsonb NOT NULL,
    headers        jsonb,
    transaction_id text COLLATE "C",
    trace_id       uuid,
    producer       text
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX delayed_messages_due ON skep.delayed_messages (due_at, seq);
CREATE INDEX delayed_messages_queue ON skep.delayed_messages (queue_id, due_at, seq);
CREATE INDEX delayed_messages_partition ON skep.delayed_messages (partition_id, due_at, seq);
CREATE UNIQUE INDEX delayed_messages_transaction_id ON skep.delayed_messages (partition_id, transaction_id)
    WHERE transaction_id IS NOT NULL;
COMMENT ON TABLE skep.delayed_messages IS 'Messages that are not due yet; list_delayed() shows them.';

-- A message is pushed at each tick, in the transaction that moves next_at.
CREATE TABLE skep.schedules (
    name       text COLLATE "C" PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 255),
    cron       text NOT NULL,
    time_zone  text NOT NULL,
    queue      text COLLATE "C" NOT NULL CHECK (char_length(queue) BETWEEN 1 AND 255),
    partition  text COLLATE "C" NOT NULL CHECK (char_length(partition) BETWEEN 1 AND 255),
    payload    jsonb NOT NULL,
    headers    jsonb CHECK (jsonb_typeof(headers) = 'object'),
    missed     text NOT NULL CHECK (missed IN ('skip', 'one', 'all')),  -- which late ticks are pushed
    paused     boolean NOT NULL DEFAULT false,
    next_at    timestamptz NOT NULL,
    last_at    timestamptz,                                              -- the last tick that was pushed
    error      text,                                                     -- why the push of the due tick was refused
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX schedules_next_at ON skep.schedules (next_at) WHERE NOT paused;
COMMENT ON TABLE skep.schedules IS 'Periodic messages; create_schedule() makes them, list_schedules() shows them.';
-- A parsed cron expression. is_either: day of month and day of week are both restricted, and one of them is enough.
CREATE TYPE skep.cron_rule AS (
    minutes integer[], hours integer[], days integer[], months integer[], weekdays integer[], is_either boolean
);

-- id is assigned while the partitions are locked, so within a partition it follows the offsets.
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
COMMENT ON TABLE skep.journal IS 'One row per push and queue, for discovery; prune_journal() deletes old rows.';
CREATE INDEX journal_xid ON skep.journal (xid);  -- for groups that read many queues at once
-- Journal rows of transactions below this were deleted: a reader that has not seen all of them checks every partition.
CREATE TABLE skep.journal_floor (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xid      xid8 NOT NULL DEFAULT '0'
);
INSERT INTO skep.journal_floor DEFAULT VALUES;

-- Written by the first pop of a group, by subscribe and by seek; a subscription may be older than its queue.
-- status:
--   ACTIVE --pause--> PAUSED --resume--> ACTIVE                 PAUSED keeps its backlog, and is never declared dead
--   ACTIVE --no heartbeat--> DEAD --pop, heartbeat, resume--> ACTIVE
--                                                               DEAD continues at its cursor; retention waits for it
--                                                               for a grace period
--   any --cancel--> CANCELLED --subscribe--> ACTIVE             a new start
CREATE TABLE skep.subscriptions (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name   text COLLATE "C" NOT NULL CHECK (char_length(group_name) BETWEEN 1 AND 255),
    queue        text COLLATE "C" CHECK (char_length(queue) BETWEEN 1 AND 255),
    partition    text COLLATE "C" CHECK (char_length(partition) BETWEEN 1 AND 255),
    namespace    text COLLATE "C",
    task         text COLLATE "C",
    mode         text NOT NULL CHECK (mode IN ('all', 'new', 'timestamp', 'offset')),
    start_at     timestamptz,
    start_offset bigint CHECK (start_offset >= 0),
    start_snapshot     pg_snapshot,                      -- for 'new': messages that are not visible in it are new
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    status             text NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'CANCELLED', 'DEAD')),
    backfill           boolean NOT NULL DEFAULT true,    -- messages before the subscription are in its backlog
    heartbeat_interval double precision NOT NULL DEFAULT 60 CHECK (heartbeat_interval >= 0.001),
    heartbeat_timeout  double precision NOT NULL DEFAULT 300 CHECK (heartbeat_timeout <= 31536000),
    miss_threshold     integer NOT NULL DEFAULT 3 CHECK (miss_threshold >= 1),
    last_heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    status_changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Each delivery is the last message of its run; those before it count as completed.
    conflation         boolean NOT NULL DEFAULT false,
    -- The group's own retry policy; NULL: that of a wider subscription or else the option of the queue.
    retry_limit        integer CHECK (retry_limit >= 0),
    retry_delay        double precision CHECK (retry_delay >= 0 AND retry_delay <= 86400),
    max_retry_delay    double precision CHECK (max_retry_delay >= 0 AND max_retry_delay <= 604800),
    retry_jitter       double precision CHECK (retry_jitter >= 0 AND retry_jitter <= 1),
    CONSTRAINT subscriptions_timeout_check CHECK (heartbeat_timeout > heartbeat_interval),
    CHECK ((mode IN ('new', 'timestamp')) = (start_at IS NOT NULL)),
    CHECK ((mode = 'offset') = (start_offset IS NOT NULL)),
    CHECK (num_nonnulls(queue, namespace, task) > 0),
    CHECK (queue IS NULL OR num_nulls(namespace, task) = 2),
    CHECK (partition IS NULL OR queue IS NOT NULL)
) WITH (fillfactor = 70);
COMMENT ON TABLE skep.subscriptions IS
    'The start, the status and the heartbeat settings of each group. NULL in a scope column means any.';
CREATE UNIQUE INDEX subscriptions_scope ON skep.subscriptions
    (group_name, coalesce(queue, ''), coalesce(partition, ''), coalesce(namespace, ''), coalesce(task, ''));
CREATE INDEX subscriptions_queue ON skep.subscriptions (queue);

-- queue_id 0: the row for the namespaces and tasks of the group, whose queues share one ready list. A group that starts
-- in new partitions holds its row FOR KEY SHARE until it commits; seek and delete_group lock it FOR UPDATE.
CREATE TABLE skep.group_queues (
    id         integer GENERATED ALWAYS AS IDENTITY (MAXVALUE 2097151 CYCLE) PRIMARY KEY,  -- 21 bits of a lease id
    group_name text COLLATE "C" NOT NULL,
    queue_id   integer NOT NULL,
    list_id    integer NOT NULL,  -- the ready list of its runs: its own id, or that of the row with queue_id 0
    UNIQUE (group_name, queue_id)
);
COMMENT ON TABLE skep.group_queues IS 'Groups that have read from a queue.';
CREATE INDEX group_queues_queue_id ON skep.group_queues (queue_id, group_name);  -- also good for lookups by both
CREATE INDEX group_queues_list_id ON skep.group_queues (list_id, queue_id);

-- The snapshots of earlier discoveries that are still needed, for each ready list; usually one row. A push that is not
-- visible in one of them is unseen for the next discovery. See discover.sql.
CREATE TABLE skep.discoveries (
    list_id        integer NOT NULL,
    id             bigint GENERATED ALWAYS AS IDENTITY,
    snapshot       pg_snapshot NOT NULL,
    discovered_at  timestamptz NOT NULL,            -- later than now: the clock was set back
    server_started timestamptz NOT NULL,            -- transaction ids mean nothing in another cluster
    ready_from     timestamptz NOT NULL,            -- no live entry of the ready list is older, unless committed late
    scan_at        timestamptz NOT NULL,            -- the next scan for entries that were committed late
    crowded        boolean NOT NULL DEFAULT false,  -- the ready list is long: acks mark runs as probably drained
    left_over      bigint[],                        -- unseen partitions that were locked, for the next discovery
    scan_after     text COLLATE "C",                -- a full scan has checked partitions up to this name (of a wide
                                                    --   list: id); NULL: all
    scanned        bigint[],                        -- lost snapshots that this full scan makes up for
    PRIMARY KEY (list_id, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- The start of a group in a partition. The key makes sure that a group has one open run in a partition.
CREATE TABLE skep.starts (
    partition_id   bigint NOT NULL,
    group_queue_id integer NOT NULL,
    start_offset   bigint NOT NULL,
    skipped        bigint NOT NULL DEFAULT 0,                -- messages below the cursor that the group did not process
    PRIMARY KEY (partition_id, group_queue_id)
) WITH (fillfactor = 80);

-- The open run (end_offset NULL) is everything from first_offset on; all below it is done. With concurrency > 1 a
-- closed run is split from the open run for each lease; the lowest first_offset is then the cursor.
--
--                        lease_id   ready_at                  drained   index
--   ready                NULL       position in the list      false     runs_ready
--   leased               set        deadline                  -         runs_leased   (if extended, expires_at counts)
--   returned             NULL       when it may be retried    false     runs_ready
--   probably drained     NULL       position in the list      true      runs_drained  (by acks while the list is
--                                                                                      crowded, and seeks to the end)
--   drained              NULL       NULL                      -         none          (by discovery only)
--
-- No CHECK constraints: PostgreSQL parses each of them again for every statement. check_consistency() has them.
CREATE TABLE skep.runs (
    partition_id   bigint NOT NULL,
    group_queue_id integer NOT NULL,
    list_id        integer NOT NULL,
    first_offset   bigint NOT NULL,
    ready_at       timestamptz,
    lease_id       uuid,                          -- leased: [first_offset, leased_to) until expires_at
    leased_to      bigint,
    expires_at     timestamptz,
    served_at      timestamptz,                   -- when it was last leased
    priority       integer NOT NULL DEFAULT 0,    -- negative, the highest first; 0 unless list_id is shared
    leases         integer NOT NULL DEFAULT 0,    -- open run with concurrency > 1: closed runs that are leased
    drained        boolean NOT NULL DEFAULT false,
    succeeded      boolean NOT NULL DEFAULT false,-- some message was completed in this delivery
    is_logged      boolean NOT NULL DEFAULT false,-- this delivery goes into lease_log when it ends
    end_offset     bigint,                        -- closed run
    cuts           bigint[],                      -- returned runs: the next delivery up to cuts[1] is attempt
    attempts       integer[],                     --   attempts[1], and so on; after the last cut it is 1
    done           int8multirange,                -- from first_offset on: completed or dead-lettered
    failed         int8multirange,
    errors         jsonb,                         -- offset -> error of the failed
    retry_after    double precision,              -- seconds until the failed are retried; NULL: by policy
    PRIMARY KEY (partition_id, group_queue_id, first_offset)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
COMMENT ON TABLE skep.runs IS
    'The progress of each group in each partition, with its leases; partition_consumers and leases show it.';
CREATE INDEX runs_ready ON skep.runs (list_id, priority, ready_at)
    WHERE ready_at IS NOT NULL AND lease_id IS NULL AND NOT drained;
CREATE INDEX runs_leased ON skep.runs (list_id, ready_at) WHERE lease_id IS NOT NULL;
CREATE INDEX runs_drained ON skep.runs (list_id, ready_at) WHERE ready_at IS NOT NULL AND lease_id IS NULL AND drained;

-- A lease of pop, before its messages are read.
CREATE TYPE skep.lease AS (
    request        integer,
    queue_id       integer,
    queue          text,
    group_queue_id integer,
    partition_id   bigint,
    first_offset   bigint,
    leased_to      bigint,
    lease_id       uuid,
    expires_at     timestamptz,
    attempt        integer,
    done           int8multirange
);

-- The state of a group on a queue for pop: see _find_group().
CREATE TYPE skep.group_state AS (
    id                 integer,
    list_id            integer,
    list_queue_id      integer,   -- of the ready list: 0 if it is for namespaces and tasks
    priority           integer,
    group_name         text,
    queue_id           integer,
    queue              text,
    concurrency        integer,
    is_shared          boolean,
    is_logged          boolean,
    stamp              timestamptz,   -- current time
    deadline           timestamptz,   -- of a lease
    visible_until      timestamptz,   -- later messages are too young (delayed_processing)
    quiet_since        timestamptz,   -- partitions with later messages are too busy (window_buffer)
    discovered_at      timestamptz,
    ready_from         timestamptz,
    crowded            boolean,
    is_behind          boolean,       -- the last discovery has left partitions over
    is_autocommit      boolean        -- the transaction ends with the pop
);

-- The state of discovery when it begins: see _read_discovery_state().
CREATE TYPE skep.discovery_state AS (
    seen          pg_snapshot,    -- the snapshot with which it begins
    snapshots     bigint[],       -- the saved snapshots that it has read
    discovered_at timestamptz,
    ready_from    timestamptz,
    scan_at       timestamptz,
    crowded       boolean,
    is_lost       boolean,        -- the journal cannot tell what is unseen: every partition has to be checked
    is_ahead      boolean,        -- the clock was set back
    scan_after    text,
    partition_ids bigint[],
    rows          bigint,
    lost          bigint[]        -- the snapshots for which a full scan has begun, or begins now
);

-- The options that decide about a lease, and the names that dead letters and the log need.
CREATE TYPE skep.policy AS (
    queue_id        integer,
    queue           text,
    partition       text,
    group_name      text,
    retry_limit     integer,
    retry_delay     double precision,
    max_retry_delay double precision,
    retry_jitter    double precision,
    partial_failure text,
    is_logged       boolean,
    is_stream       boolean
);

-- The acks of one call for one lease: of messages by offset, and of all messages that have no ack yet (rest_…).
CREATE TYPE skep.lease_acks AS (
    lease          uuid,
    ords           bigint[],
    offsets        bigint[],
    completed      int8multirange,
    failed         int8multirange,
    failed_at_once int8multirange, -- part of the failed: their lease ends
    failed_alone   int8multirange, -- part of the failed: their lease ends, and only their attempts grow
    dead           int8multirange,
    released       int8multirange,
    rest_completed boolean,
    rest_failed    boolean,
    rest_dead      boolean,
    rest_released  boolean,
    errors         jsonb,
    retry_after    double precision,  -- of the failed
    release_delay  double precision
);

CREATE TABLE skep.lease_log (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id        integer NOT NULL,
    group_name      text COLLATE "C" NOT NULL,
    partition_id    bigint NOT NULL,
    first_offset    bigint NOT NULL,
    end_offset      bigint NOT NULL,
    attempt         integer NOT NULL,
    reason          text NOT NULL   -- why it ended
                        CHECK (reason IN ('completed', 'failed', 'failed_at_once', 'failed_alone', 'expired',
                                          'released')),
    returned        int8multirange NOT NULL,  -- messages that were not done and are delivered again
    first_pushed_at timestamptz,              -- of the first and the last message, which may be deleted later
    last_pushed_at  timestamptz,
    leased_at       timestamptz,
    finished_at     timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
COMMENT ON TABLE skep.lease_log IS
    'Finished leases of queues with lease_log_seconds: when they began and ended, and why.';
CREATE INDEX lease_log_finished_at ON skep.lease_log (queue_id, finished_at);

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
COMMENT ON TABLE skep.dead_letters IS
    'Full copies of messages that a group could not process. They outlive the message, its partition and its queue.';
CREATE INDEX dead_letters_queue_group ON skep.dead_letters (queue, group_name, id);
CREATE INDEX dead_letters_message ON skep.dead_letters (partition_id, "offset");

CREATE TABLE skep.dead_letter_audit (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action         text NOT NULL CHECK (action IN ('redriven', 'purged')),
    dead_letter_id bigint NOT NULL,
    group_name     text COLLATE "C" NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    partition      text COLLATE "C" NOT NULL,
    "offset"       bigint NOT NULL,
    error          text NOT NULL,
    message_id     uuid,                  -- of the copy that a redrive made
    to_queue       text COLLATE "C",
    done_by        text NOT NULL,
    done_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((action = 'redriven') = (message_id IS NOT NULL))
);
COMMENT ON TABLE skep.dead_letter_audit IS 'Redriven and purged dead letters, with user and time.';
CREATE INDEX dead_letter_audit_done_at ON skep.dead_letter_audit (done_at);

CREATE TABLE skep.missed_messages (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name   text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    partition    text COLLATE "C" NOT NULL,
    partition_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    end_offset   bigint NOT NULL CHECK (end_offset > first_offset),
    messages     bigint NOT NULL CHECK (messages > 0),
    rule         text NOT NULL,
    noticed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.missed_messages IS 'Messages that a retention limit deleted before a group had completed them.';
CREATE INDEX missed_messages_queue_group ON skep.missed_messages (queue, group_name);

-- Rows exist here from INSERT to COMMIT of the caller's transaction, when _move_outbox() appends them to the log.
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
    delay          double precision CHECK (delay BETWEEN 0 AND 315360000),  -- seconds after it is published
    deliver_at     timestamptz CHECK (isfinite(deliver_at) AND deliver_at < '9999-01-01 00:00:00Z'),
    PRIMARY KEY (xid, id),
    CONSTRAINT outbox_delay_or_deliver_at_check CHECK (num_nonnulls(delay, deliver_at) <= 1)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE skep.outbox IS
    'INSERT here: the messages are published if and when your transaction commits.';
-- One row, and so one deferred trigger event, for each transaction that used the outbox.
CREATE TABLE skep.outbox_transactions (
    xid xid8 PRIMARY KEY
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- A row of pop: one message.
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

CREATE TABLE skep.archive_marks (
    partition_id bigint PRIMARY KEY,
    end_offset   bigint NOT NULL CHECK (end_offset >= 0),
    marked_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.archive_marks IS 'Messages below end_offset of a partition are in the archive.';

-- total only grows, so that differences are exact.
CREATE TABLE skep.samples (
    at         timestamptz NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL DEFAULT '',
    total      bigint NOT NULL,           -- pushed so far, or consumed so far
    lag        bigint NOT NULL,           -- for a queue: messages kept
    leased     bigint NOT NULL,
    dead       bigint NOT NULL,           -- dead letters
    oldest_at  timestamptz,               -- of the oldest kept or pending message
    PRIMARY KEY (queue, group_name, at)
);
COMMENT ON TABLE skep.samples IS
    'Counts of queues and groups over time; history() reads them. group_name is empty for the queue itself.';
CREATE INDEX samples_at ON skep.samples (at);

-- When sample() last counted each queue. Until it counts again it repeats the last sample: see _is_count_due().
CREATE TABLE skep.sample_counts (
    queue_id   integer PRIMARY KEY,
    counted_at timestamptz NOT NULL,      -- '-infinity': count it next time
    seconds    double precision NOT NULL, -- duration of the count
    snapshot   pg_snapshot NOT NULL       -- pushes that are not visible in it came later
) WITH (fillfactor = 70);

-- The progress of upkeep's visits to all partitions: see _partitions_due().
CREATE TABLE skep.retention_visits (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    visited_to bigint NOT NULL DEFAULT 0,                     -- the next visit begins after this partition
    visited_at timestamptz NOT NULL DEFAULT 'epoch',
    snapshot   pg_snapshot                                    -- partitions with later pushes are visited first
) WITH (fillfactor = 50);
INSERT INTO skep.retention_visits DEFAULT VALUES;

-- Counts of deleted partitions, so that totals do not fall.
CREATE TABLE skep.deleted_totals (
    queue      text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL DEFAULT '',
    total      bigint NOT NULL,
    PRIMARY KEY (queue, group_name)
);

-- API keys of the server. The secret itself is never stored. It is random and 256 bits long, so it cannot be guessed
-- and a fast hash is sufficient.
CREATE TABLE skep.api_keys (
    id           text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[0-9a-f]{12}$'),
    name         text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 255 AND name !~ '[[:cntrl:]]'),
    hash         bytea NOT NULL CHECK (octet_length(hash) = 32),                           -- SHA-256 of the secret
    role         text CHECK (role IN ('admin', 'read-write', 'read-only', 'write-only')),  -- NULL: the grants alone
    grants       jsonb CHECK (jsonb_typeof(grants) = 'object'),                            -- {"orders.*": ["push"]}
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,                                                              -- set once
    last_used_at timestamptz,                                                              -- to the minute
    CHECK (role IS NOT NULL OR grants IS NOT NULL)
);
COMMENT ON TABLE skep.api_keys IS 'API keys of the server, without their secrets.';

-- Rows are deleted with the partition of their message, and pruned like samples.
CREATE TABLE skep.traces (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id   bigint NOT NULL,
    "offset"       bigint NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,  -- or the id of the message, which may be deleted earlier
    group_name     text COLLATE "C" NOT NULL,
    event_type     text NOT NULL CHECK (char_length(event_type) BETWEEN 1 AND 255),
    data           jsonb NOT NULL,
    worker         text,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.traces IS 'Reports of consumers about messages that they process.';
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

-- Each name once, so that a list of them reads no traces. last_seen_at is exact to a second: a busy name is not written
-- each time.
CREATE TABLE skep.traced_names (
    name         text COLLATE "C" PRIMARY KEY,
    last_seen_at timestamptz NOT NULL
);
CREATE INDEX traced_names_last_seen_at ON skep.traced_names (last_seen_at, name);

CREATE TABLE skep.stream_queries (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name         text COLLATE "C" NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 255),
    source_queue text COLLATE "C" NOT NULL CHECK (char_length(source_queue) BETWEEN 1 AND 255),
    sink_queue   text COLLATE "C" CHECK (char_length(sink_queue) BETWEEN 1 AND 255),
    config_hash  text COLLATE "C" NOT NULL CHECK (char_length(config_hash) BETWEEN 1 AND 255),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- No foreign key to partitions: _delete_partitions() deletes the rows.
CREATE TABLE skep.stream_state (
    query_id     uuid NOT NULL REFERENCES skep.stream_queries,
    partition_id bigint NOT NULL,
    key          text COLLATE "C" NOT NULL CHECK (octet_length(key) <= 2000),  -- what fits into an index
    value        jsonb NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (query_id, partition_id, key)
) WITH (fillfactor = 70);

-- Groups whose expired leases do not count as attempts: a stream leaves messages without an ack to get them again later
-- (see _end_lease()).
CREATE TABLE skep.stream_groups (
    group_name text COLLATE "C" NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    PRIMARY KEY (group_name, queue)
);

-- One row for each request during push maintenance mode.
--   (new) --hold--> held --mode ends--> deleted, its messages are in the log
--                   held --refused--> held with its error --tried again by upkeep--> deleted
CREATE TABLE skep.held_pushes (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    items    jsonb NOT NULL CHECK (jsonb_typeof(items) = 'array'),  -- as _push_messages() takes them
    messages integer NOT NULL CHECK (messages > 0),
    error    text,
    held_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.held_pushes IS 'Pushes that arrived during push maintenance mode, to be stored when it ends.';

-- The batches of a sink come in order, so the last published batch tells which ones were published.
CREATE TABLE skep.sinks (
    id         text COLLATE "C" PRIMARY KEY CHECK (char_length(id) BETWEEN 1 AND 255),
    query      text COLLATE "C" NOT NULL,                        -- Spark's id of the query, the same after a restart
    last_batch bigint NOT NULL DEFAULT -1,
    messages   bigint NOT NULL DEFAULT 0,
    used_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.sinks IS 'Streaming queries that write to Skep, with the last batch that each has published.';

-- Up to 10,000 messages of a batch that is being written, sorted by partition: counts[n] of them are for queues[n],
-- partitions[n]. Unlogged: if the database crashes, the batch is written again.
CREATE UNLOGGED TABLE skep.sink_chunks (
    sink            text COLLATE "C" NOT NULL,
    batch           bigint NOT NULL,
    chunk           uuid NOT NULL,                               -- of one attempt; those of failed ones are not used
    messages        integer NOT NULL CHECK (messages > 0),
    queues          text[] COLLATE "C" NOT NULL,
    partitions      text[] COLLATE "C" NOT NULL,
    counts          integer[] NOT NULL CHECK (0 < ALL (counts)),
    slot_of         integer[] NOT NULL,                          -- the index in counts of each message
    payloads        jsonb[] NOT NULL,
    headers         jsonb[],                                     -- these arrays are NULL if no message has a value
    transaction_ids text[] COLLATE "C",
    trace_ids       uuid[],
    producers       text[],
    PRIMARY KEY (sink, batch, chunk)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- Written once and read once: compression would cost more than it saves.
ALTER TABLE skep.sink_chunks
    ALTER queues SET STORAGE EXTERNAL, ALTER partitions SET STORAGE EXTERNAL, ALTER counts SET STORAGE EXTERNAL,
    ALTER slot_of SET STORAGE EXTERNAL, ALTER payloads SET STORAGE EXTERNAL, ALTER headers SET STORAGE EXTERNAL,
    ALTER transaction_ids SET STORAGE EXTERNAL, ALTER trace_ids SET STORAGE EXTERNAL,
    ALTER producers SET STORAGE EXTERNAL;

-- The archive's manifest: which file has which run of which partition. Files that it does not name are garbage. It
-- outlives messages, partitions and queues that were deleted.

CREATE TABLE skep.archives (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    location   text COLLATE "C" NOT NULL UNIQUE CHECK (location <> ''),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE skep.archives IS 'Archives by location.';

-- state:
--   (new) --begin_files--> writing --store_file, verified against the log--> stored
--                          writing --settle_files, its job has ended--> (deleted)
--   (new) --begin_compaction--> writing --swap_files, and in the same transaction its sources: stored --> replaced
--                          replaced --forget_files, once kept_until has passed--> (deleted)
-- settled: failed attempts can no longer have left files beside it.
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
    digest     bytea,                                 -- of every message in it, in order: see _digest()
    stored_at  timestamptz,
    kept_until timestamptz,                           -- replaced: readers may still use it until then
    CHECK ((state <> 'writing') = (num_nonnulls(path, bytes, digest, stored_at) = 4)),
    CHECK ((state = 'replaced') = (kept_until IS NOT NULL)),
    CHECK (state <> 'writing' OR NOT settled)
);
COMMENT ON TABLE skep.archive_files IS 'The files of the archives; see pipelines.md.';
CREATE UNIQUE INDEX archive_files_path ON skep.archive_files (archive_id, path);
CREATE INDEX archive_files_queue_day ON skep.archive_files (queue, day);
CREATE INDEX archive_files_unsettled ON skep.archive_files (archive_id) WHERE NOT settled;
CREATE INDEX archive_files_replaced ON skep.archive_files (archive_id, kept_until) WHERE state = 'replaced';

-- No message is in two files. Ranges stand for numbers, because btree_gist is not always available.
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
COMMENT ON TABLE skep.archive_runs IS 'Which file of the archive holds which offsets of which partition.';
CREATE INDEX archive_runs_partition ON skep.archive_runs (partition_id, first_offset);

-- The target of an ack of Queen's protocol; see _queen_resolve_acks().
CREATE TYPE skep.resolved_ack AS (
    ord            bigint,
    partition_id   bigint,
    group_queue_id integer,
    queue          text,
    partition      text,
    "offset"       bigint,
    lease          uuid,
    done           boolean
);

-- Queen's clients know one lease id for all partitions of a pop. A pop that leased several gets an extra id here.
CREATE TABLE skep.lease_sets (
    id         uuid PRIMARY KEY,
    lease_ids  uuid[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX lease_sets_created_at ON skep.lease_sets (created_at);
