-- The messages of a partition that were pushed in one step of time. Offsets are dense and times never decrease, so that they are one run,
-- and everything about amounts follows from where it begins and ends. Messages deleted by hand are counted, as lag does.
SELECT queue, partition, partition_id, timestamp_seconds(unix_seconds(`timestamp`) DIV :step * :step) AS bucket,
       min(`offset`) AS first_offset, max(`offset`) + 1 AS end_offset, min(`timestamp`) AS first_at, max(`timestamp`) AS last_at
FROM messages
GROUP BY ALL
