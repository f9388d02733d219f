/** Which lines of the log are shown. */

import type { Log, LogLine } from "../../api/schema";

export type Level = LogLine["level"];
export const LEVELS: readonly Level[] = ["info", "warning", "error"];

/** As many lines as the server keeps. */
const MOST = 500;

/** The lines with what came. */
export function joined(known: readonly LogLine[] | null, sent: Log): readonly LogLine[] {
  if (sent.whole || known === null) return sent.lines;
  const last = known.at(-1)?.number ?? 0;
  return [...known, ...sent.lines.filter((line) => line.number > last)].slice(-MOST);
}

/** The lines of at least this level that have all words of the text in them. */
export function matching(lines: readonly LogLine[], least: Level, text: string): readonly LogLine[] {
  const levels = LEVELS.slice(LEVELS.indexOf(least));
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return lines.filter(
    (line) => levels.includes(line.level) && words.every((word) => line.text.toLowerCase().includes(word)),
  );
}

/** Lines as a text file has them, with times in UTC. */
export function asText(lines: readonly LogLine[]): string {
  return lines
    .map((line) => `${new Date(line.at * 1000).toISOString()} ${line.level.toUpperCase()} ${line.text}\n`)
    .join("");
}
