// Client of the JSON API. The token is in sessionStorage: it is gone when the tab closes, and no other origin can read
// it.
const KEY = "skep.token";
const NUMBERS_ARE_EXACT = typeof JSON.rawJSON === "function";

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let unauthenticated = () => {};

export function whenUnauthenticated(handler) {
  unauthenticated = handler;
}

export function signIn(token) {
  sessionStorage.setItem(KEY, token);
}

export function signOut() {
  sessionStorage.removeItem(KEY);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

// A report opens in its own tab by a form, which has to send the token itself.
export function storedToken() {
  return sessionStorage.getItem(KEY);
}

// url`api/v1/queues/${name}`: each value becomes one encoded segment of the path.
export function url(parts, ...names) {
  return parts.reduce((path, part, n) => path + encodeURIComponent(names[n - 1]) + part);
}

// Adds a query string. Empty values are omitted.
export function withQuery(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// Keeps the source text of numbers that JavaScript cannot represent: 64-bit ids are common in payloads.
function keepExactNumbers(_key, value, context) {
  return typeof value === "number" && context && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
}

// A body that is already text is sent unchanged, because its numbers may exceed what JavaScript can represent. Without
// `fresh` the server may send a response that it has cached for another page, so that many open pages cost little more
// than one.
async function request(method, path, body, { signal, exact, fresh } = {}) {
  const headers = method === "GET" && !fresh ? { "cache-control": "max-age=30" } : {};
  const token = sessionStorage.getItem(KEY);
  if (token !== null) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await send(path, { method, headers, signal, body: typeof body === "object" ? JSON.stringify(body) : body });
  const text = await response.text();
  if (!response.ok) throw apiError(response.status, text);
  return text ? JSON.parse(text, exact && NUMBERS_ARE_EXACT ? keepExactNumbers : undefined) : null;
}

async function send(path, options) {
  try {
    return await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Cannot reach the server.");
  }
}

function apiError(status, text) {
  let message = text;
  try {
    message = JSON.parse(text).error;
  } catch {
    // The response is not JSON: it came from a proxy, not from Skep.
  }
  if (status === 401) unauthenticated(message);
  return new ApiError(status, message || `The server returned status ${status}.`);
}

export const get = (path, options) => request("GET", path, undefined, options);
export const post = (path, body = {}) => request("POST", path, body);
export const patch = (path, body) => request("PATCH", path, body);
