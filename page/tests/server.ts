/** `foredraft serve` for a test: in a folder and with a cache folder of its own, ended with the test. */

import { test as base, expect } from "@playwright/test";
import type { Page } from "@playwright/test";
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeModel, PYTHON, settingsFile } from "./files";

export { expect };

export interface Options {
  /** Words after `foredraft serve`; the default model without any. */
  words?: string[];
  env?: Record<string, string>;
  /** The folder to start in; a new one by default. It is not removed. */
  folder?: string;
  port?: number;
}

/** Wait until a view shows what it has asked the server for. */
export async function loaded(page: Page): Promise<void> {
  await expect(page.locator("main [aria-busy=true]")).toHaveCount(0);
}

export class Server {
  private constructor(
    readonly url: string,
    readonly folder: string,
    private readonly process: ChildProcess,
    private readonly own: boolean,
  ) {}

  /** A server that listens. Throws with what it printed if it ends before. */
  static async start(options: Options = {}): Promise<Server> {
    const folder = options.folder ?? mkdtempSync(join(tmpdir(), "foredraft-page-"));
    const words = ["-m", "foredraft", "serve", "--port", String(options.port ?? 0), ...(options.words ?? [])];
    const child = spawn(PYTHON, words, {
      cwd: folder,
      env: { ...process.env, FOREDRAFT_CACHE: join(folder, "cache"), ...options.env },
    });
    let said = "";
    const url = await new Promise<string>((found, failed) => {
      const read = (data: Buffer) => {
        said += data.toString();
        const page = /^Page: ([^#\s]+)\S*$/m.exec(said); // without a model it leads to a view
        if (page?.[1]) found(page[1]);
      };
      child.stdout.on("data", read);
      child.stderr.on("data", read);
      child.on("error", failed);
      child.on("exit", () => failed(new Error(`the server ended:\n${said}`)));
    });
    return new Server(url, folder, child, options.folder === undefined);
  }

  /** What `path` answers, as JSON. */
  async get<T>(path: string, headers: Record<string, string> = {}): Promise<T> {
    return (await (await fetch(this.url + path, { headers })).json()) as T;
  }

  /** The process id, for measurements. */
  get pid(): number {
    return this.process.pid ?? 0;
  }

  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const ended = new Promise((over) => this.process.once("exit", over));
      this.process.kill(signal);
      const late = setTimeout(() => this.process.kill("SIGKILL"), 20_000);
      await ended;
      clearTimeout(late);
    }
    if (this.own) rmSync(this.folder, { recursive: true, force: true });
  }
}

interface OfATest {
  /** Words after `foredraft serve`: `test.use({ words: [...] })` in a file. */
  words: string[];
  server: Server;
  /** Opens a view, and waits for its heading. */
  view: (name: string) => Promise<Page>;
}

/** The server that runs, and the file whose tests share it. */
interface Running {
  file: string;
  server: Server | null;
}

/** A test with a server of the default model, shared by the tests of a file. */
export const test = base.extend<OfATest, { running: Running }>({
  words: [[], { option: true }],
  running: [
    async ({}, use) => {
      const running: Running = { file: "", server: null };
      await use(running);
      await running.server?.stop();
    },
    { scope: "worker" },
  ],
  server: async ({ words, running }, use, { file }) => {
    if (running.server === null || running.file !== file) {
      await running.server?.stop();
      running.server = null;
      running.server = await Server.start({ words });
      running.file = file;
    }
    await use(running.server);
  },
  view: async ({ page, server }, use) => {
    const errors: string[] = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (message) => {
      if (/Content Security Policy|Trusted/i.test(message.text())) errors.push(message.text());
    });
    await use(async (name) => {
      await page.goto(`${server.url}#/${name}`);
      await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
      return page;
    });
    expect(errors, "errors in the page").toEqual([]);
  },
});

/** Tests with one server of the model "tiny", which all begin with this settings file. */
export function testOf(settings: string) {
  return base.extend<{ own: Server }, { shared: Server }>({
    shared: [
      async ({}, use) => {
        const folder = mkdtempSync(join(tmpdir(), "foredraft-tiny-"));
        makeModel("tiny", join(folder, "tiny.gguf"));
        writeFileSync(join(folder, "foredraft.toml"), settings);
        const server = await Server.start({ folder });
        await use(server);
        await server.stop();
        rmSync(folder, { recursive: true, force: true });
      },
      { scope: "worker" },
    ],
    own: async ({ shared }, use) => {
      writeFileSync(settingsFile(shared), settings);
      await use(shared);
    },
  });
}
