/** Races with answers that are written here: what is kept of them, and what is not. */

import type { Page } from "@playwright/test";
import { answer, field, reload, say } from "./chatting";
import { expect, test } from "./server";
import { answersWith, events } from "./streamed";

const begin = (page: Page) => page.getByRole("button", { name: "Race", exact: true }).click();
const keep = (page: Page) => page.getByRole("button", { name: "Keep the answer" });
const back = (page: Page) => page.getByRole("button", { name: "Back to the chat" }).click();

const PROMPT = events([]);
const SAYS = (content: string) => events([{ content }]);
const LONG = events(Array.from({ length: 300 }, (_, place) => ({ content: `word${place} ` })));

/** These answers, the first of a race as one JSON. */
async function raced(page: Page, bodies: string[][], everyMs = 0): Promise<void> {
  await answersWith(page, bodies, everyMs);
  await page.addInitScript(() => {
    const json = Response.prototype.json;
    Response.prototype.json = async function () {
      return this.headers.get("content-type") === "text/event-stream" ? {} : json.call(this);
    };
  });
}

test("a race of the last question, kept, replaces its answer and nothing else", async ({ view, page }) => {
  const race = [PROMPT, SAYS("of the race"), SAYS("of the race")];
  await raced(page, [SAYS("zero"), SAYS("one"), ...race, ...race, SAYS("two")]);
  await view("chat");
  await say(page, "question zero");
  await expect(answer(page)).toContainText("zero");
  await say(page, "question one");
  await expect(answer(page)).toContainText("one");
  await begin(page);
  await keep(page).click();
  await expect(page.locator(".asked .plain")).toHaveText(["question zero", "question one"]);
  await expect(page.locator(".answer .markdown")).toHaveText(["zero", "of the race"]);

  await begin(page);
  await expect(keep(page)).toBeVisible();
  await say(page, "question two");
  await expect(page.locator(".answer")).toHaveCount(3);
  await expect(keep(page)).toHaveCount(0);
  await expect(page.getByText("this answer cannot be kept")).toBeVisible();
  await back(page);
  await expect(field(page)).toBeFocused();
  await reload(page);
  await expect(page.locator(".asked .plain")).toHaveText(["question zero", "question one", "question two"]);
  await expect(page.locator(".answer .markdown")).toHaveText(["zero", "of the race", "two"]);
});

test("a race that fails gives the words and files back, and leaves no conversation", async ({
  view,
  page,
}) => {
  await page.route("**/v1/chat/completions", (route) =>
    route.fulfill({ status: 503, json: { error: { message: "No room.", code: null, param: null } } }),
  );
  await view("chat");
  const file = { name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("words") };
  await page.locator('.composer input[type="file"]').setInputFiles(file);
  await field(page).fill("precious words");
  await begin(page);
  await expect(page.getByRole("alert")).toContainText("No room.");
  await back(page);
  await expect(field(page)).toHaveValue("precious words");
  await expect(field(page)).toBeFocused();
  await expect(page.locator(".composer .chip").first()).toContainText("a.txt");
  await expect(page.getByText("No conversations yet.")).toBeVisible();
});

test("a race with new words, kept, begins a conversation", async ({ view, page }) => {
  await raced(page, [PROMPT, SAYS("of the race"), SAYS("of the race")]);
  await view("chat");
  await field(page).fill("fresh words");
  await begin(page);
  await keep(page).click();
  await expect(page.locator(".asked .plain")).toHaveText("fresh words");
  await expect(page.locator(".answer .markdown")).toHaveText("of the race");
  await expect(field(page)).toHaveValue("");
  await reload(page);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("fresh words");
  await expect(page.locator(".answer .markdown")).toHaveText("of the race");
});

test("Escape ends a race only where it is shown, and nothing is asked meanwhile", async ({ view, page }) => {
  await raced(page, [SAYS("one"), PROMPT, LONG, LONG], 50);
  await view("chat");
  await say(page, "question");
  await expect(answer(page)).toContainText("one");
  await begin(page);
  await expect(page.getByText("With speculation is running alone")).toBeVisible();
  await expect(answer(page).getByRole("button", { name: "Answer again" })).toBeDisabled();
  await expect(page.locator(".asked").getByRole("button", { name: "Edit" })).toBeDisabled();
  await page.getByRole("button", { name: "New chat" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("New chat");
  await expect(field(page)).toBeFocused();
  await page.keyboard.press("Escape");
  await page.goBack();
  await page.getByRole("searchbox").press("Escape");
  await expect(page.getByText("With speculation is running alone")).toBeVisible();
  await field(page).press("Escape");
  await expect(page.getByRole("region", { name: "Race" }).getByText("Stopped.")).toBeVisible();
});
