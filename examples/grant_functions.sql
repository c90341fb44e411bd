-- Let the user app push and write to the outbox, in a database without the roles of Skep.
GRANT USAGE ON SCHEMA skep TO app;
GRANT EXECUTE ON FUNCTION skep.push(jsonb) TO app;  -- many messages, as JSON
GRANT EXECUTE ON FUNCTION  -- one message
    skep.push(text, jsonb, text, text, jsonb, uuid, text, double precision, timestamptz) TO app;
GRANT INSERT (queue, partition, payload, headers, transaction_id, trace_id, producer, delay, deliver_at)
    ON skep.outbox TO app;
