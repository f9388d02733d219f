/** The speculation string as fields: mode, longest draft, draft model. docs/speculation.md is its grammar. */

export type Mode = "auto" | "off" | "own";

export interface Chosen {
  mode: Mode;
  /** The longest draft of every drafter, in tokens, as typed; "" leaves each its own. */
  cap: string;
  draftModel: string | null;
  /** The string in the reader's own words; used if `mode` is "own". */
  text: string;
}

/** The two settings that say how a model speculates. */
export interface Written {
  speculate: string;
  draft_model: string | null;
}

/** The drafters of `auto` that have a longest draft, and their own one (docs/drafters.md). */
const LONGEST = { suffix: 63, recycle: 16, prediction: 63, grammar: 63 } as const;
const LONGEST_OF_A_MODEL = 16;
const LONGEST_OF_A_HEAD = 8;
export const LONGEST_CAP = 63;

/** Whether it is a longest draft that drafters take. */
export function isCap(text: string): boolean {
  return /^\d{1,2}$/.test(text.trim()) && Number(text) >= 1 && Number(text) <= LONGEST_CAP;
}

/** The settings for what was chosen. `head`: the model has a head, which a cap is for as well. A cap only
 * shortens drafts, so it names the drafters whose own longest draft is longer. One that is not valid is left
 * out. */
export function written(chosen: Chosen, head: boolean): Written {
  if (chosen.mode === "off") return { speculate: "off", draft_model: null };
  if (chosen.mode === "own") return { speculate: chosen.text, draft_model: chosen.draftModel };
  const stages = ["auto"];
  const cap = chosen.cap.trim();
  let draft = chosen.draftModel;
  if (isCap(cap)) {
    const shortens = (longest: number) => Number(cap) < longest;
    for (const [name, longest] of Object.entries(LONGEST))
      if (shortens(longest)) stages.push(`${name}:max=${cap}`);
    if (head && shortens(LONGEST_OF_A_HEAD)) stages.push(`heads:max=${cap}`);
    if (draft !== null && shortens(LONGEST_OF_A_MODEL) && fitsAnOption(draft)) {
      stages.push(`draft-model:model=${draft},max=${cap}`);
      draft = null;
    }
  }
  return { speculate: stages.join(";"), draft_model: draft };
}

/** What was chosen, for the settings: "own" if the fields cannot say it. */
export function chosenOf(settings: Written): Chosen {
  const text = settings.speculate.trim();
  const drafts = /(?:^|;)draft-model:model=([^,;]+),max=\d+(?:;|$)/.exec(text);
  const chosen: Chosen = {
    mode: text === "off" ? "off" : "auto",
    cap: /max=(\d+)/.exec(text)?.[1] ?? "",
    draftModel: settings.draft_model ?? drafts?.[1] ?? null,
    text: settings.speculate,
  };
  const same = [false, true].some((head) => {
    const again = written(chosen, head);
    return again.speculate === text && again.draft_model === settings.draft_model;
  });
  return same ? chosen : { ...chosen, mode: "own", cap: "", draftModel: settings.draft_model };
}

/** The draft model that a speculation string names; the setting beside it does not count then. */
export function namedIn(text: string): string | null {
  return /(?:^|;)\s*draft-model\s*:(?:[^;]*,)?\s*model=([^,;]+)/.exec(text)?.[1]?.trim() ?? null;
}

/** Whether a model's name can stand in a speculation string. */
export function fitsAnOption(model: string): boolean {
  return !/[,;]/.test(model);
}
