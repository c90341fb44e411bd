-- Retries of failed messages: the policy of the group, and runs with messages that failed alone. The verdict is in
-- ack.sql.

-- Returns the number of seconds that a run waits after its nth failure: retry_delay, doubled each time up to
-- max_retry_delay, varied by the jitter. Tiny values count as 0, because their product would be an error (underflow).
CREATE FUNCTION skep._retry_seconds(policy skep.policy, attempt integer) RETURNS double precision
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    policy.retry_delay := CASE WHEN policy.retry_delay < 1e-6 THEN 0 ELSE policy.retry_delay END;
    policy.retry_jitter := CASE WHEN policy.retry_jitter < 1e-6 THEN 0 ELSE policy.retry_jitter END;
    policy.max_retry_delay := CASE WHEN policy.max_retry_delay < 1e-6 THEN 0 ELSE policy.max_retry_delay END;
    RETURN least(policy.retry_delay * 2 ^ least(attempt - 1, 30), greatest(policy.retry_delay, policy.max_retry_delay))
           * (1 + policy.retry_jitter * (2 * random() - 1));
END $$;

-- Returns the policy with the retry options of the group instead of the queue's: each option comes from the most
-- specific subscription that has it. It is called for failures only.
CREATE FUNCTION skep._retry_policy(policy skep.policy) RETURNS skep.policy
LANGUAGE plpgsql STABLE AS $$
DECLARE
    own record;
BEGIN
    FOR own IN
        SELECT s.retry_limit, s.retry_delay, s.max_retry_delay, s.retry_jitter
        FROM skep.queues q CROSS JOIN skep.subscriptions s
        WHERE q.id = policy.queue_id AND s.group_name = policy.group_name AND s.status <> 'CANCELLED'
          AND num_nonnulls(s.retry_limit, s.retry_delay, s.max_retry_delay, s.retry_jitter) > 0
          AND coalesce(s.queue, '') = ANY (ARRAY['', policy.queue])  -- by the index, because a group may have many
          AND coalesce(s.partition, '') = ANY (ARRAY['', policy.partition])
          AND (s.queue IS NOT NULL
               OR (s.namespace IS NULL OR s.namespace = q.namespace) AND (s.task IS NULL OR s.task = q.task))
        ORDER BY s.partition IS NOT NULL, s.queue IS NOT NULL, s.namespace IS NOT NULL, s.task IS NOT NULL
    LOOP
        policy.retry_limit := coalesce(own.retry_limit, policy.retry_limit);
        policy.retry_delay := coalesce(own.retry_delay, policy.retry_delay);
        policy.max_retry_delay := coalesce(own.max_retry_delay, policy.max_retry_delay);
        policy.retry_jitter := coalesce(own.retry_jitter, policy.retry_jitter);
    END LOOP;
    RETURN policy;
END $$;

-- Cuts a run that was leased around messages that failed alone: each of them is delivered by itself, at the next
-- attempt, and the messages between them at the same attempt as before. back: all messages that are delivered again.
CREATE FUNCTION skep._cut_around(r skep.runs, back int8multirange, failed int8multirange, attempt integer)
RETURNS skep.runs LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    parts record;
BEGIN
    SELECT array_agg(part.ends ORDER BY part.ends) AS cuts, array_agg(part.attempt ORDER BY part.ends) AS attempts
    INTO parts
    FROM (SELECT o + 1 AS ends, _cut_around.attempt + 1 AS attempt
          FROM unnest(failed) AS range CROSS JOIN generate_series(lower(range), upper(range) - 1) AS o
          UNION ALL
          SELECT upper(range), _cut_around.attempt
          FROM unnest(int8multirange(int8range(r.first_offset, r.leased_to)) - failed) AS range
          WHERE range && back) part;
    r.cuts := parts.cuts || r.cuts;
    r.attempts := parts.attempts || r.attempts;
    RETURN r;
END $$;

-- Stores a closed run with messages that failed alone as several runs, so that the other messages do not wait for the
-- retry.
CREATE FUNCTION skep._write_parts(row_id tid, r skep.runs, stamp timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    last_attempt integer := (SELECT max(n) FROM unnest(r.attempts) AS n);  -- of those that failed
    part skep.runs;
    rest skep.runs := r;
BEGIN
    LOOP
        part := rest;
        part.end_offset := coalesce(rest.cuts[1], rest.end_offset);
        part.cuts := rest.cuts[:1]; part.attempts := rest.attempts[:1];
        part.done := nullif(rest.done * int8multirange(int8range(rest.first_offset, part.end_offset)), '{}');
        IF part.attempts[1] < last_attempt THEN
            part.ready_at := stamp - interval '100 milliseconds';
        END IF;
        IF part.first_offset = r.first_offset THEN
            PERFORM skep._write_run(row_id, part);
        ELSE
            INSERT INTO skep.runs VALUES (part.*);
        END IF;
        rest := skep._move_run(rest, part.end_offset);
        EXIT WHEN rest.first_offset >= rest.end_offset;
    END LOOP;
END $$;
