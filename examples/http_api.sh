# Skep's own HTTP API: push, pop, acknowledge.
queue=localhost:6632/api/v1/queues/invoices
curl "$queue/messages" -d '{"messages": [{"payload": {"id": 1}, "partition": "customer-7"}]}'
popped=$(curl "$queue/pop" -d '{"group": "billing", "wait": 5}')
echo "$popped"
lease=$(echo "$popped" | sed 's/.*"leases":\["\([^"]*\)".*/\1/')
curl "localhost:6632/api/v1/leases/$lease/ack" -d '{}'
