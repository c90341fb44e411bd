-- Wakes consumers in other processes. It is never part of a push, because a NOTIFY makes commits wait for one another.
-- A client sends one for all its recent pushes, in a separate transaction, which need not survive a crash.
CREATE FUNCTION skep.notify(origin text, queues text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    message text := jsonb_build_object('origin', origin, 'queues', queues);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    -- A NOTIFY payload must be shorter than 8000 bytes; without names it means any queue.
    PERFORM pg_notify('skep', CASE WHEN octet_length(message) < 8000 THEN message
                      ELSE jsonb_build_object('origin', origin)::text END);
END $$;
COMMENT ON FUNCTION skep.notify IS
    'Wakes consumers of these queues that wait in other processes. Call it after the push has committed.';
CALL skep._allow('skep_producer', 'notify');
