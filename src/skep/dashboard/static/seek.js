// The dialog that seeks a group. The server previews the effect; the button stays disabled until the preview is there.
import { get, post, url, withQuery } from "./api.js";
import { confirmAction, runAction } from "./dialog.js";
import * as format from "./format.js";
import { html, useEffect, useState } from "./lib.js";

const BEGINNING = "1970-01-01T00:00:00Z";

export async function seek(now, reload) {
  const form = {};
  const body = (setReady) => html`<${PositionForm} now=${now} form=${form} setReady=${setReady} />`;
  const title = `Seek ${format.groupName(now.group)} on ${now.queue}`;
  if (!(await confirmAction({ title, body, action: "Seek", danger: true }))) return;
  await runAction(() => post(seekPath(now), form.position), `Group ${format.groupName(now.group)} moved.`);
  reload();
}

function seekPath(now) {
  return url`api/v1/consumer-groups/${now.group}/queues/${now.queue}/seek`;
}

function positionOf(target, time) {
  if (target === "end") return { toEnd: true };
  if (target === "beginning") return { timestamp: BEGINNING };
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? null : { timestamp: at.toISOString() };
}

function PositionForm({ now, form, setReady }) {
  const [target, setTarget] = useState("end");
  const [time, setTime] = useState("");
  const [preview, setPreview] = useState(null);
  useEffect(() => {
    let stale = false;
    const position = positionOf(target, time);
    form.position = position;
    setPreview(null);
    setReady(false);
    if (position === null) return undefined;
    get(withQuery(seekPath(now), position)).then(
      (effect) => {
        if (stale) return;
        setPreview(effect);
        setReady(true);
      },
      (error) => !stale && setPreview({ error: error.message }),
    );
    return () => {
      stale = true;
    };
  }, [target, time]);
  const radio = (value, label) => html`<label class="choice"><input type="radio" name="target" value=${value} checked=${target === value} onChange=${() => setTarget(value)} /> ${label}</label>`;
  return html`${radio("end", "To the end: skip all pending messages")}
    ${radio("beginning", "To the beginning: deliver all stored messages again")}
    ${radio("time", "To a time")}
    ${target === "time" && html`<input type="datetime-local" step="1" aria-label="Time" value=${time} onInput=${(event) => setTime(event.target.value)} />`}
    <p class="preview" aria-live="polite">${describe(preview, target, time)}</p>`;
}

function describe(preview, target, time) {
  if (preview === null) return target === "time" && !time ? "Enter a time." : "Loading the preview …";
  if (preview.error) return preview.error;
  const are = (n) => (n === 1 ? "is" : "are");
  const again = `${format.plural(preview.again, "completed message")} ${are(preview.again)} delivered again`;
  const skipped = `${format.plural(preview.skipped, "pending message")} ${are(preview.skipped)} skipped`;
  const revoked = preview.leased ? ` ${format.plural(preview.leased, "active lease")} ${are(preview.leased)} revoked.` : "";
  return `In ${format.plural(preview.partitions, "partition")}: ${again}, ${skipped}. Lag after the seek: ${format.plural(preview.lag_after, "message")}.${revoked}`;
}
