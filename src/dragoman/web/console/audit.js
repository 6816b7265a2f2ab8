// The audit: who changed what, when, and on which target.

import { get } from "./api.js";
import { element, section } from "./elements.js";
import { Grid } from "./grid.js";
import { Pager } from "./pager.js";
import { clock } from "./shown.js";
import { named, word } from "./words.js";

export class AuditTrail {
  constructor(app) {
    this.grid = new Grid({
      key: (row) => row.id, empty: "audit.none", mark: (row) => ({ action: row.action }),
      columns: [
        { head: "audit.when", cell: (row) => clock(row.at_ms), tight: true },
        { head: "audit.who", cell: (row) => row.who || word("audit.nobody") },
        { head: "audit.tenant", cell: (row) => row.tenant || "–" },
        { head: "audit.address", cell: (row) => row.address || "–", mono: true },
        { head: "audit.what", cell: (row) => named("action", row.action) },
        { head: "audit.target", cell: (row) => row.target, mono: true },
        { head: "audit.detail", cell: (row) => row.detail },
        { head: "audit.result", cell: (row) => row.result || "–", mood: (row) => (row.result === "done" ? "" : "warm") },
        { head: "audit.by", cell: (row) => row.instance, mono: true },
      ],
    });
    this.pager = new Pager(() => app.refresh());
    this.root = element("div", { class: "view" }, section("audit.title", [], this.grid.root, this.pager.root));
  }

  load() {
    return get("audit", { count: 50, before: this.pager.start });
  }

  draw({ entries, next }) {
    this.grid.draw(entries);
    this.pager.told(next);
  }
}
