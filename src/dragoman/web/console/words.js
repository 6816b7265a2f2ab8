// The texts of the console in English and Chinese. A static element keeps its key, so that the language can change at any
// time; the others are drawn again every second.

import { TIPS_EN } from "./tips_en.js";
import { TIPS_ZH } from "./tips_zh.js";
import { EN as WORDS_EN } from "./words_en.js";
import { ZH as WORDS_ZH } from "./words_zh.js";

const EN = { ...WORDS_EN, ...TIPS_EN }, WORDS = { en: EN, zh: { ...WORDS_ZH, ...TIPS_ZH } };
const KEPT = "dragoman.language"; // the same as that of the page at /
let chosen = "en";

export const language = () => chosen;
export const locale = () => (chosen === "zh" ? "zh-CN" : "en-GB");

/** `{name}` in a sentence is filled from `values`. */
export function word(key, values = {}) {
  const text = WORDS[chosen][key] ?? EN[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** The text for a name of the server, or that name itself. */
export const named = (group, name) => (`${group}.${name}` in EN ? word(`${group}.${name}`) : name);

export function say(element, key, values = {}) {
  element.dataset.word = key;
  element.dataset.values = JSON.stringify(values);
  const text = key ? word(key, values) : "";
  if (element.textContent !== text) element.textContent = text;
}

/** What a term means, shown when the pointer rests on it: the word `key.tip`, where there is one. */
export function tip(element, key) {
  if (!(`${key}.tip` in EN)) return element;
  element.dataset.tip = `${key}.tip`;
  element.title = word(element.dataset.tip);
  return element;
}

export function preferred() {
  const asked = new URLSearchParams(location.search).get("lang") ?? stored() ?? navigator.language;
  return asked.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function speak(code) {
  chosen = code in WORDS ? code : "en";
  document.documentElement.lang = chosen === "zh" ? "zh-CN" : "en";
  document.title = word("title");
  translate(document);
  dispatchEvent(new Event("language"));
}

/** Set every text below `root`. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-word]")) {
    if (element.dataset.word) element.textContent = word(element.dataset.word, JSON.parse(element.dataset.values ?? "{}"));
  }
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", word(element.dataset.label));
  }
  for (const element of root.querySelectorAll("[data-tip]")) element.title = word(element.dataset.tip);
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = word(element.dataset.hint);
}

export function choose(code) {
  try {
    localStorage.setItem(KEPT, code);
  } catch {
    // The browser stores nothing: the choice holds for this page only.
  }
  speak(code);
}

function stored() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}
