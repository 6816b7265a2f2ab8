// Every change needs a second click, below a sentence that says what will happen.

import { element } from "./elements.js";
import { say } from "./words.js";

const part = (name) => document.querySelector(`[data-part="${name}"]`);

/** Resolves to whether the operator confirmed. */
export function confirmed(title, sentence, values, yes) {
  const dialog = part("confirm");
  say(part("confirm-title"), title, values);
  say(part("confirm-text"), sentence, values);
  say(part("yes"), yes);
  return new Promise((resolve) => {
    const answer = (given) => () => {
      dialog.onclose = part("yes").onclick = part("no").onclick = null;
      if (dialog.open) dialog.close();
      resolve(given);
    };
    part("yes").onclick = answer(true);
    part("no").onclick = dialog.onclose = answer(false); // Escape closes it as well
    dialog.showModal();
    part("no").focus();
  });
}

/**
 * Actions of one view: each is a button, a question before the change and a message after it.
 * `key` names the words: `key` (the button), `key.title`, `key.sentence` and `key.done`.
 */
export class Actions {
  constructor(app, name) {
    this.app = app;
    this.word = element("p", { class: "word", role: "status", "data-part": `${name}-word` });
  }

  async ask(key, values, act) {
    if (!(await confirmed(`${key}.title`, `${key}.sentence`, values, key))) return;
    await this.app.attempt(async () => {
      await act();
      say(this.word, `${key}.done`, values);
    }, this.word);
    await this.app.refresh();
  }
}
