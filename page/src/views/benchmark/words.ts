/** What a report means, in words. */

import type { Benchmark } from "../../api/schema";
import { t, times } from "../../i18n";

type Tone = "good" | "bad" | "warn";

export interface Said {
  text: string;
  tone?: Tone;
}

/** Whether it is faster, by its interval of confidence; null while there are too few pairs for one. */
export function verdict(report: Benchmark): Said | null {
  const { speedup, low, high } = report;
  if (speedup === null) return null;
  if (low === null || high === null)
    return report.state === "running" ? null : { text: t("benchmark.too_few") };
  const values = { low: times(low), high: times(high) };
  if (low > 1) return { text: t("benchmark.faster", values), tone: "good" };
  if (high < 1) return { text: t("benchmark.slower", values), tone: "bad" };
  return { text: t("benchmark.no_difference", values) };
}

/** Whether the texts were the same, against what the model promises. */
export function sameness(report: Benchmark): Said | null {
  const all = report.pairs.length;
  if (!all) return null;
  const differ = report.pairs.filter((pair) => !pair.same).length;
  const values = { all, differ, reason: report.exact_reason };
  if (report.exact)
    return differ
      ? { text: t("benchmark.broken", values), tone: "bad" }
      : { text: t("benchmark.same_exact", values), tone: "good" };
  return differ
    ? { text: t("benchmark.differ", values), tone: "warn" }
    : { text: t("benchmark.same", values) };
}

/** "1.2× – 1.5×", or the speedup alone. */
export function interval(report: Benchmark): string {
  const { speedup, low, high } = report;
  if (speedup === null) return "–";
  return low === null || high === null ? times(speedup) : `${times(low)} – ${times(high)}`;
}

export const STATE_TONES: Record<Benchmark["state"], Tone | undefined> = {
  running: undefined,
  done: "good",
  failed: "bad",
  cancelled: "warn",
};
