/** Tokens a second of both sides for every prompt, by category, as bars. */

import type { Pair } from "../../api/schema";
import { number, t, times } from "../../i18n";

const HEAD_PX = 30;
const PAIR_PX = 40;
const BAR_PX = 7;

/** From here on a speedup counts as a loss: what is nearer to 1 is noise in a single pair. */
const SLOWER = 0.97;

/** The pairs of each category, in the order in which they came. */
function byCategory(pairs: Pair[]): [string, Pair[]][] {
  const groups = new Map<string, Pair[]>();
  for (const pair of pairs) groups.set(pair.category, [...(groups.get(pair.category) ?? []), pair]);
  return [...groups];
}

/** Geometric mean of the speedups. */
function meanSpeedup(pairs: Pair[]): number {
  return Math.exp(pairs.reduce((sum, pair) => sum + Math.log(pair.speedup), 0) / pairs.length);
}

export function Picture(props: { pairs: Pair[] }) {
  const groups = byCategory(props.pairs);
  const most = Math.max(...props.pairs.flatMap((pair) => [pair.off, pair.auto]));
  let y = 0;
  const parts = groups.map(([category, pairs]) => {
    const top = y;
    y += HEAD_PX + PAIR_PX * pairs.length;
    return <Category key={category} name={category} pairs={pairs} top={top} most={most} />;
  });
  const said = groups.map(([category, pairs]) => `${category}: ${times(meanSpeedup(pairs))}`).join(", ");
  return (
    <figure class="bench-picture">
      <figcaption class="actions">
        <span class="key off">{t("benchmark.off")}</span>
        <span class="key auto">{t("benchmark.auto")}</span>
        <span class="dim">{t("benchmark.unit")}</span>
      </figcaption>
      <svg role="img" aria-label={`${t("benchmark.picture")}. ${said}`} width="100%" height={y}>
        {parts}
      </svg>
    </figure>
  );
}

function Category(props: { name: string; pairs: Pair[]; top: number; most: number }) {
  return (
    <g>
      <text class="category" x="0" y={props.top + 20}>
        {props.name}
      </text>
      <text class="category end" x="100%" y={props.top + 20}>
        {times(meanSpeedup(props.pairs))}
      </text>
      {props.pairs.map((pair, index) => (
        <Bars key={pair.prompt} pair={pair} top={props.top + HEAD_PX + index * PAIR_PX} most={props.most} />
      ))}
    </g>
  );
}

function Bars(props: { pair: Pair; top: number; most: number }) {
  const { pair, top, most } = props;
  return (
    <g class={pair.disturbed ? "disturbed" : ""}>
      <text x="0" y={top + 12}>
        {pair.prompt}
        {!pair.same && ` ≠ ${t("benchmark.text_differs")}`}
        {pair.disturbed && ` ⚠ ${t("benchmark.disturbed")}`}
      </text>
      <text class="end" x="100%" y={top + 12}>
        {`${number(pair.off, 0)} → ${number(pair.auto, 0)} · ${times(pair.speedup)}`}
      </text>
      <rect class="off" x="0" y={top + 18} width={`${(100 * pair.off) / most}%`} height={BAR_PX} rx="2" />
      <rect
        class={pair.speedup < SLOWER ? "auto slower" : "auto"}
        x="0"
        y={top + 18 + BAR_PX + 1}
        width={`${(100 * pair.auto) / most}%`}
        height={BAR_PX}
        rx="2"
      />
    </g>
  );
}
