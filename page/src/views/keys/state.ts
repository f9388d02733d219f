/** The keys as the server has them, and the key that was made last. */

import { signal } from "@preact/signals";
import { call, part, send, keepKey } from "../../api/http";
import type { KeyLimits, KeyRow, Keys, MadeKey, NewKey } from "../../api/schema";
import { loadSession, session } from "../../api/session";

export const keys = signal<Keys | null>(null);

/** It stays until the reader says that it is kept, also while other views are on screen; nowhere else. */
export const made = signal<MadeKey | null>(null);

/** Ask the server. Throws as `call`. */
export async function loadKeys(): Promise<void> {
  keys.value = await call<Keys>("console/keys");
}

/** Throws as `call`. The first keys of an open server: from now on this page needs the admin key, too. */
export async function makeKey(wanted: Omit<NewKey, "version">): Promise<void> {
  made.value = await call<MadeKey>("console/keys", { method: "POST", body: wanted });
  if (made.value.admin_key !== null) keepKey(made.value.admin_key);
  await Promise.all([loadKeys(), loadSession()]);
}

/** Throws as `send`, also if the settings have changed since `limits.version`. */
export async function changeKey(name: string, limits: KeyLimits): Promise<void> {
  await send(`console/keys/${part(name)}`, { method: "PUT", body: limits });
  await loadKeys();
}

/** Throws as `send`. */
export async function revokeKey(name: string): Promise<void> {
  await send(`console/keys/${part(name)}`, { method: "DELETE" });
  if (made.value?.name === name) made.value = null;
  await Promise.all([loadKeys(), loadSession()]);
}

/** Whether this is the last key, which the server does not remove: anyone could use it then. */
export function isLast(row: KeyRow): boolean {
  return keys.value?.keys.length === 1 && keys.value.keys[0]?.name === row.name;
}

/** Whether the server asks for no key. */
export function isOpen(): boolean {
  return session.value?.open ?? false;
}
