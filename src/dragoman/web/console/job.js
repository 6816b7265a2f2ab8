// One job: its timeline, why its node was chosen, and all recorded fields.

import { Refusal, get, part } from "./api.js";
import { element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { why } from "./receipt.js";
import { clock, ms } from "./shown.js";
import { named, say, word } from "./words.js";

// The steps in their order. `wait.<step>` names what a job waited for before that step.
const STEPS = ["cut", "created", "reassigned", "dispatched", "acked", "started", "finished", "released"];
const OF_AN_ATTEMPT = new Set(["acked", "started"]);
const SVG = "http://www.w3.org/2000/svg";

export class Job {
  #id = "";

  constructor() {
    this.title = element("h2", { class: "mono" });
    this.end = element("p", { class: "facts", "data-part": "job-end" });
    this.why = element("p", { class: "why", "data-part": "job-why" });
    this.line = new Grid({
      key: (row) => row.name, empty: "job.untimed", mark: (row) => ({ step: row.name }),
      columns: [
        { head: "job.when", cell: (row) => clock(row.at), tight: true },
        { head: "job.after", cell: (row) => `+${ms(row.after)}`, number: true },
        { head: "job.step", cell: (row) => word(`step.${row.name}`) },
        { head: "job.waited", cell: (row) => (row.waited ? `${ms(row.waited)} ${named("wait", row.name)}` : "") },
        { head: "", make: () => element("span", { class: "span" }), update: drawSpan },
      ],
    });
    this.fields = new Grid({
      key: (row) => row.name, empty: "job.untimed",
      columns: [
        { head: "job.field", cell: (row) => row.name, mono: true },
        { head: "job.value", cell: (row) => row.value, mono: true },
      ],
    });
    this.root = element("div", { class: "view" },
      element("p", {}, element("a", { href: "#jobs", class: "back", word: "job.back" })), this.title, this.end,
      section("job.why", [], this.why), section("job.timeline", [], this.line.root),
      section("job.record", [], this.fields.root));
  }

  enter(id) {
    this.#id = id;
    this.title.textContent = id;
  }

  async load() {
    try {
      return await get(`jobs/${part(this.#id)}`);
    } catch (error) {
      if (error instanceof Refusal) return { error: error.message };
      throw error;
    }
  }

  draw(job) {
    if (job.error) return say(this.end, "status.refused", { why: job.error });
    say(this.end, job.outcome ? "job.ended" : "job.runs", {
      outcome: named("outcome", job.outcome ?? ""), state: job.state, node: job.node_id || "–", tries: job.attempt,
      code: job.code ? ` (${job.code})` : "", what: what(job), driver: job.driver,
    });
    this.why.textContent = why(job);
    this.line.draw(timeline(job));
    const fields = Object.entries(job).filter(([, value]) => value !== "").sort(([a], [b]) => (a < b ? -1 : 1));
    this.fields.draw(fields.map(([name, value]) => ({ name, value: typeof value === "string" ? value : JSON.stringify(value) })));
  }
}

function what({ text_kind: kind, session_id: session, utterance_index: index }) {
  return kind ? word("job.text", { kind, session: kind === session ? "" : session }) : word("job.utterance", { session, index });
}

/** In the order they happened. Of an earlier attempt only its end is shown. */
function timeline(job) {
  const found = new Map(STEPS.filter((name) => `${name}_ms` in job).map((name) => [name, Number(job[`${name}_ms`])]));
  if (found.has("created") && job.waited_ms) found.set("cut", found.get("created") - Number(job.waited_ms));
  const again = found.get("reassigned");
  for (const [name, at] of found) {
    if (again !== undefined && at < again && (OF_AN_ATTEMPT.has(name) || name === "dispatched")) found.delete(name);
  }
  const order = ([a, at], [b, bt]) => at - bt || STEPS.indexOf(a) - STEPS.indexOf(b);
  const steps = [...found].sort(order), began = steps[0]?.[1], whole = Math.max(1, steps.at(-1)?.[1] - began);
  return steps.map(([name, at], i) => {
    const before = steps[Math.max(0, i - 1)][1];
    return { name, at, after: at - began, waited: at - before, from: (before - began) / whole, to: (at - began) / whole };
  });
}

/** The time since the step before, as a part of the whole. */
function drawSpan(place, { from, to }) {
  const picture = document.createElementNS(SVG, "svg"), bar = document.createElementNS(SVG, "rect");
  picture.setAttribute("aria-hidden", "true");
  for (const [name, value] of [["x", from], ["width", Math.max(to - from, 0.004)]]) bar.setAttribute(name, `${100 * value}%`);
  bar.setAttribute("height", "100%");
  bar.setAttribute("rx", "3");
  picture.append(bar);
  place.replaceChildren(picture);
}
