/** Figures over time. */

import type { Overview, Point } from "../../api/schema";
import { bytes, duration, number, percent, t, times } from "../../i18n";
import type { Key } from "../../i18n";
import { Chart } from "../../ui/chart";
import { gapped, spanOf } from "./figures";

interface Drawn {
  title: Key;
  lines: { label: Key; colour: string; of: (point: Point) => number | null }[];
  text: (value: number) => string;
  most?: number;
  points?: boolean;
}

const CHARTS: readonly Drawn[] = [
  {
    title: "overview.rate",
    lines: [{ label: "overview.rate", colour: "--line-1", of: (point) => point.tokens_per_s }],
    text: rate,
    most: 10,
  },
  {
    title: "overview.speedup",
    lines: [{ label: "overview.speedup", colour: "--line-3", of: (point) => point.speedup }],
    text: times,
    most: 2,
  },
  {
    title: "overview.first_token",
    lines: [{ label: "overview.first_token", colour: "--line-2", of: (point) => point.first_token_ms }],
    text: duration,
    most: 10,
    points: true,
  },
  {
    title: "overview.inter_token",
    lines: [
      { label: "overview.p50", colour: "--line-1", of: (point) => point.inter_token_p50_ms },
      { label: "overview.p99", colour: "--line-2", of: (point) => point.inter_token_p99_ms },
    ],
    text: duration,
    most: 10,
  },
  {
    title: "overview.prompt_rate",
    lines: [{ label: "overview.prompt_rate", colour: "--line-4", of: (point) => point.prompt_tokens_per_s }],
    text: rate,
    most: 10,
  },
  {
    title: "overview.requests",
    lines: [
      { label: "overview.running", colour: "--line-1", of: (point) => point.running },
      { label: "overview.waiting", colour: "--line-2", of: (point) => point.waiting },
    ],
    text: whole,
    most: 4,
  },
  {
    title: "overview.use",
    lines: [
      { label: "overview.cpu", colour: "--line-1", of: (point) => point.cpu },
      { label: "overview.gpu", colour: "--line-3", of: (point) => point.gpu },
    ],
    text: percent,
    most: 1,
  },
  {
    title: "overview.memory",
    lines: [
      { label: "overview.ram", colour: "--line-1", of: (point) => point.memory_bytes },
      { label: "overview.gpu_memory", colour: "--line-3", of: (point) => point.gpu_memory_bytes },
    ],
    text: bytes,
  },
];

/** All charts of a window. A line that has never had a value, such as a GPU's, is left out. */
export function Charts(props: { overview: Overview }) {
  const { at, points } = gapped(props.overview);
  const span = spanOf(props.overview);
  return (
    <div class="charts">
      {CHARTS.map((chart) => {
        const lines = chart.lines.map(({ label, colour, of }) => ({
          label: t(label),
          colour,
          values: points.map((point) => (point === null ? null : of(point))),
          text: chart.text,
          points: chart.points,
        }));
        const known = lines.filter((line, i) => i === 0 || line.values.some((value) => value !== null));
        return (
          <figure key={chart.title} class="card">
            <figcaption>{t(chart.title)}</figcaption>
            <Chart
              title={t(chart.title)}
              at={at}
              lines={known}
              span={span}
              most={chart.most}
              axis={chart.text}
              height={140}
            />
          </figure>
        );
      })}
    </div>
  );
}

function rate(value: number): string {
  return number(value, value < 100 ? 1 : 0);
}

function whole(value: number): string {
  return number(value, 0);
}
