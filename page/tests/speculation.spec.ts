import type { Page } from "@playwright/test";
import { violations } from "./accessible";
import { expect, Server, test } from "./server";

/** Named drafters draft whenever they can; `auto` does not where the machine is too busy for it to pay. */
test.use({ words: ["--speculate", "suffix"] });

/** Answers one request. A list that is repeated gives drafters something to copy. */
async function ask(server: Server, content: string, more: object = {}): Promise<void> {
  const body = { messages: [{ role: "user", content }], temperature: 0, max_tokens: 96, ...more };
  const response = await fetch(`${server.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
  await response.json();
}

const LIST = "apple, banana, cherry, date, elderberry, fig, grape, honeydew";
const REPEATED = `Repeat this list three times: ${LIST}.\n${LIST}\n${LIST}`;

/** The same twice: the second answer is copied from the first. */
async function askForDrafts(server: Server): Promise<void> {
  await ask(server, REPEATED);
  await ask(server, REPEATED);
}

async function openInternals(page: Page): Promise<void> {
  const details = page.locator("details", { has: page.getByText("Round by round") });
  if ((await details.getAttribute("open")) === null) await page.getByText("Round by round").click();
  await expect(page.getByText("Where a round's time goes")).toBeVisible();
}

test("before anything is asked, it says so and what to do", async ({ browser }) => {
  const server = await Server.start();
  try {
    const page = await browser.newPage();
    await page.goto(`${server.url}#/speculation`);
    await expect(page.locator(".says")).toHaveText("Idle: nothing is being answered");
    await expect(page.getByText("copies what followed the same words before")).toBeVisible();
    await expect(page.locator("main")).not.toContainText(/NaN|undefined|null/);
    await page.close();
  } finally {
    await server.stop();
  }
});

test("while drafts are accepted, the sentence names the drafter and the gain", async ({
  view,
  page,
  server,
}) => {
  await view("speculation");
  const says = page.locator(".says");
  let over = false;
  const asking = (async () => {
    // Long enough to be seen in the middle of it.
    while (!over) await ask(server, REPEATED, { max_tokens: 256, ignore_eos: true });
  })();
  await expect(says).toHaveText(/^Copying text that repeats: \d+(\.\d)? tokens a forward, /);
  over = true;
  await asking;
  await expect(says).toHaveText(/^Copying text that repeats: /);
  await page.reload();
  await expect(says).toHaveText(/^Copying text that repeats: /);
  const suffix = page.locator(".who-drafts li", { hasText: "suffix" });
  await expect(suffix).toContainText(/\d+ of \d+ tokens accepted, \d+%/);
});

test("each round is read with the arrow keys, by pointing, and in a table", async ({
  view,
  page,
  server,
}) => {
  await view("speculation");
  await askForDrafts(server);
  await openInternals(page);
  const rounds = page.getByRole("slider", { name: /^Rounds/ });
  await rounds.focus();
  const last = await rounds.getAttribute("aria-valuetext");
  expect(last).toMatch(/^Round [\d,]+: /);
  await page.keyboard.press("ArrowLeft");
  await expect(rounds).not.toHaveAttribute("aria-valuetext", last!);
  await page.keyboard.press("Home");
  await expect(rounds).toHaveAttribute("aria-valuenow", "0");
  const first = await rounds.getAttribute("aria-valuetext");
  await expect(page.locator(".plot").first().locator(".read")).toHaveText(first!);

  const bar = rounds.locator("rect.accepted:visible").last();
  await bar.hover();
  await expect(rounds).toHaveAttribute("aria-valuetext", /^Round [\d,]+: .+ drafted \d+, \d+ accepted\./);

  const { default: state } =
    await server.get<Record<string, { decisions: { round: number }[] }>>("v1/speculation");
  const newest = state!.decisions.at(-1)!.round;
  const row = page.locator(".table.tall tbody tr").first();
  await expect(row.locator("td").first()).toHaveText(newest.toLocaleString("en-GB"));
});

test("what is open stays open after a reload", async ({ view, page, server }) => {
  await view("speculation");
  await askForDrafts(server);
  await openInternals(page);
  await page.reload();
  await expect(page.getByText("Where a round's time goes")).toBeVisible();
  await page.getByText("Round by round").click();
  await expect(page.getByText("Where a round's time goes")).toHaveCount(0);
  await page.reload();
  await expect(page.getByText("Round by round")).toBeVisible();
  await expect(page.getByText("Where a round's time goes")).toHaveCount(0);
});

test("requests that want no drafts are left out", async ({ browser }) => {
  const server = await Server.start({ words: ["--speculate", "suffix"] });
  try {
    await ask(server, "Hello.", { speculate: "off", max_tokens: 48 });
    const page = await browser.newPage();
    await page.goto(`${server.url}#/speculation`);
    await expect(page.locator(".why dl").first()).toContainText("Nothing was decoded");
    await ask(server, "Hello.", { max_tokens: 2 });
    await expect(page.locator(".why dl").first()).toContainText("the answer is about to end");
    await page.close();
  } finally {
    await server.stop();
  }
});

test("why it is not faster: the reason of the last rounds first, with what to do", async ({
  view,
  page,
  server,
}) => {
  await view("speculation");
  await ask(server, "Tell me a short story about a fox.", { max_tokens: 24 });
  const why = page.locator(".why");
  await expect(why.locator("dl").first()).toContainText(/of the last rounds/);
  await why.getByText(/other possible reasons/).click();
  const link = why.getByRole("link", { name: "Choose a draft model" }).first();
  await expect(link).toBeVisible();
  await expect(link).toHaveAttribute("href", "#/models/default");
});

test("with speculation off the sentence says so, and where to turn it on", async ({ browser }) => {
  const server = await Server.start({ words: ["--speculate", "off"] });
  try {
    const page = await browser.newPage();
    await page.goto(`${server.url}#/speculation`);
    await expect(page.locator(".says")).toHaveText("Off: speculation is turned off for this model");
    await expect(
      page.locator(".why dl").first().getByRole("link", { name: "Open the settings" }),
    ).toBeVisible();
    await page.close();
  } finally {
    await server.stop();
  }
});

for (const scheme of ["light", "dark"] as const) {
  test(`with rounds on screen it is accessible and fits a phone, ${scheme}`, async ({
    view,
    page,
    server,
  }) => {
    await page.emulateMedia({ colorScheme: scheme });
    await view("speculation");
    await askForDrafts(server);
    await openInternals(page);
    await expect(page.getByRole("slider").first()).toBeVisible();
    expect(await violations(page)).toEqual([]);
    await page.setViewportSize({ width: 390, height: 844 });
    await expect
      .poll(() => page.evaluate(() => document.documentElement.scrollWidth))
      .toBeLessThanOrEqual(390);
  });
}

const CALM = { idle_threads: 0, plain_ms: 8, draft_token_ms: {} };

/** What the server says of the model, with some fields changed. */
async function shown(page: Page, server: Server, changed: (state: Record<string, unknown>) => object) {
  const { default: state } = await server.get<Record<string, Record<string, unknown>>>("v1/speculation");
  const states = { default: { ...state, ...CALM, ...changed(state!) } };
  await page.route("**/console/events?*", (route) =>
    route.fulfill({
      contentType: "text/event-stream",
      body: `event: speculation\ndata: ${JSON.stringify(states)}\n\n`,
    }),
  );
  await page.goto(`${server.url}#/speculation`);
}

/** Rounds of a draft model of whose sixteen tokens `accepted` are right, in turn. */
function drafts(accepted: number[]): object[] {
  const request = { asked: ["draft-model"], candidates: [], drafter: "draft-model", drafted: 16, width: 1 };
  const rest = { expected_gain: null, reason: null, reason_code: null };
  return accepted.map((accepted, i) => ({
    round: i + 1,
    rows: 17,
    ms: { draft: 40, verify: 25, sample: 0.5, other: 0.2 },
    requests: [{ ...request, ...rest, accepted, committed: accepted + 1 }],
  }));
}

test("a draft model that is nearly always wrong is told in red, and only auto tries more rarely", async ({
  page,
  server,
}) => {
  const decisions = drafts([0, 0, 1, 0, 0, 0, 0, 0]);
  const recent = { rounds: 8, tokens: 9, ms: 525, depth: 40, estimated_speedup: null };
  await shown(page, server, () => ({ configured: "draft-model:model=tiny", decisions, recent }));
  const why = page.locator(".why");
  await expect(why.locator("dt.bad")).toHaveText(
    "99.2% of the draft tokens are rejected, and drafting takes 61% of the time",
  );
  await expect(why).toContainText('Remove the draft model, or leave it to "auto".');
  await expect(why.locator("dl").first()).not.toContainText("more and more rarely");
  await page.unrouteAll();
  await shown(page, server, () => ({ configured: "auto;draft-model:model=tiny", decisions, recent }));
  await page.reload();
  await expect(why.locator("dl").first()).toContainText("more and more rarely");
  await expect(why.locator("dl").first()).not.toContainText("Drafters are named without auto");
});

test("a draft model that auto does not use says why, and nobody is asked to choose one", async ({
  page,
  server,
}) => {
  const configured = "auto;draft-model:model=tiny";
  await shown(page, server, () => ({ configured, drafters: {}, draft_token_ms: { "draft-model": 12 } }));
  const row = page.locator(".who-drafts li", { hasText: "draft-model" });
  await expect(row).toContainText("a token of it takes 12 ms, one of the model 8 ms, so it cannot pay");
  await page
    .locator(".why")
    .getByText(/other possible reasons/)
    .click();
  await expect(page.getByRole("link", { name: "Choose a draft model" })).toHaveCount(0);
  await page.unrouteAll();
  await shown(page, server, () => ({ configured, drafters: {}, idle_threads: 2 }));
  await page.reload();
  await expect(row).toContainText("not measured yet");
  await expect(page.locator(".why")).toContainText("the model left 2 of its threads to other programs");
});
