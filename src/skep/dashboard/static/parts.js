// Components and links that the pages share.
import * as format from "./format.js";
import { html, useEffect, useRef, useState } from "./lib.js";

export const TIME_LAG = "Age of the oldest pending message"; // the tooltip of columns and charts

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

export function Failure({ error, what = "this" }) {
  if (error === null) return null;
  const text = error.status === 403 ? `You do not have permission to view ${what}.` : error.message;
  return html`<p class="failure" role="alert">${text}</p>`;
}

// columns: {key, label, hint, labelHidden, number, wide, sort, show(row)}. `hint` is the tooltip of the label. A hidden
// label is for screen readers only. A narrow screen omits `wide` columns and shows the rows of a `stack` table as blocks.
export function Table({ columns, rows, id, sort, onSort, empty = "None.", stack = false }) {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<${Scroll} kind=${stack ? "scroll stack" : "scroll"}><table>
    <thead><tr>${columns.map((column) => html`<${Head} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}</tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr key=${id(row)}>${columns.map(
        (column) => html`<td key=${column.key} class=${classes(column)} data-label=${column.labelHidden ? "" : column.label}>${column.show ? column.show(row) : row[column.key]}</td>`,
      )}</tr>`,
    )}</tbody>
  </table></${Scroll}>`;
}

// A table that is wider than the screen gets the focus, so that the keyboard can scroll it.
function Scroll({ kind, children }) {
  const box = useRef(null);
  const [overflows, setOverflows] = useState(false);
  useEffect(() => {
    const node = box.current;
    const observer = new ResizeObserver(() => setOverflows(node.scrollWidth > node.clientWidth));
    observer.observe(node);
    observer.observe(node.firstChild);
    return () => observer.disconnect();
  }, []);
  const focusable = overflows ? { tabindex: 0, role: "group", "aria-label": "Table" } : {};
  return html`<div ref=${box} class=${kind} ...${focusable}>${children}</div>`;
}

function classes(column) {
  return `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`;
}

function Head({ column, sort, onSort }) {
  if (!column.sort) return html`<th class=${classes(column)} title=${column.hint}>${column.labelHidden ? html`<span class="visually-hidden">${column.label}</span>` : column.label}</th>`;
  const on = sort.by === column.sort;
  // Numbers sort in descending order first, names in ascending order.
  const next = { by: column.sort, descending: on ? !sort.descending : Boolean(column.number) };
  return html`<th class=${classes(column)} title=${column.hint} aria-sort=${on ? (sort.descending ? "descending" : "ascending") : "none"}>
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

// A narrow screen omits the date.
export function When({ at }) {
  const [day, clock] = format.time(at).split(" ");
  return html`<span class="wide">${day} </span>${clock}`;
}

export const queueLink = (name) => `#/queues/${encodeURIComponent(name)}`;
export const groupLink = (group, queue) => `#/groups/${encodeURIComponent(group)}/${encodeURIComponent(queue)}`;
export const messagesLink = (values) => `#/messages?${new URLSearchParams(values)}`;
export const deadLettersLink = (values) => `#/dead-letters?${new URLSearchParams(values)}`;
