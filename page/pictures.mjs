/** The pictures of docs/page.md, of a server that runs with two draft models to choose from.
 *
 *     foredraft serve --port 8123 & node pictures.mjs http://127.0.0.1:8123 ../docs/assets
 */

import { chromium } from "@playwright/test";

const [url, folder] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
const context = await browser.newContext({
  viewport: { width: 1180, height: 760 },
  locale: "en-GB",
  deviceScaleFactor: 1,
});
const page = await context.newPage();
const picture = (name) => page.screenshot({ path: `${folder}/page-${name}.png` });

await page.goto(`${url}/#/chat`);
const question =
  "Write a Python class Stack with push, pop and peek. Then write the same class again with type hints.";
await page.getByRole("switch", { name: "Show drafts" }).check();
await page.getByRole("textbox", { name: "Message" }).fill(question);
await page.keyboard.press("Enter");
await page.getByText("tokens/s").waitFor({ timeout: 120_000 });
await picture("chat");

await page.goto(`${url}/#/speculation`);
await page.getByRole("heading", { level: 2 }).first().waitFor();
await page.waitForTimeout(2000);
await picture("speculation");

await page.goto(`${url}/#/models`);
await page
  .getByRole("link", { name: "Settings" })
  .or(page.getByRole("button", { name: "Settings" }))
  .first()
  .click();
await page.getByText("Draft model").first().waitFor();
await page.waitForTimeout(2000);
await picture("models");
await browser.close();
