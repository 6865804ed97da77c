/* Numbers, times and sizes as text. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const PARTS = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];
const NARROW = "\u202f";

export function count(value) {
  return value === null || value === undefined ? "–" : WHOLE.format(value);
}

/** A large number in a small place: 12.3 k. */
export function short(value) {
  if (value < 10_000) return WHOLE.format(value);
  if (value < 1_000_000) return `${trim(value / 1000)}${NARROW}k`;
  return `${trim(value / 1_000_000)}${NARROW}M`;
}

/** Per second. */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.1) return "< 0.1";
  return value < 100 ? trim(value) : short(Math.round(value));
}

function trim(value) {
  return value >= 100 ? WHOLE.format(value) : value.toFixed(1).replace(/\.0$/, "");
}

/** A span of time; the larger it is, the coarser. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.floor(Math.abs(seconds));
  if (whole < 10 && seconds % 1 !== 0) return `${Math.abs(seconds).toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(whole, 60, "min", "s");
  if (whole < 86_400) return two(Math.floor(whole / 60), 60, "h", "min");
  return two(Math.floor(whole / 3600), 24, "d", "h");
}

/** The same, short enough for an axis. */
export function brief(seconds) {
  for (const [unit, size] of [
    ["d", 86_400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= size) return `${trim(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

function two(value, base, large, small) {
  const rest = value % base;
  return `${Math.floor(value / base)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let unit = 0;
  let value = size;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : trim(value)} ${unit === 0 && value === 1 ? "byte" : UNITS[unit]}`;
}

/** An instant in the reader's own time zone: 2026-01-13 09:21:00. */
export function moment(iso) {
  if (iso === null || iso === undefined) return "–";
  const at = new Date(iso);
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${clock(at)}`;
}

export function clock(at) {
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

function pad(value) {
  return String(value).padStart(2, "0");
}

/** "3 s ago", "in 4 min". */
export function relative(iso, nowMs) {
  if (iso === null || iso === undefined) return "–";
  const seconds = (nowMs - Date.parse(iso)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${span(Math.floor(seconds))} ago` : `in ${span(Math.ceil(-seconds))}`;
}

/** A number that may have a fraction, such as a limit. */
export function decimal(value) {
  return PARTS.format(value);
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
