// How others come in, and what one takes along: link, code, QR code, transcripts.

import { say } from "../page/words.js";
import { drawing, squares } from "./qr.js";

const BRIEFLY_MS = 4000;
const FORMATS = ["vtt", "srt", "txt", "json"];

export class Sharing {
  /** `on`: token() of the room's server, refused(code). */
  constructor(part, on) {
    Object.assign(this, { part, on });
    part("copy").addEventListener("click", () => this.copy());
    part("transcripts").addEventListener("click", (event) => this.take(event));
  }

  show(id, code) {
    const { part } = this, link = `${location.origin}/room/${encodeURIComponent(id)}`, rows = squares(link);
    part("code").textContent = code.replace(/^(\d{3})(\d{3})$/, "$1 $2");
    part("link").value = link;
    part("qr").replaceChildren(...(rows ? [drawing(rows)] : []));
  }

  /** In the language of the reader. */
  links(id, lang) {
    const room = encodeURIComponent(id);
    for (const format of FORMATS) {
      const query = new URLSearchParams({ format, lang });
      this.part(`transcript-${format}`).href = `/api/v1/rooms/${room}/transcript?${query}`;
    }
    this.part("projector").href = `/captions/${room}?${new URLSearchParams({ lang })}`;
  }

  async copy() {
    this.part("link").select();
    try {
      await navigator.clipboard.writeText(this.part("link").value);
    } catch {
      document.execCommand("copy"); // pages without https have no other clipboard
    }
    say(this.part("copied"), "room.copied");
    setTimeout(() => say(this.part("copied"), ""), BRIEFLY_MS);
  }

  /** A link cannot carry a token. */
  async take(event) {
    const link = event.target.closest("a[download]"), token = this.on.token();
    if (!link || !token) return;
    event.preventDefault();
    const answer = await fetch(link.href, { headers: { Authorization: `Bearer ${token}` } });
    if (!answer.ok) return this.on.refused("NOT_ALLOWED");
    const file = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await answer.blob()) });
    file.download = `room.${new URL(link.href).searchParams.get("format")}`;
    file.click();
    setTimeout(() => URL.revokeObjectURL(file.href), BRIEFLY_MS);
  }
}
