// The overview: warnings first, then the current numbers, then the charts.
import { Chart, RangePicker } from "./chart.js";
import * as format from "./format.js";
import { html, useMemo, useRef, useState } from "./lib.js";
import { Card, Failure, groupLink, Page, queueLink, Status, Table, Tile, TIME_LAG } from "./parts.js";
import { usePoll } from "./poll.js";

const MAX_TIME_LAG = 300; // seconds
const MAX_TRANSACTION_AGE = 300; // seconds: an open transaction keeps vacuum from removing dead rows
const MAX_SAMPLE_AGE = 60; // seconds

export function Overview() {
  const [seconds, setSeconds] = useState(3600);
  const overview = usePoll("api/v1/dashboard/overview");
  const trend = usePoll(`api/v1/dashboard/trend?seconds=${seconds}&points=90`, 10);
  const database = usePoll("api/v1/dashboard/database");
  const maintenance = usePoll("api/v1/system/maintenance", 10);
  const popped = usePopRate();
  const now = overview.data;
  return html`<${Page} title="Overview" aside=${html`<${RangePicker} value=${seconds} onChange=${setSeconds} />`}>
    <${Failure} error=${overview.error} />
    ${now && html`<${Health} warnings=${warningsOf(now, database.data, maintenance.data)} now=${now} />`}
    ${now && html`<div class="tiles">
      <${Tile} label="Pushed" value=${format.rate(now.pushed)} note="messages/s" />
      <${Tile} label="Popped" value=${format.rate(popped)} note="messages/s, this server" />
      <${Tile} label="Acked" value=${format.rate(now.done)} note="messages/s, all groups" />
      <${Tile} label="Lag" value=${format.count(now.lag)} note=${`messages, ${format.plural(now.leased, "active lease")}`} href="#/groups" />
      <${TimeLagTile} slowest=${now.worst[0]} />
      <${Tile} label="Dead letters" value=${format.count(now.dead_letters)} tone=${now.dead_letters ? "bad" : ""} note="failed messages" href="#/dead-letters" />
      <${Tile} label="Queues" value=${format.count(now.queues)} note=${`${format.count(now.kept)} messages stored`} href="#/queues" />
      <${DatabaseTiles} database=${database} />
    </div>`}
    <${Trends} rows=${trend.data} />
    ${now && html`<${Card} title="Groups with the highest time lag"><${SlowestGroups} rows=${now.worst} /></${Card}>`}
  </${Page}>`;
}

function TimeLagTile({ slowest }) {
  if (!slowest) return html`<${Tile} label="Time lag" value=${format.duration(0)} note="no pending messages" />`;
  const note = `${format.groupName(slowest.group)} on ${slowest.queue}`;
  const tone = slowest.seconds > MAX_TIME_LAG ? "warn" : "";
  return html`<${Tile} label="Time lag" value=${format.duration(slowest.seconds)} tone=${tone} note=${note} href=${groupLink(slowest.group, slowest.queue)} />`;
}

// The growth of the server's pop counter between two polls. The second poll follows after a second.
function usePopRate() {
  const before = useRef(null);
  const [value, setValue] = useState(null);
  const { data } = usePoll("metrics", value === null ? 1 : 5);
  const [total, clock] = [data?.messages.popped, data?.uptime];
  if (total !== undefined && before.current?.clock !== clock) {
    const old = before.current;
    before.current = { total, clock };
    if (old && clock > old.clock) setValue(Math.max(0, total - old.total) / (clock - old.clock));
  }
  return value;
}

function warningsOf(now, database, maintenance) {
  const warnings = [];
  for (const slow of now.worst.filter((each) => each.seconds > MAX_TIME_LAG).slice(0, 3)) {
    const group = `${format.groupName(slow.group)} on ${slow.queue} is ${slow.status === "PAUSED" ? "paused" : "behind"}`;
    const backlog = `${format.plural(slow.lag, "pending message")}, the oldest is ${format.duration(slow.seconds)} old`;
    warnings.push([groupLink(slow.group, slow.queue), `${group}: ${backlog}.`]);
  }
  const dead = now.groups.DEAD;
  if (dead) warnings.push(["#/groups?status=DEAD", `${format.plural(dead, "group")} ${dead === 1 ? "is" : "are"} dead (no heartbeat). Retention does not wait for ${dead === 1 ? "it" : "them"}.`]);
  if (now.dead_letters) warnings.push(["#/dead-letters", `${format.plural(now.dead_letters, "dead letter")}.`]);
  const open = database?.oldest_transaction;
  if (open && open.seconds > MAX_TRANSACTION_AGE) warnings.push(["#/system", `A transaction has been open for ${format.duration(open.seconds)} (pid ${open.pid}). Vacuum cannot remove rows that were deleted since then.`]);
  if (maintenance?.maintenanceMode) warnings.push(["#/system", "Push maintenance mode is on: pushes are held back."]);
  if (maintenance?.popMaintenanceMode) warnings.push(["#/system", "Pop maintenance mode is on: no messages are delivered."]);
  if (now.age > MAX_SAMPLE_AGE) warnings.push(["#/system", `The last sample is ${format.duration(now.age)} old. Check that upkeep is running.`]);
  return warnings;
}

function Health({ warnings, now }) {
  const groups = format.plural(now.groups.ACTIVE ?? 0, "active group");
  if (!warnings.length) return html`<section class="health good"><h2>No warnings</h2><p>${groups}, no dead letters, no group with a time lag above ${format.duration(MAX_TIME_LAG)}.</p></section>`;
  return html`<section class="health warn"><h2>${format.plural(warnings.length, "warning")}</h2>
    <ul>${warnings.map(([href, text]) => html`<li key=${text}><a href=${href}>${text}</a></li>`)}</ul></section>`;
}

function DatabaseTiles({ database: { data, error } }) {
  if (error?.status === 403 || !data) return null; // requires permission to read every queue
  const skep = data.clients.filter((each) => each.application.startsWith("skep"));
  const open = data.oldest_transaction;
  return html`
    <${Tile} label="Servers" value=${new Set(skep.map((each) => each.address)).size} note=${`${format.plural(skep.reduce((sum, each) => sum + each.connections, 0), "connection")}`} href="#/system" />
    <${Tile} label="Database" value=${format.bytes(data.bytes)} note=${`PostgreSQL ${data.version}`} href="#/system" />
    <${Tile} label="Oldest transaction" value=${open ? format.duration(open.seconds) : "none"} tone=${open && open.seconds > MAX_TRANSACTION_AGE ? "warn" : ""} note=${open ? open.application || "unnamed" : "no open transaction"} href="#/system" />`;
}

function Trends({ rows }) {
  const column = (n) => (rows ?? []).map((row) => row[n]);
  const at = useMemo(() => column(0), [rows]);
  const rates = useMemo(() => [{ label: "pushed", values: column(1) }, { label: "acked", values: column(2) }], [rows]);
  const lag = useMemo(() => [{ label: "lag", values: column(3) }], [rows]);
  const age = useMemo(() => [{ label: "time lag", values: column(4) }], [rows]);
  const dead = useMemo(() => [{ label: "dead letters", values: column(5) }], [rows]);
  if (rows === null) return null;
  return html`<div class="charts">
    <${Chart} title="Throughput" unit="messages/s" at=${at} series=${rates} />
    <${Chart} title="Lag" unit="messages" at=${at} series=${lag} />
    <${Chart} title="Time lag" hint=${TIME_LAG} unit="seconds" at=${at} series=${age} />
    <${Chart} title="Dead letters" unit="messages" at=${at} series=${dead} />
  </div>`;
}

const COLUMNS = [
  { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, row.queue)}>${format.groupName(row.group)}</a>` },
  { key: "queue", label: "Queue", show: (row) => html`<a href=${queueLink(row.queue)}>${row.queue}</a>` },
  { key: "status", label: "Status", show: (row) => html`<${Status} value=${row.status} />` },
  { key: "lag", label: "Lag", number: true, show: (row) => format.count(row.lag) },
  { key: "seconds", label: "Time lag", hint: TIME_LAG, number: true, show: (row) => format.duration(row.seconds) },
  { key: "rate", label: "Acked/s", number: true, wide: true, show: (row) => format.rate(row.rate) },
];

function SlowestGroups({ rows }) {
  return html`<${Table} columns=${COLUMNS} rows=${rows} id=${(row) => `${row.group} ${row.queue}`} empty="No group has pending messages." />`;
}
