/** What the view Models shows, kept while other views are on screen. */

import { signal } from "@preact/signals";
import { call, part, send } from "../../api/http";
import type { ConfiguredModel, ModelSettingsReply, Models, NewModel, Pulls } from "../../api/schema";

export const models = signal<Models | null>(null);
export const pulls = signal<Pulls | null>(null);

/** Ask for the models now, not with the next event. Throws as `send`. */
export async function refreshModels(): Promise<void> {
  const answer = await call<Models>("console/models");
  models.value = newer(models.value, answer);
}

/** Ask for the downloads now. Throws as `send`. */
export async function refreshPulls(): Promise<void> {
  const answer = await call<Pulls>("console/pulls");
  pulls.value = newer(pulls.value, answer);
}

/** What is known, if an event that came while an answer was on its way is newer than it. */
function newer<T extends { revision: number }>(known: T | null, answer: T): T {
  return known && known.revision > answer.revision ? known : answer;
}

export function configured(name: string): ConfiguredModel | undefined {
  return models.value?.configured.find((model) => model.name === name);
}

/** Load or unload a model; returns when that is done. Throws as `send`. */
export async function switchModel(name: string, action: "load" | "unload"): Promise<void> {
  try {
    await send(`v1/models/${part(name)}/${action}`, { method: "POST", body: {} });
  } finally {
    await refreshModels().catch(() => undefined);
  }
}

/** Serve a model of this machine. Throws as `send`. */
export async function serve(model: NewModel): Promise<void> {
  await send("console/models", { method: "POST", body: model });
  await refreshModels();
}

/** Have a model answer requests that name none. Throws as `send`. */
export async function makeDefault(name: string): Promise<void> {
  const { version } = await call<ModelSettingsReply>(`console/models/${part(name)}/settings`);
  await send("console/default-model", { method: "PUT", body: { name, version } });
  await refreshModels();
}

/** Take a model out of the settings file; its file stays. Throws as `send`. */
export async function stopServing(name: string): Promise<void> {
  const { version } = await call<ModelSettingsReply>(`console/models/${part(name)}/settings`);
  await send(`console/models/${part(name)}?${new URLSearchParams({ version }).toString()}`, {
    method: "DELETE",
  });
  await refreshModels();
}

/** Delete a model's files. Throws as `send`. */
export async function deleteStored(name: string): Promise<void> {
  await send(`console/stored/${part(name)}`, { method: "DELETE" });
  await refreshModels();
}

/** Start a download, continue it, cancel it, or take one that has ended off the list. Throws as `send`. */
export async function startPull(model: string): Promise<void> {
  await send("console/pulls", { method: "POST", body: { model } });
  await refreshPulls();
}

export async function resumePull(id: string): Promise<void> {
  await send(`console/pulls/${part(id)}/resume`, { method: "POST", body: {} });
  await refreshPulls();
}

export async function cancelPull(id: string): Promise<void> {
  await send(`console/pulls/${part(id)}/cancel`, { method: "POST", body: {} });
  await refreshPulls();
}

export async function forgetPull(id: string): Promise<void> {
  await send(`console/pulls/${part(id)}`, { method: "DELETE" });
  await refreshPulls();
}
