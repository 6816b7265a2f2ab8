// The latest jobs, the newest first, filtered by outcome, node and session.

import { get, now } from "./api.js";
import { element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { Pager } from "./pager.js";
import { clock, ms } from "./shown.js";
import { named, word } from "./words.js";

const OUTCOMES = ["", "open", "ok", "empty", "failed", "expired", "cancelled"];
const SINCE = [["", "since.any"], [60_000, "since.minute"], [600_000, "since.ten"], [1_800_000, "since.half"]];
const MOODS = { ok: "good", empty: "", failed: "bad", expired: "bad", cancelled: "warm" };

export class Jobs {
  constructor(app) {
    const change = () => (this.pager.restart(), app.refresh());
    this.outcome = element("select", { "data-part": "outcome", "data-label": "jobs.outcome", onchange: change },
      ...OUTCOMES.map((value) => element("option", { value, word: `outcome.${value || "any"}` })));
    this.since = element("select", { "data-part": "since", "data-label": "jobs.since", onchange: change },
      ...SINCE.map(([value, key]) => element("option", { value, word: key })));
    this.node = element("input", { type: "search", "data-part": "job-node", "data-hint": "jobs.node.hint", onchange: change });
    this.session = element("input", { type: "search", "data-part": "job-session", "data-hint": "jobs.session.hint", onchange: change });
    this.grid = new Grid({
      key: (row) => row.job_id, empty: "jobs.none", mark: (row) => ({ job: row.job_id, outcome: row.outcome ?? "open" }),
      columns: [
        { head: "jobs.created", cell: (row) => clock(Number(row.created_ms)), tight: true },
        {
          head: "jobs.id", id: (row) => row.job_id, href: (row) => `#job/${encodeURIComponent(row.job_id)}`, mono: true,
          tight: true,
        },
        { head: "jobs.end", cell: (row) => ended(row), mood: (row) => MOODS[row.outcome] ?? "warm" },
        { head: "jobs.took", cell: (row) => took(row), number: true },
        { head: "jobs.node", id: (row) => row.node_id, mono: true, tight: true },
        { head: "jobs.pair", cell: (row) => `${row.src_lang ?? "?"} → ${row.tgt_lang ?? "?"}`, tight: true },
        { head: "jobs.session", id: (row) => row.session_id, mono: true, tight: true },
        { head: "jobs.index", cell: (row) => row.utterance_index, number: true },
        { head: "jobs.attempts", cell: (row) => row.attempt, number: true },
        { head: "jobs.driver", id: (row) => row.driver, mono: true, tight: true },
      ],
    });
    this.pager = new Pager(() => app.refresh());
    const filters = element("div", { class: "filters" }, this.outcome, this.since, this.node, this.session);
    this.root = element("div", { class: "view" }, section("jobs.title", [filters], this.grid.root, this.pager.root));
  }

  /** `#jobs/session/<id>` and `#jobs/node/<id>` set the filter. */
  enter(asked) {
    const [kind, ...rest] = asked.split("/");
    if (kind !== "session" && kind !== "node") return;
    this.node.value = this.session.value = "";
    this[kind].value = rest.join("/");
    this.pager.restart();
  }

  load() {
    const span = Number(this.since.value);
    return get("jobs", {
      count: 50, before: this.pager.start, outcome: this.outcome.value, node: this.node.value.trim(),
      session: this.session.value.trim(), since: span ? now() - span : "",
    });
  }

  draw({ jobs, next }) {
    this.grid.draw(jobs);
    this.pager.told(next);
  }
}

function ended({ outcome, state, code }) {
  const told = outcome ? named("outcome", outcome) : `${word("outcome.open")} (${state})`;
  return code ? `${told}: ${code}` : told;
}

function took({ created_ms: from, finished_ms: to, waited_ms: waited }) {
  return to ? ms(Number(to) - Number(from) + Number(waited ?? 0)) : "";
}
