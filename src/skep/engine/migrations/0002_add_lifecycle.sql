-- Subscriptions with a life, retention, dead letters that come back, samples over time.

-- status:
--   ACTIVE --pause--> PAUSED --resume--> ACTIVE          PAUSED keeps what it is owed, and is never declared dead
--   ACTIVE --no sign of life--> DEAD --pop, heartbeat, resume--> ACTIVE   DEAD is owed nothing, and continues at its cursor
--   any --cancel--> CANCELLED --subscribe--> ACTIVE      a new life, from a new start
ALTER TABLE skep.subscriptions
    ADD status             text NOT NULL DEFAULT 'ACTIVE' CHECK (status IN ('ACTIVE', 'PAUSED', 'CANCELLED', 'DEAD')),
    ADD backfill           boolean NOT NULL DEFAULT true,  -- what was there before the subscription is owed to it as well
    ADD heartbeat_interval double precision NOT NULL DEFAULT 60 CHECK (heartbeat_interval > 0),
    ADD heartbeat_timeout  double precision NOT NULL DEFAULT 300 CHECK (heartbeat_timeout <= 31536000),
    ADD miss_threshold     integer NOT NULL DEFAULT 3 CHECK (miss_threshold >= 1),
    ADD last_heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD status_changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD CONSTRAINT subscriptions_timeout_check CHECK (heartbeat_timeout > heartbeat_interval);
ALTER TABLE skep.subscriptions SET (fillfactor = 70);

-- A lane for one group alone: dead letters that are driven again. NULL: for everyone.
ALTER TABLE skep.partitions ADD only_group text COLLATE "C";

-- Set by every answer and extension, in a row that is written anyway: a sign of life that costs nothing.
ALTER TABLE skep.cursors ADD touched_at timestamptz;

ALTER TABLE skep.queues
    ADD block_without_subscribers boolean NOT NULL DEFAULT false,
    ADD retain_until_archived     boolean NOT NULL DEFAULT false,
    ADD drop_idle_seconds         double precision CHECK (drop_idle_seconds > 0 AND drop_idle_seconds <= 3153600000);

-- Everything below this offset of a lane is in the archive.
CREATE TABLE skep.archive_marks (
    partition_id bigint PRIMARY KEY,
    end_offset   bigint NOT NULL CHECK (end_offset >= 0),
    marked_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What retention took from a group before it was done with it. Only a hard limit does that.
CREATE TABLE skep.missed (
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
CREATE INDEX missed_queue_group ON skep.missed (queue, group_name);

-- What became of dead letters that are no longer there.
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
CREATE INDEX dead_letter_audit_done_at ON skep.dead_letter_audit (done_at);

-- Heads and cursors over time: counters that only grow, so that differences are exact. group_name '' is the queue itself.
CREATE TABLE skep.samples (
    at         timestamptz NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL DEFAULT '',
    total      bigint NOT NULL,           -- pushed so far, or consumed so far
    lag        bigint NOT NULL,           -- for the queue: messages kept
    leased     bigint NOT NULL,
    dead       bigint NOT NULL,           -- dead letters
    oldest_at  timestamptz,               -- of what is kept, or not consumed yet
    PRIMARY KEY (queue, group_name, at)
);
CREATE INDEX samples_at ON skep.samples (at);

-- What lanes that are gone had counted, so that totals do not fall.
CREATE TABLE skep.gone_totals (
    queue      text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL DEFAULT '',
    total      bigint NOT NULL,
    PRIMARY KEY (queue, group_name)
);
