-- Seconds from push to ack, for each group: in total, until the lease, and during the lease.
SELECT queue, group_name, messages, total[0] / 1e6 AS p50, total[1] / 1e6 AS p95, total[2] / 1e6 AS p99, most / 1e6 AS most,
       waited[0] / 1e6 AS waited_p50, waited[1] / 1e6 AS waited_p95, held[0] / 1e6 AS held_p50, held[1] / 1e6 AS held_p95
FROM (
    SELECT queue, group_name, count(*) AS messages, percentile_approx(total, array(0.5, 0.95, 0.99), 10000) AS total, max(total) AS most,
           percentile_approx(waited, array(0.5, 0.95), 10000) AS waited, percentile_approx(held, array(0.5, 0.95), 10000) AS held
    FROM done
    GROUP BY queue, group_name
)
ORDER BY p95 DESC, queue, group_name
