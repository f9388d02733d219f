/** Numbers as this view writes them. */

import { language, t } from "../../i18n";

const STEPS = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
] as const;

/** A span in its largest unit, rounded: "3 min". */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [size, unit] = STEPS.find(([size]) => whole >= size) ?? [1, "second"];
  return new Intl.NumberFormat(language.value, { style: "unit", unit, maximumFractionDigits: 0 }).format(
    Math.round(whole / size),
  );
}

/** "135M" */
export function compact(value: number): string {
  return new Intl.NumberFormat(language.value, { notation: "compact", maximumSignificantDigits: 3 }).format(
    value,
  );
}

/** The program that a model on this machine belongs to, as people write it. */
export function sourceName(source: string): string {
  if (source === "foredraft") return t("models.source_own");
  const known: Record<string, string> = {
    ollama: "Ollama",
    lmstudio: "LM Studio",
    huggingface: "Hugging Face",
    llamacpp: "llama.cpp",
  };
  return known[source] ?? source;
}
