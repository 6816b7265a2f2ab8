// Who is in the room, and what only its host may do.

import { make } from "../page/transcript.js";
import { language, nameOf, say } from "../page/words.js";

const ARMED_MS = 5000;

export class People {
  /** `part(name)`; `on`: ask(message) sends a request. */
  constructor(part, on) {
    Object.assign(this, { part, on, told: null, you: null, rows: new Map() });
    for (const name of ["lock", "pause"]) part(name).addEventListener("click", () => this.toggle(name));
    twice(part("close"), "room.close", {}, () => on.ask({ type: "room_close" }));
    addEventListener("language", () => this.draw());
  }

  /** Of the receiver, as far as is known. */
  get me() {
    return this.told?.members.find(({ session_id }) => session_id === this.you);
  }

  get isHost() {
    return this.me?.role === "host";
  }

  tell(message, you) {
    Object.assign(this, { told: message, you });
    this.draw();
  }

  toggle(name) {
    const isOn = this.part(name).getAttribute("aria-pressed") === "true";
    this.on.ask(name === "lock" ? { type: "room_lock", locked: !isOn } : { type: "room_pause", paused: !isOn });
  }

  draw() {
    if (!this.told) return;
    const { members, count = members.length, locked, paused } = this.told;
    say(this.part("people-title"), "room.people", { count });
    say(this.part("people-more"), count > members.length ? "room.people.more" : "", { count: count - members.length });
    this.list(members);
    this.part("host").hidden = !this.isHost;
    this.part("lock").setAttribute("aria-pressed", Boolean(locked));
    this.part("pause").setAttribute("aria-pressed", Boolean(paused));
    say(this.part("lock"), locked ? "room.unlock" : "room.lock");
    say(this.part("pause"), paused ? "room.resume" : "room.pause");
    say(this.part("rule"), paused ? "room.paused" : locked ? "room.locked" : "");
  }

  /** A row that says the same stays: it may have the focus, or have been clicked once. */
  list(members) {
    const list = this.part("people"), key = (member) => JSON.stringify([member, this.isHost, language()]);
    const rows = new Map(members.map((member) => [key(member), this.rows.get(key(member)) ?? this.row(member)]));
    for (const [known, row] of this.rows) if (!rows.has(known)) row.remove();
    [...rows.values()].forEach((row, at) => row === list.children[at] || list.insertBefore(row, list.children[at] ?? null));
    this.rows = rows;
  }

  row({ session_id, display_name, speaks, hears, role, muted }) {
    const item = make("li", "person"), name = make("bdi", "speaker"), what = make("span", "what");
    item.dataset.session = session_id;
    item.dataset.role = role ?? "";
    name.textContent = display_name ?? session_id.slice(-4);
    const languages = [...new Set([speaks, hears].filter(Boolean))].map(nameOf).join(" → ");
    const marks = [session_id === this.you && "you", role !== "speaker" && role, muted && "muted"].filter(Boolean);
    what.append(languages, ...marks.flatMap((mark) => [" · ", worded(`room.role.${mark}`)]));
    item.append(name, what);
    if (this.isHost && session_id !== this.you) item.append(this.remover(session_id, name.textContent));
    return item;
  }

  remover(target_session_id, name) {
    const button = make("button", "small");
    button.type = "button";
    twice(button, "room.remove", { name }, () => this.on.ask({ type: "room_remove", target_session_id }));
    return button;
  }
}

/** A button that acts on the second click: the first one asks, with the word `key.sure`. */
function twice(button, key, values, act) {
  let timer = 0;
  const rest = () => {
    clearTimeout(timer);
    timer = 0;
    say(button, key, values);
  };
  button.addEventListener("blur", rest);
  button.addEventListener("click", () => {
    if (timer) return rest(), act();
    say(button, `${key}.sure`, values);
    timer = setTimeout(rest, ARMED_MS);
  });
  rest();
}

function worded(key) {
  const made = make("span");
  say(made, key);
  return made;
}
