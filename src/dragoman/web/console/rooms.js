// Rooms: their members by language, how much is said in them, and their end.

import { get, now, part, remove } from "./api.js";
import { Actions } from "./confirm.js";
import { button, element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { Pager } from "./pager.js";
import { age, count } from "./shown.js";
import { say, word } from "./words.js";

const MINUTE_MS = 60_000;

export class Rooms {
  #counted = new Map(); // room → [time, captions] of the last minute

  constructor(app) {
    this.facts = element("p", { class: "facts" });
    this.actions = new Actions(app, "rooms");
    this.part = element("input", { type: "search", "data-part": "room-filter", "data-hint": "rooms.filter" });
    this.part.addEventListener("input", () => (this.pager.restart(), app.refresh()));
    this.grid = new Grid({
      key: (row) => row.room_id, empty: "rooms.none", mark: (row) => ({ room: row.room_id }),
      columns: [
        { head: "rooms.code", cell: (row) => row.code, mono: true, tight: true, href: (row) => row.link },
        { head: "rooms.id", id: (row) => row.room_id, mono: true, tight: true },
        { head: "rooms.tenant", cell: (row) => row.tenant, tight: true },
        { head: "rooms.members", cell: (row) => count(row.members), number: true },
        { head: "rooms.languages", cell: languages },
        { head: "rooms.captions", cell: (row) => count(row.captions), number: true },
        { head: "rooms.rate", cell: (row) => count(this.#rate(row)), number: true },
        { head: "rooms.age", cell: (row) => age(Math.max(0, now() - row.created_ms)), number: true },
        { head: "rooms.state", cell: state },
        { head: "", make: (current) => button("rooms.close", () => this.#close(current()), "small bad") },
      ],
    });
    this.pager = new Pager(() => app.refresh());
    this.root = element("div", { class: "view" }, this.facts, this.actions.word,
      section("rooms.title", [this.part], this.grid.root, this.pager.root));
  }

  load() {
    return get("rooms", { count: 50, after: this.pager.start, part: this.part.value.trim() });
  }

  draw({ rooms, count: many, next }) {
    say(this.facts, "rooms.facts", { count: count(many) });
    for (const { room_id: id, captions } of rooms) this.#note(id, captions);
    this.grid.draw(rooms);
    this.pager.told(next);
  }

  #note(id, captions) {
    const at = now(), kept = (this.#counted.get(id) ?? []).filter(([time]) => time > at - MINUTE_MS);
    this.#counted.set(id, [...kept, [at, captions]]);
  }

  /** Captions of the last minute, as far as this page has seen it. */
  #rate({ room_id: id, captions }) {
    const [[, before]] = this.#counted.get(id) ?? [[0, captions]];
    return Math.max(0, captions - before);
  }

  #close({ room_id: id, code }) {
    return this.actions.ask("rooms.close", { code }, () => remove(`rooms/${part(id)}`));
  }
}

function languages({ languages: heard }) {
  return Object.entries(heard).sort().map(([language, members]) => `${language} ${count(members)}`).join(" · ") || "–";
}

function state(row) {
  const states = ["locked", "paused", "persistent"].filter((name) => row[name]);
  return states.map((name) => word(`rooms.${name}`)).join(", ") || word("rooms.open");
}
