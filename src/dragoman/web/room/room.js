// The page of a room: who one is, what is said, who is there, and how others come in.
//
//   /room/<id>            join this room
//   /room?code=<digits>   join the room with this code
//   /room                 open a new room

import { browser, tab } from "../page/kept.js";
import { ask as askLanguages, options } from "../page/languages.js";
import { choose, extend, has, language, nameOf, preferred, say, speak } from "../page/words.js";
import { Captions } from "./captions.js";
import { Membership, newId } from "./membership.js";
import { People } from "./people.js";
import { drawing, squares } from "./qr.js";
import { ROOM_EN } from "./words_en.js";
import { ROOM_ZH } from "./words_zh.js";

const NAME = "dragoman.name", SPEAKS = "dragoman.speaks", SESSION = "dragoman.room";
const BRIEFLY_MS = 4000;
const FORMATS = ["vtt", "srt", "txt", "json"];
const TRY_AGAIN = [
  "left", "closed_by_server", "forbidden", "ROOM_FULL", "ROOM_LOCKED", "TOO_MANY_LANGUAGES", "LIMIT_EXCEEDED", "INTERNAL_ERROR",
];

const part = (name) => document.querySelector(`[data-part="${name}"]`);
const me = { name: browser.get(NAME) ?? "", lang: browser.get(SPEAKS) ?? "" };
const wide = matchMedia("(min-width: 900px)");
let room = null;

extend(ROOM_EN, ROOM_ZH);
speak(preferred());
part("language").value = language();
part("language").addEventListener("change", ({ target }) => choose(target.value));

const captions = new Captions(
  { list: part("captions"), hint: part("hint"), live: part("live"), newer: part("newer") },
  () => me.lang,
  {
    translate: (caption_id) =>
      request({ type: "room_translate", caption_id, lang: me.lang }, () => captions.notTranslated(caption_id)),
    again: (id, text) => write(text, id),
  },
);
const people = new People(part, { ask: (message) => request(message) });

// ---- who one is

let offered = "";

/** Offer what the fleet serves now. A menu stays as it is if nothing has changed: it may be open. */
async function languages() {
  const { groups = [], text = [] } = (await askLanguages()) ?? {};
  const own = navigator.language.split("-")[0].toLowerCase();
  const codes = new Set([...text, ...groups.flatMap((group) => [...group.from, ...group.to])]);
  const now = JSON.stringify([language(), ...codes]);
  if (now === offered) return;
  offered = now;
  const first = me.lang || (codes.has(own) || !codes.size ? own : "");
  const sorted = [...codes].sort((a, b) => nameOf(a).localeCompare(nameOf(b), language()));
  for (const menu of [part("lang"), part("my-lang")]) options(menu, sorted, menu.value || first || sorted[0]);
}

part("door").addEventListener("submit", (event) => {
  event.preventDefault();
  introduce(part("name").value.trim(), part("lang").value);
  enter();
});

part("me").addEventListener("submit", (event) => event.preventDefault());
for (const name of ["my-name", "my-lang"]) part(name).addEventListener("change", () => change());
for (const name of ["lang", "my-lang"]) part(name).addEventListener("focus", () => languages());

function introduce(name, lang) {
  Object.assign(me, { name, lang });
  browser.set(NAME, name);
  browser.set(SPEAKS, lang);
}

async function change() {
  const before = { ...me }, name = part("my-name").value.trim() || me.name, lang = part("my-lang").value;
  if (name === before.name && lang === before.lang) return;
  try {
    await room.change({ name, lang });
  } catch ({ code }) {
    part("my-name").value = me.name;
    part("my-lang").value = me.lang;
    return complain(code);
  }
  introduce(name, lang);
  links();
  if (lang !== before.lang) captions.changed();
  tell("room.changed", "good", { language: nameOf(lang) }, true);
}

// ---- coming in

/** The room in the address of this page. */
function place() {
  const [, , id] = location.pathname.split("/"), code = new URLSearchParams(location.search).get("code");
  return id ? { id } : code ? { code } : {};
}

function enter() {
  stage("room");
  part("my-name").value = me.name;
  part("my-lang").value = me.lang;
  const at = place(), before = JSON.parse(tab.take(SESSION) ?? "{}");
  const kept = at.id && before.room === at.id ? before : { unsent: [] };
  room = new Membership(at, me, {
    state,
    joined,
    members: (message) => {
      people.tell(message, room.you);
      writable();
    },
    entry: (message, isNew) => captions.entry(message, isNew, message.speaker?.session_id === room.you),
    over,
  }, tab.take("dragoman.token"));
  room.start(kept.member);
  for (const { id, text } of kept.unsent) write(text, id);
}

function joined(message, again) {
  history.replaceState(null, "", `/room/${message.room_id}`);
  part("code").textContent = message.room_code.replace(/^(\d{3})(\d{3})$/, "$1 $2");
  part("link").value = location.origin + location.pathname;
  const rows = squares(part("link").value);
  part("qr").replaceChildren(...(rows ? [drawing(rows)] : []));
  part("hint").hidden = part("captions").children.length > 0;
  if (!again && wide.matches) part("body").focus();
  if (again && !message.complete) captions.note("room.missed");
  if (again && message.complete) tell("state.resumed", "good", {}, true);
  say(part("unserved"), message.unserved ? "room.unserved" : "", { language: nameOf(message.unserved ?? "") });
  links();
}

// A page that is loaded again keeps its membership. A copy of the tab is a member of its own.
addEventListener("pagehide", () => {
  if (!room?.id || room.left) return;
  const unsent = [...captions.unsent].map(([id, row]) => ({ id, text: row.large.textContent }));
  tab.set(SESSION, JSON.stringify({ room: room.id, member: room.keep(), unsent }));
});
addEventListener("pageshow", ({ persisted }) => persisted && tab.take(SESSION));

// ---- writing

part("line").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = part("body").value.trim();
  if (!text || part("send").disabled) return;
  part("body").value = "";
  write(text);
});
part("body").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  part("line").requestSubmit();
});

async function write(text, id = newId()) {
  captions.writing(id, me.name, text);
  try {
    await room.write(id, text);
    captions.sent(id);
  } catch ({ code }) {
    captions.failed(id, code);
  }
}

/** Whether one may write now; a listener and a muted member may not, and nobody may while the room is paused. */
function writable() {
  const { role, muted } = people.me ?? {}, may = role !== "listener" && !muted;
  part("line").hidden = !may;
  part("send").disabled = Boolean(people.told?.paused);
}

async function request(message, refused = () => {}) {
  try {
    await room.ask(message);
  } catch ({ code }) {
    refused();
    complain(code);
  }
}

// ---- sharing, and taking the transcript along

part("copy").addEventListener("click", async () => {
  part("link").select();
  try {
    await navigator.clipboard.writeText(part("link").value);
  } catch {
    document.execCommand("copy"); // pages without https have no other clipboard
  }
  say(part("copied"), "room.copied");
  setTimeout(() => say(part("copied"), ""), BRIEFLY_MS);
});

function links() {
  for (const format of FORMATS) {
    const query = new URLSearchParams({ format, lang: me.lang });
    part(`transcript-${format}`).href = `/api/v1/rooms/${encodeURIComponent(room.id)}/transcript?${query}`;
  }
}

// A link cannot carry a token.
part("transcripts").addEventListener("click", async (event) => {
  const link = event.target.closest("a");
  if (!link || !room?.token) return;
  event.preventDefault();
  const answer = await fetch(link.href, { headers: { Authorization: `Bearer ${room.token}` } });
  if (!answer.ok) return complain("NOT_ALLOWED");
  const file = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await answer.blob()) });
  file.download = `room.${new URL(link.href).searchParams.get("format")}`;
  file.click();
  setTimeout(() => URL.revokeObjectURL(file.href), BRIEFLY_MS);
});

// ---- leaving, and the end

part("leave").addEventListener("click", () => room.leave());
part("retry").addEventListener("click", () => stage("door"));

function over(reason, text) {
  stage("end");
  const key = `room.end.${reason}`;
  say(part("end-title"), `${key}.title` in ROOM_EN ? `${key}.title` : "room.end.title");
  if (has(key)) say(part("end-why"), key);
  else if (text) say(part("end-why"), ""), (part("end-why").textContent = text);
  else say(part("end-why"), "room.end.other", { code: reason });
  part("retry").hidden = !TRY_AGAIN.includes(reason);
  part("conversation").hidden = captions.captions.size === 0;
  tell("room.ended", "quiet");
  part("end-title").focus();
}

/** `door`, `room` or `end`. What was said stays to be read at the end. */
function stage(name) {
  document.body.dataset.stage = name;
  part("door").hidden = name !== "door";
  part("end").hidden = name !== "end";
  part("conversation").hidden = name === "door";
  if (name === "door") part("name").focus();
}

// ---- words

function state(name, code) {
  part("status").dataset.connection = name;
  if (name === "refused") return complain(code);
  if (name === "inside" && part("status").dataset.mood !== "good") return tell("room.inside", "live");
  if (name === "connecting") return tell("state.connecting", "busy");
  if (name === "reconnecting") return tell("state.reconnecting", "bad");
}

function complain(code) {
  const key = `room.error.${code}`;
  tell(has(key) ? key : "room.error.other", "bad", { code }, true);
}

let news = 0;

function tell(key, mood, values = {}, briefly = false) {
  clearTimeout(news);
  part("status").dataset.mood = mood;
  part("status").setAttribute("role", mood === "bad" ? "alert" : "status");
  say(part("status-word"), key, values);
  if (briefly) news = setTimeout(() => room?.inside && tell("room.inside", "live"), BRIEFLY_MS);
}

// ---- begin

part("share-panel").open = part("people-panel").open = part("me-panel").open = wide.matches;
part("name").value = me.name;
addEventListener("language", () => languages());
say(part("enter"), place().id || place().code ? "room.join" : "room.open");
languages();
if (me.name && me.lang) enter();
else stage("door");
