// A headless Chromium for the scripts that measure the page: one JSON command a line on standard input, one JSON answer a line
// on standard output. Started by page_browser.py; Playwright is that of ../page.
//
//   {"show": "http://127.0.0.1:8080/#/overview"}  opens the address, or goes there; null closes the page
//   {"views": true}                               the names in the page's menu
//   {"memory": true}                              of the page, after the garbage is collected

import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(new URL("../page/package.json", import.meta.url))("@playwright/test");
const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const SIZE = { width: 1280, height: 900 };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? PLACES.find((place) => existsSync(place)),
  args: ["--no-sandbox"],
});
let page = null;
let errors = [];

async function show(address) {
  if (address === null) {
    await page?.close();
    page = null;
    return {};
  }
  if (page === null) {
    page = await browser.newPage({ viewport: SIZE });
    page.on("pageerror", (error) => errors.push(String(error)));
  }
  await page.goto(address);
  await page.getByRole("heading", { level: 1 }).waitFor();
  const found = errors;
  errors = [];
  return { errors: found };
}

async function memory() {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.enable");
  await session.send("HeapProfiler.collectGarbage");
  await session.send("Performance.enable");
  const { metrics } = await session.send("Performance.getMetrics");
  await session.detach();
  const of = Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
  return { heap_bytes: of.JSHeapUsedSize, nodes: of.Nodes, listeners: of.JSEventListeners };
}

async function views() {
  const links = await page.locator("nav a").evaluateAll((found) => found.map((link) => link.hash));
  return { views: links.map((hash) => hash.replace("#/", "")) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = "show" in command ? await show(command.show) : command.views ? await views() : await memory();
  } catch (error) {
    answer = { failed: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
