/** What the codes of the server mean, in the reader's language. */

import type { RequestRow } from "../../api/schema";
import { number, percent, t } from "../../i18n";
import { noticeText } from "../../ui/notices";
import { whyNothing } from "../../ui/reasons";
import type { Key } from "../../i18n";
import { outcomeOf } from "./rows";
import type { Outcome } from "./rows";

/** What went wrong, or who stopped it. */
export function errorOf(row: RequestRow): string | null {
  return row.error === null ? null : noticeText(row.error, row.code);
}

/** Why nothing was drafted. */
export function reasonOf(row: RequestRow): string | null {
  return whyNothing(row.not_drafting, row.not_drafting_code);
}

const FINISHES: Record<string, Key> = {
  stop: "requests.finish_stop",
  length: "requests.finish_length",
  repetition: "requests.finish_repetition",
  stopped: "requests.finish_stopped",
  abort: "requests.finish_abort",
  error: "requests.finish_error",
};

export function finishOf(row: RequestRow): string {
  if (row.state !== "done") return t(`requests.${row.state}`);
  if (row.finish === null) return t("requests.refused", { status: String(row.status ?? "") });
  const known = FINISHES[row.finish];
  return known ? t(known) : row.finish;
}

export const TONES: Record<Outcome, "good" | "bad" | "warn" | undefined> = {
  running: "good",
  answered: undefined,
  stopped: "warn",
  left: "warn",
  failed: "bad",
};

export function toneOf(row: RequestRow): "good" | "bad" | "warn" | undefined {
  return TONES[outcomeOf(row)];
}

/** Faster or slower by more than a few per cent. */
export function speedTone(speedup: number | null): "good" | "bad" | "" {
  return speedup === null ? "" : speedup >= 1.03 ? "good" : speedup < 0.97 ? "bad" : "";
}

const NOTHING = "–";

export function count(value: number | null): string {
  return value === null ? NOTHING : number(value, 0);
}

export function rate(value: number | null): string {
  return value === null ? NOTHING : number(value, value < 10 ? 1 : 0);
}

export function share(value: number | null): string {
  return value === null ? NOTHING : percent(value);
}

export function written<T>(value: T | null, text: (value: T) => string): string {
  return value === null ? NOTHING : text(value);
}
