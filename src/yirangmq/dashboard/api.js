/* The server's API, as every client has it: /v1. Knows: requests, errors, the token. Does not know: pages. */

import { askToken } from "./dialogs.js";

const TOKEN = "yirangmq.token";
const PATIENCE_MS = 30_000;

/** Milliseconds by which the server's clock is ahead of ours, where that matters. */
export const server = { ahead: 0 };
const CLOCKS_AGREE_MS = 3000;

/** What the server refused, or that it cannot be reached (`status` 0). */
export class Refused extends Error {
  constructor(status, { code = "unavailable", message = "", field = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = field;
  }

  get isLost() {
    return this.status === 0;
  }
}

/** A path below /v1, its values encoded: path`queues/${queue}/messages`. */
export function path(parts, ...values) {
  return parts.reduce((whole, part, at) => whole + encodeURIComponent(values[at - 1]) + part);
}

/** `path` with a query; values that are null, undefined or "" are left out. */
export function withQuery(where, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${where}?${new URLSearchParams(given)}` : where;
}

export const get = (where, options) => json("GET", where, undefined, options);
export const post = (where, body = {}, options) => json("POST", where, body, options);
export const put = (where, body, options) => json("PUT", where, body, options);
export const del = (where, options) => json("DELETE", where, undefined, options);

async function json(method, where, body, options = {}) {
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  const headers = text === undefined ? {} : { "content-type": "application/json" };
  const answer = await send(method, where, { ...options, body: text, headers });
  try {
    return await answer.json();
  } catch (error) {
    throw lost(error);
  }
}

/** Any bytes: `{bytes, type}`. */
export async function getBytes(where, options = {}) {
  const answer = await send("GET", where, options);
  return { bytes: new Uint8Array(await answer.arrayBuffer()), type: answer.headers.get("content-type") ?? "" };
}

/** One request. If the server requires a token, a dialog asks for it, and the request is repeated. `allow` is a status
 * that is no error here. */
export async function send(method, where, { body, headers = {}, signal, patience = PATIENCE_MS, allow = 200 } = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const shown = token === null ? {} : { authorization: `Bearer ${token}` };
    const answer = await fetched(method, where, { body, headers: { ...headers, ...shown }, signal }, patience);
    if (answer.status === 401) {
      await renewToken(token);
      continue;
    }
    if (!answer.ok && answer.status !== allow) throw await refusal(answer);
    return answer;
  }
}

async function fetched(method, where, request, patience) {
  const signals = [request.signal, patience ? AbortSignal.timeout(patience) : undefined].filter(Boolean);
  try {
    const url = new URL(`v1/${where}`, document.baseURI);
    const answer = await fetch(url, { method, cache: "no-store", ...request, signal: AbortSignal.any(signals) });
    noteClock(answer.headers.get("date"));
    return answer;
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw lost(error);
  }
}

function noteClock(date) {
  const ahead = Date.parse(date ?? "") - Date.now();
  server.ahead = Math.abs(ahead) > CLOCKS_AGREE_MS ? ahead : 0;
}

function lost(error) {
  const text = error.name === "TimeoutError" ? "the server does not answer" : "the server cannot be reached";
  return new Refused(0, { message: text });
}

async function refusal(answer) {
  let problem;
  try {
    problem = (await answer.json()).error;
  } catch {
    problem = undefined;
  }
  return new Refused(answer.status, problem ?? { message: `the server answered ${answer.status}` });
}

let asking = null;
let isDeclined = false;

/** Several requests may be refused at once; the dialog opens once, and not again after it was dismissed. */
async function renewToken(used) {
  if (sessionStorage.getItem(TOKEN) !== used) return;
  const token = isDeclined ? null : await (asking ??= askToken(used !== null).finally(() => (asking = null)));
  isDeclined = token === null;
  if (isDeclined) throw new Refused(401, { code: "not_allowed", message: "this server requires a token" });
  sessionStorage.setItem(TOKEN, token);
}

/** Ask for a token again, after the dialog was dismissed. */
export function askAgain() {
  isDeclined = false;
}

let paths = null;

/** Does this server have such a path, as its OpenAPI document names it? */
export async function has(wanted) {
  paths ??= get("openapi.json").then((document) => new Set(Object.keys(document.paths)));
  try {
    return (await paths).has(wanted);
  } catch (error) {
    paths = null;
    throw error;
  }
}

/** The server may be another version now: request its paths again. */
export function forgetPaths() {
  paths = null;
}
