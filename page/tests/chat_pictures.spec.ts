/** Pictures in the chat: attached, made smaller, shown, sent, kept, exported; and models that do not see. */

import type { Page } from "@playwright/test";
import { readFileSync } from "node:fs";
import { violations } from "./accessible";
import { answer, field, reload, say } from "./chatting";
import { expect, test } from "./server";
import { answersWith, events } from "./streamed";

const SEEN = events([{ content: "A red field." }]);

interface Sent {
  messages: {
    role: string;
    content: string | { type: string; text?: string; image_url?: { url: string } }[];
  }[];
}

/** The server says that its model sees, or not; and that there is a model for embeddings. */
async function seeing(page: Page, sees: boolean): Promise<void> {
  const modalities = ["text", ...(sees ? ["image"] : [])];
  const data = [
    { id: "looker", loaded: true, kind: "generative", architecture: { input_modalities: modalities } },
    { id: "vectors", loaded: false, kind: "embedding" },
  ];
  await page.route("**/v1/models", (route) => route.fulfill({ json: { object: "list", data } }));
}

/** What the page sends to be answered. */
async function watched(page: Page): Promise<() => Promise<Sent[]>> {
  await page.addInitScript(() => {
    const answered = window.fetch;
    const sent: unknown[] = [];
    Object.assign(window, { sent });
    window.fetch = (input, options) => {
      if (String(input).endsWith("v1/chat/completions")) sent.push(JSON.parse(String(options?.body)));
      return answered(input, options);
    };
  });
  return () => page.evaluate(() => (window as unknown as { sent: Sent[] }).sent);
}

/** A picture of one colour. */
async function picture(page: Page, width: number, height: number, type = "image/png"): Promise<Buffer> {
  const url = await page.evaluate(
    ([width, height, type]) => {
      const canvas = Object.assign(document.createElement("canvas"), { width, height });
      const drawing = canvas.getContext("2d")!;
      drawing.fillStyle = "red";
      drawing.fillRect(0, 0, width, height);
      return canvas.toDataURL(type);
    },
    [width, height, type] as const,
  );
  return Buffer.from(url.split(",")[1] ?? "", "base64");
}

async function attach(page: Page, name: string, mimeType: string, buffer: Buffer): Promise<void> {
  await page.locator(".composer input[type=file]").setInputFiles({ name, mimeType, buffer });
}

async function paste(page: Page, type: string, data: Buffer): Promise<void> {
  await field(page).evaluate(
    (box, [type, base64]) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const clipboardData = new DataTransfer();
      clipboardData.items.add(new File([bytes], "pasted.jpg", { type }));
      box.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
    },
    [type, data.toString("base64")] as const,
  );
}

/** The browser takes long to read the first picture that it is given. */
async function firstReadSlowly(page: Page): Promise<void> {
  await page.addInitScript(() => {
    const made = window.createImageBitmap.bind(window) as (...given: unknown[]) => Promise<ImageBitmap>;
    let pictures = 0;
    const slow = async (...given: unknown[]): Promise<ImageBitmap> => {
      if (pictures++ === 0) await new Promise((after) => setTimeout(after, 1000));
      return made(...given);
    };
    Object.assign(window, { createImageBitmap: slow });
  });
}

const chips = (page: Page) => page.locator(".composer .chip");
const shown = (page: Page) => page.locator(".asked img.picture");

test("pictures are in the order in which they were given", async ({ view, page }) => {
  await seeing(page, true);
  await firstReadSlowly(page);
  await view("chat");
  await attach(page, "first.png", "image/png", await picture(page, 40, 20));
  await paste(page, "image/jpeg", await picture(page, 40, 20, "image/jpeg"));
  await expect(chips(page)).toHaveText([/first\.png/, /pasted\.jpg/]);
});

test("pictures are attached, made smaller, shown, sent, kept and exported", async ({ view, page }) => {
  await seeing(page, true);
  await answersWith(page, [SEEN]);
  const sent = await watched(page);
  await view("chat");
  await attach(page, "wide.png", "image/png", await picture(page, 3000, 1000));
  await paste(page, "image/jpeg", await picture(page, 40, 20, "image/jpeg"));
  await expect(chips(page).locator("img")).toHaveCount(2);
  expect(await violations(page)).toEqual([]);
  await say(page, "What is this?");
  await expect(answer(page)).toContainText("A red field.");
  const content = (await sent())[0]?.messages.at(-1)?.content;
  expect(
    Array.isArray(content) && content.map((part) => part.text ?? part.image_url?.url.slice(0, 16)),
  ).toEqual(["data:image/png;b", "data:image/jpeg;", "What is this?"]);
  const sizes = () =>
    shown(page).evaluateAll((all) => all.map((one) => (one as HTMLImageElement).naturalWidth));
  await expect.poll(sizes).toEqual([2048, 40]);
  await expect(shown(page).first()).toHaveAttribute("alt", "wide.png");
  await reload(page);
  await expect.poll(sizes).toEqual([2048, 40]);

  await say(page, "And now?");
  await expect(page.locator(".answer")).toHaveCount(2);
  await expect(answer(page)).toContainText("A red field.");
  const again = (await sent())[0]?.messages[0]?.content;
  expect(again, "also as history").toEqual(content);

  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export" }).click();
  const file = await (await saving).path();
  await page.locator('input[accept*="json"]').setInputFiles({
    name: "chats.json",
    mimeType: "application/json",
    buffer: readFileSync(file),
  });
  const links = page.getByRole("complementary", { name: "Conversations" }).getByRole("link");
  await expect(links).toHaveCount(2);
  await links.last().click();
  await expect.poll(sizes).toEqual([2048, 40]);
  await links.first().click();
  await expect.poll(sizes).toEqual([2048, 40]);
});

test("a model that does not see is offered no picture, and one for embeddings is not offered", async ({
  view,
  page,
}) => {
  await seeing(page, false);
  await view("chat");
  await expect(page.getByRole("combobox", { name: "Model" }).locator("option")).toHaveText(["looker"]);
  await attach(page, "a.png", "image/png", await picture(page, 10, 10));
  await expect(page.getByRole("alert")).toHaveText("a.png: this model does not see pictures.");
  await expect(chips(page)).toHaveCount(0);
});

test("what is no picture is refused", async ({ view, page }) => {
  await seeing(page, true);
  await view("chat");
  await attach(page, "a.png", "image/png", Buffer.from("no picture"));
  await expect(page.getByRole("alert")).toHaveText("a.png cannot be read as a picture.");
  await attach(page, "a.pdf", "application/pdf", Buffer.from([0x25, 0, 0xff, 0xfe]));
  await expect(page.getByRole("alert")).toHaveText(
    "a.pdf is neither a text nor a PNG, JPEG or WebP picture.",
  );
});

test("pictures beyond the bound make room, the oldest first", async ({ view, page }) => {
  await seeing(page, true);
  await answersWith(page, [SEEN]);
  await view("chat");
  await attach(page, "old.png", "image/png", await picture(page, 10, 10));
  await say(page, "first");
  await expect(answer(page)).toContainText("A red field.");
  await page.evaluate(async () => {
    // As if the kept picture were nearly as large as all may be together.
    const opening = indexedDB.open("foredraft-chat");
    await new Promise((done) => opening.addEventListener("success", done));
    const store = opening.result.transaction("messages", "readwrite").objectStore("messages");
    const all = store.getAll();
    await new Promise((done) => all.addEventListener("success", done));
    const message = (all.result as { role: string; attachments: object[] }[]).find(
      ({ role }) => role === "user",
    )!;
    const part = new Blob([new Uint8Array(5_000_000)]);
    const large = new Blob(Array<Blob>(40).fill(part), { type: "image/png" });
    const put = store.put({ ...message, attachments: [{ ...message.attachments[0], picture: large }] });
    await new Promise((done) => put.addEventListener("success", done));
    opening.result.close();
  });
  await attach(page, "new.png", "image/png", await picture(page, 10, 10));
  await say(page, "second");
  await expect(page.locator(".answer")).toHaveCount(2);
  await expect(answer(page)).toContainText("A red field.");
  await reload(page);
  await expect(page.locator(".asked").first()).toContainText("old.png");
  await expect(page.locator(".asked").first()).toContainText("newer pictures needed the room");
  await expect(shown(page)).toHaveAttribute("alt", "new.png");
});
