/** What speculation does on each loaded model, and why. */

import { useRef, useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import { number, percent, t, times } from "../../i18n";
import { href } from "../../route";
import { Announced, Badge, Card, Figure, Loading, Problem } from "../../ui/basics";
import { Remembered } from "../../ui/remembered";
import { Drafters } from "./drafters";
import { Internals } from "./internals";
import { withRounds } from "./rounds";
import type { Round } from "./rounds";
import { says } from "./says";
import type { ModelSpeculation, Speculation } from "../../api/schema";
import "./speculation.css";
import { Why } from "./why";

/** What is kept of a model between two events. */
interface Followed {
  state: ModelSpeculation;
  rounds: readonly Round[];
  /** The estimated speedups of the last looks, and the milliseconds that each is about. */
  recent: { ms: number; speedup: number }[];
}

const RECENT_KEPT = 12;

function followed(before: Followed | undefined, state: ModelSpeculation): Followed {
  const rounds = withRounds(before?.rounds ?? [], state);
  const [newest, last] = [rounds.at(-1)?.number ?? 0, before?.rounds.at(-1)?.number ?? 0];
  let recent = newest < last ? [] : (before?.recent ?? []);
  const { ms, estimated_speedup: speedup } = state.recent ?? { ms: 0, estimated_speedup: null };
  if (newest !== last && speedup !== null) recent = [...recent, { ms, speedup }].slice(-RECENT_KEPT);
  return { state, rounds, recent };
}

/** The estimated speedup of the last looks, each by the time that its rounds took. */
function speedupOf(recent: Followed["recent"]): number | null {
  const spent = recent.reduce((sum, look) => sum + look.ms, 0);
  return spent ? recent.reduce((sum, look) => sum + look.ms * look.speedup, 0) / spent : null;
}

export default function View() {
  const models = useRef(new Map<string, Followed>());
  const [known, setKnown] = useState(false);
  const [, draw] = useState(0);
  const take = (states: Speculation) => {
    models.current = new Map(
      Object.entries(states).map(([name, state]) => [name, followed(models.current.get(name), state)]),
    );
    setKnown(true);
    draw((turn) => turn + 1);
  };
  const unread = useTopic<Speculation>("speculation", take);
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.speculation")}</h1>
      </div>
      <p class="dim">{t("speculation.intro")}</p>
      {unread && <Problem error={unread} />}
      {!known && !unread && <Loading />}
      {known && !models.current.size && <NoneLoaded />}
      {[...models.current].map(([name, model]) => (
        <ModelCard key={name} name={name} model={model} />
      ))}
    </>
  );
}

function NoneLoaded() {
  return (
    <Card>
      <p>{t("speculation.none_loaded")}</p>
      <p class="actions">
        <a class="button primary" href={href("chat")}>
          {t("speculation.open_chat")}
        </a>
        <a class="button" href={href("models")}>
          {t("speculation.open_models")}
        </a>
      </p>
    </Card>
  );
}

function ModelCard(props: { name: string; model: Followed }) {
  const { name } = props;
  const { state, rounds, recent } = props.model;
  const speedup = speedupOf(recent);
  return (
    <Card
      title={name}
      actions={
        <>
          {state.summary.code === "idle" && <Badge>{t("speculation.idle_now")}</Badge>}
          <Badge tone={state.exact ? "good" : "warn"}>
            {t(state.exact ? "speculation.exact" : "speculation.inexact")}
          </Badge>
        </>
      }
    >
      <p class="says">{says(state)}</p>
      <Announced text={says(state)} on={state.summary.code} />
      <p class="dim configured">
        {t("speculation.configured")} <code>{state.configured}</code> ·{" "}
        <a href={href("models", name)}>{t("speculation.change")}</a>
      </p>
      {rounds.length > 0 && <Lately state={state} rounds={rounds} speedup={speedup} />}
      {state.notes.length > 0 && (
        <ul class="notes warn" lang="en">
          {state.notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
      <Drafters state={state} />
      <Why name={name} state={state} rounds={rounds} speedup={speedup} />
      <Remembered name="internals" title={t("speculation.internals")}>
        {() => <Internals state={state} rounds={rounds} />}
      </Remembered>
    </Card>
  );
}

function Lately(props: { state: ModelSpeculation; rounds: readonly Round[]; speedup: number | null }) {
  const { state, rounds, speedup } = props;
  const sum = (of: (round: Round) => number) => rounds.reduce((total, round) => total + of(round), 0);
  const [drafted, accepted] = [sum((round) => round.drafted), sum((round) => round.accepted)];
  const each = sum((round) => round.requests);
  return (
    <dl class="figures">
      <Figure
        name={t("speculation.speedup")}
        value={speedup === null ? "–" : times(speedup)}
        note={t(speedup === null ? "speculation.speedup_unknown" : "speculation.speedup_note")}
        tone={speedup !== null && speedup >= 1.05 ? "good" : undefined}
      />
      <Figure
        name={t("speculation.per_forward")}
        value={each ? number(sum((round) => round.committed) / each) : "–"}
        note={t("speculation.per_forward_note")}
      />
      <Figure
        name={t("speculation.acceptance")}
        value={drafted ? percent(accepted / drafted) : "–"}
        note={drafted ? t("speculation.of_drafted", { accepted, count: drafted }) : t("speculation.no_draft")}
      />
      <Figure
        name={t("speculation.running")}
        value={number(state.requests.running)}
        note={t("speculation.waiting", { count: state.requests.waiting })}
      />
    </dl>
  );
}
