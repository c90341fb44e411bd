// The JSON API. The token lives in sessionStorage: it ends with the tab, and no other origin can read it.
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

// For the one thing that is not asked for by a script: a page of its own.
export function tokenField() {
  return sessionStorage.getItem(KEY);
}

// url`api/v1/queues/${name}`: what is filled in becomes one segment of the path, whatever is in it.
export function url(parts, ...names) {
  return parts.reduce((path, part, n) => path + encodeURIComponent(names[n - 1]) + part);
}

// Adds a query; what is empty is left out.
export function withQuery(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// A number that JavaScript cannot hold stays the text it was: ids of 64 bits are common in payloads.
function exactly(_key, value, context) {
  return typeof value === "number" && context && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
}

// A body that is text already is sent as it is: numbers in it may be more than JavaScript can hold. `fresh`: of this moment; otherwise what somebody
// else has just got will do, so that many open pages are not much more work than one.
async function request(method, path, body, { signal, exact, fresh } = {}) {
  const headers = method === "GET" && !fresh ? { "cache-control": "max-age=30" } : {};
  const token = sessionStorage.getItem(KEY);
  if (token !== null) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await reach(path, { method, headers, signal, body: typeof body === "object" ? JSON.stringify(body) : body });
  const text = await answer.text();
  if (!answer.ok) throw refused(answer.status, text);
  return text ? JSON.parse(text, exact && NUMBERS_ARE_EXACT ? exactly : undefined) : null;
}

async function reach(path, options) {
  try {
    return await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
}

function refused(status, text) {
  let told = text;
  try {
    told = JSON.parse(text).error;
  } catch {
    // not ours: a proxy in between
  }
  if (status === 401) unauthenticated(told);
  return new ApiError(status, told || `The server answered ${status}.`);
}

export const get = (path, options) => request("GET", path, undefined, options);
export const post = (path, body = {}) => request("POST", path, body);
export const patch = (path, body) => request("PATCH", path, body);
