import type { Page, Response } from "@playwright/test";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RequestRow, Requests } from "../src/api/schema";
import { violations } from "./accessible";
import { PYTHON } from "./files";
import { Server, expect, test } from "./server";

const rows = (page: Page) => page.locator(".requests tbody tr");
const running = (page: Page) => page.locator(".running-requests li");

/** An answer of the chat API, with the id of its request. */
async function ask(server: Server, body: object, key?: string): Promise<{ id: string; tokens: number }> {
  const response = await fetch(`${server.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) },
    body: JSON.stringify(body),
  });
  const { usage } = (await response.json()) as { usage?: { completion_tokens: number } };
  return { id: response.headers.get("x-request-id") ?? "", tokens: usage?.completion_tokens ?? 0 };
}

async function record(server: Server, key: string): Promise<void> {
  const response = await fetch(`${server.url}console/recording`, {
    method: "PUT",
    headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
    body: JSON.stringify({ on: true }),
  });
  expect(response.status).toBe(200);
}

function says(text: string, more: object = {}): object {
  return { messages: [{ role: "user", content: text }], max_tokens: 12, temperature: 0, ...more };
}

/** The text of a column, from the top. */
async function column(page: Page, name: string): Promise<string[]> {
  return page.locator(`.requests td.${name}`).allInnerTexts();
}

test("requests that have ended are listed, sorted, filtered, and opened", async ({ server, view, page }) => {
  const short = await ask(server, says("Say yes.", { max_tokens: 3, ignore_eos: true }));
  const long = await ask(server, says("Count to ten.", { max_tokens: 30, ignore_eos: true }));
  const refused = await ask(server, says("x", { temperature: -1 }));
  await view("requests");
  await expect(rows(page)).toHaveCount(3);
  expect((await column(page, "answer")).sort()).toEqual(["3", "30", "–"].sort());
  expect([short.tokens, long.tokens]).toEqual([3, 30]);

  const answer = page.getByRole("columnheader", { name: "Answer" });
  await answer.getByRole("button").click();
  await expect(answer).toHaveAttribute("aria-sort", "descending");
  expect(await column(page, "answer")).toEqual(["30", "3", "–"]);
  await answer.getByRole("button").click();
  await expect(answer).toHaveAttribute("aria-sort", "ascending");
  expect(await column(page, "answer")).toEqual(["3", "30", "–"]);

  await page.getByLabel("State").selectOption("failed");
  await expect(rows(page)).toHaveCount(1);
  await expect(rows(page)).toContainText("temperature");
  expect(page.url()).toContain("state=failed");
  await page.reload();
  await expect(rows(page)).toHaveCount(1);
  await page.getByRole("button", { name: "Reset filters" }).click();
  await expect(rows(page)).toHaveCount(3);
  await expect(answer).toHaveAttribute("aria-sort", "ascending");

  await page.getByLabel("Search").fill(refused.id);
  await expect(rows(page)).toHaveCount(1);
  await page.getByLabel("Search").fill(long.id);
  await expect(rows(page)).toHaveCount(1);
  await rows(page).getByRole("button").press("Enter");
  const details = page.getByRole("dialog");
  await expect(details).toContainText(long.id);
  await expect(details).toContainText("30");
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await details.getByRole("button", { name: "Copy ID" }).click();
  await expect(details.getByText("Copied")).toBeVisible();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(long.id);
  expect(await violations(page)).toEqual([]);
  await page.keyboard.press("Escape");
  await expect(details).toBeHidden();
});

test("why nothing was drafted is said in the reader's language", async ({ server, view, page }) => {
  const plain = await ask(server, says("Name a colour.", { speculate: "off" }));
  await view(`requests?text=${plain.id}`);
  await expect(rows(page)).toContainText("The request switches drafting off");
  await page.getByLabel("Language").selectOption("de");
  await expect(rows(page)).toContainText("Die Anfrage schaltet Entwürfe ab");
});

test("a running request counts, is stopped, and says so", async ({ server, view, page }) => {
  await view("requests");
  const answer = fetch(`${server.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(says("Tell a long story.", { max_tokens: 6000, ignore_eos: true, stream: true })),
  }).then(async (response) => ({ id: response.headers.get("x-request-id")!, text: await response.text() }));
  const entry = running(page);
  await expect(entry).toContainText("Running");
  const tokens = async () =>
    parseInt((await entry.locator(".so-far").innerText()).replace(/\D/g, " ").trim(), 10);
  const before = await tokens();
  await expect.poll(tokens).toBeGreaterThan(before);
  await entry.getByRole("button", { name: "Stop" }).click();
  const { id, text } = await answer;
  expect(text).toContain('"stop_reason":"stopped"');
  expect(text).toContain("data: [DONE]");
  await expect(entry).toHaveCount(0);
  await page.getByLabel("State").selectOption("stopped");
  await expect(rows(page)).toHaveCount(1);
  await expect(rows(page)).toContainText("Stopped");
  await rows(page).click();
  await expect(page.getByRole("dialog")).toContainText(id);
});

test("texts are recorded only while the switch is on, and shown as texts", async ({ server, view, page }) => {
  const markup = "<img src=x onerror=\"document.title='broken'\">";
  await view("requests");
  await page.getByRole("button", { name: "Record texts" }).click();
  await expect(page.getByRole("dialog")).toContainText("admin key");
  expect(await violations(page)).toEqual([]);
  await page.getByRole("button", { name: "Start recording" }).click();
  await expect(page.getByText("are being recorded")).toBeVisible();
  await expect(page.getByText("Texts are being recorded")).toBeVisible();
  expect(await violations(page)).toEqual([]);

  const { id } = await ask(server, says(`Repeat: ${markup}`));
  await page.getByLabel("Search").fill(id);
  await rows(page).click();
  await expect(page.getByLabel("Prompt, as the model got it")).toContainText(markup);
  const { texts } = await server.get<RequestRow>(`console/requests/${id}`);
  await expect(page.getByLabel("Answer", { exact: true })).toHaveText(texts!.answer);
  expect(await page.title()).not.toContain("broken");
  await page.keyboard.press("Escape");

  await page.getByRole("button", { name: "Stop and delete texts" }).click();
  await expect(page.getByRole("button", { name: "Record texts" })).toBeVisible();
  await rows(page).click();
  await expect(page.getByRole("dialog")).toBeVisible();
  await expect(page.getByLabel("Prompt, as the model got it")).toHaveCount(0);
  expect((await server.get<RequestRow>(`console/requests/${id}`)).texts).toBeNull();
});

test("a key sees its own requests only, and cannot record", async ({ page }) => {
  const folder = mkdtempSync(join(tmpdir(), "foredraft-keys-"));
  const made = (...words: string[]) => {
    const command = ["-m", "foredraft", "keys", ...words];
    const { stdout } = spawnSync(PYTHON, command, {
      cwd: folder,
      encoding: "utf8",
    });
    return stdout.trim();
  };
  const [alice, bob, admin] = [made("new", "alice"), made("new", "bob"), made("admin")];
  const server = await Server.start({ words: ["--config", "foredraft.toml"], folder });
  try {
    const hers = await ask(server, says("Hello."), alice);
    const his = await ask(server, says("Hello."), bob);
    const enter = async (key: string) => {
      await page.goto(`${server.url}#/requests`);
      await page.evaluate((key) => sessionStorage.setItem("foredraft-key", key), key);
      await page.reload();
    };
    await enter(alice!);
    await expect(rows(page)).toHaveCount(1);
    await rows(page).click();
    await expect(page.getByRole("dialog")).toContainText(hers.id);
    await page.keyboard.press("Escape");
    await expect(page.getByRole("button", { name: "Record texts" })).toHaveCount(0);
    await record(server, admin!);
    await expect(page.getByText("yours included")).toBeVisible();
    await expect(page.getByRole("button", { name: "Stop and delete texts" })).toHaveCount(0);
    await page.goto(`${server.url}#/benchmark`);
    await expect(page.getByText("Changes need the admin key.").last()).toBeVisible();
    await expect(page.getByRole("button", { name: "Start", exact: true })).toHaveCount(0);
    await enter(admin!);
    await expect(rows(page)).toHaveCount(2);
    await page.getByLabel("Key", { exact: true }).selectOption("bob");
    await expect(rows(page)).toHaveCount(1);
    await rows(page).click();
    await expect(page.getByRole("dialog")).toContainText(his.id);
  } finally {
    await server.stop();
    rmSync(folder, { recursive: true });
  }
});

test("a second tab sees what the first one switches and stops", async ({ server, view, page, context }) => {
  await view("requests");
  const other = await context.newPage();
  await other.goto(`${server.url}#/requests`);
  await page.getByRole("button", { name: "Record texts" }).click();
  await page.getByRole("button", { name: "Start recording" }).click();
  await expect(other.getByText("are being recorded in memory")).toBeVisible();
  await expect(other.getByText("Texts are being recorded")).toBeVisible();
  await other.getByRole("button", { name: "Stop and delete texts" }).click();
  await expect(page.getByRole("button", { name: "Record texts" })).toBeVisible();
  await expect(page.getByText("Texts are being recorded")).toBeHidden();
  await other.close();
});

test("after a restart of the server the open page has the new one's requests", async ({ page }) => {
  const first = await Server.start();
  const { port } = new URL(first.url);
  const before = await ask(first, says("Hello."));
  await page.goto(`${first.url}#/requests`);
  await expect(rows(page)).toHaveCount(1);
  await first.stop();
  await expect(page.getByText("No connection")).toBeVisible();
  const second = await Server.start({ port: Number(port) });
  try {
    await expect(page.getByText("No requests since")).toBeVisible();
    const after = await ask(second, says("Hello again."));
    await expect(rows(page)).toHaveCount(1);
    await rows(page).click();
    await expect(page.getByRole("dialog")).toContainText(after.id);
    await expect(page.getByRole("dialog")).not.toContainText(before.id);
  } finally {
    await second.stop();
  }
});

/** A row that a server might send. */
function invented(number: number, change: Partial<RequestRow> = {}): RequestRow {
  return {
    id: `req_${number}`,
    at: 1_790_000_000 - number,
    key: "local",
    model: `model-${number % 3}`,
    api: "chat",
    state: "done",
    status: 200,
    duration_ms: 900,
    answers: 1,
    prompt_tokens: number,
    cached_tokens: 0,
    completion_tokens: 40,
    first_token_ms: 30,
    tokens_per_s: 60,
    acceptance: null,
    speedup: 1,
    drafters: {},
    finish: "stop",
    not_drafting: "in words of the server",
    not_drafting_code: number % 2 ? "back_off" : null,
    error: null,
    code: null,
    texts: null,
    ...change,
  };
}

test("hundreds of rows are not drawn anew when one is added", async ({ server, page }) => {
  const many = Array.from({ length: 500 }, (_, number) => invented(number + 1));
  const runs = [invented(0, { id: "runs", state: "running", finish: null, status: null })];
  const all = { running: [], finished: [invented(0), ...many], recording: false, ended: 501, whole: true };
  const news = { ...all, finished: [invented(-1)], ended: 502, whole: false };
  const connections: Requests[][] = [[{ ...all, running: runs, finished: many }], [all, news], []];
  await page.route("**/console/events**", (route) => {
    const events = connections.shift() ?? [];
    return route.fulfill({
      headers: { "content-type": "text/event-stream" },
      body: events.map((event) => `event: requests\ndata: ${JSON.stringify(event)}\n\n`).join(""),
    });
  });
  await page.goto(`${server.url}#/requests`);
  await expect(rows(page)).toHaveCount(500);
  await rows(page)
    .first()
    .evaluate((row) => {
      row.id = "seen";
      const counter = window as unknown as { changes: number };
      counter.changes = 0;
      new MutationObserver((found) => (counter.changes += found.length)).observe(row.parentElement!, {
        childList: true,
        subtree: true,
        characterData: true,
        attributes: true,
      });
    });
  await expect(page.locator(".requests tbody tr:nth-child(3)")).toHaveId("seen");
  const changes = await page.evaluate(() => (window as unknown as { changes: number }).changes);
  expect(changes).toBeLessThan(10);
});

test("on a phone the rows are cards, with what the table has", async ({ server, view, page }) => {
  await ask(server, says("Good morning."));
  await page.setViewportSize({ width: 390, height: 844 });
  await view("requests");
  await expect(rows(page).first()).toBeVisible();
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  await expect(page.locator(".requests thead")).toBeHidden();
  await page.getByLabel("Sort by").selectOption("Speedup");
  expect(page.url()).toContain("speedup");
  expect(await violations(page)).toEqual([]);
  const answered: Promise<Response> = page.waitForResponse(/console\/events/);
  await page.reload();
  await answered;
  await expect(page.getByLabel("Sort by")).toHaveValue("speedup");
});
