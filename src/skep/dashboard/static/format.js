// Formats numbers and times.
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

export function count(n) {
  if (n === null || n === undefined) return "–";
  return Math.abs(n) < 100_000 ? whole.format(n) : short.format(n);
}

// Never abbreviates: confirmation dialogs show exact numbers.
export function exact(n) {
  return whole.format(n);
}

export function plural(n, one, many = `${one}s`) {
  return `${exact(n)} ${n === 1 ? one : many}`;
}

export function rate(n) {
  if (n === null || n === undefined) return "–";
  return n >= 100 || n === 0 ? count(Math.round(n)) : n.toFixed(n >= 10 ? 1 : 2);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds <= 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${tenths(seconds / 3600)} h`;
  return `${tenths(seconds / 86_400)} d`;
}

const tenths = (n) => String(Number(n.toFixed(1)));

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let power = 0;
  let value = n;
  while (value >= 1000 && power < UNITS.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${power && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[power]}`;
}

const two = (n) => String(n).padStart(2, "0");

export function time(iso) {
  if (!iso) return "–";
  const at = new Date(iso);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function age(iso) {
  return iso ? duration(Math.max(0, (Date.now() - new Date(iso).getTime()) / 1000)) : "–";
}

export function remaining(iso) {
  return duration(Math.max(0, (new Date(iso).getTime() - Date.now()) / 1000));
}

export function groupName(name) {
  return name === "__QUEUE_MODE__" ? "(queue mode)" : name;
}

// Always returns text: a payload is never rendered as markup.
export function pretty(value) {
  return typeof value === "string" ? value : json(value);
}

export function json(value) {
  return JSON.stringify(value, null, 2);
}
