/** The figures of a window, prepared for charts. */

import type { Overview, Point } from "../../api/schema";

export type Window = Overview["window"];

export const WINDOWS: readonly Window[] = ["2m", "1h", "24h", "all"];

const SPANS_S: Record<Exclude<Window, "all">, number> = { "2m": 120, "1h": 3600, "24h": 86_400 };

/** How often a window is asked for, in seconds: no more often than it gets a new point. */
export function everyOf(window: Window): number {
  return { "2m": 2, "1h": 20, "24h": 60, all: 60 }[window];
}

/** The live window with what came: points of `known` stay while they are in it. */
export function joined(known: Overview | null, found: Overview): Overview {
  const last = found.points.at(-1)?.at;
  if (known === null || found.whole || last === undefined) return found;
  const earlier = known.points.filter((point) => point.at >= last - SPANS_S["2m"]);
  return { ...found, points: [...earlier, ...found.points] };
}

/** The ends of the axis of time: the whole window, also where nothing was measured. */
export function spanOf(overview: Overview): [number, number] {
  const end = overview.points.at(-1)?.at ?? Date.now() / 1000;
  if (overview.window === "all") return [Math.min(overview.since, end - overview.step_s), end];
  return [end - SPANS_S[overview.window], end];
}

/** Points with a gap wherever steps are missing: the server did not run then. */
export function gapped(overview: Overview): { at: number[]; points: (Point | null)[] } {
  const at: number[] = [];
  const points: (Point | null)[] = [];
  for (const point of overview.points) {
    const before = at.at(-1);
    if (before !== undefined && point.at - before > 1.5 * overview.step_s) {
      at.push(before + overview.step_s);
      points.push(null);
    }
    at.push(point.at);
    points.push(point);
  }
  return { at, points };
}

/** Whether anything was ever asked of this server. */
export function untouched(overview: Overview): boolean {
  const busy = overview.points.some((point) => point.running || point.waiting || point.prompt_tokens_per_s);
  return !busy && !overview.totals.requests && !overview.totals.rounds;
}

/** Shares of drafts with more than d right tokens, d from 0; up to the last depth with any. */
export function byDepth(overview: Overview): number[] {
  const { accepted_by_depth: accepted, drafts } = overview.totals;
  const end = accepted.findLastIndex((count) => count > 0) + 1;
  return drafts ? accepted.slice(0, end).map((count) => Math.min(1, count / drafts)) : [];
}

/** Tokens that a forward gave a request: those of its draft that were right, and one of the model's own. Null
 * without forwards. Generated tokens would not do: they are counted at once, forwards when a request ends. */
export function perForward({ totals }: Overview): number | null {
  const accepted = totals.accepted_by_depth.reduce((sum, count) => sum + count, 0);
  return totals.rounds ? 1 + accepted / totals.rounds : null;
}
