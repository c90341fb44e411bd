// One group on one queue: its progress and the actions pause, resume, cancel and seek.
import { post, url, withQuery } from "./api.js";
import { byGroup, Chart, RangePicker } from "./chart.js";
import { Consumers } from "./consumers.js";
import { confirmAction, runAction } from "./dialog.js";
import * as format from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { Card, deadLettersLink, Failure, Page, queueLink, Status, Tile, TIME_LAG } from "./parts.js";
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
    ${data && !now && html`<p class="empty">This group has no subscription to this queue and has never read from it.</p>`}
    ${now && html`<${Tiles} now=${now} />`}
    <${Trends} rows=${trend.data} />
    ${now && html`<${Start} queue=${queue} group=${group} /><${Consumers} queue=${queue} group=${group} /><${Partitions} name=${queue} group=${group} />`}
  </${Page}>`;
}

function Tiles({ now }) {
  const late = now.oldest_pending_at && Date.now() - new Date(now.oldest_pending_at) > 300_000;
  return html`<div class="tiles">
    <${Tile} label="Lag" value=${format.count(now.lag)} note=${`in ${format.plural(now.partitions, "partition")}`} />
    <${Tile} label="Time lag" value=${now.oldest_pending_at ? format.age(now.oldest_pending_at) : "0 s"} tone=${late ? "warn" : ""} note="age of the oldest pending message" />
    <${Tile} label="Leases" value=${format.count(now.leased)} note="active" />
    <${Tile} label="Processed" value=${format.count(now.processed)} note="since the start or the last seek" />
    <${Tile} label="Dead letters" value=${format.count(now.dead_letters)} tone=${now.dead_letters ? "bad" : ""} note="failed messages" href=${deadLettersLink({ queue: now.queue, group: now.group })} />
    <${Tile} label="Missed" value=${format.count(now.missed)} tone=${now.missed ? "bad" : ""} note="deleted before it read them" />
    <${Tile} label="Last heartbeat" value=${format.age(now.last_heartbeat_at)} tone=${now.misses ? "warn" : ""} note=${now.misses ? `ago, ${format.plural(now.misses, "heartbeat")} missed` : "ago"} />
  </div>`;
}

// The start position of the group in a partition, and the subscription that determines it.
function Start({ queue, group }) {
  const [partition, setPartition] = useState("Default");
  const { data, error } = usePoll(withQuery(url`api/v1/subscriptions/${group}/start/${queue}`, { partition }), 60);
  const at = data?.start_at ? format.time(data.start_at) : data?.asked_offset ?? "";
  return html`<${Card} title="Start position">
    <label>Partition <input name="start-partition" value=${partition} onChange=${(event) => setPartition(event.target.value || "Default")} /></label>
    <${Failure} error=${error} />
    ${data && html`<p>${data.scope
    ? `The subscription of the group to the ${data.scope} determines the start: mode ${data.mode} ${at}`.trim()
    : "The group has no subscription to this partition yet. Its first pop creates one"}. ${data.start_offset === null
    ? "The partition does not exist yet."
    : `The group ${data.has_started ? "started" : "will start"} at offset ${format.count(data.start_offset)}.`}</p>`}
  </${Card}>`;
}

function Trends({ rows }) {
  const charts = useMemo(() => [
    ["Ack rate", "messages/s", "acked", 2],
    ["Lag", "messages", "lag", 3],
    ["Time lag", "seconds", "time lag", 4, TIME_LAG],
  ].map(([title, unit, label, column, hint]) => {
    const { at, groups } = byGroup(rows ?? [], column, () => true);
    return { title, hint, unit, at, series: [{ label, values: [...groups.values()][0] ?? [] }] };
  }), [rows]);
  if (rows === null) return null;
  return html`<div class="charts three">${charts.map((chart) => html`<${Chart} key=${chart.title} ...${chart} />`)}</div>`;
}

function consequence(verb, now) {
  const group = format.groupName(now.group);
  const backlog = format.plural(now.lag, "pending message");
  const revoked = now.leased === 1 ? "1 active lease is revoked: acks for it are rejected." : `${format.exact(now.leased)} active leases are revoked: acks for them are rejected.`;
  const leases = now.leased ? ` ${revoked}` : "";
  if (verb === "pause") return `${group} receives no messages from ${now.queue} until it is resumed. Its ${backlog} ${now.lag === 1 ? "is" : "are"} kept.${leases}`;
  if (verb === "resume") return `${group} continues from its cursor, with ${backlog}.`;
  return `The subscription of ${group} to ${now.queue} is cancelled. Retention no longer waits for the group and may delete its ${backlog}. Pops of the group are rejected until it subscribes again.${leases}`;
}

const SUCCESS = { pause: "paused", resume: "resumed", cancel: "cancelled" };

function Actions({ now, reload }) {
  const may = useRights(now.queue);
  if (!may("seek")) return null;
  const act = async (verb) => {
    const title = `${verb[0].toUpperCase()}${verb.slice(1)} ${format.groupName(now.group)}?`;
    const body = html`<p>${consequence(verb, now)}</p>`;
    if (await confirmAction({ title, body, action: `${title.split(" ")[0]} group`, danger: verb === "cancel" })) {
      const success = `Group ${format.groupName(now.group)} ${SUCCESS[verb]}.`;
      await runAction(() => post(url`api/v1/subscriptions/${now.group}/` + verb, { queue: now.queue }), success);
      reload();
    }
  };
  const button = (verb, label, key, kind = "") => html`<button type="button" key=${key} class=${kind} onClick=${() => act(verb)}>${label}</button>`;
  // Pause and Resume share a key: the button keeps the focus when its label changes.
  return html`
    ${now.status !== "CANCELLED" && (now.status === "ACTIVE" ? button("pause", "Pause", "pause") : button("resume", "Resume", "pause"))}
    <button type="button" key="seek" onClick=${() => seek(now, reload)}>Seek</button>
    ${now.status !== "CANCELLED" && button("cancel", "Cancel", "cancel", "danger")}`;
}
