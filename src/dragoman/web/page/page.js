// The page: its language, the speech half, and one pane of chat or two.

import { isPrivate } from "./accounts.js";
import { tab } from "./kept.js";
import { Pane } from "./pane.js";
import { Speech } from "./speech.js";
import { choose, language, preferred, say, speak } from "./words.js";

const asked = new URLSearchParams(location.search);
const part = (name) => document.querySelector(`[data-part="${name}"]`);

speak(preferred());
part("language").value = language();
part("language").addEventListener("change", ({ target }) => choose(target.value));

const people = new Map(), alone = asked.get("as");
const sides = alone ? [[alone, asked.get("to") ?? ""]] : [["alice", "bob"], ["bob", "alice"]];
const panes = sides.map(([name, peer]) => new Pane(part("pane"), { name, peer, people }));
part("panes").append(...panes.map((pane) => pane.root));
if (alone) {
  // In its own window the chat comes first: a message counts as read only when it is visible.
  part("panes").classList.add("single");
  document.querySelector("main").prepend(part("chat"));
  say(part("chat-lead"), "chat.lead.single");
}
if (alone && asked.get("to")) {
  // A link must not create or open an account where others can reach this page.
  if (isPrivate) panes[0].enter();
  else panes[0].part("password").focus({ preventScroll: true });
}

// A chat login opens speech and rooms as well, if the server allows it.
const token = () => panes.find((pane) => pane.token)?.token;
new Speech(part("speech"), token);
part("rooms-start").addEventListener("click", () => tab.set("dragoman.token", token() ?? null));
