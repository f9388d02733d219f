/** Settings as the reader calls them. */

import { t } from "../../i18n";

/** The label of a setting, by its name in the file. */
export function label(name: string): string {
  const [key, sampling] = keyOf(name);
  return sampling
    ? t(`models.sampling_${key}` as "models.sampling_top_k")
    : t(`models.field_${key}` as "models.field_batch");
}

/** What it is for, in a sentence. */
export function help(name: string): string {
  const [key, sampling] = keyOf(name);
  return sampling
    ? t(`models.sampling_${key}_help` as "models.sampling_top_k_help")
    : t(`models.field_${key}_help` as "models.field_batch_help");
}

function keyOf(name: string): [key: string, sampling: boolean] {
  const inner = name.replace(/^sampling\./, "");
  return [inner, inner !== name];
}
