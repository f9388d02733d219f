/** The reports that are kept: show, download, delete. */

import { useState } from "preact/hooks";
import { call } from "../../api/http";
import type { Benchmark } from "../../api/schema";
import { isAdmin } from "../../api/session";
import { moment, t } from "../../i18n";
import { href } from "../../route";
import { Badge, Card, Dialog, Problem } from "../../ui/basics";
import { STATE_TONES, interval } from "./words";

export function Kept(props: { reports: Benchmark[]; shown: Benchmark }) {
  const [deleting, setDeleting] = useState<Benchmark | null>(null);
  return (
    <Card title={t("benchmark.kept")}>
      <ul class="bench-kept">
        {props.reports.map((report) => (
          <li key={report.id}>
            <a
              href={href("benchmark", report.id)}
              aria-current={report.id === props.shown.id ? "true" : undefined}
            >
              {moment(report.at)}
            </a>
            <span class="model">{report.model}</span>
            <span class="interval">{interval(report)}</span>
            <Badge tone={STATE_TONES[report.state]}>{t(`benchmark.state_${report.state}`)}</Badge>
            <span class="actions">
              <button type="button" class="quiet" onClick={() => download(report)}>
                {t("benchmark.download")}
              </button>
              {isAdmin() && report.state !== "running" && (
                <button type="button" class="quiet" onClick={() => setDeleting(report)}>
                  {t("benchmark.delete")}
                </button>
              )}
            </span>
          </li>
        ))}
      </ul>
      {deleting && <Delete report={deleting} close={() => setDeleting(null)} />}
    </Card>
  );
}

function Delete(props: { report: Benchmark; close: () => void }) {
  const { report } = props;
  const [error, setError] = useState<unknown>(null);
  function remove(): void {
    call(`console/benchmarks/${encodeURIComponent(report.id)}`, { method: "DELETE" }).then(
      props.close,
      setError,
    );
  }
  return (
    <Dialog title={t("benchmark.delete_title")} close={props.close}>
      <p>{`${report.model}, ${moment(report.at)}, ${interval(report)}`}</p>
      {error !== null && <Problem error={error} />}
      <div class="actions">
        <button type="button" class="danger" onClick={remove}>
          {t("benchmark.delete")}
        </button>
        <button type="button" onClick={props.close}>
          {t("shell.cancel")}
        </button>
      </div>
    </Dialog>
  );
}

function download(report: Benchmark): void {
  const file = new Blob([JSON.stringify(report, null, 1)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = `benchmark-${report.id}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
