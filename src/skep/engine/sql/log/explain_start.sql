CREATE FUNCTION skep.explain_start(group_name text, queue text, partition text DEFAULT 'Default')
RETURNS TABLE (subscription_id bigint, scope text, mode text, start_at timestamptz, requested_offset bigint,
               subscribed_at timestamptz, start_offset bigint, has_started boolean)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    effective_group text := coalesce(
        (SELECT skep._group_of(q.semantics, explain_start.group_name) FROM skep.queues q
         WHERE q.name = explain_start.queue), explain_start.group_name);
    decides         skep.subscriptions := skep._covering_subscription(effective_group, explain_start.queue,
                                                                      explain_start.partition, NULL, NULL);
BEGIN
    RETURN QUERY
    SELECT decides.id,
           CASE WHEN decides.partition IS NOT NULL THEN 'partition' WHEN decides.queue IS NOT NULL THEN 'queue'
                WHEN decides.namespace IS NOT NULL AND decides.task IS NOT NULL THEN 'namespace and task'
                WHEN decides.namespace IS NOT NULL THEN 'namespace' WHEN decides.task IS NOT NULL THEN 'task' END,
           decides.mode, decides.start_at, decides.start_offset, decides.created_at,
           coalesce(read.start_offset, unread.start_offset), read.start_offset IS NOT NULL
    FROM (SELECT) one
    LEFT JOIN LATERAL (SELECT p.id, p.queue_id FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
                       WHERE q.name = explain_start.queue AND p.name = explain_start.partition LIMIT 1) p ON true
    LEFT JOIN LATERAL (SELECT s.start_offset FROM skep.group_queues g
                       JOIN skep.starts s ON s.partition_id = p.id AND s.group_queue_id = g.id
                       WHERE g.group_name = effective_group AND g.queue_id = p.queue_id LIMIT 1) read ON true
    LEFT JOIN LATERAL (SELECT s.start_offset FROM skep._starting_offsets(effective_group, p.queue_id, ARRAY[p.id]) s
                       WHERE read.start_offset IS NULL AND decides.id IS NOT NULL) unread ON true;
END $$;
COMMENT ON FUNCTION skep.explain_start IS
    'Returns the subscription that decides where a group starts in a partition: its scope, mode, time and offset, and '
    'the offset at which the group starts or has started.';
CALL skep._allow('skep_admin', 'explain_start');
