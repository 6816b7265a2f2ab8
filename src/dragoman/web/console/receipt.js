// The receipt of a placement in sentences: eligible nodes, candidates, the chosen node, obstacles.

import { named, word } from "./words.js";

export function why(job) {
  const receipt = job.receipt;
  if (!receipt || typeof receipt !== "object") return word("why.nothing");
  return [...attempt(job, receipt), ...placement(receipt, `${job.src_lang ?? "?"} → ${job.tgt_lang ?? "?"}`)].join(" ");
}

/** The attempt that the receipt belongs to: the last one, or the last one that found a node. */
function attempt(job, receipt) {
  if (!("reassigned_ms" in job) || job.node_id) return [];
  return [word(receipt.chosen ? "why.before" : "why.attempt", { attempt: job.attempt })];
}

function placement(receipt, pair) {
  const { pool, chosen, affinity, drawn = [] } = receipt;
  const sentences = [word(pool ? "why.pool" : "why.nobody", { pool, pair })];
  if (affinity) sentences.push(word(`why.turn.${affinity}`, { chosen: chosen ?? "?" }));
  if (!chosen) sentences.push(...obstacles(receipt));
  else if (affinity !== "hit") {
    const how = receipt.previewed ? "why.previewed" : drawn.length > 1 ? "why.drawn" : "why.chosen";
    sentences.push(word(how, { drawn: drawn.join(", "), chosen }));
  }
  if (chosen && receipt.text_only) sentences.push(word("why.text_only", { chosen, language: pair.split(" ").pop() }));
  return sentences;
}

function obstacles({ counts = {}, names = {} }) {
  const reasons = Object.entries(counts).map(([reason, count]) => {
    const who = Object.keys(names).filter((name) => names[name] === reason);
    return word("why.obstacle", { count, reason: named("obstacle", reason), who: who.length ? ` (${who.join(", ")})` : "" });
  });
  return [...reasons, word("why.none")];
}
