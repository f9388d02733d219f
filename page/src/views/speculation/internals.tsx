/** The rounds, what was decided in them, what forwards cost, and where the time goes. */

import { duration, number, percent, t } from "../../i18n";
import type { Key } from "../../i18n";
import { Bar } from "../../ui/basics";
import { CostPlot } from "./cost_plot";
import { curvesOf, nearest } from "./cost";
import { reasonText } from "../../ui/reasons";
import { outcomesOf, timeByPart, timeOf } from "./rounds";
import type { Round } from "./rounds";
import { RoundsPlot } from "./rounds_plot";
import type { ModelSpeculation } from "../../api/schema";

interface Props {
  state: ModelSpeculation;
  rounds: readonly Round[];
}

export function Internals(props: Props) {
  if (!props.rounds.length) return <p class="dim">{t("speculation.no_rounds")}</p>;
  return (
    <div class="internals">
      <section class="wide">
        <h3>{t("speculation.rounds_title")}</h3>
        <RoundsPlot rounds={props.rounds} />
      </section>
      <section class="wide">
        <h3>{t("speculation.cost_title")}</h3>
        <Cost {...props} />
      </section>
      <section>
        <h3>{t("speculation.outcomes", { count: props.rounds.length })}</h3>
        <Outcomes rounds={props.rounds} />
      </section>
      <section>
        <h3>{t("speculation.time_title")}</h3>
        <TimeByPart rounds={props.rounds} />
      </section>
      <section class="wide">
        <h3>{t("speculation.table_title")}</h3>
        <Table rounds={props.rounds} />
      </section>
    </div>
  );
}

function Cost(props: Props) {
  const curves = curvesOf(props.state.cost_curve_ms);
  const main = nearest(curves, props.state.recent?.depth ?? 1);
  if (main === undefined) {
    const why = props.state.cost_curve_ms === null ? "speculation.cost_only_auto" : "speculation.cost_none";
    return <p class="dim">{t(why)}</p>;
  }
  return (
    <>
      <p class="dim">{t("speculation.cost_note")}</p>
      <CostPlot curves={curves} main={main} rounds={props.rounds} />
    </>
  );
}

function Outcomes(props: { rounds: readonly Round[] }) {
  return (
    <ul class="shares">
      {outcomesOf(props.rounds).map(({ drafters, reasons, count }) => {
        const what = drafters.length
          ? t("speculation.drafted_by", { drafters: drafters.join(", ") })
          : reasons.map(reasonText).join("; ");
        const said = `${number(count)} · ${percent(count / props.rounds.length)}`;
        return (
          <li key={what}>
            <span>{what}</span>
            <span class="dim">{said}</span>
            <Bar
              share={count / props.rounds.length}
              label={what}
              tone={drafters.length ? "good" : undefined}
            />
          </li>
        );
      })}
    </ul>
  );
}

function TimeByPart(props: { rounds: readonly Round[] }) {
  const parts = timeByPart(props.rounds);
  const total = parts.reduce((sum, [, ms]) => sum + ms, 0);
  return (
    <ul class="shares">
      {parts.map(([part, ms]) => {
        const name = t(`speculation.part_${part}` as Key);
        return (
          <li key={part}>
            <span>{name}</span>
            <span class="dim">
              {duration(ms / props.rounds.length)} · {percent(total ? ms / total : 0, 1)}
            </span>
            <Bar share={total ? ms / total : 0} label={name} />
          </li>
        );
      })}
    </ul>
  );
}

const ROWS = 64;

/** The newest rounds first. */
function Table(props: { rounds: readonly Round[] }) {
  const rows = props.rounds.slice(-ROWS).reverse();
  return (
    <div class="table tall" tabIndex={0} role="group" aria-label={t("speculation.table_title")}>
      <table>
        <thead>
          <tr>
            <th class="number">{t("speculation.column_round")}</th>
            <th class="number">{t("speculation.column_drafted")}</th>
            <th class="number">{t("speculation.column_accepted")}</th>
            <th class="number">{t("speculation.column_tokens")}</th>
            <th class="number">{t("speculation.column_gain")}</th>
            <th class="number">{t("speculation.column_time")}</th>
            <th>{t("speculation.column_who")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((round) => (
            <tr key={round.number}>
              <td class="number">{number(round.number)}</td>
              <td class="number">{number(round.drafted)}</td>
              <td class="number">{number(round.accepted)}</td>
              <td class="number">{number(round.committed)}</td>
              <td class="number">{round.gains.map((gain) => `${number(gain)}×`).join(" ")}</td>
              <td class="number">{duration(timeOf(round))}</td>
              <td>{[...round.drafters, ...round.reasons.map(reasonText)].join("; ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
