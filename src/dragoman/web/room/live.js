// Words while they are spoken: a row under the captions for each open utterance, until its caption replaces it.

import { direction } from "../page/words.js";

const LASTS_MS = 10000; // without a new one, and without a caption

export class Live {
  constructor(captions) {
    this.captions = captions;
    this.rows = new Map(); // by caption id
  }

  /** An empty text: nothing follows. */
  partial({ caption_id: id, speaker, lang, text }, isMine) {
    if (!text || this.captions.captions.has(id)) return this.end(id);
    const known = this.rows.get(id), row = known ?? this.captions.build(speaker.name);
    const wasAtEnd = this.captions.isAtEnd();
    this.rows.set(id, row);
    row.item.dataset.state = "partial";
    row.item.classList.toggle("mine", isMine);
    row.item.dir = direction(lang);
    row.large.lang = lang;
    row.large.textContent = text;
    if (!known) this.captions.below(row.item);
    else if (wasAtEnd) this.captions.toEnd();
    clearTimeout(row.timer);
    row.timer = setTimeout(() => this.end(id), LASTS_MS);
  }

  end(id) {
    const row = this.rows.get(id);
    if (!row) return;
    clearTimeout(row.timer);
    row.item.remove();
    this.rows.delete(id);
  }
}
