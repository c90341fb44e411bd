// The list of queues. The database searches, sorts and paginates, so that thousands of queues load as fast as ten.
import { withQuery } from "./api.js";
import * as format from "./format.js";
import { html, useState } from "./lib.js";
import { Card, deadLettersLink, Failure, Page, Pager, queueLink, Table, TIME_LAG } from "./parts.js";
import { usePoll } from "./poll.js";

const SIZE = 50;
const COLUMNS = [
  { key: "name", label: "Queue", sort: "name", show: (row) => html`<a href=${queueLink(row.name)}>${row.name}</a>` },
  { key: "namespace", label: "Namespace", wide: true },
  { key: "semantics", label: "Semantics", wide: true, show: (row) => row.semantics.replace("_", "/") },
  { key: "pushed", label: "Pushed/s", number: true, wide: true, sort: "pushed", show: (row) => format.rate(row.pushed) },
  { key: "done", label: "Acked/s", number: true, wide: true, sort: "done", show: (row) => format.rate(row.done) },
  { key: "lag", label: "Lag", number: true, sort: "lag", show: (row) => format.count(row.lag) },
  { key: "seconds", label: "Time lag", hint: TIME_LAG, number: true, sort: "seconds", show: (row) => (row.lag ? format.duration(row.seconds) : "–") },
  { key: "kept", label: "Stored", number: true, wide: true, sort: "kept", show: (row) => format.count(row.kept) },
  { key: "groups", label: "Groups", number: true, wide: true, sort: "groups", show: (row) => format.count(row.groups) },
  { key: "partitions", label: "Partitions", number: true, wide: true, show: (row) => format.count(row.partitions) },
  {
    key: "dead_letters",
    label: "Dead letters",
    number: true,
    sort: "dead_letters",
    show: (row) => (row.dead_letters ? html`<a class="bad" href=${deadLettersLink({ queue: row.name })}>${format.count(row.dead_letters)}</a>` : "0"),
  },
];

export function Queues() {
  const [search, setSearch] = useState("");
  const [sort, setSort] = useState({ by: "lag", descending: true });
  const [skip, setSkip] = useState(0);
  const path = withQuery("api/v1/dashboard/queues", { search, sort: sort.by, descending: sort.descending, limit: SIZE, offset: skip });
  const { data, error } = usePoll(path);
  const fromFirstPage = (change) => (value) => {
    setSkip(0);
    change(value);
  };
  const box = html`<input type="search" placeholder="Search" aria-label="Search queues" value=${search} onInput=${(event) => fromFirstPage(setSearch)(event.target.value)} />`;
  return html`<${Page} title="Queues" aside=${box}>
    <${Failure} error=${error} />
    ${data && html`<${Card}>
      <${Table} columns=${COLUMNS} rows=${data.queues} id=${(row) => row.name} sort=${sort} onSort=${fromFirstPage(setSort)} empty=${search ? "No queue matches." : "No queues yet. The first push creates one."} />
      <${Pager} skip=${skip} size=${SIZE} total=${data.total} onChange=${setSkip} />
    </${Card}>`}
  </${Page}>`;
}
