/** The last rounds of a model, collected from what the stream sends: each time the newest few dozen. */

import type { ModelSpeculation, RoundDecision } from "../../api/schema";
import { reasonOf } from "../../ui/reasons";
import type { Reason } from "../../ui/reasons";

const KEPT = 400;

/** A round with its requests taken together. */
export interface Round {
  number: number;
  rows: number;
  requests: number;
  drafted: number;
  accepted: number;
  committed: number;
  ms: Record<string, number>;
  /** Names of the drafters whose drafts were verified. */
  drafters: string[];
  gains: number[];
  /** Why nothing was drafted, without doubles. */
  reasons: Reason[];
}

function roundOf(decision: RoundDecision): Round {
  const sum = (of: (request: RoundDecision["requests"][number]) => number) =>
    decision.requests.reduce((total, request) => total + of(request), 0);
  return {
    number: decision.round,
    rows: decision.rows,
    requests: decision.requests.length,
    drafted: sum((request) => request.drafted),
    accepted: sum((request) => request.accepted),
    committed: sum((request) => request.committed),
    ms: decision.ms,
    drafters: known(decision.requests.map((request) => request.drafter)),
    gains: decision.requests.map((request) => request.expected_gain).filter((gain) => gain !== null),
    reasons: unlike(decision.requests.map((request) => reasonOf(request.reason, request.reason_code))),
  };
}

function known<T>(values: (T | null)[]): T[] {
  return [...new Set(values.filter((value) => value !== null))];
}

function unlike(reasons: (Reason | null)[]): Reason[] {
  const found = known(reasons);
  return found.filter((reason, i) => found.findIndex(({ text }) => text === reason.text) === i);
}

/** The rounds known so far and those of a new look, without those of an engine that is gone. */
export function withRounds(before: readonly Round[], state: ModelSpeculation): readonly Round[] {
  const found = state.decisions.map(roundOf);
  const first = found[0];
  const last = found.at(-1);
  if (first === undefined || last === undefined) return [];
  const anew = (before.at(-1)?.number ?? 0) > last.number;
  const earlier = anew ? [] : before.filter((round) => round.number < first.number);
  return [...earlier, ...found].slice(-KEPT);
}

export function timeOf(round: Round): number {
  return Object.values(round.ms).reduce((total, part) => total + part, 0);
}

/** Milliseconds by part over all rounds, the longest first. */
export function timeByPart(rounds: readonly Round[]): [string, number][] {
  const found: Record<string, number> = {};
  for (const round of rounds) {
    for (const [part, ms] of Object.entries(round.ms)) found[part] = (found[part] ?? 0) + ms;
  }
  return Object.entries(found).sort((one, other) => other[1] - one[1]);
}

/** What was decided in some rounds: the drafters whose drafts were verified, or why there were none. */
export interface Outcome {
  drafters: string[];
  reasons: Reason[];
  count: number;
}

/** Each round is counted once, under its drafters or its reasons together; the most frequent first. */
export function outcomesOf(rounds: readonly Round[]): Outcome[] {
  const found = new Map<string, Outcome>();
  for (const round of rounds) {
    const drafters = round.drafted ? [...round.drafters].sort() : [];
    const reasons = round.drafted ? [] : [...round.reasons].sort((a, b) => a.text.localeCompare(b.text));
    const key = JSON.stringify([drafters, reasons]);
    const outcome = found.get(key) ?? { drafters, reasons, count: 0 };
    outcome.count += 1;
    found.set(key, outcome);
  }
  return [...found.values()].sort((one, other) => other.count - one.count);
}
