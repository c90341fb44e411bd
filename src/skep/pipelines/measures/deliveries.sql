-- How leases ended, of each group.
SELECT queue, group_name, count(*) AS leases, sum(end_offset - first_offset) AS messages, count_if(attempt > 1) AS repeated,
       count_if(reason = 'expired') AS expired, count_if(reason = 'released') AS released, count_if(reason IN ('failed', 'failed_at_once', 'failed_alone')) AS failed
FROM leases
GROUP BY queue, group_name
ORDER BY queue, group_name
