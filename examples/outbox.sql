CREATE TABLE invoices (id bigint PRIMARY KEY, customer text, total numeric);

BEGIN;
INSERT INTO invoices VALUES (7, 'ann', 99.50);
INSERT INTO skep.outbox (queue, partition, payload) VALUES ('invoices', 'ann', '{"id": 7}');
COMMIT;  -- published now, with the row

BEGIN;
INSERT INTO invoices VALUES (8, 'bob', 12.00);
INSERT INTO skep.outbox (queue, partition, payload) VALUES ('invoices', 'bob', '{"id": 8}');
ROLLBACK;  -- neither

SELECT payload FROM skep.pop('invoices', batch => 10);
