// The texts of the page in English and Chinese. An element keeps its key, so that the language can change at any time.

import { browser } from "./kept.js";
import { EN } from "./words_en.js";
import { ZH } from "./words_zh.js";

const WORDS = { en: EN, zh: ZH };
const KEPT = "dragoman.language";
let chosen = "en";

export const language = () => chosen;

/** Add the texts of another page, or replace these by them. */
export function extend(en, zh) {
  Object.assign(EN, en);
  Object.assign(ZH, zh);
}

/** `{name}` in a sentence is filled from `values`. */
export function word(key, values = {}) {
  const text = WORDS[chosen][key] ?? EN[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export const has = (key) => key in EN;

export function say(element, key, values = {}) {
  element.dataset.word = key;
  element.dataset.values = JSON.stringify(values);
  element.textContent = key ? word(key, values) : "";
}

/** As a label for screen readers and as a tooltip. */
export function label(element, key) {
  element.dataset.label = key;
  element.setAttribute("aria-label", word(key));
}

/** The language chosen before, or that of the browser. */
export function preferred() {
  const asked = new URLSearchParams(location.search).get("lang") ?? browser.get(KEPT) ?? navigator.language;
  return asked.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function speak(code) {
  chosen = code in WORDS ? code : "en";
  document.documentElement.lang = chosen === "zh" ? "zh-CN" : "en";
  document.title = word(document.documentElement.dataset.title ?? "title");
  translate(document);
  dispatchEvent(new Event("language"));
}

export function choose(code) {
  browser.set(KEPT, code);
  speak(code);
}

export function translate(root) {
  for (const element of root.querySelectorAll("[data-word]")) {
    if (element.dataset.word) element.textContent = word(element.dataset.word, JSON.parse(element.dataset.values ?? "{}"));
  }
  for (const element of root.querySelectorAll("[data-label]")) label(element, element.dataset.label);
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = word(element.dataset.hint);
}

/** `rtl`, `ltr`, or nothing where the browser does not know. */
export function direction(code) {
  try {
    const locale = new Intl.Locale(code);
    return (locale.getTextInfo?.() ?? locale.textInfo)?.direction ?? "";
  } catch {
    return "";
  }
}

/** The name of a language in the language of the page. */
export function nameOf(code) {
  try {
    return new Intl.DisplayNames([chosen === "zh" ? "zh-CN" : "en"], { type: "language" }).of(code) ?? code;
  } catch {
    return code;
  }
}
