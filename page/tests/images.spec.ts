import type { Locator, Page } from "@playwright/test";
import { violations } from "./accessible";
import { settingsText } from "./files";
import { expect, testOf } from "./server";
import type { Server } from "./server";

const FILE = `# written by hand
[models.tiny]
path = "tiny.gguf"

[images]  # what requests may bring
max_images = 4
`;

const test = testOf(FILE);

async function opened(page: Page, server: Server): Promise<Locator> {
  await page.goto(`${server.url}#/models`);
  const card = page.locator("section, .card").filter({
    has: page.getByRole("heading", { name: "Images in requests" }),
  });
  await expect(card.getByLabel("Images in a request")).toHaveValue("4");
  return card;
}

test("limits and sources of pictures are changed in the file, beside its comments", async ({ page, own }) => {
  const card = await opened(page, own);
  await expect(card.getByRole("button", { name: "Save" })).toHaveCount(0);
  await card.getByLabel("Images in a request").fill("");
  await card.getByLabel("Pixels of all requests").fill("300000000");
  await card.getByLabel("Folders").fill("/srv/pictures\n/srv/more");
  await card.getByRole("switch", { name: "Fetch addresses" }).check();
  await card.getByRole("button", { name: "Save" }).click();
  await expect(card.getByRole("status")).toHaveText(/Saved/);
  await expect(card.getByLabel("Images in a request")).toHaveValue("32");
  const written = settingsText(own);
  expect(written).toContain("# written by hand");
  expect(written).not.toContain("max_images");
  expect(written).toContain("max_total_pixels = 300000000");
  expect(written).toContain("/srv/pictures");
  expect(written).toContain("remote = true");
  expect(await violations(page)).toEqual([]);
});

test("what is wrong is said at its field; discarding brings the file's values back", async ({
  page,
  own,
}) => {
  const card = await opened(page, own);
  await card.getByLabel("Images in a request").fill("-3");
  await card.getByLabel("Seconds for an address").fill("5");
  await card.getByRole("button", { name: "Save" }).click();
  await expect(card.getByRole("alert")).toHaveText(/whole number/);
  await expect(card.getByLabel("Images in a request")).toHaveAttribute("aria-invalid", "true");
  expect(settingsText(own)).toBe(FILE);
  await card.getByRole("button", { name: "Discard" }).click();
  await expect(card.getByLabel("Images in a request")).toHaveValue("4");
  await expect(card.getByRole("alert")).toHaveCount(0);
});

test("a model's vision file is a setting of the model", async ({ page, own }) => {
  await page.goto(`${own.url}#/models/tiny`);
  const field = page.locator('[data-field="mmproj"]');
  await field.getByRole("textbox").fill("none");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(field.getByText("Unsaved")).toHaveCount(0);
  expect(settingsText(own)).toContain('mmproj = "none"');
  await page.getByRole("button", { name: "Reset Vision file to its default" }).click();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(field.getByText("Unsaved")).toHaveCount(0);
  await expect(field.getByText("Changed")).toHaveCount(0);
  expect(settingsText(own)).not.toContain("mmproj");
});
