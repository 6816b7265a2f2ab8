// The page of a room: who one is, what is said, who is there, and how others come in.
//
//   /room/<id>            join this room
//   /room?code=<digits>   join the room with this code
//   /room                 open a new room

import { Gate } from "../page/gate.js";
import { browser, tab } from "../page/kept.js";
import { ask as askLanguages, options } from "../page/languages.js";
import { choose, extend, has, label, language, nameOf, preferred, say, speak } from "../page/words.js";
import { Captions } from "./captions.js";
import { Live } from "./live.js";
import { Membership, newId } from "./membership.js";
import { People } from "./people.js";
import { Settings } from "./settings.js";
import { Sharing } from "./sharing.js";
import { Talk } from "./talk.js";
import { Voices } from "./voices.js";
import { ROOM_EN } from "./words_en.js";
import { ROOM_ZH } from "./words_zh.js";

const NAME = "dragoman.name", SPEAKS = "dragoman.speaks", SESSION = "dragoman.room";
const BRIEFLY_MS = 4000;
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

const settings = new Settings(part, { originals: () => captions.drawAll(), device: (id) => talk.choose(id) });
const captions = new Captions(
  { list: part("captions"), hint: part("hint"), live: part("live"), newer: part("newer") },
  () => me.lang,
  {
    translate: (caption_id) =>
      request({ type: "room_translate", caption_id, lang: me.lang }, () => captions.notTranslated(caption_id)),
    again: (id, text) => write(text, id),
  },
  () => settings.originals,
);
const live = new Live(captions);
const gate = new Gate();
const voices = new Voices(part("voice"), gate, {
  chosen: (voice) => room?.change({ voice }).then(() => tell(voice ? "room.voice.on" : "room.voice.off", "good", {}, true), sayWhy),
  blocked: () => tell("room.voice.blocked", "busy", {}, true),
  aloud: (id, yes) => captions.aloud(id, yes),
});
const talk = new Talk(part("mic"), part("mic-hint"), gate, {
  begins: () => voices.hush(), // voices are not played while the user speaks
  chunk: (bytes, final) => room?.speak(bytes, final),
  streams: () => Boolean(room?.session.endsUtterances),
  opened: () => settings.devices(),
  failed: (word) => tell(word, "bad", {}, true),
});
talk.device = settings.device;
const sharing = new Sharing(part, { token: () => room?.token, refused: (code) => complain(code) });
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
  sharing.links(room.id, me.lang);
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
  me.voice = voices.isOn;
  room = new Membership(at, me, {
    state,
    joined,
    members: (message) => {
      people.tell(message, room.you);
      writable();
    },
    entry,
    partial: (message) => live.partial(message, message.speaker.session_id === room.you),
    over,
  }, tab.take("dragoman.token"));
  room.start(kept.member);
  for (const { id, text } of kept.unsent) write(text, id);
}

function joined(message, again) {
  history.replaceState(null, "", `/room/${message.room_id}`);
  sharing.show(message.room_id, message.room_code);
  sharing.links(message.room_id, me.lang);
  part("hint").hidden = part("captions").children.length > 0;
  if (!again && wide.matches) part("body").focus();
  if (again && !message.complete) captions.note("room.missed");
  if (again && message.complete) tell("state.resumed", "good", {}, true);
  say(part("unserved"), message.unserved ? "room.unserved" : "", { language: nameOf(message.unserved ?? "") });
}

function entry(message, isNew) {
  captions.entry(message, isNew, message.speaker?.session_id === room.you);
  if (message.type !== "caption_translation") live.end(message.caption_id);
  else if (message.tts_audio && message.lang === me.lang) voices.add(message.caption_id, message.tts_audio, message.tts_format);
}

// A page that is loaded again keeps its membership. A copy of the tab is a member of its own.
addEventListener("pagehide", () => {
  talk.off();
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
  part("send").disabled = part("mic").disabled = Boolean(people.told?.paused);
  if (!may || people.told?.paused) talk.off();
}

async function request(message, refused = () => {}) {
  try {
    await room.ask(message);
  } catch ({ code }) {
    refused();
    complain(code);
  }
}

// ---- leaving, and the end

part("leave").addEventListener("click", () => room.leave());
part("retry").addEventListener("click", () => stage("door"));

function over(reason, text) {
  stage("end");
  talk.off();
  voices.hush();
  const key = `room.end.${reason}`;
  say(part("end-title"), `${key}.title` in ROOM_EN ? `${key}.title` : "room.end.title");
  if (has(key)) say(part("end-why"), key);
  else if (text) say(part("end-why"), ""), (part("end-why").textContent = text);
  else say(part("end-why"), "room.end.other", { code: reason });
  part("retry").hidden = !TRY_AGAIN.includes(reason);
  part("login").hidden = reason !== "login";
  part("new").hidden = reason === "login";
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
  panels(false);
}

/** On a phone the panels take the place of the captions. */
function panels(open) {
  document.body.toggleAttribute("data-panels", open);
  part("menu").setAttribute("aria-expanded", open);
  label(part("menu"), open ? "room.menu.close" : "room.menu");
}

part("menu").addEventListener("click", () => panels(!document.body.hasAttribute("data-panels")));
part("invite").addEventListener("click", () => {
  panels(true);
  part("share-panel").open = true;
  part("share-panel").querySelector("summary").focus();
});
addEventListener("keydown", ({ key }) => key === "Escape" && panels(false));

// ---- words

function state(name, code) {
  part("status").dataset.connection = name;
  if (name === "refused") return complain(code);
  if (name === "pressed") return tell("state.pressed", "busy", {}, true);
  if (name === "inside" && part("status").dataset.mood !== "good") return tell("room.inside", "live");
  if (name === "connecting") return tell("state.connecting", "busy");
  if (name === "reconnecting") return tell("state.reconnecting", "bad");
}

const sayWhy = ({ code }) => complain(code);

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

part("name").value = me.name;
addEventListener("language", () => languages());
say(part("enter"), place().id || place().code ? "room.join" : "room.open");
languages();
if (me.name && me.lang) enter();
else stage("door");
