import type { Page } from "@playwright/test";
import { violations } from "./accessible";
import type { Server } from "./server";
import { expect, test } from "./server";

async function ask(server: Server, path: string): Promise<void> {
  await fetch(server.url + path);
}

function lines(page: Page) {
  return page.getByRole("log").locator("p");
}

test("new lines come by themselves", async ({ view, page, server }) => {
  await view("log");
  await expect(page.getByText("Live", { exact: true })).toBeVisible();
  await ask(server, "v1/comes-by-itself");
  await expect(lines(page).filter({ hasText: "comes-by-itself" })).toBeVisible();
});

test("lines are filtered by text and level, and the address keeps it", async ({ view, page, server }) => {
  for (const name of ["one", "two"]) await ask(server, `v1/filtered-${name}`);
  await view("log");
  await page.getByRole("searchbox").fill("Filtered 404");
  await expect(lines(page)).toHaveCount(2);
  await expect(page.getByText(/^2 of \d+ lines$/).first()).toBeVisible();
  await page.reload();
  await expect(page.getByRole("searchbox")).toHaveValue("Filtered 404");
  await page.getByRole("searchbox").fill("filtered-one");
  await expect(lines(page)).toHaveCount(1);
  await page.getByRole("combobox", { name: "Level" }).selectOption("Errors only");
  await expect(page.getByText("No line matches the filters.")).toBeVisible();
  await page.getByRole("button", { name: "Reset filters" }).click();
  await expect(lines(page).filter({ hasText: "filtered-two" })).toBeVisible();
});

test("what is shown can be copied", async ({ view, page, server, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await ask(server, "v1/copied");
  await view("log");
  await page.getByRole("searchbox").fill("/v1/copied");
  await page.getByRole("button", { name: "Copy lines" }).click();
  await expect(page.getByRole("button", { name: "Copied" })).toBeVisible();
  const text = await page.evaluate(() => navigator.clipboard.readText());
  expect(text).toMatch(/^\d{4}-\d\d-\d\dT[\d:.]+Z INFO \S+ GET \/v1\/copied 404 .*\n$/);
});

test("the end is followed until the reader scrolls up", async ({ view, page, server }) => {
  for (let number = 0; number < 60; number++) await ask(server, `v1/many-${number}`);
  await view("log");
  const box = page.getByRole("log");
  const follow = page.getByRole("checkbox", { name: "Follow new lines" });
  const fromEnd = () => box.evaluate((place) => place.scrollHeight - place.scrollTop - place.clientHeight);
  await expect.poll(fromEnd).toBeLessThan(8);
  await box.evaluate((place) => (place.scrollTop = 0));
  await expect(follow).not.toBeChecked();
  await ask(server, "v1/while-reading");
  await expect(lines(page).filter({ hasText: "while-reading" })).toHaveCount(1);
  expect(await fromEnd()).toBeGreaterThan(8);
  await follow.check();
  await expect.poll(fromEnd).toBeLessThan(8);
});

test("a line is text, whatever is in it", async ({ view, page, server }) => {
  await ask(server, `v1/${encodeURIComponent("<img src=x onerror=alert(1)>")}`);
  await view("log");
  await expect(lines(page).filter({ hasText: "<img src=x" })).toBeVisible();
  await expect(page.getByRole("log").locator("img")).toHaveCount(0);
});

for (const scheme of ["light", "dark"] as const) {
  test(`with lines it is accessible, ${scheme}`, async ({ view, page, server }) => {
    await page.emulateMedia({ colorScheme: scheme });
    await ask(server, "v1/accessible");
    await view("log");
    await expect(lines(page).first()).toBeVisible();
    expect(await violations(page)).toEqual([]);
  });
}

test("a long line fits a phone, in every language", async ({ view, page, server }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await ask(server, `v1/${"long".repeat(40)}`);
  await view("log");
  for (const tag of ["en", "de", "ja", "ko", "zh"]) {
    await page.locator("select").first().selectOption(tag);
    await expect(page.locator("html")).toHaveAttribute("lang", tag);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  }
});

test("how many lines there are is announced when the filter changes, not with each line", async ({
  view,
  page,
  server,
}) => {
  await view("log");
  const said = page.locator("main").getByRole("status");
  await expect(said).toHaveText("");
  await ask(server, "v1/announced");
  await expect(lines(page).filter({ hasText: "v1/announced" })).toHaveCount(1);
  await page.getByRole("searchbox").fill("announced");
  await expect(said).toHaveText(/^1 of \d+ lines$/);
  const before = await said.innerText();
  await ask(server, "v1/announced-again");
  await expect(lines(page)).toHaveCount(2);
  expect(await said.innerText()).toBe(before);
});
