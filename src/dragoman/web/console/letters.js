// Dead letters: list, show, replay, delete.

import { get, now, part, post, remove } from "./api.js";
import { confirmed } from "./confirm.js";
import { button, element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { Pager } from "./pager.js";
import { ago, bytes, count } from "./shown.js";
import { say, word } from "./words.js";

const PAGE = 50;
const pathOf = (row) => `dlq/${part(row.instance)}/${part(row.id)}`;
const nameOf = (row) => `${row.instance}/${row.id}`;

export class Letters {
  #told = [];

  constructor(app) {
    this.app = app;
    this.of = element("select", { "data-part": "letters-of", "data-label": "letters.of", "aria-label": word("letters.of") });
    this.of.addEventListener("change", () => (this.pager.restart(), app.refresh()));
    this.grid = new Grid({
      key: nameOf, empty: "letters.none", mark: (row) => ({ letter: row.id }),
      columns: [
        { head: "letters.at", id: (row) => row.instance, mono: true, tight: true },
        { head: "letters.kind", cell: (row) => row.kind || word("letters.unknown") },
        { head: "letters.reason", cell: (row) => row.reason },
        { head: "letters.deliveries", cell: (row) => count(row.deliveries), number: true },
        { head: "letters.size", cell: (row) => bytes(row.size), number: true },
        { head: "letters.died", cell: (row) => ago(row.dead_ms, now()), number: true },
        { head: "", make: (current) => this.#actions(current) },
      ],
    });
    this.pager = new Pager(() => app.refresh());
    this.word = element("p", { class: "word", role: "status", "data-part": "letters-word" });
    this.more = element("p", { class: "word hint" });
    this.look = element("pre", { class: "look", tabindex: "0", hidden: true });
    this.root = element("div", { class: "view" },
      section("letters.title", [this.of], this.word, this.grid.root, this.more, this.pager.root, this.look));
  }

  async load() {
    const { dead_letters: counts } = await get("overview");
    this.#offer(counts);
    // Paging needs one instance: `after` is a letter of it. With a single instance there is nothing to choose.
    const names = Object.keys(counts), of = this.of.value || (names.length === 1 ? names[0] : "");
    const letters = await get("dlq", { count: PAGE + 1, instance: of, after: of ? this.pager.start : "" });
    return { letters, of };
  }

  draw({ letters, of }) {
    this.#told = letters.slice(0, PAGE);
    this.grid.draw(this.#told);
    this.pager.told(of && letters.length > PAGE ? this.#told.at(-1).id : "");
    say(this.more, !of && letters.length > PAGE ? "letters.more" : "", { most: PAGE });
  }

  #offer(counts) {
    const kept = this.of.value, names = Object.keys(counts);
    const options = [["", word("letters.all")], ...names.map((name) => [name, `${name} (${counts[name]})`])];
    const sign = JSON.stringify(options);
    if (this.of.dataset.sign === sign) return;
    this.of.dataset.sign = sign;
    this.of.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
    this.of.value = names.includes(kept) ? kept : "";
    this.of.hidden = names.length < 2;
  }

  #actions(current) {
    return element("span", { class: "actions" },
      button("letters.look", () => this.#open(current())),
      button("letters.replay", () => this.#act(current(), "replay", () => post(`${pathOf(current())}/replay`))),
      button("letters.drop", () => this.#act(current(), "drop", () => remove(pathOf(current()))), "small bad"));
  }

  async #act(row, verb, act) {
    const values = { letter: nameOf(row), reason: row.reason };
    if (!(await confirmed(`letters.${verb}.title`, `letters.${verb}.sentence`, values, `letters.${verb}`))) return;
    await this.app.attempt(async () => {
      await act();
      say(this.word, `letters.${verb}.done`, values);
    }, this.word);
    this.look.hidden = true;
    await this.app.refresh();
  }

  async #open(row) {
    await this.app.attempt(async () => {
      this.look.textContent = JSON.stringify(await get(pathOf(row)), null, 2);
      this.look.hidden = false;
      this.look.focus();
    }, this.word);
  }
}
