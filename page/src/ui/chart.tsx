/** A line chart over time (uPlot). Colours come from the style sheet, so that they follow light and dark. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { language, t, timeFormat } from "../i18n";
import { shownTheme } from "./theme";

export interface Line {
  label: string;
  /** A custom property of the style sheet, such as `--line-1`. */
  colour: string;
  /** Null is a gap. */
  values: (number | null)[];
  /** How its values are written in the legend. */
  text: (value: number) => string;
  /** Single measurements, drawn as points: most steps have none. */
  points?: boolean;
}

interface Props {
  /** Read by screen readers in place of the picture. */
  title: string;
  /** Unix seconds, ascending; or other numbers if `time` is false. */
  at: number[];
  lines: Line[];
  height?: number;
  time?: boolean;
  /** How the numbers beside the vertical axis are written. */
  axis?: (value: number) => string;
  /** The ends of the horizontal axis; those of `at` by default. */
  span?: [number, number];
  /** The vertical axis reaches at least this far. */
  most?: number;
}

/** The place of a value, and where it is in the picture. */
interface Pointed {
  place: number;
  left: number;
}

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shown = useRef(props);
  shown.current = props;
  const [pointed, point] = useState<Pointed | null>(null);
  const shape =
    props.lines.map((line) => line.label + line.colour).join() + language.value + shownTheme.value;
  useEffect(() => {
    const place = box.current;
    if (place === null) return undefined;
    const made = new uPlot(optionsOf(shown, place, point), dataOf(shown.current), place);
    plot.current = made;
    const watcher = new ResizeObserver(() => {
      if (place.clientWidth !== made.width) made.setSize({ width: place.clientWidth, height: made.height });
    });
    watcher.observe(place);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(dataOf(shown.current)), [props.at, props.lines]);
  return (
    <div class="chart">
      <div class="chart-box" role="img" aria-label={summary(props)} ref={box}>
        {pointed !== null && <Tip {...props} pointed={pointed} />}
      </div>
      <ul class="legend" aria-hidden="true">
        {props.lines.map((line) => (
          <li key={line.label}>
            <span class="swatch" style={{ background: `var(${line.colour})` }} />
            {line.label}{" "}
            <strong>
              {written(
                line,
                line.values.findLast((value) => value !== null),
              )}
            </strong>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What the picture says where it is pointed at. */
function Tip(props: Props & { pointed: Pointed }) {
  const { place, left } = props.pointed;
  const at = props.at[place];
  if (at === undefined) return null;
  const when = (props.time ?? true) ? clock(at, extent(props) > 1.5 * DAY_S ? "hour" : "second") : String(at);
  return (
    <div class={`tip ${left > 0.5 ? "before" : ""}`} style={{ left: `${100 * left}%` }}>
      <span class="dim">{when}</span>
      {props.lines.map((line) => (
        <span key={line.label}>
          <span class="swatch" style={{ background: `var(${line.colour})` }} />
          {line.label} <strong>{written(line, line.values[place])}</strong>
        </span>
      ))}
    </div>
  );
}

function dataOf(props: Props): uPlot.AlignedData {
  return [props.at, ...props.lines.map((line) => line.values)] as uPlot.AlignedData;
}

function optionsOf(
  shown: { current: Props },
  place: HTMLElement,
  point: (pointed: Pointed | null) => void,
): uPlot.Options {
  const colour = (name: string) => coloured(place, name);
  const grid = { stroke: colour("--edge"), width: 1 };
  const axis = { stroke: colour("--dim"), grid, ticks: { ...grid, size: 4 }, font: "12px system-ui", gap: 3 };
  const across = { ...axis, size: 26 };
  const time = shown.current.time ?? true;
  return {
    width: place.clientWidth,
    height: shown.current.height ?? 160,
    padding: [10, 32, 0, 0],
    scales: {
      x: { time, range: (_, least, most) => shown.current.span ?? [least, most] },
      y: { range: (_, __, most) => [0, Math.max(1.05 * (most ?? 0), shown.current.most ?? 0) || 1] },
    },
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    hooks: { setCursor: [(plot) => point(pointedAt(plot))] },
    axes: [
      time
        ? {
            ...across,
            space: (_, __, from, to) => (to - from > 1.5 * DAY_S ? 100 : 75),
            values: (plot, at, _, __, step) => at.map((each) => clock(each, stepOf(plot, step))),
          }
        : across,
      {
        ...axis,
        size: 64,
        space: 34,
        values: (_, values) => values.map((value) => (shown.current.axis ?? String)(value)),
      },
    ],
    series: [
      {},
      ...shown.current.lines.map((line) => ({
        label: line.label,
        stroke: colour(line.colour),
        width: 1.5,
        ...(line.points
          ? { paths: () => null, points: { show: true, size: 5 } }
          : { points: { show: false, size: 4, filter: alone } }),
      })),
    ],
  };
}

/** The places of values between two gaps: they are no line, and are drawn as points. */
function alone(plot: uPlot, series: number): number[] {
  const values = plot.data[series] ?? [];
  return [...values.keys()].filter(
    (i) => values[i] != null && values[i - 1] == null && values[i + 1] == null,
  );
}

function pointedAt(plot: uPlot): Pointed | null {
  const { idx, left } = plot.cursor;
  if (idx === null || idx === undefined || left === undefined || left < 0) return null;
  return { place: idx, left: (left + plot.bbox.left / devicePixelRatio) / plot.width };
}

/** A colour of the style sheet as the canvas understands it: `light-dark()` is resolved by an element. */
function coloured(place: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  place.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const DAY_S = 86_400;

type Step = "second" | "minute" | "hour" | "day";

/** How exact the times beside the axis have to be. */
function stepOf(plot: uPlot, step: number): Step {
  const { min, max } = plot.scales.x ?? {};
  if ((max ?? 0) - (min ?? 0) > 1.5 * DAY_S) return step >= DAY_S ? "day" : "hour";
  return step >= 60 ? "minute" : "second";
}

const MINUTE = { hour: "2-digit", minute: "2-digit" } as const;
const FORMATS: Record<Step, Intl.DateTimeFormatOptions> = {
  second: { ...MINUTE, second: "2-digit" },
  minute: MINUTE,
  hour: { month: "short", day: "numeric", ...MINUTE },
  day: { month: "short", day: "numeric" },
};

/** A Unix time in the reader's language. */
function clock(seconds: number, step: Step): string {
  return timeFormat(FORMATS[step]).format(seconds * 1000);
}

function extent(props: Props): number {
  const [from, to] = props.span ?? [props.at[0] ?? 0, props.at.at(-1) ?? 0];
  return to - from;
}

function written(line: Line, value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : line.text(value);
}

/** What the picture shows, in words: of each line the last value and its range. */
function summary(props: Props): string {
  const said = props.lines.map((line) => {
    const values = line.values.filter((value) => value !== null);
    if (!values.length) return t("shell.chart_nothing", { line: line.label });
    return t("shell.chart_line", {
      line: line.label,
      last: line.text(values.at(-1)!),
      least: line.text(Math.min(...values)),
      most: line.text(Math.max(...values)),
    });
  });
  return `${props.title}. ${said.join(". ")}`;
}
