// Captions of a room and nothing else, for a projector or a video mixer.
//
//   /captions/<room id or code>?lang=es&size=48&lines=2&background=transparent
//
// A listener that only reads. It joins again by itself, whatever happens, and shows the translation as soon as it is there;
// an original that nobody translates is shown as it is.

import { Membership } from "../room/membership.js";

const AGAIN_MS = 10000; // a wrong code may be tried ten times a minute
const MOST = 30; // captions kept on the page; only the last lines are visible
const LASTS_MS = 10000; // how long the words of somebody who stopped stay
const DARK = 128; // below it a background is dark, of 255

const [, , place] = location.pathname.split("/"), asked = new URLSearchParams(location.search);
const lang = asked.get("lang") || navigator.language.split("-")[0].toLowerCase();
const lines = document.querySelector('[data-part="lines"]');
const shown = new Map(); // caption id → { line, timer }

look(document.documentElement);
join();

function join() {
  const at = /^\d{6}$/.test(place) ? { code: place } : { id: decodeURIComponent(place) };
  const nothing = () => {};
  const room = new Membership(at, { name: "Captions", lang, listener: true }, {
    state: nothing, joined: nothing, members: nothing, entry, partial,
    over: () => setTimeout(join, AGAIN_MS),
  });
  room.start();
}

/** A caption has its place before its translation is there. One that was said before is shown only if it has a translation. */
function entry({ type, caption_id: id, lang: spoken, text, untranslated }) {
  if (type === "caption_lost") return drop(id);
  const { line } = row(id);
  if (spoken === lang) Object.assign(line, { className: "", lang: untranslated ? "" : lang, textContent: text });
}

function partial({ caption_id: id, lang: spoken, text }) {
  if (spoken !== lang || shown.get(id)?.line.className === "") return; // it has its caption
  if (!text) return drop(id);
  const known = row(id), { line } = known;
  Object.assign(line, { className: "partial", lang: spoken, textContent: text });
  clearTimeout(known.timer);
  known.timer = setTimeout(() => line.className === "partial" && drop(id), LASTS_MS);
}

function row(id) {
  if (!shown.has(id)) {
    const line = Object.assign(document.createElement("p"), { dir: "auto", className: "awaited" });
    lines.append(line);
    shown.set(id, { line });
    if (shown.size > MOST) drop(shown.keys().next().value);
  }
  return shown.get(id);
}

function drop(id) {
  shown.get(id)?.line.remove();
  shown.delete(id);
}

// ---- how it looks

function look(root) {
  const size = Number(asked.get("size")), count = Number(asked.get("lines"));
  if (size >= 8 && size <= 400) root.style.setProperty("--size", `${size}px`);
  if (count >= 1 && count <= 20) root.style.setProperty("--lines", Math.round(count));
  const ground = asked.get("background") ?? "black";
  root.style.background = CSS.supports("color", ground) ? ground : "black";
  const [red, green, blue, alpha = 1] = getComputedStyle(root).backgroundColor.match(/[\d.]+/g).map(Number);
  const isDark = 0.299 * red + 0.587 * green + 0.114 * blue < DARK;
  root.dataset.ground = alpha < 0.5 ? "clear" : isDark ? "dark" : "light";
}
