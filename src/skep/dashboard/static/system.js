// The servers, their maintenance, and the database under them.
import { post } from "./api.js";
import { ask, attempt } from "./dialog.js";
import * as format from "./format.js";
import { html, useState } from "./lib.js";
import { Card, Failure, Page, Table, Tile } from "./parts.js";
import { usePoll } from "./poll.js";

export function System() {
  const database = usePoll("api/v1/dashboard/database");
  const metrics = usePoll("metrics");
  const links = html`<a class="button" href="metrics/prometheus">Prometheus</a><a class="button" href="health">Health</a>`;
  return html`<${Page} title="System" aside=${links}>
    <${Failure} error=${database.error} what="The state of the database" />
    <div class="tiles">
      ${metrics.data && html`<${ServerTiles} now=${metrics.data} />`}
      ${database.data && html`<${DatabaseTiles} now=${database.data} />`}
    </div>
    <${Maintenance} />
    <${Servers} />
    ${database.data && html`<${Clients} rows=${database.data.clients} />`}
    <${Postgres} />
  </${Page}>`;
}

function ServerTiles({ now }) {
  return html`<${Tile} label="Uptime" value=${format.duration(now.uptime)} note="of this server" />
    <${Tile} label="Requests" value=${format.count(now.requests.total)} note=${`${format.rate(now.requests.rate)} a second`} />
    <${Tile} label="Pushed here" value=${format.count(now.messages.pushed)} note="messages" />
    <${Tile} label="Popped here" value=${format.count(now.messages.popped)} note="messages" />
    <${Tile} label="Acked here" value=${format.count(now.messages.acked)} note="messages" />
    <${Tile} label="Memory" value=${format.bytes(now.memory.rss)} note="of all processes" />`;
}

function DatabaseTiles({ now }) {
  const open = now.oldest_transaction;
  return html`<${Tile} label="Database" value=${format.bytes(now.bytes)} note=${`${now.name}, PostgreSQL ${now.version}`} />
    <${Tile} label="Connections" value=${format.count(now.clients.reduce((sum, each) => sum + each.connections, 0))} note=${`of ${format.count(now.max_connections)} possible`} />
    <${Tile} label="Oldest transaction" value=${open ? format.duration(open.seconds) : "none"} tone=${open && open.seconds > 300 ? "warn" : ""} note=${open ? `pid ${open.pid}, ${open.application || "unnamed"}, ${open.state}` : "nothing is open"} />
    <${Tile} label="Running since" value=${format.age(now.started_at)} note=${format.time(now.started_at)} />`;
}

const SWITCHES = [
  {
    key: "maintenanceMode",
    path: "api/v1/system/maintenance",
    label: "Push maintenance",
    on: "Pushes are held in the database and answered “buffered”.",
    off: "Pushes are stored at once.",
    begin: () => "All servers hold pushes back within a second: producers are answered “buffered” and consumers get nothing new. They are stored, in order, when maintenance ends.",
    end: (now) => `Pushes are stored again on all servers. ${format.plural(now.bufferedMessages, "held message")} ${now.bufferedMessages === 1 ? "is" : "are"} stored first.`,
  },
  {
    key: "popMaintenanceMode",
    path: "api/v1/system/maintenance/pop",
    label: "Pop maintenance",
    on: "Pops come back empty.",
    off: "Pops deliver.",
    begin: () => "All servers deliver nothing within a second: every pop comes back empty. What is leased now can still be acked.",
    end: () => "All servers deliver again.",
  },
];

function Maintenance() {
  const { data, error, reload } = usePoll("api/v1/system/maintenance");
  if (error?.status === 403) return null; // for administrators
  const flip = async (each) => {
    const on = data[each.key];
    const body = html`<p>${on ? each.end(data) : each.begin()}</p>`;
    if (!(await ask({ title: `${on ? "End" : "Begin"} ${each.label.toLowerCase()}?`, body, action: on ? "End it" : "Begin it", danger: !on }))) return;
    await attempt(() => post(each.path, { enabled: !on }), `${each.label} has ${on ? "ended" : "begun"}.`);
    reload();
  };
  return html`<${Card} title="Maintenance"><${Failure} error=${error} />
    ${data && SWITCHES.map((each) => html`<div class="switch" key=${each.key}>
      <div><b>${each.label}</b><p>${data[each.key] ? each.on : each.off}${each.key === "maintenanceMode" && data.bufferedMessages ? ` ${format.plural(data.bufferedMessages, "message")} held.` : ""}</p></div>
      <button type="button" role="switch" aria-checked=${String(data[each.key])} aria-label=${each.label} class=${data[each.key] ? "toggle on" : "toggle"} onClick=${() => flip(each)}><i></i></button>
    </div>`)}
  </${Card}>`;
}

const SERVERS = [
  { key: "pid", label: "Process", number: true },
  { key: "uptime", label: "Uptime", number: true, wide: true, show: (row) => format.duration(row.uptime) },
  { key: "memory", label: "Memory", number: true, show: (row) => format.bytes(row.memory) },
  { key: "cpu", label: "CPU time", number: true, wide: true, show: (row) => format.duration(row.cpu) },
  { key: "pool", label: "Busy connections", number: true, show: (row) => `${row.pool.active} of ${row.pool.size}` },
  { key: "waiting", label: "Waiting for one", number: true, wide: true, show: (row) => format.count(row.pool.waiting) },
  { key: "parked", label: "Parked polls", number: true, show: (row) => format.count(row.parked) },
];

function Servers() {
  const { data, error } = usePoll("api/v1/dashboard/servers");
  return html`<${Card} title="Processes of this server"><${Failure} error=${error} what="This list" />
    ${data && html`<${Table} columns=${SERVERS} rows=${data} id=${(row) => row.pid} />`}
  </${Card}>`;
}

const CLIENTS = [
  { key: "application", label: "Application" },
  { key: "address", label: "From", wide: true },
  { key: "connections", label: "Connections", number: true },
  { key: "active", label: "Active", number: true },
  { key: "in_transaction", label: "In transaction", number: true },
  { key: "since", label: "First since", number: true, wide: true, show: (row) => format.age(row.since) },
];

function Clients({ rows }) {
  return html`<${Card} title="Who is connected to the database"><${Table} columns=${CLIENTS} rows=${rows} id=${(row) => `${row.application} ${row.address}`} /></${Card}>`;
}

const FIRST = 12;
const TABLES = [
  { key: "table", label: "Table" },
  { key: "bytes", label: "Size", number: true, show: (row) => format.bytes(row.bytes) },
  { key: "live", label: "Rows", number: true, show: (row) => format.count(row.liveTuples) },
  { key: "dead", label: "Dead rows", number: true, show: (row) => format.count(row.deadTuples) },
  { key: "hit", label: "Cache hits", number: true, wide: true, show: (row) => `${row.hitRatio} %` },
  { key: "vacuum", label: "Last autovacuum", number: true, wide: true, show: (row) => (row.lastAutovacuum ? `${format.age(row.lastAutovacuum)} ago` : "–") },
];

// Each list has all tables; they are put together by name.
function tables(now) {
  const rows = new Map(now.tableSizes.map((row) => [row.table, { ...row }]));
  for (const list of [now.deadTuples, now.tableCache, now.autovacuumStatus]) {
    for (const row of list) Object.assign(rows.get(row.table) ?? {}, row);
  }
  return [...rows.values()];
}

function Postgres() {
  const { data, error } = usePoll("api/v1/analytics/postgres-stats", 15);
  const [all, setAll] = useState(false);
  if (error?.status === 403) return null;
  const rows = data ? tables(data) : [];
  const more = rows.length > FIRST && html`<button type="button" onClick=${() => setAll(!all)}>${all ? "The largest only" : `All ${rows.length}`}</button>`;
  return html`<${Card} title="Tables" aside=${more}><${Failure} error=${error} />
    ${data && html`<p class="told">Cache hits: ${data.databaseCache.hitRatio} % of the database, ${data.cacheSummary.tableHitRatio} % of Skep's tables, ${data.cacheSummary.indexHitRatio} % of its indexes. Shared buffers ${data.bufferConfig.shared_buffers}.</p>
    <${Table} columns=${TABLES} rows=${all ? rows : rows.slice(0, FIRST)} id=${(row) => row.table} />`}
  </${Card}>`;
}
