// The console: one view at a time, refreshed every second or faster while the tab is visible.

import { Denied, Refusal, hasToken, useToken } from "./api.js";
import { AuditTrail } from "./audit.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { element } from "./elements.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { Letters } from "./letters.js";
import { Overview } from "./overview.js";
import { Rooms } from "./rooms.js";
import { Sessions } from "./sessions.js";
import { choose, language, preferred, say, speak, translate } from "./words.js";

const EVERY_MS = 1000;
const VIEWS = {
  overview: Overview, sessions: Sessions, rooms: Rooms, jobs: Jobs, job: Job, chat: Chat, charts: Charts,
  letters: Letters, audit: AuditTrail,
};
const UNDER = { job: "jobs" }; // views without a tab of their own
const part = (name) => document.querySelector(`[data-part="${name}"]`);

class Console {
  #views = new Map();
  #tabs = new Map();
  #name = "";
  #turn = 0; // of looking: an answer to an earlier one is not drawn
  #timer = 0;
  #paused = false; // what is shown stays until something is asked for

  constructor() {
    for (const name of Object.keys(VIEWS).filter((each) => !(each in UNDER))) {
      const tab = element("a", { href: `#${name}`, word: `view.${name}` });
      this.#tabs.set(name, tab);
      part("tabs").append(tab);
    }
    addEventListener("hashchange", () => this.#show());
    addEventListener("language", () => this.refresh());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.refresh());
    part("gate-form").addEventListener("submit", (event) => this.#enter(event));
    part("gate").addEventListener("cancel", (event) => event.preventDefault());
    part("pause").addEventListener("click", () => this.#pause());
    part("forget").addEventListener("click", () => (useToken(""), location.reload()));
    document.querySelector(".skip").addEventListener("click", (event) => (event.preventDefault(), part("views").focus()));
    this.#show();
  }

  get #view() {
    return this.#views.get(this.#name);
  }

  #show() {
    const [name, ...rest] = location.hash.slice(1).split("/");
    this.#name = name in VIEWS ? name : "overview";
    if (!this.#view) {
      this.#views.set(this.#name, new VIEWS[this.#name](this));
      part("views").append(this.#view.root);
      translate(this.#view.root);
    }
    for (const [each, view] of this.#views) view.root.hidden = each !== this.#name;
    for (const [each, tab] of this.#tabs) {
      if (each === (UNDER[this.#name] ?? this.#name)) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    this.#view.enter?.(decoded(rest.join("/")));
    this.refresh();
  }

  /** Refresh now, and then every second. */
  async refresh() {
    clearTimeout(this.#timer);
    const turn = ++this.#turn, view = this.#view;
    if (!view || part("gate").open) return;
    try {
      const told = await view.load();
      if (turn !== this.#turn) return;
      view.draw(told);
      this.#status(this.#paused ? "quiet" : "good", this.#paused ? "status.paused" : "status.live");
    } catch (error) {
      if (turn !== this.#turn) return;
      this.#failed(error);
    }
    part("forget").hidden = !hasToken();
    if (!part("gate").open) this.#timer = setTimeout(() => this.#again(), view.everyMs ?? EVERY_MS);
  }

  /** Run what a click asked for; an error is shown in `place`. */
  async attempt(act, place) {
    try {
      place.dataset.mood = "";
      await act();
    } catch (error) {
      if (error instanceof Denied) return this.#failed(error);
      place.dataset.mood = "bad";
      say(place, error instanceof Refusal ? "status.refused" : "status.silent", { why: error.message });
    }
  }

  #again() {
    // The tab is hidden: the view is drawn again when it is visible.
    if (document.visibilityState === "visible" && !this.#paused) this.refresh();
  }

  #pause() {
    this.#paused = !this.#paused;
    part("pause").setAttribute("aria-pressed", String(this.#paused));
    say(part("pause"), this.#paused ? "pause.end" : "pause");
    this.refresh();
  }

  #failed(error) {
    if (error instanceof Denied) {
      this.#status("bad", "status.denied");
      if (!part("gate").open) part("gate").showModal();
      say(part("gate-wrong"), error.message ? "gate.wrong" : "", { why: error.message });
      part("token").focus();
    } else if (error instanceof Refusal) this.#status("bad", "status.refused", error.message);
    else this.#status("bad", "status.silent", error.message);
  }

  #enter(event) {
    event.preventDefault();
    useToken(part("token").value);
    part("token").value = "";
    part("gate").close();
    this.refresh();
  }

  #status(mood, key, why = "") {
    part("status").dataset.mood = mood;
    if (part("status-word").dataset.word !== key || why) say(part("status-word"), key, { why });
  }
}

/** The hash of the URL may be anything. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

speak(preferred());
part("language").value = language();
part("language").addEventListener("change", ({ target }) => choose(target.value));
new Console();
