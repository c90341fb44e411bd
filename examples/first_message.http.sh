curl localhost:6632/api/v1/push -d '{"items": [{"queue": "orders", "payload": {"id": 1}}]}'
curl 'localhost:6632/api/v1/pop/queue/orders?wait=true&autoAck=true'
