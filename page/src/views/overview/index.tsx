/** The figures of the server, now and over time. */

import { useMemo, useRef, useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import { usePolled } from "../../api/polled";
import type { ConfiguredModel, Models, Overview } from "../../api/schema";
import { bytes, duration, moment, number, percent, t, times } from "../../i18n";
import { query, setQuery } from "../../route";
import { Card, Figure, Loading, Problem } from "../../ui/basics";
import { ByDepth, ByDrafter } from "./acceptance";
import { Charts } from "./charts";
import { everyOf, joined, perForward, untouched, WINDOWS } from "./figures";
import type { Window } from "./figures";
import { Loaded } from "./loaded";
import { Welcome } from "./welcome";
import "./overview.css";

export default function View() {
  const [live, setLive] = useState<Overview | null>(null);
  const chosen = WINDOWS.find((window) => window === query.value.get("window")) ?? "2m";
  const unread = useTopic<Overview>("overview", (found) => setLive((known) => joined(known, found)));
  const asked = chosen === "2m" ? null : `console/overview?window=${chosen}`;
  const kept = usePolled<Overview>(asked, everyOf(chosen));
  // Until there is something: whether this server has ever answered anything.
  const used = useRef(false);
  const all = usePolled<Overview>(used.current ? null : "console/overview?window=all", everyOf("all"));
  used.current ||= [live, all.data].some((found) => found !== null && !untouched(found));
  const fresh = all.data !== null && !used.current;
  const [models, setModels] = useState<ConfiguredModel[] | null>(null);
  useTopic<Models>("models", (found) => setModels(found.configured));
  const shown = chosen === "2m" ? live : kept.data;
  const error = kept.error ?? all.error ?? unread;
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.overview")}</h1>
        {!fresh && <Windows chosen={chosen} />}
      </div>
      {error !== null && shown === null && <Problem error={error} retry={kept.again} />}
      {fresh && models !== null && <Welcome models={models.map((model) => model.name)} />}
      {!fresh && (
        <>
          {live && <Now overview={live} />}
          {shown ? <Period overview={shown} /> : !error && <Loading />}
        </>
      )}
      {models !== null && models.length > 0 && <Loaded models={models} />}
    </>
  );
}

function Windows(props: { chosen: Window }) {
  return (
    <div class="windows" role="group" aria-label={t("overview.window")}>
      {WINDOWS.map((window) => (
        <button
          key={window}
          type="button"
          aria-pressed={window === props.chosen}
          onClick={() => setQuery({ window: window === "2m" ? "" : window })}
        >
          {t(`overview.window_${window}`)}
        </button>
      ))}
    </div>
  );
}

/** The last point of the live window. */
function Now(props: { overview: Overview }) {
  const { points, memory_total_bytes: memory, gpu_memory_total_bytes: gpuMemory } = props.overview;
  const now = points.at(-1);
  if (now === undefined) return null;
  const busy = now.running > 0 || now.tokens_per_s > 0;
  const most = Math.max(...points.map((point) => point.tokens_per_s));
  return (
    <Card title={t("overview.now")}>
      <dl class="figures">
        <Figure
          name={t("overview.rate")}
          value={busy ? number(now.tokens_per_s, 1) : t("overview.idle")}
          note={most > 0 ? t("overview.most", { most: number(most, 1) }) : undefined}
        />
        <Figure
          name={t("overview.prompt_rate")}
          value={busy || now.prompt_tokens_per_s ? number(now.prompt_tokens_per_s, 0) : "–"}
        />
        <Figure
          name={t("overview.running_now")}
          value={number(now.running)}
          note={t("overview.waiting_note", { count: now.waiting })}
        />
        <Figure name={t("overview.cpu")} value={now.cpu === null ? "–" : percent(now.cpu)} />
        <Figure
          name={t("overview.ram")}
          value={now.memory_bytes === null ? "–" : bytes(now.memory_bytes)}
          note={memory === null ? undefined : t("overview.of", { total: bytes(memory) })}
        />
        {now.gpu !== null && (
          <Figure
            name={t("overview.gpu")}
            value={percent(now.gpu)}
            note={
              now.gpu_memory_bytes === null || gpuMemory === null
                ? undefined
                : `${bytes(now.gpu_memory_bytes)} ${t("overview.of", { total: bytes(gpuMemory) })}`
            }
          />
        )}
      </dl>
    </Card>
  );
}

/** Sums of a window, its charts, and what became of drafts in it. */
function Period(props: { overview: Overview }) {
  const { window, since, totals, kept, not_kept: notKept } = props.overview;
  // Drawn again when there are new figures, not with everything else that changes on the page.
  const charts = useMemo(() => <Charts overview={props.overview} />, [props.overview]);
  return (
    <>
      <Card title={t(`overview.in_${window}`, { since: moment(since) })}>
        {totals.requests || totals.generated_tokens ? (
          <Sums overview={props.overview} />
        ) : (
          <p class="dim">{t("overview.quiet")}</p>
        )}
        {!kept && (
          <p class="warn">
            {t("overview.not_kept")} <span lang="en">{notKept}</span>
          </p>
        )}
      </Card>
      {charts}
      <div class="columns">
        <ByDrafter overview={props.overview} />
        <ByDepth overview={props.overview} />
      </div>
    </>
  );
}

function Sums(props: { overview: Overview }) {
  const { totals } = props.overview;
  const { first_token_ms: first, inter_token_ms: inter } = totals;
  const tokens = perForward(props.overview);
  const cached = totals.prompt_tokens ? totals.cached_tokens / totals.prompt_tokens : 0;
  return (
    <dl class="figures">
      <Figure
        name={t("overview.speedup")}
        value={totals.speedup === null ? "–" : times(totals.speedup)}
        note={t(totals.speedup === null ? "overview.speedup_unknown" : "overview.speedup_note")}
        tone={totals.speedup !== null && totals.speedup >= 1.05 ? "good" : undefined}
      />
      <Figure
        name={t("overview.first_token")}
        value={span(first.p50)}
        note={first.p99 === null ? undefined : t("overview.p99_note", { value: duration(first.p99) })}
      />
      <Figure
        name={t("overview.inter_token")}
        value={span(inter.p50)}
        note={inter.p99 === null ? undefined : t("overview.p99_note", { value: duration(inter.p99) })}
      />
      <Figure
        name={t("overview.requests")}
        value={number(totals.requests)}
        note={totals.failed ? t("overview.failed", { count: totals.failed }) : undefined}
        tone={totals.failed ? "bad" : undefined}
      />
      <Figure name={t("overview.generated")} value={number(totals.generated_tokens)} />
      <Figure
        name={t("overview.prompt_tokens")}
        value={number(totals.prompt_tokens)}
        note={t("overview.cached", { share: percent(cached) })}
      />
      <Figure
        name={t("overview.per_forward")}
        value={tokens === null ? "–" : number(tokens)}
        note={t("overview.per_forward_note", { count: totals.rounds })}
      />
    </dl>
  );
}

function span(ms: number | null): string {
  return ms === null ? "–" : duration(ms);
}
