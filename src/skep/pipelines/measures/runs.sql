-- The messages of a partition that were pushed in one step. They are one run, because offsets are dense and times never decrease, so the
-- number of messages follows from its two offsets. Messages that were deleted one by one are counted, as they are in lag.
SELECT queue, partition, partition_id, timestamp_seconds(unix_seconds(`timestamp`) DIV :step * :step) AS bucket,
       min(`offset`) AS first_offset, max(`offset`) + 1 AS end_offset, min(`timestamp`) AS first_at, max(`timestamp`) AS last_at
FROM messages
GROUP BY ALL
