/** What the chat keeps: conversations in several tabs, imported, removed, and while the browser is slow. */

import type { Page } from "@playwright/test";
import { answer, field, reload, say, stored } from "./chatting";
import { expect, test } from "./server";
import { answersWith, events } from "./streamed";

const list = (page: Page) => page.getByRole("complementary", { name: "Conversations" });
const links = (page: Page) => list(page).getByRole("link");

const YES = events([{ content: "yes" }]);
const LONG = events(Array.from({ length: 300 }, (_, place) => ({ content: `word${place} ` })));

async function answered(page: Page, count = 1): Promise<void> {
  await expect(page.locator(".answer")).toHaveCount(count);
  await expect(answer(page)).toHaveAttribute("aria-busy", "false");
}

/** Another tab, in which answers come like this. */
async function tab(page: Page, bodies: string[][], everyMs = 0): Promise<Page> {
  const other = await page.context().newPage();
  await answersWith(other, bodies, everyMs);
  await other.goto(page.url());
  return other;
}

interface Imported {
  title: string;
  updated?: number;
}

async function load(page: Page, conversations: Imported[]): Promise<void> {
  const whole = conversations.map((one, place) => ({
    created: 1e12,
    updated: 1e12 - place,
    ...one,
    messages: [{ role: "user", text: `message of ${one.title}` }],
  }));
  const text = JSON.stringify({ format: "foredraft-chats", version: 1, conversations: whole });
  const file = { name: "chats.json", mimeType: "application/json", buffer: Buffer.from(text) };
  await page.locator('input[accept*="json"]').setInputFiles(file);
}

test("what one tab removes, an answer that runs in another does not bring back", async ({ view, page }) => {
  await answersWith(page, [YES, LONG], 50);
  await view("chat");
  await say(page, "first");
  await answered(page);
  await say(page, "second");
  await expect(answer(page)).toContainText("word3");
  const other = await tab(page, [YES]);
  await expect(answer(other)).toContainText("word3");
  await other.getByRole("button", { name: "Stop" }).waitFor(); // it knows that the first tab writes
  await expect(other.locator(".asked").first().getByRole("button", { name: "Edit" })).toBeDisabled();
  await list(other).getByRole("listitem").hover();
  await list(other).getByRole("button", { name: "Delete" }).click();
  await expect(links(page)).toHaveCount(0);
  await page.waitForTimeout(2500); // answers are saved every second
  await reload(page);
  await expect(list(page)).toContainText("No conversations yet.");
  await other.getByRole("button", { name: "Undo" }).click();
  await expect(links(other)).toHaveText("first");
  await expect(links(page)).toHaveText("first");
  await links(page).click();
  await expect(page.locator(".asked .plain")).toHaveText(["first", "second"]);
});

test("an answer is stopped from another tab, and then goes on there", async ({ view, page }) => {
  await answersWith(page, [LONG], 50);
  await view("chat");
  await say(page, "tell");
  await expect(answer(page)).toContainText("word3");
  const other = await tab(page, [YES]);
  await field(other).fill("too early");
  await field(other).press("Enter");
  await expect(field(other)).toHaveValue("too early");
  await expect(other.locator(".asked")).toHaveCount(1);
  await other.getByRole("button", { name: "Stop" }).click();
  await expect(answer(page)).toContainText("Stopped.");
  await expect(answer(other)).toContainText("Stopped.");
  await field(other).press("Enter");
  await answered(other, 2);
  await answered(page, 2);
});

test("an imported file has no conversation of the future or without a name", async ({ view, page }) => {
  await view("chat");
  await load(page, [{ title: "far", updated: 1e300 }, { title: " " }]);
  await expect(links(page)).toHaveText(["far", "Untitled"]);
  await reload(page);
  await expect(links(page)).toHaveText(["far", "Untitled"]);
  await answersWith(page, [YES]);
});

test("conversations beyond the bound are not removed in silence", async ({ view, page }) => {
  await answersWith(page, [YES]);
  await view("chat");
  const many = (count: number) => Array.from({ length: count }, (_, place) => ({ title: `c${place}` }));
  await load(page, many(501));
  await expect(list(page)).toContainText("The file has 501 conversations, and there is room for 500");
  await expect(links(page)).toHaveCount(0);
  await load(page, many(500));
  await expect(links(page)).toHaveCount(500);
  await say(page, "one more");
  await answered(page);
  await expect(links(page)).toHaveCount(500);
  await expect(page.getByText("“c499” was deleted.")).toBeVisible();
  await page.getByRole("button", { name: "Undo" }).click();
  await expect(links(page).last()).toHaveText("c499");
});

test("Undo brings back all that were deleted just now", async ({ view, page }) => {
  await view("chat");
  await load(page, [{ title: "one" }, { title: "two" }, { title: "three" }]);
  await expect(links(page)).toHaveText(["one", "two", "three"]);
  await list(page).getByRole("listitem").first().hover();
  await list(page).getByRole("button", { name: "Delete “one”" }).click();
  await list(page).getByRole("listitem").first().hover();
  await list(page).getByRole("button", { name: "Delete “two”" }).click();
  await expect(links(page)).toBeFocused();
  await expect(links(page)).toHaveText("three");
  await expect(page.getByText("2 conversations were deleted.")).toBeVisible();
  await page.getByRole("button", { name: "Undo" }).click();
  await expect(links(page)).toHaveText(["one", "two", "three"]);
  await reload(page);
  await expect(links(page)).toHaveText(["one", "two", "three"]);
  await links(page).first().click();
  await expect(page.locator(".asked .plain")).toHaveText("message of one");
});

test("a database that another tab closes is opened again", async ({ view, page }) => {
  await answersWith(page, [YES]);
  await view("chat");
  await say(page, "before");
  await answered(page);
  const other = await page.context().newPage();
  await other.goto(page.url().replace(/#.*/, "#/log"));
  await other.evaluate(
    () =>
      new Promise((done) => {
        indexedDB.deleteDatabase("foredraft-chat").onsuccess = done;
      }),
  );
  await page.getByRole("button", { name: "New chat" }).click();
  await say(page, "after");
  await answered(page);
  await expect(page.getByRole("alert")).toHaveCount(0);
  await expect.poll(() => stored(page)).toEqual([1, 2]); // the first conversation is only on screen
  await page.reload();
  await expect(page.locator(".asked .plain")).toHaveText("after");
});

test("after a passing failure what was not kept is kept", async ({ view, page }) => {
  await answersWith(page, [YES]);
  await page.addInitScript(() => {
    const transaction = IDBDatabase.prototype.transaction;
    IDBDatabase.prototype.transaction = function (...given) {
      if ("broken" in window && given[1] === "readwrite") throw new DOMException("broken", "UnknownError");
      return transaction.apply(this, given);
    };
  });
  await view("chat");
  await page.evaluate(() => Object.assign(window, { broken: true }));
  await say(page, "first");
  await answered(page);
  await expect(page.getByText("The browser does not let this page keep anything")).toBeVisible();
  await page.evaluate("delete window.broken");
  await say(page, "second");
  await answered(page, 2);
  await expect(page.getByText("The browser does not let this page keep anything")).toHaveCount(0);
  await reload(page);
  await expect(page.locator(".asked .plain")).toHaveText(["first", "second"]);
});

test("while conversations are read nothing is sent into a new one", async ({ view, page }) => {
  await answersWith(page, [YES]);
  await view("chat");
  await say(page, "first");
  await answered(page);
  await page.addInitScript(() => {
    const open = IDBFactory.prototype.open;
    IDBFactory.prototype.open = function (...given) {
      const asked = open.apply(this, given);
      let done: ((event: Event) => void) | null = null;
      Object.defineProperty(asked, "onsuccess", { set: (set: typeof done) => (done = set) });
      asked.addEventListener("success", (event) => setTimeout(() => done?.(event), 2000));
      return asked;
    };
  });
  await reload(page);
  await field(page).fill("second");
  await field(page).press("Enter");
  await expect(field(page)).toHaveValue("second");
  await expect(page.getByText("Ask the model something")).toHaveCount(0);
  await answered(page);
  await expect(field(page)).toHaveValue("second");
  await field(page).press("Enter");
  await answered(page, 2);
  await expect(links(page)).toHaveText("first");
  await expect(page.locator(".asked .plain")).toHaveText(["first", "second"]);
});

test("what was deleted does not come back, even where the page is left before the store is done", async ({
  view,
  page,
}) => {
  await answersWith(page, [YES]);
  await page.addInitScript(() => {
    const transaction = IDBDatabase.prototype.transaction;
    IDBDatabase.prototype.transaction = function (...given) {
      if ("broken" in window && given[1] === "readwrite") throw new DOMException("broken", "UnknownError");
      return transaction.apply(this, given);
    };
  });
  await view("chat");
  await say(page, "first");
  await answered(page);
  await reload(page);
  await expect(links(page)).toHaveText("first");
  await page.evaluate(() => Object.assign(window, { broken: true }));
  await list(page).getByRole("listitem").hover();
  await list(page).getByRole("button", { name: "Delete" }).click();
  await page.reload();
  await expect(list(page)).toContainText("No conversations yet.");
  await expect.poll(() => page.evaluate(() => localStorage.getItem("foredraft-chat-removed"))).toBeNull();
  await page.reload();
  await expect(list(page)).toContainText("No conversations yet.");
});

test("the menu leads back to the conversation that was left, and from there to a new one", async ({
  view,
  page,
}) => {
  await answersWith(page, [YES]);
  await view("chat");
  await expect(page.getByRole("banner").locator(".link")).toHaveText("Live");
  await say(page, "first");
  await answered(page);
  const menu = page.getByRole("navigation");
  await menu.getByRole("link", { name: "Overview" }).click();
  await menu.getByRole("link", { name: "Chat" }).click();
  await expect(page.locator(".asked .plain")).toHaveText("first");
  await menu.getByRole("link", { name: "Chat" }).click();
  await expect(page.getByText("Ask the model something")).toBeVisible();
});
