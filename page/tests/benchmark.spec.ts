import type { Page } from "@playwright/test";
import { readFileSync } from "node:fs";
import type { Benchmark, Benchmarks } from "../src/api/schema";
import { violations } from "./accessible";
import { Server, expect, test } from "./server";

const reports = (page: Page) => page.locator(".bench-kept li");

async function start(page: Page, prompts: number, tokens: number): Promise<void> {
  await page.getByLabel("Prompts").fill(String(prompts));
  await page.getByLabel("Tokens per answer").fill(String(tokens));
  await page.getByRole("button", { name: "Start", exact: true }).click();
}

/** A stream that goes on until the function that comes back is called. */
async function busy(server: Server): Promise<() => Promise<void>> {
  const stop = new AbortController();
  const response = await fetch(`${server.url}v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ prompt: "Once", max_tokens: 7000, ignore_eos: true, stream: true }),
    signal: stop.signal,
  });
  const read = response.text().catch(() => "");
  return async () => {
    stop.abort();
    await read;
  };
}

test("a benchmark runs, is shown, kept, downloaded, and deleted", async ({ server, view, page }) => {
  await view("benchmark");
  await expect(page.getByText("No reports yet.")).toBeVisible();
  await start(page, 6, 20);
  await expect(page.getByText("Done")).toHaveCount(2, { timeout: 50_000 });
  const { benchmarks } = await server.get<Benchmarks>("console/benchmarks");
  const report = benchmarks[0]!;
  expect([report.state, report.done, report.pairs.length]).toEqual(["done", 12, 6]);
  expect(page.url()).toContain(report.id);

  await expect(page.locator(".verdict")).toContainText("95 % confidence");
  await expect(page.getByText("All texts are the same (6); the model is exact.")).toBeVisible();
  const picture = page.getByRole("img", { name: /Tokens per second without and with speculation/ });
  await expect(picture.locator("rect")).toHaveCount(12);
  await expect(picture.getByText(report.pairs[0]!.prompt)).toBeVisible();
  await page.getByText("All numbers").click();
  await expect(page.getByRole("row")).toHaveCount(7);
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    expect(await violations(page)).toEqual([]);
  }
  await page.setViewportSize({ width: 390, height: 844 });
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);

  const waiting = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  const file = JSON.parse(readFileSync(await (await waiting).path(), "utf8")) as Benchmark;
  expect(file).toEqual(await server.get<Benchmark>(`console/benchmarks/${report.id}`));

  await page.reload();
  await expect(picture).toBeVisible();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await expect(page.getByText("No reports yet.")).toBeVisible();
  expect((await server.get<Benchmarks>("console/benchmarks")).benchmarks).toEqual([]);
});

test("a benchmark is cancelled, and what it measured is kept", async ({ server, view, page }) => {
  await view("benchmark");
  await start(page, 48, 32);
  await expect(page.locator(".bench-picture")).toBeVisible();
  await expect(page.getByRole("button", { name: "Start", exact: true })).toBeDisabled();
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(reports(page).getByText("Cancelled")).toBeVisible();
  await expect(page.getByRole("meter")).toHaveCount(0);
  const { benchmarks } = await server.get<Benchmarks>("console/benchmarks");
  expect(benchmarks[0]?.state).toBe("cancelled");
  expect(benchmarks[0]?.pairs.length).toBeGreaterThan(0);
});

test("while other requests run it warns, and marks what they disturbed", async ({ server, view, page }) => {
  const end = await busy(server);
  try {
    await view("benchmark");
    await start(page, 2, 16);
    const question = page.getByRole("dialog");
    await expect(question).toContainText("Running now: 1.");
    expect(await violations(page)).toEqual([]);
    await question.getByRole("button", { name: "Wait" }).click();
    await expect(question).toBeHidden();
    await start(page, 2, 16);
    await question.getByRole("button", { name: "Start anyway" }).click();
    await expect(page.getByText("Disturbed by other requests: 2 of 2 pairs.")).toBeVisible({
      timeout: 40_000,
    });
    await expect(page.locator("svg g.disturbed")).toHaveCount(2);
  } finally {
    await end();
  }
});

test("a number that the server refuses is named at its field", async ({ view, page }) => {
  await view("benchmark");
  const prompts = page.getByLabel("Prompts");
  await prompts.evaluate((input) => input.removeAttribute("max"));
  await start(page, 1000, 16);
  await expect(prompts).toHaveAttribute("aria-invalid", "true");
  await expect(page.locator(".field.invalid")).toContainText("48");
});
