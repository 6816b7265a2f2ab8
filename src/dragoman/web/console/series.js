// Rates and percentiles from what an instance counts: the difference between two looks. What it had counted before the
// first look is no news, and one that was started anew begins at zero.

const WINDOW_MS = 10_000, KEPT_MS = 120_000;

export class Series {
  #looks = []; // { at, samples }
  points = []; // { at, name: value, … }

  constructor(lines) {
    this.lines = lines;
  }

  look(at, samples) {
    this.#looks.push({ at, samples });
    while (this.#looks.length > 2 && at - this.#looks[1].at > WINDOW_MS) this.#looks.shift();
    const before = this.#looks[0];
    if (before.at === at) return;
    const between = new Between(before.samples, samples, (at - before.at) / 1000);
    const point = { at };
    for (const [name, line] of Object.entries(this.lines)) point[name] = line(between);
    this.points.push(point);
    while (at - this.points[0].at > KEPT_MS) this.points.shift();
  }
}

class Between {
  constructor(before, after, seconds) {
    Object.assign(this, { before, after, seconds });
  }

  now = (name) => this.after[name] ?? 0;

  /** A second, of everything whose name begins so. */
  rate(name) {
    return Object.keys(this.after).reduce((sum, key) => (is(key, name) ? sum + this.#grown(key) : sum), 0) / this.seconds;
  }

  /** In ms, as the upper bound of its bucket; null when nothing was counted. */
  quantile(name, labels, q) {
    const buckets = [];
    for (const key of Object.keys(this.after)) {
      const found = is(key, `${name}_bucket`) && /(?:^|[{,])le=([^,}]+)/.exec(key);
      if (found && labels.every((label) => key.includes(label))) buckets.push([bound(found[1]), this.#grown(key)]);
    }
    buckets.sort(([a], [b]) => a - b);
    const all = buckets.at(-1)?.[1] ?? 0;
    if (!all) return null;
    const at = buckets.findIndex(([, below]) => below >= q * all);
    const shown = Number.isFinite(buckets[at][0]) ? buckets[at][0] : (buckets.at(-2)?.[0] ?? 0);
    return 1000 * shown;
  }

  #grown(key) {
    const before = this.before[key] ?? 0, after = this.after[key];
    return after >= before ? after - before : after;
  }
}

const is = (key, name) => key === name || key.startsWith(`${name}{`);
const bound = (text) => (text === "+Inf" ? Infinity : Number(text));
