import type { Server } from "./server";
import { expect, test } from "./server";

const PROMPTS = ["Count to ten.", "List three colours.", "Say hello.", "Write a short poem about rain."];

interface Chunk {
  choices: { delta: { content?: string }; finish_reason: string | null }[];
  usage?: { completion_tokens: number } | null;
}

/** A stream, read to its end. */
async function stream(
  server: Server,
  prompt: string,
): Promise<{ text: string; finish: string; tokens: number }> {
  const response = await fetch(`${server.url}v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      messages: [{ role: "user", content: prompt }],
      max_tokens: 24,
      temperature: 0,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  const lines = (await response.text()).split("\n").filter((line) => line.startsWith("data: "));
  expect(lines.pop()).toBe("data: [DONE]");
  const chunks = lines.map((line) => JSON.parse(line.slice(6)) as Chunk);
  return {
    text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
    finish: chunks.map((chunk) => chunk.choices[0]?.finish_reason ?? "").join(""),
    tokens: chunks.at(-1)?.usage?.completion_tokens ?? 0,
  };
}

const all = (server: Server) => Promise.all(PROMPTS.map((prompt) => stream(server, prompt)));

// What an open page costs is measured by benchmarks/page_cost.py, on a machine that does nothing else.
test("streams end rightly while the page is open, with the texts they have without it", async ({
  server,
  view,
  page,
}) => {
  test.setTimeout(180_000);
  const alone = await all(server);
  for (const answer of alone) expect(answer).toMatchObject({ finish: "length", tokens: 24 });
  await view("overview");
  const links = await page
    .locator("nav a")
    .evaluateAll((found) => found.map((link) => link.getAttribute("href")!));
  expect(links.length).toBeGreaterThan(5);
  for (const link of links) {
    await page.locator(`nav a[href="${link}"]`).click();
    expect(await all(server), link).toEqual(alone);
    await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  }
});
