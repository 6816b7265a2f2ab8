// Instances and nodes, and the nodes that disconnected last.

import { get, part, post, remove } from "./api.js";
import { Actions } from "./confirm.js";
import { button, element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { Pager } from "./pager.js";
import { age, ago, bytes, count, few } from "./shown.js";
import { named, say, word } from "./words.js";

const LATELY_MS = 600_000, SHOWN_GONE = 8;
const MOODS = {
  alive: "good", draining: "warm", silent: "bad", dead: "bad", left: "", lost: "bad", gone: "bad", ready: "good",
  cooling: "warm", unready: "warm", failing: "bad", probation: "warm",
};

function stateOf(row) {
  if (row.how) return row.how; // it ended: it left, or it was lost
  if (!row.alive) return "dead";
  if (!row.answering) return "silent";
  return row.draining ? "draining" : "alive";
}

export class Overview {
  everyMs = 500; // an instance that dies is to be seen within a second
  #now = 0;

  constructor(app) {
    this.facts = element("p", { class: "facts" });
    this.actions = new Actions(app, "overview");
    this.instances = new Grid({
      key: (row) => row.instance, empty: "instances.none", columns: this.#instanceColumns(),
      mark: (row) => ({ state: stateOf(row) }),
    });
    this.nodes = new Grid({
      key: (row) => row.node_id, empty: "nodes.none", columns: this.#nodeColumns(),
      mark: (row) => ({ node: row.node_id, state: this.#state(row) }),
    });
    this.pager = new Pager(() => app.refresh());
    this.part = element("input", { type: "search", "data-part": "node-filter", "data-hint": "nodes.filter" });
    this.part.addEventListener("input", () => (this.pager.restart(), app.refresh()));
    this.root = element("div", { class: "view" }, this.facts, this.actions.word,
      section("instances.title", [], this.instances.root),
      section("nodes.title", [this.part], this.nodes.root, this.pager.root));
  }

  async load() {
    const page = { count: 50, after: this.pager.start, part: this.part.value.trim() };
    const [told, nodes] = await Promise.all([get("overview"), get("nodes", page)]);
    return { told, nodes };
  }

  draw({ told, nodes }) {
    this.#now = told.now_ms;
    const alive = told.instances.filter((row) => row.alive);
    const dead = Object.values(told.dead_letters).reduce((sum, many) => sum + many, 0);
    const listed = (name) => [...new Set(alive.map((row) => row[name]).filter(Boolean))].join(", ") || "?";
    say(this.facts, "overview.facts", {
      instances: count(alive.length), nodes: count(told.node_count), letters: count(dead),
      durability: listed("durability"), version: listed("version"), by: told.reported_by,
    });
    this.instances.draw([...told.instances, ...told.gone_instances].map((row) => (
      { ...row, letters: told.dead_letters[row.instance] ?? 0 })));
    const filter = this.part.value.trim(), first = this.pager.start === "";
    const lately = (row) => told.now_ms - row.last_ms < LATELY_MS && row.node_id.includes(filter);
    const gone = first ? told.gone.filter(lately).slice(0, SHOWN_GONE).map((row) => ({ ...row, gone: true })) : [];
    this.nodes.draw([...gone, ...nodes.nodes]);
    this.pager.told(nodes.next);
  }

  #instanceColumns() {
    return [
      { head: "instances.name", id: (row) => row.instance, mono: true, tight: true },
      {
        head: "state", tight: true, mood: (row) => MOODS[stateOf(row)],
        cell: (row) => word(`state.${stateOf(row)}`, { ago: ago(row.at_ms, this.#now) }),
      },
      { head: "instances.durability", cell: (row) => row.durability, title: (row) => named("durability", row.durability ?? ""), tight: true },
      { head: "instances.up", cell: (row) => (row.started_ms ? age(this.#now - row.started_ms) : ""), number: true },
      { head: "instances.sessions", cell: (row) => (row.how ? "" : count(row.sessions)), number: true },
      { head: "instances.nodes", cell: (row) => (row.how ? "" : count(row.nodes)), number: true },
      { head: "instances.jobs", cell: (row) => (row.how ? "" : count(row.jobs)), number: true },
      {
        head: "instances.inbox", number: true, cell: (row) => (row.inbox ? count(row.inbox.waiting) : ""),
        title: ({ inbox }) => inbox && word("instances.inbox.why", { bytes: bytes(inbox.bytes), done: count(inbox.done) }),
      },
      {
        head: "instances.lag", number: true,
        cell: ({ inbox }) => inbox && (inbox.oldest_ms ? age(Math.max(0, this.#now - inbox.oldest_ms)) : "0 s"),
      },
      { head: "instances.letters", cell: (row) => count(row.letters), number: true, mood: (row) => (row.letters ? "bad" : "") },
      { head: "instances.where", cell: (row) => (row.host ? `${row.host}:${row.port}` : ""), mono: true },
      {
        head: "", make: (current) => button("instances.drain", () => this.#drainInstance(current()), "small bad"),
        update: (act, row) => (act.hidden = stateOf(row) !== "alive"),
      },
    ];
  }

  #nodeColumns() {
    return [
      {
        head: "nodes.name", id: (row) => row.node_id, mono: true, tight: true,
        href: (row) => `#jobs/node/${encodeURIComponent(row.node_id)}`,
      },
      { head: "state", cell: (row) => this.#told(row), mood: (row) => MOODS[this.#state(row)], tight: true },
      { head: "nodes.at", id: (row) => row.instance, mono: true, tight: true },
      { head: "nodes.slots", cell: (row) => (row.gone ? "" : `${count(row.reserved)} / ${count(row.slots)}`), number: true },
      { head: "nodes.running", cell: (row) => (row.gone ? "" : count(row.running)), number: true },
      { head: "nodes.languages", cell: (row) => (row.gone ? "" : spoken(row.languages)) },
      { head: "nodes.ready", cell: (row) => (row.gone ? "" : (row.ready?.join(", ") ?? word("nodes.untold"))) },
      { head: "", make: (current) => this.#nodeActions(current), update: shownNodeActions },
    ];
  }

  #nodeActions(current) {
    return element("span", { class: "actions" },
      button("nodes.drain", () => this.#drainNode(current(), "nodes.drain", post), "small bad"),
      button("nodes.undrain", () => this.#drainNode(current(), "nodes.undrain", remove)));
  }

  #drainInstance({ instance }) {
    return this.actions.ask("instances.drain", { name: instance }, () => post(`instances/${part(instance)}/drain`));
  }

  #drainNode({ node_id: node }, key, ask) {
    return this.actions.ask(key, { name: node }, () => ask(`nodes/${part(node)}/drain`));
  }

  #state(row) {
    if (row.gone) return "gone";
    if (row.draining) return "draining";
    if (row.failing) return row.failing.paused_until_ms > this.#now ? "failing" : "probation";
    if (this.#cooling(row).length) return "cooling";
    return row.ready?.length === 0 ? "unready" : "ready";
  }

  #cooling = (row) => Object.entries(row.cooling_until_ms).filter(([, until]) => until > this.#now);

  #told(row) {
    const state = this.#state(row);
    if (state === "gone") return `${word("state.gone")}, ${ago(row.last_ms, this.#now)}`;
    if (state === "failing") return word("state.failing", { age: age(row.failing.paused_until_ms - this.#now) });
    if (state !== "cooling") return word(`state.${state}`);
    const [what, until] = this.#cooling(row)[0];
    return word("state.cooling", { what: what === "*" ? word("nodes.whole") : what, age: age(until - this.#now) });
  }
}

function shownNodeActions(place, row) {
  const [drain, undrain] = place.children;
  drain.hidden = Boolean(row.gone || row.draining);
  undrain.hidden = Boolean(row.gone || !row.draining);
}

function spoken({ asr, semantic, text = [] }) {
  const heard = few(asr), said = few(semantic);
  const speech = heard === said ? heard : `${heard} → ${said}`;
  if (!text.length) return speech;
  const pairs = `${word("nodes.text")} ${few(text.map(([from, to]) => `${from}→${to}`))}`;
  return asr.length ? `${speech}; ${pairs}` : pairs;
}
