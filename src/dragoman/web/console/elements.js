// Elements in one expression. Text is always set as text: what is shown was written by somebody else.

import { say } from "./words.js";

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

export const text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};
