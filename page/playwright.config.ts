import { existsSync } from "node:fs";
import { defineConfig, devices } from "@playwright/test";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export default defineConfig({
  testDir: "tests",
  outputDir: "test-results",
  workers: 1,
  // Generous: the tests share two cores with other tests.
  timeout: 180_000,
  expect: { timeout: 30_000 },
  reporter: "line",
  use: {
    ...devices["Desktop Chrome"],
    locale: "en-GB",
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? CHROMIUM.find((path) => existsSync(path)),
      args: ["--no-sandbox"],
    },
  },
});
