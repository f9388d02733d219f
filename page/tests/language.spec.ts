import type { Browser } from "@playwright/test";
import { expect, loaded, test } from "./server";

/** The language, the menu's first word and the direction of the page for a browser that prefers these languages. */
async function shown(browser: Browser, url: string, ...languages: string[]): Promise<(string | null)[]> {
  const context = await browser.newContext({ locale: languages[0] });
  await context.addInitScript((tags) => {
    Object.defineProperty(navigator, "languages", { get: () => tags });
  }, languages);
  const page = await context.newPage();
  await page.goto(`${url}#/log`);
  await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  const html = page.locator("html");
  const found = [
    await html.getAttribute("lang"),
    await html.getAttribute("dir"),
    await page.locator("nav a").first().textContent(),
  ];
  await context.close();
  return found;
}

test("the language is the first of the browser's that there is", async ({ browser, server }) => {
  for (const [languages, tag, word] of [
    [["de-CH", "en"], "de", "Chat"],
    [["ja-JP"], "ja", "チャット"],
    [["ko"], "ko", "채팅"],
    [["zh-TW", "ja"], "zh", "聊天"],
    [["fr-FR", "ko-KR", "en"], "ko", "채팅"],
    [["fr", "it"], "en", "Chat"],
  ] as const) {
    expect(await shown(browser, server.url, ...languages)).toEqual([tag, "ltr", word]);
  }
});

test("a language that was chosen stays, in other tabs, too", async ({ view, page, context, server }) => {
  await view("log");
  await page.getByRole("combobox", { name: "Language" }).selectOption("日本語");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("ログ");
  await expect(page).toHaveTitle(/^ログ/);
  const other = await context.newPage();
  await other.goto(`${server.url}#/log`);
  await expect(other.getByRole("heading", { level: 1 })).toHaveText("ログ");
  await page.evaluate(() => localStorage.setItem("foredraft-language", "tlh"));
  await page.reload();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Log");
});

test("times are written as in the reader's country", async ({ browser, server }) => {
  await fetch(`${server.url}v1/for-the-time`);
  for (const [tag, form] of [
    ["en-GB", /^\d\d:\d\d:\d\d$/],
    ["en-US", /^\d?\d:\d\d:\d\d\s[AP]M$/],
    ["de-DE", /^\d\d:\d\d:\d\d$/],
  ] as const) {
    const context = await browser.newContext({ locale: tag });
    const page = await context.newPage();
    await page.goto(`${server.url}#/log`);
    await expect(page.getByRole("log").locator("time").first()).toHaveText(form);
    await context.close();
  }
});

test("counts have the forms of the language", async ({ view, page, server }) => {
  await fetch(`${server.url}v1/counted-once`);
  await view("log");
  await page.getByRole("searchbox").fill("counted-once");
  for (const [language, text] of [
    ["English", /^1 of \d+ lines?$/],
    ["Deutsch", /^1 von \d+ Zeilen?$/],
    ["日本語", /^\d+ 行中 1 行$/],
    ["한국어", /^\d+줄 중 1줄$/],
    ["中文", /^共 \d+ 行，显示 1 行$/],
  ] as const) {
    await page.locator("select").first().selectOption(language);
    await expect(page.getByText(text).first()).toBeVisible();
  }
});

test("every view fits a phone in every language, with all its texts", async ({ view, page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  const views = ["chat", "overview", "speculation", "models", "requests", "benchmark", "keys", "log"];
  for (const language of ["Deutsch", "日本語", "한국어", "中文"]) {
    await view("chat");
    await page.locator("select").first().selectOption(language);
    for (const name of views) {
      await view(name);
      await expect(page.locator(`nav a[href="#/${name}"]`)).toHaveAttribute("aria-current", "page");
      await loaded(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      expect(wide, `${name}, ${language}`).toBeLessThanOrEqual(390);
      const text = await page.locator("body").innerText();
      expect(text, `${name}, ${language}`).not.toMatch(/\{\w+\}|\b(?:shell|chat|models|keys|log)\.[a-z_]+\b/);
    }
  }
});
