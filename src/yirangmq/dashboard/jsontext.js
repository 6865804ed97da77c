/* JSON as text: coloured, indented and searched without reading its values: 1.0 stays 1.0, and no digit is lost. */

import { h } from "./dom.js";

const TOKEN = /("(?:[^"\\]|\\.)*"?)|(-?\d[\d.eE+-]*)|([A-Za-z_]+)|([{}[\],:])|(\s+)|(.)/gs;
const KINDS = ["string", "number", "word", "sign", "space", "other"];
const MOST_COLOURED = 100_000;
/* Characters; past that every token as a node of its own costs more than colours are worth. */

/** `{kind, text, at}` for every piece of a text; joined they are the text. */
function* tokens(text) {
  for (const found of text.matchAll(TOKEN)) {
    const kind = KINDS[found.slice(1).findIndex((part) => part !== undefined)];
    yield { kind, text: found[0], at: found.index };
  }
}

/** The same document, two spaces a level. */
export function indented(text) {
  let depth = 0;
  let whole = "";
  let before = "";
  for (const token of tokens(text)) {
    if (token.kind === "space") continue;
    const closes = token.text === "}" || token.text === "]";
    if (closes) depth -= 1;
    if (whole !== "" && needsLine(before, token.text)) whole += `\n${"  ".repeat(depth)}`;
    whole += token.text === ":" ? ": " : token.text;
    if (token.text === "{" || token.text === "[") depth += 1;
    before = token.text;
  }
  return whole;
}

function needsLine(before, text) {
  if (before === "{") return text !== "}";
  if (before === "[") return text !== "]";
  return before === "," || text === "}" || text === "]";
}

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The text as coloured nodes; what lies within `wrong` (`{start, end}`) is marked. */
export function coloured(text, wrong = null) {
  if (text.length > MOST_COLOURED) return [text];
  const nodes = [];
  const all = [...tokens(text)];
  all.forEach((token, index) => {
    const isWrong = wrong !== null && token.at < wrong.end && token.at + token.text.length > wrong.start;
    const kind = token.kind === "string" && isKey(all, index) ? "key" : token.kind;
    const isPlain = kind === "space" || kind === "sign" || kind === "other";
    const inside = isPlain ? token.text : h("span", { class: `json-${kind}` }, token.text);
    nodes.push(isWrong ? h("mark", { class: "wrong-place" }, inside) : inside);
  });
  return nodes;
}

function isKey(all, index) {
  const next = all.slice(index + 1, index + 3).find((token) => token.kind !== "space");
  return next?.text === ":";
}

/** Where a member stands: `locate(text, "retry.limit")`, `"schedules[0].cron"`. Of one that is not there, the nearest
 * member around it; null where there is none. */
export function locate(text, field) {
  let best = null;
  for (const spot of members(text)) {
    if (spot.path === field) return spot;
    const isAround = field.startsWith(spot.path) && /^[.[]/.test(field.slice(spot.path.length));
    if (isAround && (best === null || spot.path.length > best.path.length)) best = spot;
  }
  return best;
}

/** `{path, start, end}` of every member and element: from its name to the end of its value, or the value where that is
 * short enough to point at. */
function* members(text) {
  const stack = [];
  let name = null;
  let key = null;
  const all = [...tokens(text)].filter((token) => token.kind !== "space");
  for (const [index, token] of all.entries()) {
    const top = stack[stack.length - 1];
    if (token.text === "}" || token.text === "]") stack.pop();
    else if (token.text === ",") {
      if (top?.isList) top.count += 1;
    } else if (token.kind === "string" && all[index + 1]?.text === ":") {
      key = token;
      name = join(top?.path ?? "", unquoted(token.text));
    } else if (token.text !== ":") {
      const path = top?.isList ? `${top.path}[${top.count}]` : (name ?? "");
      const opens = token.text === "{" || token.text === "[";
      const first = opens && key !== null ? key : token;
      if (path !== "") yield { path, start: first.at, end: first.at + first.text.length };
      if (opens) stack.push({ path, isList: token.text === "[", count: 0 });
      key = null;
      name = null;
    }
  }
}

function join(above, name) {
  return above === "" ? name : `${above}.${name}`;
}

function unquoted(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Where a text stops being JSON: `{text, start, end}`, null where it is JSON. */
export function mistake(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    const place = /position (\d+)/.exec(error.message);
    const start = Math.min(place === null ? text.length : Number(place[1]), Math.max(0, text.length - 1));
    const line = text.slice(0, start).split("\n").length;
    const words = error.message
      .replace(/^JSON\.parse: /, "")
      .replace(/ in JSON at position.*$/, "")
      .replace(/ ?\(line.*$/, "");
    return { text: `line ${line}: ${words}`, start, end: start + 1 };
  }
}
