// Moving a group: the dialog asks the server what that would do, and the button is off until it knows.
import { get, post, url, withQuery } from "./api.js";
import { ask, attempt } from "./dialog.js";
import * as format from "./format.js";
import { html, useEffect, useState } from "./lib.js";

const BEGINNING = "1970-01-01T00:00:00Z";

export async function seek(now, reload) {
  const wish = {};
  const body = (setReady) => html`<${Where} now=${now} wish=${wish} setReady=${setReady} />`;
  const sure = await ask({ title: `Move ${format.groupName(now.group)} on ${now.queue}`, body, action: "Move the group", danger: true });
  if (!sure) return;
  await attempt(() => post(path(now), wish.goal), "The group is moved.");
  reload();
}

function path(now) {
  return url`api/v1/consumer-groups/${now.group}/queues/${now.queue}/seek`;
}

function goalOf(where, time) {
  if (where === "end") return { toEnd: true };
  if (where === "beginning") return { timestamp: BEGINNING };
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? null : { timestamp: at.toISOString() };
}

function Where({ now, wish, setReady }) {
  const [where, setWhere] = useState("end");
  const [time, setTime] = useState("");
  const [preview, setPreview] = useState(null);
  useEffect(() => {
    let stale = false;
    const goal = goalOf(where, time);
    wish.goal = goal;
    setPreview(null);
    setReady(false);
    if (goal === null) return undefined;
    get(withQuery(path(now), goal)).then(
      (told) => {
        if (stale) return;
        setPreview(told);
        setReady(true);
      },
      (error) => !stale && setPreview({ error: error.message }),
    );
    return () => {
      stale = true;
    };
  }, [where, time]);
  const radio = (value, label) => html`<label class="choice"><input type="radio" name="where" value=${value} checked=${where === value} onChange=${() => setWhere(value)} /> ${label}</label>`;
  return html`${radio("end", "to the end: skip everything that waits")}
    ${radio("beginning", "to the beginning: everything that is kept comes again")}
    ${radio("time", "to a time")}
    ${where === "time" && html`<input type="datetime-local" step="1" aria-label="Time" value=${time} onInput=${(event) => setTime(event.target.value)} />`}
    <p class="preview" aria-live="polite">${told(preview, where, time)}</p>`;
}

function told(preview, where, time) {
  if (preview === null) return where === "time" && !time ? "Choose a time." : "Looking …";
  if (preview.error) return preview.error;
  const parts = [`In ${format.plural(preview.partitions, "partition")}:`];
  parts.push(preview.again ? `${format.plural(preview.again, "message")} already done ${preview.again === 1 ? "is" : "are"} delivered again;` : "nothing is delivered again;");
  parts.push(preview.skipped ? `${format.plural(preview.skipped, "message")} ${preview.skipped === 1 ? "is" : "are"} skipped and never delivered to it;` : "nothing is skipped;");
  parts.push(`${format.plural(preview.lag_after, "message")} wait afterwards.`);
  if (preview.leased) parts.push(`${format.plural(preview.leased, "lease")} ${preview.leased === 1 ? "is" : "are"} dropped.`);
  return parts.join(" ");
}
