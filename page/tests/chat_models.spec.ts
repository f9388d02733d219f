/** The chat with a server of two small models that are made here: one that thinks, and one that sees. */

import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { violations } from "./accessible";
import { answer, answers, reload, say } from "./chatting";
import { PYTHON } from "./files";
import { expect, test } from "./server";

/** Pixels of a side, of which the model makes a row for 16 × 16. */
const SIDE = 160;
const ROWS = 100;

let folder = "";

test.use({
  words: async ({}, use) => {
    if (!folder) {
      folder = mkdtempSync(join(tmpdir(), "foredraft-models-"));
      const made = spawnSync(PYTHON, [resolve("../tests/page_models.py"), folder], { encoding: "utf8" });
      expect(made.status, made.stderr).toBe(0);
    }
    await use(["--config", join(folder, "settings.toml")]);
  },
});

test.afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("what a model thinks is folded away, shown on demand, and kept", async ({ view, page }) => {
  await view("chat");
  await say(page, "What is two and two?");
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  await expect(answer(page).locator(".markdown")).toContainText("hum, ad");
  await expect(answer(page).locator(".markdown")).not.toContainText("think");
  const thought = answer(page).locator("details");
  await expect(thought.locator("summary")).toContainText(/Thought for [\d.]+ (ms|sec)/);
  await expect(thought.getByText("hum, ad")).toBeHidden();
  await thought.locator("summary").click();
  await expect(thought.getByText("hum, ad")).toBeVisible();
  expect(await violations(page)).toEqual([]);
  await page.screenshot({ path: test.info().outputPath("thought.png") });

  await reload(page);
  await expect(answer(page).locator("summary")).toContainText(/Thought for [\d.]+ (ms|sec)/);
  await say(page, "And three?");
  await expect(answers(page)).toHaveCount(2);
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  await expect(answer(page).locator(".markdown")).toContainText("hum, ad");
});

test("a picture is attached, sent to a model that sees, and answered", async ({ view, page, server }) => {
  const read = async () => {
    const said = await (await fetch(`${server.url}metrics`)).text();
    return Number(/^foredraft_prompt_tokens_total\{model="seeing"\} (.*)$/m.exec(said)?.[1] ?? 0);
  };
  await view("chat");
  await page.getByRole("combobox", { name: "Model" }).selectOption("seeing");
  const url = await page.evaluate((side) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: side, height: side });
    const drawing = canvas.getContext("2d")!;
    drawing.fillStyle = "red";
    drawing.fillRect(0, 0, side, side / 2);
    return canvas.toDataURL("image/png");
  }, SIDE);
  const buffer = Buffer.from(url.split(",")[1] ?? "", "base64");
  const files = page.locator(".composer input[type=file]");
  await files.setInputFiles({ name: "field.png", mimeType: "image/png", buffer });
  await say(page, "What is this?");
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  await expect(answer(page).locator(".markdown")).not.toBeEmpty();
  await expect(page.locator(".asked img.picture")).toHaveAttribute("alt", "field.png");
  expect(await read()).toBeGreaterThan(ROWS);
  await page.screenshot({ path: test.info().outputPath("picture.png") });
});
