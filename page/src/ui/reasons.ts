/** Why nothing is drafted, or was, in the reader's language. */

import { t } from "../i18n";

/** The codes that have a text, as `reason_code` of GET /v1/speculation and of an answer names them. */
export const CODES = [
  "nothing_found",
  "back_off",
  "not_worth",
  "too_risky",
  "shared",
  "measuring",
  "no_room",
  "switched_off",
  "no_cells",
  "failed",
  "not_decoded",
  "turned_off",
  "recurrent_state",
  "no_drafter",
  "drafters_failed",
  "nothing_paid",
] as const;

export type Code = (typeof CODES)[number];

/** A reason as the server gives it: in English, and a code if it is a known one. */
export interface Reason {
  text: string;
  code: Code | null;
}

/** Null if there is none. */
export function reasonOf(text: string | null, code: string | null): Reason | null {
  return text === null ? null : { text, code: CODES.find((known) => known === code) ?? null };
}

/** The reason in a few words; one without a code as the server says it. */
export function reasonText(reason: Reason): string {
  return reason.code === null ? reason.text : t(`drafting.reason_${reason.code}`);
}

/** A reason of the server in the reader's language; null if there is none. */
export function whyNothing(text: string | null, code: string | null): string | null {
  const reason = reasonOf(text, code);
  return reason === null ? null : reasonText(reason);
}
