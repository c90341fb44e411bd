CREATE SCHEMA shop;
CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer text NOT NULL, status text NOT NULL DEFAULT 'new');

-- One partition for each customer: events of a customer's orders arrive in order.
CREATE FUNCTION shop.publish_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO skep.outbox (queue, partition, payload, headers)
    VALUES ('orders', NEW.customer, to_jsonb(NEW), jsonb_build_object('event', lower(TG_OP)));
    RETURN NULL;
END $$;
CREATE TRIGGER publish_order AFTER INSERT OR UPDATE ON shop.orders
    FOR EACH ROW EXECUTE FUNCTION shop.publish_order();

-- From here on the application does not need to know Skep.
INSERT INTO shop.orders VALUES (1, 'ann'), (2, 'bob');

BEGIN;
UPDATE shop.orders SET status = 'paid' WHERE id = 1;
UPDATE shop.orders SET status = 'sent' WHERE id = 1;
COMMIT;

BEGIN;
DELETE FROM shop.orders WHERE id = 2;
INSERT INTO shop.orders VALUES (2, 'bob', 'cancelled');
ROLLBACK;  -- publishes nothing
