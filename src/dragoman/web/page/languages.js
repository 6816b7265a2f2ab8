// The two menus: the languages that the fleet translates now. A choice stays while no node serves it.

import { nameOf } from "./words.js";

const EVERY_MS = 3000;

export class Languages {
  /** `on`: changed(), known(). */
  constructor(from, to, swap, on) {
    Object.assign(this, { from, to, swap, on, groups: [], samples: [] });
    from.addEventListener("change", () => this.fill(from.value, to.value, true));
    to.addEventListener("change", () => on.changed());
    swap.addEventListener("click", () => this.fill(to.value, from.value, true));
    addEventListener("language", () => this.fill(from.value, to.value));
  }

  get src() {
    return this.from.value;
  }

  get tgt() {
    return this.to.value;
  }

  get served() {
    return this.targets(this.src).includes(this.tgt);
  }

  get sampled() {
    return this.samples.includes(this.src);
  }

  async watch() {
    const served = await ask();
    if (served) this.learn(served);
    setTimeout(() => this.watch(), EVERY_MS);
  }

  learn({ groups, samples }) {
    const changed = JSON.stringify(groups) !== JSON.stringify(this.groups);
    this.groups = groups;
    this.samples = samples;
    if (changed) this.fill(this.src || (this.sources().includes("en") ? "en" : ""), this.tgt);
    this.on.known();
  }

  /** Every language that can be translated into another one. */
  sources() {
    return [...new Set(this.groups.flatMap((group) => group.from))].sort();
  }

  targets(src) {
    const groups = this.groups.filter((group) => group.from.includes(src));
    return [...new Set(groups.flatMap((group) => group.to))].filter((code) => code !== src).sort();
  }

  fill(src, tgt, told = false) {
    const before = `${this.src} ${this.tgt}`, sources = this.sources();
    if (!src) src = sources[0] ?? "";
    const targets = this.targets(src);
    if (!tgt || (tgt === src && targets.length)) tgt = targets.includes("es") ? "es" : targets[0] ?? "";
    if (told && targets.length && !targets.includes(tgt)) tgt = targets[0];
    options(this.from, sources, src);
    options(this.to, targets, tgt);
    this.swap.disabled = !this.targets(tgt).includes(src);
    if (before !== `${this.src} ${this.tgt}`) this.on.changed();
  }
}

/** What the fleet serves now; null: no answer, and the session reports a lost connection itself. */
export async function ask() {
  try {
    const answer = await fetch("/api/v1/public/languages", { cache: "no-store" });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

export function options(menu, codes, chosen) {
  const all = chosen && !codes.includes(chosen) ? [...codes, chosen] : codes;
  menu.replaceChildren(...all.map((code) => new Option(nameOf(code), code, false, code === chosen)));
  menu.disabled = all.length === 0;
}
