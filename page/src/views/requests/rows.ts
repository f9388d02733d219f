/** Which requests are shown, in which order. */

import type { RequestRow, Requests } from "../../api/schema";

export type Outcome = "running" | "answered" | "stopped" | "left" | "failed";

/** How a request ended. "left": its client went away before the end. */
export function outcomeOf(row: RequestRow): Outcome {
  if (row.state !== "done") return "running";
  if (row.finish === "abort") return "left";
  if (row.finish === "stopped") return "stopped";
  if (row.finish === "error" || row.finish === null || (row.status ?? 0) >= 400) return "failed";
  return "answered";
}

/** "plain": answered without a draft. */
export const STATES = ["running", "answered", "plain", "stopped", "left", "failed"] as const;
export type State = (typeof STATES)[number];

export interface Filter {
  text: string;
  model: string;
  key: string;
  state: State | "";
}

/** Clients may send ids of their own, so that an id alone may stand twice. */
export function keyOf(row: RequestRow): string {
  return `${row.id} ${row.at}`;
}

export function matches(row: RequestRow, filter: Filter): boolean {
  if (filter.model && row.model !== filter.model) return false;
  if (filter.key && row.key !== filter.key) return false;
  if (filter.state === "plain" ? !isPlain(row) : filter.state && outcomeOf(row) !== filter.state)
    return false;
  return !filter.text || textOf(row).includes(filter.text.toLowerCase());
}

function isPlain(row: RequestRow): boolean {
  return outcomeOf(row) === "answered" && row.not_drafting !== null;
}

function textOf(row: RequestRow): string {
  const { id, model, key, api, code, error, not_drafting, texts } = row;
  const said = [id, model, key, api, code, error, not_drafting, texts?.prompt, texts?.answer];
  return said.filter(Boolean).join("\n").toLowerCase();
}

type Value = (row: RequestRow) => number | string | null;

/** What each column is sorted by. */
const SORTED_BY = {
  at: (row) => row.at,
  key: (row) => row.key,
  model: (row) => row.model,
  api: (row) => row.api,
  prompt: (row) => row.prompt_tokens,
  cached: (row) => row.cached_tokens,
  answer: (row) => (row.answers ? row.completion_tokens : null),
  first: (row) => row.first_token_ms,
  rate: (row) => row.tokens_per_s,
  accepted: (row) => row.acceptance,
  speedup: (row) => row.speedup,
  end: (row) => [outcomeOf(row), row.finish, row.error ?? row.not_drafting].join(" "),
} satisfies Record<string, Value>;

export type ColumnName = keyof typeof SORTED_BY;

export interface Order {
  by: ColumnName;
  descending: boolean;
}

/** The order that an address names: "speedup", or "-speedup" for the highest first. */
export function orderOf(text: string | null): Order {
  const by = text?.replace(/^-/, "") ?? "";
  return by in SORTED_BY
    ? { by: by as ColumnName, descending: text?.startsWith("-") ?? false }
    : { by: "at", descending: true };
}

export function orderText(order: Order): string {
  return (order.descending ? "-" : "") + order.by;
}

/** Sorted; what has no value stands last in both directions. */
export function sorted(rows: RequestRow[], order: Order): RequestRow[] {
  const value: Value = SORTED_BY[order.by];
  const sign = order.descending ? -1 : 1;
  return [...rows].sort((left, right) => {
    const [a, b] = [value(left), value(right)];
    if (a === null || b === null) return (a === null ? 1 : 0) - (b === null ? 1 : 0);
    if (a === b) return right.at - left.at;
    return (typeof a === "string" && typeof b === "string" ? a.localeCompare(b) : a < b ? -1 : 1) * sign;
  });
}

/** As many rows as the server keeps. */
const MOST = 600;

/** The rows with news from the server: the objects on screen where nothing has changed, so that they stay. */
export function merged(before: RequestRow[], news: Requests): RequestRow[] {
  if (!news.whole) {
    if (!news.finished.length) return before;
    return [...news.finished, ...before].sort((left, right) => right.at - left.at).slice(0, MOST);
  }
  const known = new Map(before.map((row) => [keyOf(row), row]));
  return news.finished.map((row) => {
    const old = known.get(keyOf(row));
    return old && (old.texts === null) === (row.texts === null) ? old : row;
  });
}

/** All different values, in the order of the alphabet. */
export function different(values: (string | null)[]): string[] {
  return [...new Set(values.filter((value) => value !== null && value !== "") as string[])].sort();
}
