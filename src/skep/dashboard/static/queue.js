// One queue: how it moves, how evenly, who reads it, what is kept for whom, and its options.
import { url } from "./api.js";
import { byGroup, Chart, RangePicker } from "./chart.js";
import * as format from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { Options } from "./options.js";
import { Card, Failure, groupLink, lettersLink, messagesLink, Page, Status, Table, Tile } from "./parts.js";
import { usePoll } from "./poll.js";

const ORDERS = [
  ["lag", "most waiting"],
  ["oldest", "slowest: waiting longest"],
  ["rate", "hottest: most pushed now"],
  ["pushed", "most pushed ever"],
  ["kept", "most kept"],
  ["recent", "written last"],
];

export function Queue({ name }) {
  const [seconds, setSeconds] = useState(3600);
  const status = usePoll(url`api/v1/queues/${name}`);
  const trend = usePoll(`${url`api/v1/dashboard/queues/${name}/trend`}?seconds=${seconds}`, 10);
  if (!status.data) return html`<${Page} title=${name}><${Failure} error=${status.error} /></${Page}>`; // one refusal is enough
  const links = html`<a class="button" href=${messagesLink({ queue: name })}>Messages</a><${RangePicker} value=${seconds} onChange=${setSeconds} />`;
  return html`<${Page} title=${name} aside=${links}>
    <${Tiles} queue=${status.data} rows=${trend.data ?? []} />
    <${Trends} rows=${trend.data} />
    <${Partitions} name=${name} />
    <${Holders} name=${name} />
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
    <${Tile} label="Kept" value=${format.count(queue.messages)} note="messages" />
    <${Tile} label="Partitions" value=${format.count(queue.partitions)} note=${queue.options.semantics.replace("_", "/")} />
    <${Tile} label="Groups" value=${format.count(queue.groups)} note="have read it" href="#/groups" />
    <${Tile} label="Dead letters" value=${format.count(queue.dead_letters)} tone=${queue.dead_letters ? "bad" : ""} note="given up" href=${lettersLink({ queue: queue.name })} />
    <${Tile} label="Last push" value=${queue.last_created_at ? format.age(queue.last_created_at) : "never"} note="ago" />
  </div>`;
}

function Trends({ rows }) {
  const charts = useMemo(() => [
    ["Rates", "messages/s", lines(rows ?? [], 2, () => true)],
    ["Lag by group", "messages", lines(rows ?? [], 3, (group) => group !== "")],
    ["Age of the oldest waiting", "seconds", lines(rows ?? [], 4, (group) => group !== "")],
  ], [rows]);
  if (rows === null) return null;
  return html`<div class="charts three">${charts.map(([title, unit, { at, series }]) => html`<${Chart} key=${title} title=${title} unit=${unit} at=${at} series=${series} />`)}</div>`;
}

function lines(rows, column, wanted) {
  const { at, groups } = byGroup(rows, column, wanted);
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
    ${data && html`<p class="told">${skew(data)}</p><${Table} columns=${columns(name, group, data)} rows=${data.rows} id=${(row) => row.partition} empty="There is no partition yet." />`}
  </${Card}>`;
}

function skew({ partitions, pushed, top_pushed: top, idle }) {
  if (!partitions || !pushed) return `${format.plural(partitions, "partition")}.`;
  const share = Math.round((100 * top) / pushed);
  const times = ((top * partitions) / pushed).toFixed(1);
  const empty = idle ? ` ${format.exact(idle)} keep nothing.` : "";
  return `${format.plural(partitions, "partition")}; the busiest got ${share} % of all messages, ${times} times the average.${empty}`;
}

function Share({ percent }) {
  return html`<span class="share"><span class="bar"><i style=${{ width: `${percent}%` }}></i></span>${percent.toFixed(percent < 10 ? 1 : 0)} %</span>`;
}

function columns(queue, group, { pushed }) {
  return [
    { key: "partition", label: "Partition", show: (row) => html`<a href=${messagesLink({ queue, partition: row.partition })}>${row.partition}</a>` },
    { key: "lag", label: "Waiting", number: true, show: (row) => format.count(row.lag) },
    { key: "oldest", label: "For", number: true, show: (row) => (row.lag ? format.duration(row.seconds) : "–") },
    ...(group === null ? [{ key: "behind", label: "Furthest behind", wide: true, show: (row) => (row.behind ? html`<a href=${groupLink(row.behind, queue)}>${format.groupName(row.behind)}</a>` : "nobody") }] : []),
    { key: "leased", label: "Leases", number: true, wide: true, show: (row) => format.count(row.leased) },
    { key: "rate", label: "Pushed/s", number: true, show: (row) => format.rate(row.rate) },
    { key: "kept", label: "Kept", number: true, wide: true, show: (row) => format.count(row.kept) },
    { key: "floor", label: "From offset", number: true, wide: true, show: (row) => format.count(row.first_offset) },
    { key: "share", label: "Share", wide: true, show: (row) => html`<${Share} percent=${(100 * row.pushed) / Math.max(pushed, 1)} />` },
    { key: "last", label: "Last push", number: true, wide: true, show: (row) => (row.last_created_at ? `${format.age(row.last_created_at)} ago` : "never") },
  ];
}

const HOLDERS = (queue) => [
  { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, queue)}>${format.groupName(row.group)}</a>` },
  { key: "status", label: "Status", show: (row) => html`<${Status} value=${row.status} />` },
  { key: "floors", label: "Holds back", show: (row) => (row.floors ? format.plural(row.floors, "partition") : row.status === "DEAD" ? "nothing: it is dead" : "nothing: others do") },
  { key: "pending", label: "Kept for it", number: true, show: (row) => format.count(row.pending) },
  { key: "oldest", label: "Oldest", number: true, wide: true, show: (row) => format.age(row.oldest_at) },
];

function told({ archive, kept_since: since }) {
  const parts = ["What a group has not done is not deleted as completed. Who stands furthest back in a partition holds it."];
  if (since) parts.push(`The oldest message that is kept is ${format.age(since)} old.`);
  if (archive) parts.push(`Retention waits for the archive, which has still to take ${format.plural(archive.pending, "message")} in ${format.plural(archive.partitions, "partition")}.`);
  return parts.join(" ");
}

function Holders({ name }) {
  const { data, error } = usePoll(url`api/v1/dashboard/queues/${name}/holders`, 10);
  return html`<${Card} title="Retention floor">
    <${Failure} error=${error} />
    ${data && html`<p class="told">${told(data)}</p><${Table} columns=${HOLDERS(name)} rows=${data.groups} id=${(row) => row.group} empty="Every group is done with everything: nobody holds anything back." />`}
  </${Card}>`;
}
