/** What the tests of the chat do and look at alike. */

import { expect } from "@playwright/test";
import type { Page } from "@playwright/test";

export const field = (page: Page) => page.getByRole("textbox", { name: "Message", exact: true });
export const answers = (page: Page) => page.locator(".answer");
export const answer = (page: Page) => answers(page).last();

/** Send words as soon as the page takes them. */
export async function say(page: Page, words = "hello"): Promise<void> {
  await field(page).fill(words);
  await expect(page.getByRole("button", { name: "Send", exact: true })).toBeEnabled();
  await field(page).press("Enter");
}

/** Reload the page when all that is on screen is in the browser's store, and no answer is being written. */
export async function reload(page: Page): Promise<void> {
  const links = page.getByRole("complementary", { name: "Conversations" }).getByRole("link");
  await expect(async () => {
    const shown = [await links.count(), await page.locator(".asked, .answer").count()];
    expect([...(await stored(page)), 0]).toEqual([...shown, await page.locator("[aria-busy=true]").count()]);
  }).toPass();
  await page.reload();
}

/** How many conversations are in the store, and how many messages of the one on screen. */
export function stored(page: Page): Promise<number[]> {
  return page.evaluate(async () => {
    const opening = indexedDB.open("foredraft-chat");
    const store = await new Promise<IDBDatabase>((done, failed) => {
      opening.addEventListener("success", () => done(opening.result));
      opening.addEventListener("error", () => failed(opening.error));
    });
    const all = (name: string) =>
      new Promise<{ conversation: string; state?: string }[]>((done) => {
        const asked = store.transaction(name, "readonly").objectStore(name).getAll();
        asked.addEventListener("success", () => done(asked.result));
      });
    const shown = location.hash.split("/")[2];
    const messages = (await all("messages")).filter(
      (one) => one.conversation === shown && one.state !== "running",
    );
    const counts = [(await all("conversations")).length, messages.length];
    store.close();
    return counts;
  });
}
