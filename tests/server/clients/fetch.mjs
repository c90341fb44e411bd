// What Queen's JavaScript client sends, by Node's own fetch: JSON headers on every request, connections kept open, `{}` as a body.
const [name, url] = process.argv.slice(2);
const seen = {};

async function ask(method, path, body) {
  const answer = await fetch(url + path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  return { status: answer.status, type: answer.headers.get("content-type"), body: text === "" ? null : JSON.parse(text) };
}

const items = [1, 2, 3].map((data) => ({ queue: name, partition: "Default", payload: { data } }));
seen.configured = await ask("POST", "/api/v1/configure", { queue: name, options: { leaseTime: 300 } });
seen.pushed = await ask("POST", "/api/v1/push", { items });
const pop = `/api/v1/pop/queue/${name}?batch=10&wait=false&timeout=30000`;
seen.popped = await ask("GET", pop);

// Empty answers, many on the same connections: a body after a 204 would be read as the start of the next answer.
seen.empty = [];
for (let round = 0; round < 20; round++) {
  seen.empty.push((await ask("GET", pop)).body?.messages ?? []);
}

const [first, second, third] = seen.popped.body.messages;
const ack = ({ transactionId, partitionId, leaseId }, status) => ({ transactionId, partitionId, leaseId, status, error: null });
seen.renewed = await ask("POST", `/api/v1/lease/${first.leaseId}/extend`, {});
seen.acked = await ask("POST", "/api/v1/ack", { ...ack(first, "completed"), consumerGroup: null });
const acknowledgments = [ack(second, "completed"), ack(third, "completed")];
seen.batch = await ask("POST", "/api/v1/ack/batch", { acknowledgments, consumerGroup: null });
const operations = [{ type: "push", items: [{ queue: name, payload: "from a transaction" }] }];
seen.transaction = await ask("POST", "/api/v1/transaction", { operations, requiredLeases: [] });
seen.bad = await ask("POST", "/api/v1/push", { items: "none" });
seen.unknown = await ask("GET", "/api/v1/nowhere");
seen.preflight = (await fetch(`${url}/api/v1/push`, { method: "OPTIONS" })).headers.get("access-control-allow-origin");

// Fifty at once, as a pool of connections does.
const parked = Array.from({ length: 50 }, () => ask("GET", `/api/v1/pop/queue/${name}-crowd?batch=1&wait=true&timeout=20000&autoAck=true`));
await new Promise((resolve) => setTimeout(resolve, 300));
const crowd = Array.from({ length: 50 }, (_, number) => ({ queue: `${name}-crowd`, partition: String(number), payload: number }));
await ask("POST", "/api/v1/push", { items: crowd });
seen.crowd = (await Promise.all(parked)).flatMap(({ body }) => body.messages.map(({ data }) => data));
seen.deleted = await ask("DELETE", `/api/v1/resources/queues/${encodeURIComponent(name)}`);
console.log(JSON.stringify(seen));
