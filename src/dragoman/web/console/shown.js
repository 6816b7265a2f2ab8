// Numbers and times as people read them.

import { locale, word } from "./words.js";

const AGES = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];

export const count = (value) => new Intl.NumberFormat(locale()).format(value ?? 0);

export function bytes(value) {
  if (!value) return "0 B";
  const step = Math.min(Math.floor(Math.log2(value) / 10), 3);
  return `${count(Math.round((10 * value) / 1024 ** step) / 10)} ${["B", "KiB", "MiB", "GiB"][step]}`;
}

export const ms = (value) => (value < 10_000 ? `${count(Math.round(value))} ms` : `${count(Math.round(value / 100) / 10)} s`);

export function age(span) {
  for (const [size, unit] of AGES) if (span >= size) return `${Math.floor(span / size)} ${unit}`;
  return "0 s";
}

export const ago = (at, now) => (at ? word("ago", { age: age(Math.max(0, now - at)) }) : "");

export function clock(at) {
  const date = new Date(at), today = new Date().toDateString() === date.toDateString();
  const day = today ? {} : { month: "short", day: "numeric" };
  return date.toLocaleString(locale(), { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

const LONGEST_ID = 20;

/** Both ends of a long id: the beginning shows its kind, the end distinguishes it. */
export const short = (id) => (id.length > LONGEST_ID ? `${id.slice(0, 10)}…${id.slice(-4)}` : id);

export const few = (items, most = 8) =>
  items.slice(0, most).join(" ") + (items.length > most ? ` +${items.length - most}` : "");
