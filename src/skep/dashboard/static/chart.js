// A line chart over time: uPlot in a box that follows its width. New points are put into the chart that is there.
import uPlot from "./vendor/uplot.js";
import * as format from "./format.js";
import { html, useEffect, useRef } from "./lib.js";
import { useTheme } from "./theme.js";

const HEIGHT = 190;
const FORMATS = {
  "messages/s": format.rate,
  messages: format.count,
  seconds: format.duration,
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function line(series, n) {
  const stroke = colour(`--series-${(n % 6) + 1}`);
  return { label: series.label, stroke, width: 1.75, fill: n === 0 ? `${stroke}18` : undefined, points: { show: false } };
}

function options(width, unit, series) {
  const shown = FORMATS[unit];
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "skep" }, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: { x: { time: true }, y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, space: 70, values: hours },
      { ...axis, size: 58, values: (_chart, ticks) => ticks.map(shown) },
    ],
    series: [
      { label: "time", value: (_chart, at) => (at === null ? "" : format.time(at * 1000)) },
      ...series.map((each, n) => ({ ...line(each, n), value: (_chart, value) => shown(value) })),
    ],
  };
}

// 24 hours, without the date unless a day begins.
function hours(_chart, ticks) {
  return ticks.map((tick) => {
    const [day, clock] = format.time(tick * 1000).split(" ");
    return clock === "00:00:00" ? day.slice(5) : clock.slice(0, 5);
  });
}

export function Chart({ title, unit, at, series }) {
  const box = useRef(null);
  const chart = useRef(null);
  const theme = useTheme();
  const labels = series.map((each) => each.label).join("\n");
  const enough = at.length > 1;
  useEffect(() => {
    if (!enough) return undefined;
    const made = new uPlot(options(box.current.clientWidth, unit, series), [at, ...series.map((each) => each.values)], box.current);
    const watch = new ResizeObserver(() => made.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    watch.observe(box.current);
    chart.current = made;
    return () => {
      watch.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [theme, labels, unit, enough]);
  useEffect(() => {
    chart.current?.setData([at, ...series.map((each) => each.values)]);
  }, [at, series]);
  return html`<section class="card chart">
    <h2>${title} <small>${unit}</small></h2>
    <div ref=${box} class="plot" role="img" aria-label=${`${title} over time`}></div>
    ${!enough && html`<p class="empty">There is a line after two samples, some seconds from now.</p>`}
  </section>`;
}

export const RANGES = [
  [900, "15 min"],
  [3600, "1 h"],
  [21_600, "6 h"],
  [86_400, "24 h"],
  [604_800, "7 d"],
];

export function RangePicker({ value, onChange }) {
  return html`<div class="segments" role="group" aria-label="Time range">
    ${RANGES.map(
      ([seconds, label]) => html`<button type="button" class=${seconds === value ? "on" : ""} aria-pressed=${seconds === value} onClick=${() => onChange(seconds)}>${label}</button>`,
    )}
  </div>`;
}

// Rows [group, time, rate, lag, age, leased, dead] as one column for each group, over all times of any.
export function byGroup(rows, column, wanted) {
  const at = [...new Set(rows.map((row) => row[1]))].sort((a, b) => a - b);
  const place = new Map(at.map((moment, n) => [moment, n]));
  const groups = new Map();
  for (const row of rows) {
    if (!wanted(row[0])) continue;
    if (!groups.has(row[0])) groups.set(row[0], new Array(at.length).fill(null));
    groups.get(row[0])[place.get(row[1])] = row[column];
  }
  return { at, groups };
}
