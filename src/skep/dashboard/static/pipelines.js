// Spark pipelines: the archive of each queue, the last archive runs, and the analytics reports.
import { storedToken } from "./api.js";
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
  { key: "pending", label: "Not archived", number: true, show: (row) => format.count(row.pending) },
  { key: "oldest", label: "Oldest not archived", number: true, wide: true, show: (row) => (row.oldest_at ? format.age(row.oldest_at) : "–") },
  { key: "files", label: "Files", number: true, wide: true, show: (row) => format.count(row.files) },
  { key: "bytes", label: "Size", number: true, show: (row) => format.bytes(row.bytes) },
  { key: "days", label: "Days", wide: true, show: (row) => (row.first_day === row.last_day ? (row.first_day ?? "–") : `${row.first_day} – ${row.last_day}`) },
  { key: "waits", label: "Retention waits for it", wide: true, show: (row) => (row.waits ? "yes" : "no") },
  { key: "location", label: "Location", wide: true, show: (row) => row.location ?? "–" },
];

const RUNS = (busy) => [
  { key: "last_at", label: "Ended", show: (row) => (row.unfinished ? (busy ? "running" : "interrupted") : html`<${When} at=${row.last_at} />`) },
  { key: "queues", label: "Queues", show: (row) => row.queues.join(", ") },
  { key: "files", label: "Files", number: true, show: (row) => (row.unfinished ? `${format.count(row.files - row.unfinished)} of ${format.count(row.files)}` : format.count(row.files)) },
  { key: "messages", label: "Messages", number: true, show: (row) => format.count(row.messages) },
  { key: "bytes", label: "Size", number: true, wide: true, show: (row) => format.bytes(row.bytes) },
  { key: "took", label: "Duration", number: true, wide: true, show: (row) => (row.last_at ? format.duration((new Date(row.last_at) - new Date(row.first_at)) / 1000) : "–") },
];

function Archive({ queues, runs, busy }) {
  const sum = (key) => queues.reduce((total, row) => total + row[key], 0);
  if (!queues.length && !runs.length) {
    return html`<${Card} title="Archive"><p class="empty">No queue is archived yet. To archive one, run <code>skep pipeline archive QUEUE --archive /backup/skep</code>.</p></${Card}>`;
  }
  const last = queues.map((row) => row.stored_at).filter(Boolean).sort().at(-1);
  return html`<div class="tiles">
      <${Tile} label="Archived" value=${format.count(sum("messages"))} note="messages" />
      <${Tile} label="Not archived" value=${format.count(sum("pending"))} note="messages" />
      <${Tile} label="Files" value=${format.count(sum("files"))} note="Parquet" />
      <${Tile} label="Size" value=${format.bytes(sum("bytes"))} note="of all files" />
      <${Tile} label="Last file" value=${last ? format.age(last) : "never"} note=${last ? "ago" : "no files"} />
      <${Tile} label="Archive run" value=${busy ? "running" : "idle"} note=${busy ? "writes the archive now" : "no run is active"} />
    </div>
    <${Card} title="Archived queues"><${Table} columns=${QUEUES} rows=${queues} id=${(row) => row.queue} empty="No queue that you may read is archived." /></${Card}>
    <${Card} title="Last archive runs"><${Table} columns=${RUNS(busy)} rows=${runs} id=${(row) => row.job} empty="No archive runs yet." /></${Card}>`;
}

const REPORTS = [
  { key: "name", label: "Report" },
  { key: "made_at", label: "Created", number: true, show: (row) => format.time(row.made_at * 1000) },
  { key: "bytes", label: "Size", number: true, wide: true, show: (row) => format.bytes(row.bytes) },
  { key: "open", label: "Open", labelHidden: true, number: true, show: (row) => html`<${Report} name=${row.name} label="Open" />` },
];

function Analytics({ folder, reports }) {
  const empty = folder === null
    ? html`No report folder is available. Set <code>SKEP_REPORTS</code> for the server and write reports there with <code>skep pipeline analytics</code>.`
    : html`No reports in ${folder} yet. Create one with <code>skep pipeline analytics</code>.`;
  return html`<${Card} title="Analytics reports">
    ${reports.length ? html`<${Table} columns=${REPORTS} rows=${reports} id=${(row) => row.name} />` : html`<p class="empty">${empty}</p>`}
  </${Card}>`;
}

// A link cannot send the token, so a form sends it.
function Report({ name, label }) {
  const path = `reports/${encodeURIComponent(name)}`;
  const fill = (event) => {
    event.target.elements.token.value = storedToken();
  };
  if (storedToken() === null) return html`<a class="button" href=${path} target="_blank" rel="noopener" aria-label=${`${label}: ${name}`}>${label}</a>`;
  return html`<form class="inline" method="post" action=${path} target="_blank" rel="noopener" onSubmit=${fill}>
    <input type="hidden" name="token" /><button type="submit" aria-label=${`${label}: ${name}`}>${label}</button>
  </form>`;
}
