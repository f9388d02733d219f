/** The chat against a real server with the default model. */

import type { Locator, Page, Request } from "@playwright/test";
import { violations } from "./accessible";
import { answers, field, reload, say } from "./chatting";
import { Server, expect, test } from "./server";

test.describe.configure({ timeout: 180_000 });
const LONG = { timeout: 120_000 };

/** Waits for the answer that is written, the `count`-th; returns it. */
async function answered(page: Page, count = 1): Promise<Locator> {
  await expect(answers(page)).toHaveCount(count, LONG);
  const last = answers(page).nth(count - 1);
  await expect(last).toHaveAttribute("aria-busy", "false", LONG);
  return last;
}

/** Short and greedy. */
async function settle(page: Page, values: Record<string, string>): Promise<void> {
  await page.getByRole("button", { name: "Settings of this chat" }).click();
  for (const [name, value] of Object.entries(values))
    await page.getByLabel(name, { exact: true }).fill(value);
  await page.getByRole("button", { name: "Close" }).click();
}

function bodyOf(
  request: Request,
): Record<string, unknown> & { messages: { role: string; content: string }[] } {
  return request.postDataJSON() as never;
}

const asked = (page: Page) =>
  page.waitForRequest((request) => request.url().endsWith("v1/chat/completions"), LONG);

test("a new user types, reads, and sees what was drafted", async ({ page }) => {
  // Named drafters draft whenever they find something; `auto` also weighs this machine's times.
  const server = await Server.start({ words: ["--speculate", "suffix"] });
  try {
    await page.goto(server.url); // the first view
    await expect(page.getByRole("heading", { name: "Ask the model something" })).toBeVisible();
    await settle(page, { Temperature: "0", "Max tokens": "60" });
    await say(page, "Write a short poem about rain.");
    const first = await answered(page);
    await expect(first.locator(".figures-line")).toContainText("tokens/s");
    await expect(first.locator(".figures-line")).toContainText("exact");
    await expect(page.getByRole("heading", { level: 1 })).toHaveText("Write a short poem about rain.");
    const text = await first.locator(".markdown").innerText();
    await first.getByRole("button", { name: "Answer again" }).click(); // drafted from the first answer
    await page.getByRole("switch", { name: "Show drafts" }).click();
    const again = await answered(page);
    await expect(again.locator(".figures-line")).toContainText("from drafts");
    await expect(again.locator(".plain mark.drafted").first()).toHaveAttribute("title", /repeats/);
    await expect(again.getByRole("list", { name: "Who proposed what" })).toContainText("tokens");
    await page.getByRole("switch", { name: "Show drafts" }).click();
    expect(await again.locator(".markdown").innerText()).toBe(text);
    expect(await violations(page)).toEqual([]);
    await again.getByRole("link", { name: "Why is it not faster?" }).click();
    await expect(page).toHaveURL(/#\/speculation/);
  } finally {
    await server.stop();
  }
});

test("a conversation is there after a reload: renamed, found, deleted and back", async ({ view, page }) => {
  await view("chat");
  await settle(page, { "Max tokens": "8" });
  await say(page, "The first words name it");
  const text = await (await answered(page)).innerText();
  await reload(page);
  expect(await (await answered(page)).innerText()).toBe(text);
  const list = page.getByRole("complementary", { name: "Conversations" });
  await expect(list.getByRole("link")).toHaveText("The first words name it");
  await list.getByRole("listitem").hover();
  await list.getByRole("button", { name: "Rename" }).click();
  await list.getByRole("textbox", { name: "Rename" }).fill("Another name");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Another name");

  await page.getByRole("button", { name: "New chat" }).click();
  await settle(page, { "Max tokens": "8" });
  await say(page, "Zebras");
  await answered(page);
  await expect(list.getByRole("link")).toHaveText(["Zebras", "Another name"]);
  await list.getByRole("searchbox").fill("FIRST words");
  await expect(list.getByRole("link")).toHaveText("Another name");
  await list.getByRole("searchbox").fill("nowhere");
  await expect(list).toContainText("Nothing found.");
  await list.getByRole("searchbox").fill("");

  await list.getByRole("listitem").first().hover();
  await list.getByRole("button", { name: "Delete" }).first().click();
  await expect(list.getByRole("link")).toHaveText("Another name");
  await page.getByRole("button", { name: "Undo" }).click();
  await answered(page);
  await reload(page);
  await expect(list.getByRole("link")).toHaveText(["Zebras", "Another name"]);
  await list.getByRole("listitem").first().hover();
  await list.getByRole("button", { name: "Delete" }).first().click();
  await expect(list.getByRole("link")).toHaveText("Another name");
  await reload(page);
  await expect(list.getByRole("link")).toHaveText("Another name");
});

test("an answer that was cut off is continued", async ({ view, page }) => {
  await view("chat");
  await settle(page, { Temperature: "0", "Max tokens": "12" });
  await say(page, "Write a long story about a river.");
  const stopped = await answered(page);
  await expect(stopped).toContainText("Cut off at the maximum length.");
  const begun = await stopped.locator(".markdown").innerText();
  const request = asked(page);
  await settle(page, { "Max tokens": "20" });
  await stopped.getByRole("button", { name: "Continue" }).click();
  const body = bodyOf(await request);
  expect(body.continue_final_message).toBe(true);
  expect(body.messages.at(-1)?.role).toBe("assistant");
  const whole = await answered(page);
  await expect(whole.locator(".figures-line")).toContainText("Continued part");
  const text = await whole.locator(".markdown").innerText();
  expect(text.startsWith(begun.trim())).toBe(true);
  expect(text.length).toBeGreaterThan(begun.length);
  await expect(whole).toContainText("Cut off at the maximum length.");
});

test("an edited message replaces what follows; settings are the conversation's", async ({ view, page }) => {
  await view("chat");
  await settle(page, {
    "System prompt": "Answer in one word.",
    Temperature: "0.5",
    "Top-k": "7",
    Seed: "3",
    "Max tokens": "8",
  });
  const first = asked(page);
  await say(page, "one");
  expect(bodyOf(await first)).toMatchObject({
    temperature: 0.5,
    top_k: 7,
    seed: 3,
    max_completion_tokens: 8,
    stop_repetition: true,
  });
  await answered(page);
  await say(page, "two");
  await answered(page, 2);
  const again = asked(page);
  await page.locator(".asked").first().getByRole("button", { name: "Edit" }).click();
  await page.locator(".editing textarea").fill("three");
  await page.locator(".editing textarea").press("Enter");
  expect(bodyOf(await again).messages).toEqual([
    { role: "system", content: "Answer in one word." },
    { role: "user", content: "three" },
  ]);
  await answered(page, 1);
  await page.getByRole("button", { name: "New chat" }).click();
  await page.getByRole("button", { name: "Settings of this chat" }).click();
  await expect(page.getByLabel("Top-k")).toHaveValue("");
  await expect(page.getByLabel("Temperature")).toHaveAttribute("placeholder", "0.7");
  await page.getByLabel("Temperature").fill("0,25");
  await expect(page.getByText("Must be a number")).toHaveCount(0);
  await page.getByLabel("Temperature").fill("7");
  await expect(page.getByText("Must be a number from 0 to 2.")).toBeVisible();
});

test("two tabs write to one conversation, and lose nothing", async ({ view, page, context }) => {
  await view("chat");
  await settle(page, { "Max tokens": "8" });
  await say(page, "from the first tab");
  await answered(page);
  const other = await context.newPage();
  await other.goto(page.url());
  await answered(other);
  await say(other, "from the second tab");
  await answered(other, 2);
  await answered(page, 2);
  await say(page, "again from the first");
  await Promise.all([answered(page, 3), answered(other, 3)]);
  await reload(page);
  await answered(page, 3);
  await expect(page.locator(".asked .plain")).toHaveText([
    "from the first tab",
    "from the second tab",
    "again from the first",
  ]);
});

test("conversations are exported and imported", async ({ view, page }) => {
  await view("chat");
  await settle(page, { "Max tokens": "8" });
  await say(page, "to be exported");
  const text = await (await answered(page)).locator(".markdown").innerText();
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export", exact: true }).click();
  const file = await (await download).path();
  const list = page.getByRole("complementary", { name: "Conversations" });
  await list.getByRole("listitem").hover();
  await list.getByRole("button", { name: "Delete" }).click();
  await page.locator('input[accept*="json"]').setInputFiles(file);
  await expect(list).toContainText("One conversation imported.");
  await list.getByRole("link", { name: "to be exported" }).click();
  const back = await answered(page);
  expect(await back.locator(".markdown").innerText()).toBe(text);
  await expect(back.locator(".figures-line")).toContainText("8 tokens");
  const wrong = {
    name: "wrong.json",
    mimeType: "application/json",
    buffer: Buffer.from('{"format":"other"}'),
  };
  await page.locator('input[accept*="json"]').setInputFiles(wrong);
  await expect(list).toContainText("wrong.json is not a file of exported conversations.");
});

test("a text file goes with the message, and as its prediction", async ({ view, page }) => {
  await view("chat");
  await settle(page, { "Max tokens": "8" });
  const code = "def f():\n    return '```'\n";
  const input = page.locator('.composer input[type="file"]');
  await input.setInputFiles({ name: "a.py", mimeType: "text/x-python", buffer: Buffer.from(code) });
  await expect(page.locator(".composer .chip").first()).toContainText("a.py");
  const first = asked(page);
  await say(page, "Add a docstring.");
  const body = bodyOf(await first);
  expect(body.prediction).toEqual({ type: "content", content: code });
  expect(body.messages[0]?.content).toBe(`a.py:\n\`\`\`\`py\n${code}\`\`\`\`\n\nAdd a docstring.`);
  await answered(page);
  await expect(page.locator(".asked .chip")).toContainText("a.py");

  await input.setInputFiles({ name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("words") });
  await page.getByLabel("Edit this file").uncheck();
  const second = asked(page);
  await say(page, "What is in it?");
  expect(bodyOf(await second).prediction).toBeUndefined();
  await answered(page, 2);

  await input.setInputFiles({
    name: "c.bin",
    mimeType: "application/octet-stream",
    buffer: Buffer.from([0x89, 0x50, 0, 1, 0xff]),
  });
  await expect(page.getByRole("alert")).toContainText("c.bin is neither a text nor a PNG");
  await input.setInputFiles({ name: "d.txt", mimeType: "text/plain", buffer: Buffer.alloc(600_000, 65) });
  await expect(page.getByRole("alert")).toContainText("d.txt is larger than 500");
  for (const way of ["drop", "paste"] as const) {
    await page.locator(".composer textarea").evaluate((box, way) => {
      const data = new DataTransfer();
      data.items.add(new File(["some text"], `${way}.md`));
      const carried = way === "drop" ? { dataTransfer: data } : { clipboardData: data };
      const Kind = way === "drop" ? DragEvent : ClipboardEvent;
      box.dispatchEvent(new Kind(way, { bubbles: true, cancelable: true, ...carried }));
    }, way);
    await expect(page.locator(".composer .chip").filter({ hasText: `${way}.md` })).toBeVisible();
  }
  await page.getByRole("button", { name: "Remove drop.md" }).click();
  await expect(page.locator(".composer .chip")).toHaveCount(1);
});

test("a race: both answers, their times, and that they are the same text", async ({ view, page }) => {
  await view("chat");
  await settle(page, { "Max tokens": "60" });
  await field(page).fill("Count from 1 to 20, and then again from 1 to 20.");
  const sent: unknown[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("chat/completions"))
      sent.push([bodyOf(request).speculate, bodyOf(request).temperature]);
  });
  await page.getByRole("button", { name: "Race", exact: true }).click();
  await expect(page.getByText("Done.")).toBeVisible(LONG);
  expect(sent).toEqual([
    ["off", 0],
    ["auto", 0],
    ["off", 0],
  ]);
  const race = page.getByRole("region", { name: "Race" });
  await expect(race).toContainText("The same text, byte for byte (temperature 0).");
  await expect(race).toContainText(/[\d.]+ against [\d.]+ tokens\/s/);
  const texts = await race.locator(".lane-text").allInnerTexts();
  expect(texts[0]).toBe(texts[1]);
  expect(texts[0]).not.toBe("");
  expect(await violations(page)).toEqual([]);
  await page.getByRole("button", { name: "Keep the answer" }).click();
  await answered(page);
  await reload(page);
  await expect((await answered(page)).locator(".figures-line")).toContainText("tokens/s");
});

test("the server goes away in the middle, comes back, and the answer goes on", async ({ page }) => {
  const server = await Server.start();
  const port = Number(new URL(server.url).port);
  let back: Server | null = null;
  try {
    await page.goto(`${server.url}#/chat`);
    await say(page, "Write a long story about a mountain.");
    await expect(answers(page).locator(".markdown p").first()).toContainText(/\w+ \w+ \w+/, LONG);
    await server.stop("SIGKILL");
    const lost = await answered(page);
    await expect(lost).toContainText("The connection was lost; what had arrived is kept.");
    const begun = (await lost.locator(".markdown").innerText()).trim();
    back = await Server.start({ port });
    await settle(page, { "Max tokens": "10" });
    await lost.getByRole("button", { name: "Continue" }).click();
    await expect(lost.locator(".figures-line")).toBeVisible(LONG);
    expect((await lost.locator(".markdown").innerText()).startsWith(begun)).toBe(true);
  } finally {
    await back?.stop();
    await server.stop();
  }
});
