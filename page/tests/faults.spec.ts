/** What the page does where a file, the browser, or the server fails it. */

import type { Page, Route } from "@playwright/test";
import { expect, test } from "./server";

const heading = (page: Page, name: string) => page.getByRole("heading", { level: 1, name, exact: true });
const entry = (page: Page, name: string) => page.locator(`nav a[href="#/${name}"]`);

/** Hold back what a route would answer, until the function that comes back is called. */
async function held(page: Page, url: string): Promise<() => void> {
  let go = () => {};
  const waiting = new Promise<void>((goes) => (go = goes));
  await page.route(url, async (route) => {
    await waiting;
    await route.continue();
  });
  return go;
}

test("a view that comes late does not stand in the way of another", async ({ view, page }) => {
  const go = await held(page, "**/page/overview.js");
  await view("log");
  await entry(page, "overview").click();
  await expect(heading(page, "Log")).toHaveCount(0);
  await entry(page, "log").click();
  await expect(heading(page, "Log")).toBeVisible();
  go();
  await page.waitForResponse(/overview\.js/);
  await page.waitForFunction(async () => {
    const name = "./page/overview.js";
    return Boolean(await import(new URL(name, location.href).href));
  });
  await expect(heading(page, "Log")).toBeVisible();
});

test("without the texts of a language the page is English", async ({ browser, server }) => {
  const page = await browser.newPage({ locale: "de-DE" });
  await page.route("**/page/de.js", (route) => route.abort());
  await page.goto(`${server.url}#/log`);
  await expect(heading(page, "Log")).toBeVisible();
  await page.getByLabel("Language").selectOption("de");
  await expect(page.getByRole("alert")).toBeVisible();
  await expect(page.getByLabel("Language")).toHaveValue("en");
  await page.close();
});

test("of two languages the one that was chosen last is used", async ({ view, page }) => {
  await view("log");
  const go = await held(page, "**/page/ko.js");
  await page.getByLabel("Language").selectOption("ko");
  await page.getByLabel("Language").selectOption("de");
  await expect(page.locator("html")).toHaveAttribute("lang", "de");
  go();
  await page.waitForResponse(/ko\.js/);
  await page.waitForFunction(async () => {
    const name = "./page/ko.js";
    return Boolean(await import(new URL(name, location.href).href));
  });
  await expect(page.locator("html")).toHaveAttribute("lang", "de");
});

test("a browser that keeps nothing shows every view, and changes colours", async ({ view, page }) => {
  await page.addInitScript(() => {
    for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, {
        get() {
          throw new DOMException("denied", "SecurityError");
        },
      });
    }
  });
  for (const name of ["chat", "overview", "speculation", "models", "log"]) await view(name);
  await page.getByLabel("Colours").selectOption("dark");
  await expect(page.locator("html")).toHaveAttribute("data-theme", "dark");
});

for (const name of ["constructor", "__proto__"]) {
  test(`the address of a model ${name} that is not there says so`, async ({ view, page }) => {
    await view(`models/${name}`);
    await expect(page.getByRole("alert")).toContainText(name);
  });
}

test("an error in a view is shown in its place, and the others go on", async ({ server, page }) => {
  const line = { number: 1, at: 1e300, level: "info", text: "from no time" }; // no Date has it
  await page.route("**/console/log", (route) => route.fulfill({ json: { lines: [line] } }));
  await page.route("**/console/events*", (route) => route.abort());
  await page.goto(`${server.url}#/log`);
  await expect(page.getByRole("alert")).toContainText("Invalid time value");
  await entry(page, "keys").click();
  await expect(heading(page, "Keys")).toBeVisible();
  await page.unroute("**/console/log");
  await entry(page, "log").click();
  await expect(heading(page, "Log")).toBeVisible();
});

test("a topic that the server cannot read says why", async ({ view, page }) => {
  const error = { message: "The disk is gone.", type: "server_error", code: null, param: null };
  await page.route("**/console/events*", (route) =>
    route.fulfill({
      contentType: "text/event-stream",
      body: `event: error\ndata: ${JSON.stringify({ topic: "requests", error })}\n\n`,
    }),
  );
  await view("requests");
  await expect(page.getByRole("alert")).toContainText("The disk is gone.");
  await expect(page.getByText("Loading…")).toHaveCount(0);
});

test("a stream that is refused says why, and waits as long as the server asks", async ({ view, page }) => {
  await page.clock.install();
  let tries = 0;
  await page.route("**/console/events*", (route) => {
    tries++;
    return route.fulfill({
      status: 429,
      headers: { "retry-after": "30" },
      json: { error: { message: "Too many streams are open.", code: "rate_limited" } },
    });
  });
  await view("requests");
  await expect(page.getByRole("alert")).toContainText("Too many streams are open.");
  await expect(page.getByText("Refused. Trying again…")).toBeVisible();
  await page.clock.runFor(25_000);
  expect(tries).toBe(1);
  await page.clock.runFor(10_000);
  await expect.poll(() => tries).toBe(2);
});

test("a view with two topics opens one stream", async ({ view, page }) => {
  const opened: string[] = [];
  page.on("request", (request) => request.url().includes("/console/events") && opened.push(request.url()));
  await view("overview");
  await expect(page.getByRole("region", { name: "Loaded" })).toBeVisible();
  expect(opened.map((url) => new URL(url).search)).toEqual(["?topics=models%2Coverview"]);
});

test("a key that is refused is said, and the field has the focus", async ({ server, page }) => {
  const refuse = (route: Route) =>
    route.fulfill({ status: 401, json: { error: { message: "Invalid key.", code: "invalid_api_key" } } });
  await page.route("**/console/session", refuse);
  await page.goto(`${server.url}#/log`);
  const field = page.getByLabel("API key", { exact: true });
  await expect(heading(page, "This server wants an API key")).toBeVisible();
  for (const key of ["wrong", "ключ→"]) {
    await field.fill(key);
    await field.press("Enter");
    await expect(page.getByRole("alert")).toHaveText("The server does not accept this key.");
    await expect(field).toBeFocused();
    await expect(field).toHaveValue(key);
  }
  await page.unroute("**/console/session");
  await field.fill("right");
  await field.press("Enter");
  await expect(heading(page, "Log")).toBeVisible();
});

test("a text that the browser does not copy is said to be not copied", async ({ view, page }) => {
  await page.addInitScript(() => {
    Object.defineProperty(navigator, "clipboard", {
      value: { writeText: () => Promise.reject(new DOMException("denied", "NotAllowedError")) },
    });
  });
  await view("log");
  await page.getByRole("button", { name: "Copy" }).click();
  await expect(page.getByRole("button", { name: "Not copied" })).toBeVisible();
});

test("on plain HTTP a text is copied, and the button keeps the focus", async ({ view, page }) => {
  await page.addInitScript(() => Object.defineProperty(window, "isSecureContext", { value: false }));
  await page.addInitScript(() => {
    document.execCommand = () => (window as unknown as { copies: boolean }).copies;
  });
  await view("log");
  for (const copies of [true, false]) {
    await page.evaluate((copies) => Object.assign(window, { copies }), copies);
    await page.getByRole("button", { name: "Copy" }).click();
    const said = page.getByRole("button", { name: copies ? "Copied" : "Not copied", exact: true });
    await expect(said).toBeFocused();
    await expect(said).toHaveCount(0);
  }
});

test("a selection that is drawn out of a dialog does not close it", async ({ view, page }) => {
  await view("requests");
  await page.getByRole("button", { name: "Record texts" }).click();
  const dialog = page.getByRole("dialog");
  const text = (await dialog.getByRole("heading").boundingBox())!;
  await page.mouse.move(text.x + 5, text.y + 5);
  await page.mouse.down();
  await page.mouse.move(5, 5);
  await page.mouse.up();
  await expect(dialog).toBeVisible();
  await page.mouse.click(5, 5);
  await expect(dialog).toBeHidden();
});

test("in a low window the whole side can be reached", async ({ view, page }) => {
  await page.setViewportSize({ width: 1000, height: 300 });
  await view("log");
  const docs = page.getByRole("link", { name: "API", exact: true });
  await docs.scrollIntoViewIfNeeded();
  await expect(docs).toBeInViewport({ ratio: 1 });
});
