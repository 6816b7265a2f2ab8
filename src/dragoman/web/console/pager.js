// Forward and back through pages; each names where the next begins, and the earlier starts are remembered.

import { button, element } from "./elements.js";
import { say } from "./words.js";

export class Pager {
  #starts = [""];
  #next = "";

  constructor(onturn) {
    this.back = button("pager.back", () => this.#turn(() => this.#starts.pop(), onturn));
    this.forth = button("pager.forth", () => this.#turn(() => this.#starts.push(this.#next), onturn));
    this.place = element("span", { class: "hint" });
    this.root = element("div", { class: "pager" }, this.back, this.place, this.forth);
    this.told("");
  }

  /** Where the current page begins. */
  get start() {
    return this.#starts.at(-1);
  }

  restart() {
    this.#starts = [""];
  }

  told(next) {
    this.#next = next;
    this.back.disabled = this.#starts.length === 1;
    this.forth.disabled = next === "";
    say(this.place, "pager.page", { page: this.#starts.length });
    this.root.hidden = this.#starts.length === 1 && next === "";
  }

  #turn(step, onturn) {
    step();
    this.back.disabled = this.forth.disabled = true;
    onturn();
  }
}
