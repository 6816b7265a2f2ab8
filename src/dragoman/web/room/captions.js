// What is said in the room, in the order of its log, each in the language of the reader. The original is above it, or
// appears on a tap.
//
// Text of others is only ever set as text. Each has its own direction, whatever the language of the page.

import { make } from "../page/transcript.js";
import { direction, has, language, nameOf, say } from "../page/words.js";

const MOST = 500; // captions on the page; the transcript has them all
const SPOKEN = 5; // texts that a screen reader may still have to read
const NEAR = 80; // pixels from the end that count as the end
const OPEN = ["partial", "sending", "failed"];
const AFTER_CHANGE = 10; // captions that are asked for in a language that was just chosen

export class Captions {
  /** `on`: translate(caption id), again(client_msg_id, text). `lang()`: the language of the reader; `originals()`: shown? */
  constructor({ list, hint, live, newer }, lang, on, originals = () => true) {
    Object.assign(this, { list, hint, live, newer, lang, on, originals });
    this.captions = new Map();
    this.unsent = new Map(); // by client_msg_id
    newer.addEventListener("click", () => this.toEnd());
    list.addEventListener("scroll", () => this.isAtEnd() && (this.newer.hidden = true));
    addEventListener("language", () => this.captions.forEach((caption) => this.draw(caption)));
  }

  /** `isNew`: it was said while this page was in the room, so it is being translated. */
  entry(message, isNew, isMine) {
    if (message.type === "caption_translation") return this.translated(message, isNew);
    const before = this.captions.get(message.caption_id);
    if (before?.lost && message.type === "caption") this.drop(before); // it was recognised after all
    else if (before) return;
    const { caption_id: id, speaker, lang = "", text = "", started_at_ms: at, reason } = message;
    const caption = { ...this.build(speaker.name, at), id, lang, text, lost: reason, isMine, translations: new Map() };
    caption.item.dataset.id = id;
    caption.item.classList.toggle("mine", isMine);
    caption.awaited = isNew && lang !== this.lang() ? this.lang() : "";
    this.captions.set(id, caption);
    if (message.backfilled) caption.item.dataset.backfilled = "true";
    caption.again.addEventListener("click", () => this.translate(caption));
    for (const target of [caption.original, caption.large]) target.addEventListener("click", () => this.turn(caption));
    this.draw(caption);
    this.add(caption.item, isMine && isNew);
    if (isNew && (reason || !caption.awaited)) this.speak(caption);
    if (this.captions.size > MOST) this.drop(this.captions.values().next().value);
  }

  translated({ caption_id, lang, text, untranslated }, isNew) {
    const caption = this.captions.get(caption_id);
    if (!caption) return; // said before what this page shows
    const wasAtEnd = this.isAtEnd();
    caption.translations.set(lang, { text, untranslated });
    if (caption.awaited === lang) caption.awaited = "";
    this.draw(caption);
    if (wasAtEnd) this.toEnd();
    if (isNew && lang === this.lang()) this.speak(caption);
  }

  translate(caption) {
    caption.awaited = this.lang();
    caption.translations.delete(this.lang());
    this.draw(caption);
    this.on.translate(caption.id);
  }

  /** Another language was chosen: the last captions are wanted in it as well. */
  changed() {
    const all = [...this.captions.values()];
    for (const caption of all) this.draw(caption);
    for (const caption of all.slice(-AFTER_CHANGE)) if (this.lacks(caption)) this.translate(caption);
  }

  /** Show the original of a caption, or hide it again. */
  turn(caption) {
    if (caption.original.hidden || getSelection().type === "Range") return;
    caption.isTurned = !caption.isTurned;
    this.draw(caption);
  }

  /** Originals are to be shown, or not: for all captions. */
  drawAll() {
    for (const caption of this.captions.values()) this.draw(Object.assign(caption, { isTurned: false }));
  }

  /** A voice reads this caption now. */
  aloud(id, yes) {
    this.captions.get(id)?.item.classList.toggle("aloud", yes);
  }

  /** The server would not translate it. */
  notTranslated(id) {
    const caption = this.captions.get(id);
    if (!caption) return;
    caption.awaited = "";
    this.draw(caption);
  }

  /** A line between captions. */
  note(key) {
    const item = make("li", "between");
    say(item, key);
    this.add(item);
  }

  // ---- what this page writes

  writing(id, name, text) {
    const row = this.unsent.get(id) ?? this.build(name, Date.now());
    this.unsent.set(id, row);
    row.item.classList.add("mine");
    row.item.dataset.state = "sending";
    row.large.textContent = text;
    row.again.hidden = true;
    row.again.onclick = () => this.on.again(id, text);
    say(row.note, "room.sending");
    if (!row.item.isConnected) this.below(row.item, true);
  }

  sent(id) {
    this.unsent.get(id)?.item.remove();
    this.unsent.delete(id);
  }

  failed(id, code) {
    const row = this.unsent.get(id);
    if (!row) return;
    row.item.dataset.state = "failed";
    row.again.hidden = false;
    say(row.again, "chat.again");
    const key = `room.error.${code}`;
    say(row.note, has(key) ? key : "room.error.other", { code });
    this.live.textContent = row.note.textContent;
  }

  // ---- inside

  build(name, at) {
    const item = make("li", "caption"), who = make("p", "who");
    const speaker = make("bdi", "speaker"), spoken = make("span", "spoken"), original = make("button", "plain original");
    const large = make("p", "large"), small = make("p", "small"), marks = make("p", "marks");
    const note = make("span", "note"), again = make("button", "again"), time = make("time");
    const when = new Date(at ?? Date.now());
    speaker.textContent = name;
    time.dateTime = when.toISOString();
    time.textContent = when.toLocaleTimeString(language(), { hour: "2-digit", minute: "2-digit" });
    large.dir = small.dir = "auto";
    again.type = original.type = "button";
    again.hidden = original.hidden = small.hidden = true;
    say(original, "room.original");
    who.append(speaker, spoken, time, original);
    marks.append(note, again);
    item.append(who, small, large, marks);
    return { item, speaker, spoken, original, large, small, note, again };
  }

  lacks({ lang, lost, translations }) {
    return !lost && lang !== this.lang() && !translations.has(this.lang());
  }

  draw(caption) {
    const { item, lang, text, lost, translations, large, small, note, again, spoken, original } = caption;
    const found = translations.get(this.lang()), isTranslated = found !== undefined && !found.untranslated;
    const state = lost ? "lost" : lang === this.lang() ? "original" : isTranslated ? "translated"
      : found ? "untranslated" : caption.awaited === this.lang() ? "awaited" : "other";
    item.dataset.state = state;
    spoken.textContent = lang && lang !== this.lang() ? nameOf(lang) : "";
    large.textContent = isTranslated ? found.text : text;
    large.lang = isTranslated ? this.lang() : lang;
    item.dir = direction(large.lang);
    small.textContent = isTranslated ? text : "";
    small.lang = lang;
    original.hidden = !isTranslated;
    small.hidden = !isTranslated || this.originals() === Boolean(caption.isTurned);
    original.setAttribute("aria-expanded", !small.hidden);
    again.hidden = state !== "untranslated" && state !== "other";
    say(again, state === "other" ? "room.translate" : "room.translate.again");
    if (state === "lost") say(note, ...reason("room.lost", lost));
    else if (state === "untranslated") say(note, ...reason("room.untranslated", found.untranslated));
    else say(note, state === "awaited" ? "turn.translating" : item.dataset.backfilled ? "turn.late" : "");
  }

  add(item, follow = false) {
    const open = [...this.list.children].find(({ dataset }) => OPEN.includes(dataset.state));
    this.insert(item, open ?? null, follow);
  }

  /** Under every caption: what is not one yet. */
  below(item, follow = false) {
    this.insert(item, null, follow);
  }

  insert(item, before, follow) {
    const wasAtEnd = this.isAtEnd();
    this.hint.hidden = true;
    this.list.insertBefore(item, before);
    if (wasAtEnd || follow) this.toEnd();
    else this.newer.hidden = false;
  }

  drop({ id, item }) {
    item.remove();
    this.captions.delete(id);
  }

  isAtEnd() {
    return this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < NEAR;
  }

  toEnd() {
    this.list.scrollTop = this.list.scrollHeight;
    this.newer.hidden = true;
  }

  /** For screen readers: once, when its text is final. */
  speak({ speaker, large, note, isMine }) {
    if (isMine) return;
    const line = make("p");
    line.lang = large.lang;
    line.textContent = `${speaker.textContent}: ${[large.textContent, note.textContent].filter(Boolean).join(" ")}`;
    this.live.append(line);
    while (this.live.children.length > SPOKEN) this.live.firstElementChild.remove();
  }
}

/** In words if there are any for it. */
function reason(group, code) {
  const key = `${group}.${code}`;
  return has(key) ? [key] : [`${group}.other`, { code }];
}
