// The server processes, the maintenance modes and the database.
import { post } from "./api.js";
import { confirmAction, runAction } from "./dialog.js";
import * as format from "./format.js";
import { html, useState } from "./lib.js";
import { Card, Failure, Page, Table, Tile } from "./parts.js";
import { usePoll } from "./poll.js";

export function System() {
  const database = usePoll("api/v1/dashboard/database");
  const metrics = usePoll("metrics");
  const links = html`<a class="button" href="metrics/prometheus">Prometheus</a><a class="button" href="health">Health</a>`;
  return html`<${Page} title="System" aside=${links}>
    <${Failure} error=${database.error} what="the state of the database" />
    <div class="tiles">
      ${metrics.data && html`<${ServerTiles} now=${metrics.data} />`}
      ${database.data && html`<${DatabaseTiles} now=${database.data} />`}
    </div>
    <${Maintenance} />
    <${Servers} />
    ${database.data && html`<${Connections} rows=${database.data.clients} />`}
    <${Postgres} />
  </${Page}>`;
}

function ServerTiles({ now }) {
  return html`<${Tile} label="Uptime" value=${format.duration(now.uptime)} note="this server" />
    <${Tile} label="Requests" value=${format.count(now.requests.total)} note=${`${format.rate(now.requests.rate)} per second`} />
    <${Tile} label="Pushed" value=${format.count(now.messages.pushed)} note="messages, this server" />
    <${Tile} label="Popped" value=${format.count(now.messages.popped)} note="messages, this server" />
    <${Tile} label="Acked" value=${format.count(now.messages.acked)} note="messages, this server" />
    <${Tile} label="Memory" value=${format.bytes(now.memory.rss)} note="all processes" />`;
}

function DatabaseTiles({ now }) {
  const open = now.oldest_transaction;
  return html`<${Tile} label="Database" value=${format.bytes(now.bytes)} note=${`${now.name}, PostgreSQL ${now.version}`} />
    <${Tile} label="Connections" value=${format.count(now.clients.reduce((sum, each) => sum + each.connections, 0))} note=${`limit ${format.count(now.max_connections)}`} />
    <${Tile} label="Oldest transaction" value=${open ? format.duration(open.seconds) : "none"} tone=${open && open.seconds > 300 ? "warn" : ""} note=${open ? `pid ${open.pid}, ${open.application || "unnamed"}, ${open.state}` : "no open transaction"} />
    <${Tile} label="PostgreSQL uptime" value=${format.age(now.started_at)} note=${`since ${format.time(now.started_at)}`} />`;
}

const SWITCHES = [
  {
    key: "maintenanceMode",
    path: "api/v1/system/maintenance",
    label: "Push maintenance mode",
    on: "On: pushes are buffered in the database.",
    off: "Off: pushes are stored in their queues.",
    turnOn: () => "Within a second, all servers buffer pushes in the database and return the status “buffered”. Consumers receive no new messages. Buffered messages are stored in their queues, in order, when the mode is turned off.",
    turnOff: (now) => `All servers store pushes in their queues again. ${format.plural(now.bufferedMessages, "buffered message")} ${now.bufferedMessages === 1 ? "is" : "are"} stored first.`,
  },
  {
    key: "popMaintenanceMode",
    path: "api/v1/system/maintenance/pop",
    label: "Pop maintenance mode",
    on: "On: pops return no messages.",
    off: "Off: pops return messages.",
    turnOn: () => "Within a second, pops return no messages on all servers. Messages that are leased now can still be acked.",
    turnOff: () => "Pops return messages again on all servers.",
  },
];

function Maintenance() {
  const { data, error, reload } = usePoll("api/v1/system/maintenance");
  if (error?.status === 403) return null; // requires the admin role
  const toggle = async (each) => {
    const on = data[each.key];
    const body = html`<p>${on ? each.turnOff(data) : each.turnOn()}</p>`;
    const action = on ? "Turn off" : "Turn on";
    if (!(await confirmAction({ title: `${action} ${each.label.toLowerCase()}?`, body, action, danger: !on }))) return;
    await runAction(() => post(each.path, { enabled: !on }), `${each.label} turned ${on ? "off" : "on"}.`);
    reload();
  };
  return html`<${Card} title="Maintenance modes"><${Failure} error=${error} />
    ${data && SWITCHES.map((each) => html`<div class="switch" key=${each.key}>
      <div><b>${each.label}</b><p>${data[each.key] ? each.on : each.off}${each.key === "maintenanceMode" && data.bufferedMessages ? ` ${format.plural(data.bufferedMessages, "buffered message")}.` : ""}</p></div>
      <button type="button" role="switch" aria-checked=${String(data[each.key])} aria-label=${each.label} class=${data[each.key] ? "toggle on" : "toggle"} onClick=${() => toggle(each)}><i></i></button>
    </div>`)}
  </${Card}>`;
}

const SERVERS = [
  { key: "pid", label: "Process", number: true },
  { key: "uptime", label: "Uptime", number: true, wide: true, show: (row) => format.duration(row.uptime) },
  { key: "memory", label: "Memory", number: true, show: (row) => format.bytes(row.memory) },
  { key: "cpu", label: "CPU time", number: true, wide: true, show: (row) => format.duration(row.cpu) },
  { key: "pool", label: "Busy connections", number: true, show: (row) => `${row.pool.active} of ${row.pool.size}` },
  { key: "waiting", label: "Waiting for a connection", number: true, wide: true, show: (row) => format.count(row.pool.waiting) },
  { key: "parked", label: "Waiting polls", number: true, show: (row) => format.count(row.parked) },
];

function Servers() {
  const { data, error } = usePoll("api/v1/dashboard/servers");
  return html`<${Card} title="Processes of this server"><${Failure} error=${error} what="this list" />
    ${data && html`<${Table} columns=${SERVERS} rows=${data} id=${(row) => row.pid} />`}
  </${Card}>`;
}

const CONNECTIONS = [
  { key: "application", label: "Application" },
  { key: "address", label: "Address", wide: true },
  { key: "connections", label: "Connections", number: true },
  { key: "active", label: "Active", number: true },
  { key: "in_transaction", label: "In transaction", number: true },
  { key: "since", label: "Oldest connection", number: true, wide: true, show: (row) => format.age(row.since) },
];

function Connections({ rows }) {
  return html`<${Card} title="Database connections"><${Table} columns=${CONNECTIONS} rows=${rows} id=${(row) => `${row.application} ${row.address}`} /></${Card}>`;
}

const LARGEST = 12;
const TABLES = [
  { key: "table", label: "Table" },
  { key: "bytes", label: "Size", number: true, show: (row) => format.bytes(row.bytes) },
  { key: "live", label: "Rows", number: true, show: (row) => format.count(row.liveTuples) },
  { key: "dead", label: "Dead rows", number: true, show: (row) => format.count(row.deadTuples) },
  { key: "hit", label: "Cache hits", number: true, wide: true, show: (row) => `${row.hitRatio} %` },
  { key: "vacuum", label: "Last autovacuum", number: true, wide: true, show: (row) => (row.lastAutovacuum ? `${format.age(row.lastAutovacuum)} ago` : "–") },
];

// The response has one list of all tables for each kind of statistics. They are joined by name.
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
  const more = rows.length > LARGEST && html`<button type="button" onClick=${() => setAll(!all)}>${all ? `Show largest ${LARGEST}` : `Show all ${rows.length}`}</button>`;
  return html`<${Card} title="Tables" aside=${more}><${Failure} error=${error} />
    ${data && html`<p class="hint">Cache hit ratio: database ${data.databaseCache.hitRatio} %, tables of Skep ${data.cacheSummary.tableHitRatio} %, indexes of Skep ${data.cacheSummary.indexHitRatio} %. Shared buffers: ${data.bufferConfig.shared_buffers}.</p>
    <${Table} columns=${TABLES} rows=${all ? rows : rows.slice(0, LARGEST)} id=${(row) => row.table} />`}
  </${Card}>`;
}
