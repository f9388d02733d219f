/** What speculation of a model does, and why, in one sentence. */

import type { ModelSpeculation, SpeculationSummary } from "../../api/schema";
import { number, t, times } from "../../i18n";
import type { Key } from "../../i18n";
import { reasonOf, reasonText } from "../../ui/reasons";

/** From here on it is called faster: below, the difference is within what rounds vary by. */
export const FASTER = 1.03;

const NAMED = ["suffix", "prediction", "recycle", "grammar", "draft-model", "heads"];

/** What is done now; while nothing is answered, what was done in the last rounds, if there were any. */
export function says(state: ModelSpeculation): string {
  return said(state.summary.code === "idle" ? (lately(state) ?? state.summary) : state.summary);
}

function said(summary: SpeculationSummary): string {
  const reason = reasonOf(summary.reason, summary.reason_code);
  const why = reason === null ? "" : reasonText(reason);
  switch (summary.code) {
    case "drafting":
      return drafting(summary);
    case "plain":
      return t("speculation.says_plain", { why });
    case "measuring":
      return t("speculation.says_measuring");
    case "off":
      return t("speculation.says_off");
    case "no_drafters":
      return t("speculation.says_unable", { why });
    case "idle":
      return t("speculation.says_idle");
  }
}

/** A summary of the last rounds, of requests that have ended; null before the first. */
function lately(state: ModelSpeculation): SpeculationSummary | null {
  const requests = state.decisions.flatMap((round) => round.requests);
  if (!requests.length || state.recent === null) return null;
  const tokens = requests.reduce((sum, request) => sum + request.committed, 0);
  const drafter = most(
    requests.flatMap(({ drafter, accepted }) => (drafter ? [[drafter, 1 + accepted] as const] : [])),
  );
  const reason = most(requests.flatMap(({ reason }) => (reason ? [[reason, 1] as const] : [])));
  const plain = drafter === null;
  if (plain && reason === null) return null;
  return {
    code: plain ? "plain" : "drafting",
    drafter,
    tokens_per_forward: tokens / requests.length,
    speedup: state.recent.estimated_speedup,
    reason: plain ? reason : null,
    reason_code: plain ? (requests.find((request) => request.reason === reason)?.reason_code ?? null) : null,
  };
}

/** The name with the largest sum. */
function most(counts: (readonly [string, number])[]): string | null {
  const sums = new Map<string, number>();
  for (const [name, count] of counts) sums.set(name, (sums.get(name) ?? 0) + count);
  return [...sums].sort((one, other) => other[1] - one[1])[0]?.[0] ?? null;
}

function drafting(summary: SpeculationSummary): string {
  const drafter = (summary.drafter ?? "").split("+")[0] ?? "";
  const name = drafter.startsWith("ngram")
    ? "ngram"
    : NAMED.includes(drafter)
      ? drafter.replace("-", "_")
      : null;
  const doing = name ? t(`speculation.doing_${name}` as Key) : t("speculation.doing_other", { drafter });
  const tokens = number(summary.tokens_per_forward ?? 1, 1);
  return t("speculation.says", { doing, tokens, gain: gained(summary.speedup) });
}

function gained(speedup: number | null): string {
  if (speedup === null) return t("speculation.says_unknown");
  return speedup >= FASTER
    ? t("speculation.says_faster", { speedup: times(speedup) })
    : t("speculation.says_no_faster");
}
