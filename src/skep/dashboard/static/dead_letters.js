// Dead letters: counts by error, a list, and the actions redrive and purge.
import { post, url, withQuery } from "./api.js";
import { confirmAction, notify, runAction, runSteps } from "./dialog.js";
import * as format from "./format.js";
import { html, useEffect, useState } from "./lib.js";
import { Card, deadLettersLink, Failure, groupLink, Page, queueLink, Table } from "./parts.js";
import { usePoll, useRights } from "./poll.js";

const MAX_DEAD_LETTERS = 10_000; // in one action
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
  const filtered = Object.values(filter).some(Boolean);
  const aside = filtered && html`<a class="button" href="#/dead-letters">Show all</a>`;
  const filters = [queue && `queue ${queue}`, group && `group ${format.groupName(group)}`, error && `error “${error}”`];
  return html`<${Page} title="Dead letters" aside=${aside}>
    ${filtered && html`<p class="hint">Filtered by ${filters.filter(Boolean).join(", ")}.</p>`}
    <${Failure} error=${counts.error} />
    ${counts.data && html`<${Card} title="By error"><${ByError} rows=${counts.data} may=${may} reload=${reload} /></${Card}>`}
    <${DeadLetterList} filter=${filter} may=${may} reload=${reload} />
    <${Audit} ...${audit} />
  </${Page}>`;
}

function filterOf(row) {
  return { queue: row.queue, group: row.group, error: row.error };
}

const owner = (row) => `group ${format.groupName(row.group)} on queue ${row.queue}`;
const limitNote = (n) =>
  n === MAX_DEAD_LETTERS ? ` These are the oldest ${format.exact(MAX_DEAD_LETTERS)}. Repeat the action for the others.` : "";

function bulkBody(row, n, consequence) {
  const matching = `${format.plural(n, "dead letter")} of ${owner(row)} ${n === 1 ? "contains" : "contain"} this error text.`;
  return html`<p>${matching} ${consequence}${limitNote(n)}</p><pre class="payload" tabindex="0">${row.error}</pre>`;
}

// A dry run selects the dead letters, the dialog shows how many, and only the selected ones are redriven.
async function redriveAll(row, reload) {
  const filter = { ...filterOf(row), limit: MAX_DEAD_LETTERS, dry_run: true };
  const found = await runAction(() => post("api/v1/dead-letters/redrive", filter));
  if (found === null) return;
  const ids = found.letters.map((deadLetter) => deadLetter.id);
  const n = ids.length;
  const messages = n === 1 ? "Its message is" : "Their messages are";
  const deadLetters = n === 1 ? "the dead letter is" : "the dead letters are";
  const body = bulkBody(row, n, `${messages} delivered again, to this group only, and ${deadLetters} removed.`);
  const title = `Redrive ${format.plural(n, "dead letter")}?`;
  if (!(await confirmAction({ title, body, action: `Redrive ${format.exact(n)}` }))) return;
  const step = async (number) => {
    const chunk = ids.slice(number * STEP, (number + 1) * STEP);
    return (await post("api/v1/dead-letters/redrive", { queue: row.queue, ids: chunk, limit: STEP })).letters.length;
  };
  const redriven = await runSteps({ title: "Redriving dead letters", total: n, size: STEP, noun: "dead letter", step });
  const rest = redriven < n ? ` ${format.exact(n - redriven)} not redriven.` : "";
  notify(`${format.plural(redriven, "dead letter")} redriven.${rest}`, redriven < n ? "bad" : "good");
  reload();
}

async function purgeAll(row, reload) {
  const filter = { ...filterOf(row), limit: MAX_DEAD_LETTERS };
  const found = await runAction(() => post("api/v1/dead-letters/purge", { ...filter, dry_run: true }));
  if (found === null) return;
  const n = found.letters;
  const consequence = n === 1 ? "It is deleted permanently, with its payload." : "They are deleted permanently, with their payloads.";
  const body = bulkBody(row, n, consequence);
  const title = `Purge ${format.plural(n, "dead letter")}?`;
  if (!(await confirmAction({ title, body, action: `Purge ${format.exact(n)}`, danger: true }))) return;
  const success = (result) => `${format.plural(result.letters, "dead letter")} purged.`;
  await runAction(() => post("api/v1/dead-letters/purge", { ...filter, limit: n }), success);
  reload();
}

function ByError({ rows, may, reload }) {
  const columns = [
    { key: "error", label: "Error", show: (row) => html`<a class="error" href=${deadLettersLink(filterOf(row))}>${row.error}</a>` },
    { key: "queue", label: "Queue", show: (row) => html`<a href=${queueLink(row.queue)}>${row.queue}</a>` },
    { key: "group", label: "Group", show: (row) => html`<a href=${groupLink(row.group, row.queue)}>${format.groupName(row.group)}</a>` },
    { key: "count", label: "Count", number: true, show: (row) => format.count(row.letters) },
    { key: "last", label: "Last failure", number: true, wide: true, show: (row) => `${format.age(row.last_failed_at)} ago` },
    { key: "actions", label: "Actions", labelHidden: true, show: (row) => html`<span class="actions">
      ${may("redrive") && html`<button type="button" onClick=${() => redriveAll(row, reload)}>Redrive all</button>`}
      ${may("admin") && html`<button type="button" class="danger" onClick=${() => purgeAll(row, reload)}>Purge all</button>`}
    </span>` },
  ];
  return html`<${Table} stack columns=${columns} rows=${rows} id=${(row) => `${row.queue}\n${row.group}\n${row.error}`} empty="No dead letters." />`;
}

function DeadLetterList({ filter, may, reload }) {
  const [before, setBefore] = useState([]);
  const path = withQuery("api/v1/dead-letters", { ...filter, before: before.at(-1) ?? "", limit: SIZE });
  const page = usePoll(path, 5, { exact: true });
  const rows = page.data ?? [];
  const reloadAll = () => {
    page.reload();
    reload();
  };
  return html`<${Card} title="Dead letters, newest first">
    <${Failure} error=${page.error} />
    ${page.data && !rows.length && html`<p class="empty">No dead letters.</p>`}
    ${rows.map((row) => html`<${DeadLetter} key=${row.id} row=${row} may=${may} reload=${reloadAll} />`)}
    ${(before.length > 0 || rows.length === SIZE) && html`<p class="pager">
      <button type="button" disabled=${!before.length} onClick=${() => setBefore(before.slice(0, -1))}>Newer</button>
      <button type="button" disabled=${rows.length < SIZE} onClick=${() => setBefore([...before, rows.at(-1).id])}>Older</button>
    </p>`}
  </${Card}>`;
}

async function redrive(row, reload) {
  const body = html`<p>The message is delivered again, to ${owner(row)} only, and the dead letter is removed.</p>`;
  if (!(await confirmAction({ title: "Redrive 1 dead letter?", body, action: "Redrive 1" }))) return;
  await runAction(() => post(url`api/v1/dlq/${row.id}/replay`), "1 dead letter redriven.");
  reload();
}

// The typed text is sent unchanged, so that long numbers keep all their digits.
async function edit(row, reload) {
  const draft = { text: format.json(row.payload) };
  const body = (setReady) => html`<p>A message with this payload is delivered to ${owner(row)} only, and the dead letter is removed. The message keeps its headers, plus one that marks it as edited.</p>
    <${Editor} draft=${draft} setReady=${setReady} />`;
  const title = "Edit and redrive 1 dead letter?";
  if (!(await confirmAction({ title, body, action: "Redrive with this payload", wide: true }))) return;
  await runAction(() => post(url`api/v1/dlq/${row.id}/replay`, `{"payload":${draft.text}}`), "1 dead letter redriven with the new payload.");
  reload();
}

function Editor({ draft, setReady }) {
  const [problem, setProblem] = useState("");
  const check = (text) => {
    draft.text = text;
    try {
      JSON.parse(text);
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  useEffect(() => check(draft.text), []);
  useEffect(() => setReady(problem === ""), [problem]);
  return html`<label>Payload (JSON)<textarea rows="14" spellcheck=${false} defaultValue=${draft.text} onInput=${(event) => check(event.target.value)}></textarea></label>
    <p class=${problem ? "failure" : "hint"} role="status">${problem ? `Invalid JSON: ${problem}` : "Valid JSON."}</p>`;
}

function DeadLetter({ row, may, reload }) {
  return html`<details class="dead-letter">
    <summary><span class="error">${row.error}</span><span class="origin">${row.queue} · ${row.partition} · ${row.offset} · ${format.groupName(row.group)}</span><time>${format.time(row.failed_at)}</time></summary>
    <dl class="facts">
      <div><dt>Attempts</dt><dd>${row.attempts}</dd></div>
      <div><dt>Pushed</dt><dd>${format.time(row.created_at)}</dd></div>
      ${row.transaction_id && html`<div><dt>Transaction id (dedup key)</dt><dd><code>${row.transaction_id}</code></dd></div>`}
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
  { key: "done_at", label: "Time", show: (row) => format.time(row.done_at) },
  { key: "action", label: "Action", show: (row) => `${row.count > 1 ? `${format.exact(row.count)} ` : ""}${row.action}` },
  { key: "queue", label: "Queue", show: (row) => row.queue },
  { key: "group", label: "Group", show: (row) => format.groupName(row.group) },
  { key: "error", label: "Error", wide: true, show: (row) => html`<span class="error">${row.error}</span>` },
  { key: "done_by", label: "User" },
];

// Merges rows of the same action, user, group and error that are less than a minute apart.
function merged(rows) {
  const entries = [];
  for (const row of rows) {
    const last = entries.at(-1);
    const same = last && ["action", "queue", "group", "error", "done_by"].every((key) => last[key] === row[key]);
    if (same && new Date(last.done_at) - new Date(row.done_at) < 60_000) last.count += 1;
    else entries.push({ ...row, count: 1 });
  }
  return entries.slice(0, 20);
}

function Audit({ data, error }) {
  return html`<${Card} title="Audit log"><${Failure} error=${error} />
    ${data && html`<${Table} stack columns=${AUDIT} rows=${merged(data)} id=${(row) => row.id} empty="No dead letter has been redriven or purged." />`}
  </${Card}>`;
}
