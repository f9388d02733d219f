/** The settings of a model, in the order of the form. */

import type { ModelSettingsReply } from "../../api/schema";
import { numberIn } from "../../ui/typed";

type Kind = "whole" | "decimal" | "text" | "lines" | "choice" | "suggest" | "switch";

/** `speculate` and `draft_model` have parts of their own (speculation_fields.tsx). */
export const GROUPS = [
  {
    name: "capacity",
    fields: [
      { name: "context_length", kind: "whole" },
      { name: "sequences", kind: "whole" },
      { name: "kv_type", kind: "suggest" },
      { name: "rope_scaling", kind: "choice" },
      { name: "rope_scale", kind: "decimal" },
      { name: "rope_freq_base", kind: "decimal" },
      { name: "yarn_orig_ctx", kind: "whole" },
    ],
  },
  {
    name: "computing",
    fields: [
      { name: "threads", kind: "whole" },
      { name: "batch", kind: "whole" },
      { name: "ubatch", kind: "whole" },
      { name: "gpu_layers", kind: "whole" },
      { name: "memory", kind: "choice" },
      { name: "dtype", kind: "choice" },
      { name: "rpc", kind: "lines" },
    ],
  },
  {
    name: "sampling",
    fields: [
      { name: "sampling.temperature", kind: "decimal" },
      { name: "sampling.top_k", kind: "whole" },
      { name: "sampling.top_p", kind: "decimal" },
      { name: "sampling.min_p", kind: "decimal" },
      { name: "sampling.repetition_penalty", kind: "decimal" },
      { name: "sampling.presence_penalty", kind: "decimal" },
      { name: "sampling.frequency_penalty", kind: "decimal" },
      { name: "sampling.max_tokens", kind: "whole" },
      { name: "sampling.reasoning_budget", kind: "whole" },
    ],
  },
  {
    name: "identity",
    fields: [
      { name: "aliases", kind: "lines" },
      { name: "path", kind: "text" },
      { name: "mmproj", kind: "text" },
      { name: "embeddings", kind: "choice" },
      { name: "pinned", kind: "switch" },
    ],
  },
] as const satisfies readonly { name: string; fields: readonly { name: string; kind: Kind }[] }[];

export type FormField = (typeof GROUPS)[number]["fields"][number];
export type FieldName = FormField["name"] | "speculate" | "draft_model";

const KINDS = new Map<string, Kind>(
  GROUPS.flatMap(({ fields }) => fields.map((field): [string, Kind] => [field.name, field.kind])),
);

export type Value = string | number | boolean | string[] | null;

/** All values by the names of the form: `sampling` flattened. */
export function flat(values: Record<string, unknown>): Record<string, Value> {
  const flattened: Record<string, Value> = {};
  for (const [name, value] of Object.entries(values)) {
    if (name !== "sampling") flattened[name] = value as Value;
    else
      for (const [key, inner] of Object.entries((value ?? {}) as Record<string, Value>))
        flattened[`sampling.${key}`] = inner;
  }
  return flattened;
}

/** The other way round, for a request. */
export function nested(values: Record<string, Value>): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    const key = name.startsWith("sampling.") ? name.slice("sampling.".length) : null;
    if (key === null) body[name] = value;
    else body.sampling = { ...(body.sampling as Record<string, Value> | undefined), [key]: value };
  }
  return body;
}

/** The value that a typed text means. One that is no number stays a text: the server says what is wrong. */
export function read(name: string, text: string): Value {
  const kind = KINDS.get(name);
  const trimmed = text.trim();
  if (kind === "lines")
    return text
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
  if (!trimmed) return null;
  if (kind === "decimal" || (kind === "whole" && !trimmed.includes(","))) return numberIn(trimmed) ?? trimmed;
  if (kind === "whole") return trimmed; // a comma may part thousands
  return text;
}

/** A value as it is typed. */
export function typed(value: Value | undefined): string {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join("\n") : String(value);
}

export function same(one: Value | undefined, other: Value | undefined): boolean {
  return JSON.stringify(one ?? null) === JSON.stringify(other ?? null);
}

/** Whether a loaded model can go on with another value of the field: it is about requests, not about loading. */
export function countsAtOnce(name: string): boolean {
  return name.startsWith("sampling.") || name === "aliases" || name === "pinned";
}

/** The value that counts where the file has none. */
export function defaultOf(settings: ModelSettingsReply, name: string): Value {
  return flat(settings.defaults)[name] ?? null;
}
