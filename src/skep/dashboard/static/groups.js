// The list of groups, one row for each queue that a group reads.
import { withQuery } from "./api.js";
import * as format from "./format.js";
import { html, useState } from "./lib.js";
import { Card, deadLettersLink, Failure, groupLink, Page, Pager, queueLink, Status, Table, TIME_LAG } from "./parts.js";
import { usePoll } from "./poll.js";

const SIZE = 50;
const STATUSES = ["ACTIVE", "PAUSED", "DEAD", "CANCELLED"];
const COLUMNS = [
  { key: "group", label: "Group", sort: "group", show: (row) => html`<a href=${groupLink(row.group, row.queue)}>${format.groupName(row.group)}<span class="narrow"> on ${row.queue}</span></a>` },
  { key: "queue", label: "Queue", wide: true, sort: "queue", show: (row) => html`<a href=${queueLink(row.queue)}>${row.queue}</a>` },
  { key: "status", label: "Status", sort: "status", show: (row) => html`<${Status} value=${row.status} />` },
  { key: "rate", label: "Acked/s", number: true, wide: true, sort: "rate", show: (row) => format.rate(row.rate) },
  { key: "lag", label: "Lag", number: true, sort: "lag", show: (row) => format.count(row.lag) },
  { key: "seconds", label: "Time lag", hint: TIME_LAG, number: true, sort: "seconds", show: (row) => (row.lag ? format.duration(row.seconds) : "–") },
  { key: "leased", label: "Leases", number: true, wide: true, sort: "leased", show: (row) => format.count(row.leased) },
  {
    key: "dead_letters",
    label: "Dead letters",
    number: true,
    wide: true,
    sort: "dead_letters",
    show: (row) => (row.dead_letters ? html`<a class="bad" href=${deadLettersLink({ queue: row.queue, group: row.group })}>${format.count(row.dead_letters)}</a>` : "0"),
  },
];

export function Groups() {
  const [search, setSearch] = useState("");
  const [status, setStatus] = useState(new URLSearchParams(location.hash.split("?")[1] ?? "").get("status") ?? "");
  const [sort, setSort] = useState({ by: "lag", descending: true });
  const [skip, setSkip] = useState(0);
  const path = withQuery("api/v1/dashboard/groups", { search, status, sort: sort.by, descending: sort.descending, limit: SIZE, offset: skip });
  const { data, error } = usePoll(path);
  const fromFirstPage = (change) => (value) => {
    setSkip(0);
    change(value);
  };
  const filters = html`<select aria-label="Status" value=${status} onChange=${(event) => fromFirstPage(setStatus)(event.target.value)}>
      <option value="">any status</option>${STATUSES.map((each) => html`<option value=${each} selected=${each === status}>${each.toLowerCase()}</option>`)}
    </select>
    <input type="search" placeholder="Search" aria-label="Search groups" value=${search} onInput=${(event) => fromFirstPage(setSearch)(event.target.value)} />`;
  return html`<${Page} title="Groups" aside=${filters}>
    <${Failure} error=${error} />
    ${data && html`<${Card}>
      <${Table} columns=${COLUMNS} rows=${data.groups} id=${(row) => `${row.group}\n${row.queue}`} sort=${sort} onSort=${fromFirstPage(setSort)} empty=${search || status ? "No group matches." : "No groups yet. The first pop or subscription creates one."} />
      <${Pager} skip=${skip} size=${SIZE} total=${data.total} onChange=${setSkip} />
    </${Card}>`}
  </${Page}>`;
}
