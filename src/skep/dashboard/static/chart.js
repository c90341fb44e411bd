// A line chart over time, drawn by uPlot. It follows the width of its element; new points update the existing chart.
import uPlot from "./vendor/uplot.js";
import * as format from "./format.js";
import { html, useEffect, useRef } from "./lib.js";
import { useTheme } from "./theme.js";

const HEIGHT = 180;
// For each unit: the format of values and of axis ticks. Seconds also list the allowed tick increments.
const UNITS = {
  "messages/s": { value: format.rate, tick: (n) => format.count(Number(n.toFixed(2))) },
  messages: { value: format.count, tick: format.count },
  seconds: { value: format.duration, tick: format.duration, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800] },
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesOptions(series, n) {
  const stroke = colour(`--series-${(n % 6) + 1}`);
  return { label: series.label, stroke, width: 1.75, fill: n === 0 ? `${stroke}18` : undefined, points: { show: false } };
}

function options(width, unit, series) {
  const { value: formatValue, tick, incrs } = UNITS[unit];
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "skep" }, drag: { x: false, y: false }, points: { size: 6 } },
    padding: [8, 18, 0, 0], // room for half of the last time label
    legend: { live: true },
    hooks: { setCursor: [showLastValues], setData: [showLastValues], ready: [showLastValues] },
    scales: { x: { time: true }, y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, size: 28, space: 70, values: hours },
      { ...axis, size: 58, incrs, values: (_chart, ticks) => ticks.map((n) => tick(n)) },
    ],
    series: [
      { label: "time", value: (_chart, at) => (at === null ? "" : format.time(at * 1000)) },
      ...series.map((each, n) => ({ ...seriesOptions(each, n), value: (_chart, value) => formatValue(value) })),
    ],
  };
}

// The legend shows the values under the pointer. Without a pointer it shows the last values.
function showLastValues(chart) {
  if (chart.cursor.idx === null || chart.cursor.idx === undefined) chart.setLegend({ idx: chart.data[0].length - 1 });
}

// Ticks show the time of day. A tick at midnight shows the date instead.
function hours(_chart, ticks) {
  return ticks.map((tick) => {
    const [day, clock] = format.time(tick * 1000).split(" ");
    return clock === "00:00:00" ? day.slice(5) : clock.slice(0, 5);
  });
}

export function Chart({ title, hint, unit, at, series }) {
  const box = useRef(null);
  const chart = useRef(null);
  const theme = useTheme();
  const labels = series.map((each) => each.label).join("\n");
  const drawable = at.length > 1;
  useEffect(() => {
    if (!drawable) return undefined;
    const node = box.current; // preact clears the reference before the observer disconnects
    const plot = new uPlot(options(node.clientWidth, unit, series), [at, ...series.map((each) => each.values)], node);
    const observer = new ResizeObserver(() => node.clientWidth && plot.setSize({ width: node.clientWidth, height: HEIGHT }));
    observer.observe(node);
    chart.current = plot;
    return () => {
      observer.disconnect();
      plot.destroy();
      chart.current = null;
    };
  }, [theme, labels, unit, drawable]);
  useEffect(() => {
    chart.current?.setData([at, ...series.map((each) => each.values)]);
  }, [at, series]);
  return html`<section class="card chart">
    <h2 title=${hint}>${title} <small>${unit}</small></h2>
    <div ref=${box} class="plot" role="img" aria-label=${`${title} over time`}></div>
    ${!drawable && html`<p class="empty">The chart appears after two samples, in about 20 seconds.</p>`}
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

// Turns rows [group, time, rate, lag, age, leased, dead] into one array of values for each group. All arrays share the
// times `at`.
export function byGroup(rows, column, includes) {
  const at = [...new Set(rows.map((row) => row[1]))].sort((a, b) => a - b);
  const indexes = new Map(at.map((time, n) => [time, n]));
  const groups = new Map();
  for (const row of rows) {
    if (!includes(row[0])) continue;
    if (!groups.has(row[0])) groups.set(row[0], new Array(at.length).fill(null));
    groups.get(row[0])[indexes.get(row[1])] = row[column];
  }
  return { at, groups };
}
