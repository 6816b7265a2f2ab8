// What the browser keeps: between visits, or while a tab is open. If it keeps nothing, a choice holds for this page only.

class Kept {
  constructor(name) {
    this.name = name;
  }

  get(key) {
    try {
      return window[this.name].getItem(key);
    } catch {
      return null;
    }
  }

  /** null removes it. */
  set(key, value) {
    try {
      if (value === null) window[this.name].removeItem(key);
      else window[this.name].setItem(key, value);
    } catch {
      // The browser stores nothing.
    }
  }

  /** What was kept, for one use. */
  take(key) {
    const value = this.get(key);
    this.set(key, null);
    return value;
  }
}

export const browser = new Kept("localStorage"), tab = new Kept("sessionStorage");
