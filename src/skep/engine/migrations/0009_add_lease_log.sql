-- A log of finished leases: how long messages waited for a group, and how long the group held them.

ALTER TABLE skep.queues
    ADD lease_log_seconds double precision CHECK (lease_log_seconds > 0 AND lease_log_seconds <= 3153600000);  -- NULL: no log

ALTER TABLE skep.leases ADD leased_at timestamptz;  -- when this delivery began

-- One row per lease of a queue that has lease_log_seconds, written as it ends. No key: nothing looks for a single row.
CREATE TABLE skep.lease_log (
    queue_id       integer NOT NULL,
    group_name     text COLLATE "C" NOT NULL,
    partition_id   bigint NOT NULL,
    first_offset   bigint NOT NULL,
    end_offset     bigint NOT NULL,
    attempt        integer NOT NULL,
    reason         text NOT NULL CHECK (reason IN ('completed', 'answered', 'nacked', 'expired', 'released')),  -- why it ended: see judge()
    again          int8multirange NOT NULL,  -- what was not done with then, and came again
    first_pushed_at timestamptz,             -- of the first and the last message, which may be gone when someone asks
    last_pushed_at  timestamptz,
    leased_at      timestamptz,
    finished_at    timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX lease_log_finished_at ON skep.lease_log (queue_id, finished_at);
