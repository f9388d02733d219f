/** Conversations that the reader removed and the store may still have. Local storage takes them at once, also where
 * the page is left before the store is done.
 */

import { forGood } from "../../kept";

const KEPT_AS = "foredraft-chat-removed";

export function unfinishedRemovals(): string[] {
  try {
    const read: unknown = JSON.parse(forGood.get(KEPT_AS) ?? "[]");
    return Array.isArray(read) ? read.filter((id) => typeof id === "string") : [];
  } catch {
    return []; // not written here
  }
}

export function removalBegins(id: string): void {
  keep([...unfinishedRemovals(), id]);
}

/** The store has removed them, or they are wanted back. */
export function removalEnds(ids: readonly string[]): void {
  keep(unfinishedRemovals().filter((id) => !ids.includes(id)));
}

function keep(ids: string[]): void {
  forGood.set(KEPT_AS, ids.length ? JSON.stringify(ids) : null);
}
