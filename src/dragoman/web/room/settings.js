// How this browser shows the room: the size of the captions, their originals, and which microphone it uses.

import { browser } from "../page/kept.js";
import { say } from "../page/words.js";

const SIZE = "dragoman.size", ORIGINALS = "dragoman.originals", DEVICE = "dragoman.microphone";
const narrow = matchMedia("(max-width: 560px)");

export class Settings {
  /** `on`: originals(), device(id). */
  constructor(part, on) {
    Object.assign(this, { part, on });
    part("size").value = browser.get(SIZE) ?? (narrow.matches ? 28 : 32);
    part("originals").checked = (browser.get(ORIGINALS) ?? (narrow.matches ? "no" : "yes")) === "yes";
    part("size").addEventListener("input", () => this.resize());
    part("originals").addEventListener("change", () => {
      browser.set(ORIGINALS, this.originals ? "yes" : "no");
      on.originals();
    });
    part("device").addEventListener("change", ({ target }) => {
      browser.set(DEVICE, target.value || null);
      on.device(target.value);
    });
    navigator.mediaDevices?.addEventListener("devicechange", () => this.devices());
    addEventListener("language", () => this.devices());
    this.show();
    this.devices();
  }

  get originals() {
    return this.part("originals").checked;
  }

  get device() {
    return browser.get(DEVICE) ?? "";
  }

  resize() {
    browser.set(SIZE, this.part("size").value);
    this.show();
  }

  show() {
    document.documentElement.style.setProperty("--caption", `${this.part("size").value}px`);
  }

  /** Browsers name the microphones only after the page has been allowed to use one. */
  async devices() {
    const all = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
    const named = all.filter(({ kind, deviceId }) => kind === "audioinput" && deviceId && deviceId !== "default");
    const usual = new Option("", "");
    say(usual, "room.device.usual");
    this.part("device").replaceChildren(usual, ...named.map(({ deviceId, label }) => new Option(label || deviceId, deviceId)));
    this.part("device").value = named.some(({ deviceId }) => deviceId === this.device) ? this.device : "";
  }
}
