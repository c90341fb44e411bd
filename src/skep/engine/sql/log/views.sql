-- Views of the log and the groups for people and reports. Nothing here is stored.

-- It is derived from the log, so it cannot be stale.
CREATE VIEW skep.partition_lookup AS
    SELECT f.partition_id, f.first_offset, head.next_offset - 1 AS last_offset,
           coalesce(head.last_time, '-infinity') AS last_created_at, f.deleted_xid, f.deleted_created_at
    FROM skep.partition_floors f CROSS JOIN LATERAL skep._head_of(f.partition_id) head;
COMMENT ON VIEW skep.partition_lookup IS 'First and last offset of each partition; partition_list has their names.';

CREATE VIEW skep.partition_consumers AS
    SELECT s.partition_id, s.group_queue_id, s.start_offset, s.skipped,
           CASE WHEN closed.lowest < r.first_offset THEN closed.lowest ELSE r.first_offset END AS cursor,
           greatest(r.first_offset, r.leased_to, r.cuts[cardinality(r.cuts)], upper(r.done)) AS next_offset,
           coalesce(closed.leased, 0)::integer + coalesce(r.expires_at > clock_timestamp(), false)::integer AS leased,
               r.ready_at, r.served_at AS last_consumed_at
    FROM skep.starts s
    CROSS JOIN LATERAL (SELECT * FROM skep.runs r
                        WHERE r.partition_id = s.partition_id AND r.group_queue_id = s.group_queue_id
                        ORDER BY r.first_offset DESC LIMIT 1) r
    LEFT JOIN LATERAL (SELECT min(c.first_offset) AS lowest,
                              count(*) FILTER (WHERE c.expires_at > clock_timestamp()) AS leased FROM skep.runs c
                       WHERE c.partition_id = s.partition_id AND c.group_queue_id = s.group_queue_id
                         AND c.first_offset < r.first_offset) closed ON true;
COMMENT ON VIEW skep.partition_consumers IS
    'One row per group and partition that it has read: messages below cursor are done, messages from next_offset on '
    'were never leased; leased counts live leases.';

CREATE VIEW skep.leases AS
    SELECT r.lease_id, r.partition_id, r.group_queue_id, r.first_offset, r.leased_to,
           coalesce(r.attempts[1], 1) AS attempt, r.served_at AS leased_at, r.expires_at,
           coalesce(r.done, '{}') AS done, coalesce(r.failed, '{}') AS failed
    FROM skep.runs r WHERE r.lease_id IS NOT NULL;
COMMENT ON VIEW skep.leases IS 'Leases that have not ended, and expired ones whose run was not returned yet.';

-- Returns the cursor of a group in a partition: all messages below it are done. NULL if the group has not read it.
CREATE FUNCTION skep._cursor_of(partition_id bigint, group_queue_id integer) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT c.cursor FROM skep.partition_consumers c WHERE c.partition_id = $1 AND c.group_queue_id = $2
$$;
