// The big button: a tap switches the microphone on and off, holding it down speaks for as long. It shows the level.
//
//   off ──press──▶ opening ──▶ on ◀──voice plays / ends──▶ waits        short press: stays on; long press: off at release

import { Microphone } from "../page/microphone.js";
import { Voice } from "../page/voice.js";
import { has, label, say } from "../page/words.js";

const HOLD_MS = 400; // a longer press is a hold
const HINTS = { off: "room.mic.off", opening: "room.mic.opening", on: "room.mic.on", waits: "room.mic.waits" };

export class Talk {
  /** `on`: begins() before it opens, chunk(bytes, final), streams(), opened() when devices have names, failed(word). */
  constructor(button, hint, gate, on) {
    Object.assign(this, { button, hint, gate, on, device: "", source: null, pressedAt: null });
    button.addEventListener("pointerdown", (event) => this.press(event));
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, (event) => this.release(event)); // anywhere
    button.addEventListener("contextmenu", (event) => event.preventDefault());
    button.addEventListener("keydown", (event) => event.repeat && event.preventDefault());
    button.addEventListener("click", ({ detail }) => detail === 0 && (this.source ? this.off() : this.start())); // no pointer
    this.draw("off");
  }

  press({ button, timeStamp }) {
    if (button !== 0 || this.button.disabled) return;
    this.pressedAt = this.source ? -Infinity : timeStamp;
    if (!this.source) this.start();
  }

  release({ timeStamp }) {
    const since = this.pressedAt;
    this.pressedAt = null;
    if (since !== null && timeStamp - since >= HOLD_MS) this.off();
  }

  async start() {
    const mine = (this.source = { close: () => {} });
    this.draw("opening");
    this.on.begins();
    const voice = new Voice({
      chunk: (bytes, final) => this.on.chunk(bytes, final),
      level: (level) => this.button.style.setProperty("--level", level.toFixed(2)),
    }, this.on.streams);
    try {
      const microphone = await Microphone.open({
        samples: (samples) => voice.push(samples),
        waits: (yes) => (yes && voice.end(), this.draw(yes ? "waits" : "on")),
        gone: () => this.fail("room.mic.gone"),
      }, this.gate, this.device);
      mine.close = () => (microphone.close(), voice.end());
      if (this.source !== mine) return mine.close();
      this.draw("on");
      this.on.opened();
    } catch ({ name }) {
      if (this.source === mine) this.fail(has(`error.${name}`) ? `error.${name}` : "error.microphone");
    }
  }

  off() {
    const source = this.source;
    this.source = null;
    source?.close();
    this.draw("off");
  }

  fail(word) {
    this.off();
    say(this.hint, word);
    this.on.failed(word);
  }

  /** Another microphone; one that is on goes on with it. */
  choose(device) {
    this.device = device;
    if (!this.source) return;
    this.off();
    this.start();
  }

  draw(state) {
    this.button.dataset.state = state;
    this.button.setAttribute("aria-pressed", state !== "off");
    label(this.button, state === "off" ? "room.mic" : "room.mic.stop");
    say(this.hint, HINTS[state]);
  }
}
