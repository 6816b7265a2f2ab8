// Rates and percentiles of one instance, live: what it answers at /api/v1/metrics, second by second.

import { element, section } from "./elements.js";
import { metrics } from "./api.js";
import { Series } from "./series.js";
import { count, ms } from "./shown.js";
import { say, word } from "./words.js";

const SVG = "http://www.w3.org/2000/svg", WIDTH = 600, HEIGHT = 120, SPAN_MS = 120_000;
const STAGE = "dragoman_job_stage_seconds", CHAT = "dragoman_chat_stage_seconds";

const at = (name, labels, q) => (between) => between.quantile(name, labels, q);
const CHARTS = [
  { title: "charts.jobs", unit: "rate", lines: {
    ended: (b) => b.rate("dragoman_jobs_total"), failovers: (b) => b.rate("dragoman_failovers_total") } },
  { title: "charts.job_ms", unit: "ms", lines: {
    p50: at(STAGE, ["stage=result"], 0.5), p95: at(STAGE, ["stage=result"], 0.95), p99: at(STAGE, ["stage=result"], 0.99) } },
  { title: "charts.placed_ms", unit: "ms", lines: {
    p50: at(STAGE, ["stage=dispatched"], 0.5), p99: at(STAGE, ["stage=dispatched"], 0.99) } },
  { title: "charts.chat", unit: "rate", lines: {
    accepted: (b) => b.rate(`${CHAT}_count{stage=accept_ack}`), busy: (b) => b.rate("dragoman_chat_server_busy_total") } },
  { title: "charts.accept_ms", unit: "ms", lines: {
    p50: at(CHAT, ["stage=accept_ack"], 0.5), p99: at(CHAT, ["stage=accept_ack"], 0.99) } },
  { title: "charts.save_ms", unit: "ms", lines: {
    p50: at(CHAT, ["stage=save_lag"], 0.5), p99: at(CHAT, ["stage=save_lag"], 0.99) } },
  { title: "charts.lag_ms", unit: "ms", lines: {
    p50: at("dragoman_loop_lag_seconds", [], 0.5), p99: at("dragoman_loop_lag_seconds", [], 0.99) } },
  { title: "charts.open", unit: "count", lines: {
    sessions: (b) => b.now("dragoman_sessions"), jobs: (b) => b.now("dragoman_jobs_driven"), users: (b) => b.now("dragoman_chat_users") } },
];
const UNITS = { rate: (value) => `${value < 10 ? Math.round(value * 10) / 10 : count(Math.round(value))}/s`, ms, count };

export class Charts {
  #series = new Map(); // instance → one series a chart

  constructor(app) {
    this.facts = element("p", { class: "facts" });
    this.of = element("select", { "data-part": "charts-of", "data-label": "charts.of" });
    this.of.addEventListener("change", () => app.refresh());
    this.charts = CHARTS.map((chart) => new Chart(chart));
    this.root = element("div", { class: "view" },
      section("charts.title", [this.of], this.facts, element("div", { class: "charts" }, ...this.charts.map(({ root }) => root))));
  }

  async load() {
    const { instance, samples } = await metrics();
    if (!this.#series.has(instance)) {
      this.#series.set(instance, CHARTS.map(({ lines }) => new Series(lines)));
      this.of.append(element("option", { value: instance }, instance));
    }
    const now = Date.now();
    for (const series of this.#series.get(instance)) series.look(now, samples);
    return now;
  }

  draw(now) {
    say(this.facts, "charts.facts", { instance: this.of.value });
    this.of.hidden = this.#series.size < 2;
    this.#series.get(this.of.value).forEach((series, i) => this.charts[i].draw(series.points, now));
  }
}

class Chart {
  constructor({ title, unit, lines }) {
    this.names = Object.keys(lines);
    this.unit = UNITS[unit];
    this.picture = document.createElementNS(SVG, "svg");
    this.picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.picture.setAttribute("preserveAspectRatio", "none");
    this.picture.setAttribute("aria-hidden", "true");
    this.paths = this.names.map((_, i) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", `line line${i}`);
      this.picture.append(path);
      return path;
    });
    this.top = element("span", { class: "top-of" });
    this.values = this.names.map((name, i) => element("span", { class: `key key${i}`, "data-line": name }));
    this.root = element("figure", { class: "chart", "data-chart": title },
      element("figcaption", {}, element("strong", { word: title }), ...this.values),
      element("div", { class: "plot" }, this.top, this.picture));
  }

  draw(points, now) {
    const values = points.flatMap((point) => this.names.map((name) => point[name] ?? 0));
    const highest = niceAbove(Math.max(0, ...values));
    this.top.textContent = points.length ? this.unit(highest) : "";
    this.names.forEach((name, i) => {
      this.paths[i].setAttribute("d", pathOf(points, name, now, highest));
      const last = points.at(-1)?.[name];
      this.values[i].textContent = `${word(`line.${name}`)} ${last === null || last === undefined ? "–" : this.unit(last)}`;
    });
  }
}

/** Where nothing was counted the line breaks off. */
function pathOf(points, name, now, highest) {
  let drawn = "", on = false;
  for (const point of points) {
    const value = point[name];
    if (value === null) {
      on = false;
      continue;
    }
    const x = WIDTH * (1 - (now - point.at) / SPAN_MS), y = HEIGHT - 2 - (HEIGHT - 6) * (value / highest);
    drawn += `${on ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (!on) drawn += "h0.01"; // a single point is seen as well
    on = true;
  }
  return drawn;
}

function niceAbove(value) {
  if (value <= 0) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((times) => times * step).find((nice) => nice >= value);
}
