// Dead letters by error, one by one, and driving them again.
import { post, url, withQuery } from "./api.js";
import { ask, attempt, follow, say } from "./dialog.js";
import * as format from "./format.js";
import { html, useEffect, useState } from "./lib.js";
import { Card, Failure, groupLink, lettersLink, Page, queueLink, Table } from "./parts.js";
import { usePoll, useRights } from "./poll.js";

const MOST = 10_000; // letters in one go
const STEP = 200;
const SIZE = 25;

export function DeadLetters({ query }) {
  const { queue = "", group = "", error = "" } = query;
  const filter = { queue, group, error };
  const counts = usePoll(withQuery("api/v1/dead-letters/count", { queue, group }));
  const audit = usePoll("api/v1/dead-letters/audit?limit=1000", 10);
  const reload = () => {
    counts.reload();
    audit.reload();
  };
  const may = useRights(queue || null);
  const narrowed = Object.values(filter).some(Boolean);
  const aside = narrowed && html`<a class="button" href="#/dead-letters">Show all</a>`;
  return html`<${Page} title="Dead letters" aside=${aside}>
    ${narrowed && html`<p class="told">Only ${[queue && `queue ${queue}`, group && `group ${format.groupName(group)}`, error && `error “${error}”`].filter(Boolean).join(", ")}.</p>`}
    <${Failure} error=${counts.error} />
    ${counts.data && html`<${Card} title="By error"><${ByError} rows=${counts.data} may=${may} reload=${reload} /></${Card}>`}
    <${Letters} filter=${filter} may=${may} reload=${reload} />
    <${Audit} ...${audit} />
  </${Page}>`;
}

function wish(row) {
  return { queue: row.queue, group: row.group, error: row.error };
}

const where = (row) => `${format.groupName(row.group)} on ${row.queue}`;
const more = (n) => (n === MOST ? ` These are the oldest ${format.exact(MOST)}; do it again for the rest.` : "");

// A dry run says which, the dialog says how many, and only then these are driven, and no others.
async function redriveAll(row, reload) {
  const found = await attempt(() => post("api/v1/dead-letters/redrive", { ...wish(row), limit: MOST, dry_run: true }));
  if (found === null) return;
  const ids = found.letters.map((letter) => letter.id);
  const [n, is] = [ids.length, ids.length === 1 ? "is" : "are"];
  const body = html`<p>${format.plural(n, "dead letter")} of ${where(row)} whose error has this text ${is} delivered again, to ${format.groupName(row.group)} alone, and removed from here.${more(n)}</p><pre class="payload" tabindex="0">${row.error}</pre>`;
  if (!(await ask({ title: `Redrive ${format.plural(n, "dead letter")}?`, body, action: `Redrive ${format.exact(n)}` }))) return;
  const step = async (at) => {
    const part = ids.slice(at * STEP, (at + 1) * STEP);
    return (await post("api/v1/dead-letters/redrive", { queue: row.queue, ids: part, limit: STEP })).letters.length;
  };
  const driven = await follow({ title: "Driving dead letters again", total: n, size: STEP, done: "dead letter", step });
  say(`${format.plural(driven, "dead letter")} driven again.${driven < n ? ` ${format.exact(n - driven)} were not.` : ""}`, driven < n ? "bad" : "good");
  reload();
}

async function purgeAll(row, reload) {
  const asked = { ...wish(row), limit: MOST };
  const found = await attempt(() => post("api/v1/dead-letters/purge", { ...asked, dry_run: true }));
  if (found === null) return;
  const n = found.letters;
  const body = html`<p>${format.plural(n, "dead letter")} of ${where(row)} whose error has this text ${n === 1 ? "is" : "are"} deleted for good, payloads and all.${more(n)}</p><pre class="payload" tabindex="0">${row.error}</pre>`;
  if (!(await ask({ title: `Delete ${format.plural(n, "dead letter")}?`, body, action: `Delete ${format.exact(n)}`, danger: true }))) return;
  await attempt(() => post("api/v1/dead-letters/purge", { ...asked, limit: n }), (done) => `${format.plural(done.letters, "dead letter")} deleted.`);
  reload();
}

function ByError({ rows, may, reload }) {
  const columns = [
    { key: "error", label: "Error", show: (row) => html`<a class="error" href=${lettersLink(wish(row))}>${row.error}</a>` },
    { key: "queue", label: "Queue", show: (row) => html`<a href=${queueLink(row.queue)}>${row.queue}</a>` },
    { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, row.queue)}>${format.groupName(row.group)}</a>` },
    { key: "letters", label: "Letters", number: true, show: (row) => format.count(row.letters) },
    { key: "last", label: "Last", number: true, wide: true, show: (row) => `${format.age(row.last_failed_at)} ago` },
    { key: "act", label: "Actions", quiet: true, show: (row) => html`<span class="actions">
      ${may("redrive") && html`<button type="button" onClick=${() => redriveAll(row, reload)}>Redrive all</button>`}
      ${may("admin") && html`<button type="button" class="danger" onClick=${() => purgeAll(row, reload)}>Delete all</button>`}
    </span>` },
  ];
  return html`<${Table} stack columns=${columns} rows=${rows} id=${(row) => `${row.queue}\n${row.group}\n${row.error}`} empty="There are no dead letters." />`;
}

function Letters({ filter, may, reload }) {
  const [before, setBefore] = useState([]);
  const path = withQuery("api/v1/dead-letters", { ...filter, before: before.at(-1) ?? "", limit: SIZE });
  const page = usePoll(path, 5, { exact: true });
  const rows = page.data ?? [];
  const again = () => {
    page.reload();
    reload();
  };
  return html`<${Card} title="Newest first">
    <${Failure} error=${page.error} />
    ${page.data && !rows.length && html`<p class="empty">Nothing here.</p>`}
    ${rows.map((row) => html`<${Letter} key=${row.id} row=${row} may=${may} reload=${again} />`)}
    ${(before.length > 0 || rows.length === SIZE) && html`<p class="pager">
      <button type="button" disabled=${!before.length} onClick=${() => setBefore(before.slice(0, -1))}>Newer</button>
      <button type="button" disabled=${rows.length < SIZE} onClick=${() => setBefore([...before, rows.at(-1).id])}>Older</button>
    </p>`}
  </${Card}>`;
}

async function redrive(row, reload) {
  const body = html`<p>This message is delivered again, to ${where(row)} alone, and removed from here.</p>`;
  if (!(await ask({ title: "Redrive 1 dead letter?", body, action: "Redrive it" }))) return;
  await attempt(() => post(url`api/v1/dlq/${row.id}/replay`), "It is driven again.");
  reload();
}

// What is sent is the text that was typed, so that long numbers stay what they are.
async function edit(row, reload) {
  const draft = { text: format.json(row.payload) };
  const body = (setReady) => html`<p>A message with this payload is delivered to ${where(row)} alone, and the dead letter is removed from here. Its headers stay, and say that it was edited.</p>
    <${Editor} draft=${draft} setReady=${setReady} />`;
  if (!(await ask({ title: "Edit and redrive 1 dead letter?", body, action: "Redrive it with this payload", wide: true }))) return;
  await attempt(() => post(url`api/v1/dlq/${row.id}/replay`, `{"payload":${draft.text}}`), "It is driven again, with the new payload.");
  reload();
}

function Editor({ draft, setReady }) {
  const [wrong, setWrong] = useState("");
  const check = (text) => {
    draft.text = text;
    try {
      JSON.parse(text);
      setWrong("");
    } catch (error) {
      setWrong(error.message);
    }
  };
  useEffect(() => check(draft.text), []);
  useEffect(() => setReady(wrong === ""), [wrong]);
  return html`<label>Payload (JSON)<textarea rows="14" spellcheck=${false} defaultValue=${draft.text} onInput=${(event) => check(event.target.value)}></textarea></label>
    <p class=${wrong ? "failure" : "told"} role="status">${wrong ? `This is not JSON: ${wrong}` : "This is valid JSON."}</p>`;
}

function Letter({ row, may, reload }) {
  return html`<details class="letter">
    <summary><span class="error">${row.error}</span><span class="where">${row.queue} · ${row.partition} · ${row.offset} · ${format.groupName(row.group)}</span><time>${format.time(row.failed_at)}</time></summary>
    <dl class="facts">
      <div><dt>Attempts</dt><dd>${row.attempts}</dd></div>
      <div><dt>Pushed</dt><dd>${format.time(row.created_at)}</dd></div>
      ${row.transaction_id && html`<div><dt>Transaction id</dt><dd><code>${row.transaction_id}</code></dd></div>`}
      ${row.producer && html`<div><dt>Producer</dt><dd>${row.producer}</dd></div>`}
    </dl>
    <h3>Error</h3><pre class="payload" tabindex="0">${row.error}</pre>
    <h3>Payload</h3><pre class="payload" tabindex="0">${format.pretty(row.payload)}</pre>
    ${row.headers && html`<h3>Headers</h3><pre class="payload" tabindex="0">${format.pretty(row.headers)}</pre>`}
    ${may("redrive") && html`<button type="button" onClick=${() => redrive(row, reload)}>Redrive</button>`}
    ${may("redrive") && may("push") && !row.undecipherable && html` <button type="button" onClick=${() => edit(row, reload)}>Edit and redrive</button>`}
  </details>`;
}

const AUDIT = [
  { key: "done_at", label: "When", show: (row) => format.time(row.done_at) },
  { key: "action", label: "What", show: (row) => `${row.letters > 1 ? `${format.exact(row.letters)} ` : ""}${row.action}` },
  { key: "queue", label: "Queue", show: (row) => row.queue },
  { key: "group", label: "Group", show: (row) => format.groupName(row.group) },
  { key: "error", label: "Error", wide: true, show: (row) => html`<span class="error">${row.error}</span>` },
  { key: "done_by", label: "By" },
];

// Letters that one did at about the same time are one line.
function together(rows) {
  const lines = [];
  for (const row of rows) {
    const last = lines.at(-1);
    const same = last && ["action", "queue", "group", "error", "done_by"].every((key) => last[key] === row[key]);
    if (same && new Date(last.done_at) - new Date(row.done_at) < 60_000) last.letters += 1;
    else lines.push({ ...row, letters: 1 });
  }
  return lines.slice(0, 20);
}

function Audit({ data, error }) {
  return html`<${Card} title="Who did what"><${Failure} error=${error} />
    ${data && html`<${Table} stack columns=${AUDIT} rows=${together(data)} id=${(row) => row.id} empty="Nobody has driven or deleted any." />`}
  </${Card}>`;
}
