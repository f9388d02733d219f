import type { Page } from "@playwright/test";
import { spawnSync } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Models } from "../src/api/schema";
import { violations } from "./accessible";
import { makeModel, settingsText, PYTHON } from "./files";
import { Server, expect, test as base } from "./server";

const MARKUP = "<img src=x onerror=stolen=1>";
const SETTINGS = `default_model = "smol"
memory_budget_bytes = 2_000_000_000

[models.smol]
path = "SmolLM2-135M-Instruct"

[models.broken]
path = "broken.gguf"
`;

/** A server with the default model, one that cannot be loaded, and files that nothing serves. */
const test = base.extend<{ models: Page }, { made: string; own: Server }>({
  made: [
    async ({}, use) => {
      const folder = mkdtempSync(join(tmpdir(), "foredraft-made-"));
      makeModel("tiny", join(folder, "tiny.gguf"));
      makeModel("draft", join(folder, "draft.gguf"));
      await use(folder);
      rmSync(folder, { recursive: true, force: true });
    },
    { scope: "worker" },
  ],
  own: [
    async ({ made }, use) => {
      const folder = mkdtempSync(join(tmpdir(), "foredraft-models-"));
      const kept = join(folder, "cache", "models");
      mkdirSync(kept, { recursive: true });
      copyFileSync(join(made, "draft.gguf"), join(kept, "draft.gguf"));
      copyFileSync(join(made, "tiny.gguf"), join(kept, `${MARKUP}.gguf`));
      copyFileSync(join(made, "tiny.gguf"), join(kept, "spare.gguf"));
      writeFileSync(join(folder, "broken.gguf"), readFileSync(join(made, "tiny.gguf")).subarray(0, 200_000));
      writeFileSync(join(folder, "foredraft.toml"), SETTINGS);
      const server = await Server.start({ folder });
      await use(server);
      await server.stop();
      rmSync(folder, { recursive: true, force: true });
    },
    { scope: "worker" },
  ],
  models: async ({ page, own }, use) => {
    await page.goto(`${own.url}#/models`);
    await expect(row(page, "smol")).toBeVisible();
    await use(page);
  },
});

function row(page: Page, name: string) {
  return page.locator(`[data-model="${name}"]`);
}

function stored(page: Page, name: string) {
  return page.locator(`[data-stored="${name}"]`);
}

test("models are loaded, unloaded and pinned, and memory is a bar against the budget", async ({
  models,
  own,
}) => {
  await row(models, "smol")
    .getByRole("button", { name: "Load", exact: true })
    .or(row(models, "smol").getByRole("button", { name: "Unload" }))
    .waitFor();
  await expect(row(models, "smol").getByText("Default", { exact: true })).toBeVisible();
  await expect(row(models, "smol").getByText("Loaded", { exact: true })).toBeVisible();
  const bar = models.getByRole("img", { name: /of the budget of 2 GB; smol: / });
  await expect(bar.locator("span")).toHaveCount(1);
  await expect(row(models, "smol")).toContainText(/idle for|running/);
  await row(models, "smol").getByRole("button", { name: "Unload" }).click();
  await expect(row(models, "smol").getByText("Not loaded")).toBeVisible();
  await expect(models.getByText("No model is loaded.")).toBeVisible();
  await row(models, "smol").getByRole("button", { name: "Load", exact: true }).click();
  await expect(row(models, "smol").getByText("Loaded", { exact: true })).toBeVisible();
  await row(models, "smol").getByRole("button", { name: "Pin", exact: true }).click();
  await expect(row(models, "smol").getByText("Pinned")).toBeVisible();
  expect(settingsText(own)).toContain("pinned = true");
  await row(models, "smol").getByRole("button", { name: "Unpin" }).click();
  await expect(row(models, "smol").getByText("Pinned")).toHaveCount(0);
  expect(settingsText(own)).not.toContain("pinned");
});

test("why a model cannot be loaded is said, in the list and in its settings", async ({ models }) => {
  await row(models, "broken").getByRole("button", { name: "Load", exact: true }).click();
  await expect(row(models, "broken").getByText("Failed", { exact: true })).toBeVisible();
  const reason = row(models, "broken").locator(".reason");
  await expect(reason).toContainText("broken.gguf");
  expect(await violations(models)).toEqual([]);
  const said = await reason.innerText();
  await row(models, "broken").getByRole("link", { name: "Settings" }).click();
  await expect(models.locator(".reason")).toHaveText(said);
});

test("a model that is loading has a bar without an end", async ({ models, own }) => {
  const state = await own.get<Models>("console/models");
  for (const model of state.configured) model.state = "loading";
  await models.route("**/console/events*", (route) => route.abort());
  await models.route("**/console/models", (route) => route.fulfill({ json: state }));
  await models.reload();
  const bar = row(models, "smol").getByRole("progressbar", { name: "smol is loading" });
  await expect(bar).toBeVisible();
  await expect(bar).not.toHaveAttribute("aria-valuenow");
  await expect(row(models, "smol").getByRole("button", { name: "Unload" })).toBeDisabled();
});

test("a draft model is chosen from a list with reasons, and drafts", async ({ models, own }) => {
  await row(models, "smol").getByRole("link", { name: "Settings" }).click();
  const choice = models.locator('[data-field="draft_model"]');
  const draft = choice.locator('[data-draft="draft"]');
  await expect(draft).toContainText("Fits");
  await expect(draft).toContainText("the same vocabulary");
  await expect(choice.locator('[data-draft="spare"]')).toContainText("Fits by translation");
  await choice.locator("summary").first().click();
  const itself = choice.locator('[data-draft^="SmolLM2-135M-Instruct"]');
  await expect(itself).toContainText("this model itself");
  await expect(itself.getByRole("radio")).toBeDisabled();
  await draft.getByRole("radio").check();
  await models.getByRole("radio", { name: "Custom" }).check();
  await models.getByRole("textbox", { name: "Speculation string" }).fill("suffix"); // drafts in every round
  await models.getByRole("button", { name: "Save", exact: true }).click();
  await expect(models.getByText(/Saved\./)).toBeVisible();
  await models.reload();
  await expect(draft.getByRole("radio")).toBeChecked();
  await models.getByRole("link", { name: "All models" }).click();
  await expect(stored(models, "draft")).toContainText("drafts for smol");
  await expect(stored(models, "draft").getByRole("button", { name: "Delete" })).toBeDisabled();
  await models.goBack();

  await expect // until it is loaded again, the model answers with the settings of before
    .poll(async () => (await own.get<Models>("console/models")).configured.some((model) => model.outdated))
    .toBe(false);
  const reply = await fetch(`${own.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      model: "smol",
      messages: [{ role: "user", content: "Name colours." }],
      max_tokens: 24,
    }),
  });
  const { speculation } = (await reply.json()) as {
    speculation: { drafters: Record<string, { drafted: number }> };
  };
  expect(speculation.drafters["draft-model"]?.drafted).toBeGreaterThan(0);

  await models.getByRole("button", { name: "Reset Drafting to its default" }).click();
  await models.getByRole("button", { name: "Reset Draft model to its default" }).click();
  await models.getByRole("button", { name: "Save", exact: true }).click();
  await expect(models.getByText(/unsaved change/)).toHaveCount(0);
  expect(settingsText(own)).not.toContain("draft_model");
});

test("a stored model is served under a name, taken out again, and deleted", async ({ models, own }) => {
  const file = join(own.folder, "cache", "models", "spare.gguf");
  await stored(models, "spare").getByRole("button", { name: "Serve" }).click();
  const dialog = models.getByRole("dialog");
  await dialog.getByRole("textbox", { name: "Name for clients" }).fill("smol");
  await dialog.getByRole("button", { name: "Serve" }).click();
  await expect(dialog).toContainText("already a model named");
  await dialog.getByRole("textbox").fill("owner/other");
  await dialog.getByRole("button", { name: "Serve" }).click();
  await expect(dialog).toHaveCount(0);
  await expect(row(models, "owner/other")).toBeVisible();
  await expect(stored(models, "spare")).toContainText("served as owner/other");
  await expect(stored(models, "spare").getByRole("button", { name: "Delete" })).toBeDisabled();
  await row(models, "owner/other").getByRole("link", { name: "Settings" }).click();
  await expect(models.getByRole("heading", { level: 1 })).toContainText("owner/other");
  await expect(models.locator('[data-field="threads"] input')).toHaveValue("0");
  await models.goBack();
  await row(models, "owner/other").getByRole("button", { name: "Stop serving" }).click();
  await dialog.getByRole("button", { name: "Stop serving" }).click();
  await expect(row(models, "owner/other")).toHaveCount(0);
  await stored(models, "spare").getByRole("button", { name: "Delete" }).click();
  await expect(dialog).toContainText(file);
  await expect(dialog).toContainText(/frees \d/);
  expect(await violations(models)).toEqual([]);
  await dialog.getByRole("button", { name: "Cancel" }).click();
  expect(existsSync(file)).toBe(true);
  await stored(models, "spare").getByRole("button", { name: "Delete" }).click();
  await dialog.getByRole("button", { name: /^Delete, free/ }).click();
  await expect(stored(models, "spare")).toHaveCount(0);
  expect(existsSync(file)).toBe(false);
});

test("the packaged model cannot be deleted, and says why", async ({ models }) => {
  const packaged = models.locator('[data-stored^="SmolLM2-135M-Instruct"]');
  await expect(packaged).toContainText("Came with Foredraft");
  await expect(packaged.getByRole("button", { name: "Delete" })).toBeDisabled();
});

test("markup in the name of a file is text everywhere", async ({ models, own }) => {
  await expect(stored(models, MARKUP)).toContainText(MARKUP);
  await stored(models, MARKUP).getByRole("button", { name: "Delete" }).click();
  await expect(models.getByRole("dialog")).toContainText(`Delete ${MARKUP}?`);
  await models.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await stored(models, MARKUP).getByRole("button", { name: "Serve" }).click();
  const name = "<img/src=x/onerror=stolen=1>";
  await models.getByRole("dialog").getByRole("textbox").fill(name);
  await models.getByRole("dialog").getByRole("button", { name: "Serve" }).click();
  await expect(models.getByRole("dialog")).toHaveCount(0);
  await row(models, name).getByRole("button", { name: "Load", exact: true }).click();
  await expect(row(models, name).getByText("Loaded", { exact: true })).toBeVisible();
  await expect(models.locator(".legend")).toContainText(name);
  await row(models, name).getByRole("link", { name: "Settings" }).click();
  await expect(models.getByRole("heading", { level: 1 })).toContainText(name);
  await models.goto(`${own.url}#/models/smol`);
  await expect(models.locator('[data-field="draft_model"]')).toContainText(MARKUP);
  expect(await models.locator("main img").count()).toBe(0);
  expect(await models.evaluate(() => "stolen" in window)).toBe(false);
});

test("without the admin key everything is readable, nothing editable, and it says why", async ({ page }) => {
  const folder = mkdtempSync(join(tmpdir(), "foredraft-reader-"));
  const made = spawnSync(PYTHON, ["-m", "foredraft", "keys", "new", "reader"], {
    cwd: folder,
    encoding: "utf8",
  });
  const key = made.stdout.trim();
  const server = await Server.start({ folder });
  try {
    await page.addInitScript((key) => sessionStorage.setItem("foredraft-key", key), key);
    await page.goto(`${server.url}#/models`);
    await expect(page.getByText("this server has no admin key")).toBeVisible();
    const model = page.locator("[data-model]").first();
    await expect(model).toContainText("Loaded");
    for (const name of ["Unload", "Pin", "Delete", "Serve", "Pull"])
      await expect(page.getByRole("button", { name, exact: true })).toHaveCount(0);
    await model.getByRole("link", { name: "Settings" }).click();
    await expect(page.locator('[data-field="threads"] input')).toHaveAttribute("readonly");
    for (const one of await page.locator("main select, main input:is([type=radio], [type=checkbox])").all())
      await expect(one).toBeDisabled();
    await expect(page.getByRole("button", { name: /Save|Reset/ })).toHaveCount(0);
    expect(await violations(page)).toEqual([]);
  } finally {
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  }
});

test("the list fits a phone", async ({ models }) => {
  await models.setViewportSize({ width: 390, height: 844 });
  expect(await models.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
});

test("adapters stand below their model, and what is not for chats says so", async ({ own, page }) => {
  await page.route("**/console/events*", (route) => route.abort()); // what is asked once stays
  await page.route("**/console/models", async (route) => {
    const response = await route.fetch();
    const told = (await response.json()) as Models;
    const [first, second] = told.configured;
    Object.assign(first!, { adapters: ["pirate", "lawyer"] });
    Object.assign(second!, { kind: "embedding" });
    await route.fulfill({ response, json: told });
  });
  await page.goto(`${own.url}#/models`);
  const adapters = page.getByRole("list", { name: /^Adapters of / });
  await expect(adapters.getByRole("listitem")).toHaveText(["pirate Adapter", "lawyer Adapter"]);
  await expect(page.locator(".model-row .title").nth(1)).toContainText("Embeddings");
  await expect(page.locator(".model-row").nth(1)).not.toContainText("speculation");
  expect(await violations(page)).toEqual([]);
});
