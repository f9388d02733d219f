/** The models that can be chosen, and what their settings say about sampling. */

import { signal } from "@preact/signals";
import { call, part } from "../../api/http";
import type { ModelSettingsReply } from "../../api/schema";
import { SAMPLING } from "./transfer";
import type { Sampling, Settings } from "./types";

export interface Model {
  id: string;
  loaded: boolean;
  /** What it is for: chats are with those that generate; others are not listed. Null: not known. */
  kind?: string | null;
  /** Known while it is loaded. */
  architecture?: { input_modalities: string[] };
  max_model_len?: number;
}

const GENERATIVE = "generative";

/** Null: not known yet. */
export const models = signal<Model[] | null>(null);

/** Ask the server. Throws as `send`. */
export async function loadModels(): Promise<void> {
  const { data } = await call<{ data: Model[] }>("v1/models");
  models.value = data.filter(({ kind }) => !kind || kind === GENERATIVE);
}

/** The model that answers to a name; "" is the default one, the first. */
export function modelOf(name: string): Model | undefined {
  return name ? models.value?.find(({ id }) => id === name) : models.value?.[0];
}

/** Whether a model takes pictures; one that is not loaded may. */
export function sees(name: string): boolean {
  return modelOf(name)?.architecture?.input_modalities.includes("image") ?? true;
}

/** What the page asks for where neither the settings nor the model's makers say anything: as `foredraft run`
 * does. The API's own default, a temperature of 1, makes small models ramble.
 */
export const USUAL: Sampling = { temperature: 0.7, top_p: 0.9 };

/** What the settings and the model's makers say; null if the server does not tell. */
export async function defaultsOf(name: string): Promise<Sampling | null> {
  try {
    const reply = await call<ModelSettingsReply>(`console/models/${part(name)}/settings`);
    const set = (reply.values.sampling ?? {}) as Record<string, unknown>;
    const sampling: Sampling = {};
    for (const field of SAMPLING) {
      const value = set[field] ?? reply.recommended[field];
      if (typeof value === "number") sampling[field] = value;
    }
    return sampling;
  } catch {
    return null;
  }
}

/** What is sent: what the reader set, and what is usual where nothing is set. */
export async function withUsual(settings: Settings): Promise<Settings> {
  const name = modelOf(settings.model)?.id;
  const defaults = name ? await defaultsOf(name) : null;
  if (defaults === null) return settings;
  const usual = Object.entries(USUAL).filter(([field]) => !(field in defaults));
  return { ...settings, sampling: { ...Object.fromEntries(usual), ...settings.sampling } };
}
