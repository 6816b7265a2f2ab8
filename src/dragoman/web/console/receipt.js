// The receipt of a placement in sentences: who could have had the job, who was drawn, who got it, what was in the way.

import { named, word } from "./words.js";

export function why(job) {
  const receipt = job.receipt;
  if (!receipt || typeof receipt !== "object") return word("why.nothing");
  return [...attempt(job, receipt), ...placement(receipt, `${job.src_lang ?? "?"} → ${job.tgt_lang ?? "?"}`)].join(" ");
}

/** Of which attempt the receipt is: of the last one, or of one before that was placed. */
function attempt(job, receipt) {
  if (!("reassigned_ms" in job) || job.node_id) return [];
  return [word(receipt.chosen ? "why.before" : "why.attempt", { attempt: job.attempt })];
}

function placement(receipt, pair) {
  const { pool, chosen, affinity, drawn = [] } = receipt;
  const told = [word(pool ? "why.pool" : "why.nobody", { pool, pair })];
  if (affinity) told.push(word(`why.turn.${affinity}`, { chosen: chosen ?? "?" }));
  if (!chosen) told.push(...obstacles(receipt));
  else if (affinity !== "hit") {
    told.push(word(drawn.length > 1 ? "why.drawn" : "why.chosen", { drawn: drawn.join(", "), chosen }));
  }
  if (chosen && receipt.text_only) told.push(word("why.text_only", { chosen, language: pair.split(" ").pop() }));
  return told;
}

function obstacles({ counts = {}, names = {} }) {
  const told = Object.entries(counts).map(([reason, count]) => {
    const who = Object.keys(names).filter((name) => names[name] === reason);
    return word("why.obstacle", { count, reason: named("obstacle", reason), who: who.length ? ` (${who.join(", ")})` : "" });
  });
  return [...told, word("why.none")];
}
