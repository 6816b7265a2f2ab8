// Rates and percentiles of the whole cluster over the last half hour. The instances store them, so the charts are full
// when the view is opened.

import { element, section } from "./elements.js";
import { get } from "./api.js";
import { count, ms } from "./shown.js";
import { say, tip, word } from "./words.js";

const SVG = "http://www.w3.org/2000/svg", WIDTH = 600, HEIGHT = 120;
const CHARTS = [
  { title: "charts.jobs", unit: "rate", lines: { ended: "ended", failovers: "failovers" } },
  { title: "charts.job_ms", unit: "ms", lines: { p50: "job_ms_p50", p95: "job_ms_p95", p99: "job_ms_p99" } },
  { title: "charts.placed_ms", unit: "ms", lines: { p50: "placed_ms_p50", p99: "placed_ms_p99" } },
  { title: "charts.chat", unit: "rate", lines: { accepted: "accepted", busy: "busy" } },
  { title: "charts.accept_ms", unit: "ms", lines: { p50: "accept_ms_p50", p99: "accept_ms_p99" } },
  { title: "charts.save_ms", unit: "ms", lines: { p50: "save_ms_p50", p99: "save_ms_p99" } },
  { title: "charts.lag_ms", unit: "ms", lines: { p50: "lag_ms_p50", p99: "lag_ms_p99" } },
  { title: "charts.open", unit: "count", lines: { sessions: "sessions", jobs: "jobs", users: "users" } },
];
const UNITS = { rate: (value) => `${value < 10 ? Math.round(value * 10) / 10 : count(Math.round(value))}/s`, ms, count };

export class Charts {
  everyMs = 5000; // a new point comes every ten seconds
  #points = [];

  constructor() {
    this.facts = element("p", { class: "facts" });
    this.charts = CHARTS.map((chart) => new Chart(chart));
    this.root = element("div", { class: "view" },
      section("charts.title", [], this.facts, element("div", { class: "charts" }, ...this.charts.map(({ root }) => root))));
  }

  async load() {
    return get("history", { since: this.#points.at(-1)?.at });
  }

  draw({ now_ms: now, kept_ms: span, point_ms: step, points }) {
    const from = points[0]?.at ?? Infinity;
    this.#points = [...this.#points.filter(({ at }) => at < from && at > now - span), ...points];
    say(this.facts, "charts.facts", { instances: count(this.#points.at(-1)?.instances ?? 0) });
    for (const chart of this.charts) chart.draw(this.#points, { now, span, step });
  }
}

class Chart {
  constructor({ title, unit, lines }) {
    this.lines = Object.entries(lines); // the name that is shown, and that of the value
    this.unit = UNITS[unit];
    this.picture = document.createElementNS(SVG, "svg");
    this.picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.picture.setAttribute("preserveAspectRatio", "none");
    this.picture.setAttribute("aria-hidden", "true");
    this.paths = this.lines.map((_, i) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", `line line${i}`);
      this.picture.append(path);
      return path;
    });
    this.top = element("span", { class: "top-of" });
    this.values = this.lines.map(([name], i) => tip(element("span", { class: `key key${i}`, "data-line": name }), `line.${name}`));
    this.root = element("figure", { class: "chart", "data-chart": title },
      element("figcaption", {}, tip(element("strong", { word: title }), title), ...this.values),
      element("div", { class: "plot" }, this.top, this.picture));
  }

  draw(points, time) {
    const values = points.flatMap((point) => this.lines.map(([, name]) => point[name] ?? 0));
    const highest = niceAbove(Math.max(0, ...values));
    this.top.textContent = points.length ? this.unit(highest) : "";
    this.lines.forEach(([shown, name], i) => {
      this.paths[i].setAttribute("d", pathOf(points, name, time, highest));
      const last = points.at(-1)?.[name];
      this.values[i].textContent = `${word(`line.${shown}`)} ${last === null || last === undefined ? "–" : this.unit(last)}`;
    });
  }
}

/** The line breaks where nothing was counted. */
function pathOf(points, name, { now, span, step }, highest) {
  let drawn = "", before = -Infinity;
  for (const { at, [name]: value } of points) {
    if (value === null || value === undefined) continue;
    const x = WIDTH * (1 - (now - at - step) / span), y = HEIGHT - 2 - (HEIGHT - 6) * (value / highest);
    const goesOn = at - before <= step;
    drawn += `${goesOn ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (!goesOn) drawn += "h0.01"; // a single point is seen as well
    before = at;
  }
  return drawn;
}

function niceAbove(value) {
  if (value <= 0) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((times) => times * step).find((nice) => nice >= value);
}
