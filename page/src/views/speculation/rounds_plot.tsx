/** The last rounds as bars: as high as the draft was long, filled as far as it was accepted. */

import { useState } from "preact/hooks";
import { duration, number, t } from "../../i18n";
import { drafterColour } from "../../ui/drafters";
import { Scrubbed, useWidth } from "../../ui/scrubbed";
import { reasonText } from "../../ui/reasons";
import { timeOf } from "./rounds";
import type { Round } from "./rounds";

const HEIGHT = 130;
/** Width of a column: as wide as all of them leave room for. */
const NARROW = 8;
const WIDE = 32;
const LEFT = 24;
const BOTTOM = HEIGHT - 16;

/** Columns, the newest on the right; null where rounds were missed between two looks. */
function columnsOf(rounds: readonly Round[], most: number): (Round | null)[] {
  const columns: (Round | null)[] = [];
  for (let i = rounds.length - 1; i >= 0 && columns.length < most; i--) {
    const [round, before] = [rounds[i]!, rounds[i - 1]];
    columns.unshift(round);
    if (before && round.number > before.number + 1) columns.unshift(null);
  }
  return columns;
}

export function RoundsPlot(props: { rounds: readonly Round[] }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [picked, pick] = useState<number | null>(null);
  const columns = columnsOf(props.rounds, Math.floor((width - LEFT) / NARROW));
  const bar = Math.min(WIDE, Math.max(NARROW, (width - LEFT) / Math.max(1, columns.length)));
  const shown = columns.filter((round) => round !== null);
  const most = Math.max(4, ...shown.map((round) => Math.max(round.drafted, round.accepted)));
  const start = width - columns.length * bar;
  const place = shown.findIndex((round) => round.number === picked);
  const round = shown[place] ?? shown.at(-1);
  const said = round ? roundWords(round) : "";
  return (
    <div ref={box} class="plot">
      <Scrubbed
        label={t("speculation.rounds_plot")}
        width={width}
        height={HEIGHT}
        count={shown.length}
        place={place < 0 ? null : place}
        said={said}
        placeAt={(x) => {
          const found = columns[Math.floor((x - start) / bar)];
          return found ? shown.indexOf(found) : null;
        }}
        pick={(place) => pick(place === null ? null : (shown[place]?.number ?? null))}
      >
        <Scale most={most} width={width} />
        {columns.map((round, i) => (
          <Column
            key={round?.number ?? `before ${columns[i + 1]?.number}`}
            round={round}
            x={start + i * bar}
            wide={bar}
            most={most}
            picked={round !== null && round.number === picked}
          />
        ))}
        <Ends
          first={shown.length > 12 ? shown[0] : undefined}
          last={shown.at(-1)}
          start={start}
          width={width}
        />
      </Scrubbed>
      <p class="read">{said}</p>
      <Legend rounds={shown} />
    </div>
  );
}

function tall(tokens: number, most: number): number {
  return ((BOTTOM - 8) * tokens) / most;
}

function Column(props: { round: Round | null; x: number; wide: number; most: number; picked: boolean }) {
  const { round, x, wide, most } = props;
  const middle = x + wide / 2;
  if (round === null) return <line class="missed" x1={middle} x2={middle} y1={8} y2={BOTTOM} />;
  const bar = (kind: string, tokens: number) => (
    <rect
      class={kind}
      x={x + 1}
      y={BOTTOM - tall(tokens, most)}
      width={wide - 2}
      height={tall(tokens, most)}
    />
  );
  return (
    <g style={{ "--drafter": `var(${colourOf(round)})` }}>
      {props.picked && <line class="picked" x1={middle} x2={middle} y1={0} y2={BOTTOM} />}
      {round.drafted ? (
        <>
          {bar("drafted", round.drafted)}
          {bar("accepted", round.accepted)}
        </>
      ) : (
        <rect class="none" x={x + 2} y={BOTTOM - 3} width={wide - 4} height={3} />
      )}
    </g>
  );
}

/** The colour of a round's first drafter; trees of several are named "one+other". */
function colourOf(round: Round): string {
  return drafterColour((round.drafters[0] ?? "").split("+")[0] ?? "");
}

function Scale(props: { most: number; width: number }) {
  return (
    <>
      {[0, Math.round(props.most / 2), props.most].map((tokens) => {
        const y = BOTTOM - tall(tokens, props.most);
        return (
          <g key={tokens}>
            <line class="grid" x1={LEFT} x2={props.width} y1={y} y2={y} />
            <text x={LEFT - 6} y={y + 4} text-anchor="end">
              {number(tokens)}
            </text>
          </g>
        );
      })}
    </>
  );
}

function Ends(props: { first: Round | undefined; last: Round | undefined; start: number; width: number }) {
  const named = (round: Round) => t("speculation.round", { number: round.number });
  return (
    <>
      {props.first && (
        <text x={Math.max(LEFT, props.start)} y={HEIGHT - 3}>
          {named(props.first)}
        </text>
      )}
      {props.last && (
        <text x={props.width} y={HEIGHT - 3} text-anchor="end">
          {named(props.last)}
        </text>
      )}
    </>
  );
}

function Legend(props: { rounds: readonly Round[] }) {
  const drafters = [...new Set(props.rounds.flatMap((round) => (round.drafted ? round.drafters : [])))];
  return (
    <ul class="legend">
      {drafters.map((name) => (
        <li key={name}>
          <span class="swatch" style={{ background: `var(${drafterColour(name.split("+")[0] ?? "")})` }} />
          {name}
        </li>
      ))}
      <li>
        <span class="swatch faint" />
        {t("speculation.not_accepted")}
      </li>
      <li>
        <span class="swatch low" />
        {t("speculation.nothing_drafted")}
      </li>
    </ul>
  );
}

/** A round in a sentence or two. */
function roundWords(round: Round): string {
  const ends = t("speculation.round_tokens", { count: round.committed, time: duration(timeOf(round)) });
  if (!round.drafted) {
    const why = round.reasons.map(reasonText).join("; ");
    return `${t("speculation.round_plain", { number: round.number, why })} ${ends}`;
  }
  const said = t("speculation.round_drafted", {
    number: round.number,
    drafters: round.drafters.join(", "),
    drafted: round.drafted,
    accepted: round.accepted,
  });
  const gains = round.gains.map((gain) => `${number(gain)}×`).join(", ");
  return [said, gains && t("speculation.round_gain", { gains }), ends].filter(Boolean).join(" ");
}
