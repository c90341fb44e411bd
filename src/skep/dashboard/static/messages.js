// Messages by queue and partition, from an offset or before a time, and the details of one message.
import { url, withQuery } from "./api.js";
import * as format from "./format.js";
import { html, useState } from "./lib.js";
import { Card, Failure, groupLink, messagesLink, Page, queueLink, Status, Table, When } from "./parts.js";
import { usePoll } from "./poll.js";

const SIZE = 50;
const BEGINNING = "1970-01-01T00:00:00Z";

export function Messages({ query }) {
  const { queue = "", partition = "", offset = "", before = "", id = "" } = query;
  return html`<${Page} title="Messages">
    <${Finder} query=${query} />
    ${id && html`<${Message} id=${id} query=${query} />`}
    ${queue && (offset === "" ? html`<${ByTime} queue=${queue} partition=${partition} before=${before} query=${query} />` : html`<${ByOffset} queue=${queue} partition=${partition || "Default"} offset=${Number(offset)} query=${query} />`)}
    ${!queue && !id && html`<p class="empty">Select a queue.</p>`}
  </${Page}>`;
}

function Finder({ query }) {
  const [queue, setQueue] = useState(query.queue ?? "");
  const { data } = usePoll(withQuery("api/v1/dashboard/queues", { search: queue, limit: 20 }), 30);
  const submit = (event) => {
    event.preventDefault();
    const given = [...new FormData(event.target)].filter(([, value]) => value !== "");
    location.hash = messagesLink(given);
  };
  return html`<${Card}><form class="finder" onSubmit=${submit}>
    <label>Queue<input name="queue" list="queues" required autocomplete="off" value=${queue} onInput=${(event) => setQueue(event.target.value)} /></label>
    <datalist id="queues">${(data?.queues ?? []).map((each) => html`<option value=${each.name}></option>`)}</datalist>
    <label>Partition<input name="partition" placeholder="any" autocomplete="off" defaultValue=${query.partition ?? ""} /></label>
    <label>From offset<input name="offset" type="number" min="0" placeholder="newest first" defaultValue=${query.offset ?? ""} /></label>
    <label>Before time<input name="before" type="datetime-local" step="1" defaultValue=${query.before ?? ""} /></label>
    <button type="submit" class="primary">Show</button>
  </form></${Card}>`;
}

const offsetLink = (query) => (row) => html`<a href=${messagesLink({ ...query, id: row.id })}>${row.offset}</a>`;

function ByTime({ queue, partition, before, query }) {
  const [skip, setSkip] = useState(0);
  const to = before ? new Date(before).toISOString() : "";
  const { data, error } = usePoll(withQuery("api/v1/messages", { queue, partition, from: BEGINNING, to, limit: SIZE, offset: skip }), 5);
  const columns = [
    { key: "offset", label: "Offset", number: true, show: offsetLink(query) },
    { key: "partition", label: "Partition", show: (row) => row.partition },
    { key: "createdAt", label: "Pushed", show: (row) => html`<${When} at=${row.createdAt} />` },
    { key: "status", label: "Status", show: (row) => html`<${Status} value=${row.status} />` },
    { key: "groups", label: "Completed by", wide: true, show: (row) => (row.busStatus.totalGroups ? `${row.busStatus.consumedBy} of ${format.plural(row.busStatus.totalGroups, "group")}` : "–") },
    { key: "transactionId", label: "Transaction id", wide: true, show: (row) => html`<code>${row.transactionId}</code>` },
  ];
  const rows = data?.messages ?? [];
  return html`<${Card} title="Messages, newest first">
    <${Failure} error=${error} />
    ${data && html`<${Table} columns=${columns} rows=${rows} id=${(row) => row.id} empty="No messages." />
    <p class="pager">
      <button type="button" disabled=${skip === 0} onClick=${() => setSkip(Math.max(0, skip - SIZE))}>Newer</button>
      <button type="button" disabled=${rows.length < SIZE} onClick=${() => setSkip(skip + SIZE)}>Older</button>
    </p>`}
  </${Card}>`;
}

function ByOffset({ queue, partition, offset, query }) {
  const { data, error } = usePoll(withQuery(url`api/v1/queues/${queue}/messages`, { partition, offset, limit: SIZE }), 5);
  const columns = [
    { key: "offset", label: "Offset", number: true, show: offsetLink(query) },
    { key: "created_at", label: "Pushed", show: (row) => html`<${When} at=${row.created_at} />` },
    { key: "completed", label: "Completed by", show: (row) => `${row.completed_consumer_groups} of ${format.plural(row.required_consumer_groups, "group")}` },
    { key: "pending_groups", label: "Pending groups", show: (row) => row.pending_groups.map(format.groupName).join(", ") || "none" },
  ];
  const rows = data ?? [];
  const page = (first) => messagesLink({ ...without(query, "id"), offset: first });
  return html`<${Card} title=${`Messages of partition ${partition} from offset ${offset}`}>
    <${Failure} error=${error} />
    ${data && html`<${Table} columns=${columns} rows=${rows} id=${(row) => row.offset} empty="No messages at or after this offset." />
    <p class="pager">
      ${offset > 0 && html`<a class="button" href=${page(Math.max(0, offset - SIZE))}>Earlier</a>`}
      ${rows.length === SIZE && html`<a class="button" href=${page(rows.at(-1).offset + 1)}>Later</a>`}
    </p>`}
  </${Card}>`;
}

function without(query, name) {
  return Object.fromEntries(Object.entries(query).filter(([key]) => key !== name));
}

function Message({ id, query }) {
  const { data, error } = usePoll(url`api/v1/messages/${id}/${id}`, 5, { exact: true });
  if (!data) return html`<${Card} title="Message"><${Failure} error=${error} /></${Card}>`;
  return html`<${Card} title=${`Message at offset ${data.offset} of partition ${data.partition}`} aside=${html`<a class="button" href=${messagesLink(without(query, "id"))}>Close</a>`}>
    <dl class="facts">
      <div><dt>Queue</dt><dd><a href=${queueLink(data.queue)}>${data.queue}</a></dd></div>
      <div><dt>Status</dt><dd><${Status} value=${data.status} /></dd></div>
      <div><dt>Pushed</dt><dd>${format.time(data.createdAt)}</dd></div>
      <div><dt>Retries</dt><dd>${data.retryCount}</dd></div>
      <div><dt>Message id</dt><dd><code>${data.id}</code></dd></div>
      <div><dt>Transaction id (dedup key)</dt><dd><code>${data.transactionId}</code></dd></div>
      ${data.producerSub && html`<div><dt>Producer</dt><dd>${data.producerSub}</dd></div>`}
      ${data.traceId && html`<div><dt>Trace id</dt><dd><code>${data.traceId}</code></dd></div>`}
      ${data.errorMessage && html`<div><dt>Error</dt><dd class="bad">${data.errorMessage}</dd></div>`}
    </dl>
    <h3>Payload${data.isEncrypted ? " (stored encrypted)" : ""}</h3><pre class="payload" tabindex="0">${format.pretty(data.payload)}</pre>
    ${data.headers && html`<h3>Headers</h3><pre class="payload" tabindex="0">${format.pretty(data.headers)}</pre>`}
    <h3>Groups</h3><${MessageGroups} id=${id} queue=${data.queue} />
    <h3>Traces</h3><${Traces} id=${id} transaction=${data.transactionId} />
  </${Card}>`;
}

function MessageGroups({ id, queue }) {
  const { data, error } = usePoll(url`api/v1/messages/${id}/groups`);
  const columns = [
    { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, queue)}>${format.groupName(row.group)}</a>` },
    { key: "status", label: "Group status", show: (row) => html`<${Status} value=${row.status} />` },
    { key: "state", label: "Message status", show: (row) => html`<${Status} value=${row.state} />` },
    { key: "required", label: "Pending", show: (row) => (row.required && !row.completed ? "yes" : "no") },
  ];
  return html`<${Failure} error=${error} />${data && html`<${Table} columns=${columns} rows=${data} id=${(row) => row.group} empty="No group reads this queue." />`}`;
}

function Traces({ id, transaction }) {
  const { data, error } = usePoll(url`api/v1/traces/${id}/${transaction}`);
  const columns = [
    { key: "created_at", label: "Time", show: (row) => format.time(row.created_at) },
    { key: "consumer_group", label: "Group", show: (row) => format.groupName(row.consumer_group) },
    { key: "event_type", label: "Event" },
    { key: "data", label: "Data", show: (row) => html`<code>${JSON.stringify(row.data)}</code>` },
  ];
  return html`<${Failure} error=${error} />${data && html`<${Table} columns=${columns} rows=${data.traces} id=${(row) => row.id} empty="No traces of this message." />`}`;
}
