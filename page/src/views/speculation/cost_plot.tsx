/** The picture of the cost curve. Both axes are logarithmic, so that V(n) = n is a straight line. */

import { useState } from "preact/hooks";
import { duration, number, percent, t, times } from "../../i18n";
import { Scrubbed, useWidth } from "../../ui/scrubbed";
import { broughtBy } from "./cost";
import type { Curve } from "./cost";
import type { Round } from "./rounds";

const TICKS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
const HEIGHT = 260;
const MARGIN = { left: 38, right: 14, top: 10, bottom: 36 };
const BOTTOM = HEIGHT - MARGIN.bottom;

type Brought = Map<number, { rounds: number; tokens: number }>;

interface Scale {
  width: number;
  most: number;
  right: number;
  top: number;
  x: (rows: number) => number;
  y: (ratio: number) => number;
  rowsAt: (x: number) => number;
}

function scaleOf(width: number, curves: readonly Curve[], brought: Brought): Scale {
  const rows = [...curves.flatMap((curve) => curve.points.map(([rows]) => rows)), ...brought.keys()];
  const heights = [
    ...curves.flatMap((curve) => curve.points.map(([, ratio]) => ratio)),
    ...[...brought.values()].map((sum) => sum.tokens / sum.rounds),
  ];
  const most = Math.max(8, ...rows);
  const [right, top] = [1.1 * most, 1.15 * Math.max(8, ...heights)];
  const [across, up] = [width - MARGIN.left - MARGIN.right, BOTTOM - MARGIN.top];
  const share = (value: number, low: number, high: number) => Math.log(value / low) / Math.log(high / low);
  return {
    width,
    most,
    right,
    top,
    x: (rows) => MARGIN.left + across * share(rows, 0.9, right),
    y: (ratio) => MARGIN.top + up * (1 - share(Math.max(ratio, 0.7), 0.7, top)),
    rowsAt: (x) => 0.9 * (right / 0.9) ** ((x - MARGIN.left) / across),
  };
}

/** `main` is one of the curves: that of the depth at hand. */
export function CostPlot(props: { curves: readonly Curve[]; main: Curve; rounds: readonly Round[] }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [picked, pick] = useState<number | null>(null);
  const { curves, main } = props;
  const brought = broughtBy(props.rounds);
  const scale = scaleOf(width, curves, brought);
  const rows = [...new Set([...main.points.map(([rows]) => rows), ...brought.keys()])].sort((a, b) => a - b);
  const place = picked === null ? -1 : rows.indexOf(picked);
  const said = costWords(main, brought, rows[place] ?? rows.at(-1) ?? 1);
  return (
    <div ref={box} class="plot">
      <Scrubbed
        label={t("speculation.cost_plot")}
        width={width}
        height={HEIGHT}
        count={rows.length}
        place={place < 0 ? null : place}
        said={said}
        placeAt={(x) => closest(rows, scale.rowsAt(x))}
        pick={(place) => pick(place === null ? null : (rows[place] ?? null))}
      >
        <EvenLine scale={scale} />
        <Axes scale={scale} />
        {place >= 0 && (
          <line class="picked" x1={scale.x(picked!)} x2={scale.x(picked!)} y1={MARGIN.top} y2={BOTTOM} />
        )}
        {curves.map((curve) => (
          <path key={curve.depth} class={curve === main ? "curve" : "other"} d={line(curve, scale)} />
        ))}
        {main.points.map(([rows, ratio]) => (
          <circle
            key={rows}
            class="point"
            cx={scale.x(rows)}
            cy={scale.y(ratio)}
            r={rows === picked ? 5 : 3}
          />
        ))}
        {[...brought].map(([rows, { rounds, tokens }]) => (
          <circle
            key={rows}
            class="brought"
            cx={scale.x(rows)}
            cy={scale.y(tokens / rounds)}
            r={Math.min(9, 3 + Math.sqrt(rounds))}
          />
        ))}
      </Scrubbed>
      <p class="read">{said}</p>
      <Legend main={main} others={curves.filter((curve) => curve !== main)} brought={brought.size > 0} />
    </div>
  );
}

/** The place of the number that is nearest to another, by their ratio. */
function closest(numbers: readonly number[], wanted: number): number | null {
  const away = (place: number) => Math.abs(Math.log(numbers[place]! / wanted));
  const places = [...numbers.keys()].sort((one, other) => away(one) - away(other));
  return places[0] ?? null;
}

function line(curve: Curve, scale: Scale): string {
  const points = curve.points.map(
    ([rows, ratio]) => `${scale.x(rows).toFixed(1)} ${scale.y(ratio).toFixed(1)}`,
  );
  return `M${points.join("L")}`;
}

/** The line V(n) = n, above which a draft does not pay even if all of it is accepted. */
function EvenLine(props: { scale: Scale }) {
  const { scale } = props;
  const end = Math.min(scale.right, scale.top);
  const [x1, y1, x2, y2] = [scale.x(0.9), scale.y(0.9), scale.x(end), scale.y(end)];
  return (
    <>
      <path class="never" d={`M${x1} ${y1}L${x2} ${y2}L${x2} ${MARGIN.top}L${x1} ${MARGIN.top}Z`} />
      <line class="even" x1={x1} y1={y1} x2={x2} y2={y2} />
    </>
  );
}

function Axes(props: { scale: Scale }) {
  const { scale } = props;
  const right = scale.width - MARGIN.right;
  const power = (tick: number) => Number.isInteger(Math.log2(tick));
  return (
    <>
      {TICKS.filter((tick) => tick <= scale.most && (scale.width >= 420 || power(tick))).map((tick) => (
        <g key={tick}>
          <line class="grid" x1={scale.x(tick)} x2={scale.x(tick)} y1={MARGIN.top} y2={BOTTOM} />
          <text x={scale.x(tick)} y={BOTTOM + 14} text-anchor="middle">
            {number(tick)}
          </text>
        </g>
      ))}
      {TICKS.filter((tick) => tick <= scale.top && power(tick)).map((tick) => (
        <g key={tick}>
          <line class="grid" x1={MARGIN.left} x2={right} y1={scale.y(tick)} y2={scale.y(tick)} />
          <text x={MARGIN.left - 6} y={scale.y(tick) + 4} text-anchor="end">
            {times(tick)}
          </text>
        </g>
      ))}
      <text x={right} y={HEIGHT - 4} text-anchor="end">
        {t("speculation.cost_axis")}
      </text>
    </>
  );
}

function Legend(props: { main: Curve; others: Curve[]; brought: boolean }) {
  const { main, others } = props;
  return (
    <ul class="legend">
      <li>
        <span class="stroke curve" />
        {t("speculation.cost_curve", { depth: main.depth, single: duration(main.single) })}
      </li>
      {others.length > 0 && (
        <li>
          <span class="stroke other" />
          {t("speculation.cost_others", { depths: others.map((curve) => number(curve.depth)).join(", ") })}
        </li>
      )}
      <li>
        <span class="stroke even" />
        {t("speculation.cost_even")}
      </li>
      {props.brought && (
        <li>
          <span class="swatch dot" />
          {t("speculation.cost_brought")}
        </li>
      )}
    </ul>
  );
}

/** What the picture says of `rows`. */
function costWords(main: Curve, brought: Brought, rows: number): string {
  const found = main.points.find((point) => point[0] === rows);
  const sum = brought.get(rows);
  const came =
    sum && t("speculation.cost_came", { count: sum.rounds, tokens: number(sum.tokens / sum.rounds) });
  if (!found) return [t("speculation.cost_unmeasured", { rows }), came].filter(Boolean).join(" ");
  const [, ratio] = found;
  const cost = t("speculation.cost_says", {
    count: rows,
    time: duration(ratio * main.single),
    ratio: times(ratio),
  });
  if (rows === 1) return `${cost} ${t("speculation.cost_plain")}`;
  const needed = Math.max(0, ratio - 1);
  const pays =
    needed < rows - 1
      ? t("speculation.cost_pays", { draft: rows - 1, needed, share: percent(needed / (rows - 1)) })
      : t("speculation.cost_never", { draft: rows - 1 });
  return [cost, pays, came].filter(Boolean).join(" ");
}
