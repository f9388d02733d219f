/** The chat with answers that are written here: hostile ones, long ones, broken ones. */

import { violations } from "./accessible";
import { answer, field, reload, say } from "./chatting";
import { expect, test } from "./server";
import { answersWith, events } from "./streamed";
import type { Piece } from "./streamed";

const inPieces = (text: string): Piece[] =>
  (text.match(/[\s\S]{1,7}/g) ?? []).map((content) => ({ content }));

const HOSTILE = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>

<div onclick="window.hacked=1">block</div>

[x](javascript:window.hacked=1) [y](data:text/html,<script>window.hacked=1</script>) [z](/docs "t")
[ok](https://example.org/a?b=1 "title") <https://example.org/auto> https://example.org/bare
![picture](https://example.org/p.png) ![p](javascript:window.hacked=1)

[ref]: javascript:window.hacked=1
[ref] &lt;b&gt; &#60;i&#62;

| <b>a</b> | [t](vbscript:x) |
|---|---|
| <svg onload=window.hacked=1> | \`<code>\` |

\`\`\`html"><img src=x onerror=window.hacked=1>
<script>window.hacked=1</script>
\`\`\`
`;

test("nothing in an answer becomes markup or runs", async ({ view, page }) => {
  await answersWith(page, [events(inPieces(HOSTILE))]);
  const outside: string[] = [];
  page.on("request", (request) => {
    if (request.url().includes("example.org")) outside.push(request.url());
  });
  await view("chat");
  await say(page, HOSTILE);
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  for (const link of await page.locator(".thread a").all()) {
    if ((await link.getAttribute("href"))?.startsWith("#/")) continue;
    await expect(link).toHaveAttribute("href", /^https:\/\/example\.org\//);
    await expect(link).toHaveAttribute("rel", "noopener noreferrer");
    await expect(link).toHaveAttribute("target", "_blank");
  }
  expect(await page.locator(".markdown a").count()).toBe(4);
  expect(await page.locator(".thread :is(img, script, iframe, [onclick], [onerror], b, i)").count()).toBe(0);
  await expect(answer(page)).toContainText("<img src=x onerror=");
  await expect(answer(page)).toContainText("[x](javascript:window.hacked=1)");
  await expect(answer(page)).toContainText("<b> <i>");
  await page.locator(".markdown td").first().click();
  await reload(page);
  await expect(answer(page)).toContainText("<div onclick=");
  expect(await page.evaluate(() => "hacked" in window)).toBe(false);
  expect(outside).toEqual([]);
});

const BOMBS: Record<string, string> = {
  quotes: ">".repeat(20_000) + "a",
  lists: Array.from({ length: 400 }, (_, depth) => `${"  ".repeat(depth)}- a`).join("\n"),
  brackets: "[".repeat(20_000),
  links: "[a](".repeat(5_000),
  emphasis: "**a *b ".repeat(5_000),
  "quoted lists": "> - ".repeat(3_000) + "a",
  table: `${"|a".repeat(500)}\n${"|-".repeat(500)}\n${`${"|b".repeat(500)}\n`.repeat(20)}`,
};

for (const [name, bomb] of Object.entries(BOMBS)) {
  test(`a bomb of ${name} is shown, and the page goes on`, async ({ view, page }) => {
    await answersWith(page, [events([{ content: bomb }, { content: "\n\nafter it" }])]);
    await view("chat");
    await say(page);
    await expect(answer(page).locator(".figures-line")).toBeVisible();
    await expect(answer(page)).toContainText("after it");
    await field(page).fill("still there");
    await expect(field(page)).toHaveValue("still there");
  });
}

test("Markdown is shown as it is meant", async ({ view, page }) => {
  const text =
    "# Title\n\n1. one\n2. **two**\n   - inner\n\n- [x] done\n\n| a | b |\n|:--|--:|\n| 1 | $x^2$ |\n\n" +
    "```python\nprint(1)\n```\n\n> quote with `code`\n\n[later]\n\n[later]: https://example.org/later\n";
  await answersWith(page, [events(inPieces(text))], 2);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  await expect(answer(page).getByRole("heading", { level: 2, name: "Title" })).toBeVisible();
  await expect(page.getByRole("heading", { level: 1 })).toHaveCount(1);
  await expect(answer(page).locator("ol > li")).toHaveCount(2);
  await expect(answer(page).locator("ol ul li")).toHaveText("inner");
  await expect(answer(page).getByRole("checkbox")).toBeChecked();
  await expect(answer(page).locator("td.right")).toHaveText("$x^2$");
  await expect(answer(page).locator("figcaption")).toContainText("python");
  await expect(answer(page).locator("blockquote code")).toHaveText("code");
  await expect(answer(page).getByRole("link", { name: "later" })).toHaveAttribute(
    "href",
    "https://example.org/later",
  );
  await answer(page).locator("figure").getByRole("button", { name: "Copy" }).click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe("print(1)");
  expect(await violations(page)).toEqual([]);
});

test("each character has the colour of the drafter that proposed it", async ({ view, page }) => {
  const pieces: Piece[] = [
    {
      content: "a😀b",
      origins: [
        ["target", 1],
        ["suffix", 2],
      ],
    },
    {
      content: "cd<i>",
      origins: [
        ["suffix", 1],
        ["ngram-cache", 1],
        ["target", 3],
      ],
    },
  ];
  await answersWith(page, [events(pieces)]);
  await view("chat");
  await page.getByRole("switch", { name: "Show drafts" }).click();
  await say(page);
  const marks = answer(page).locator(".plain mark");
  await expect(marks).toHaveText(["😀bc", "d"]);
  await expect(marks.nth(0)).toHaveAttribute("title", "repeats of earlier text");
  await expect(marks.nth(1)).toHaveAttribute("title", "n-grams");
  await expect(answer(page).locator(".plain").first()).toHaveText("a😀bcd<i>");
  const styles = await marks.evaluateAll((all) =>
    all.map((one) => getComputedStyle(one).textDecorationStyle),
  );
  expect(new Set(styles).size).toBe(2);
  await expect(answer(page).locator(".legend")).toContainText("repeats of earlier text 8 tokens");
  await expect(answer(page).locator(".figures-line")).toContainText("1.9× as fast as plain");
  await expect(answer(page).locator(".figures-line")).toContainText("40% from drafts");
  await expect(answer(page).locator(".figures-line")).toContainText("80% of drafts accepted");
  expect(await violations(page)).toEqual([]);
});

test("reasoning is folded away, with how long it took", async ({ view, page }) => {
  const own: Piece[] = [{ reasoning_content: "let me " }, { reasoning_content: "see" }, { content: "Four." }];
  const tagged = inPieces("<think>\nI think\n</think>\n\nFive.");
  await answersWith(page, [events(own), events(tagged)], 30);
  await view("chat");
  for (const [thought, said] of [
    ["let me see", "Four."],
    ["I think", "Five."],
  ] as const) {
    await say(page);
    const shown = answer(page);
    await expect(shown.locator(".figures-line")).toBeVisible();
    await expect(shown.locator(".markdown")).toHaveText(said);
    await expect(shown.locator("summary")).toContainText(/Thought for [\d.]+ (ms|sec)/);
    await expect(shown.getByText(thought)).toBeHidden();
    await shown.locator("summary").click();
    await expect(shown.getByText(thought)).toBeVisible();
  }
});

test("a finished answer is read to screen readers, one that is written is not", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("one two three four five six"))], 100);
  await view("chat");
  await say(page);
  const live = page.locator('[aria-live="polite"].visually-hidden');
  await expect(answer(page).locator(".markdown")).toContainText("one");
  await expect(live).toBeEmpty();
  await expect(live).toHaveText("one two three four five six");
});

test("Enter sends, but not while an input method composes; Shift+Enter is a new line", async ({
  view,
  page,
}) => {
  await answersWith(page, [events(inPieces("yes"))]);
  await view("chat");
  await field(page).fill("日本");
  const enter = (options: object) =>
    field(page).evaluate((box, options) => {
      box.dispatchEvent(
        new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...options }),
      );
    }, options);
  await enter({ isComposing: true });
  await enter({ keyCode: 229 }); // Safari, after the composition has ended
  await field(page).press("Shift+Enter");
  await expect(field(page)).toHaveValue("日本\n");
  await expect(page.locator(".asked")).toHaveCount(0);
  await field(page).press("Enter");
  await expect(page.locator(".asked .plain")).toHaveText("日本");
  await expect(field(page)).toBeFocused();
});

test("the order of focus is the order on screen", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("yes"))]);
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  await field(page).fill("next");
  const names: string[] = [];
  for (let count = 0; count < 4; count++) {
    names.push(
      await page.evaluate(
        () => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent ?? "",
      ),
    );
    await page.keyboard.press("Tab");
  }
  expect(names).toEqual(["Message", "Attach text files or pictures", "Race", "Send"]);
});

const ERRORS = [
  [404, "model_not_found", "There is no model x.", "Choose another model above."],
  [
    400,
    "context_length_exceeded",
    "The prompt is too long.",
    "Start a new chat, or edit an earlier message.",
  ],
  [503, "out_of_capacity", "No room.", "No room."],
] as const;

for (const [status, code, message, said] of ERRORS) {
  test(`the error ${code} says what to do, and the words are kept`, async ({ view, page }) => {
    await page.route("**/v1/chat/completions", (route) =>
      route.fulfill({ status, json: { error: { message, code, param: null } } }),
    );
    await view("chat");
    await say(page, "precious words");
    await expect(answer(page)).toContainText(message);
    await expect(answer(page)).toContainText(said);
    await expect(answer(page).getByRole("button", { name: "Answer again" })).toBeVisible();
    await expect(page.locator(".asked")).toContainText("precious words");
  });
}

test("a key that is refused is asked for, and nothing is lost", async ({ view, page }) => {
  await view("chat");
  await page.route("**/v1/chat/completions", (route) =>
    route.fulfill({ status: 401, json: { error: { message: "Invalid key.", code: "invalid_api_key" } } }),
  );
  await say(page, "precious words");
  await expect(page.getByLabel("API key", { exact: true })).toBeVisible();
  await page.unroute("**/v1/chat/completions");
  await page.getByLabel("API key", { exact: true }).fill("any");
  await page.getByRole("button", { name: "Continue" }).click();
  await expect(page.locator(".asked")).toContainText("precious words");
  await expect(answer(page)).toContainText("Enter a valid key, then answer again.");
});

test("an answer that breaks off is kept, with what the server said", async ({ view, page }) => {
  const begun = events(inPieces("what came before the end")).slice(0, 4);
  const failed = [
    ...begun,
    JSON.stringify({ error: { message: "The model was unloaded.", code: "out_of_capacity" } }),
  ];
  const stopped = events(
    inPieces("some text"),
    { notice: "The administrator stopped this answer.", notice_code: "stopped_by_admin" },
    "length",
  );
  await answersWith(page, [begun, failed, stopped]);
  await view("chat");
  await say(page);
  await expect(answer(page)).toContainText("The connection was lost");
  await expect(answer(page).locator(".markdown")).toContainText("what came before");
  await say(page);
  await expect(page.locator(".answer")).toHaveCount(2);
  await expect(answer(page)).toContainText("The model was unloaded.");
  await expect(answer(page).getByRole("button", { name: "Continue" })).toBeVisible();
  await say(page);
  await expect(page.locator(".answer")).toHaveCount(3);
  await expect(answer(page)).toContainText("The administrator stopped this answer.");
  await reload(page);
  await expect(page.locator(".answer .markdown").first()).toContainText("what came before");
  await page.getByRole("combobox", { name: "Language" }).selectOption("de");
  await expect(answer(page)).toContainText("Der Administrator hat diese Antwort gestoppt.");
});

test("an answer that only repeats itself is ended, and says so", async ({ view, page }) => {
  const chunks = events(inPieces("again and again"), {}, "length").map((data) =>
    data.replace('"finish_reason":"length"', '"finish_reason":"length","stop_reason":"repetition"'),
  );
  await answersWith(page, [chunks]);
  await view("chat");
  await say(page);
  await expect(answer(page)).toContainText("Ended, as it only repeated itself.");
  await expect(answer(page)).not.toContainText("Cut off");
});

test("a page that is closed in the middle of an answer has kept what came", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("word ".repeat(200)))], 100);
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".markdown")).toContainText("word ".repeat(20).trim());
  await page.waitForTimeout(1500); // answers are saved every second
  await page.reload();
  await expect(answer(page).locator(".markdown")).toContainText("word ".repeat(20).trim());
  await expect(answer(page)).toContainText("The connection was lost");
  await expect(answer(page).getByRole("button", { name: "Continue" })).toBeVisible();
});

test("what is typed and attached stays with its conversation", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("yes"))]);
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  const file = { name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("words") };
  await page.locator('.composer input[type="file"]').setInputFiles(file);
  await expect(page.locator(".composer .chip")).toHaveCount(1);
  await field(page).fill("not sent yet");
  await page.getByRole("button", { name: "New chat" }).click();
  await expect(page.locator(".composer .chip")).toHaveCount(0);
  await expect(field(page)).toHaveValue("");
  await page.goBack();
  await expect(field(page)).toHaveValue("not sent yet");
  await expect(page.locator(".composer .chip")).toHaveCount(1);
});

test("a file that is read slowly comes to the conversation it was dropped in", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("yes"))]);
  await page.addInitScript(() => {
    const read = File.prototype.arrayBuffer;
    File.prototype.arrayBuffer = async function () {
      await new Promise((go) => setTimeout(go, 300));
      return read.call(this);
    };
  });
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".figures-line")).toBeVisible();
  const drop = (count: number) =>
    field(page).evaluate((box, count) => {
      const data = new DataTransfer();
      for (let place = 0; place < count; place++) data.items.add(new File(["text"], `${place}.md`));
      box.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
    }, count);
  await drop(5);
  await drop(5);
  await page.getByRole("button", { name: "New chat" }).click();
  await expect(page.locator(".composer .chip")).toHaveCount(0);
  await page.goBack();
  await expect(page.getByRole("alert")).toContainText("at most 8 files");
  await expect(page.locator(".composer .chip")).toHaveCount(8);
});

test("Escape in another field does not stop the answer; elsewhere it does", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("word ".repeat(400)))], 50);
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".markdown")).toContainText("word");
  await page.getByRole("searchbox").press("Escape");
  await expect(answer(page)).toHaveAttribute("aria-busy", "true");
  const before = await answer(page).innerText();
  await expect.poll(() => answer(page).innerText()).not.toBe(before);
  await page.getByRole("heading", { level: 1 }).click();
  await page.keyboard.press("Escape");
  await expect(answer(page)).toContainText("Stopped.");
});

test("an answer is shown while it is written, also where frames are rarer than savings", async ({
  view,
  page,
}) => {
  await answersWith(page, [events(inPieces("word ".repeat(400)))], 50);
  await page.addInitScript(() => {
    window.requestAnimationFrame = (work) => setTimeout(() => work(performance.now()), 1500) as never;
    window.cancelAnimationFrame = (due) => clearTimeout(due);
  });
  await view("chat");
  await say(page);
  await expect(answer(page)).toContainText("word");
  await expect(answer(page)).toHaveAttribute("aria-busy", "true");
});

test("the stop button gives its focus back", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("word ".repeat(200)))], 50);
  await view("chat");
  await say(page);
  await expect(answer(page).locator(".markdown")).toContainText("word");
  await page.getByRole("button", { name: "Stop" }).focus();
  await page.keyboard.press("Enter");
  await expect(answer(page)).toContainText("Stopped.");
  await expect(field(page)).toBeFocused();
});

test("a browser without room says so, and the chat goes on", async ({ view, page }) => {
  await answersWith(page, [events(inPieces("still answered"))]);
  await page.addInitScript(() => {
    // As browsers tell it: the transaction is aborted, with this error.
    const full = new DOMException("full", "QuotaExceededError");
    Object.defineProperty(IDBTransaction.prototype, "error", { get: () => full });
    const put = IDBObjectStore.prototype.put;
    IDBObjectStore.prototype.put = function (value, key) {
      const asked = put.call(this, value, key);
      this.transaction.abort();
      return asked;
    };
  });
  await view("chat");
  await say(page);
  await expect(page.getByText("The browser has no room left")).toBeVisible();
  await expect(answer(page).locator(".markdown")).toHaveText("still answered");
  await say(page, "and again");
  await expect(page.locator(".answer .markdown")).toHaveText(["still answered", "still answered"]);
});

test("a race whose texts differ says where, and why that can be", async ({ view, page }) => {
  const speculation = {
    active: true,
    reason: null,
    acceptance_length: 2,
    estimated_speedup: 1.2,
    exact: false,
    exact_reason: "logits differ by batch",
    drafters: { suffix: { drafts: 1, drafted: 2, accepted: 1, ms: 1 } },
  };
  await page.route("**/v1/chat/completions", async (route) => {
    const body = route.request().postDataJSON() as { stream?: boolean };
    if (body.stream) await route.fallback();
    else await route.fulfill({ json: {} });
  });
  await answersWith(page, [
    events([]),
    events(inPieces("the same until here"), { speculation, timings: { predicted_ms: 100 } }),
    events(inPieces("the same until there"), { speculation, timings: { predicted_ms: 200 } }),
  ]);
  await page.addInitScript(() => {
    const json = Response.prototype.json;
    Response.prototype.json = async function () {
      return this.headers.get("content-type") === "text/event-stream" ? {} : json.call(this);
    };
  });
  await view("chat");
  await field(page).fill("go");
  await page.getByRole("button", { name: "Race", exact: true }).click();
  await expect(page.getByText("Done.")).toBeVisible();
  await expect(page.getByText("The texts differ from character 16 on. logits differ by batch")).toBeVisible();
  await expect(page.locator(".race-verdict")).toContainText("2×");
  await expect(page.locator(".race-verdict.good")).toHaveCount(0);
  await expect(page.getByText("1 drafted token cannot save this much")).toBeVisible();
});

test("4,000 tokens: frames stay short, memory flat, and the reader stays where he scrolled", async ({
  view,
  page,
}) => {
  test.setTimeout(180_000);
  const block =
    "## Part\n\nSome **words** in a paragraph with `code` and [a link](https://example.org).\n\n- one\n- two\n\n```js\nlet x = 1;\n```\n\n";
  const tokens = (block.repeat(120).match(/[\s\S]{1,4}/g) ?? []).slice(0, 4000);
  await answersWith(
    page,
    [events(tokens.map((content) => ({ content, origins: [["suffix", content.length]] })))],
    4,
  );
  await view("chat");
  const heap = async () => {
    const session = await page.context().newCDPSession(page);
    await session.send("HeapProfiler.collectGarbage");
    return (await session.send("Runtime.getHeapUsage")).usedSize;
  };
  const before = await heap();
  await page.evaluate(() => {
    const long: number[] = [];
    let last = performance.now();
    const frame = (now: number) => {
      long.push(now - last);
      last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    Object.assign(window, { frames: long });
  });
  await say(page);
  await expect(answer(page).locator("h3").nth(30)).toBeVisible({ timeout: 60_000 });
  const thread = page.getByRole("region", { name: "Messages" });
  const gap = () => thread.evaluate((box) => box.scrollHeight - box.clientHeight - box.scrollTop);
  await expect.poll(gap).toBeLessThan(200);
  await thread.hover();
  await page.mouse.wheel(0, -1500);
  await expect(page.getByRole("button", { name: "To the end" })).toBeVisible();
  const top = await thread.evaluate((box) => box.scrollTop);
  await expect(answer(page).locator(".figures-line")).toBeAttached({ timeout: 120_000 });
  expect(await thread.evaluate((box) => box.scrollTop)).toBe(top);
  await page.getByRole("button", { name: "To the end" }).click();
  await expect.poll(gap).toBeLessThan(5);
  const frames = ((await page.evaluate("frames")) as number[]).toSorted((one, other) => one - other);
  expect(frames[Math.floor(frames.length / 2)]).toBeLessThan(100); // ms: also on a busy machine
  const grown = ((await heap()) - before) / 1e6;
  expect(grown).toBeLessThan(60);
  await page.getByRole("switch", { name: "Show drafts" }).click();
  await expect(answer(page).locator("mark").first()).toBeVisible();
});
