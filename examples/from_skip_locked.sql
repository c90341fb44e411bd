-- From a table of jobs that workers lock with SKIP LOCKED to a queue. No job is lost, none is done twice.
BEGIN;

-- From now on a new job is a message. One partition for each customer keeps the jobs of a customer in order.
CREATE FUNCTION forward_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.outbox (queue, partition, payload, transaction_id)
    VALUES ('jobs', NEW.customer, NEW.payload, 'job-' || NEW.id);
    RETURN NULL;  -- the row is not stored
END $$;
CREATE TRIGGER forward_job BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION forward_job();

-- Move the waiting jobs. Other sessions cannot insert until the COMMIT. Jobs that a worker has locked stay in the table.
WITH waiting AS (
    SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM jobs USING waiting WHERE jobs.id = waiting.id RETURNING jobs.*
)
INSERT INTO skep.outbox (queue, partition, payload, transaction_id)
SELECT 'jobs', customer, payload, 'job-' || id FROM taken ORDER BY id;

COMMIT;

SELECT count(*) AS in_hand FROM jobs;
