-- Wakes consumers in other processes. It is never part of a push: a NOTIFY makes commits wait for one another, so that
-- a client sends one for all its pushes of a moment, in a transaction of its own, which does not have to survive a
-- crash.
CREATE FUNCTION skep.notify(origin text, queues text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    message text := jsonb_build_object('origin', origin, 'queues', queues);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    -- NOTIFY takes less than 8000 bytes; no names means any queue.
    PERFORM pg_notify('skep', CASE WHEN octet_length(message) < 8000 THEN message
                      ELSE jsonb_build_object('origin', origin)::text END);
END $$;
COMMENT ON FUNCTION skep.notify IS
    'Wakes consumers of these queues that wait in other processes. Call it after the push has committed.';
CALL skep._allow('skep_producer', 'notify');
