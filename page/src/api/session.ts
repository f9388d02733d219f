/** Who is asking, and what this server lets them do. */

import { signal } from "@preact/signals";
import { call } from "./http";
import type { Session } from "./schema";

export const session = signal<Session | null>(null);

/** Ask the server. Throws as `send`. */
export async function loadSession(): Promise<void> {
  session.value = await call<Session>("console/session");
}

export function isAdmin(): boolean {
  return session.value?.admin ?? false;
}
