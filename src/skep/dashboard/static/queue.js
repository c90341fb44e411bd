// One queue: rates, lag by group, partitions, the groups that hold back retention, and options.
import { url } from "./api.js";
import { byGroup, Chart, RangePicker } from "./chart.js";
import * as format from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { Options } from "./options.js";
import { Card, deadLettersLink, Failure, groupLink, messagesLink, Page, Status, Table, Tile, TIME_LAG } from "./parts.js";
import { usePoll } from "./poll.js";

const ORDERS = [
  ["lag", "highest lag"],
  ["oldest", "highest time lag"],
  ["rate", "highest push rate"],
  ["pushed", "most messages pushed"],
  ["kept", "most messages stored"],
  ["recent", "latest push"],
];

export function Queue({ name }) {
  const [seconds, setSeconds] = useState(3600);
  const status = usePoll(url`api/v1/queues/${name}`);
  const trend = usePoll(`${url`api/v1/dashboard/queues/${name}/trend`}?seconds=${seconds}`, 10);
  if (!status.data) return html`<${Page} title=${name}><${Failure} error=${status.error} /></${Page}>`; // one error message is enough
  const links = html`<a class="button" href=${messagesLink({ queue: name })}>Messages</a><${RangePicker} value=${seconds} onChange=${setSeconds} />`;
  return html`<${Page} title=${name} aside=${links}>
    <${Tiles} queue=${status.data} rows=${trend.data ?? []} />
    <${Trends} rows=${trend.data} />
    <${Partitions} name=${name} />
    <${RetentionHolders} name=${name} />
    <${Options} queue=${status.data} reload=${status.reload} />
  </${Page}>`;
}

function Tiles({ queue, rows }) {
  const last = rows.filter((row) => row[0] === "").at(-1);
  const groups = new Map(rows.filter((row) => row[0] !== "").map((row) => [row[0], row]));
  const done = [...groups.values()].reduce((sum, row) => sum + (row[2] ?? 0), 0);
  return html`<div class="tiles">
    <${Tile} label="Pushed" value=${format.rate(last?.[2])} note="messages/s" />
    <${Tile} label="Acked" value=${format.rate(last ? done : null)} note="messages/s, all groups" />
    <${Tile} label="Stored" value=${format.count(queue.messages)} note="messages" />
    <${Tile} label="Partitions" value=${format.count(queue.partitions)} note=${queue.options.semantics.replace("_", "/")} />
    <${Tile} label="Groups" value=${format.count(queue.groups)} note="have read this queue" href="#/groups" />
    <${Tile} label="Dead letters" value=${format.count(queue.dead_letters)} tone=${queue.dead_letters ? "bad" : ""} note="failed messages" href=${deadLettersLink({ queue: queue.name })} />
    <${Tile} label="Last push" value=${queue.last_created_at ? format.age(queue.last_created_at) : "never"} note=${queue.last_created_at ? "ago" : ""} />
  </div>`;
}

function Trends({ rows }) {
  const charts = useMemo(() => [
    ["Push and ack rates", "messages/s", seriesByGroup(rows ?? [], 2, () => true)],
    ["Lag by group", "messages", seriesByGroup(rows ?? [], 3, (group) => group !== "")],
    ["Time lag by group", "seconds", seriesByGroup(rows ?? [], 4, (group) => group !== ""), TIME_LAG],
  ], [rows]);
  if (rows === null) return null;
  return html`<div class="charts three">${charts.map(([title, unit, { at, series }, hint]) => html`<${Chart} key=${title} title=${title} hint=${hint} unit=${unit} at=${at} series=${series} />`)}</div>`;
}

function seriesByGroup(rows, column, includes) {
  const { at, groups } = byGroup(rows, column, includes);
  return { at: groups.size ? at : [], series: [...groups].map(([group, values]) => ({ label: group === "" ? "pushed" : format.groupName(group), values })) };
}

export function Partitions({ name, group = null }) {
  const [sort, setSort] = useState("lag");
  const query = new URLSearchParams({ sort, limit: 20, ...(group === null ? {} : { group }) });
  const { data, error } = usePoll(`${url`api/v1/dashboard/queues/${name}/partitions`}?${query}`, 10);
  const picker = html`<select aria-label="Order of partitions" value=${sort} onChange=${(event) => setSort(event.target.value)}>
    ${ORDERS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
  </select>`;
  return html`<${Card} title="Partitions" aside=${picker}>
    <${Failure} error=${error} />
    ${data && html`<p class="hint">${skew(data)}</p><${Table} columns=${columns(name, group, data)} rows=${data.rows} id=${(row) => row.partition} empty="No partitions yet." />`}
  </${Card}>`;
}

function skew({ partitions, pushed, top_pushed: top, idle }) {
  if (!partitions || !pushed) return `${format.plural(partitions, "partition")}.`;
  const share = Math.round((100 * top) / pushed);
  const times = ((top * partitions) / pushed).toFixed(1);
  const empty = idle ? ` ${format.exact(idle)} ${idle === 1 ? "is" : "are"} empty.` : "";
  return `${format.plural(partitions, "partition")}. The largest received ${share} % of all messages, ${times} times the average.${empty}`;
}

function Share({ percent }) {
  return html`<span class="share"><span class="bar"><i style=${{ width: `${percent}%` }}></i></span>${percent.toFixed(percent < 10 ? 1 : 0)} %</span>`;
}

function columns(queue, group, { pushed }) {
  return [
    { key: "partition", label: "Partition", show: (row) => html`<a href=${messagesLink({ queue, partition: row.partition })}>${row.partition}</a>` },
    { key: "lag", label: "Lag", number: true, show: (row) => format.count(row.lag) },
    { key: "oldest", label: "Time lag", hint: TIME_LAG, number: true, show: (row) => (row.lag ? format.duration(row.seconds) : "–") },
    ...(group === null ? [{ key: "behind", label: "Slowest group", wide: true, show: (row) => (row.behind ? html`<a href=${groupLink(row.behind, queue)}>${format.groupName(row.behind)}</a>` : "–") }] : []),
    { key: "leased", label: "Leases", number: true, wide: true, show: (row) => format.count(row.leased) },
    { key: "rate", label: "Pushed/s", number: true, show: (row) => format.rate(row.rate) },
    { key: "kept", label: "Stored", number: true, wide: true, show: (row) => format.count(row.kept) },
    { key: "first_offset", label: "First offset", number: true, wide: true, show: (row) => format.count(row.first_offset) },
    { key: "share", label: "Share", wide: true, show: (row) => html`<${Share} percent=${(100 * row.pushed) / Math.max(pushed, 1)} />` },
    { key: "last", label: "Last push", number: true, wide: true, show: (row) => (row.last_created_at ? `${format.age(row.last_created_at)} ago` : "never") },
  ];
}

const HOLDERS = (queue) => [
  { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, queue)}>${format.groupName(row.group)}</a>` },
  { key: "status", label: "Status", show: (row) => html`<${Status} value=${row.status} />` },
  { key: "floors", label: "Holds back", show: (row) => (row.floors ? format.plural(row.floors, "partition") : row.status === "DEAD" ? "none (dead)" : "none") },
  { key: "pending", label: "Pending", number: true, show: (row) => format.count(row.pending) },
  { key: "oldest", label: "Oldest pending", number: true, wide: true, show: (row) => format.age(row.oldest_at) },
];

function retentionSummary({ archive, kept_since: since }) {
  const parts = ["Retention of completed messages waits in each partition for the group with the lowest cursor."];
  if (since) parts.push(`The oldest stored message is ${format.age(since)} old.`);
  if (archive) parts.push(`Retention also waits for the archive: ${format.plural(archive.pending, "message")} in ${format.plural(archive.partitions, "partition")} not archived yet.`);
  return parts.join(" ");
}

function RetentionHolders({ name }) {
  const { data, error } = usePoll(url`api/v1/dashboard/queues/${name}/holders`, 10);
  return html`<${Card} title="Retention by group">
    <${Failure} error=${error} />
    ${data && html`<p class="hint">${retentionSummary(data)}</p><${Table} columns=${HOLDERS(name)} rows=${data.groups} id=${(row) => row.group} empty="No group holds back retention: every group has completed all messages." />`}
  </${Card}>`;
}
