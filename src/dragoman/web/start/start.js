// The first page: start a conversation, or join one by its code or link. Name and language are asked there, once.

import { choose, language, preferred, say, speak } from "../page/words.js";

const part = (name) => document.querySelector(`[data-part="${name}"]`);
const LINK = /\/room\/[\w-]{1,64}\/?$/;

speak(preferred());
part("language").value = language();
part("language").addEventListener("change", ({ target }) => choose(target.value));
part("place").addEventListener("input", () => say(part("unclear"), ""));
part("join").addEventListener("submit", (event) => {
  event.preventDefault();
  const address = addressOf(part("place").value);
  if (address) return location.assign(address);
  say(part("unclear"), "start.unclear");
  part("place").focus();
});

/** Where a code or a link leads; null if it is neither. */
function addressOf(text) {
  const digits = text.replace(/[\s-]/g, "");
  if (/^\d{6}$/.test(digits)) return `/room?code=${digits}`;
  try {
    const url = new URL(/^[\w.-]+(:\d+)?\//.test(text.trim()) ? `${location.protocol}//${text.trim()}` : text.trim(), location.origin);
    return /^https?:$/.test(url.protocol) && LINK.test(url.pathname) ? url.href : null;
  } catch {
    return null;
  }
}
