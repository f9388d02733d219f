import type { Locator, Page } from "@playwright/test";
import { violations } from "./accessible";
import { expect, loaded, test } from "./server";

const VIEWS = ["chat", "overview", "speculation", "models", "requests", "benchmark", "keys", "log"];

/** What only this view has. */
const MARKS: Record<string, (page: Page) => Locator> = {
  chat: (page) => page.getByRole("button", { name: "Send" }),
  overview: (page) => page.getByRole("region", { name: "Loaded" }),
  speculation: (page) => page.locator(".says"),
  models: (page) => page.locator('[data-model="default"]'),
  requests: (page) => page.getByRole("region", { name: "Latest requests" }),
  benchmark: (page) => page.getByLabel("Tokens per answer"),
  keys: (page) => page.getByRole("button", { name: "New key" }),
  log: (page) => page.getByLabel("Level"),
};

for (const name of VIEWS) {
  for (const scheme of ["light", "dark"] as const) {
    test(`${name} is accessible, ${scheme}`, async ({ view, page }) => {
      await page.emulateMedia({ colorScheme: scheme });
      await view(name);
      await loaded(page);
      expect(await violations(page)).toEqual([]);
    });
  }

  test(`${name} fits a phone`, async ({ view, page }) => {
    await page.setViewportSize({ width: 390, height: 844 });
    await view(name);
    await loaded(page);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    expect(wide).toBeLessThanOrEqual(390);
  });
}

test("the menu leads to every view by keyboard", async ({ view, page }) => {
  await view("chat");
  for (const name of VIEWS) {
    const entry = page.locator(`nav a[href="#/${name}"]`);
    await entry.focus();
    await page.keyboard.press("Enter");
    await expect(entry).toHaveAttribute("aria-current", "page");
    await expect(MARKS[name]!(page)).toBeVisible();
  }
});

test("every language is used, kept, and named in the document", async ({ view, page }) => {
  await view("chat");
  for (const [tag, word] of [
    ["de", "Modelle"],
    ["ja", "モデル"],
    ["ko", "모델"],
    ["zh", "模型"],
  ] as const) {
    await page.locator("select").first().selectOption(tag);
    await expect(page.getByRole("link", { name: word, exact: true })).toBeVisible();
    await expect(page.locator("html")).toHaveAttribute("lang", tag);
  }
  await page.reload();
  await expect(page.locator("html")).toHaveAttribute("lang", "zh");
});

test("the page asks this server only", async ({ server, page }) => {
  const asked = new Set<string>();
  page.on("request", (request) => asked.add(new URL(request.url()).origin));
  for (const name of VIEWS) {
    await page.goto(`${server.url}#/${name}`);
    await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  }
  expect([...asked]).toEqual([new URL(server.url).origin]);
});

test("on a phone the menu shows where one is", async ({ view, page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await view("log");
  await expect(page.locator('nav a[href="#/log"]')).toBeInViewport({ ratio: 0.9 });
});
