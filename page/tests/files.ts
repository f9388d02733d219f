/** Small models, and the stand-in for the Hub, made by ../tests/page_files.py. */

import { spawn, spawnSync } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Server } from "./server";

export const PYTHON = process.env.PYTHON ?? resolve("../.venv/bin/python");

const SCRIPT = resolve("../tests/page_files.py");

/** Write a model: "tiny", with a tokenizer of its own, or "draft", with the default model's. */
export function makeModel(kind: "tiny" | "draft", file: string): string {
  const done = spawnSync(PYTHON, [SCRIPT, kind, file], { encoding: "utf8" });
  if (done.status !== 0) throw new Error(done.stderr);
  return file;
}

/** The settings file of a server. */
export function settingsFile(server: Server): string {
  return join(server.folder, "foredraft.toml");
}

export function settingsText(server: Server): string {
  return readFileSync(settingsFile(server), "utf8");
}

/** A stand-in for the Hub on this machine. */
export class Hub {
  private constructor(
    readonly url: string,
    private readonly process: ChildProcess,
  ) {}

  static async start(): Promise<Hub> {
    const child = spawn(PYTHON, [SCRIPT, "hub"], { stdio: ["pipe", "pipe", "inherit"] });
    const url = await new Promise<string>((found, failed) => {
      child.stdout.once("data", (data: Buffer) => found(data.toString().trim()));
      child.once("error", failed);
      child.once("exit", () => failed(new Error("the stand-in for the Hub ended")));
    });
    return new Hub(url, child);
  }

  /** Let every download to come wait after so many bytes, until `goOn`. */
  hold(bytes: number): void {
    this.process.stdin?.write(`hold ${bytes}\n`);
  }

  goOn(): void {
    this.process.stdin?.write("go\n");
  }

  async stop(): Promise<void> {
    const ended = new Promise((over) => this.process.once("exit", over));
    this.process.stdin?.end();
    await ended;
  }
}
