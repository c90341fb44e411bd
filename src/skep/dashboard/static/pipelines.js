// What the jobs on Spark have done: the archive, queue by queue, its last runs, and the reports of analytics.
import { tokenField } from "./api.js";
import * as format from "./format.js";
import { html } from "./lib.js";
import { Card, Failure, Page, queueLink, Table, Tile, When } from "./parts.js";
import { usePoll } from "./poll.js";

export function Pipelines() {
  const { data, error } = usePoll("api/v1/dashboard/pipelines", 10);
  const newest = data?.reports[0];
  return html`<${Page} title="Pipelines" aside=${newest && html`<${Report} name=${newest.name} label="Newest report" />`}>
    <${Failure} error=${error} />
    ${data && html`<${Archive} ...${data.archive} /><${Analytics} folder=${data.folder} reports=${data.reports} />`}
  </${Page}>`;
}

const QUEUES = [
  { key: "queue", label: "Queue", show: (row) => html`<a href=${queueLink(row.queue)}>${row.queue}</a>` },
  { key: "messages", label: "Archived", number: true, show: (row) => format.count(row.messages) },
  { key: "pending", label: "Not yet", number: true, show: (row) => format.count(row.pending) },
  { key: "oldest", label: "Oldest of these", number: true, wide: true, show: (row) => (row.oldest_at ? format.age(row.oldest_at) : "–") },
  { key: "files", label: "Files", number: true, wide: true, show: (row) => format.count(row.files) },
  { key: "bytes", label: "Size", number: true, show: (row) => format.bytes(row.bytes) },
  { key: "days", label: "Days", wide: true, show: (row) => (row.first_day === row.last_day ? (row.first_day ?? "–") : `${row.first_day} – ${row.last_day}`) },
  { key: "waits", label: "Retention waits", wide: true, show: (row) => (row.waits ? "yes" : "no") },
  { key: "location", label: "Place", wide: true, show: (row) => row.location ?? "–" },
];

const RUNS = (busy) => [
  { key: "last_at", label: "Ended", show: (row) => (row.unfinished ? (busy ? "works on it" : "stopped") : html`<${When} at=${row.last_at} />`) },
  { key: "queues", label: "Queues", show: (row) => row.queues.join(", ") },
  { key: "files", label: "Files", number: true, show: (row) => (row.unfinished ? `${format.count(row.files - row.unfinished)} of ${format.count(row.files)}` : format.count(row.files)) },
  { key: "messages", label: "Messages", number: true, show: (row) => format.count(row.messages) },
  { key: "bytes", label: "Size", number: true, wide: true, show: (row) => format.bytes(row.bytes) },
  { key: "took", label: "Wrote for", number: true, wide: true, show: (row) => (row.last_at ? format.duration((new Date(row.last_at) - new Date(row.first_at)) / 1000) : "–") },
];

function Archive({ queues, runs, busy }) {
  const sum = (key) => queues.reduce((total, row) => total + row[key], 0);
  if (!queues.length && !runs.length) {
    return html`<${Card} title="Archive"><p class="empty">Nothing is archived yet; begin with <code>skep pipeline archive QUEUE --archive /backup/skep</code>.</p></${Card}>`;
  }
  const last = queues.map((row) => row.stored_at).filter(Boolean).sort().at(-1);
  return html`<div class="tiles">
      <${Tile} label="Archived" value=${format.count(sum("messages"))} note="messages" />
      <${Tile} label="Not archived yet" value=${format.count(sum("pending"))} note="messages in the log" />
      <${Tile} label="Files" value=${format.count(sum("files"))} note="Parquet" />
      <${Tile} label="Size" value=${format.bytes(sum("bytes"))} note="of all files" />
      <${Tile} label="Last file" value=${last ? format.age(last) : "never"} note=${last ? "ago" : "nothing is stored"} />
      <${Tile} label="Job" value=${busy ? "running" : "idle"} note=${busy ? "works on the archive now" : "nobody works on the archive"} />
    </div>
    <${Card} title="Archive"><${Table} columns=${QUEUES} rows=${queues} id=${(row) => row.queue} empty="No queue that you may read is archived." /></${Card}>
    <${Card} title="Last runs"><${Table} columns=${RUNS(busy)} rows=${runs} id=${(row) => row.job} empty="No job has run." /></${Card}>`;
}

const REPORTS = [
  { key: "name", label: "Report" },
  { key: "made_at", label: "Made", number: true, show: (row) => format.time(row.made_at * 1000) },
  { key: "bytes", label: "Size", number: true, wide: true, show: (row) => format.bytes(row.bytes) },
  { key: "open", label: "Open", quiet: true, number: true, show: (row) => html`<${Report} name=${row.name} label="Open" />` },
];

function Analytics({ folder, reports }) {
  const how = folder === null
    ? html`No folder of reports is set; give the server <code>SKEP_REPORTS</code>, and run <code>skep pipeline analytics</code> into it.`
    : html`There is no report in ${folder} yet; run <code>skep pipeline analytics</code>.`;
  return html`<${Card} title="Analytics">
    ${reports.length ? html`<${Table} columns=${REPORTS} rows=${reports} id=${(row) => row.name} />` : html`<p class="empty">${how}</p>`}
  </${Card}>`;
}

// A link cannot carry the token, so a form does.
function Report({ name, label }) {
  const path = `reports/${encodeURIComponent(name)}`;
  const fill = (event) => {
    event.target.elements.token.value = tokenField();
  };
  if (tokenField() === null) return html`<a class="button" href=${path} target="_blank" rel="noopener" aria-label=${`${label}: ${name}`}>${label}</a>`;
  return html`<form class="inline" method="post" action=${path} target="_blank" rel="noopener" onSubmit=${fill}>
    <input type="hidden" name="token" /><button type="submit" aria-label=${`${label}: ${name}`}>${label}</button>
  </form>`;
}
