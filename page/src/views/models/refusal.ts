/** What the server says of a wrong setting, in the reader's language and without the setting's name in the
 * file: it is shown at the field. */

import { number, t } from "../../i18n";
import { label } from "./names";

/** Numbers from here on stand for "no upper bound". */
const NO_BOUND = 2 ** 31 - 1;

/** `message` of the server about the setting `name`; its own words where they are not known here. */
export function refusal(name: string, message: string): string {
  const rule = / must be (.+)\.$/s.exec(message)?.[1];
  if (/^\S+ is missing\./.test(message)) return t("models.wrong_empty");
  return (rule && ruleInWords(rule)) || hostInWords(message) || withLabel(name, message);
}

function ruleInWords(rule: string): string | null {
  const bounds = /^a (whole|finite) number, (?:at least |between )?(\S+?)(?: (?:to|and) (\S+))?$/.exec(rule);
  if (bounds) {
    const [, kind, low, high] = bounds;
    const whole = kind === "whole";
    const values = { low: number(Number(low)), high: number(Number(high)) };
    if (high === undefined || Number(high) >= NO_BOUND)
      return t(whole ? "models.wrong_whole_from" : "models.wrong_number_from", values);
    return t(whole ? "models.wrong_whole" : "models.wrong_number", values);
  }
  const choices = /^one of (.+)$/.exec(rule)?.[1];
  if (choices) return t("models.wrong_choice", { choices: choices.replace(/'/g, "") });
  const most = /^1 to (\d+) printable characters without spaces$/.exec(rule)?.[1];
  if (most) return t("models.wrong_name", { most });
  return rule === "a non-empty string" ? t("models.wrong_empty") : null;
}

/** What is wrong with an RPC host. */
function hostInWords(message: string): string | null {
  const none = /^['"](.*)['"] is not an RPC host\./s.exec(message)?.[1];
  if (none !== undefined) return t("models.wrong_host", { host: none });
  const twice = /^The RPC host (\S+) is named twice\./.exec(message)?.[1];
  return twice ? t("models.wrong_host_twice", { host: twice }) : null;
}

function withLabel(name: string, message: string): string {
  const inner = name.replace(/^sampling\./, "");
  return message.replace(new RegExp(`^${inner}(?=[ =])`, "gm"), label(name));
}
