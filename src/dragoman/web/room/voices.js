// Captions that are read aloud, by the voice that came with them. Only what is said while voices are on has one.

import { decode } from "../page/base64.js";
import { browser } from "../page/kept.js";
import { Player } from "../page/player.js";

const KEPT = "dragoman.voice";
const WAITING = 4; // what else waits is too old to be heard: it stays as text

export class Voices {
  /** `on`: chosen(isOn), blocked() when the browser still wants a click, aloud(caption id, yes). */
  constructor(button, gate, on) {
    Object.assign(this, { button, on });
    this.player = new Player({ started: ({ id }) => on.aloud(id, true), ended: ({ id }) => on.aloud(id, false) }, gate);
    this.isOn = browser.get(KEPT) === "on";
    button.addEventListener("click", () => this.choose(!this.isOn));
    for (const name of ["pointerdown", "keydown"]) addEventListener(name, () => this.isOn && this.player.wake());
    this.draw();
  }

  choose(isOn) {
    this.isOn = isOn;
    browser.set(KEPT, isOn ? "on" : null);
    if (isOn) this.player.wake();
    else this.player.hush();
    this.draw();
    this.on.chosen(isOn);
  }

  draw() {
    this.button.setAttribute("aria-pressed", this.isOn);
  }

  async add(id, sound, format) {
    if (!this.isOn) return;
    try {
      const buffer = await this.player.decode(decode(sound), format);
      if (this.player.context.state !== "running") return this.on.blocked(); // it would wait, and the microphone with it
      this.player.add({ id, buffer }, WAITING);
    } catch {
      // The browser cannot decode it; the text is there.
    }
  }

  hush() {
    this.player.hush();
  }
}
