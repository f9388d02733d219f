/** The view on screen, from the address: `#/models/NAME`, and what is chosen in it: `#/requests?model=NAME`. */

import { computed, signal } from "@preact/signals";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

/** The parts of the address: ["models", "NAME"]. */
export const route = computed(() => path(hash.value).split("/").map(decoded));

/** What stands behind the question mark. */
export const query = computed(() => new URLSearchParams(hash.value.split("?")[1] ?? ""));

export function href(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function goTo(...parts: string[]): void {
  location.hash = href(...parts);
}

/** Change some values of the query, and keep the others; "" removes one. The way back skips the change. */
export function setQuery(values: Record<string, string>): void {
  const changed = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(values)) {
    if (value) changed.set(name, value);
    else changed.delete(name);
  }
  const text = changed.toString();
  history.replaceState(history.state, "", `#/${path(hash.value)}${text && `?${text}`}`);
  hash.value = location.hash;
}

function path(hash: string): string {
  return (hash.split("?")[0] ?? "").replace(/^#\/?/, "");
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
}
