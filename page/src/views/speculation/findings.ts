/** What keeps a model from being faster that no single round's reason says, but its figures. */

import { percent } from "../../i18n";
import { isModel, stagesOf } from "./drafters";
import { timeByPart } from "./rounds";
import type { Round } from "./rounds";
import { FASTER } from "./says";
import type { ModelSpeculation } from "../../api/schema";

/** `shares` stand in the text `finding_NAME`; `advice` is the text `do_ADVICE`. */
export interface Finding {
  name: "wrong" | "slow" | "rejected" | "costly" | "not_auto";
  bad: boolean;
  shares: Record<string, string>;
  advice: string | null;
}

/** Of draft tokens: fewer right are nearly none, and fewer are few. */
const NEARLY_NONE = 0.1;
const FEW = 0.4;
/** Of a round's time: drafting that takes more is most of it. */
const MOST = 0.5;
/** Draft tokens from which shares of them say something. */
const ENOUGH = 32;

/** Whether other programs take cores that the model would use. */
export function busy(state: ModelSpeculation): boolean {
  return state.idle_threads > 0;
}

/** None where it is faster, or where hardly any round drafts. Named drafters draft in every round, so that there
 * may be no plain rounds to know `speedup` from. */
export function findingsOf(
  state: ModelSpeculation,
  rounds: readonly Round[],
  speedup: number | null,
): Finding[] {
  const drafted = rounds.reduce((sum, round) => sum + round.drafted, 0);
  const accepted = rounds.reduce((sum, round) => sum + round.accepted, 0);
  const often = rounds.filter((round) => round.drafted).length > 0.05 * rounds.length;
  if (!drafted || !often || (speedup !== null && speedup >= FASTER)) return [];
  const parts = timeByPart(rounds);
  const total = parts.reduce((sum, [, ms]) => sum + ms, 0);
  const drafting = total ? (parts.find(([part]) => part === "draft")?.[1] ?? 0) / total : 0;
  const right = accepted / drafted;
  const auto = stagesOf(state).includes("auto");
  const shares = { wrong: percent(1 - right), right: percent(right), drafting: percent(drafting) };
  const found: Finding[] = [];
  const add = (name: Finding["name"], bad: boolean, advice: string | null) =>
    found.push({ name, bad, shares, advice });
  if (right < NEARLY_NONE && drafted >= ENOUGH) add("wrong", true, auto ? "rarely" : null);
  else if (drafting > MOST) add("slow", true, auto ? "rarely" : null);
  else if (speedup !== null) add(right < FEW ? "rejected" : "costly", false, advised(right, auto));
  if (!auto && found.length)
    add("not_auto", false, stagesOf(state).some(isModel) ? "not_auto_model" : "not_auto");
  return found;
}

function advised(right: number, auto: boolean): string | null {
  if (right >= FEW) return "costly";
  return auto ? "rarely" : null;
}
