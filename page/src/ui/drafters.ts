/** A colour and words for each drafter, the same in every view. */

import { t } from "../i18n";
import type { Key } from "../i18n";

const KINDS = ["prediction", "suffix", "ngram", "draft-model", "heads", "grammar", "recycle"] as const;
/** Those that ship with Foredraft, by the keys of their texts. */
export const DRAFTERS = [
  "suffix",
  "prediction",
  "grammar",
  "recycle",
  "draft_model",
  "heads",
  "ngram_simple",
  "ngram_map_k",
  "ngram_map_k4v",
  "ngram_mod",
  "ngram_cache",
] as const;

/** What its colour and its line go by: those of n-grams are one kind. Null: of a plugin. */
function kindOf(name: string): (typeof KINDS)[number] | null {
  return KINDS.find((kind) => name === kind || (kind === "ngram" && name.startsWith("ngram"))) ?? null;
}

/** The custom property of a drafter's colour, `--drafter-suffix`. */
export function drafterColour(name: string): string {
  return `--drafter-${kindOf(name) ?? "other"}`;
}

/** A drafter in a word or two. */
export function drafterName(name: string): string {
  const kind = kindOf(name);
  return kind === null ? name : t(`drafting.name_${kind.replace("-", "_")}` as Key);
}

/** What a drafter copies or guesses from. Trees of several are named "one+other". */
export function aboutDrafter(name: string): string {
  if (name.includes("+")) return t("drafting.about_several");
  const known = DRAFTERS.find((key) => key === name.replaceAll("-", "_"));
  return t(`drafting.about_${known ?? "other"}`);
}
