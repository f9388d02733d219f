import type { Locator, Page } from "@playwright/test";
import { readFileSync, writeFileSync } from "node:fs";
import { violations } from "./accessible";
import { settingsFile, settingsText } from "./files";
import { expect, testOf } from "./server";
import type { Server } from "./server";

const FILE = `# written by hand
default_model = "tiny"

[models.tiny]  # the one that answers
path = "tiny.gguf"
# two are enough
sequences = 2
`;

const test = testOf(FILE).extend<{ form: Page }>({
  form: async ({ page, own }, use) => {
    await open(page, own);
    await use(page);
  },
});

async function open(page: Page, server: Server): Promise<void> {
  await page.goto(`${server.url}#/models/tiny`);
  await expect(field(page, "sequences").getByRole("textbox")).toHaveValue("2");
}

function field(page: Page, name: string): Locator {
  return page.locator(`[data-field="${name}"]`);
}

async function type(page: Page, name: string, text: string): Promise<void> {
  await field(page, name).locator("input, textarea").fill(text);
}

async function save(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Save", exact: true }).click();
}

test("what is saved is only what changed, beside the comments; reset is one click", async ({ form, own }) => {
  await expect(field(form, "sequences").getByText("Changed")).toBeVisible();
  await expect(field(form, "threads").getByText("Changed")).toHaveCount(0);
  await type(form, "threads", "1");
  await type(form, "sampling.top_p", "0,9");
  await field(form, "dtype").locator("select").selectOption("fp32");
  await type(form, "aliases", "gpt-4o-mini\nsmall");
  await expect(field(form, "threads").getByText("Unsaved")).toBeVisible();
  await expect(form.getByText("4 unsaved changes")).toBeVisible();
  const sent = form.waitForRequest((request) => request.method() === "PUT");
  await save(form);
  expect(((await sent).postDataJSON() as { values: unknown }).values).toEqual({
    threads: 1,
    dtype: "fp32",
    aliases: ["gpt-4o-mini", "small"],
    sampling: { top_p: 0.9 },
  });
  await expect(
    form.getByRole("status").filter({ hasText: "loaded again with these settings as soon as" }),
  ).toBeVisible();
  const written = settingsText(own);
  expect(written).toContain("# written by hand");
  expect(written).toContain("[models.tiny]  # the one that answers");
  expect(written).toContain("# two are enough\nsequences = 2");
  expect(written).toContain("threads = 1");
  expect(written).toContain("top_p = 0.9");

  await form.getByRole("button", { name: "Reset Requests at once to its default" }).click();
  await expect(field(form, "sequences").getByRole("textbox")).toHaveValue("4");
  await save(form);
  await expect(form.getByText("1 unsaved change")).toHaveCount(0);
  expect(settingsText(own)).not.toContain("sequences");
});

test("machines that compute layers are saved, one on a line, with a warning beside them", async ({
  form,
  own,
}) => {
  await expect(field(form, "rpc")).toContainText("no password and no encryption");
  await type(form, "rpc", "10.0.0.2:50052\n\n far.example ");
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  expect(settingsText(own)).toContain('rpc = ["10.0.0.2:50052", "far.example"]');
  await form.reload();
  await expect(field(form, "rpc").locator("textarea")).toHaveValue("10.0.0.2:50052\nfar.example");
  await field(form, "rpc").scrollIntoViewIfNeeded();
  await form.screenshot({ path: test.info().outputPath("rpc.png") });
  await form.getByRole("button", { name: "Reset Other machines to its default" }).click();
  await save(form);
  await expect(field(form, "rpc").getByText("Changed")).toHaveCount(0);
  expect(settingsText(own)).not.toContain("rpc");
});

test("what counts at once is not loaded again", async ({ form }) => {
  await type(form, "sampling.max_tokens", "50");
  await save(form);
  await expect(form.getByText("It counts from the next request on.")).toBeVisible();
});

const BAD: [name: string, text: string, said: RegExp][] = [
  ["context_length", "-4", /whole number/],
  ["sequences", "0", /whole number/],
  ["kv_type", "q1", /KV cache type/],
  ["threads", "many", /from 0 to 512/],
  ["batch", "1.5", /whole number/],
  ["ubatch", "0", /whole number/],
  ["gpu_layers", "-9", /whole number/],
  ["rpc", "10.0.0.2:99999", /^10.0.0.2:99999 is no host: write host:port/],
  ["rpc", "far.example\n10.0.0.2:0", /^10.0.0.2:0 is no host/],
  ["rpc", "two words", /^two words is no host/],
  ["rpc", "near\nnear:50052", /^near:50052 is there twice/],
  ["sampling.temperature", "-1", /a number, at least 0/],
  ["sampling.top_k", "-3", /a whole number, at least 0/],
  ["sampling.top_p", "7", /from 0 to 1/],
  ["sampling.min_p", "2", /from 0 to 1/],
  ["sampling.repetition_penalty", "0", /from 0.01 to 100/],
  ["sampling.presence_penalty", "x", /from -2 to 2/],
  ["sampling.frequency_penalty", "1e999", /from -2 to 2/],
  ["sampling.max_tokens", "0", /at least 1/],
  ["aliases", "two words", /no spaces/],
  ["path", "nowhere.gguf", /nowhere/],
  ["path", "", /must not be empty/],
];

test("a bad value is refused at its field, which gets the focus; nothing is saved", async ({ form, own }) => {
  for (const [name, text, said] of BAD) {
    await type(form, name, text);
    await save(form);
    await expect(field(form, name).getByRole("alert"), `${name} = ${text}`).toHaveText(said);
    await expect(field(form, name).locator("input, textarea")).toBeFocused();
    await expect(field(form, name).locator("input, textarea")).toHaveAttribute("aria-invalid", "true");
    const [box, bar] = [await field(form, name).boundingBox(), await form.locator(".save-bar").boundingBox()];
    expect(box && bar && box.y + box.height <= bar.y, "the field is above the bar").toBe(true);
    expect(settingsText(own)).toBe(FILE);
    await form.getByRole("button", { name: "Discard", exact: true }).click();
    await expect(field(form, name).getByRole("alert")).toHaveCount(0);
  }
});

test("all fields that are wrong are marked at once, the first has the focus", async ({ form, own }) => {
  for (const [name, text] of [
    ["sampling.top_p", "5"],
    ["threads", "-1"],
    ["aliases", "two words"],
    ["sequences", "3"],
  ] as const)
    await type(form, name, text);
  await save(form);
  for (const name of ["threads", "sampling.top_p", "aliases"])
    await expect(field(form, name).getByRole("alert"), name).toBeVisible();
  await expect(form.getByRole("alert")).toHaveCount(3);
  await expect(field(form, "threads").locator("input")).toBeFocused();
  expect(settingsText(own)).toBe(FILE);
});

test("a bad longest draft is refused before it is sent, a bad own text by the server", async ({
  form,
  own,
}) => {
  for (const bad of ["0", "64", "eight"]) {
    await type(form, "cap", bad);
    await expect(field(form, "cap").getByRole("alert")).toHaveText(/from 1 to 63/);
  }
  await type(form, "threads", "1");
  await save(form);
  await expect(field(form, "cap").locator("input")).toBeFocused();
  expect(settingsText(own)).toBe(FILE);
  await type(form, "cap", "");
  await form.getByRole("button", { name: "Discard", exact: true }).click();
  await type(form, "cap", "64");
  await form.getByRole("link", { name: "Overview" }).click();
  await form.goBack(); // the settings are read again
  await expect(field(form, "cap").getByRole("alert")).toHaveText(/from 1 to 63/);
  await type(form, "cap", "");
  await form.getByRole("radio", { name: "Custom" }).check();
  for (const bad of ["sufix", "suffix:max", "suffix:max=99", "ngram-mod:tokens=3", "auto;off", ""]) {
    await form.getByRole("textbox", { name: "Speculation string" }).fill(bad);
    await save(form);
    await expect(field(form, "speculate").getByRole("alert"), bad).toBeVisible();
    expect(settingsText(own)).toBe(FILE);
  }
});

test("the longest draft is written into the speculation string, and read from it", async ({ form, own }) => {
  await type(form, "cap", "8");
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  expect(settingsText(own)).toContain(
    'speculate = "auto;suffix:max=8;recycle:max=8;prediction:max=8;grammar:max=8"',
  );
  await form.reload();
  await expect(field(form, "cap").locator("input")).toHaveValue("8");
  await expect(form.getByRole("radio", { name: "Automatic" })).toBeChecked();
  await form.getByRole("radio", { name: "Off", exact: true }).check();
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  expect(settingsText(own)).toContain('speculate = "off"');
  await form.getByRole("radio", { name: "Custom" }).check();
  await form.getByRole("textbox", { name: "Speculation string" }).fill("suffix;ngram-mod:min=0");
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  await form.reload();
  await expect(form.getByRole("textbox", { name: "Speculation string" })).toHaveValue(
    "suffix;ngram-mod:min=0",
  );
});

test("unsaved changes survive other views, and leaving the page asks", async ({ form }) => {
  await type(form, "threads", "3");
  await form.getByRole("link", { name: "Overview" }).click();
  await form.getByRole("link", { name: "Models", exact: true }).click();
  await expect(form.locator("[data-model=tiny]").getByText("Unsaved")).toBeVisible();
  await form.getByRole("link", { name: "tiny" }).click();
  await expect(field(form, "threads").getByRole("textbox")).toHaveValue("3");
  const asked = form.waitForEvent("dialog");
  await form.close({ runBeforeUnload: true });
  const dialog = await asked;
  expect(dialog.type()).toBe("beforeunload");
  await dialog.dismiss();
  await expect(field(form, "threads").getByRole("textbox")).toHaveValue("3");
  await form.getByRole("button", { name: "Discard", exact: true }).click();
  await form.reload(); // does not ask: a dialog that nobody answers would stop the test
  await expect(field(form, "threads").getByRole("textbox")).toHaveValue("0");
});

test("two tabs: the second sees both values, and takes one", async ({ form, own, context }) => {
  const other = await context.newPage();
  await open(other, own);
  await type(form, "threads", "1");
  await type(form, "batch", "256");
  await type(other, "threads", "2");
  await type(other, "sampling.top_k", "40");
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  await save(other);
  const dialog = other.getByRole("dialog");
  const threads = dialog.locator('[data-conflict="threads"]');
  await expect(threads).toContainText("In the file: 1");
  await expect(threads).toContainText("Yours: 2");
  await expect(dialog).toContainText("Batch: 256");
  await expect(dialog).toContainText("Top-k: 40");
  expect(await violations(other)).toEqual([]);
  expect(settingsText(own)).not.toContain("top_k");
  await expect(dialog.getByRole("button", { name: "Save this choice" })).toBeDisabled();
  await threads.getByRole("radio", { name: /Yours/ }).check();
  await dialog.getByRole("button", { name: "Save this choice" }).click();
  await expect(dialog).toHaveCount(0);
  await expect(other.getByText(/unsaved change/)).toHaveCount(0);
  const written = settingsText(own);
  for (const line of ["threads = 2", "batch = 256", "top_k = 40"]) expect(written).toContain(line);
});

test("two tabs that change different settings both save, without a question", async ({
  form,
  own,
  context,
}) => {
  const other = await context.newPage();
  await open(other, own);
  await type(form, "threads", "1");
  await type(other, "batch", "256");
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  await save(other);
  await expect(other.getByText(/unsaved change/)).toHaveCount(0);
  await expect(other.getByRole("dialog")).toHaveCount(0);
  await expect(field(other, "threads").getByRole("textbox")).toHaveValue("1");
  for (const line of ["threads = 1", "batch = 256"]) expect(settingsText(own)).toContain(line);
});

test("a file that was broken by hand is told, and nothing is saved over it", async ({ form, own }) => {
  writeFileSync(settingsFile(own), `${FILE}threads = = 3\n`);
  await form.reload();
  await form.getByRole("link", { name: "Models", exact: true }).click();
  const said = form.getByRole("alert").filter({ hasText: "The settings file is wrong" });
  await expect(said).toContainText("line 8");
  writeFileSync(settingsFile(own), FILE);
  await expect(said).toHaveCount(0);
});

test("an answer that an event has overtaken is not shown", async ({ form, own }) => {
  const said = form.getByRole("alert").filter({ hasText: "The settings file is wrong" });
  writeFileSync(settingsFile(own), `${FILE}threads = = 3\n`);
  let goOn = () => {};
  const held = new Promise<void>((resolve) => (goOn = resolve));
  const caught = form.waitForRequest(/console\/models$/);
  await form.route(/console\/models$/, async (route) => {
    const response = await route.fetch();
    await held;
    await route.fulfill({ response });
  });
  await form.getByRole("link", { name: "Models", exact: true }).click();
  const request = await caught;
  await expect(said).toBeVisible(); // by an event
  writeFileSync(settingsFile(own), FILE);
  await expect(said).toHaveCount(0);
  goOn();
  await (await request.response())?.finished();
  await form.waitForTimeout(200); // for what should not come
  expect(await said.count()).toBe(0);
});

test("a draft model that the string names is not chosen a second time", async ({ form }) => {
  const draft = field(form, "draft_model");
  await expect(draft.getByRole("radio", { name: "None" })).toBeEnabled();
  await form.getByRole("radio", { name: "Custom" }).check();
  await form
    .getByRole("textbox", { name: "Speculation string" })
    .fill("auto;draft-model:max=4,model=some-one");
  await expect(draft).toContainText("The speculation string names the draft model.");
  await expect(draft).toContainText("some-one");
  for (const radio of await draft.getByRole("radio").all()) await expect(radio).toBeDisabled();
  await form.getByRole("button", { name: "Discard", exact: true }).click();
});

test("a hand edit is shown, not overwritten", async ({ form, own }) => {
  await type(form, "sequences", "8");
  const edited = readFileSync(settingsFile(own), "utf8").replace("sequences = 2", "sequences = 3  # by hand");
  writeFileSync(settingsFile(own), edited);
  await save(form);
  const dialog = form.getByRole("dialog");
  await expect(dialog).toContainText("In the file: 3");
  expect(settingsText(own)).toBe(edited);
  await dialog.getByRole("button", { name: "Discard mine" }).click();
  await expect(field(form, "sequences").getByRole("textbox")).toHaveValue("3");
  expect(settingsText(own)).toBe(edited);
  await type(form, "threads", "1");
  await save(form);
  await expect(form.getByText(/unsaved change/)).toHaveCount(0);
  expect(settingsText(own)).toContain("sequences = 3  # by hand");
});

for (const scheme of ["light", "dark"] as const)
  test(`the form is accessible and fits a phone, ${scheme}`, async ({ form }) => {
    await form.emulateMedia({ colorScheme: scheme });
    await type(form, "threads", "many");
    await save(form);
    await expect(field(form, "threads").getByRole("alert")).toBeVisible();
    expect(await violations(form)).toEqual([]);
    await form.setViewportSize({ width: 390, height: 844 });
    expect(await form.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  });

test("the focus goes to the field whose button is gone", async ({ form }) => {
  const sequences = field(form, "sequences").getByRole("textbox");
  await sequences.fill("3");
  await form.getByRole("button", { name: "Discard" }).press("Enter");
  await expect(sequences).toHaveValue("2");
  await expect(sequences).toBeFocused();
  await field(form, "sequences")
    .getByRole("button", { name: /^Reset/ })
    .press("Enter");
  await expect(sequences).toBeFocused();
  await sequences.fill("3");
  await form.getByRole("button", { name: "Save" }).press("Enter");
  await expect(form.getByRole("button", { name: "Save" })).toHaveCount(0);
  await expect(sequences).toBeFocused();
});
