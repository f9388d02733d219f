import type { Page } from "@playwright/test";
import { violations } from "./accessible";
import { Server, expect, test as base } from "./server";

/** Each test has a server of its own, without keys. */
const test = base.extend<{ own: Server; errors: void }>({
  own: async ({}, use) => {
    const own = await Server.start();
    await use(own);
    await own.stop();
  },
  errors: [
    async ({ page }, use) => {
      const errors: string[] = [];
      page.on("pageerror", (error) => errors.push(String(error)));
      await use();
      expect(errors).toEqual([]);
    },
    { auto: true },
  ],
});

async function open(page: Page, server: Server): Promise<void> {
  await page.goto(`${server.url}#/keys`);
  await expect(page.getByRole("button", { name: "New key" })).toBeVisible();
}

/** Makes a key, and gives the keys that are shown: its own, and the admin's if one was made. */
async function make(page: Page, name: string): Promise<string[]> {
  await page.getByRole("button", { name: "New key" }).click();
  await page.getByRole("textbox", { name: "Name" }).fill(name);
  await page.getByRole("button", { name: "Create the key" }).click();
  await expect(page.getByRole("heading", { name: `The key “${name}” is ready` })).toBeVisible();
  return page.locator(".secret:not(.example) code").allTextContents();
}

function status(server: Server, key?: string): Promise<number> {
  const headers = key === undefined ? undefined : { authorization: `Bearer ${key}` };
  return fetch(`${server.url}v1/models`, { headers }).then((response) => response.status);
}

function card(page: Page, name: string) {
  return page.getByRole("listitem").filter({ has: page.getByRole("heading", { name, exact: true }) });
}

test("the first key comes with an admin key, and both are shown once", async ({ page, own, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await open(page, own);
  await expect(page.getByText("This server has no keys")).toBeVisible();
  expect(await status(own)).toBe(200);
  const [key = "", admin = ""] = await make(page, "editor");
  await expect(page.getByText("changing anything needs the admin key")).toBeVisible();
  expect(await status(own)).toBe(401);
  expect(await status(own, key)).toBe(200);
  await expect(card(page, "editor")).toBeVisible(); // the page itself goes on, with the admin key
  await page.locator(".secret", { hasText: admin }).getByRole("button", { name: "Copy" }).click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(admin);

  await page.getByRole("link", { name: "Log" }).click();
  await page.getByRole("link", { name: "Keys" }).click();
  await expect(page.getByText(key, { exact: true })).toBeVisible(); // not lost by looking elsewhere
  await page.getByRole("button", { name: "I have saved it" }).click();
  await expect(page.getByText(key)).toHaveCount(0);
  await page.reload();
  await expect(card(page, "editor")).toBeVisible();
  expect(await page.content()).not.toContain(key);

  const [second, none] = await make(page, "second");
  expect(second).toMatch(/^ft-/);
  expect(none).toBeUndefined();
});

test("a reader without the admin key does not see the keys", async ({ page, own }) => {
  await open(page, own);
  const [key = ""] = await make(page, "editor");
  await page.getByRole("button", { name: "Forget the key" }).click();
  await page.getByRole("textbox").fill(key);
  await page.getByRole("button", { name: "Continue" }).click();
  await expect(page.getByRole("link", { name: "Overview" })).toBeVisible();
  await expect(page.getByRole("link", { name: "Keys" })).toHaveCount(0);
  await expect(page.getByRole("alert")).toContainText("admin key");
});

test("a name that is taken or wrong is said at the field", async ({ page, own }) => {
  await open(page, own);
  await make(page, "editor");
  await page.getByRole("button", { name: "New key" }).click();
  const name = page.getByRole("textbox", { name: "Name" });
  for (const [wrong, says] of [
    ["editor", /already/],
    ["-x-", /letters, digits/],
  ] as const) {
    await name.fill(wrong);
    await page.getByRole("button", { name: "Create the key" }).click();
    await expect(name).toHaveAttribute("aria-invalid", "true");
    await expect(page.locator(".field.invalid")).toContainText(says);
  }
});

test("limits are changed in their place", async ({ page, own }) => {
  await open(page, own);
  const [key = ""] = await make(page, "editor");
  await page.getByRole("button", { name: "Change limits of editor" }).click();
  const editor = card(page, "editor");
  await editor.getByLabel("Requests per minute").fill("1");
  await editor.getByLabel("Answers at once").fill("3");
  await editor.getByLabel("Scope").fill("team");
  await editor.getByLabel("Highest priority").fill("999999999");
  await editor.getByRole("button", { name: "Save" }).click();
  await expect(editor.locator(".field.invalid")).toContainText("max_priority");
  await editor.getByLabel("Highest priority").fill("2");
  await editor.getByRole("button", { name: "Save" }).click();
  await expect(editor.getByRole("button", { name: "Save" })).toHaveCount(0);
  await expect(editor.locator("dd")).toHaveText(["1", "3", "2", "team"]);
  expect([await status(own, key), await status(own, key)]).toEqual([200, 429]);

  await page.getByRole("button", { name: "Change limits of editor" }).click();
  await editor.getByLabel("Requests per minute").fill("");
  await editor.getByLabel("Scope").fill("");
  await editor.getByRole("button", { name: "Save" }).click();
  await expect(editor.locator("dd")).toHaveText(["No limit", "3", "2", "editor"]);
  expect(await status(own, key)).toBe(200);
});

test("use is counted", async ({ page, own }) => {
  await open(page, own);
  const [key = ""] = await make(page, "editor");
  await expect(card(page, "editor")).toContainText("Not used yet");
  const answer = await fetch(`${own.url}v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: "Hi" }], max_tokens: 3, ignore_eos: true }),
  });
  expect(answer.status).toBe(200);
  await answer.json();
  await expect(card(page, "editor")).toContainText("1 request3 tokens generated");
  await expect(card(page, "editor")).toContainText("Last used:");
});

test("revoking asks first, names the key, and warns of the last one", async ({ page, own }) => {
  await open(page, own);
  const [first = ""] = await make(page, "first");
  const [second = ""] = await make(page, "second");
  await page.getByRole("button", { name: "Revoke second" }).click();
  const dialog = page.getByRole("dialog", { name: "Revoke the key “second”?" });
  await expect(dialog.getByText("It is the last key.")).toHaveCount(0);
  await dialog.getByRole("button", { name: "Cancel" }).click();
  expect(await status(own, second)).toBe(200);
  await page.getByRole("button", { name: "Revoke second" }).click();
  await expect(dialog).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(dialog).toHaveCount(0);
  await page.getByRole("button", { name: "Revoke second" }).click();
  await dialog.getByRole("button", { name: "Revoke second" }).click();
  await expect(card(page, "second")).toHaveCount(0);
  await expect(page.getByText(second)).toHaveCount(0); // it is no use any more
  expect([await status(own, second), await status(own, first)]).toEqual([401, 200]);

  await page.getByRole("button", { name: "Revoke first" }).click();
  await expect(page.getByText("It is the last key.")).toBeVisible();
  await expect(page.getByRole("dialog").getByRole("button", { name: "Revoke first" })).toHaveCount(0);
  await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();
  expect(await status(own, first)).toBe(200);
});

test("keys, their form and the dialog are accessible and fit a phone, in every language", async ({
  page,
  own,
}) => {
  await open(page, own);
  const name = "k".repeat(64);
  await make(page, name);
  await page.getByRole("button", { name: "New key" }).click();
  await page.getByText("Limits", { exact: true }).click();
  await page.getByRole("button", { name: `Change limits of ${name}` }).click();
  for (const scheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme: scheme });
    expect(await violations(page)).toEqual([]);
    await page.getByRole("button", { name: `Revoke ${name}` }).click();
    await expect(page.getByRole("dialog")).toBeVisible();
    expect(await violations(page)).toEqual([]);
    await page.getByRole("button", { name: "Close" }).click();
  }
  await page.setViewportSize({ width: 390, height: 844 });
  for (const tag of ["en", "de", "ja", "ko", "zh"]) {
    await page.locator("select").first().selectOption(tag);
    await expect(page.locator("html")).toHaveAttribute("lang", tag);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  }
});

test("limits that were changed elsewhere meanwhile are not overwritten unsaid", async ({ page, own }) => {
  await open(page, own);
  const [, admin = ""] = await make(page, "editor");
  await page.getByRole("button", { name: "Change limits of editor" }).click();
  const other = await fetch(`${own.url}console/keys/editor`, {
    method: "PUT",
    headers: { authorization: `Bearer ${admin}`, "content-type": "application/json" },
    body: JSON.stringify({ max_concurrent: 7 }),
  });
  expect(other.status).toBe(200);
  const editor = card(page, "editor");
  await editor.getByLabel("Answers at once").fill("2");
  await editor.getByRole("button", { name: "Save" }).click();
  await expect(editor.getByRole("alert")).toContainText("changed");
  expect(
    (
      await own.get<{ keys: { max_concurrent: number }[] }>("console/keys", {
        authorization: `Bearer ${admin}`,
      })
    ).keys[0]?.max_concurrent,
  ).toBe(7);
  await editor.getByRole("button", { name: "Save" }).click();
  await expect(editor.locator("dd").nth(1)).toHaveText("2");
});

test("the focus goes on to what comes next", async ({ page, own }) => {
  await open(page, own);
  await make(page, "editor");
  await page.getByRole("button", { name: "I have saved it" }).press("Enter");
  await expect(page.getByRole("button", { name: "New key" })).toBeFocused();
  const change = card(page, "editor").getByRole("button", { name: /^Change/ });
  await change.press("Enter");
  await expect(card(page, "editor").getByRole("spinbutton").first()).toBeFocused();
  await card(page, "editor").getByRole("button", { name: "Cancel" }).press("Enter");
  await expect(change).toBeFocused();
});
