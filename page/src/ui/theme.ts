/** Light and dark: as the system, or as the reader chose. */

import { computed, signal } from "@preact/signals";
import { forGood } from "../kept";

export type Theme = "auto" | "light" | "dark";

const KEPT_AS = "foredraft-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", (event) => (systemDark.value = event.matches));

export const theme = signal<Theme>("auto");
export const shownTheme = computed(() =>
  theme.value === "auto" ? (systemDark.value ? "dark" : "light") : theme.value,
);

export function chooseTheme(chosen: Theme): void {
  theme.value = chosen;
  forGood.set(KEPT_AS, chosen);
  document.documentElement.dataset.theme = chosen;
}

export function startTheme(): void {
  const kept = forGood.get(KEPT_AS);
  chooseTheme(kept === "light" || kept === "dark" ? kept : "auto");
}
