// The options of a queue, and the form that changes them. Only changed options are sent.
import { patch, url } from "./api.js";
import { confirmAction, runAction } from "./dialog.js";
import * as format from "./format.js";
import { html } from "./lib.js";
import { Card } from "./parts.js";
import { useRights } from "./poll.js";

const CHOICES = { semantics: ["mixed", "pub_sub", "queue"], partial_failure: ["dead_letter", "retry"] };
const MAY_BE_EMPTY = new Set([
  "max_size", "dedup_window", "retention_seconds", "completed_retention_seconds", "zero_subscriber_retention_seconds", "drop_idle_seconds",
  "lease_log_seconds",
]);
const MAY_DELETE_MESSAGES = new Set(["retention_seconds", "completed_retention_seconds", "zero_subscriber_retention_seconds", "max_size"]);
const SECONDS = /(_seconds|_time|_delay|_window|_processing|_buffer)$/;

const label = (name) => name.replace(/_(seconds|bytes)$/, "").replaceAll("_", " ");
const unit = (name) => (SECONDS.test(name) ? " (seconds)" : /_bytes$/.test(name) ? " (bytes)" : "");

function formatOption(name, value) {
  if (value === null) return "no limit";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (/_bytes$/.test(name)) return format.bytes(value);
  if (SECONDS.test(name)) return value < 120 ? `${value} s` : `${format.exact(value)} s (${format.duration(value)})`;
  return typeof value === "number" ? format.exact(value) : value;
}

export function Options({ queue, reload }) {
  const may = useRights(queue.name);
  const names = Object.keys(queue.options).sort();
  const edit = async () => {
    const draft = { ...queue.options };
    const body = html`<${Form} names=${names} draft=${draft} />`;
    if (await confirmAction({ title: `Options of ${queue.name}`, action: "Review", body })) await review(queue, draft, reload);
  };
  const button = may("configure") && html`<button type="button" onClick=${edit}>Edit</button>`;
  return html`<${Card} title="Options" aside=${button}>
    <dl class="options">${names.map((name) => html`<div key=${name}><dt>${label(name)}</dt><dd>${formatOption(name, queue.options[name])}</dd></div>`)}</dl>
  </${Card}>`;
}

async function review(queue, draft, reload) {
  const changed = Object.fromEntries(Object.entries(draft).filter(([name, value]) => value !== queue.options[name]));
  const names = Object.keys(changed);
  if (!names.length) return;
  const mayDelete = names.some((name) => MAY_DELETE_MESSAGES.has(name));
  const body = html`<p>These options change on all servers at once:</p>
    <ul>${names.map((name) => html`<li>${label(name)}: ${formatOption(name, queue.options[name])} → <b>${formatOption(name, changed[name])}</b></li>`)}</ul>
    ${mayDelete && html`<p class="warning">Retention applies the new limits within seconds. Deleted messages cannot be restored. The queue stores ${format.plural(queue.messages, "message")} now.</p>`}`;
  if (!(await confirmAction({ title: `Change the options of ${queue.name}?`, action: "Change", danger: mayDelete, body }))) return;
  await runAction(() => patch(url`api/v1/queues/${queue.name}`, { options: changed }), `Options of ${queue.name} changed.`);
  reload();
}

// The fields write to the draft, which is discarded when the dialog closes.
function Form({ names, draft }) {
  return html`<div class="form">${names.map((name) => html`<label key=${name}>${label(name)}${unit(name)}<${Field} name=${name} draft=${draft} /></label>`)}</div>`;
}

function Field({ name, draft }) {
  const value = draft[name];
  if (name in CHOICES) {
    return html`<select name=${name} onChange=${(event) => { draft[name] = event.target.value; }}>
      ${CHOICES[name].map((choice) => html`<option value=${choice} selected=${choice === value}>${choice}</option>`)}
    </select>`;
  }
  if (typeof value === "boolean") return html`<input type="checkbox" name=${name} checked=${value} onChange=${(event) => { draft[name] = event.target.checked; }} />`;
  const empty = MAY_BE_EMPTY.has(name);
  const write = (event) => {
    draft[name] = event.target.value === "" ? null : Number(event.target.value);
  };
  return html`<input type="number" name=${name} step="any" required=${!empty} placeholder=${empty ? "no limit" : ""} defaultValue=${value ?? ""} onInput=${write} />`;
}
