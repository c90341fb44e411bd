// One group on one queue: how far it is, and what can be done to it.
import { post, url, withQuery } from "./api.js";
import { byGroup, Chart, RangePicker } from "./chart.js";
import { Consumers } from "./consumers.js";
import { ask, attempt } from "./dialog.js";
import * as format from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { Card, Failure, lettersLink, Page, queueLink, Status, Tile } from "./parts.js";
import { usePoll, useRights } from "./poll.js";
import { Partitions } from "./queue.js";
import { seek } from "./seek.js";

export function Group({ group, queue }) {
  const [seconds, setSeconds] = useState(3600);
  const { data, error, reload } = usePoll(withQuery("api/v1/groups", { group, queue }));
  const trend = usePoll(withQuery(url`api/v1/dashboard/queues/${queue}/trend`, { group, seconds }), 10);
  const now = data?.[0];
  const title = html`${format.groupName(group)} <small>on <a href=${queueLink(queue)}>${queue}</a></small> ${now && html`<${Status} value=${now.status} />`}`;
  const aside = html`${now && html`<${Actions} now=${now} reload=${reload} />`}<${RangePicker} value=${seconds} onChange=${setSeconds} />`;
  return html`<${Page} title=${title} aside=${aside}>
    <${Failure} error=${error} />
    ${data && !now && html`<p class="empty">This group has no subscription to this queue and has never read it.</p>`}
    ${now && html`<${Tiles} now=${now} />`}
    <${Trends} rows=${trend.data} />
    ${now && html`<${Start} queue=${queue} group=${group} /><${Consumers} queue=${queue} group=${group} /><${Partitions} name=${queue} group=${group} />`}
  </${Page}>`;
}

function Tiles({ now }) {
  const late = now.oldest_pending_at && Date.now() - new Date(now.oldest_pending_at) > 300_000;
  return html`<div class="tiles">
    <${Tile} label="Lag" value=${format.count(now.lag)} note=${`in ${format.plural(now.partitions, "partition")}`} />
    <${Tile} label="Time lag" value=${now.oldest_pending_at ? format.age(now.oldest_pending_at) : "0 s"} tone=${late ? "warn" : ""} note="age of the oldest waiting" />
    <${Tile} label="Leases" value=${format.count(now.leased)} note="out now" />
    <${Tile} label="Processed" value=${format.count(now.processed)} note="since its start or last seek" />
    <${Tile} label="Dead letters" value=${format.count(now.dead_letters)} tone=${now.dead_letters ? "bad" : ""} note="given up" href=${lettersLink({ queue: now.queue, group: now.group })} />
    <${Tile} label="Missed" value=${format.count(now.missed)} tone=${now.missed ? "bad" : ""} note="deleted before it was done" />
    <${Tile} label="Sign of life" value=${format.age(now.last_heartbeat_at)} tone=${now.missed_heartbeats ? "warn" : ""} note=${now.missed_heartbeats ? `ago, ${format.plural(now.missed_heartbeats, "beat")} missed` : "ago"} />
  </div>`;
}

// Which subscription decided where the group starts in a partition.
function Start({ queue, group }) {
  const [partition, setPartition] = useState("Default");
  const { data, error } = usePoll(withQuery(url`api/v1/subscriptions/${group}/start/${queue}`, { partition }), 60);
  const at = data?.start_at ? format.time(data.start_at) : data?.asked_offset ?? "";
  return html`<${Card} title="Start">
    <label>Partition <input name="start-partition" value=${partition} onChange=${(event) => setPartition(event.target.value || "Default")} /></label>
    <${Failure} error=${error} />
    ${data && html`<p>${data.scope
    ? `Its subscription to the ${data.scope} decides: mode ${data.mode} ${at}`.trim()
    : "No subscription decides yet: its first pop stores one"}. ${data.start_offset === null
    ? "The partition does not exist yet."
    : `It ${data.has_started ? "started" : "will start"} at offset ${format.count(data.start_offset)}.`}</p>`}
  </${Card}>`;
}

function Trends({ rows }) {
  const charts = useMemo(() => [
    ["Acked", "messages/s", 2],
    ["Lag", "messages", 3],
    ["Time lag", "seconds", 4],
  ].map(([title, unit, column]) => {
    const { at, groups } = byGroup(rows ?? [], column, () => true);
    return [title, unit, at, [{ label: title.toLowerCase(), values: [...groups.values()][0] ?? [] }]];
  }), [rows]);
  if (rows === null) return null;
  return html`<div class="charts three">${charts.map(([title, unit, at, series]) => html`<${Chart} key=${title} title=${title} unit=${unit} at=${at} series=${series} />`)}</div>`;
}

function consequence(verb, now) {
  const who = format.groupName(now.group);
  const leases = now.leased ? ` ${format.plural(now.leased, "lease")} out now ${now.leased === 1 ? "is" : "are"} given back; what its consumers answer to that is refused.` : "";
  if (verb === "pause") return `${who} gets nothing from ${now.queue} until it is resumed. ${format.plural(now.lag, "message")} stay owed to it and are kept.${leases}`;
  if (verb === "resume") return `${who} goes on where it was: ${format.plural(now.lag, "message")} ${now.lag === 1 ? "is" : "are"} delivered to it.`;
  return `The subscription of ${who} to ${now.queue} ends. ${format.plural(now.lag, "message")} it has not done are no longer owed to it and may be deleted. Its pops are refused until it subscribes anew.${leases}`;
}

const DONE = { pause: "is paused", resume: "goes on", cancel: "is cancelled" };

function Actions({ now, reload }) {
  const may = useRights(now.queue);
  if (!may("seek")) return null;
  const act = async (verb) => {
    const title = `${verb[0].toUpperCase()}${verb.slice(1)} ${format.groupName(now.group)}?`;
    const sure = await ask({ title, body: html`<p>${consequence(verb, now)}</p>`, action: `${title.split(" ")[0]} the group`, danger: verb === "cancel" });
    if (sure) {
      await attempt(() => post(url`api/v1/subscriptions/${now.group}/` + verb, { queue: now.queue }), `${format.groupName(now.group)} ${DONE[verb]}.`);
      reload();
    }
  };
  const button = (verb, label, kind = "") => html`<button type="button" key=${kind} class=${kind} onClick=${() => act(verb)}>${label}</button>`;
  // Keyed by place: what has the focus is never another button than before.
  return html`
    ${now.status !== "CANCELLED" && (now.status === "ACTIVE" ? button("pause", "Pause", "turn") : button("resume", "Resume", "turn"))}
    <button type="button" key="seek" onClick=${() => seek(now, reload)}>Seek</button>
    ${now.status !== "CANCELLED" && button("cancel", "Cancel", "danger")}`;
}
