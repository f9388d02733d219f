/** Why the server ended an answer early, in the reader's language. */

import { t } from "../i18n";

const CODES = ["stopped_by_admin", "stopped_by_owner"] as const;

/** A notice or an error of the server; one without a known code as the server says it. */
export function noticeText(text: string, code: string | null): string {
  const known = CODES.find((known) => known === code);
  return known ? t(`shell.notice_${known}`) : text;
}
