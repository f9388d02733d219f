/** A page that stays open while the server ends and comes back, is hidden, or is open twice. */

import type { Page } from "@playwright/test";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, Server, test } from "./server";

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((listens) => probe.listen(0, "127.0.0.1", listens));
  const { port } = probe.address() as AddressInfo;
  await new Promise((closed) => probe.close(closed));
  return port;
}

/** The number of tokens that were generated. */
async function ask(server: Server): Promise<number> {
  const body = { messages: [{ role: "user", content: "Count to ten." }], temperature: 0, max_tokens: 32 };
  const response = await fetch(`${server.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
  const { usage } = (await response.json()) as { usage: { completion_tokens: number } };
  return usage.completion_tokens;
}

/** The generated tokens that the server has added up in a window. */
async function summed(server: Server, window = "all"): Promise<number> {
  const path = `console/overview?window=${window}`;
  return (await server.get<{ totals: { generated_tokens: number } }>(path)).totals.generated_tokens;
}

/** Wait until the server has added up that many generated tokens. */
async function counted(server: Server, tokens: number): Promise<void> {
  await expect.poll(() => summed(server)).toBe(tokens);
}

function status(page: Page) {
  return page.getByRole("status").first();
}

/** Generated tokens of everything, or of another window, as the page shows them. */
async function generated(page: Page, title = /^All since/): Promise<number> {
  const card = page.getByRole("region", { name: title });
  const box = card.locator(".figure").filter({ hasText: "Generated tokens" });
  return Number((await box.locator("strong").innerText()).replaceAll(",", ""));
}

test("an open page finds the server again, and its figures survive a restart", async ({ page }) => {
  test.setTimeout(180_000);
  const folder = mkdtempSync(join(tmpdir(), "foredraft-restart-"));
  const options = { folder, port: await freePort() };
  let server = await Server.start(options);
  try {
    const before = await ask(server);
    await counted(server, before);
    await page.goto(`${server.url}#/overview?window=all`);
    await expect(status(page)).toHaveText("Live");
    await expect.poll(() => generated(page)).toBe(before);

    await server.stop();
    await expect(status(page)).toHaveText("No connection. Trying again…");

    server = await Server.start(options);
    await expect(status(page)).toHaveText("Live", { timeout: 30_000 });
    const after = before + (await ask(server));
    await counted(server, after);
    // The page sees it by itself: that it was asked for anew, not that it stayed on screen.
    await page.getByRole("button", { name: "2 minutes" }).click();
    await expect(page.getByRole("region", { name: "The last 2 minutes" })).toBeVisible();
    await page.getByRole("button", { name: "All", exact: true }).click();
    await expect.poll(() => generated(page)).toBe(after);
    await page.reload();
    await expect.poll(() => generated(page)).toBe(after);
  } finally {
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  }
});

/** Let the page believe that its tab is hidden, or shown again. */
async function setHidden(page: Page, hidden: boolean): Promise<void> {
  await page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
}

test("while the tab is hidden nothing is asked", async ({ view, page, server }) => {
  const asked: string[] = [];
  const ended: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("requestfailed", (request) => ended.push(request.url()));
  await view("overview");
  await expect(status(page)).toHaveText("Live");
  await setHidden(page, true);
  await expect(status(page)).toHaveText("Paused");
  await expect.poll(() => ended.some((url) => url.includes("/console/events"))).toBe(true);
  const before = asked.length;
  await ask(server);
  await page.waitForTimeout(4000);
  expect(asked.slice(before)).toEqual([]);

  await setHidden(page, false);
  await expect(status(page)).toHaveText("Live");
  expect(asked.slice(before).some((url) => url.includes("/console/events"))).toBe(true);
});

test("two tabs are both live, and one goes on when the other is closed", async ({
  view,
  page,
  server,
  context,
}) => {
  await view("overview?window=2m");
  const other = await context.newPage();
  await other.goto(`${server.url}#/speculation`);
  for (const tab of [page, other]) await expect(status(tab)).toHaveText("Live");
  const before = await summed(server);
  const first = await ask(server);
  await expect(page.getByRole("region", { name: "The last 2 minutes" })).toBeVisible();
  await expect(other.locator(".figure").first()).toBeVisible();
  await other.close();
  await counted(server, before + first + (await ask(server)));
  await expect
    .poll(async () => (await generated(page, /^The last 2 minutes/)) - (await summed(server, "2m")))
    .toBe(0);
  await expect(status(page)).toHaveText("Live");
});

test("what the server is asked about itself is asked anew after a restart", async ({ page }) => {
  const port = await freePort();
  let server = await Server.start({ port });
  try {
    await fetch(`${server.url}console/recording`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ on: true }),
    });
    await page.goto(`${server.url}#/overview`);
    const said = page.getByText("Texts are being recorded");
    await expect(said).toBeVisible();
    await expect(status(page)).toHaveText("Live"); // the view is there
    await server.stop();
    await expect(page.getByText("No connection")).toBeVisible();
    server = await Server.start({ port });
    await expect(said).toHaveCount(0);
  } finally {
    await server.stop();
  }
});
