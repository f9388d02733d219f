/** Two lanes, one clock: without speculation on the left, with it on the right. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { whyNothing } from "../../ui/reasons";
import { duration, number, percent, t, times } from "../../i18n";
import { Problem } from "../../ui/basics";
import { focusComposer } from "./composer";
import { Coloured, Legend } from "./origins";
import { canKeep, closeRace, keepAnswer, reportOf, resultOf, shownAt, stopRace } from "./race";
import type { Lane, Race, Result } from "./race";

const AROUND = 40;

export function RaceView(props: { race: Race }) {
  const { race } = props;
  const result = resultOf(race);
  const over = race.phase === "done" || race.phase === "stopped" || race.phase === "failed";
  return (
    <section class="race" aria-label={t("chat.race")}>
      <div class="card-head">
        <h2>{t("chat.race_title")}</h2>
        <div class="actions">
          {race.phase === "done" && canKeep(race) && (
            <button type="button" class="primary" onClick={() => (keepAnswer(), focusComposer())}>
              {t("chat.race_keep")}
            </button>
          )}
          <button
            type="button"
            onClick={over ? () => (closeRace(), focusComposer()) : () => stopRace(race.conversation)}
          >
            {t(over ? "chat.race_close" : "chat.stop")}
          </button>
        </div>
      </div>
      <p class="dim">{t("chat.race_order")}</p>
      {race.phase === "done" && !canKeep(race) && <p class="warn">{t("chat.race_late")}</p>}
      {race.fresh && <blockquote class="plain">{race.asked.text}</blockquote>}
      <p role="status" class={race.phase === "stopped" ? "warn" : ""}>
        {race.phase === "failed" ? "" : t(`chat.race_${race.phase}`)}
      </p>
      {race.phase === "failed" && <Problem error={race.error} />}
      {result && <Results race={race} result={result} />}
      <div class="lanes">
        <LaneView
          title={t("chat.race_plain_lane")}
          lane={race.plain}
          shown={race.plain.text.length}
          race={race}
        />
        <LaneView title={t("chat.race_auto_lane")} lane={race.auto} shown={autoShown(race)} race={race} />
      </div>
      {race.auto.ending && <Legend origins={race.auto.origins} report={reportOf(race.auto)} />}
    </section>
  );
}

/** While the plain run is on, the other's is shown as it was at that time. */
function autoShown({ phase, auto, clock }: Race): number {
  return phase === "plain" ? shownAt(auto, clock) : auto.text.length;
}

function LaneView(props: { title: string; lane: Lane; shown: number; race: Race }) {
  const { lane, shown, race } = props;
  const end = lane.arrivals.at(-1)?.[0] ?? 0;
  const running = race.phase === "plain" && shown < lane.text.length ? race.clock : Math.min(race.clock, end);
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  const goal = Math.max(race.auto.text.length, race.plain.text.length, 1);
  return (
    <section class="lane" aria-label={props.title}>
      <header>
        <h3>{props.title}</h3>
        <span class="clock">{lane.arrivals.length > 0 && duration(running)}</span>
      </header>
      <progress max={goal} value={shown} aria-label={props.title} />
      <div class="lane-text" tabIndex={0} ref={box}>
        {lane.text || race.phase !== "auto" ? (
          <Coloured text={lane.text} origins={lane.origins} to={shown} />
        ) : (
          <p class="dim">{t("chat.race_next")}</p>
        )}
      </div>
    </section>
  );
}

function Results(props: { race: Race; result: Result }) {
  const { race, result } = props;
  const speculation = race.auto.ending?.speculation;
  const { accepted, noise } = result;
  const tokens = race.auto.ending?.tokens ?? 0;
  return (
    <div class="race-result">
      {speculation?.active ? (
        <p class={`race-verdict ${result.ratio > 1 && !noise && !race.disturbed ? "good" : ""}`}>
          {t("chat.race_verdict", {
            times: times(result.ratio),
            auto: duration(result.autoMs),
            plain: duration(result.plainMs),
          })}
        </p>
      ) : (
        <p class="warn">
          {t("chat.race_nothing", {
            reason: whyNothing(speculation?.reason ?? null, speculation?.reason_code ?? null) ?? "",
          })}
        </p>
      )}
      {speculation?.active && noise && <p class="warn">{t("chat.race_noise", { count: accepted })}</p>}
      <p>
        {t("chat.race_rates", { auto: number(result.autoRate, 1), plain: number(result.plainRate, 1) })}
        {speculation?.active && tokens > 0 && (
          <> {t("chat.race_drafted", { share: percent(Math.min(1, accepted / tokens)) })}</>
        )}
      </p>
      {result.differs === null ? (
        <p class="good">{t(race.greedy ? "chat.race_same" : "chat.race_same_seed")}</p>
      ) : (
        <Difference race={race} at={result.differs} />
      )}
      {race.disturbed && <p class="warn">{t("chat.race_disturbed")}</p>}
    </div>
  );
}

function Difference(props: { race: Race; at: number }) {
  const { race, at } = props;
  const around = (text: string) => text.slice(Math.max(0, at - AROUND), at + AROUND);
  return (
    <div class="warn">
      <p>
        {t("chat.race_differs", { place: at + 1, why: race.auto.ending?.speculation?.exact_reason ?? "" })}
      </p>
      <dl class="difference">
        <dt>{t("chat.race_plain_lane")}</dt>
        <dd class="plain mono">{around(race.plain.text)}</dd>
        <dt>{t("chat.race_auto_lane")}</dt>
        <dd class="plain mono">{around(race.auto.text)}</dd>
      </dl>
    </div>
  );
}
