// Who consumes for a group: its members as far as this server has seen them, and what is leased, whoever holds it.
import { url, withQuery } from "./api.js";
import * as format from "./format.js";
import { html } from "./lib.js";
import { Card, Failure, Table } from "./parts.js";
import { usePoll } from "./poll.js";

const MEMBERS = [
  { key: "address", label: "Client" },
  { key: "subject", label: "Who", wide: true, show: (row) => row.subject ?? "not asked" },
  { key: "waiting", label: "Polls waiting", number: true, show: (row) => format.count(row.waiting) },
  { key: "messages", label: "Messages taken", number: true, show: (row) => format.count(row.messages) },
  { key: "since", label: "First seen", number: true, wide: true, show: (row) => `${format.age(row.since * 1000)} ago` },
  { key: "seen", label: "Last seen", number: true, show: (row) => (row.waiting ? "now" : `${format.age(row.seen * 1000)} ago`) },
];

const LEASES = [
  { key: "lease", label: "Lease", show: (row) => html`<code>${row.lease.slice(0, 8)}</code>` },
  { key: "partition", label: "Partition", show: (row) => `${row.partition}${row.partitions > 1 ? ` and ${format.exact(row.partitions - 1)} more` : ""}` },
  { key: "messages", label: "Unanswered", number: true, show: (row) => `${format.count(row.unanswered)} of ${format.count(row.messages)}` },
  { key: "attempt", label: "Attempt", number: true, wide: true },
  { key: "since", label: "Taken", number: true, wide: true, show: (row) => (row.since ? `${format.age(row.since)} ago` : "–") },
  { key: "expires_at", label: "Ends in", number: true, show: (row) => format.left(row.expires_at) },
];

export function Consumers({ queue, group }) {
  const { data, error } = usePoll(withQuery(url`api/v1/dashboard/queues/${queue}/members`, { group, limit: 20 }));
  return html`<div class="pair">
    <${Card} title="Members"><${Failure} error=${error} />
      ${data && html`<p class="told">Clients of this server that popped in the last five minutes. Who speaks to the database directly is seen by his leases.</p>
      <${Table} columns=${MEMBERS} rows=${data.members} id=${(row) => `${row.queue} ${row.address} ${row.subject}`} empty="Nobody has popped here." />`}
    </${Card}>
    <${Card} title="Leases"><${Failure} error=${error} />
      ${data && html`<p class="told">${told(data.out)}</p><${Table} columns=${LEASES} rows=${data.out.leases} id=${(row) => row.lease} empty="Nothing is leased now." />`}
    </${Card}>
  </div>`;
}

function told({ total, again }) {
  const out = `${format.plural(total, "lease")} ${total === 1 ? "is" : "are"} out, each what one pop has got.`;
  return again ? `${out} ${format.plural(again, "run")} of messages ${again === 1 ? "waits" : "wait"} to come again.` : out;
}
