// Small pieces that every page is made of.
import * as format from "./format.js";
import { html, useEffect, useRef, useState } from "./lib.js";

export function Page({ title, aside, children }) {
  return html`<header class="page"><h1>${title}</h1><div class="aside">${aside}</div></header>${children}`;
}

export function Card({ title, aside, children, kind = "" }) {
  return html`<section class=${`card ${kind}`}>
    ${title && html`<h2>${title}<span class="aside">${aside}</span></h2>`}${children}
  </section>`;
}

export function Tile({ label, value, note, tone = "", href }) {
  const body = html`<span class="label">${label}</span><strong>${value}</strong><span class="note">${note}</span>`;
  return href ? html`<a class=${`tile ${tone}`} href=${href}>${body}</a>` : html`<div class=${`tile ${tone}`}>${body}</div>`;
}

export function Status({ value }) {
  return html`<span class=${`status ${value.toLowerCase()}`}>${value.toLowerCase().replace("_", " ")}</span>`;
}

export function Failure({ error, what = "This" }) {
  if (error === null) return null;
  const text = error.status === 403 ? `${what} needs rights that you do not have.` : error.message;
  return html`<p class="failure" role="alert">${text}</p>`;
}

// columns: {key, label, quiet, number, wide, sort, show(row)}. The label of a `quiet` one is only heard. What is `wide` is left out on a narrow screen,
// where the rows of a `stack` become blocks.
export function Table({ columns, rows, id, sort, onSort, empty = "Nothing.", stack = false }) {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<${Scroll} kind=${stack ? "scroll stack" : "scroll"}><table>
    <thead><tr>${columns.map((column) => html`<${Head} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}</tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr key=${id(row)}>${columns.map(
        (column) => html`<td key=${column.key} class=${classes(column)} data-label=${column.quiet ? "" : column.label}>${column.show ? column.show(row) : row[column.key]}</td>`,
      )}</tr>`,
    )}</tbody>
  </table></${Scroll}>`;
}

// What is wider than the screen can be moved by keys as well.
function Scroll({ kind, children }) {
  const box = useRef(null);
  const [over, setOver] = useState(false);
  useEffect(() => {
    const node = box.current;
    const watch = new ResizeObserver(() => setOver(node.scrollWidth > node.clientWidth));
    watch.observe(node);
    watch.observe(node.firstChild);
    return () => watch.disconnect();
  }, []);
  const keys = over ? { tabindex: 0, role: "group", "aria-label": "Table" } : {};
  return html`<div ref=${box} class=${kind} ...${keys}>${children}</div>`;
}

function classes(column) {
  return `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`;
}

function Head({ column, sort, onSort }) {
  if (!column.sort) return html`<th class=${classes(column)}>${column.quiet ? html`<span class="heard">${column.label}</span>` : column.label}</th>`;
  const on = sort.by === column.sort;
  // Numbers are looked at from the top, names from the beginning.
  const next = { by: column.sort, descending: on ? !sort.descending : Boolean(column.number) };
  return html`<th class=${classes(column)} aria-sort=${on ? (sort.descending ? "descending" : "ascending") : "none"}>
    <button type="button" class="sort" onClick=${() => onSort(next)}>${column.label}<i aria-hidden="true">${on ? (sort.descending ? "▾" : "▴") : ""}</i></button>
  </th>`;
}

export function Pager({ skip, size, total, onChange }) {
  if (total === 0) return null;
  if (total <= size) return html`<p class="pager">${format.plural(total, "row")}</p>`;
  return html`<p class="pager">
    <button type="button" disabled=${skip === 0} onClick=${() => onChange(Math.max(0, skip - size))}>Previous</button>
    <span>${format.exact(skip + 1)}–${format.exact(Math.min(skip + size, total))} of ${format.exact(total)}</span>
    <button type="button" disabled=${skip + size >= total} onClick=${() => onChange(skip + size)}>Next</button>
  </p>`;
}

// The day is left out where there is no room for it.
export function When({ at }) {
  const [day, clock] = format.time(at).split(" ");
  return html`<span class="wide">${day} </span>${clock}`;
}

export const queueLink = (name) => `#/queues/${encodeURIComponent(name)}`;
export const groupLink = (group, queue) => `#/groups/${encodeURIComponent(group)}/${encodeURIComponent(queue)}`;
export const messagesLink = (values) => `#/messages?${new URLSearchParams(values)}`;
export const lettersLink = (values) => `#/dead-letters?${new URLSearchParams(values)}`;
