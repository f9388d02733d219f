/** One report: how far it is, what came of it, and its pairs. */

import { useState } from "preact/hooks";
import { call } from "../../api/http";
import type { Benchmark, Pair } from "../../api/schema";
import { isAdmin } from "../../api/session";
import { moment, number, percent, t, times } from "../../i18n";
import { Badge, Bar, Card, Figure, Problem } from "../../ui/basics";
import { Picture } from "./picture";
import { STATE_TONES, interval, sameness, verdict } from "./words";

export function Report(props: { report: Benchmark }) {
  const { report } = props;
  const same = sameness(report);
  return (
    <Card
      title={`${report.model}, ${moment(report.at)}`}
      actions={<Badge tone={STATE_TONES[report.state]}>{t(`benchmark.state_${report.state}`)}</Badge>}
    >
      {report.state === "running" && <Progress report={report} />}
      {report.error !== null && (
        <p class="problem" lang="en">
          {report.error}
        </p>
      )}
      <Result report={report} />
      {same && <p class={same.tone}>{same.text}</p>}
      {report.disturbed > 0 && (
        <p class="warn">{t("benchmark.were_disturbed", { n: report.disturbed, all: report.total / 2 })}</p>
      )}
      {report.pairs.length > 0 && (
        <>
          <Picture pairs={report.pairs} />
          <details>
            <summary>{t("benchmark.numbers")}</summary>
            <Numbers pairs={report.pairs} />
          </details>
        </>
      )}
    </Card>
  );
}

function Progress(props: { report: Benchmark }) {
  const { id, done, total } = props.report;
  const [cancelling, setCancelling] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const said = t("benchmark.progress", { done, total });
  function cancel(): void {
    setCancelling(true);
    call(`console/benchmarks/${encodeURIComponent(id)}/cancel`, { method: "POST", body: {} }).catch(
      (failed: unknown) => {
        setError(failed);
        setCancelling(false);
      },
    );
  }
  return (
    <div class="bench-progress">
      <Bar share={total ? done / total : 0} label={t("benchmark.measuring")} />
      <span role="status">{said}</span>
      {isAdmin() && (
        <button type="button" disabled={cancelling} onClick={cancel}>
          {t(cancelling ? "benchmark.cancelling" : "shell.cancel")}
        </button>
      )}
      {error !== null && <Problem error={error} />}
    </div>
  );
}

function Result(props: { report: Benchmark }) {
  const { report } = props;
  const said = verdict(report);
  if (report.speedup === null) return null;
  return (
    <>
      <dl class="figures">
        <Figure
          name={t("benchmark.speedup")}
          value={times(report.speedup)}
          note={report.low === null ? undefined : interval(report)}
          tone={said?.tone === "warn" ? undefined : said?.tone}
        />
        <Figure name={t("benchmark.off")} value={rate(report.off)} note={t("benchmark.unit")} />
        <Figure name={t("benchmark.auto")} value={rate(report.auto)} note={t("benchmark.unit")} />
      </dl>
      {said && <p class="verdict">{said.text}</p>}
    </>
  );
}

function rate(value: number | null): string {
  return value === null ? "–" : number(value, 1);
}

function Numbers(props: { pairs: Pair[] }) {
  return (
    <div class="table">
      <table>
        <thead>
          <tr>
            <th scope="col">{t("benchmark.category")}</th>
            <th scope="col">{t("benchmark.prompt")}</th>
            <th scope="col" class="number">
              {t("benchmark.off")}
            </th>
            <th scope="col" class="number">
              {t("benchmark.auto")}
            </th>
            <th scope="col" class="number">
              {t("benchmark.speedup")}
            </th>
            <th scope="col" class="number">
              {t("benchmark.acceptance")}
            </th>
            <th scope="col" class="number">
              {t("benchmark.tokens_answered")}
            </th>
            <th scope="col">{t("benchmark.text")}</th>
          </tr>
        </thead>
        <tbody>
          {props.pairs.map((pair) => (
            <tr key={pair.prompt}>
              <td>{pair.category}</td>
              <td>{pair.prompt}</td>
              <td class="number">{number(pair.off, 1)}</td>
              <td class="number">{number(pair.auto, 1)}</td>
              <td class="number">{times(pair.speedup)}</td>
              <td class="number">{pair.acceptance === null ? "–" : percent(pair.acceptance)}</td>
              <td class="number">{number(pair.tokens)}</td>
              <td>
                {t(pair.same ? "benchmark.text_same" : "benchmark.text_differs")}{" "}
                {pair.disturbed && <Badge tone="warn">{t("benchmark.disturbed")}</Badge>}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
