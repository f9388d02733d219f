/** What the server logs, as it comes. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { call } from "../../api/http";
import { useTopic } from "../../api/live";
import type { Log, LogLine } from "../../api/schema";
import { moment, t } from "../../i18n";
import { query, setQuery } from "../../route";
import { Announced, Badge, Card, CopyButton, Loading, Problem } from "../../ui/basics";
import { asText, joined, LEVELS, matching } from "./lines";
import type { Level } from "./lines";
import "./style.css";

const TONES = { info: undefined, warning: "warn", error: "bad" } as const;

export default function View() {
  const [lines, setLines] = useState<readonly LogLine[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const show = (log: Log) => (setLines((known) => joined(known, log)), setError(null));
  function load(): void {
    call<Log>("console/log").then(show, setError);
  }
  useEffect(load, []);
  const unread = useTopic<Log>("log", show);
  const least = LEVELS.find((level) => level === query.value.get("level")) ?? "info";
  const text = query.value.get("text") ?? "";
  const shown = useMemo(() => matching(lines ?? [], least, text), [lines, least, text]);
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.log")}</h1>
        <Filter least={least} text={text} />
      </div>
      {error !== null && <Problem error={error} retry={load} />}
      {error === null && unread && <Problem error={unread} />}
      {lines && <Lines shown={shown} all={lines.length} filter={`${least} ${text}`} />}
      {!lines && error === null && <Loading />}
    </>
  );
}

function Filter(props: { least: Level; text: string }) {
  return (
    <div class="actions" role="search">
      <select
        aria-label={t("log.level")}
        value={props.least}
        onChange={(event) => setQuery({ level: event.currentTarget.value })}
      >
        {LEVELS.map((level) => (
          <option key={level} value={level}>
            {t(`log.least_${level}`)}
          </option>
        ))}
      </select>
      <input
        type="search"
        aria-label={t("log.text")}
        placeholder={t("log.text")}
        value={props.text}
        onInput={(event) => setQuery({ text: event.currentTarget.value })}
      />
    </div>
  );
}

/** The lines in a box that stays at its end, until the reader scrolls up or says so. */
function Lines(props: { shown: readonly LogLine[]; all: number; filter: string }) {
  const [following, setFollowing] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const place = box.current;
    if (following && place) place.scrollTop = place.scrollHeight;
  }, [props.shown, following]);
  function scrolled(): void {
    const place = box.current;
    if (place) setFollowing(place.scrollHeight - place.scrollTop - place.clientHeight < 8);
  }
  const filtered = props.shown.length < props.all;
  const counted = filtered
    ? t("log.shown", { count: props.all, shown: props.shown.length })
    : t("log.lines", { count: props.all });
  return (
    <Card class="log">
      <div class="card-head">
        <span class="dim">{counted}</span>
        <Announced text={filtered ? counted : ""} on={props.filter} />
        <div class="actions">
          <label>
            <input
              type="checkbox"
              checked={following}
              onChange={(event) => setFollowing(event.currentTarget.checked)}
            />{" "}
            {t("log.follow")}
          </label>
          {props.shown.length > 0 && <CopyButton text={() => asText(props.shown)} label={t("log.copy")} />}
        </div>
      </div>
      {props.shown.length > 0 ? (
        <div
          class="log-lines mono"
          role="log"
          aria-live="off"
          aria-label={t("shell.log")}
          tabIndex={0}
          ref={box}
          onScroll={scrolled}
        >
          {props.shown.map((line) => (
            <Line key={line.number} line={line} />
          ))}
        </div>
      ) : (
        <Nothing filtered={filtered} />
      )}
    </Card>
  );
}

function Line(props: { line: LogLine }) {
  const { at, level, text } = props.line;
  return (
    <p class={`log-line ${level}`}>
      <time dateTime={new Date(at * 1000).toISOString()}>{moment(at)}</time>{" "}
      {level !== "info" && <Badge tone={TONES[level]}>{t(`log.level_${level}`)}</Badge>} {text}
    </p>
  );
}

function Nothing(props: { filtered: boolean }) {
  if (!props.filtered) return <p class="dim">{t("log.none")}</p>;
  return (
    <p class="dim">
      {t("log.no_match")}{" "}
      <button type="button" onClick={() => setQuery({ level: "", text: "" })}>
        {t("log.reset")}
      </button>
    </p>
  );
}
