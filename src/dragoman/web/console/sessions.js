// Sessions: their owner, their turn and its node, and the release of their results.

import { get, part, remove } from "./api.js";
import { Actions } from "./confirm.js";
import { button, element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { Pager } from "./pager.js";
import { count } from "./shown.js";
import { named, say, word } from "./words.js";

const SHOWN = 16;

export class Sessions {
  constructor(app) {
    this.facts = element("p", { class: "facts" });
    this.actions = new Actions(app, "sessions");
    this.part = element("input", { type: "search", "data-part": "session-filter", "data-hint": "sessions.filter" });
    this.part.addEventListener("input", () => (this.pager.restart(), app.refresh()));
    this.grid = new Grid({
      key: (row) => row.session_id, empty: "sessions.none", mark: (row) => ({ session: row.session_id }),
      columns: [
        {
          head: "sessions.id", mono: true, tight: true, id: (row) => row.session_id,
          href: (row) => `#jobs/session/${encodeURIComponent(row.session_id)}`,
        },
        {
          head: "sessions.owner", mono: true, id: (row) => row.owner, cell: () => word("sessions.alone"),
          mood: (row) => (row.owner ? "" : "warm"),
        },
        { head: "sessions.tenant", cell: (row) => row.tenant || "–", tight: true },
        { head: "sessions.languages", cell: languages, tight: true },
        { head: "sessions.turn", id: (row) => row.turn_id, cell: () => "–", mono: true, tight: true },
        { head: "sessions.node", id: (row) => row.turn_node, cell: () => "–", mono: true, tight: true },
        { head: "sessions.release", make: () => element("span", { class: "window" }), update: drawWindow },
        { head: "sessions.parked", cell: (row) => count(row.parked), number: true, mood: (row) => (row.parked ? "warm" : "") },
        { head: "", make: (current) => button("sessions.end", () => this.#end(current()), "small bad") },
      ],
    });
    this.pager = new Pager(() => app.refresh());
    this.root = element("div", { class: "view" }, this.facts, this.actions.word,
      section("sessions.title", [this.part], this.grid.root, this.pager.root));
  }

  load() {
    return get("sessions", { count: 50, after: this.pager.start, part: this.part.value.trim() });
  }

  #end({ session_id: id }) {
    return this.actions.ask("sessions.end", { session: id }, () => remove(`sessions/${part(id)}`));
  }

  draw({ sessions, count: many, next }) {
    say(this.facts, "sessions.facts", { count: count(many) });
    this.grid.draw(sessions);
    this.pager.told(next);
  }
}

function languages({ src_lang: from, tgt_lang: to, resumable }) {
  if (!resumable) return "–";
  return `${from || "?"} → ${to || "?"}`;
}

/** The number up to which all utterances are settled, then one mark with the state of each later one. */
function drawWindow(place, { release, next_index: next }) {
  const sign = JSON.stringify([release, next]);
  if (place.dataset.sign === sign) return;
  place.dataset.sign = sign;
  if (!release) return place.replaceChildren(element("span", { class: "hint" }, word("sessions.untold")));
  const { expected, settled, open } = release, marks = [];
  const last = Math.max(expected - 1, (next ?? 0) - 1, ...Object.keys({ ...settled, ...open }).map(Number));
  for (let index = expected; index <= last && marks.length < SHOWN; index++) {
    const how = settled[index] ?? (open[index] ? "open" : "waiting");
    const told = `#${index} ${named("release", how)}`;
    const mark = open[index] ? element("a", { href: `#job/${encodeURIComponent(open[index])}` }) : element("span");
    mark.className = "mark";
    mark.dataset.how = how;
    mark.title = told;
    mark.textContent = told;
    marks.push(mark);
  }
  const more = last - expected + 1 - marks.length;
  place.replaceChildren(element("span", { class: "hint" }, word("sessions.settled", { count: count(expected) })), ...marks,
    more > 0 ? `+${more}` : "");
}
