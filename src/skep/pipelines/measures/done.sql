-- The time at which each group completed each message: the end of the first lease that completed it. Dead letters are not completed.
-- The push time of a message that neither log nor archive has is interpolated between the first and the last message of its lease.
WITH finished AS (
    SELECT l.queue, l.group_name, l.partition, l.partition_id, explode(sequence(run.done_from, run.done_to - 1)) AS `offset`,
           struct(l.finished_at, l.leased_at, l.first_offset, l.end_offset, l.first_pushed_at, l.last_pushed_at) AS lease
    FROM leases l
    LATERAL VIEW explode(arrays_zip(l.done_from, l.done_to)) runs AS run
), first AS (
    SELECT queue, group_name, max(partition) AS partition, partition_id, `offset`, min(lease) AS lease
    FROM finished
    GROUP BY queue, group_name, partition_id, `offset`
), timed AS (
    SELECT f.queue, f.group_name, f.partition, f.partition_id, f.`offset`, f.lease.finished_at, f.lease.leased_at,
           coalesce(m.`timestamp`, timestamp_micros(unix_micros(f.lease.first_pushed_at) + (
               (unix_micros(f.lease.last_pushed_at) - unix_micros(f.lease.first_pushed_at)) * (f.`offset` - f.lease.first_offset)
               DIV greatest(f.lease.end_offset - 1 - f.lease.first_offset, 1)))) AS pushed_at
    FROM first f
    LEFT JOIN messages m ON m.partition_id = f.partition_id AND m.`offset` = f.`offset`
)
SELECT t.queue, t.group_name, t.partition_id, t.`offset`, t.pushed_at, t.leased_at, t.finished_at,
       unix_micros(t.finished_at) - unix_micros(t.pushed_at) AS total, unix_micros(t.leased_at) - unix_micros(t.pushed_at) AS waited,
       unix_micros(t.finished_at) - unix_micros(t.leased_at) AS held
FROM timed t
LEFT ANTI JOIN dead_lettered g
    ON g.queue = t.queue AND g.group_name = t.group_name AND g.partition = t.partition AND g.`offset` = t.`offset`
WHERE t.pushed_at IS NOT NULL
