/** The cost curve V(n) in plain forwards, and what rounds of n rows brought. */

import type { Round } from "./rounds";
import type { ModelSpeculation } from "../../api/schema";

/** V(n) at about `depth` tokens of context: `single` is V(1) in ms, `points` are [n, V(n)/V(1)]. */
export interface Curve {
  depth: number;
  single: number;
  points: [number, number][];
}

/** The measured curves, the shallowest first. */
export function curvesOf(milliseconds: ModelSpeculation["cost_curve_ms"]): Curve[] {
  return Object.entries(milliseconds ?? {})
    .map(([depth, sizes]): Curve => {
      const single = sizes["1"] ?? 0;
      const points = Object.entries(sizes).map(([rows, ms]): [number, number] => [Number(rows), ms / single]);
      return { depth: Number(depth), single, points: points.sort((one, other) => one[0] - other[0]) };
    })
    .filter((curve) => curve.single > 0)
    .sort((one, other) => one.depth - other.depth);
}

/** The curve of the depth that is nearest to the one at hand. */
export function nearest(curves: readonly Curve[], depth: number): Curve | undefined {
  const away = (curve: Curve) => Math.abs(Math.log2(Math.max(1, curve.depth) / Math.max(1, depth)));
  return [...curves].sort((one, other) => away(one) - away(other))[0];
}

/** What rounds of one request brought, by rows. Those of several requests share their forward. */
export function broughtBy(rounds: readonly Round[]): Map<number, { rounds: number; tokens: number }> {
  const found = new Map<number, { rounds: number; tokens: number }>();
  for (const round of rounds) {
    if (round.requests !== 1 || round.rows !== 1 + round.drafted || !round.drafted) continue;
    const sum = found.get(round.rows) ?? { rounds: 0, tokens: 0 };
    found.set(round.rows, { rounds: sum.rounds + 1, tokens: sum.tokens + round.committed });
  }
  return found;
}
