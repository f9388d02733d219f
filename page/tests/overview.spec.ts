import type { Page } from "@playwright/test";
import { violations } from "./accessible";
import { expect, Server, test } from "./server";

/** Answers one request of so many tokens, with a text that has something to copy. */
async function ask(server: Server, tokens = 96): Promise<void> {
  const list = "apple, banana, cherry, date, elderberry, fig, grape, honeydew";
  const content = `Repeat this list three times: ${list}.\n${list}\n${list}`;
  const body = { messages: [{ role: "user", content }], temperature: 0, max_tokens: tokens };
  const response = await fetch(`${server.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
  await response.json();
}

/** A figure's value, by its name. */
function figure(page: Page, card: string, name: string) {
  const box = page.getByRole("region", { name: card }).locator(".figure");
  return box.filter({ has: page.getByText(name, { exact: true }) }).locator("strong");
}

async function whole(page: Page, card: string, name: string): Promise<number> {
  return Number((await figure(page, card, name).innerText()).replaceAll(",", ""));
}

const WINDOWS = [
  ["2 minutes", "The last 2 minutes"],
  ["1 hour", "The last hour"],
  ["24 hours", "The last 24 hours"],
  ["All", "All since"],
] as const;

test("a server that nobody has used says what to do, without zeros", async ({ browser }) => {
  const server = await Server.start();
  try {
    const context = await browser.newContext({ permissions: ["clipboard-read", "clipboard-write"] });
    const page = await context.newPage();
    await page.goto(`${server.url}#/overview`);
    await expect(page.getByRole("heading", { name: "Ready. Ask something." })).toBeVisible();
    await expect(page.getByRole("link", { name: "Open the chat" })).toHaveAttribute("href", "#/chat");
    await expect(page.locator("main")).not.toContainText(/NaN|undefined|null|Tokens\/s/);
    await page.getByRole("button", { name: "Copy" }).click();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    expect(command).toContain(`${server.url}v1/chat/completions`);
    expect(await violations(page)).toEqual([]);

    await ask(server);
    await expect(page.getByRole("heading", { name: "The last 2 minutes" })).toBeVisible();
    await expect(page.getByRole("heading", { name: "Ready. Ask something." })).toHaveCount(0);
    await context.close();
  } finally {
    await server.stop();
  }
});

test("figures appear while answers are generated, and every window counts them", async ({
  view,
  page,
  server,
}) => {
  await ask(server);
  const { totals } = await server.get<{ totals: { generated_tokens: number } }>(
    "console/overview?window=all",
  );
  await view("overview");
  await expect(page.getByRole("region", { name: "Now" })).toBeVisible();
  let over = false;
  const asking = (async () => {
    while (!over) await Promise.all([ask(server), ask(server)]);
  })();
  await expect(figure(page, "Now", "Tokens/s")).toHaveText(/^\d[\d.,]*$/);
  await expect.poll(() => whole(page, "Now", "Requests running")).toBeGreaterThan(0);
  over = true;
  await asking;
  await expect(figure(page, "Now", "Tokens/s")).toHaveText("idle");
  for (const [button, title] of WINDOWS) {
    await page.getByRole("button", { name: button, exact: true }).click();
    const card = page.getByRole("region", { name: new RegExp(`^${title}`) });
    await expect(card).toBeVisible();
    await expect(card.locator(".figure strong").first()).not.toHaveText("–");
    const name = await card.getByRole("heading").innerText();
    await expect.poll(() => whole(page, name, "Generated tokens")).toBeGreaterThan(totals.generated_tokens);
  }
  await expect(page).toHaveURL(/window=all$/);
  await page.reload();
  await expect(page.getByRole("button", { name: "All", exact: true })).toHaveAttribute(
    "aria-pressed",
    "true",
  );
});

test("acceptance is shown by drafter, and by depth from the most to the least", async ({ browser }) => {
  // Named drafters draft whenever they can; `auto` does not where the machine is too busy for it to pay.
  const server = await Server.start({ words: ["--speculate", "suffix"] });
  try {
    await ask(server);
    await ask(server);
    const page = await browser.newPage();
    await page.goto(`${server.url}#/overview`);
    await expect(page.getByRole("meter", { name: /^suffix: \d+ of \d+ tokens, \d+%$/ })).toBeVisible();
    const depths = page.locator(".depths li .share");
    await expect(depths.first()).toBeAttached();
    const shares = (await depths.allTextContents()).map((text) => parseInt(text));
    expect(shares).toEqual([...shares].sort((one, other) => other - one));
    expect(shares[0]).toBeGreaterThan(0);
    expect(shares[0]).toBeLessThanOrEqual(100);
    await page.close();
  } finally {
    await server.stop();
  }
});

test("charts say their figures in words, and show those of a moment where they are pointed at", async ({
  view,
  page,
  server,
}) => {
  await ask(server);
  await view("overview");
  const chart = page.getByRole("img", { name: /^Tokens\/s\. / });
  await expect(chart).toHaveAttribute("aria-label", /Tokens\/s: [\d.,]+ now, between [\d.,]+ and [\d.,]+/);
  await expect(chart.locator(".tip")).toHaveCount(0);
  const plot = chart.locator(".u-over");
  const box = (await plot.boundingBox())!;
  await plot.hover({ position: { x: box.width - 4, y: box.height / 2 } });
  await expect(chart.locator(".tip")).toHaveText(/\d\d:\d\d:\d\d.*Tokens\/s/);
  await page.mouse.move(0, 0);
  await expect(chart.locator(".tip")).toHaveCount(0);
});

test("a live chart keeps two minutes, however long the page is open", async ({ view, page, server }) => {
  const step = { ...(await server.get<{ points: object[]; totals: object }>("console/overview?window=2m")) };
  await ask(server);
  const points = async () =>
    (await server.get<{ points: { at: number }[] }>("console/overview?window=2m")).points;
  await expect.poll(async () => (await points()).length).toBeGreaterThan(0);
  const last = (await points()).at(-1)!;
  // 600 seconds in one go, as a stream sends them: a point each.
  const sent = Array.from({ length: 600 }, (_, i) => {
    const point = { ...last, at: last.at + i + 1, tokens_per_s: i };
    return `event: overview\ndata: ${JSON.stringify({ ...step, window: "2m", whole: i === 0, points: [point] })}\n\n`;
  });
  await page.route("**/console/events*", (route) =>
    route.fulfill({ contentType: "text/event-stream", body: sent.join("") }),
  );
  await view("overview");
  await expect(page.getByRole("img", { name: /^Tokens\/s\. / })).toHaveAttribute(
    "aria-label",
    "Tokens/s. Tokens/s: 599 now, between 479 and 599",
  );
});

test("what is loaded leads to its settings, and says whether speculation is exact", async ({
  view,
  page,
}) => {
  await view("overview");
  const card = page.getByRole("region", { name: "Loaded" });
  await expect(card.getByRole("link", { name: "default" })).toHaveAttribute("href", "#/models/default");
  await expect(card.getByText("exact", { exact: true })).toBeVisible();
  await expect(card).toContainText("Speculation changes no byte of the answers: ");
});

for (const scheme of ["light", "dark"] as const) {
  test(`with figures on screen it is accessible and fits a phone, ${scheme}`, async ({
    view,
    page,
    server,
  }) => {
    await page.emulateMedia({ colorScheme: scheme });
    await ask(server);
    await view("overview");
    await expect(page.getByRole("region", { name: "The last 2 minutes" })).toBeVisible();
    expect(await violations(page)).toEqual([]);
    await page.setViewportSize({ width: 390, height: 844 });
    await expect
      .poll(() => page.evaluate(() => document.documentElement.scrollWidth))
      .toBeLessThanOrEqual(390);
  });
}

test("a request that runs does not change the tokens per forward of those that have ended", async ({
  view,
  page,
  server,
}) => {
  interface Sums {
    totals: { requests: number; generated_tokens: number };
  }
  const sums = async () => (await server.get<Sums>("console/overview?window=all")).totals;
  const { requests } = await sums();
  await ask(server);
  await expect.poll(async () => (await sums()).requests).toBe(requests + 1);
  const { generated_tokens: tokens } = await sums();
  await view("overview?window=all");
  const card = page.getByRole("region", { name: /^All since/ });
  const shown = card.locator(".figure", { hasText: "Tokens per forward" }).locator("strong");
  await expect(shown).toHaveText(/^\d/);
  const before = await shown.innerText();

  const stop = new AbortController();
  const body = { prompt: "One day", max_tokens: 4000, ignore_eos: true, temperature: 1, stream: true };
  const running = fetch(`${server.url}v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: stop.signal,
  }).then((response) => response.text());
  try {
    await expect.poll(async () => (await sums()).generated_tokens).toBeGreaterThan(tokens + 100);
    await page.reload();
    await expect(shown).toHaveText(before);
  } finally {
    stop.abort();
    await running.catch(() => undefined);
  }
});

test("a long speculation string does not widen a phone's page", async ({ browser }) => {
  const long = "ngram-simple:n=3,m=8;ngram-map-k:n=3,m=8;ngram-map-k4v:n=3,m=8;ngram-mod:min=0";
  const server = await Server.start({ words: ["--speculate", long] });
  try {
    const page = await browser.newPage({ viewport: { width: 390, height: 844 } });
    for (const [name, shown] of [
      ["overview", "ngram-simple + ngram-map-k + ngram-map-k4v + ngram-mod"],
      ["speculation", long],
    ] as const) {
      await page.goto(`${server.url}#/${name}`);
      await expect(page.locator("main")).toContainText(shown);
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
    }
    await page.close();
  } finally {
    await server.stop();
  }
});
