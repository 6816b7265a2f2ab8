// Elements in one expression. Text is always set as text: other people wrote it.

import { say, word } from "./words.js";

const COPIED_MS = 1200;

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "word") say(made, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A card with a title; `tools` stand beside it. */
export function section(title, tools, ...children) {
  const heading = element("h2", { word: title });
  return element("section", { class: "card block" }, element("header", { class: "head" }, heading, ...tools), ...children);
}

export function button(key, onclick, kind = "small") {
  return element("button", { type: "button", class: kind, word: key, onclick });
}

/** A small button that copies what `of()` gives. */
export function copier(of) {
  const made = element("button", { type: "button", class: "copy" });
  made.addEventListener("click", async (event) => {
    event.preventDefault();
    await copy(of());
    made.dataset.copied = of();
    setTimeout(() => delete made.dataset.copied, COPIED_MS);
  });
  made.title = word("copy");
  made.dataset.tip = made.dataset.label = "copy";
  made.setAttribute("aria-label", word("copy"));
  return made;
}

/** Browsers give the clipboard to https and to localhost only; elsewhere the old way still works. */
async function copy(value) {
  if (navigator.clipboard) return navigator.clipboard.writeText(value);
  const field = element("textarea", { "aria-hidden": "true" });
  field.value = value;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export const text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};
