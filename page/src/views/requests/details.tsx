/** All that is known of one request. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call } from "../../api/http";
import type { RequestRow, Texts } from "../../api/schema";
import { duration, moment, t, times } from "../../i18n";
import { Badge, CopyButton, Dialog, Problem } from "../../ui/basics";
import { drafterColour } from "../../ui/drafters";
import { StopButton } from "./running";
import { count, errorOf, finishOf, rate, reasonOf, share, speedTone, toneOf, written } from "./words";

export function Details(props: { row: RequestRow; close: () => void }) {
  const { row } = props;
  return (
    <Dialog title={t("requests.details")} close={props.close}>
      <div class="request-id">
        <Badge tone={toneOf(row)}>{finishOf(row)}</Badge>
        <code>{row.id}</code>
        <CopyButton text={() => row.id} label={t("requests.copy_id")} />
      </div>
      {row.error !== null && (
        <p
          lang={errorOf(row) === row.error ? "en" : undefined}
          class={toneOf(row) === "bad" ? "problem" : toneOf(row)}
        >
          {errorOf(row)}
        </p>
      )}
      <Facts row={row} />
      <Drafted row={row} />
      {row.texts && <Recorded row={row} beginnings={row.texts} />}
      <div class="actions">
        {row.state !== "done" && <StopButton row={row} />}
        <button type="button" onClick={props.close}>
          {t("shell.close")}
        </button>
      </div>
    </Dialog>
  );
}

function Facts(props: { row: RequestRow }) {
  const { row } = props;
  return (
    <dl class="facts">
      <Fact name={t("requests.column_at")}>{moment(row.at)}</Fact>
      <Fact name={t("requests.column_model")}>{row.model}</Fact>
      <Fact name={t("requests.column_api")}>{row.api}</Fact>
      <Fact name={t("requests.column_key")}>{row.key}</Fact>
      <Fact name={t("requests.status")}>
        {row.status && (
          <>
            {String(row.status)} {row.code}
          </>
        )}
      </Fact>
      <Fact name={t("requests.duration")}>{duration(row.duration_ms)}</Fact>
      <Fact name={t("requests.first_token")}>{written(row.first_token_ms, duration)}</Fact>
      <Fact name={t("requests.prompt_tokens")}>
        {count(row.prompt_tokens)}
        {row.cached_tokens ? ` ${t("requests.of_it_cached", { n: row.cached_tokens })}` : ""}
      </Fact>
      <Fact name={t("requests.answer_tokens")}>{count(row.completion_tokens)}</Fact>
      {row.answers > 1 && <Fact name={t("requests.answers")}>{count(row.answers)}</Fact>}
      <Fact name={t("requests.column_rate")}>{rate(row.tokens_per_s)}</Fact>
      <Fact name={t("requests.speedup")}>
        <span class={speedTone(row.speedup)}>{written(row.speedup, times)}</span>
      </Fact>
    </dl>
  );
}

function Fact(props: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.children || "–"}</dd>
    </div>
  );
}

function Drafted(props: { row: RequestRow }) {
  const { row } = props;
  const drafters = Object.entries(row.drafters);
  if (!drafters.length) {
    const reason = reasonOf(row);
    return reason === null ? null : (
      <section>
        <h3>{t("requests.nothing_drafted")}</h3>
        <p class="dim">{reason}</p>
      </section>
    );
  }
  return (
    <section>
      <h3>{t("requests.drafts")}</h3>
      <table>
        <thead>
          <tr>
            <th scope="col">{t("requests.drafter")}</th>
            <th scope="col" class="number">
              {t("requests.drafted")}
            </th>
            <th scope="col" class="number">
              {t("requests.accepted")}
            </th>
            <th scope="col" class="number">
              {t("requests.column_accepted")}
            </th>
          </tr>
        </thead>
        <tbody>
          {drafters.map(([name, { drafted, accepted }]) => (
            <tr key={name}>
              <th scope="row" style={{ color: `var(${drafterColour(name)})` }}>
                {name}
              </th>
              <td class="number">{count(drafted)}</td>
              <td class="number">{count(accepted)}</td>
              <td class="number">{share(drafted ? accepted / drafted : null)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** What was asked and answered: the list has the beginnings, the server all that it kept. */
function Recorded(props: { row: RequestRow; beginnings: Texts }) {
  const { id, state } = props.row;
  const [whole, setWhole] = useState<Texts | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    call<RequestRow>(`console/requests/${encodeURIComponent(id)}`).then(
      (row) => setWhole(row.texts),
      setError,
    );
  }, [id, state]);
  const { prompt, answer } = (state === "done" && whole) || props.beginnings;
  return (
    <section class="recorded">
      <Text title={t("requests.prompt")} text={prompt} />
      <Text title={t("requests.answer")} text={answer} />
      {error !== null && <Problem error={error} />}
    </section>
  );
}

function Text(props: { title: string; text: string }) {
  return (
    <>
      <div class="card-head">
        <h3>{props.title}</h3>
        <CopyButton text={() => props.text} />
      </div>
      <pre tabIndex={0} aria-label={props.title}>
        {props.text}
      </pre>
    </>
  );
}
