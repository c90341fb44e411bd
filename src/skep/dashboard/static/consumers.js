// The consumers of a group: the clients that this server has seen, and all leases.
import { url, withQuery } from "./api.js";
import * as format from "./format.js";
import { html } from "./lib.js";
import { Card, Failure, Table } from "./parts.js";
import { usePoll } from "./poll.js";

const CLIENTS = [
  { key: "address", label: "Client" },
  { key: "subject", label: "Subject", wide: true, show: (row) => row.subject ?? "anonymous" },
  { key: "waiting", label: "Waiting polls", number: true, show: (row) => format.count(row.waiting) },
  { key: "messages", label: "Popped", number: true, show: (row) => format.count(row.messages) },
  { key: "since", label: "First seen", number: true, wide: true, show: (row) => `${format.age(row.since * 1000)} ago` },
  { key: "seen", label: "Last seen", number: true, show: (row) => (row.waiting ? "now" : `${format.age(row.seen * 1000)} ago`) },
];

const LEASES = [
  { key: "lease", label: "Lease", show: (row) => html`<code>${row.lease.slice(0, 8)}</code>` },
  { key: "partition", label: "Partition", show: (row) => `${row.partition}${row.partitions > 1 ? ` and ${format.exact(row.partitions - 1)} more` : ""}` },
  { key: "messages", label: "Not acked", number: true, show: (row) => `${format.count(row.unanswered)} of ${format.count(row.messages)}` },
  { key: "attempt", label: "Attempt", number: true, wide: true },
  { key: "since", label: "Leased", number: true, wide: true, show: (row) => (row.since ? `${format.age(row.since)} ago` : "–") },
  { key: "expires_at", label: "Expires in", number: true, show: (row) => format.remaining(row.expires_at) },
];

export function Consumers({ queue, group }) {
  const { data, error } = usePoll(withQuery(url`api/v1/dashboard/queues/${queue}/members`, { group, limit: 20 }));
  return html`<div class="pair">
    <${Card} title="Clients"><${Failure} error=${error} />
      ${data && html`<p class="hint">Clients that popped from this server in the last 5 minutes. Clients that connect to the database directly appear only in the list of leases.</p>
      <${Table} columns=${CLIENTS} rows=${data.members} id=${(row) => `${row.queue} ${row.address} ${row.subject}`} empty="No client has popped from this server." />`}
    </${Card}>
    <${Card} title="Leases"><${Failure} error=${error} />
      ${data && html`<p class="hint">${summary(data.out)}</p><${Table} columns=${LEASES} rows=${data.out.leases} id=${(row) => row.lease} empty="No active leases." />`}
    </${Card}>
  </div>`;
}

function summary({ total, again }) {
  const leases = `${format.plural(total, "active lease")}. Each lease covers a run of messages in one partition.`;
  return again ? `${leases} ${format.plural(again, "run")} of messages ${again === 1 ? "waits" : "wait"} for redelivery.` : leases;
}
