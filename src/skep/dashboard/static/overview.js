// Is it well? What is wrong first, then the numbers, then how they got there.
import { Chart, RangePicker } from "./chart.js";
import * as format from "./format.js";
import { html, useMemo, useRef, useState } from "./lib.js";
import { Card, Failure, groupLink, Page, queueLink, Status, Table, Tile } from "./parts.js";
import { usePoll } from "./poll.js";

const LATE = 300; // seconds a message may wait
const LONG = 300; // seconds a transaction may be open: it keeps vacuum from cleaning up
const STALE = 60;

export function Overview() {
  const [seconds, setSeconds] = useState(3600);
  const overview = usePoll("api/v1/dashboard/overview");
  const trend = usePoll(`api/v1/dashboard/trend?seconds=${seconds}&points=90`, 10);
  const database = usePoll("api/v1/dashboard/database");
  const maintenance = usePoll("api/v1/system/maintenance", 10);
  const popped = usePopped();
  const now = overview.data;
  return html`<${Page} title="Overview" aside=${html`<${RangePicker} value=${seconds} onChange=${setSeconds} />`}>
    <${Failure} error=${overview.error} />
    ${now && html`<${Health} troubles=${troubles(now, database.data, maintenance.data)} now=${now} />`}
    ${now && html`<div class="tiles">
      <${Tile} label="Pushed" value=${format.rate(now.pushed)} note="messages/s" />
      <${Tile} label="Popped" value=${format.rate(popped)} note="messages/s, this server" />
      <${Tile} label="Acked" value=${format.rate(now.done)} note="messages/s, all groups" />
      <${Tile} label="Waiting" value=${format.count(now.lag)} note=${`messages, ${format.plural(now.leased, "lease")}`} href="#/groups" />
      <${Tile} label="Oldest waiting" value=${format.duration(now.worst[0]?.seconds ?? 0)} tone=${(now.worst[0]?.seconds ?? 0) > LATE ? "warn" : ""} note=${now.worst[0] ? `${format.groupName(now.worst[0].group)} on ${now.worst[0].queue}` : "nothing waits"} href=${now.worst[0] && groupLink(now.worst[0].group, now.worst[0].queue)} />
      <${Tile} label="Dead letters" value=${format.count(now.dead_letters)} tone=${now.dead_letters ? "bad" : ""} note="given up" href="#/dead-letters" />
      <${Tile} label="Queues" value=${format.count(now.queues)} note=${`${format.count(now.kept)} messages kept`} href="#/queues" />
      <${DatabaseTiles} database=${database} />
    </div>`}
    <${Trends} rows=${trend.data} />
    ${now && html`<${Card} title="Furthest behind"><${Worst} rows=${now.worst} /></${Card}>`}
  </${Page}>`;
}

// How fast the server's counter grows between two looks at it; the second one comes soon.
function usePopped() {
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

function troubles(now, database, maintenance) {
  const found = [];
  for (const worst of now.worst.filter((each) => each.seconds > LATE).slice(0, 3)) {
    const who = `${format.groupName(worst.group)} on ${worst.queue}`;
    const why = worst.status === "PAUSED" ? "is paused" : "is behind";
    found.push([groupLink(worst.group, worst.queue), `${who} ${why}: ${format.plural(worst.lag, "message")} wait, the oldest for ${format.duration(worst.seconds)}.`]);
  }
  if (now.groups.DEAD) found.push(["#/groups?status=DEAD", `${format.plural(now.groups.DEAD, "group")} gave no sign of life and ${now.groups.DEAD === 1 ? "is" : "are"} dead: nothing is kept for ${now.groups.DEAD === 1 ? "it" : "them"}.`]);
  if (now.dead_letters) found.push(["#/dead-letters", `${format.plural(now.dead_letters, "dead letter")} wait${now.dead_letters === 1 ? "s" : ""} for somebody to look.`]);
  const open = database?.oldest_transaction;
  if (open && open.seconds > LONG) found.push(["#/system", `A transaction has been open for ${format.duration(open.seconds)} (pid ${open.pid}): vacuum cannot clean up behind it.`]);
  if (maintenance?.maintenanceMode) found.push(["#/system", "Push maintenance: pushes are held back."]);
  if (maintenance?.popMaintenanceMode) found.push(["#/system", "Pop maintenance: nothing is delivered."]);
  if (now.age > STALE) found.push(["#/system", `The last sample is ${format.duration(now.age)} old: is upkeep running?`]);
  return found;
}

function Health({ troubles: found, now }) {
  const groups = format.plural(now.groups.ACTIVE ?? 0, "active group");
  if (!found.length) return html`<section class="health good"><h2>All is well</h2><p>${groups}, and nobody is late.</p></section>`;
  return html`<section class="health warn"><h2>${format.plural(found.length, "thing")} to look at</h2>
    <ul>${found.map(([href, text]) => html`<li key=${text}><a href=${href}>${text}</a></li>`)}</ul></section>`;
}

function DatabaseTiles({ database: { data, error } }) {
  if (error?.status === 403 || !data) return null; // about the whole database: not for those who see some queues only
  const skep = data.clients.filter((each) => each.application.startsWith("skep"));
  const open = data.oldest_transaction;
  return html`
    <${Tile} label="Servers" value=${new Set(skep.map((each) => each.address)).size} note=${`${format.plural(skep.reduce((sum, each) => sum + each.connections, 0), "connection")}`} href="#/system" />
    <${Tile} label="Database" value=${format.bytes(data.bytes)} note=${`PostgreSQL ${data.version}`} href="#/system" />
    <${Tile} label="Oldest transaction" value=${open ? format.duration(open.seconds) : "none"} tone=${open && open.seconds > LONG ? "warn" : ""} note=${open ? open.application || "unnamed" : "nothing is open"} href="#/system" />`;
}

function Trends({ rows }) {
  const column = (n) => (rows ?? []).map((row) => row[n]);
  const at = useMemo(() => column(0), [rows]);
  const rates = useMemo(() => [{ label: "pushed", values: column(1) }, { label: "acked", values: column(2) }], [rows]);
  const lag = useMemo(() => [{ label: "waiting", values: column(3) }], [rows]);
  const age = useMemo(() => [{ label: "oldest", values: column(4) }], [rows]);
  const dead = useMemo(() => [{ label: "dead letters", values: column(5) }], [rows]);
  if (rows === null) return null;
  return html`<div class="charts">
    <${Chart} title="Throughput" unit="messages/s" at=${at} series=${rates} />
    <${Chart} title="Waiting" unit="messages" at=${at} series=${lag} />
    <${Chart} title="Age of the oldest waiting" unit="seconds" at=${at} series=${age} />
    <${Chart} title="Dead letters" unit="messages" at=${at} series=${dead} />
  </div>`;
}

const COLUMNS = [
  { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, row.queue)}>${format.groupName(row.group)}</a>` },
  { key: "queue", label: "Queue", show: (row) => html`<a href=${queueLink(row.queue)}>${row.queue}</a>` },
  { key: "status", label: "Status", show: (row) => html`<${Status} value=${row.status} />` },
  { key: "lag", label: "Lag", number: true, show: (row) => format.count(row.lag) },
  { key: "seconds", label: "Oldest", number: true, show: (row) => format.duration(row.seconds) },
  { key: "rate", label: "Acked/s", number: true, wide: true, show: (row) => format.rate(row.rate) },
];

function Worst({ rows }) {
  return html`<${Table} columns=${COLUMNS} rows=${rows} id=${(row) => `${row.group} ${row.queue}`} empty="Nobody is behind." />`;
}
