/** axe-core's findings on a page, as lines that say what and where. */

import type { Page } from "@playwright/test";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Result {
  violations: { id: string; help: string; nodes: { target: string[] }[] }[];
}

export async function violations(page: Page): Promise<string[]> {
  const found = (await page.evaluate(`${AXE}; axe.run(document)`)) as Result;
  return found.violations.map(
    ({ id, help, nodes }) => `${id}: ${help} (${nodes.map((node) => node.target.join(" ")).join(", ")})`,
  );
}
