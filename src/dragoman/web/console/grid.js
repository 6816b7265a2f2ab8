// A table that is drawn every second: a row stays the same element while its key is there, so nothing flickers and the
// focus stays.

import { copier, element, text } from "./elements.js";
import { short } from "./shown.js";
import { say, tip } from "./words.js";

/**
 * columns: { head, cell(row) → text } and optionally `number`, `mono`, `tight`, `mood(row)`, `href(row)`, `title(row)`, or
 * instead of `cell` `make(current)` → an element, made once, and `update(element, row)`; `current()` is the row as it
 * is now. With `id(row)` the cell shows that id, shortened, with a button to copy it; `cell` is shown where it is "".
 */
export class Grid {
  #rows = new Map();
  #columns;
  #key;
  #mark;

  constructor({ columns, key, empty, mark = () => ({}) }) {
    this.#columns = columns;
    this.#key = key;
    this.#mark = mark;
    const heads = columns.map(({ head, number }) => {
      const cell = element("th", { scope: "col", class: number ? "number" : undefined });
      if (head) tip(cell, head);
      if (head) say(cell, head);
      return cell;
    });
    this.body = element("tbody");
    this.empty = element("p", { class: "none", word: empty, hidden: true });
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.root = element("div", { class: "grid" }, element("div", { class: "scroll" }, table), this.empty);
  }

  draw(rows) {
    const kept = new Set(rows.map(this.#key));
    for (const [key, { line }] of this.#rows) {
      if (kept.has(key)) continue;
      line.remove();
      this.#rows.delete(key);
    }
    rows.forEach((row, at) => {
      const key = this.#key(row), held = this.#rows.get(key) ?? this.#made(key);
      held.row = row;
      for (const [name, value] of Object.entries(this.#mark(row))) {
        if (value === undefined || value === false) delete held.line.dataset[name];
        else held.line.dataset[name] = value;
      }
      this.#columns.forEach((column, i) => {
        if (column.cell || column.id) this.#fill(held.cells[i], column, row);
        else column.update?.(held.cells[i].firstChild, row);
      });
      if (this.body.children[at] !== held.line) this.body.insertBefore(held.line, this.body.children[at] ?? null);
    });
    this.empty.hidden = rows.length > 0;
    this.root.firstChild.hidden = rows.length === 0;
  }

  #made(key) {
    const held = { row: null, line: element("tr"), cells: [] };
    held.line.dataset.key = key;
    for (const { number, mono, tight, make, href, id } of this.#columns) {
      const cell = element("td", { class: [number && "number", mono && "mono", tight && "tight"].filter(Boolean).join(" ") || undefined });
      if (make) cell.append(make(() => held.row));
      else if (href || id) cell.append(element(href ? "a" : "span"));
      if (id) cell.append(copier(() => id(held.row)));
      held.cells.push(cell);
      held.line.append(cell);
    }
    this.#rows.set(key, held);
    return held;
  }

  #fill(cell, { cell: told, mood, href, title, id }, row) {
    const place = href || id ? cell.firstChild : cell, full = id?.(row) ?? "";
    text(place, full ? short(full) : String(told?.(row) ?? ""));
    if (id) {
      cell.lastChild.hidden = !full;
      if (full) cell.title = full;
    }
    if (href) place.setAttribute("href", href(row));
    if (mood) cell.dataset.mood = mood(row) ?? "";
    if (title) cell.title = title(row) ?? "";
  }
}
