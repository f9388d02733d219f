/** What the view Models shows, kept while other views are on screen. */

import { signal } from "@preact/signals";
import { call, part, send } from "../../api/http";
import type { ConfiguredModel, ModelSettingsReply, Models, NewModel, Pull, Pulls } from "../../api/schema";

export const models = signal<Models | null>(null);
export const pulls = signal<Pull[] | null>(null);

/** Ask for the models now, not with the next event. Throws as `send`. */
export async function refreshModels(): Promise<void> {
  models.value = await call<Models>("console/models");
}

/** Ask for the downloads now. Throws as `send`. */
export async function refreshPulls(): Promise<void> {
  pulls.value = (await call<Pulls>("console/pulls")).pulls;
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
