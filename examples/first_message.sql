SELECT * FROM skep.push('orders', '{"id": 1}');
SELECT payload, lease FROM skep.pop('orders') \gset
\echo got :payload
SELECT skep.ack(:'lease');
