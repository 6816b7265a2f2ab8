// Chat: the unsaved messages of each shard, the save lag, and the switches of the running cluster.

import { get, now, part, post, remove } from "./api.js";
import { Actions, confirmed } from "./confirm.js";
import { button, element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { age, count, ms } from "./shown.js";
import { named, say, word } from "./words.js";

const LATE_MS = 5000;
const told = (value) => (typeof value === "boolean" ? word(value ? "on" : "off") : count(value));

export class Chat {
  constructor(app) {
    this.app = app;
    this.facts = element("p", { class: "facts" });
    this.word = element("p", { class: "word", role: "status", "data-part": "switch-word" });
    this.shards = new Grid({ key: (row) => String(row.shard), empty: "chat.none", columns: shardColumns });
    this.switches = new Grid({
      key: (row) => row.name, empty: "chat.none", mark: (row) => ({ switch: row.name, value: String(row.value) }),
      columns: [
        { head: "switches.name", cell: (row) => row.name, mono: true },
        { head: "switches.means", cell: (row) => named("switch", row.name) },
        { head: "switches.now", cell: (row) => told(row.value), mood: (row) => (row.value === row.configured ? "" : "warm") },
        { head: "switches.configured", cell: (row) => told(row.configured) },
        { head: "", make: (current) => this.#control(current), update: shownControl },
      ],
    });
    this.back = button("switches.reset", () => this.#reset());
    this.actions = new Actions(app, "chat");
    this.user = element("input", { type: "search", "data-part": "chat-user", "data-hint": "users.hint" });
    this.user.addEventListener("keydown", ({ key }) => key === "Enter" && this.#disconnect());
    const disconnect = button("users.disconnect", () => this.#disconnect(), "small bad");
    this.root = element("div", { class: "view" }, this.facts,
      section("chat.shards", [], this.shards.root),
      section("users.title", [element("div", { class: "filters" }, this.user, disconnect)], this.actions.word),
      section("switches.title", [this.back], this.word, this.switches.root));
  }

  async load() {
    const [status, switches] = await Promise.all([get("chat"), get("chat/switches")]);
    return { status, switches };
  }

  draw({ status, switches: { switches, configured } }) {
    const lag = Object.entries(status.save_lag_ms).filter(([, value]) => value !== null);
    say(this.facts, "chat.facts", {
      way: word(switches.enabled ? (switches.deliver_before_saved ? "chat.way.deliver" : "chat.way.save") : "chat.way.off"),
      backlog: count(status.backlog), most: count(switches.max_backlog),
      lag: lag.length ? lag.map(([name, value]) => `${name} ≤ ${ms(value)}`).join(", ") : word("chat.nothing"),
    });
    this.shards.draw(status.shards);
    this.switches.draw(Object.entries(switches).map(([name, value]) => ({ name, value, configured: configured[name] })));
    this.back.disabled = Object.entries(switches).every(([name, value]) => value === configured[name]);
  }

  async #disconnect() {
    const user = this.user.value.trim();
    if (!user) return this.user.focus();
    await this.actions.ask("users.disconnect", { user }, async () => {
      const id = /^[0-9]{1,19}$/.test(user) ? user : (await get(`chat/users/${part(user)}`)).userId;
      await remove(`chat/users/${part(id)}/connection`);
    });
  }

  #control(current) {
    const number = element("input", { type: "number", min: "0", "aria-label": word("switches.new") });
    const act = element("button", { type: "button", class: "small", onclick: () => this.#change(current(), number) });
    number.addEventListener("keydown", ({ key }) => key === "Enter" && this.#change(current(), number));
    return element("span", { class: "actions" }, number, act);
  }

  async #change({ name, value }, number) {
    const flips = typeof value === "boolean";
    if (!flips && number.value === "") return number.focus();
    const wanted = flips ? !value : Number(number.value);
    const values = { name, before: told(value), after: told(wanted) };
    if (!(await confirmed("switches.change.title", "switches.change.sentence", values, "switches.change"))) return;
    await this.#do(() => post("chat/switches", { [name]: wanted }), "switches.changed", values);
    number.value = "";
  }

  async #reset() {
    if (!(await confirmed("switches.reset.title", "switches.reset.sentence", {}, "switches.reset"))) return;
    await this.#do(() => remove("chat/switches"), "switches.reset.done", {});
  }

  async #do(act, done, values) {
    await this.app.attempt(async () => {
      await act();
      say(this.word, done, values);
    }, this.word);
    await this.app.refresh();
  }
}

function shownControl(control, { name, value }) {
  const [number, act] = control.children, flips = typeof value === "boolean";
  number.hidden = flips;
  number.placeholder = flips ? "" : String(value);
  say(act, flips ? (value ? "switches.off" : "switches.on") : "switches.set");
  act.dataset.act = name;
}

const shardColumns = [
  { head: "shard.number", cell: (row) => row.shard },
  {
    head: "shard.holder", mono: true, cell: (row) => row.holder.split("|")[0] || word("shard.nobody"),
    mood: (row) => (row.holder ? "" : "bad"),
  },
  { head: "shard.backlog", cell: (row) => count(row.backlog), number: true, mood: (row) => (row.backlog ? "warm" : "") },
  {
    head: "shard.lag", number: true, cell: (row) => (row.oldest_ms ? age(Math.max(0, now() - row.oldest_ms)) : "0 s"),
    mood: (row) => (row.oldest_ms && now() - row.oldest_ms > LATE_MS ? "bad" : ""),
  },
  { head: "shard.accepted", cell: (row) => count(row.accepted_len), number: true },
  { head: "shard.to_save", cell: (row) => count(row.to_save_len), number: true },
  { head: "shard.saved", cell: (row) => count(row.saved), number: true },
  { head: "shard.dead", cell: (row) => count(row.dead_len), number: true, mood: (row) => (row.dead_len ? "bad" : "") },
  { head: "shard.fence", cell: (row) => count(row.fence), number: true },
];
