/** A text in which what a drafter proposed is marked: by colour and by the style of the line below it. */

import { useMemo } from "preact/hooks";
import { number, t } from "../../i18n";
import { drafterColour, drafterName } from "../../ui/drafters";
import type { Report, Segment } from "./types";

const A_BLOCK = 100;

/** What its line goes by. */
function kindOf(name: string): string {
  return drafterColour(name).replace("--drafter-", "");
}

interface Run {
  origin: string;
  text: string;
}

/** `from`, `to`: the part of the text that is shown. */
export function Coloured(props: { text: string; origins: readonly Segment[]; from?: number; to?: number }) {
  const runs = runsOf(props.text, props.origins, props.from ?? 0, props.to ?? props.text.length);
  const blocks = [];
  for (let at = 0; at < runs.length; at += A_BLOCK)
    blocks.push(<Runs key={at} runs={runs.slice(at, at + A_BLOCK)} />);
  return <div class="plain">{blocks}</div>;
}

/** Some runs; rendered anew only if they have changed. */
function Runs(props: { runs: readonly Run[] }) {
  const last = props.runs.at(-1);
  return useMemo(
    () => <>{props.runs.map(({ origin, text }, place) => shown(origin, text, place))}</>,
    [props.runs.length, props.runs[0]?.text, last?.text, last?.origin],
  );
}

function shown(origin: string, text: string, place: number) {
  return origin === "target" ? (
    text
  ) : (
    <mark key={place} class="drafted" data-drafter={kindOf(origin)} title={drafterName(origin)}>
      {text}
    </mark>
  );
}

function runsOf(text: string, origins: readonly Segment[], from: number, to: number): Run[] {
  const runs: Run[] = [];
  let at = 0;
  for (const [origin, length] of origins) {
    const [start, end] = [Math.max(at, from), Math.min(at + length, to)];
    if (end > start) runs.push({ origin, text: text.slice(start, end) });
    at += length;
  }
  if (Math.max(at, from) < to) runs.push({ origin: "target", text: text.slice(Math.max(at, from), to) });
  return runs;
}

/** Which drafter is which, with how many tokens of each were accepted; before the end, how many characters. */
export function Legend(props: { origins: readonly Segment[]; report?: Report }) {
  const counts = new Map<string, number>();
  const drafters = props.report?.speculation.drafters;
  if (drafters) {
    for (const [name, { accepted }] of Object.entries(drafters)) if (accepted) counts.set(name, accepted);
  } else {
    for (const [name, length] of props.origins)
      if (name !== "target") counts.set(name, (counts.get(name) ?? 0) + length);
  }
  if (!counts.size) return <p class="legend dim">{t("chat.legend_none")}</p>;
  return (
    <ul class="legend" aria-label={t("chat.legend")}>
      {[...counts].map(([name, count]) => (
        <li key={name}>
          <mark class="drafted" data-drafter={kindOf(name)}>
            {drafterName(name)}
          </mark>{" "}
          <span class="dim">
            {drafters
              ? t("chat.legend_tokens", { count })
              : t("chat.legend_characters", { count: number(count) })}
          </span>
        </li>
      ))}
    </ul>
  );
}
