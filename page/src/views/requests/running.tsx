/** The requests that run, with what they have until now, and how to stop them. */

import { useState } from "preact/hooks";
import { ApiError, call } from "../../api/http";
import type { RequestRow } from "../../api/schema";
import { session } from "../../api/session";
import { duration, moment, t } from "../../i18n";
import { Badge, Card, Problem } from "../../ui/basics";
import { keyOf } from "./rows";
import { finishOf, rate } from "./words";

export function Running(props: { rows: RequestRow[]; open: (row: RequestRow) => void }) {
  const { rows } = props;
  return (
    <Card title={t("requests.running_now", { n: rows.length })}>
      {rows.length ? (
        <ul class="running-requests">
          {rows.map((row) => (
            <li key={keyOf(row)}>
              <button
                type="button"
                class="opens"
                aria-haspopup="dialog"
                aria-label={t("requests.details_of", { model: row.model ?? "–", time: moment(row.at) })}
                onClick={() => props.open(row)}
              >
                {row.model ?? "–"}
              </button>
              <Badge tone={row.state === "running" ? "good" : undefined}>{finishOf(row)}</Badge>
              <span class="dim">{session.value?.open ? row.api : `${row.key} · ${row.api}`}</span>
              <span class="so-far">
                {row.state === "running" && (
                  <span>{t("requests.tokens", { count: row.completion_tokens })}</span>
                )}
                {row.tokens_per_s !== null && (
                  <span>{t("requests.per_second", { n: rate(row.tokens_per_s) })}</span>
                )}
                <span>{duration(row.duration_ms)}</span>
              </span>
              <StopButton row={row} />
            </li>
          ))}
        </ul>
      ) : (
        <p class="dim">{t("requests.none_running")}</p>
      )}
    </Card>
  );
}

/** Ends the answer with the text it has. */
export function StopButton(props: { row: RequestRow }) {
  const [stopping, setStopping] = useState(false);
  const [error, setError] = useState<unknown>(null);
  async function stop(): Promise<void> {
    setStopping(true);
    setError(null);
    try {
      await call(`console/requests/${encodeURIComponent(props.row.id)}/stop`, { method: "POST" });
    } catch (failed) {
      if (failed instanceof ApiError && failed.status === 404) return; // it has just ended
      setError(failed);
      setStopping(false);
    }
  }
  return (
    <>
      <button type="button" class="danger" disabled={stopping} onClick={() => void stop()}>
        {t(stopping ? "requests.stopping" : "requests.stop")}
      </button>
      {error !== null && <Problem error={error} />}
    </>
  );
}
